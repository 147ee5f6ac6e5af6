//! Names on the HTTP wire.

/// The only content type of a request with a body, and of every JSON answer.
pub const JSON: &str = "application/json";
/// Names the request; the server makes one up when the caller gives none, and every answer carries it back.
pub const REQUEST_ID: &str = "x-request-id";
/// Makes a mutation replayable (M07); on a toolbelt call it stands in for an absent `request_id` (T14).
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The fixed host that clients send (M13).
pub const HOST: &str = "localhost";
/// The toolbelt call, served on run sockets only (E02).
pub const TOOLBELT_CALL: &str = "/v1/toolbelt/call";
/// The guidance of the token's granted operations (E02).
pub const TOOLBELT_GUIDANCE: &str = "/v1/toolbelt/guidance";
/// Which granted operations serve a capability (E02).
pub const TOOLBELT_SERVING: &str = "/v1/toolbelt/serving";

/// Names of the environment variables that a process of an execution finds.
pub mod env {
    /// Path of the execution's own toolbelt socket (E04).
    pub const ENDPOINT: &str = "OS_ENDPOINT";
    /// Path of the file that holds the current token (E04); read again after a rotation.
    pub const TOKEN_FILE: &str = "OS_TOKEN_FILE";
    /// Directory that holds `os` (E05).
    pub const TOOLBELT_DIR: &str = "OS_TOOLBELT_DIR";
    /// Directory with `skills/<name>/SKILL.md` (E05).
    pub const PLAYBOOK_DIR: &str = "OS_PLAYBOOK_DIR";
    /// Path of the management socket, for `open-conduit` (M13).
    pub const MANAGEMENT_ENDPOINT: &str = "OPEN_CONDUIT_ENDPOINT";
    /// Path of the operator's token file, for `open-conduit` (M13).
    pub const OPERATOR_TOKEN_FILE: &str = "OPEN_CONDUIT_TOKEN_FILE";
}
