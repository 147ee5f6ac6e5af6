//! Lists of grants: operations, `@toolset`s, and either denied with `!` (S01).
//!
//! A list is kept as it was written, and beside it stands what it comes to in this release and this generation. A denial
//! wins wherever it stands. What a toolset holds is narrowed to the ceiling, never refused (S03).

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::catalogue::{Catalogue, OperationId};

/// A list as it was written, and the operations that it grants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrantList {
    written: Vec<String>,
    /// In the order of names.
    granted: Box<[Arc<str>]>,
}

impl GrantList {
    pub(crate) fn new(written: Vec<String>, granted: &OperationSet, catalogue: &Catalogue) -> Self {
        Self { written, granted: granted.iter().map(|id| Arc::clone(&catalogue.operation(id).name)).collect() }
    }

    /// The entries as the operator spelt them, toolsets unresolved.
    pub fn written(&self) -> &[String] {
        &self.written
    }

    /// Whether the list grants `operation`.
    pub fn contains(&self, operation: &str) -> bool {
        self.granted.binary_search_by(|name| (**name).cmp(operation)).is_ok()
    }

    /// What the list grants, in the order of names.
    pub fn granted(&self) -> impl ExactSizeIterator<Item = &str> {
        self.granted.iter().map(|name| &**name)
    }
}

/// Only what was written: a stored generation says nothing of what one release made of it (S02).
impl Serialize for GrantList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.written.serialize(serializer)
    }
}

/// One entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'e> {
    pub denied: bool,
    pub name: Name<'e>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name<'e> {
    Operation(&'e str),
    Toolset(&'e str),
}

impl<'e> Entry<'e> {
    pub(crate) fn read(text: &'e str) -> Self {
        let (denied, text) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
        let name = text.strip_prefix('@').map_or(Name::Operation(text), Name::Toolset);
        Self { denied, name }
    }
}

/// A set of a catalogue's operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OperationSet(Box<[u64]>);

impl OperationSet {
    pub(crate) fn none(catalogue: &Catalogue) -> Self {
        Self(vec![0; catalogue.operations_len().div_ceil(64)].into())
    }

    pub(crate) fn insert(&mut self, id: OperationId) {
        self.0[id.0 as usize / 64] |= 1 << (id.0 % 64);
    }

    pub(crate) fn contains(&self, id: OperationId) -> bool {
        self.0[id.0 as usize / 64] & (1 << (id.0 % 64)) != 0
    }

    fn keep(&mut self, ceiling: &Self) {
        self.0.iter_mut().zip(&ceiling.0).for_each(|(own, other)| *own &= other);
    }

    fn remove(&mut self, denied: &Self) {
        self.0.iter_mut().zip(&denied.0).for_each(|(own, other)| *own &= !other);
    }

    /// In the order of names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = OperationId> + '_ {
        let words = (0u32..).zip(&self.0);
        words.flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(OperationId(at * 64 + bit))
            })
        })
    }
}

/// What a list comes to, before anybody has said whether it may.
#[derive(Debug, Clone)]
pub(crate) struct Resolution {
    /// The operations that are granted by their own names, each with its place in the list.
    pub explicit: Vec<(usize, OperationId)>,
    /// Whatever is granted, as if every extension were active: what faults and warnings go by.
    pub possible: OperationSet,
    /// Whatever is granted by what is active in this generation (T18).
    pub granted: OperationSet,
    pub denied: OperationSet,
    /// The places of entries that name nothing of this release.
    pub unknown: Vec<usize>,
}

/// Resolves a list: what it names and its toolsets hold, less what it denies.
///
/// `active` says which extensions the generation has. A list with a denial that this release does not know grants
/// nothing: what was meant to be denied cannot be told (S03).
pub(crate) fn resolve<'e>(
    entries: impl IntoIterator<Item = &'e str>,
    catalogue: &Catalogue,
    active: &dyn Fn(&str) -> bool,
) -> Resolution {
    let none = || OperationSet::none(catalogue);
    let mut found =
        Resolution { explicit: Vec::new(), possible: none(), granted: none(), denied: none(), unknown: Vec::new() };
    let mut blind = false;
    for (place, text) in entries.into_iter().enumerate() {
        let Entry { denied, name } = Entry::read(text);
        match name {
            Name::Operation(name) => match (catalogue.operation_id(name), denied) {
                (Some(id), true) => found.denied.insert(id),
                (Some(id), false) => {
                    found.explicit.push((place, id));
                    found.possible.insert(id);
                    if catalogue.operation(id).extension.as_deref().is_none_or(active) {
                        found.granted.insert(id);
                    }
                }
                (None, _) => found.unknown.push(place),
            },
            Name::Toolset(name) => match catalogue.toolset(name) {
                Some(toolset) => {
                    let grants = active(&toolset.extension);
                    for (id, _) in &toolset.members {
                        if denied {
                            found.denied.insert(*id);
                        } else {
                            found.possible.insert(*id);
                            if grants {
                                found.granted.insert(*id);
                            }
                        }
                    }
                }
                None => found.unknown.push(place),
            },
        }
        blind |= denied && found.unknown.last() == Some(&place);
    }
    if blind {
        (found.possible, found.granted) = (none(), none());
    }
    found.possible.remove(&found.denied);
    found.granted.remove(&found.denied);
    found
}

impl Resolution {
    /// Narrowed to what `ceiling` grants: a binding to its scope.
    pub(crate) fn under(mut self, ceiling: &Self) -> Self {
        self.possible.keep(&ceiling.possible);
        self.granted.keep(&ceiling.granted);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Listing, Member, Toolset};
    use conduit_api::Version;
    use proptest::prelude::*;

