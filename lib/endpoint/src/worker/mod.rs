//! The worker, `open-conduit-endpoint`: serves the toolbelt of one execution on the socket that the spawner passed.
//!
//! It takes HTTP apart and leaves every decision to [`conduit_toolbelt::Toolbelt`], which it uses inline on its one
//! thread: a call is one transaction and there is nothing to overlap it with. The daemon need not run.

mod host;
mod program;
mod routes;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use conduit_api::limits::BODY_BYTES_MAX;
use conduit_api::places::Places;
use conduit_api::toolbelt::CallRequest;
use conduit_api::{ApiError, Code, ExecutionId, http as wire, json};
use conduit_daemon::doorbell::Ringer;
use conduit_daemon::http::{Reply, Request, Service};
use conduit_daemon::path;
use conduit_toolbelt::Toolbelt;
use serde_json::Value;
use tokio::sync::Notify;

pub use program::main;
pub use routes::{ROUTES, Route};

/// Requests of one execution whose body is being read, at one time; one more is `too_many_requests`. With
/// [`BODY_BYTES_MAX`] it bounds what callers can make a worker hold.
pub const REQUESTS_MAX: usize = 128;
/// Quiet time after a call until the records of calls are written.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// The toolbelt of one execution behind its socket.
#[derive(Debug)]
pub struct Desk {
    state: PathBuf,
    execution: ExecutionId,
    /// `None` while the store cannot be opened; every request tries again, and is told why.
    toolbelt: RefCell<Option<Toolbelt>>,
    ringer: Ringer,
    host: host::HostClient,
    reading: Cell<usize>,
    calls: Cell<u64>,
    /// Says that there is a record to be written in a quiet moment.
    noted: Notify,
}

impl Desk {
    /// The desk of `execution`. A store that cannot be opened is no error yet: callers are told the reason.
    pub fn new(places: &Places, execution: ExecutionId) -> Self {
        let desk = Self {
            state: places.state.clone(),
            execution,
            toolbelt: RefCell::new(None),
            ringer: Ringer::new(places),
            host: host::HostClient::new(places),
            reading: Cell::new(0),
            calls: Cell::new(0),
            noted: Notify::new(),
        };
        if let Err(error) = desk.with(|_| Ok(())) {
            tracing::warn!(code = %error.code, "callers are told why there is no toolbelt");
        }
        desk
    }

    /// Lends the toolbelt, opening it if it is not open. Never held over an await.
    fn with<T>(&self, use_it: impl FnOnce(&mut Toolbelt) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut held = self.toolbelt.borrow_mut();
        let toolbelt = match &mut *held {
            Some(open) => open,
            closed => {
                let opened = Toolbelt::open(&self.state, self.execution.clone(), Rc::new(conduit_release::registry()));
                let opened = opened.map_err(|error| {
                    tracing::error!(execution_id = self.execution.as_str(), %error, "the toolbelt could not be opened");
                    error.to_api()
                })?;
                closed.insert(opened.with_readers(conduit_release::readers()))
            }
        };
        use_it(toolbelt)
    }

    async fn answer(&self, request: &mut Request) -> Result<Reply, ApiError> {
        let route = routes::find(&request.method, &request.path)?;
        // Without a bearer nothing else is looked at.
        let Some(bearer) = request.bearer().map(str::to_owned) else { return Err(ApiError::forbidden()) };
        let shown = |view: Result<Value, ApiError>| view.map(|view| Reply::json(200, &view)).map_err(Fault::Refused);
        let done = match route {
            Route::Call => self.call(&bearer, request).await,
            Route::Guidance => shown(self.with(|toolbelt| toolbelt.guidance(&bearer))),
            Route::Serving => capability(request.query.as_deref())
                .map_err(Fault::Malformed)
                .and_then(|name| shown(self.with(|toolbelt| toolbelt.serving(&bearer, &name)))),
        };
        match done {
            Ok(reply) => Ok(reply),
            Err(Fault::Refused(error)) => Err(error),
            // Who may not call at all learns that first, and nothing about the request (T05, T06).
            Err(Fault::Malformed(error)) => Err(self.with(|toolbelt| Ok(toolbelt.unreadable(&bearer, error)))?),
        }
    }

