//! From files and requests to generations: what is active at a start (C05), and how another becomes active (C06).

use std::path::PathBuf;
use std::rc::Rc;

use conduit_api::error::Diagnostic;
use conduit_api::views::GrantWarning;
use conduit_store::lock::RoleLock;
use conduit_store::{Now, Read, StateDir, Store, digest};
use serde_json::Value;

use crate::edit;
use crate::error::{Error, Result};
use crate::file::{self, ConfigFile};
use crate::generation::{self, Publication};
use crate::model::Config;
use crate::parse::{self, Checked};
use crate::recorded;
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::warnings::grant_warnings;

/// What is active when nobody has configured anything: a scope to set the suite up in, which may do nothing.
pub const DEFAULT_CONFIG: &[u8] = br#"{"version":1,"scopes":{"setup":{}}}"#;
/// Who published a generation that no operator applied.
const ACTOR_START: &str = "start";
/// Starting and applying exclude each other, in whatever processes they happen.
const LOCK: &str = "config";

/// The configuration of one state directory.
pub struct ConfigService {
    state: StateDir,
    file: ConfigFile,
    registry: Rc<dyn Registry>,
}

/// What a start found, and what it did about it.
#[derive(Debug)]
pub struct Started {
    pub snapshot: Snapshot,
    pub origin: Origin,
}

/// Where the generation that is active after a start comes from.
#[derive(Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was active before. `file_differs`: the configuration file says something else, and was not applied.
    Restored { file_differs: bool },
    /// The configuration file, as generation 1.
    FirstFile,
    /// [`DEFAULT_CONFIG`], as generation 1; no file was written.
    FirstDefault,
    /// The configuration file, because the generation `replaced` could not be used: `why`.
    Adopted { replaced: i64, why: String },
}

/// A change to one place of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Change<'c> {
    /// RFC 6901; objects on the way that are not there are made.
    pub pointer: &'c str,
    pub value: &'c Value,
    /// The generation that has to be active, if any.
    pub expected: Option<i64>,
}

/// A configuration that was changed in one place, and that nobody applied yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    pub text: String,
    /// The generation that it was before: to be expected by the apply.
    pub generation: i64,
    /// What the file held, if there was one.
    own: Option<Vec<u8>>,
}

/// What an apply came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The active generation.
    pub generation: i64,
    pub hash: String,
    /// Whether it is a new one; the same configuration again is not.
    pub published: bool,
    pub warnings: Vec<GrantWarning>,
}

/// The steps of an apply, in their order. A crash between or inside any two leaves the old generation active, and
/// the same apply can be done again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The bytes of the new generation, in a file of their own.
    KeepBytes,
    /// What was active until now, beside the configuration file.
    KeepLastGood,
    SaveFile,
    /// The row, the scopes: the moment from which the new generation is active.
    Publish,
}

impl Step {
    const ALL: [Self; 4] = [Self::KeepBytes, Self::KeepLastGood, Self::SaveFile, Self::Publish];
}

/// An apply whose conditions hold.
struct Plan<'p> {
    candidate: Checked,
    written: &'p [u8],
    active: i64,
    /// Its configuration, unless its bytes are missing or altered: then this apply repairs it.
    previous: Option<Checked>,
    actor: &'p str,
    now: Now,
}

impl ConfigService {
    /// `file` is the operator's configuration file; it need not exist.
    pub fn new(state: StateDir, file: PathBuf, registry: Rc<dyn Registry>) -> Self {
        Self { state, file: ConfigFile::new(file), registry }
    }

