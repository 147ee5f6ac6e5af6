//! What a toolbelt has: the builtin operations, and what extensions have registered (T16, S04).
//!
//! [`Registration`] is data. [`Registry::new`] takes a whole set of registrations and keeps those that keep every rule,
//! whatever the order in which they came; a refused one registers nothing. What a generation has *active* is decided by
//! its configuration, and what a call may do by `check`: nothing here authorizes.

mod bounded;
mod builtins;
mod error;
mod registration;
mod rules;
pub use rules::{BREAK_GLASS, OWN_EXECUTORS};
mod schema;
mod toolset;

use std::collections::HashMap;

use conduit_api::error::Diagnostic;
use conduit_config::{Catalogue, Listing};
use serde_json::Value;

pub use error::{Fault, Refused};
pub use registration::{
    ActionRole, ActionSpec, ExecutorSpec, ExecutorTransport, Member, OperationKind, OperationSpec, Playbook,
    Registration, Toolset,
};
pub use schema::{SETTINGS_BYTES_MAX, SettingsSchema, violations};
pub use toolset::{Shrunk, grown_from};

/// Every operation of this release, by name; built once per process.
#[derive(Debug)]
pub struct Registry {
    builtins: Vec<OperationSpec>,
    /// In the order of names.
    registrations: Vec<Registration>,
    /// Where each operation stands, and its schema.
    operations: HashMap<Box<str>, Entry>,
    catalogue: Catalogue,
}

#[derive(Debug)]
struct Entry {
    /// Place of its registration; `None` for a builtin.
    registration: Option<usize>,
    place: usize,
    schema: schema::Compiled,
}

/// An operation as the registry knows it.
#[derive(Debug, Clone, Copy)]
pub struct Known<'r> {
    /// `None` for a builtin.
    pub registration: Option<&'r Registration>,
    pub spec: &'r OperationSpec,
    schema: &'r schema::Compiled,
}

impl Registry {
    /// The builtin operations alone.
    pub fn builtins() -> Self {
        Self::new(Vec::new()).0
    }

    /// The builtins and every registration that keeps the rules, and the faults of the others in the order of names.
    pub fn new(registrations: Vec<Registration>) -> (Self, Vec<Refused>) {
        let (registrations, refused) = rules::accepted(registrations);
        let builtins = builtins::specs();
        let mut operations = HashMap::new();
        let mut enter = |registration, specs: &[OperationSpec]| {
            for (place, spec) in specs.iter().enumerate() {
                let entry = Entry { registration, place, schema: schema::Compiled::default() };
                operations.insert(spec.name.as_str().into(), entry);
            }
        };
        enter(None, &builtins);
        for (at, registration) in registrations.iter().enumerate() {
            enter(Some(at), &registration.operations);
        }
        let catalogue = catalogue(&registrations);
        (Self { builtins, registrations, operations, catalogue }, refused)
    }

    /// Adds one more registration. Errors: its faults, and `conflict` when its name is registered already;
    /// then nothing of it is registered.
    pub fn register(&mut self, registration: Registration) -> Result<(), Vec<Refused>> {
        let mut faults = rules::faults_of(&registration);
        if self.registration(&registration.name).is_some() {
            faults.push(Refused {
                registration: registration.name.clone(),
                part: registration.name.clone(),
                fault: Fault::Conflict,
                why: "is registered already".into(),
            });
        }
        if !faults.is_empty() {
            faults.sort();
            return Err(faults);
        }
        let mut all = std::mem::take(&mut self.registrations);
        all.push(registration);
        *self = Self::new(all).0;
        Ok(())
    }

    /// Every registration, in the order of names.
    pub fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    pub fn registration(&self, name: &str) -> Option<&Registration> {
        let found = self.registrations.binary_search_by(|registration| registration.name.as_str().cmp(name)).ok()?;
        self.registrations.get(found)
    }

    /// The builtin operations.
    pub fn builtin_specs(&self) -> &[OperationSpec] {
        &self.builtins
    }

    /// The operation `name`, a builtin or a registration's.
    pub fn operation(&self, name: &str) -> Option<Known<'_>> {
        let entry = self.operations.get(name)?;
        let registration = entry.registration.and_then(|at| self.registrations.get(at));
        let specs = registration.map_or(&self.builtins, |registration| &registration.operations);
        Some(Known { registration, spec: specs.get(entry.place)?, schema: &entry.schema })
    }

    /// The operations of `registrations` that serve `capability`, in the order of names.
    pub fn serving(&self, capability: &str) -> Vec<&str> {
        let specs = self.registrations.iter().flat_map(|registration| &registration.operations);
        let serving = specs.filter(|spec| spec.capabilities.iter().any(|served| served == capability));
        let mut names: Vec<&str> = serving.map(|spec| spec.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// The executor `name` and the registration that has it.
    pub fn executor(&self, name: &str) -> Option<(&Registration, &ExecutorSpec)> {
        let registration = self.registration(name.split('.').next().unwrap_or(name))?;
        let spec = registration.executors.iter().find(|spec| spec.name == name)?;
        Some((registration, spec))
    }

    /// The playbook `name`, whichever registration has it.
    pub fn playbook(&self, name: &str) -> Option<&Playbook> {
        self.registrations.iter().flat_map(|registration| &registration.playbooks).find(|known| known.name == name)
    }

    /// The names that a configuration can grant.
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }
}

impl Known<'_> {
    /// Every violation of the operation's schema by `input`: a place, a rule, a remedy, never a value.
    ///
    /// `Err` says why the schema itself cannot be used.
    pub fn violations(&self, input: &Value) -> Result<Vec<Diagnostic>, &str> {
        self.schema.violations(&self.spec.input, input)
    }
}

fn catalogue(registrations: &[Registration]) -> Catalogue {
    let names: Vec<Vec<&str>> = registrations
        .iter()
        .map(|registration| registration.operations.iter().map(|spec| spec.name.as_str()).collect())
        .collect();
    let listings: Vec<Listing<'_>> = registrations
        .iter()
        .zip(&names)
        .map(|(registration, operations)| Listing {
            extension: &registration.name,
            always: registration.always,
            operations,
            toolsets: &registration.toolsets,
        })
        .collect();
    Catalogue::new(&listings)
}

#[cfg(test)]
mod tests;