    async fn call(&self, bearer: &str, request: &mut Request) -> Result<Reply, Fault> {
        let call: CallRequest = {
            let _reading = self.read_slot()?;
            let body = request.json_bytes().await.map_err(Fault::Malformed)?;
            json::read(&body, BODY_BYTES_MAX).map_err(|refused| invalid(refused.0))?
        };
        let key = match request.headers.contains_key(wire::IDEMPOTENCY_KEY) {
            true => Some(request.header(wire::IDEMPOTENCY_KEY).ok_or_else(|| {
                invalid(format!("the header {} stands once, in printable ASCII", wire::IDEMPOTENCY_KEY))
            })?),
            false => None,
        };
        if self.with(|toolbelt| Ok(toolbelt.is_hosted(&call.operation))).map_err(Fault::Refused)? {
            return self.pass_on(bearer, &call, key).await;
        }
        let called = self.with(|toolbelt| toolbelt.call(bearer, &call, key));
        self.calls.set(self.calls.get() + 1);
        self.noted.notify_one();
        let called = called.map_err(|error| self.refused(error))?;
        if called.ring {
            self.ringer.ring();
        }
        Ok(Reply::json(200, &called.response))
    }

    /// A call of an extension's operation: carried out here when it only reads and no gate judges it. Every other is decided
    /// here, so that the daemon hears only of callers that may call, and carried out there.
    async fn pass_on(&self, bearer: &str, call: &CallRequest, key: Option<&str>) -> Result<Reply, Fault> {
        let read = self.with(|toolbelt| toolbelt.read(bearer, call, key));
        self.calls.set(self.calls.get() + 1);
        self.noted.notify_one();
        if let Some(response) = read.map_err(|error| self.refused(error))? {
            return Ok(Reply::json(200, &response));
        }
        let judged = self.with(|toolbelt| toolbelt.forward(bearer, call, key));
        let judged = judged.map_err(|error| self.refused(error))?;
        let response = self.host.call(&judged).await.map_err(Fault::Refused)?;
        Ok(Reply::json(200, &response))
    }

    /// A refusal. One that held the Work is for the scheduler to hear of: there is a process to stop.
    fn refused(&self, error: ApiError) -> Fault {
        if self.toolbelt.borrow_mut().as_mut().is_some_and(Toolbelt::take_ring) {
            self.ringer.ring();
        }
        Fault::Refused(error)
    }

    /// A place among the [`REQUESTS_MAX`]. Error: `too_many_requests`.
    fn read_slot(&self) -> Result<ReadSlot<'_>, Fault> {
        if self.reading.get() >= REQUESTS_MAX {
            return Err(Fault::Refused(ApiError::new(
                Code::TooManyRequests,
                format!("more than {REQUESTS_MAX} requests are under way on this socket; try again"),
            )));
        }
        self.reading.set(self.reading.get() + 1);
        Ok(ReadSlot(&self.reading))
    }

    /// Writes the records of calls in quiet moments, for ever: never while a caller waits.
    pub async fn write_when_quiet(&self) {
        loop {
            self.noted.notified().await;
            loop {
                let before = self.calls.get();
                tokio::time::sleep(QUIET_TIME).await;
                if self.calls.get() == before && self.write() {
                    break;
                }
            }
        }
    }

    /// Writes the records of calls now; `false` when others write.
    fn write(&self) -> bool {
        self.toolbelt.borrow_mut().as_mut().is_none_or(Toolbelt::flush_history)
    }

    /// Writes the records of calls before the end.
    pub fn finish(&self) {
        if let Some(toolbelt) = &mut *self.toolbelt.borrow_mut() {
            toolbelt.finish_history();
        }
    }
}

impl Service for Desk {
    async fn handle(&self, mut request: Request) -> Reply {
        self.answer(&mut request).await.unwrap_or_else(Reply::Refused)
    }
}

/// Why a request has no answer.
enum Fault {
    /// The toolbelt, or a bound, says no.
    Refused(ApiError),
    /// The request is not one; said only to a caller with authority.
    Malformed(ApiError),
}

fn invalid(message: String) -> Fault {
    Fault::Malformed(ApiError::new(Code::InvalidRequest, message))
}

/// The one `capability` of a query.
fn capability(query: Option<&str>) -> Result<String, ApiError> {
    let pairs = path::query(query.unwrap_or_default())?;
    match <[(String, String); 1]>::try_from(pairs) {
        Ok([(name, value)]) if name == "capability" && !value.is_empty() => Ok(value),
        _ => Err(ApiError::new(Code::InvalidRequest, "the query is `capability=NAME`, once")),
    }
}

/// Counts a request while its body is being read.
struct ReadSlot<'d>(&'d Cell<usize>);

impl Drop for ReadSlot<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E02
    #[test]
    fn a_capability_is_named_once_and_nothing_else_is_asked() {
        assert_eq!(capability(Some("capability=git.credential")).unwrap(), "git.credential");
        for bad in
            [None, Some("capability="), Some("capability=a&capability=b"), Some("capability=a&x=1"), Some("cap=a")]
        {
            assert_eq!(capability(bad).unwrap_err().code, Code::InvalidRequest, "{bad:?}");
        }
    }
}
