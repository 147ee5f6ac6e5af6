//! Descriptors in the keeping of `up`, as a service manager keeps them: they outlive the program that gave them.

use std::os::fd::OwnedFd;

/// Most bytes that the names of one program's descriptors may have together. They travel in one environment
/// variable, and Linux bounds that at 128 KiB; more would make the program impossible to start.
const NAMES_BYTES_MAX: usize = 120 << 10;

/// What one program gave into keeping.
#[derive(Debug, Default)]
pub struct Keeping {
    entries: Vec<(String, OwnedFd)>,
    names_bytes: usize,
}

impl Keeping {
    /// Keeps `fd` under `name`; the same open socket under the same name is kept once. `false` when there is no room.
    pub fn store(&mut self, name: &str, fd: OwnedFd) -> bool {
        if self.entries.iter().any(|(kept_name, kept)| kept_name == name && same_file(kept, &fd)) {
            return true;
        }
        if self.names_bytes + name.len() + 1 > NAMES_BYTES_MAX {
            return false;
        }
        self.names_bytes += name.len() + 1;
        self.entries.push((name.to_owned(), fd));
        true
    }

    /// Lets go of everything under `name`.
    pub fn remove(&mut self, name: &str) {
        self.entries.retain(|(kept, _)| kept != name);
        self.names_bytes = self.entries.iter().map(|(kept, _)| kept.len() + 1).sum();
    }

    /// Copies of everything, for the next start.
    pub fn copies(&self) -> std::io::Result<Vec<(String, OwnedFd)>> {
        self.entries.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

fn same_file(a: &OwnedFd, b: &OwnedFd) -> bool {
    match (rustix::fs::fstat(a), rustix::fs::fstat(b)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    fn socket() -> OwnedFd {
        UnixDatagram::unbound().unwrap().into()
    }

    #[test]
    fn the_same_socket_is_kept_once_and_goes_with_its_name() {
        let mut keeping = Keeping::default();
        let fd = socket();
        assert!(keeping.store("run-a", fd.try_clone().unwrap()));
        assert!(keeping.store("run-a", fd));
        assert!(keeping.store("run-a", socket()));
        assert!(keeping.store("run-b", socket()));
        assert_eq!(keeping.len(), 3);
        keeping.remove("run-a");
        assert_eq!(keeping.copies().unwrap()[0].0, "run-b");
        assert_eq!(keeping.len(), 1);
    }

    #[test]
    fn names_never_outgrow_what_a_program_can_be_started_with() {
        let mut keeping = Keeping::default();
        let name = "n".repeat(NAMES_BYTES_MAX - 1);
        assert!(keeping.store(&name, socket()));
        assert!(!keeping.store("x", socket()));
        keeping.remove(&name);
        assert!(keeping.store("x", socket()));
    }
}
