//! A disk that is watched: every write, truncation, creation, removal and sync of the store's files, in order.
//!
//! SQLite's calls are replaced in its own table of system calls; `fsync` and `fdatasync` are defined here for the whole
//! program, so that the store's own syncs are seen too. Nothing is really synced: what a power cut leaves is for the model to say.
//! The only room of these tests with unsafe code.
#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use nix::errno::Errno;
use nix::libc;
use rusqlite::ffi;

/// What happened to the files; a file keeps its number when its name goes to another.
#[derive(Debug, Clone)]
pub enum Op {
    Create {
        name: &'static str,
        file: usize,
    },
    Remove {
        name: &'static str,
    },
    Write {
        file: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    Truncate {
        file: usize,
        len: usize,
    },
    /// A sync of a file, or of the folder: what stands before `began` is on the disk once this is reached.
    Synced {
        file: Option<usize>,
        began: usize,
    },
    /// The store said for the first time that this row is there: to the one who wrote it, or to one who looked.
    Told {
        row: i64,
    },
}

/// What the disk keeps to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Honesty {
    Honest,
    /// The store's own sync of the log does nothing, as if it acknowledged before it.
    NoSyncAfterCommit,
    /// SQLite's syncs of the folder do nothing: the store's own is enough.
    NoSyncOfFolderBySqlite,
    /// Nobody's sync of the folder does anything.
    NoSyncOfFolder,
}

/// Files that count; the `-shm` file does not outlive a power cut.
const NAMES: [&str; 3] = ["store.db", "store.db-wal", "store.db-journal"];

struct Watch {
    folder: PathBuf,
    folder_inode: u64,
    files: HashMap<u64, usize>,
    made: usize,
    ops: Vec<Op>,
    told: HashSet<i64>,
    honesty: Honesty,
    /// The next sync of the log by the store itself fails.
    fails: bool,
    /// The descriptor with which SQLite itself syncs the folder.
    sqlite_folder: Option<RawFd>,
}

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

fn watch() -> MutexGuard<'static, Option<Watch>> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    fn name_of(&self, path: &Path) -> Option<&'static str> {
        (path.parent() == Some(&self.folder)).then_some(())?;
        NAMES.into_iter().find(|name| path.file_name().is_some_and(|found| found == *name))
    }

    fn file_of(&self, fd: RawFd) -> Option<usize> {
        self.files.get(&inode(fd)?).copied()
    }
}

/// Watches `folder` from here on.
pub fn begin(folder: &Path, honesty: Honesty) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    let folder = folder.canonicalize().unwrap();
    let folder_inode = folder.metadata().unwrap().ino();
    let none = Watch {
        folder,
        folder_inode,
        files: HashMap::new(),
        made: 0,
        ops: Vec::new(),
        told: HashSet::new(),
        honesty,
        fails: false,
        sqlite_folder: None,
    };
    *watch() = Some(none);
}

/// Ends the watch; what was seen.
pub fn end() -> Vec<Op> {
    watch().take().map(|watch| watch.ops).unwrap_or_default()
}

pub fn told(rows: impl IntoIterator<Item = i64>) {
    if let Some(watch) = watch().as_mut() {
        let new = rows.into_iter().filter(|row| watch.told.insert(*row));
        watch.ops.extend(new.map(|row| Op::Told { row }));
    }
}

pub fn fail_next_sync() {
    if let Some(watch) = watch().as_mut() {
        watch.fails = true;
    }
}

fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: all zeros is a value of `stat`, which the call fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` lives during the call; any number may be asked about.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat.st_ino)
}

fn install() {
    // SAFETY: the default VFS lives as long as the program, and each function has the type that SQLite's table of system
    // calls has at that name (os_unix.c).
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(std::ptr::null());
        let set = (*vfs).xSetSystemCall.unwrap();
        type Call = unsafe extern "C" fn();
        type Open = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;
        type Write = unsafe extern "C" fn(c_int, *const c_void, usize, libc::off_t) -> isize;
        type Truncate = unsafe extern "C" fn(c_int, libc::off_t) -> c_int;
        type Remove = unsafe extern "C" fn(*const c_char) -> c_int;
        type OpenFolder = unsafe extern "C" fn(*const c_char, *mut c_int) -> c_int;
        // Which of the two it writes with depends on how it was built; `seen` makes sure that writes were met.
        let calls: [(&CStr, Call); 6] = [
            (c"open", std::mem::transmute::<Open, Call>(open)),
            (c"pwrite", std::mem::transmute::<Write, Call>(pwrite)),
            (c"pwrite64", std::mem::transmute::<Write, Call>(pwrite)),
            (c"ftruncate", std::mem::transmute::<Truncate, Call>(ftruncate)),
            (c"unlink", std::mem::transmute::<Remove, Call>(unlink)),
            (c"openDirectory", std::mem::transmute::<OpenFolder, Call>(open_directory)),
        ];
        for (name, call) in calls {
            assert_eq!(set(vfs, name.as_ptr(), Some(call)), ffi::SQLITE_OK);
        }
    }
}

/// SAFETY of this and the functions below: SQLite passes what the system call of the same name takes.
unsafe fn path_of<'a>(path: *const c_char) -> &'a Path {
    Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    let mut watch = watch();
    let fd = unsafe { libc::open(path, flags, mode) };
    if let (Some(watch), Some(inode)) = (watch.as_mut(), inode(fd))
        && let Some(name) = watch.name_of(unsafe { path_of(path) })
        && !watch.files.contains_key(&inode)
    {
        let file = watch.made;
        watch.made += 1;
        watch.files.insert(inode, file);
        watch.ops.push(Op::Create { name, file });
    }
    fd
}

unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, len: usize, at: libc::off_t) -> isize {
    std::thread::yield_now(); // A commit takes a while, too.
    let mut watch = watch();
    let done = unsafe { libc::pwrite(fd, bytes, len, at) };
    if let Some(watch) = watch.as_mut()
        && let Some(file) = watch.file_of(fd)
        && let Ok(len) = usize::try_from(done)
    {
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) }.to_vec();
        watch.ops.push(Op::Write { file, at: usize::try_from(at).unwrap_or_default(), bytes });
    }
    done
}

unsafe extern "C" fn ftruncate(fd: c_int, len: libc::off_t) -> c_int {
    let mut watch = watch();
    let done = unsafe { libc::ftruncate(fd, len) };
    if let Some(watch) = watch.as_mut()
        && let Some(file) = watch.file_of(fd)
        && done == 0
    {
        watch.ops.push(Op::Truncate { file, len: usize::try_from(len).unwrap_or_default() });
    }
    done
}

unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let mut watch = watch();
    let inode = unsafe { path_of(path) }.metadata().map(|meta| meta.ino());
    let done = unsafe { libc::unlink(path) };
    if let Some(watch) = watch.as_mut()
        && let (Some(name), Ok(inode), 0) = (watch.name_of(unsafe { path_of(path) }), inode, done)
    {
        watch.files.remove(&inode);
        watch.ops.push(Op::Remove { name });
    }
    done
}

unsafe extern "C" fn open_directory(path: *const c_char, fd: *mut c_int) -> c_int {
    let mut watch = watch();
    let of = unsafe { path_of(path) }.parent().unwrap_or(Path::new("/"));
    let of = std::ffi::CString::new(of.as_os_str().as_bytes()).unwrap_or_default();
    let opened = unsafe { libc::open(of.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    unsafe { *fd = opened };
    if let Some(watch) = watch.as_mut() {
        watch.sqlite_folder = Some(opened);
    }
    if opened >= 0 { ffi::SQLITE_OK } else { ffi::SQLITE_CANTOPEN }
}

/// SQLite's syncs come here, and the store's of the folder.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd, false)
}

/// The store's own syncs of the log come here.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd, true)
}

fn sync(fd: RawFd, own: bool) -> c_int {
    let (file, began) = {
        let mut watch = watch();
        let Some(watch) = watch.as_mut() else { return 0 };
        let file = watch.file_of(fd);
        if file.is_none() && inode(fd) != Some(watch.folder_inode) {
            return 0;
        }
        if own && std::mem::take(&mut watch.fails) {
            Errno::EIO.set();
            return -1;
        }
        let by_sqlite = watch.sqlite_folder.take_if(|folder| *folder == fd).is_some();
        let lost = match watch.honesty {
            Honesty::Honest => false,
            Honesty::NoSyncAfterCommit => own,
            Honesty::NoSyncOfFolderBySqlite => by_sqlite,
            Honesty::NoSyncOfFolder => file.is_none(),
        };
        if lost {
            return 0;
        }
        (file, watch.ops.len())
    };
    // A sync takes a while; others go on.
    (0..3).for_each(|_| std::thread::yield_now());
    if let Some(watch) = watch().as_mut() {
        watch.ops.push(Op::Synced { file, began });
    }
    0
}
