//! Every bound that a client can meet, by name. Bounds that only one crate knows stand in that crate.

/// Largest request body, in bytes (M07).
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting of a JSON document.
pub const JSON_DEPTH_MAX: usize = 64;
/// Longest path of a Unix socket, in bytes, that this suite uses (E07; the kernel's own limit is 108 with the final NUL).
pub const SOCKET_PATH_BYTES_MAX: usize = 100;
/// Longest caller-chosen request ID, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Longest event type, family, schema name, binding or scope name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest correlation key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Most correlation keys that one Work owns.
pub const WORK_KEYS_MAX: usize = 64;
/// Most predicates of one wait.
pub const WAIT_PREDICATES_MAX: usize = 1024;
/// Most inputs that `read_context` shows at once.
pub const CONTEXT_INPUTS_MAX: usize = 256;
/// Most matches that `read_context` shows at once, all waits together.
pub const CONTEXT_MATCHES_MAX: usize = WAIT_PREDICATES_MAX;
/// Most bytes of Event data in the inputs that `read_context` shows, and again in the matches.
pub const CONTEXT_DATA_BYTES_MAX: usize = 4 << 20;
/// Items of a list page when the caller does not say.
pub const PAGE_ITEMS_DEFAULT: usize = 50;
/// Most items of a list page.
pub const PAGE_ITEMS_MAX: usize = 500;
/// Most Events that one causal chain shows.
pub const CHAIN_EVENTS_MAX: usize = 10_000;
