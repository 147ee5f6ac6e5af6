//! Error codes: the names that callers match on, and the one envelope that carries them.
//!
//! A code is listed in `docs/errors.md` with cause and remedy, never renamed, never reused. Here each chooses its
//! HTTP status and whether trying again can help; nowhere else.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, $retry:ident;)*) => {
        /// Every stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// All codes, so that lists can guard themselves.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// The HTTP status that carries this code.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
            /// Whether the same request can succeed later.
            pub const fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry,)* }
            }
        }
    };
}

/// What a caller may do with a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The same request will be refused again.
    Never,
    /// The same request, with the same request ID, may succeed later; nothing was recorded as done.
    SameRequest,
}

codes! {
    // Requests, on any socket
    /// The body or a parameter is malformed, or breaks a rule that the message names.
    InvalidRequest = "invalid_request", 400, Never;
    /// The body is larger than 1 MiB.
    BodyTooLarge = "body_too_large", 413, Never;
    /// The body of a request is not `application/json`.
    UnsupportedMediaType = "unsupported_media_type", 415, Never;
    /// No such route, or no such thing.
    NotFound = "not_found", 404, Never;
    /// The route exists, but not for this method.
    MethodNotAllowed = "method_not_allowed", 405, Never;
    /// The request took too long to arrive.
    RequestTimeout = "request_timeout", 408, SameRequest;
    /// Too many requests are under way on this socket.
    TooManyRequests = "too_many_requests", 429, SameRequest;

    // Authority
    /// No operator credential, or not a valid one (management socket).
    Unauthenticated = "unauthenticated", 401, Never;
    /// The call is not allowed; no detail is given (T06).
    Forbidden = "forbidden", 403, Never;
    /// The segment has declared a wait or an outcome; its authority is released (T06).
    AuthorityReleased = "authority_released", 403, Never;
    /// An operator credential on a run socket, or an execution token on the management socket.
    WrongCredentialClass = "wrong_credential_class", 403, Never;
    /// The operator's role does not reach this route.
    ForbiddenRole = "forbidden_role", 403, Never;

    // Toolbelt operations
    /// The request ID was used for another request of this execution and operation (T14).
    RequestConflict = "request_conflict", 409, Never;
    /// The event type is outside the families that the binding may emit.
    EventNotAllowed = "event_not_allowed", 422, Never;
    /// The caller named a source, a cause, a parent or a target, which the host alone assigns.
    ForgedAttribution = "forged_attribution", 422, Never;
    /// The correlation key is not one that this Work owns.
    KeyNotOwned = "key_not_owned", 422, Never;
    /// The correlation key belongs to another Work that has not ended.
    KeyTaken = "key_taken", 409, Never;
    /// The causal chain is as deep as its root allows.
    CausalDepthExceeded = "causal_depth_exceeded", 422, Never;
    /// The causal chain grew as fast as its root allows; the next minute has room again.
    CausalRateExceeded = "causal_rate_exceeded", 429, SameRequest;
    /// The binding is not one that this scope has.
    UnknownBinding = "unknown_binding", 422, Never;

    // Extensions
    /// An extension refuses the call in its own words; callers see its own code (T13).
    OperationRefused = "operation_refused", 422, Never;
    /// A gate failed to answer, so the call is refused (G04).
    GateFailed = "gate_failed", 422, Never;
    /// Nobody knows whether the request was carried out; an operator has to resolve it (T14).
    InDoubt = "in_doubt", 409, Never;
    /// The daemon that carries extensions' operations out does not answer; nothing was recorded as done.
    HostUnavailable = "host_unavailable", 503, SameRequest;
    /// The extension does not answer, or answered what it may not; nothing was recorded as done.
    ExtensionUnavailable = "extension_unavailable", 503, SameRequest;
    /// An extension's executor refuses to run a Work, in its own words, or names what cannot be run (X01).
    ExecutorRefused = "executor_refused", 422, Never;
    /// An extension's executor does not say what to run; the start is tried again (X01).
    ExecutorUnavailable = "executor_unavailable", 503, SameRequest;

    // Management controls
    /// The delivery or idempotency key was used for another request.
    IdempotencyConflict = "idempotency_conflict", 409, Never;
    /// The thing is not in a state in which this can be done; the message names the state.
    IllegalState = "illegal_state", 409, Never;
    /// The scope is not configured, or it is disabled.
    UnknownScope = "unknown_scope", 422, Never;
    /// The cursor is not one that this list gave out.
    InvalidCursor = "invalid_cursor", 400, Never;

    // Configuration
    /// The configuration has faults; `diagnostics` lists each.
    InvalidConfig = "invalid_config", 422, Never;
    /// The generation or the file changed since it was read.
    GenerationConflict = "generation_conflict", 409, Never;
    /// The configuration file cannot be read or replaced; the log names the path and why.
    ConfigFileUnavailable = "config_file_unavailable", 503, Never;
    /// The configuration file has changes that were not applied, and another change was asked for.
    ConfigFileDiffers = "config_file_differs", 409, Never;
    /// A scope that would go has Work that has not ended.
    ScopeInUse = "scope_in_use", 409, Never;

    // Registrations
    /// A registration breaks a rule by itself: a name outside its namespace, an operation without a summary (T16).
    Invalid = "invalid", 422, Never;
    /// A registration takes a name that is taken: a registration's, a builtin's, an operation's (T16).
    Conflict = "conflict", 409, Never;

    // Packages
    /// The package breaks a rule that the message names: its manifest, its files, or what it needs.
    PackageRefused = "package_refused", 422, Never;
    /// The package cannot change or go: a generation that is in use enables it.
    PackageInUse = "package_in_use", 409, Never;

    // Artifacts
    /// The bytes of the artifact are missing, or are not the ones that were recorded.
    ArtifactUnavailable = "artifact_unavailable", 503, Never;

    // State directory and store
    /// The state directory is not there or cannot be used.
    StateUnavailable = "state_unavailable", 503, Never;
    /// The state directory, or something in it, belongs to another user or is open to others.
    StateUnsafe = "state_unsafe", 503, Never;
    /// The owner's credential file holds a credential that the store does not know; starting again changes nothing.
    CredentialUnknown = "credential_unknown", 503, Never;
    /// Another process holds the lock of this role or of the state directory.
    StateLocked = "state_locked", 503, SameRequest;
    /// The store was written by a newer release.
    StoreNewer = "store_newer", 503, Never;
    /// The store cannot be read as a store.
    StoreUnreadable = "store_unreadable", 503, Never;
    /// The disk or the quota is full; nothing was written.
    StorageFull = "storage_full", 507, SameRequest;
    /// The store is busy; nothing was written.
    StoreBusy = "store_busy", 503, SameRequest;

    // Processes and sockets
    /// The suite's daemon does not answer.
    Unavailable = "unavailable", 503, SameRequest;
    /// The toolbelt endpoint of an execution cannot be made; the message names the path.
    EndpointUnavailable = "endpoint_unavailable", 503, Never;
    /// A socket path is longer than a socket path can be; the message names it.
    SocketPathTooLong = "socket_path_too_long", 503, Never;
    /// The executable of an execution is not there or cannot be run.
    ExecutableUnavailable = "executable_unavailable", 422, Never;
    /// The working directory of an execution is not there or cannot be used.
    WorkingDirectoryUnavailable = "working_directory_unavailable", 422, Never;

    // Budgets
    /// A budget of the execution has no room for the call; the message names it with its figures.
    BudgetExceeded = "budget_exceeded", 422, Never;
    /// The execution has made as many calls in a minute as its binding gives it; the message says when there is room again.
    CallRateExceeded = "call_rate_exceeded", 429, SameRequest;

    // Execution results, as recorded on an Execution
    /// The process ended with a failure.
    ProcessFailed = "process_failed", 422, Never;
    /// The deadline passed.
    DeadlineExceeded = "deadline_exceeded", 422, Never;
    /// An operator cancelled it.
    OperatorCancelled = "operator_cancelled", 422, Never;
    /// An Event interrupted it.
    Interrupted = "interrupted", 422, Never;
    /// The host cannot say whether, or how, the process ended.
    AttemptLost = "attempt_lost", 422, Never;
    /// The wait cannot be registered as it was declared.
    InvalidWait = "invalid_wait", 422, Never;

    /// A start gate kept the attempt from being launched; the message says whether the Work waits or is held (G06).
    StartGated = "start_gated", 422, Never;

    // Faults
    /// A fault of the host; nothing was recorded as done.
    Internal = "internal", 500, SameRequest;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Code {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or(())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// An error with its causes, for a log: `what: why: why`. Never for a caller, as causes name paths.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// One fault of a configuration: where, which rule, and what to do. Never a value (C01).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Diagnostic {
    /// JSON pointer into the configuration; empty for the whole document.
    pub pointer: String,
    /// Stable code, listed in `docs/errors.md`.
    pub code: String,
    /// What to do about it.
    pub remedy: String,
}

/// A refusal as it goes to a caller: a code, and a sentence that says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    pub code: Code,
    pub message: String,
    pub diagnostics: Vec<Diagnostic>,
    /// The code in the words of an extension, which callers see in place of `code` (T13).
    pub own_code: Option<String>,
    /// Seconds after which the same request may succeed, where that is known: `retry-after`.
    pub retry_after_s: Option<u64>,
}

