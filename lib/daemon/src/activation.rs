//! Sockets: taken over from the starter by the protocol of `sd_listen_fds(3)`, or bound here.
//!
//! systemd and `open-conduit up` pass descriptors in the same way, so a daemon has one code path. What it is not
//! given it binds by itself, in an owner-only directory, with the mode set before the first connect is possible.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use conduit_api::limits::SOCKET_PATH_BYTES_MAX;
use conduit_api::{ApiError, Code};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::unsafe_inherit;

/// First passed descriptor, as `sd_listen_fds(3)` has it.
pub const FIRST_FD: i32 = 3;
/// Most descriptors that one process takes over.
const INHERITED_MAX: usize = 65_536;
/// Connections that the kernel holds back until they are accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

pub(crate) const LISTEN_FDS: &str = "LISTEN_FDS";
pub(crate) const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";
pub(crate) const LISTEN_PID: &str = "LISTEN_PID";
pub(crate) const LISTEN_PIDFDID: &str = "LISTEN_PIDFDID";

/// The descriptors that the starter passed, each with its name.
#[derive(Debug, Default)]
pub struct Inherited {
    entries: Vec<(String, OwnedFd)>,
}

impl Inherited {
    /// Takes over what the starter passed and removes the variables that said so; nothing when they are absent or
    /// meant for another process. Descriptors become close-on-exec. To be called first of all, once, with one thread.
    ///
    /// Refuses with `internal` when the variables and the open descriptors do not agree.
    pub fn take() -> Result<Self, ApiError> {
        let announced = Announced::read(|name| std::env::var_os(name), std::process::id());
        let announced = announced.map_err(refused)?;
        let variables = [LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID, LISTEN_PIDFDID];
        let descriptors = unsafe_inherit::adopt(FIRST_FD, announced.names.len(), &variables)
            .map_err(|error| refused(error.to_string()))?;
        Ok(Self { entries: announced.names.into_iter().zip(descriptors).collect() })
    }

    /// The listening stream socket called `name`, non-blocking; `None` if none was passed.
    ///
    /// Refuses with `internal` when what was passed under the name is something else.
    pub fn listener(&mut self, name: &str) -> Result<Option<UnixListener>, ApiError> {
        let Some(fd) = self.remove(name) else {
            return Ok(None);
        };
        as_listener(name, fd).map(Some)
    }

    /// The datagram socket called `name`, non-blocking; `None` if none was passed.
    ///
    /// Refuses with `internal` when what was passed under the name is something else.
    pub fn datagram(&mut self, name: &str) -> Result<Option<UnixDatagram>, ApiError> {
        let Some(fd) = self.remove(name) else {
            return Ok(None);
        };
        check(&fd, SocketType::DGRAM, name)?;
        Ok(Some(UnixDatagram::from(fd)))
    }

    /// Every descriptor whose name starts with `prefix`, in the order they were passed.
    pub fn all(&mut self, prefix: &str) -> Vec<(String, OwnedFd)> {
        self.entries.extract_if(.., |(name, _)| name.starts_with(prefix)).collect()
    }

