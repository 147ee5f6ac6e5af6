//! The names that lists of grants can hold: operations with whom they belong to, and toolsets with what they grant.
//!
//! A catalogue is data that is put together once per process; nothing here decides what is granted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use conduit_api::Version;
use conduit_api::toolbelt::operation;
use serde::{Deserialize, Serialize};

/// A named set of operations for one role, as its extension publishes it (S04).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Toolset {
    /// `<extension>.<role>`
    pub name: String,
    pub summary: String,
    pub operations: Vec<Member>,
}

/// An operation of a toolset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub operation: String,
    /// The version of the extension in which the operation joined.
    pub since: Version,
}

impl Member {
    pub fn new(operation: impl Into<String>, since: Version) -> Self {
        Self { operation: operation.into(), since }
    }
}

/// An operation of the catalogue, by its place in the order of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperationId(pub u32);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedOperation {
    pub name: Arc<str>,
    /// The registration that it belongs to; `None` for a builtin.
    pub extension: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedToolset {
    pub name: Arc<str>,
    pub extension: Arc<str>,
    /// What it grants, in the order of names, each with the version in which it joined.
    pub members: Vec<(OperationId, Version)>,
    /// The same by the versions in which they joined, the oldest first.
    pub growth: Vec<Vec<OperationId>>,
}

/// Everything that this release can register, active or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    /// In the order of names.
    operations: Vec<ListedOperation>,
    /// In the order of names.
    toolsets: Vec<ListedToolset>,
    /// Each extension, and whether it is active in a generation that says nothing about it.
    extensions: BTreeMap<Arc<str>, bool>,
}

/// What one extension adds to a catalogue.
#[derive(Debug, Clone, Copy)]
pub struct Listing<'l> {
    pub extension: &'l str,
    /// Whether it is active in a generation that says nothing about it.
    pub always: bool,
    pub operations: &'l [&'l str],
    pub toolsets: &'l [Toolset],
}

impl Catalogue {
    /// The builtin operations alone.
    pub fn builtins() -> Self {
        Self::new(&[])
    }

    /// The builtin operations, and what each extension adds. The listings keep T16 and S04: a name that stands twice is
    /// kept once, and a member of a toolset that is no operation here is left out.
    pub fn new(listings: &[Listing<'_>]) -> Self {
        let mut operations: BTreeMap<&str, Option<Arc<str>>> =
            operation::BUILTINS.iter().map(|name| (*name, None)).collect();
        let mut extensions = BTreeMap::new();
        for listing in listings {
            let extension: Arc<str> = listing.extension.into();
            for name in listing.operations {
                operations.entry(name).or_insert_with(|| Some(Arc::clone(&extension)));
            }
            extensions.insert(extension, listing.always);
        }
        let operations =
            operations.into_iter().map(|(name, extension)| ListedOperation { name: name.into(), extension });
        let mut catalogue = Self { operations: operations.collect(), toolsets: Vec::new(), extensions };
        for listing in listings {
            for toolset in listing.toolsets {
                let found =
                    toolset.operations.iter().filter_map(|m| Some((catalogue.operation_id(&m.operation)?, m.since)));
                let members: BTreeMap<OperationId, Version> = found.collect();
                let mut growth: BTreeMap<Version, Vec<OperationId>> = BTreeMap::new();
                members.iter().for_each(|(id, since)| growth.entry(*since).or_default().push(*id));
                catalogue.toolsets.push(ListedToolset {
                    name: toolset.name.as_str().into(),
                    extension: listing.extension.into(),
                    members: members.into_iter().collect(),
                    growth: growth.into_values().collect(),
                });
            }
        }
        catalogue.toolsets.sort_by(|a, b| a.name.cmp(&b.name));
        catalogue.toolsets.dedup_by(|a, b| a.name == b.name);
        catalogue
    }

    /// Whether this release has the operation, active or not.
    pub fn has_operation(&self, name: &str) -> bool {
        self.operation_id(name).is_some()
    }

    /// Whether this release has the extension, active or not.
    pub fn has_extension(&self, name: &str) -> bool {
        self.extensions.contains_key(name)
    }

    /// The extension that the operation belongs to, `Some(None)` for a builtin; `None` when this release has no such operation.
    pub fn owner_of(&self, operation: &str) -> Option<Option<&str>> {
        Some(self.operation(self.operation_id(operation)?).extension.as_deref())
    }

    /// What the toolset grants, builtins too; `None` when this release has no such toolset.
    pub fn toolset_operations(&self, name: &str) -> Option<impl Iterator<Item = &str>> {
        Some(self.toolset(name)?.members.iter().map(|(id, _)| &*self.operation(*id).name))
    }

    /// Every extension of this release, and whether it is active in a generation that says nothing about it.
    pub fn extensions(&self) -> impl Iterator<Item = (&str, bool)> {
        self.extensions.iter().map(|(name, always)| (&**name, *always))
    }

    /// The extensions that are active where a configuration enables `enabled` and disables `disabled`.
    pub(crate) fn active(&self, said: impl Fn(&str) -> Option<bool>) -> BTreeSet<Arc<str>> {
        let active = self.extensions.iter().filter(|(name, always)| said(name).unwrap_or(**always));
        active.map(|(name, _)| Arc::clone(name)).collect()
    }

    pub(crate) fn operation_id(&self, name: &str) -> Option<OperationId> {
        let found = self.operations.binary_search_by(|listed| (*listed.name).cmp(name)).ok()?;
        u32::try_from(found).ok().map(OperationId)
    }

    pub(crate) fn operation(&self, id: OperationId) -> &ListedOperation {
        &self.operations[id.0 as usize]
    }

    pub(crate) fn operations_len(&self) -> usize {
        self.operations.len()
    }

    pub(crate) fn toolset(&self, name: &str) -> Option<&ListedToolset> {
        let found = self.toolsets.binary_search_by(|listed| (*listed.name).cmp(name)).ok()?;
        self.toolsets.get(found)
    }

    pub(crate) fn toolsets(&self) -> &[ListedToolset] {
        &self.toolsets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S01
    #[test]
    fn a_catalogue_has_the_builtins_and_what_each_extension_adds() {
        let member = |operation: &str| Member::new(operation, Version::new(1, 0, 0));
        let author = Toolset {
            name: "demo.author".into(),
            summary: "Writes".into(),
            operations: vec![member("demo.write"), member("emit"), member("demo.gone")],
        };
        let listing = Listing { extension: "demo", always: false, operations: &["demo.write"], toolsets: &[author] };
        let catalogue = Catalogue::new(&[listing]);
        assert!(catalogue.has_operation("emit") && catalogue.has_operation("demo.write"));
        assert!(!catalogue.has_operation("demo.gone") && !catalogue.has_operation("demo.author"));
        let members = &catalogue.toolset("demo.author").unwrap().members;
        let names: Vec<&str> = members.iter().map(|(id, _)| &*catalogue.operation(*id).name).collect();
        assert_eq!(names, ["demo.write", "emit"]);
        assert_eq!(catalogue.extensions().collect::<Vec<_>>(), [("demo", false)]);
    }
}
