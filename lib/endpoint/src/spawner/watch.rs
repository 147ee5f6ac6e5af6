//! Watching many listening sockets for a first connection, without accepting it.
//!
//! All of them stand in one epoll instance, so that a socket nobody talks to costs its descriptor and one entry there,
//! neither a task nor a buffer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use tokio::io::unix::AsyncFd;

use super::unsafe_async_fd;

/// Events that are taken at a time.
const EVENTS_MAX: usize = 64;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// A socket reports once and is silent until it is armed again: its worker accepts, not this process.
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// The sockets that are watched, each under a number of its owner's choice.
#[derive(Debug)]
pub struct Watch {
    epoll: AsyncFd<OwnedFd>,
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll: unsafe_async_fd::readable(epoll)? })
    }

    /// Watches `socket` for the next connection; one that waits already counts.
    pub fn add(&self, socket: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(self.epoll.get_ref(), socket, EventData::new_u64(number), ONCE)?)
    }

    /// Watches `socket`, which has reported, again; a connection that waits already counts.
    pub fn arm(&self, socket: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::modify(self.epoll.get_ref(), socket, EventData::new_u64(number), ONCE)?)
    }

    /// Ends watching `socket`. Closing it would not: its worker has a copy.
    pub fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(self.epoll.get_ref(), socket)?)
    }

    /// Waits until a socket has a connection, and returns the numbers of those that do.
    pub async fn ready(&self) -> io::Result<Vec<u64>> {
        loop {
            let mut guard = self.epoll.readable().await?;
            let mut space = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
            match epoll::wait(self.epoll.get_ref(), &mut space, Some(&AT_ONCE)) {
                Ok(([], _)) => guard.clear_ready(),
                Ok((events, _)) => return Ok(events.iter().map(|event| event.data.u64()).collect()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// What the kernel holds is exact at any moment: nothing to wait for.
    fn silent(watch: &Watch) -> bool {
        let mut space = [MaybeUninit::<Event>::uninit(); 1];
        epoll::wait(watch.epoll.get_ref(), &mut space, Some(&AT_ONCE)).unwrap().0.is_empty()
    }

    #[tokio::test]
    async fn a_socket_reports_once_per_arming_and_leaves_the_connection_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let watch = Watch::new().unwrap();
        watch.add(&listener, 7).unwrap();
        assert!(silent(&watch));
        let _waits = UnixStream::connect(&path).unwrap();
        assert_eq!(watch.ready().await.unwrap(), [7]);
        let _another = UnixStream::connect(&path).unwrap();
        assert!(silent(&watch));
        watch.arm(&listener, 7).unwrap();
        assert_eq!(watch.ready().await.unwrap(), [7]);
        listener.accept().unwrap();
        listener.accept().unwrap();
        watch.arm(&listener, 7).unwrap();
        assert!(silent(&watch));
    }

    #[tokio::test]
    async fn a_socket_that_was_removed_is_silent_though_a_copy_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let _copy = listener.try_clone().unwrap();
        let watch = Watch::new().unwrap();
        watch.add(&listener, 7).unwrap();
        watch.remove(&listener).unwrap();
        drop(listener);
        let _waits = UnixStream::connect(&path).unwrap();
        assert!(silent(&watch));
    }

    #[tokio::test]
    async fn more_sockets_than_fit_one_look_all_report() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::new().unwrap();
        let count = 3 * EVENTS_MAX as u64;
        let mut held = Vec::new();
        for number in 0..count {
            let path = dir.path().join(number.to_string());
            let listener = UnixListener::bind(&path).unwrap();
            watch.add(&listener, number).unwrap();
            held.push((UnixStream::connect(&path).unwrap(), listener));
        }
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < held.len() {
            seen.extend(watch.ready().await.unwrap());
        }
        assert!(silent(&watch));
    }
}
