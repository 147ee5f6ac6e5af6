//! Sockets bound here: owner-only, in an owner-only directory, and nothing else removed for them.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

use conduit_api::Code;
use conduit_daemon::activation::{bind_datagram, bind_stream};
use conduit_daemon::notify;

/// A directory that a socket may be bound in.
fn owner_only() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o700)).tempdir().unwrap()
}

/// M01
#[test]
fn a_bound_socket_is_owner_only_and_answers() {
    let dir = owner_only();
    let path = dir.path().join("s");
    let listener = bind_stream(&path).unwrap();
    let meta = std::fs::symlink_metadata(&path).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.mode() & 0o7777, 0o600);
    UnixStream::connect(&path).unwrap();
    listener.accept().unwrap();
}

/// M01
#[test]
fn a_stale_socket_of_ours_is_replaced() {
    let dir = owner_only();
    let path = dir.path().join("s");
    drop(bind_stream(&path).unwrap());
    let listener = bind_stream(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    listener.accept().unwrap();
}

/// M01
#[test]
fn what_is_not_a_socket_is_refused_and_stays() {
    let dir = owner_only();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert_eq!(bind_stream(&file).unwrap_err().code, Code::StateUnsafe);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let link = dir.path().join("link");
    symlink(&file, &link).unwrap();
    assert_eq!(bind_datagram(&link).unwrap_err().code, Code::StateUnsafe);
    assert!(link.exists());
}

/// M01
#[test]
fn a_directory_that_others_can_enter_is_refused() {
    let dir = owner_only();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o750)).unwrap();
    let error = bind_stream(&dir.path().join("s")).unwrap_err();
    assert_eq!(error.code, Code::StateUnsafe);
    assert!(error.message.contains("chmod 700"), "{}", error.message);
    assert!(!dir.path().join("s").exists());
}

/// M01
#[test]
fn a_directory_that_is_a_link_or_missing_is_refused() {
    let dir = owner_only();
    std::fs::create_dir(dir.path().join("real")).unwrap();
    symlink(dir.path().join("real"), dir.path().join("link")).unwrap();
    assert_eq!(bind_stream(&dir.path().join("link/s")).unwrap_err().code, Code::StateUnsafe);
    assert_eq!(bind_stream(&dir.path().join("none/s")).unwrap_err().code, Code::StateUnavailable);
}

/// E07, M01
#[test]
fn an_over_long_path_is_refused_with_what_to_do() {
    let path = Path::new("/tmp").join("x".repeat(100));
    let error = bind_stream(&path).unwrap_err();
    assert_eq!(error.code, Code::SocketPathTooLong);
    assert!(error.message.contains("shorter --state"), "{}", error.message);
}

#[test]
fn without_a_manager_nothing_is_said_and_nothing_fails() {
    notify::ready().unwrap();
    notify::remove_fd("run-a").unwrap();
}
