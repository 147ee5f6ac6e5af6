//! Operators, as the extension host knows them: who a bearer is, by its digest, and how far it reaches (M04, M06).

use conduit_store::digest::Sha256Digest;
use conduit_store::{Read, named_params};

use crate::error::Result;
use crate::registry::ActionRole;

/// Who is always an administrator: whoever owns the state directory.
const OWNER: &str = "local";

/// A live operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    pub name: String,
    pub role: ActionRole,
}

impl Operator {
    /// How Events name the operator (M06).
    pub fn actor(&self) -> String {
        format!("operator:{}", self.name)
    }
}

/// The operator whose credential has this digest, unless it is revoked.
pub fn find(r: &Read<'_>, digest: &Sha256Digest) -> Result<Option<Operator>> {
    const OPERATOR: &str = "SELECT name, role FROM operator WHERE digest = :digest AND revoked_at_us IS NULL";
    Ok(r.optional("looking an operator up", OPERATOR, named_params! { ":digest": digest }, |row| {
        let (name, role): (String, String) = (row.get("name")?, row.get("role")?);
        // A role that this release does not know reaches no further than a look.
        let role = match (name.as_str(), role.as_str()) {
            (OWNER, _) | (_, "admin") => ActionRole::Admin,
            (_, "operate") => ActionRole::Operate,
            _ => ActionRole::View,
        };
        Ok(Operator { name, role })
    })?)
}
