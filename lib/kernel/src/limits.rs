//! Every bound of the kernel, by name.

use std::time::Duration;

/// Bytes of each output stream that are retained when the request does not say.
pub const OUTPUT_BYTES_DEFAULT: u64 = 1 << 20;
/// Most bytes of each output stream that a request may retain.
pub const OUTPUT_BYTES_MAX: u64 = 256 << 20;
/// Least memory and fewest open files that a process can be bounded to.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
pub const FILES_MIN: u64 = 16;
/// Longest time that a request may run.
pub const TIMEOUT_MS_MAX: u64 = 366 * 24 * 3600 * 1000;
/// How long a process tree has to end after SIGTERM, in milliseconds, when the request does not say.
pub const STOP_GRACE_MS_DEFAULT: u64 = 5_000;
/// Longest such time that a request may ask for.
pub const STOP_GRACE_MS_MAX: u64 = 300_000;
/// Longest single argument or `NAME=value`, in bytes: Linux refuses 128 KiB with the final NUL.
pub const ARGUMENT_BYTES_MAX: usize = (128 << 10) - 1;
/// Most bytes of arguments and explicit environment together.
pub const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Largest file of a bundle that is read as JSON.
pub const BUNDLE_FILE_BYTES_MAX: usize = 8 << 20;
/// How long stragglers may outlive the main process before they are killed.
pub const STRAGGLER_GRACE: Duration = Duration::from_millis(500);
/// How much longer than its own grace a runner may take to stop before it is killed.
pub const RUNNER_STOP_MARGIN: Duration = Duration::from_secs(5);
/// How long killed survivors of a dead runner may take to disappear before the attempt counts as orphaned.
pub const SURVIVOR_WAIT: Duration = Duration::from_secs(2);
