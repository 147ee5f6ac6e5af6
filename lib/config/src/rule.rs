//! The rules that a configuration can break, each with its stable code; and the list that faults are gathered in.

use conduit_api::error::Diagnostic;

/// Most faults that one answer lists. Past it one more says that there are more.
pub const FAULTS_MAX: usize = 500;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// Every rule. Its code stands in `docs/configuration.md` with an example.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub const fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }
        }
    };
}

rules! {
    // The document
    /// Larger than 1 MiB.
    DocumentTooLarge = "document_too_large";
    /// Not one JSON document in UTF-8.
    InvalidJson = "invalid_json";
    /// Nested deeper than a configuration ever is.
    NestedTooDeep = "nested_too_deep";
    /// A key stands twice in one object.
    DuplicateKey = "duplicate_key";
    /// A null.
    NullValue = "null_value";
    /// More faults than one answer lists.
    TooManyFaults = "too_many_faults";

    // One field
    /// A field that this object does not have.
    UnknownField = "unknown_field";
    /// A field that has to be there.
    MissingField = "missing_field";
    /// Another type of JSON value is wanted.
    WrongType = "wrong_type";
    /// A number outside its bounds.
    OutOfRange = "out_of_range";
    /// A text that is not one of those allowed, or is empty, or too long.
    InvalidValue = "invalid_value";
    /// A name that is not spelt as names are.
    InvalidName = "invalid_name";
    /// A name that belongs to the host.
    ReservedName = "reserved_name";
    /// A key that is not a JSON pointer.
    InvalidPointer = "invalid_pointer";
    /// More entries than there can be.
    TooManyEntries = "too_many_entries";
    /// An entry that stands twice in one list.
    DuplicateEntry = "duplicate_entry";
    /// A version that this release does not know.
    UnsupportedVersion = "unsupported_version";

    // Several fields
    /// A field that the other fields leave no meaning for.
    ConflictingField = "conflicting_field";
    /// A name that nothing has: a binding, an executor, an operation, a toolset, an extension, a playbook.
    UnknownReference = "unknown_reference";
    /// An explicit name outside what the scope grants.
    AuthorityWidening = "authority_widening";
    /// An explicit name that the scope denies.
    OperationDenied = "operation_denied";
}

/// The faults found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    found: Vec<Diagnostic>,
    more: bool,
}

impl Faults {
    pub(crate) fn add(&mut self, rule: Rule, pointer: impl Into<String>, remedy: impl Into<String>) {
        self.push(Diagnostic { pointer: pointer.into(), code: rule.code().to_owned(), remedy: remedy.into() });
    }

    pub(crate) fn extend(&mut self, diagnostics: Vec<Diagnostic>) {
        diagnostics.into_iter().for_each(|diagnostic| self.push(diagnostic));
    }

    fn push(&mut self, diagnostic: Diagnostic) {
        if self.found.len() < FAULTS_MAX {
            self.found.push(diagnostic);
        } else {
            self.more = true;
        }
    }

    /// Every fault once, in the order of pointer and code (C01).
    pub(crate) fn sorted(mut self) -> Vec<Diagnostic> {
        if self.more {
            self.found.push(Diagnostic {
                pointer: String::new(),
                code: Rule::TooManyFaults.code().to_owned(),
                remedy: format!("there are more than {FAULTS_MAX} faults; repair these first"),
            });
        }
        self.found.sort();
        self.found.dedup();
        self.found
    }
}

/// `pointer` and below it `key`, as RFC 6901 spells it. A key that is too long to be a name is not repeated.
pub(crate) fn below(pointer: &str, key: &str) -> String {
    const KEY_BYTES_MAX: usize = 256;
    if key.len() > KEY_BYTES_MAX {
        return pointer.to_owned();
    }
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}