    /// Makes a generation active, if none is, and returns the active one (C05).
    ///
    /// Errors: `invalid_config` when the file that has to be used has faults; `config_file_unavailable`;
    /// `state_locked` while another process starts or applies; and the store's.
    pub fn start(&self, store: &mut Store, now: Now) -> Result<Started> {
        let _alone = RoleLock::take(&self.state, LOCK)?;
        let Some(number) = store.read(generation::active_number)? else { return self.first(store, now) };
        match self.restore(store, number) {
            Ok(snapshot) => {
                let file_differs = self.file_differs(&snapshot.hash);
                Ok(Started { snapshot, origin: Origin::Restored { file_differs } })
            }
            Err(fault @ (Error::GenerationDamaged { .. } | Error::Invalid(_))) => {
                self.adopt(store, number, fault.to_string(), now)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks a configuration without changing anything.
    pub fn validate(&self, bytes: &[u8]) -> Result<Checked, Vec<Diagnostic>> {
        parse::parse(bytes, &*self.registry)
    }

    /// What of a checked configuration may not be what was meant (S06).
    pub fn warnings(&self, config: &Config) -> Vec<GrantWarning> {
        grant_warnings(config, self.registry.catalogue())
    }

    /// Every fault that the active configuration has in a release that has what `registry` says; none before the first start.
    pub fn faults_under(&self, read: &Read<'_>, registry: &dyn Registry) -> Result<Vec<Diagnostic>> {
        let Some(number) = generation::active_number(read)? else { return Ok(Vec::new()) };
        let bytes = generation::bytes(read, &self.state, number)?;
        Ok(parse::parse(&bytes, registry).err().unwrap_or_default())
    }

    /// Checks `bytes` again, saves them as the configuration file, and publishes them as the next generation (C06).
    ///
    /// Errors: `invalid_config`; `generation_conflict` when `expected` is not active; `scope_in_use` when a scope
    /// would go that has Work which has not ended; `config_file_unavailable`; `unavailable` before the first start.
    pub fn apply(
        &self,
        store: &mut Store,
        bytes: &[u8],
        expected: Option<i64>,
        actor: &str,
        now: Now,
    ) -> Result<Applied> {
        let _alone = RoleLock::take(&self.state, LOCK)?;
        self.apply_alone(store, bytes, expected, actor, now)
    }

    /// As [`ConfigService::apply`], for what [`ConfigService::edited`] made. Error besides: `config_file_differs` when the file
    /// was changed meanwhile.
    pub fn apply_edited(&self, store: &mut Store, edited: &Edited, actor: &str, now: Now) -> Result<Applied> {
        let _alone = RoleLock::take(&self.state, LOCK)?;
        if self.file.read()? != edited.own {
            return Err(Error::FileDiffers);
        }
        self.apply_alone(store, edited.text.as_bytes(), Some(edited.generation), actor, now)
    }

    fn apply_alone(
        &self,
        store: &mut Store,
        bytes: &[u8],
        expected: Option<i64>,
        actor: &str,
        now: Now,
    ) -> Result<Applied> {
        let plan = self.plan(store, bytes, expected, actor, now)?;
        let mut done = Applied {
            generation: plan.active,
            hash: plan.candidate.hash.clone(),
            published: false,
            warnings: self.warnings(&plan.candidate.config),
        };
        for step in Step::ALL {
            if let Some(generation) = self.take(step, &plan, store)? {
                done = Applied { generation, published: true, ..done };
            }
        }
        Ok(done)
    }

    /// The active configuration with one value in the place of another, for an apply (S06). All else is as the operator
    /// wrote it in the file, or one field on a line where there is no file.
    ///
    /// Errors: `invalid_request` when there is no such place; `config_file_differs` when the file has changes that nobody
    /// applied; `generation_conflict`; `config_file_unavailable`; `unavailable` before the first start.
    ///
    /// What an apply left in the file that ended before its commit is no such change: nobody was told that it is active, and
    /// it gives way to this one.
    pub fn edited(&self, store: &mut Store, change: &Change<'_>) -> Result<Edited> {
        let (generation, active) = store.read(|read| {
            let number = generation::active_number(read)?.ok_or(Error::NoGeneration)?;
            let active = generation::committed(read, &self.state, number, self.registry.catalogue())?;
            Ok::<_, Error>((number, active))
        })?;
        if let Some(expected) = change.expected.filter(|expected| *expected != generation) {
            return Err(Error::GenerationConflict { expected, current: generation });
        }
        let own = self.file.read()?;
        let spelt = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).ok().filter(|text| same_document(text.as_bytes(), &active.canonical));
            text.map(str::to_owned)
        };
        let before = match own.as_deref() {
            None => None,
            Some(own) => match spelt(own) {
                None if self.is_left_over(own) => self.file.last_good()?.as_deref().and_then(spelt),
                None => return Err(Error::FileDiffers),
                text => text,
            },
        };
        let before = match before {
            Some(text) => text,
            None => {
                let document: Value = serde_json::from_slice(&active.canonical)
                    .map_err(|error| Error::GenerationDamaged { generation, why: error.to_string() })?;
                format!("{document:#}\n")
            }
        };
        let text = edit::set(&before, change.pointer, change.value).map_err(|why| Error::NoPlace { why })?;
        Ok(Edited { text, generation, own })
    }

    fn plan<'p>(
        &self,
        store: &mut Store,
        bytes: &'p [u8],
        expected: Option<i64>,
        actor: &'p str,
        now: Now,
    ) -> Result<Plan<'p>> {
        let candidate = self.validate(bytes).map_err(Error::Invalid)?;
        let (active, previous) = store.read(|read| {
            let active = generation::active_number(read)?.ok_or(Error::NoGeneration)?;
            if let Some(expected) = expected.filter(|expected| *expected != active) {
                return Err(Error::GenerationConflict { expected, current: active });
            }
            // Before any file is touched; asked again where it counts, in the publishing transaction.
            generation::refuse_scope_in_use(read, &candidate.config)?;
            match generation::committed(read, &self.state, active, self.registry.catalogue()) {
                Ok(checked) => Ok((active, Some(checked))),
                Err(Error::GenerationDamaged { .. }) => Ok((active, None)),
                Err(error) => Err(error),
            }
        })?;
        Ok(Plan { candidate, written: bytes, active, previous, actor, now })
    }

    /// Takes one step; returns the generation that it published, if it did.
    fn take(&self, step: Step, plan: &Plan<'_>, store: &mut Store) -> Result<Option<i64>> {
        match step {
            Step::KeepBytes => self.keep_bytes(&plan.candidate)?,
            Step::KeepLastGood => {
                if let Some(previous) = &plan.previous {
                    // In the operator's own spelling, where the file still has it.
                    let own = self.file.read()?.filter(|own| same_document(own, &previous.canonical));
                    self.file.keep_last_good(own.as_deref().unwrap_or(&previous.canonical))?;
                }
            }
            Step::SaveFile => {
                // A file that says the same already keeps the operator's own spelling.
                let same = self.file.read()?.is_some_and(|own| same_document(&own, &plan.candidate.canonical));
                if !same {
                    self.note_pending(&plan.candidate.hash)?;
                    self.file.save(plan.written)?;
                }
            }
            Step::Publish => {
                let previous = plan.previous.as_ref().map(|checked| &checked.config);
                let Plan { candidate, active, actor, now, .. } = plan;
                let publication = Publication { candidate, replaces: Some(*active), previous, actor, now: *now };
                if plan.previous.as_ref().is_none_or(|previous| previous.hash != candidate.hash) {
                    return store.write(|tx| generation::publish(tx, &publication)).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// The first start: the file, or the default without writing a file.
    fn first(&self, store: &mut Store, now: Now) -> Result<Started> {
        let (candidate, origin) = match self.file.read()? {
            Some(bytes) => (self.validate(&bytes).map_err(|faults| self.file_invalid(faults))?, Origin::FirstFile),
            None => (self.validate(DEFAULT_CONFIG).map_err(Error::Invalid)?, Origin::FirstDefault),
        };
        self.keep_bytes(&candidate)?;
        let generation = publish_at_start(store, &candidate, None, now)?;
        Ok(Started { snapshot: Snapshot::new(generation, candidate), origin })
    }

    /// The committed generation, if its bytes are what they were and still validate.
    fn restore(&self, store: &mut Store, number: i64) -> Result<Snapshot> {
        let bytes = store.read(|read| generation::bytes(read, &self.state, number))?;
        let checked = self.validate(&bytes).map_err(Error::Invalid)?;
        recorded::renew(store, number, &checked.config)?;
        Ok(Snapshot::new(number, checked))
    }

    /// Publishes the file over a committed generation that cannot be used; an error names what is wrong with both.
    fn adopt(&self, store: &mut Store, number: i64, committed: String, now: Now) -> Result<Started> {
        let hopeless = |file: String| Error::NothingUsable {
            generation: number,
            committed: committed.clone(),
            path: self.file.path().to_owned(),
            file,
        };
        let adopted = (|| {
            let bytes = self.file.read()?.ok_or_else(|| hopeless("there is no such file".into()))?;
            let candidate = self.validate(&bytes).map_err(Error::Invalid)?;
            self.keep_bytes(&candidate)?;
            let generation = publish_at_start(store, &candidate, Some(number), now)?;
            Ok(Snapshot::new(generation, candidate))
        })();
        let snapshot = adopted.map_err(|fault| match fault {
            fault @ (Error::NothingUsable { .. } | Error::Store(_)) => fault,
            fault => hopeless(fault.at_start().message),
        })?;
        tracing::warn!(
            replaced = number,
            generation = snapshot.generation,
            why = committed,
            "the committed generation cannot be used; the configuration file was adopted in its place"
        );
        Ok(Started { snapshot, origin: Origin::Adopted { replaced: number, why: committed } })
    }

    fn keep_bytes(&self, candidate: &Checked) -> Result<()> {
        file::replace(&self.state.generation_file(&candidate.hash), &candidate.canonical)
            .map_err(conduit_store::error::doing_io("keeping the bytes of a generation"))?;
        Ok(())
    }

    /// Says, before the file is saved, what the apply under way puts there: a crash before its commit leaves both.
    fn note_pending(&self, hash: &str) -> Result<()> {
        file::replace(&self.pending(), hash.as_bytes())
            .map_err(conduit_store::error::doing_io("noting what is being applied"))?;
        Ok(())
    }

    /// Whether `own`, which is not the active configuration, is what an apply left that ended before its commit.
    fn is_left_over(&self, own: &[u8]) -> bool {
        let document = conduit_api::json::parse(own, conduit_api::limits::BODY_BYTES_MAX);
        let hash = document.map(|document| digest::hex(&digest::sha256(&digest::canonical_json(&document))));
        // Without the note it counts as an operator's own change, which is never thrown away.
        hash.is_ok_and(|hash| std::fs::read(self.pending()).is_ok_and(|noted| noted == hash.as_bytes()))
    }

    fn pending(&self) -> PathBuf {
        self.state.generation_file("pending")
    }

    /// Whether the configuration file says something else than the generation with `hash`. For the log only.
    fn file_differs(&self, hash: &str) -> bool {
        let differs = match self.file.read() {
            Ok(None) => false,
            Ok(Some(bytes)) => parse::trusted(&bytes, self.registry.catalogue()).map_or(true, |file| file.hash != hash),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "the configuration file cannot be read; the committed generation stays active");
                true
            }
        };
        if differs {
            tracing::info!(
                file = %self.file.path().display(),
                "the configuration file differs from the active generation; `open-conduit config apply` makes it active"
            );
        }
        differs
    }

    fn file_invalid(&self, diagnostics: Vec<Diagnostic>) -> Error {
        Error::FileInvalid { path: self.file.path().to_owned(), diagnostics }
    }
}

impl std::fmt::Debug for ConfigService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigService").field("state", &self.state).field("file", &self.file).finish_non_exhaustive()
    }
}

/// Publishes what a start chose; there is no sound configuration before it to compare with.
fn publish_at_start(store: &mut Store, candidate: &Checked, replaces: Option<i64>, now: Now) -> Result<i64> {
    let publication = Publication { candidate, replaces, previous: None, actor: ACTOR_START, now };
    store.write(|tx| generation::publish(tx, &publication))
}

/// Whether `bytes`, however spelt, are the document with this canonical form.
fn same_document(bytes: &[u8], canonical: &[u8]) -> bool {
    conduit_api::json::parse(bytes, conduit_api::limits::BODY_BYTES_MAX)
        .is_ok_and(|document| digest::canonical_json(&document) == canonical)
}

#[cfg(test)]
mod tests;