    const OPERATIONS: [&str; 4] = ["demo.a", "demo.b", "demo.c", "demo.d"];

    fn toolset(name: &str, operations: &[&str]) -> Toolset {
        let operations = operations.iter().map(|o| Member::new(*o, Version::new(1, 0, 0))).collect();
        Toolset { name: name.into(), summary: "For a role".into(), operations }
    }

    fn catalogue(writer: &[&str]) -> Catalogue {
        let toolsets = [toolset("demo.reader", &["demo.a", "emit"]), toolset("demo.writer", writer)];
        Catalogue::new(&[Listing { extension: "demo", always: true, operations: &OPERATIONS, toolsets: &toolsets }])
    }

    fn grants(list: &[&str], ceiling: &[&str], catalogue: &Catalogue, active: bool) -> Vec<String> {
        let active = |_: &str| active;
        let ceiling = resolve(ceiling.iter().copied(), catalogue, &active);
        let granted = resolve(list.iter().copied(), catalogue, &active).under(&ceiling).granted;
        granted.iter().map(|id| catalogue.operation(id).name.to_string()).collect()
    }

    const ALL: [&str; 6] = ["emit", "wait", "demo.a", "demo.b", "demo.c", "demo.d"];

    /// S01
    #[test]
    fn a_list_grants_what_it_names_and_its_toolsets_hold_less_what_it_denies() {
        let catalogue = catalogue(&["demo.b", "demo.c"]);
        let granted = |list: &[&str]| grants(list, &ALL, &catalogue, true);
        assert_eq!(granted(&["wait", "@demo.reader"]), ["demo.a", "emit", "wait"]);
        assert_eq!(granted(&["@demo.reader", "@demo.writer", "!demo.c"]), ["demo.a", "demo.b", "emit"]);
        assert_eq!(granted(&["!@demo.reader", "@demo.writer", "emit", "demo.a"]), ["demo.b", "demo.c"]);
        assert_eq!(granted(&["!emit"]), [""; 0]);
    }

    /// S03
    #[test]
    fn a_toolset_is_narrowed_to_the_ceiling() {
        let catalogue = catalogue(&["demo.b", "demo.c"]);
        assert_eq!(grants(&["@demo.writer"], &["demo.c", "demo.d"], &catalogue, true), ["demo.c"]);
        assert_eq!(grants(&["@demo.writer"], &["@demo.writer", "!demo.b"], &catalogue, true), ["demo.c"]);
    }

    /// T18
    #[test]
    fn what_is_not_active_is_left_out_of_a_grant() {
        let catalogue = catalogue(&["demo.b"]);
        assert_eq!(grants(&["emit", "demo.a", "@demo.writer"], &ALL, &catalogue, false), ["emit"]);
        assert_eq!(grants(&["@demo.reader"], &ALL, &catalogue, false), [""; 0]);
        assert_eq!(grants(&["emit", "!@demo.reader"], &ALL, &catalogue, false), [""; 0], "a denial holds anyway");
    }

    /// S03
    #[test]
    fn a_denial_that_is_not_known_leaves_nothing_granted() {
        let catalogue = catalogue(&["demo.b"]);
        assert_eq!(grants(&["emit", "!@demo.gone"], &ALL, &catalogue, true), [""; 0]);
        assert_eq!(grants(&["emit", "@demo.gone", "demo.gone"], &ALL, &catalogue, true), ["emit"]);
    }

    fn list() -> impl Strategy<Value = Vec<&'static str>> {
        let entries = vec![
            "emit",
            "wait",
            "demo.a",
            "demo.b",
            "demo.c",
            "demo.d",
            "@demo.reader",
            "@demo.writer",
            "!emit",
            "!demo.a",
            "!demo.b",
            "!@demo.reader",
            "!@demo.writer",
        ];
        prop::collection::vec(prop::sample::select(entries), 0..8)
    }

    proptest! {
        /// S01, S03
        #[test]
        fn a_grant_lies_under_its_ceiling_a_denial_wins_and_the_order_decides_nothing(
            (list, shuffled) in list().prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
            ceiling in list(),
        ) {
            let catalogue = catalogue(&["demo.b", "demo.c"]);
            let granted = grants(&list, &ceiling, &catalogue, true);
            prop_assert_eq!(&granted, &grants(&shuffled, &ceiling, &catalogue, true));
            let most = grants(&ceiling, &ceiling, &catalogue, true);
            for name in &granted {
                prop_assert!(most.contains(name));
                let denied = format!("!{name}");
                prop_assert!(!list.contains(&denied.as_str()) && !ceiling.contains(&denied.as_str()));
            }
        }

        /// S02, S04
        #[test]
        fn a_toolset_that_grows_takes_nothing_from_a_grant_that_does_not_deny_it(
            list in list(), ceiling in list(), more in prop::sample::subsequence(OPERATIONS.to_vec(), 0..4),
        ) {
            let denies = |list: &[&str]| list.contains(&"!@demo.writer");
            prop_assume!(!denies(&list) && !denies(&ceiling));
            let grown: Vec<&str> = ["demo.b"].into_iter().chain(more).collect();
            let before = grants(&list, &ceiling, &catalogue(&["demo.b"]), true);
            let after = grants(&list, &ceiling, &catalogue(&grown), true);
            prop_assert!(before.iter().all(|name| after.contains(name)), "{:?} then {:?}", before, after);
        }
    }
}
