//! One output stream: the first bytes are retained, the rest is counted, and everything is drained.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Result, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use conduit_store::Clock;
use conduit_store::digest::hex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use sha2::{Digest as _, Sha256};

use crate::bundle::{Bundle, StreamResult};

/// Bytes that one turn reads from one stream, so that a flood delays neither signals nor the other stream.
const TURN_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are still read once the process tree is gone: more than a pipe can hold.
const REST_BYTES_MAX: u64 = 16 << 20;

pub(super) struct Capture<P> {
    name: &'static str,
    path: PathBuf,
    /// `None` once the stream has ended.
    pipe: Option<P>,
    file: Option<File>,
    /// Bytes that may still be retained.
    room: u64,
    hash: Sha256,
    bytes: u64,
    dropped: u64,
    last_output_at_us: i64,
}

impl<P: Read + AsFd> Capture<P> {
    pub fn new(bundle: &Bundle, name: &'static str, pipe: P, bytes_max: u64) -> Result<Self> {
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        Ok(Self { pipe: Some(pipe), room: bytes_max, ..Self::of_nothing(bundle, name) })
    }

    /// A stream that goes somewhere else.
    pub fn of_nothing(bundle: &Bundle, name: &'static str) -> Self {
        Self {
            name,
            path: bundle.output(name),
            pipe: None,
            file: None,
            room: 0,
            hash: Sha256::new(),
            bytes: 0,
            dropped: 0,
            last_output_at_us: 0,
        }
    }

    /// What to wait for; `None` once the stream has ended.
    pub fn source(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what is there, up to a turn's worth.
    pub fn turn(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.take(buffer, TURN_BYTES_MAX)
    }

    /// Takes what the ended tree left in the pipe. Its end is not waited for: a descriptor that was sent to a process
    /// outside the tree must not hold up the result.
    pub fn rest(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.take(buffer, REST_BYTES_MAX)
    }

    fn take(&mut self, buffer: &mut [u8], bytes_max: u64) -> Result<()> {
        let mut taken = 0;
        while taken < bytes_max {
            let Some(pipe) = &mut self.pipe else { return Ok(()) };
            match pipe.read(buffer) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    taken += n as u64;
                    self.keep(&buffer[..n]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.last_output_at_us = Clock.now().wall.0;
        let (mut kept, _) = bytes.split_at(bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX)));
        self.dropped += (bytes.len() - kept.len()) as u64;
        if self.file.is_none() {
            self.file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&self.path).ok();
        }
        // A full disk costs output, never the process or its result; from here on everything is counted only.
        let Some(file) = &mut self.file else {
            self.dropped += kept.len() as u64;
            self.room = 0;
            return;
        };
        while !kept.is_empty() {
            match file.write(kept) {
                Ok(n) => {
                    self.hash.update(&kept[..n]);
                    self.bytes += n as u64;
                    self.room -= n as u64;
                    kept = &kept[n..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.dropped += kept.len() as u64;
                    self.room = 0;
                    return;
                }
            }
        }
    }

    /// Makes what was retained durable, and says what it is; `None` when nothing was ever written. What the disk did not
    /// take after all is dropped, and counted as that.
    pub fn finish(mut self) -> Result<Option<StreamResult>> {
        match &self.file {
            Some(file) if file.sync_data().is_err() => {
                file.set_len(0)?;
                self.dropped += std::mem::take(&mut self.bytes);
                self.hash = Sha256::new();
            }
            Some(_) => {}
            None if self.dropped == 0 => return Ok(None),
            None => {}
        }
        Ok(Some(StreamResult {
            name: self.name.to_owned(),
            digest: hex(&self.hash.finalize()),
            bytes: self.bytes,
            dropped_bytes: self.dropped,
            last_output_at_us: self.last_output_at_us,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn capture(bytes_max: u64, output: &[u8]) -> (StreamResult, Vec<u8>) {
        let base = tempfile::tempdir().unwrap();
        let (read, mut write) = UnixStream::pair().unwrap();
        let mut capture = Capture::new(&Bundle::at(base.path()), "stdout", read, bytes_max).unwrap();
        write.write_all(output).unwrap();
        capture.rest(&mut [0; 7]).unwrap();
        (capture.finish().unwrap().unwrap(), std::fs::read(base.path().join("stdout")).unwrap())
    }

    /// X02
    #[test]
    fn the_first_bytes_are_retained_and_the_rest_is_counted() {
        let (result, kept) = capture(10, b"abcdefghijklmnop");
        assert_eq!((kept.as_slice(), result.bytes, result.dropped_bytes), (b"abcdefghij".as_slice(), 10, 6));
        assert_eq!(result.digest, hex(&conduit_store::digest::sha256(b"abcdefghij")));
        let (result, kept) = capture(0, b"abc");
        assert_eq!((kept.len(), result.bytes, result.dropped_bytes), (0, 0, 3));
    }

    #[test]
    fn a_silent_stream_leaves_no_file() {
        let base = tempfile::tempdir().unwrap();
        let (read, write) = UnixStream::pair().unwrap();
        let mut capture = Capture::new(&Bundle::at(base.path()), "stdout", read, 10).unwrap();
        drop(write);
        capture.turn(&mut [0; 7]).unwrap();
        assert!(capture.source().is_none());
        assert!(capture.finish().unwrap().is_none());
        assert!(!base.path().join("stdout").exists());
    }
}
