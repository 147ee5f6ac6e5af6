//! Tokens: 32 random bytes that speak for one execution at one epoch, until its attempt ends (T01–T03).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use conduit_api::{ExecutionId, ScopeId, TokenId, WorkId};
use conduit_config::Budget;
use conduit_coordination::executions::Claimed;
use conduit_store::digest::{Sha256Digest, sha256};
use conduit_store::{Fenced, Now, Read, column_id, mint, named_params};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::error::{Error, Result};

const TOKEN_BYTES: usize = 32;

/// The plaintext of a token. It is shown to the trusted issuer once; no `Debug`, no `Display`, wiped when dropped.
pub struct Token(Zeroizing<String>);

impl Token {
    fn generate() -> Self {
        let mut bytes: [u8; TOKEN_BYTES] = rand::random();
        let text = Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes));
        bytes.zeroize();
        Self(text)
    }

    /// The text that goes into the token file, and nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// What the store knows a bearer by.
pub fn digest(bearer: &str) -> Sha256Digest {
    sha256(bearer.as_bytes())
}

/// What a token allows: the pinned half of a grant (C07).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    pub operations: Vec<String>,
    /// Event families that `emit` may use.
    pub events: Vec<String>,
    /// Bindings that `create_work` may name.
    pub delegates: Vec<String>,
    /// What the execution may use up.
    #[serde(default, skip_serializing_if = "Budget::is_unlimited")]
    pub budget: Budget,
}

/// A token that is to be issued for a claim.
#[derive(Debug)]
pub struct NewToken<'a> {
    pub claimed: &'a Claimed,
    pub grants: &'a Grants,
    /// The attempt's deadline on the boot clock, exclusive (T03).
    pub expires_boot_us: i64,
}

/// A token as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: TokenId,
    pub execution: ExecutionId,
    pub work: WorkId,
    pub scope: ScopeId,
    pub epoch: i64,
    pub owner: String,
    pub binding: String,
    pub generation: i64,
    pub grants: Grants,
    pub boot_id: String,
    pub expires_boot_us: i64,
    pub revoked: bool,
}

const REVOKE_LOWER: &str = "
    UPDATE token SET revoked_at_us = :at WHERE execution_id = :execution AND epoch <= :epoch AND revoked_at_us IS NULL";
const INSERT: &str = "
    INSERT INTO token (digest, id, execution_id, work_id, scope_id, epoch, owner, binding, generation, grants, boot_id,
                       expires_boot_us, issued_at_us, expires_at_us, revoked_at_us)
    SELECT :digest, :id, :execution, :work, :scope, :epoch, :owner, :binding, :generation, :grants, :boot, :expires, :at, :expires_at,
           CASE WHEN stop_reason IN ('operator_cancelled', 'work_cancelled', 'budget_exceeded') THEN :at END
      FROM execution WHERE id = :execution";
const LOOKUP: &str = "
    SELECT id, execution_id, work_id, scope_id, epoch, owner, binding, generation, grants, boot_id, expires_boot_us,
           revoked_at_us IS NOT NULL AS revoked
      FROM token WHERE digest = :digest";

/// Issues the token of a claim and revokes every earlier one of its execution, in the fenced transaction (T02).
///
/// The token of an execution that an operator has cancelled is revoked from its first moment.
pub fn issue(tx: &Fenced<'_>, new: &NewToken<'_>) -> Result<Token> {
    let now = tx.now();
    let claimed = new.claimed;
    let token = Token::generate();
    tx.execute(
        "revoking tokens",
        REVOKE_LOWER,
        named_params! {
            ":at": now.wall.0, ":execution": claimed.execution.as_str(), ":epoch": claimed.epoch,
        },
    )?;
    let grants = serde_json::to_string(new.grants)
        .map_err(|_| Error::operation(conduit_api::Code::Internal, "the grants cannot be written"))?;
    // Only the digest is kept: T01.
    tx.execute("issuing a token", INSERT, named_params! {
        ":digest": digest(token.expose()), ":id": mint::<TokenId>(now).as_str(), ":execution": claimed.execution.as_str(),
        ":work": claimed.work.as_str(), ":scope": claimed.scope.as_str(), ":epoch": claimed.epoch, ":owner": claimed.owner,
        ":binding": claimed.binding, ":generation": claimed.generation, ":grants": grants, ":boot": now.boot_id,
        ":expires": new.expires_boot_us, ":at": now.wall.0, ":expires_at": now.wall.0 + (new.expires_boot_us - now.boot_us),
    })?;
    Ok(token)
}

/// The record of a bearer, if it was ever a token and has not been swept.
pub fn lookup(r: &Read<'_>, digest: &Sha256Digest) -> Result<Option<TokenRecord>> {
    Ok(r.optional("looking a token up", LOOKUP, named_params! { ":digest": digest }, |row| {
        let grants: String = row.get("grants")?;
        Ok(TokenRecord {
            id: column_id(row, "id")?,
            execution: column_id(row, "execution_id")?,
            work: column_id(row, "work_id")?,
            scope: column_id(row, "scope_id")?,
            epoch: row.get("epoch")?,
            owner: row.get("owner")?,
            binding: row.get("binding")?,
            generation: row.get("generation")?,
            // Grants that cannot be read grant nothing.
            grants: serde_json::from_str(&grants).unwrap_or_default(),
            boot_id: row.get("boot_id")?,
            expires_boot_us: row.get("expires_boot_us")?,
            revoked: row.get("revoked")?,
        })
    })?)
}

/// Whether the bearer is a live operator credential.
pub fn is_operator(r: &Read<'_>, digest: &Sha256Digest) -> Result<bool> {
    const OPERATOR: &str = "SELECT EXISTS (SELECT 1 FROM operator WHERE digest = :digest AND revoked_at_us IS NULL)";
    Ok(r.one("looking an operator up", OPERATOR, named_params! { ":digest": digest }, |row| row.get(0))?)
}

impl TokenRecord {
    /// Whether the token has expired: at its instant it has (T03), and with its boot.
    pub fn expired(&self, now: Now) -> bool {
        self.boot_id != now.boot_id || now.boot_us >= self.expires_boot_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T01
    #[test]
    fn a_token_is_32_random_bytes_without_padding_and_never_the_same() {
        let (one, two) = (Token::generate(), Token::generate());
        assert_eq!(URL_SAFE_NO_PAD.decode(one.expose()).unwrap().len(), 32);
        assert!(!one.expose().contains('='));
        assert_ne!(one.expose(), two.expose());
        assert_ne!(digest(one.expose()), digest(two.expose()));
    }
}
