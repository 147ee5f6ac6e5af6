//! The page of counters that all processes with the store open share: mapped here, and read and written as atomics.
//!
//! The only room of this crate with unsafe code. What the counters mean is `journal.rs`'s to say.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of the file.
pub(crate) const BYTES: usize = 4096;

/// What the page holds. Every bit pattern is a value of it, so no content of the file is wrong for the program.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counters {
    pub begun: AtomicU64,
    pub written: AtomicU64,
    pub synced: AtomicU64,
    pub checkpointed: AtomicU64,
    pub failed: AtomicU32,
    pub turn: AtomicU32,
}

const _: () = assert!(size_of::<Counters>() <= BYTES);

/// The page, mapped as long as the value lives.
#[derive(Debug)]
pub(crate) struct Page {
    counters: NonNull<Counters>,
}

// SAFETY: nothing but atomics can be reached through the pointer, and the mapping belongs to no thread.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the first [`BYTES`] of `file`, which has to be open for reading and writing and at least that long.
    pub fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < BYTES as u64 {
            return Err(io::Error::other("the file is too short"));
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses a place where nothing is. Every byte of it is in the file now; if its owner cuts the file
        // off while it is mapped, touching it ends the process by SIGBUS, as it does with SQLite's own `-shm` file.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, prot, flags, file, 0) }?;
        let counters = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("the page is at address zero"))?;
        Ok(Self { counters })
    }
}

impl Deref for Page {
    type Target = Counters;
    fn deref(&self) -> &Counters {
        // SAFETY: the mapping is page-aligned, longer than `Counters`, and lives as long as `self`. Other processes change it
        // through atomics alone.
        unsafe { self.counters.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping that `map` made, and no reference to it outlives `self`.
        // It fails only for arguments that are none; then the mapping stays until the process ends.
        let _ = unsafe { rustix::mm::munmap(self.counters.as_ptr().cast(), BYTES) };
    }
}
