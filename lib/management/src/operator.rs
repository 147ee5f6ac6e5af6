//! Operators: the owner's credential, and who a bearer is (M02, M04, E08).
//!
//! A credential is 32 random bytes as unpadded base64url. The store keeps its digest; the plaintext stands in the
//! owner's file alone. Named operators, rotation and recovery get their place here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use conduit_api::{Code, OperatorId};
use conduit_daemon::activation::unavailable;
use conduit_store::digest::{Sha256Digest, sha256};
use conduit_store::lock::RoleLock;
use conduit_store::{Now, Read, Store, Write, mint, named_params};
use zeroize::{Zeroize, Zeroizing};

use crate::error::{Error, Result};
use crate::routes::Role;

/// The owner's name.
pub(crate) const OWNER: &str = "local";
const CREDENTIAL_BYTES: usize = 32;
/// Longest credential file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operator {
    pub name: String,
    pub role: Role,
}

impl Operator {
    /// How Events and generations name the operator (M06).
    pub(crate) fn actor(&self) -> String {
        format!("operator:{}", self.name)
    }
}

const OPERATOR: &str = "SELECT name, role FROM operator WHERE digest = :digest AND revoked_at_us IS NULL";
const TOKEN: &str = "SELECT EXISTS (SELECT 1 FROM token WHERE digest = :digest)";

/// Who shows `bearer`. Errors: `unauthenticated`; `wrong_credential_class` for an execution's token, live or not (E08).
pub(crate) fn authenticate(r: &Read<'_>, bearer: Option<&str>) -> Result<Operator> {
    let unknown = "show an operator credential (Authorization: Bearer); the owner's is private/operator.token in the state directory";
    let Some(bearer) = bearer else { return Err(Error::new(Code::Unauthenticated, unknown)) };
    let digest = sha256(bearer.as_bytes());
    let found = r.optional("looking an operator up", OPERATOR, named_params! { ":digest": digest }, |row| {
        Ok((row.get::<_, String>("name")?, row.get::<_, String>("role")?))
    })?;
    if let Some((name, role)) = found {
        // The owner is always admin; a role that this release does not know reaches no further than a look (M04).
        let role = if name == OWNER { Role::Admin } else { Role::from_row(&role) };
        return Ok(Operator { name, role });
    }
    if r.one("looking a token up", TOKEN, named_params! { ":digest": digest }, |row| row.get(0))? {
        return Err(Error::new(
            Code::WrongCredentialClass,
            "an execution's token is for its own toolbelt socket; this one takes operator credentials",
        ));
    }
    Err(Error::new(Code::Unauthenticated, unknown))
}

/// What [`bootstrap`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bootstrapped {
    Known,
    First,
    /// The file was gone, so the credential that it held is revoked and another issued.
    Reissued,
}

/// Makes sure that the owner has a credential, and its file. The role lock says that no one else does the same.
///
/// Errors: `state_unsafe` when the file is not the owner's alone; `credential_unknown` when it holds a credential that
/// this store does not know; `state_unavailable` when it cannot be read or written.
pub(crate) fn bootstrap(store: &mut Store, _alone: &RoleLock, file: &Path, now: Now) -> Result<Bootstrapped> {
    let known: Option<Vec<u8>> = store.read(owner)?;
    match (read(file)?, known) {
        (Some(digest), Some(known)) if known == digest => Ok(Bootstrapped::Known),
        (Some(_), _) => Err(Error::new(
            Code::CredentialUnknown,
            format!(
                "{} holds a credential that this store does not know; restore the store that it belongs to, or remove the file and start again: a new credential is issued then",
                file.display()
            ),
        )),
        (None, known) => {
            issue(store, file, now)?;
            Ok(if known.is_some() { Bootstrapped::Reissued } else { Bootstrapped::First })
        }
    }
}

fn owner(r: &Read<'_>) -> Result<Option<Vec<u8>>> {
    const OWNERS: &str = "SELECT digest FROM operator WHERE name = :name AND revoked_at_us IS NULL";
    Ok(r.optional("reading the owner's credential", OWNERS, named_params! { ":name": OWNER }, |row| row.get(0))?)
}

/// A new credential for the owner: its file is on disk before its digest is known, and in its place after. A crash in
/// between leaves no file, and the next start issues another.
fn issue(store: &mut Store, file: &Path, now: Now) -> Result<()> {
    let mut bytes: [u8; CREDENTIAL_BYTES] = rand::random();
    let text = Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes));
    bytes.zeroize();
    let fresh = file.with_extension("new");
    let failed = |error: io::Error| Error::from(unavailable(file, &error));
    write(&fresh, text.as_bytes()).map_err(failed)?;
    store.write(|tx| replace(tx, sha256(text.as_bytes()), now))?;
    fs::rename(&fresh, file).and_then(|()| sync_parent(file)).map_err(failed)
}

