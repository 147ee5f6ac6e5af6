//! What a generation's row keeps beside its hash: the redacted configuration, and the playbook of each binding as it was when
//! the generation was validated (S05, S07). So a refusal is told from drift without asking an executor.

use std::collections::BTreeMap;
use std::rc::Rc;

use conduit_api::ScopeId;
use conduit_store::{Read, Store, named_params};

use crate::error::{Error, Result};
use crate::model::Config;
use crate::playbook::Playbook;
use crate::snapshot::redacted;

const PLAYBOOKS: &str = "SELECT snapshot ->> '$.playbooks' FROM generation WHERE number = :number";
const RENEW: &str = "UPDATE generation SET snapshot = :snapshot WHERE number = :number";

/// By scope and binding.
type Playbooks = BTreeMap<ScopeId, BTreeMap<String, Playbook>>;

/// The text of the row's `snapshot`.
pub(crate) fn snapshot(config: &Config) -> Result<String> {
    let mut row = redacted(config);
    let playbooks = serde_json::to_value(of(config)).map_err(|_| unreadable(0))?;
    if let (Some(fields), true) = (row.as_object_mut(), playbooks.as_object().is_some_and(|scopes| !scopes.is_empty()))
    {
        fields.insert("playbooks".to_owned(), playbooks);
    }
    Ok(row.to_string())
}

/// The playbooks of the bindings that have one.
fn of(config: &Config) -> Playbooks {
    let mut all = Playbooks::new();
    for (id, scope) in &config.scopes {
        for (name, binding) in &scope.bindings {
            if let Some(playbook) = &binding.playbook {
                all.entry(id.clone()).or_default().insert(name.clone(), Playbook::clone(playbook));
            }
        }
    }
    all
}

/// The playbooks that the row of generation `number` has. Error: `state_unavailable` when they cannot be read.
pub(crate) fn read(read: &Read<'_>, number: i64) -> Result<Playbooks> {
    let text: Option<Option<String>> =
        read.optional("reading a generation's playbooks", PLAYBOOKS, named_params! { ":number": number }, |row| {
            row.get(0)
        })?;
    match text.flatten() {
        Some(text) => serde_json::from_str(&text).map_err(|_| unreadable(number)),
        None => Ok(Playbooks::new()),
    }
}

/// Gives each binding its recorded playbook.
pub(crate) fn apply(config: &mut Config, playbooks: Playbooks) {
    for (id, bindings) in playbooks {
        let Some(scope) = config.scopes.get_mut(&id) else { continue };
        for (name, playbook) in bindings {
            if let Some(binding) = scope.bindings.get_mut(&name) {
                binding.playbook = Some(Rc::new(playbook));
            }
        }
    }
}

/// Records what this release's playbooks use, where an earlier release recorded something else. The hash stays (S02).
pub(crate) fn renew(store: &mut Store, number: i64, config: &Config) -> Result<()> {
    // A row that cannot be read is written anew as well.
    if store.read(|r| read(r, number)).is_ok_and(|recorded| recorded == of(config)) {
        return Ok(());
    }
    let snapshot = snapshot(config)?;
    store.write(|tx| {
        tx.execute("recording playbooks", RENEW, named_params! { ":snapshot": snapshot, ":number": number })?;
        Ok(())
    })
}

fn unreadable(generation: i64) -> Error {
    Error::GenerationDamaged { generation, why: "its playbooks cannot be read".into() }
}
