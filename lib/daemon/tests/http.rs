//! The HTTP server over a real Unix socket, spoken to in raw bytes.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::{ApiError, Code};
use conduit_daemon::activation::bind_stream;
use conduit_daemon::http::{Limits, Reply, Request, Served, Service, Source, Stream, serve};
use conduit_daemon::program::block_on;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// Generous: nothing here waits for it unless something is broken.
const END: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Demo {
    /// A request to `/slow` has arrived.
    arrived: Notify,
    /// What a request to `/slow` waits for.
    release: Notify,
}

impl Service for Demo {
    async fn handle(&self, mut request: Request) -> Reply {
        match request.path.as_str() {
            "/echo" => request.json_bytes().await.map(|b| Reply::Json { status: 200, body: b.to_vec() }).into(),
            "/slow" => {
                self.arrived.notify_one();
                self.release.notified().await;
                Reply::Empty(204)
            }
            "/file" => {
                let path = request.query.unwrap();
                let file = std::fs::File::open(&path).unwrap();
                let source = Source { bytes: file.metadata().unwrap().len(), file };
                Reply::Stream(Stream { status: 200, content_type: "text/plain".into(), source })
            }
            "/short" => {
                let file = std::fs::File::open("/dev/null").unwrap();
                let source = Source { bytes: 10, file };
                Reply::Stream(Stream { status: 200, content_type: "text/plain".into(), source })
            }
            "/tagged" => Reply::json(200, &1).with("etag".parse().unwrap(), "\"7\"".parse().unwrap()),
            _ => ApiError::new(Code::NotFound, "no such route").into(),
        }
    }
}

/// A directory that a socket may be bound in.
fn owner_only() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap()
}

/// A server in a directory of its own.
struct Server {
    dir: tempfile::TempDir,
    demo: Rc<Demo>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<Served, ApiError>>,
}

impl Server {
    fn start(limits: Limits, idle: Option<Duration>) -> Self {
        let dir = owner_only();
        let listener = bind_stream(&dir.path().join("s")).unwrap();
        let demo = Rc::new(Demo::default());
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::task::spawn_local(serve(listener, demo.clone(), limits, stopped, idle));
        Self { dir, demo, stop: Some(stop), serving }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    async fn dial(&self) -> UnixStream {
        UnixStream::connect(self.socket()).await.unwrap()
    }

    /// Sends `bytes` on a connection of its own and returns all that comes back until the server closes.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.dial().await;
        stream.write_all(bytes).await.unwrap();
        read_all(&mut stream).await
    }

    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    async fn ended(self) -> Served {
        tokio::time::timeout(END, self.serving).await.unwrap().unwrap().unwrap()
    }
}