fn replace(tx: &Write<'_>, digest: Sha256Digest, now: Now) -> Result<()> {
    const REVOKE: &str = "UPDATE operator SET revoked_at_us = :at WHERE name = :name AND revoked_at_us IS NULL";
    const INSERT: &str =
        "INSERT INTO operator (id, name, role, digest, created_at_us) VALUES (:id, :name, 'admin', :digest, :at)";
    tx.execute("revoking a credential", REVOKE, named_params! { ":name": OWNER, ":at": now.wall.0 })?;
    // Only the digest is kept: M02.
    tx.execute(
        "issuing a credential",
        INSERT,
        named_params! { ":id": mint::<OperatorId>(now).as_str(), ":name": OWNER, ":digest": digest, ":at": now.wall.0 },
    )?;
    Ok(())
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.write_all(b"\n")?;
    file.sync_all()
}

fn sync_parent(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// The digest of the credential in `file`; `None` when there is no file.
fn read(file: &Path) -> Result<Option<Sha256Digest>> {
    let failed = |error: io::Error| unavailable(file, &error);
    let meta = match fs::symlink_metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error).into()),
        Ok(meta) => meta,
    };
    let open = File::open(file).map_err(failed)?;
    // The same file that was opened is looked at; the directory is owner-only, so nobody else exchanges it.
    let owner = open.metadata().map_err(failed)?.uid();
    let directory = fs::metadata(file.parent().unwrap_or(Path::new("/"))).map_err(failed)?.uid();
    if !meta.is_file() || meta.mode() & 0o077 != 0 || owner != directory {
        return Err(Error::new(
            Code::StateUnsafe,
            format!("{0} is not the owner's alone; run `chmod 600 {0}`, or remove it", file.display()),
        ));
    }
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    open.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(Some(sha256(text.trim_end_matches('\n').as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::{Clock, StateDir};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    struct Place {
        _base: tempfile::TempDir,
        store: Store,
        lock: RoleLock,
        file: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let base = tempfile::tempdir().unwrap();
            let state = StateDir::open(&base.path().join("s")).unwrap();
            Self {
                store: Store::open(&state).unwrap(),
                lock: RoleLock::take(&state, "management").unwrap(),
                file: state.path().join("private/operator.token"),
                _base: base,
            }
        }
        fn bootstrap(&mut self) -> Result<Bootstrapped> {
            bootstrap(&mut self.store, &self.lock, &self.file, Clock.now())
        }
        fn text(&self) -> String {
            fs::read_to_string(&self.file).unwrap().trim().to_owned()
        }
        fn who(&mut self, bearer: &str) -> Result<Operator> {
            self.store.read(|r| authenticate(r, Some(bearer)))
        }
    }

    /// M02
    #[test]
    fn the_owners_credential_is_made_once_and_only_its_digest_is_stored() {
        let mut place = Place::new();
        assert_eq!(place.bootstrap().unwrap(), Bootstrapped::First);
        let text = place.text();
        assert_eq!(text.len(), 43);
        assert_eq!(fs::metadata(&place.file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(place.bootstrap().unwrap(), Bootstrapped::Known);
        assert_eq!(place.text(), text);
        assert_eq!(place.who(&text).unwrap(), Operator { name: "local".into(), role: Role::Admin });
        let stored = fs::read(place.file.parent().unwrap().parent().unwrap().join("store.db-wal")).unwrap();
        assert!(!stored.windows(text.len()).any(|window| window == text.as_bytes()));
    }

    /// M02
    #[test]
    fn a_lost_file_costs_its_credential_and_a_foreign_one_is_not_believed() {
        let mut place = Place::new();
        place.bootstrap().unwrap();
        let old = place.text();
        fs::remove_file(&place.file).unwrap();
        assert_eq!(place.bootstrap().unwrap(), Bootstrapped::Reissued);
        assert_ne!(place.text(), old);
        assert!(place.who(&old).is_err());

        fs::write(&place.file, &old).unwrap();
        let refused = place.bootstrap().unwrap_err().into_api("req");
        assert_eq!(refused.code, Code::CredentialUnknown);
        assert!(!refused.message.contains(&old));
    }

    /// M01
    #[test]
    fn a_credential_file_that_others_can_read_is_refused() {
        let mut place = Place::new();
        place.bootstrap().unwrap();
        fs::set_permissions(&place.file, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(place.bootstrap().unwrap_err().into_api("req").code, Code::StateUnsafe);
    }

    /// M02
    #[test]
    fn a_bearer_is_an_operator_or_nobody() {
        let mut place = Place::new();
        place.bootstrap().unwrap();
        let code = |place: &mut Place, bearer: Option<&str>| {
            place.store.read(|r| authenticate(r, bearer)).unwrap_err().into_api("req").code
        };
        assert_eq!(code(&mut place, None), Code::Unauthenticated);
        assert_eq!(code(&mut place, Some("forged")), Code::Unauthenticated);
    }
}