    /// What nobody has asked for yet.
    pub fn rest(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    fn remove(&mut self, name: &str) -> Option<OwnedFd> {
        let at = self.entries.iter().position(|(entry, _)| entry == name)?;
        Some(self.entries.remove(at).1)
    }
}

/// `fd` as a listening stream socket, non-blocking; `internal` when it is something else. `name` is for the message.
pub fn as_listener(name: &str, fd: OwnedFd) -> Result<UnixListener, ApiError> {
    check(&fd, SocketType::STREAM, name)?;
    if !rustix::net::sockopt::socket_acceptconn(&fd).map_err(|error| refused(error.to_string()))? {
        return Err(refused(format!("the descriptor {name} does not listen")));
    }
    Ok(UnixListener::from(fd))
}

/// What the variables announce, before any descriptor is touched.
#[derive(Debug, PartialEq, Eq)]
struct Announced {
    names: Vec<String>,
}

impl Announced {
    fn read(variable: impl Fn(&str) -> Option<std::ffi::OsString>, pid: u32) -> Result<Self, String> {
        let none = Ok(Self { names: Vec::new() });
        let text = |name: &str| match variable(name).map(std::ffi::OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(format!("{name} is not text")),
        };
        let Some(count) = text(LISTEN_FDS)? else {
            return none;
        };
        // Absent when the starter cannot know the number of a process that it has not started yet.
        if text(LISTEN_PID)?.is_some_and(|for_pid| for_pid != pid.to_string()) {
            return none;
        }
        let count: usize = count.parse().map_err(|_| format!("{LISTEN_FDS} is not a number"))?;
        if count > INHERITED_MAX {
            return Err(format!("{LISTEN_FDS} is above {INHERITED_MAX}"));
        }
        let names: Vec<String> = match text(LISTEN_FDNAMES)? {
            None => vec!["unknown".to_owned(); count],
            Some(_) if count == 0 => Vec::new(),
            Some(names) => names.split(':').map(str::to_owned).collect(),
        };
        if names.len() != count {
            return Err(format!("{LISTEN_FDNAMES} has {} names for {count} descriptors", names.len()));
        }
        Ok(Self { names })
    }
}

/// A listening socket at `path`, non-blocking, mode 0600 from before the first connect is possible.
///
/// The caller holds the lock of the role that `path` belongs to: a socket of ours that stands there already is
/// stale, and is removed. Refusals: `socket_path_too_long`; `state_unsafe` when the directory is not owner-only or
/// something that is not a socket of ours is in the way; `state_unavailable` when the directory cannot be used.
pub fn bind_stream(path: &Path) -> Result<UnixListener, ApiError> {
    let socket = bind(path, SocketType::STREAM)?;
    rustix::net::listen(&socket, BACKLOG).map_err(|error| unavailable(path, &error.into()))?;
    Ok(UnixListener::from(socket))
}

/// A datagram socket at `path`; otherwise as [`bind_stream`].
pub fn bind_datagram(path: &Path) -> Result<UnixDatagram, ApiError> {
    bind(path, SocketType::DGRAM).map(UnixDatagram::from)
}

/// Refuses a socket path that some client could not dial: `socket_path_too_long` (E07, M01).
pub fn check_path_length(path: &Path) -> Result<(), ApiError> {
    let bytes = path.as_os_str().len();
    if bytes <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    Err(ApiError::new(
        Code::SocketPathTooLong,
        format!(
            "the socket path {} has {bytes} bytes, and a socket path can have {SOCKET_PATH_BYTES_MAX}; choose shorter --state and --runtime directories",
            path.display()
        ),
    ))
}

/// Refuses a directory that another user owns or can enter: `state_unsafe`; `state_unavailable` when it is not there.
pub fn check_owner_only(directory: &Path) -> Result<(), ApiError> {
    let meta = fs::symlink_metadata(directory).map_err(|error| unavailable(directory, &error))?;
    let shown = directory.display();
    let fault = if meta.is_symlink() {
        format!("{shown} is a symbolic link, and links are refused; name the directory itself")
    } else if !meta.is_dir() {
        format!("{shown} is not a directory")
    } else if meta.uid() != rustix::process::geteuid().as_raw() {
        format!("{shown} belongs to another user")
    } else if meta.mode() & 0o077 != 0 {
        format!("{shown} is open to others; run `chmod 700 {shown}`")
    } else {
        return Ok(());
    };
    Err(ApiError::new(Code::StateUnsafe, fault))
}

fn bind(path: &Path, kind: SocketType) -> Result<OwnedFd, ApiError> {
    check_path_length(path)?;
    let parent = path.parent().filter(|parent| *parent != OsStr::new("")).unwrap_or(Path::new("."));
    check_owner_only(parent)?;
    remove_stale(path)?;
    let failed = |error: rustix::io::Errno| unavailable(path, &error.into());
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .map_err(failed)?;
    // Linux gives the file that bind(2) makes the mode of the socket: never bind, then chmod.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    let meta = fs::symlink_metadata(path).map_err(|error| unavailable(path, &error))?;
    if meta.mode() & 0o177 != 0 {
        return Err(ApiError::new(Code::StateUnsafe, format!("{} could not be made owner-only", path.display())));
    }
    Ok(socket)
}

/// Removes a socket of ours that stands at `path`; refuses anything else that does with `state_unsafe`.
pub fn remove_stale(path: &Path) -> Result<(), ApiError> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unavailable(path, &error)),
        Ok(meta) => meta,
    };
    if !meta.file_type().is_socket() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(ApiError::new(
            Code::StateUnsafe,
            format!("{} is in the way and is not a socket of this user; move it away", path.display()),
        ));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unavailable(path, &error)),
        _ => Ok(()),
    }
}

fn check(fd: &OwnedFd, wanted: SocketType, name: &str) -> Result<(), ApiError> {
    let kind = rustix::net::sockopt::socket_type(fd).map_err(|error| refused(format!("{name}: {error}")))?;
    let family = rustix::net::sockopt::socket_domain(fd).map_err(|error| refused(format!("{name}: {error}")))?;
    if kind != wanted || family != AddressFamily::UNIX {
        return Err(refused(format!("the descriptor {name} is not the kind of socket that it should be")));
    }
    rustix::io::ioctl_fionbio(fd.as_fd(), true).map_err(|error| refused(format!("{name}: {error}")))
}

fn refused(why: impl Into<String>) -> ApiError {
    ApiError::new(Code::Internal, format!("the starter passed descriptors that cannot be used: {}", why.into()))
}

/// What becomes of `error`, met at `path`: `storage_full` where there is no room, and else `state_unavailable`.
pub fn unavailable(path: &Path, error: &io::Error) -> ApiError {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::StorageFull,
        _ => Code::StateUnavailable,
    };
    ApiError::new(code, format!("{} cannot be used: {error}", path.display()))
}