async fn read_all(stream: &mut UnixStream) -> String {
    let mut answer = Vec::new();
    // A reset after the answer is how a closed connection with unread bytes looks.
    let _ = tokio::time::timeout(END, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// Reads from a kept-alive connection until what was read ends with `end`.
async fn read_until(stream: &mut UnixStream, end: &str) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(end.as_bytes()) {
        let byte = tokio::time::timeout(END, stream.read_u8()).await.unwrap().unwrap();
        answer.push(byte);
    }
    String::from_utf8(answer).unwrap()
}

fn post(content_type: &str, body: &str) -> Vec<u8> {
    format!(
        "POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").into_bytes()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no status in {answer:?}"))
}

fn small() -> Limits {
    Limits { body_bytes: 1000, ..Limits::default() }
}

#[test]
fn an_answer_carries_the_request_id_of_the_caller_or_one_made_up() {
    block_on(async {
        let server = Server::start(Limits::default(), None);
        let named = b"GET /none HTTP/1.1\r\nhost: h\r\nx-request-id: mine-1\r\nconnection: close\r\n\r\n";
        let answer = server.exchange(named).await;
        assert_eq!(status(&answer), 404);
        assert!(answer.contains("x-request-id: mine-1\r\n"), "{answer}");
        assert!(answer.contains(r#""request_id":"mine-1""#), "{answer}");
        assert!(answer.contains(r#""code":"not_found""#), "{answer}");
        let made_up = server.exchange(&get("/none")).await;
        let other = server.exchange(&get("/none")).await;
        let id = |answer: &str| answer.split("x-request-id: ").nth(1).unwrap()[..28].to_owned();
        assert!(id(&made_up).starts_with("req_"), "{made_up}");
        assert_ne!(id(&made_up), id(&other));
    })
    .unwrap();
}

#[test]
fn a_kept_alive_connection_serves_one_request_after_another() {
    block_on(async {
        let server = Server::start(Limits::default(), None);
        let mut stream = server.dial().await;
        for n in 0..3 {
            let body = format!("[{n}]");
            let request = post("application/json; charset=utf-8", &body);
            let request = String::from_utf8(request).unwrap().replace("connection: close\r\n", "");
            stream.write_all(request.as_bytes()).await.unwrap();
            assert_eq!(status(&read_until(&mut stream, &body).await), 200);
        }
    })
    .unwrap();
}

/// M07
#[test]
fn a_body_that_is_not_json_by_its_content_type_is_refused() {
    block_on(async {
        let server = Server::start(Limits::default(), None);
        assert_eq!(status(&server.exchange(&post("text/plain", "{}")).await), 415);
        let without = b"POST /echo HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
        let answer = server.exchange(without).await;
        assert_eq!(status(&answer), 415);
        assert!(answer.contains("unsupported_media_type"), "{answer}");
    })
    .unwrap();
}

/// M07
#[test]
fn a_body_above_the_limit_is_refused_whether_announced_or_sent_in_chunks() {
    block_on(async {
        let server = Server::start(small(), None);
        let fits = server.exchange(&post("application/json", &"1".repeat(1000))).await;
        assert_eq!(status(&fits), 200);
        let announced = server.exchange(&post("application/json", &"1".repeat(1001))).await;
        assert_eq!(status(&announced), 413);
        assert!(announced.contains("body_too_large"), "{announced}");
        let chunk = format!("1f4\r\n{}\r\n", "1".repeat(500));
        let head = "POST /echo HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        let two = format!("{head}{chunk}{chunk}0\r\n\r\n");
        assert_eq!(status(&server.exchange(two.as_bytes()).await), 200);
        let three = format!("{head}{chunk}{chunk}{chunk}0\r\n\r\n");
        assert_eq!(status(&server.exchange(three.as_bytes()).await), 413);
    })
    .unwrap();
}

/// M07
#[test]
fn an_announced_length_far_above_the_limit_is_refused_without_reading_it() {
    block_on(async {
        let server = Server::start(small(), None);
        let head =
            "POST /echo HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n";
        assert_eq!(status(&server.exchange(head.as_bytes()).await), 413);
    })
    .unwrap();
}

#[test]
fn a_body_that_does_not_arrive_is_given_up() {
    block_on(async {
        let limits = Limits { body_read: Duration::from_millis(20), ..Limits::default() };
        let server = Server::start(limits, None);
        let head = "POST /echo HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\n[1";
        let answer = server.exchange(head.as_bytes()).await;
        assert_eq!(status(&answer), 408);
        assert!(answer.contains("request_timeout"), "{answer}");
    })
    .unwrap();
}

#[test]
fn a_connection_whose_headers_do_not_arrive_is_closed() {
    block_on(async {
        let limits = Limits { header_read: Duration::from_millis(20), ..Limits::default() };
        let server = Server::start(limits, None);
        let answer = server.exchange(b"GET /none HT").await;
        assert!(!answer.contains("200"), "{answer}");
    })
    .unwrap();
}

#[test]
fn headers_above_their_bounds_are_refused() {
    block_on(async {
        let server = Server::start(Limits::default(), None);
        let long = format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "x".repeat(20 << 10));
        assert_eq!(status(&server.exchange(long.as_bytes()).await), 431);
        let many = format!("GET / HTTP/1.1\r\nhost: h\r\n{}\r\n", "x: y\r\n".repeat(100));
        assert_eq!(status(&server.exchange(many.as_bytes()).await), 431);
        assert_eq!(status(&server.exchange(b"\x00\x01\x02 nonsense\r\n\r\n").await), 400);
    })
    .unwrap();
}

#[test]
fn a_connection_above_the_bound_is_told_so_and_a_freed_place_is_used() {
    block_on(async {
        let server = Server::start(Limits { connections: 2, ..Limits::default() }, None);
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut stream = server.dial().await;
            stream.write_all(&get("/slow")).await.unwrap();
            server.demo.arrived.notified().await;
            held.push(stream);
        }
        let mut third = server.dial().await;
        let answer = read_all(&mut third).await;
        assert_eq!(status(&answer), 429);
        assert!(answer.contains("too_many_requests") && answer.contains("x-request-id: req_"), "{answer}");
        held.clear();
        let freed = async {
            loop {
                let mut stream = server.dial().await;
                // A connection that was turned away may be closed before the request is written.
                let _ = stream.write_all(&get("/none")).await;
                if status(&read_all(&mut stream).await) == 404 {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(END, freed).await.expect("a place is freed");
    })
    .unwrap();
}

/// E03: neither who dials and is silent, nor who says half a request, nor who had an answer and stays keeps others out.
#[test]
fn a_flood_of_connections_that_ask_nothing_keeps_no_request_waiting() {
    block_on(async {
        let server = Server::start(Limits { connections: 8, ..Limits::default() }, None);
        let (mut silent, mut slow) = (Vec::new(), server.dial().await);
        slow.write_all(&get("/slow")).await.unwrap();
        server.demo.arrived.notified().await;
        for round in 0..100 {
            let mut stream = server.dial().await;
            match round % 3 {
                0 => {}
                1 => stream.write_all(b"GET /none HT").await.unwrap(),
                _ => {
                    stream.write_all(b"GET /none HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
                    assert_eq!(status(&read_until(&mut stream, "}}").await), 404);
                    stream.write_all(b"GET /none HT").await.unwrap();
                }
            }
            silent.push(stream);
            assert_eq!(status(&server.exchange(&get("/none")).await), 404, "in round {round}");
        }
        server.demo.release.notify_one();
        assert_eq!(status(&read_all(&mut slow).await), 204, "what has a request under way stays");
        assert_eq!(read_all(&mut silent[0]).await, "", "it was closed");
    })
    .unwrap();
}

/// A connection that has got its answer and was closed does not count, however many more wait to be accepted.
#[test]
fn a_burst_of_short_connections_above_the_bound_is_served_to_the_last() {
    use std::io::{Read as _, Write as _};

    block_on(async {
        let dir = owner_only();
        let listener = bind_stream(&dir.path().join("s")).unwrap();
        let mut clients: Vec<_> = (0..100)
            .map(|_| {
                let mut client = std::os::unix::net::UnixStream::connect(dir.path().join("s")).unwrap();
                client.write_all(&get("/none")).unwrap();
                client
            })
            .collect();
        let limits = Limits { connections: 8, ..Limits::default() };
        let idle = Some(Duration::from_millis(20));
        let served = serve(listener, Rc::new(Demo::default()), limits, std::future::pending::<()>(), idle);
        assert_eq!(tokio::time::timeout(END, served).await.unwrap(), Ok(Served::Idle));
        for client in &mut clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(status(&answer), 404);
        }
    })
    .unwrap();
}

#[test]
fn a_stop_finishes_the_request_under_way_and_accepts_no_other() {
    block_on(async {
        let mut server = Server::start(Limits::default(), None);
        let mut slow = server.dial().await;
        slow.write_all(&get("/slow")).await.unwrap();
        server.demo.arrived.notified().await;
        let mut quiet = server.dial().await;
        server.stop();
        assert_eq!(read_all(&mut quiet).await, "", "a connection without a request is closed");
        server.demo.release.notify_one();
        assert_eq!(status(&read_all(&mut slow).await), 204);
        assert!(UnixStream::connect(server.socket()).await.is_err());
        assert_eq!(server.ended().await, Served::Shutdown);
    })
    .unwrap();
}

#[test]
fn a_stop_does_not_wait_for_ever() {
    block_on(async {
        let limits = Limits { drain: Duration::from_millis(20), ..Limits::default() };
        let mut server = Server::start(limits, None);
        let mut slow = server.dial().await;
        slow.write_all(&get("/slow")).await.unwrap();
        server.demo.arrived.notified().await;
        server.stop();
        assert_eq!(server.ended().await, Served::Shutdown);
        assert_eq!(read_all(&mut slow).await, "");
    })
    .unwrap();
}

#[test]
fn an_idle_server_ends_and_a_connection_keeps_it() {
    block_on(async {
        let server = Server::start(Limits::default(), Some(Duration::from_millis(20)));
        let mut held = server.dial().await;
        held.write_all(&get("/slow")).await.unwrap();
        server.demo.arrived.notified().await;
        let long_after = tokio::time::Instant::now() + Duration::from_millis(60);
        tokio::time::sleep_until(long_after).await;
        assert!(!server.serving.is_finished());
        server.demo.release.notify_one();
        assert_eq!(status(&read_all(&mut held).await), 204);
        assert_eq!(server.ended().await, Served::Idle);
    })
    .unwrap();
}

#[test]
fn a_file_is_sent_whole_and_one_that_ends_early_breaks_the_connection() {
    block_on(async {
        let server = Server::start(Limits::default(), None);
        let path = server.dir.path().join("file");
        let text = "0123456789".repeat(20_000);
        std::fs::write(&path, &text).unwrap();
        let answer = server.exchange(&get(&format!("/file?{}", path.display()))).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-length: 200000"), "{head}");
        assert!(body == text);
        let broken = server.exchange(&get("/short")).await;
        assert!(broken.is_empty() || broken.ends_with("\r\n\r\n"), "{broken}");
    })
    .unwrap();
}

#[test]
fn a_reply_may_carry_headers_of_its_own() {
    block_on(async {
        let server = Server::start(Limits::default(), None);
        assert!(server.exchange(&get("/tagged")).await.contains("etag: \"7\"\r\n"));
    })
    .unwrap();
}