impl ApiError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), diagnostics: Vec::new(), own_code: None, retry_after_s: None }
    }

    /// An extension's own refusal: its code and its message, as they are (T13, G03).
    pub fn of_extension(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { own_code: Some(code.into()), ..Self::new(Code::OperationRefused, message) }
    }

    /// The code that callers see.
    pub fn code_text(&self) -> &str {
        self.own_code.as_deref().unwrap_or(self.code.as_str())
    }

    /// The bare refusal of T06: the same words whatever failed.
    pub fn forbidden() -> Self {
        Self::new(Code::Forbidden, "the call is not allowed")
    }

    /// The envelope of this error for the request `request_id`.
    pub fn envelope(&self, request_id: &str) -> Envelope {
        Envelope {
            error: ErrorBody {
                code: self.code_text().to_owned(),
                message: self.message.clone(),
                request_id: request_id.to_owned(),
                retry: self.code.retry(),
                diagnostics: self.diagnostics.clone(),
            },
        }
    }
}

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    pub error: ErrorBody,
}

/// The inside of [`Envelope`]. `code` is text, so that an older client can read a newer server's refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: String,
    pub message: String,
    pub request_id: String,
    pub retry: Retry,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_snake_case_and_stands_once() {
        let mut names: Vec<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert!(names.iter().all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }

    #[test]
    fn a_fault_of_the_host_may_be_tried_again_and_a_refusal_may_not() {
        assert_eq!(Code::Internal.retry(), Retry::SameRequest);
        assert_eq!(Code::Forbidden.retry(), Retry::Never);
        assert_eq!("forbidden".parse(), Ok(Code::Forbidden));
    }
}
