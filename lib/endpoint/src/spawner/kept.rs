//! Run sockets in the service manager's keeping, so that path, inode and backlog outlive this process.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use conduit_daemon::notify;

/// First part of every name.
pub const PREFIX: &str = "run-";

/// Names that are in use. They are numbers, not keys: the manager passes all of them in one variable of 128 KiB, and
/// each has to be short where ten thousand have to fit. The socket itself says which path it is bound to.
#[derive(Debug, Default)]
pub struct Names {
    used: BTreeSet<u32>,
    next: u32,
}

/// A name in use; given back by [`Names::give_back`].
#[derive(Debug, PartialEq, Eq)]
pub struct Name(u32);

impl Name {
    fn text(&self) -> String {
        format!("{PREFIX}{:x}", self.0)
    }
}

impl Names {
    /// Takes over a name that came with an inherited descriptor; `None` if it is not of this kind or is taken.
    pub fn inherited(&mut self, text: &str) -> Option<Name> {
        let number = u32::from_str_radix(text.strip_prefix(PREFIX)?, 16).ok()?;
        let name = Name(number);
        (name.text() == text && self.used.insert(number)).then_some(name)
    }

    /// Gives `socket` into the manager's keeping. Without a manager, or when it does not take it, the socket is
    /// bound anew at the next start.
    pub fn keep(&mut self, socket: impl AsFd) -> Name {
        while !self.used.insert(self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let name = Name(self.next);
        if let Err(error) = notify::store_fd(&name.text(), socket) {
            tracing::warn!(%error, "the service manager did not take a run socket");
        }
        name
    }

    /// Takes what is called `name` out of the manager's keeping.
    pub fn give_back(&mut self, name: &Name) {
        forget(&name.text());
        self.used.remove(&name.0);
        self.next = self.next.min(name.0);
    }
}

/// Takes what is called `text` out of the manager's keeping.
pub fn forget(text: &str) {
    if let Err(error) = notify::remove_fd(text) {
        tracing::warn!(%error, name = text, "the service manager was not told to drop a run socket");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_used_once_until_it_is_given_back() {
        let mut names = Names::default();
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert_eq!(names.inherited("run-1"), Some(Name(1)));
        for not in ["run-1", "run-01", "run-x", "doorbell"] {
            assert_eq!(names.inherited(not), None, "{not}");
        }
        let zero = names.keep(&socket);
        assert_eq!((zero.text().as_str(), names.keep(&socket)), ("run-0", Name(2)));
        names.give_back(&zero);
        assert_eq!(names.keep(&socket), zero);
    }

    #[test]
    fn ten_thousand_names_fit_one_environment_variable() {
        let bytes: usize = (0..10_000).map(|n| Name(n).text().len() + 1).sum();
        assert!(bytes + "LISTEN_FDNAMES=".len() < 128 << 10);
    }
}
