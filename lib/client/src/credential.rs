//! The bearer credential: read from a file, kept as a secret, never shown.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;
use zeroize::Zeroizing;

use crate::error::{ClientError, Result};

/// Longest credential file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// What a client shows to a server. The plaintext is wiped when it is dropped, and stands in no message.
pub struct Credential {
    held: Option<Held>,
}

struct Held {
    path: PathBuf,
    secret: Zeroizing<String>,
}

impl Credential {
    /// No credential: for a socket whose protection is its owner-only path alone.
    pub fn none() -> Self {
        Self { held: None }
    }

    /// Reads the credential in `path`; one line end after it is dropped.
    ///
    /// Errors: `invalid_request` when the file cannot be read, or holds no printable credential.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let secret = read(&path)?;
        Ok(Self { held: Some(Held { path, secret }) })
    }

    /// Reads the file again; whether it now holds another credential (E04: the file was rotated).
    pub fn reload(&mut self) -> Result<bool> {
        let Some(held) = &mut self.held else {
            return Ok(false);
        };
        let secret = read(&held.path)?;
        let changed = *secret != *held.secret;
        held.secret = secret;
        Ok(changed)
    }

    /// The `Authorization` header, marked as sensitive; `None` without a credential.
    pub(crate) fn header(&self) -> Result<Option<HeaderValue>> {
        let Some(held) = &self.held else {
            return Ok(None);
        };
        let text = Zeroizing::new(format!("Bearer {}", *held.secret));
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| unusable(&held.path, "it holds characters that no credential has"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.held.is_some() { "Credential(..)" } else { "Credential(none)" })
    }
}

fn unusable(path: &Path, why: impl Into<String>) -> ClientError {
    ClientError::Credential { path: path.to_owned(), why: why.into() }
}

/// Says what helps against the two commonest reasons.
fn unopened(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "it is not there; the suite was never started here, or the execution is over".into(),
        ErrorKind::PermissionDenied => "it belongs to another user; run this as the user who runs the suite".into(),
        _ => error.to_string(),
    }
}

fn read(path: &Path) -> Result<Zeroizing<String>> {
    let file = File::open(path).map_err(|e| unusable(path, unopened(&e)))?;
    // Room for the whole file at once: a buffer that grows would leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize + 1));
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| unusable(path, e.to_string()))?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(unusable(path, format!("the file is larger than {FILE_BYTES_MAX} bytes")));
    }
    if text.ends_with('\n') {
        text.pop();
    }
    if text.is_empty() {
        return Err(unusable(path, "the file is empty"));
    }
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(unusable(path, "it holds characters that no credential has"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    /// T01
    #[test]
    fn a_credential_is_never_shown() {
        let (_dir, path) = file("c0ffee-secret\n");
        let credential = Credential::from_file(&path).unwrap();
        let header = credential.header().unwrap().unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer c0ffee-secret");
        assert!(!format!("{credential:?} {header:?}").contains("c0ffee"));
    }

    /// E04
    #[test]
    fn a_rotated_file_is_seen_and_an_unchanged_one_is_not() {
        let (dir, path) = file("old");
        let mut credential = Credential::from_file(&path).unwrap();
        assert!(!credential.reload().unwrap());
        std::fs::write(dir.path().join("next"), "new").unwrap();
        std::fs::rename(dir.path().join("next"), &path).unwrap();
        assert!(credential.reload().unwrap());
        assert_eq!(credential.header().unwrap().unwrap(), "Bearer new");
    }

    #[test]
    fn a_file_that_is_absent_or_of_another_user_says_what_helps() {
        assert!(Credential::from_file("/nowhere/token").unwrap_err().to_string().contains("never started here"));
        assert!(unopened(&io::Error::from_raw_os_error(13)).contains("another user"));
    }

    #[test]
    fn a_file_without_a_usable_credential_is_refused_by_path_and_not_by_content() {
        for text in ["", "\n", "a b", "a\r\n", "é"] {
            let (_dir, path) = file(text);
            let error = Credential::from_file(&path).unwrap_err();
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert_eq!(error.code(), "invalid_request");
        }
        let (_dir, path) = file(&"x".repeat(5000));
        assert!(Credential::from_file(&path).unwrap_err().to_string().contains("larger than"));
    }
}
