//! Objects as tables of fields: which there are, what each may hold, and what stands in when it is absent.
//!
//! [`Object::read`] checks one JSON object against its table and notes every fault. What it hands out afterwards is
//! sound or a stand-in: a configuration with any fault is refused as a whole, so a stand-in is never used.

use std::collections::HashSet;

use conduit_api::id::is_name;
use conduit_api::limits::NAME_BYTES_MAX;
use serde_json::{Map, Value};

use crate::rule::{Faults, Rule, below};

/// One field of an object.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub presence: Presence,
}

/// What a field may hold.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `true` or `false`.
    Switch,
    /// A whole number from `min` to `max`.
    Count { min: u64, max: u64 },
    /// A text that keeps a rule.
    Text(Text),
    /// A list of distinct texts that keep a rule.
    Texts { text: Text, max: usize },
    /// A list of objects, each with a table of its own.
    Objects { max: usize },
    /// An object whose keys are names.
    Named { max: usize },
    /// An object with a table of its own, or one that the executor checks.
    Object,
    /// An object whose keys are JSON pointers.
    Pointers { max: usize },
}

/// The rule of a text.
#[derive(Debug, Clone, Copy)]
pub enum Text {
    /// `[a-z][a-z0-9_-]{0,63}`.
    Name,
    /// One name, or several joined by dots.
    Dotted,
    /// Like `Dotted`, and not of the host's family `core`.
    Family,
    /// Two or more names joined by dots, or `family.*`.
    Pattern,
    /// `Dotted`, or `@` and a toolset, or either after `!`.
    Grant,
    /// Any text of 1 to this many bytes.
    Free(usize),
    /// One of these.
    OneOf(&'static [&'static str]),
}

/// Whether a field has to be there, and what stands in when it is not.
#[derive(Debug, Clone, Copy)]
pub enum Presence {
    Required,
    /// Absent means that nothing is asked for.
    Optional,
    /// `true`.
    On,
    /// This number.
    Number(u64),
    /// An empty list or object.
    Empty,
}

const NAME_REMEDY: &str = "use a lower-case letter, then at most 63 lower-case letters, digits, - or _";
const DOTTED_REMEDY: &str = "use names joined by dots, as in demo.survey";
const GRANT_REMEDY: &str = "use an operation as in emit, a toolset as in @demo.author, or either denied as in !emit";
const CORE_REMEDY: &str = "choose another family; core belongs to the host";

impl Text {
    /// The rule that `text` breaks, and what to do; `None` when it keeps its own.
    fn fault(self, text: &str) -> Option<(Rule, String)> {
        let invalid = |remedy: &str| Some((Rule::InvalidName, remedy.to_owned()));
        match self {
            Self::Name if is_name(text) => None,
            Self::Name => invalid(NAME_REMEDY),
            Self::Dotted if is_dotted(text) => None,
            Self::Dotted => invalid(DOTTED_REMEDY),
            Self::Grant if is_grant(text) => None,
            Self::Grant => invalid(GRANT_REMEDY),
            Self::Family if !is_dotted(text) => invalid(DOTTED_REMEDY),
            Self::Family if conduit_api::id::in_family(text, "core") => {
                Some((Rule::ReservedName, CORE_REMEDY.to_owned()))
            }
            Self::Family => None,
            Self::Pattern if is_dotted(text.strip_suffix(".*").unwrap_or(text)) && text.contains('.') => None,
            Self::Pattern => {
                invalid("use an event type as in demo.survey.requested, or demo.survey.* for all below it")
            }
            Self::Free(max) if !text.is_empty() && text.len() <= max => None,
            Self::Free(max) => Some((Rule::InvalidValue, format!("use a text of 1 to {max} bytes"))),
            Self::OneOf(all) if all.contains(&text) => None,
            Self::OneOf(all) => Some((Rule::InvalidValue, format!("use one of {}", all.join(", ")))),
        }
    }
}

/// Whether `text` is one name, or several joined by dots.
fn is_dotted(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && text.split('.').all(is_name)
}

/// Whether `text` is an entry of a list of grants: an operation, or `@` and a toolset, either denied by a `!` before it.
fn is_grant(text: &str) -> bool {
    let name = text.strip_prefix('!').unwrap_or(text);
    match name.strip_prefix('@') {
        Some(toolset) => is_dotted(toolset) && toolset.contains('.'),
        None => is_dotted(name),
    }
}

/// Whether `text` is a JSON pointer (RFC 6901) to something inside a document.
fn is_pointer(text: &str) -> bool {
    text.starts_with('/')
        && text.len() <= 256
        && text.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'))
}

/// One object that was checked against its table.
#[derive(Debug)]
pub(crate) struct Object<'v> {
    pub pointer: String,
    table: &'static [Field],
    /// Beside each field of the table: its value, when it is there and sound.
    sound: Vec<Option<&'v Value>>,
}

/// The sound texts of a list, and whether the list has no other entries.
#[derive(Debug, Default)]
pub(crate) struct Texts<'v> {
    /// Where the list stands.
    at: String,
    /// Each text with its index in the list.
    entries: Vec<(usize, &'v str)>,
    pub whole: bool,
}

impl<'v> Texts<'v> {
    pub(crate) fn texts(&self) -> impl ExactSizeIterator<Item = &'v str> + '_ {
        self.entries.iter().map(|(_, text)| *text)
    }

    /// The text at a place of [`Texts::texts`].
    pub(crate) fn text(&self, place: usize) -> Option<&'v str> {
        self.entries.get(place).map(|(_, text)| *text)
    }

    /// The pointer to the text at a place of [`Texts::texts`]; spelt out only where a fault is noted.
    pub(crate) fn pointer(&self, place: usize) -> String {
        self.entries.get(place).map_or_else(|| self.at.clone(), |(index, _)| format!("{}/{index}", self.at))
    }
}

impl<'v> Object<'v> {
    /// Checks the object at `pointer` against `table`; `None` when it is no object.
    pub(crate) fn read(value: &'v Value, pointer: &str, table: &'static [Field], faults: &mut Faults) -> Option<Self> {
        let members = object(value, pointer, faults)?;
        for key in members.keys().filter(|key| table.iter().all(|field| field.name != key.as_str())) {
            let known: Vec<&str> = table.iter().map(|field| field.name).collect();
            faults.add(
                Rule::UnknownField,
                below(pointer, key),
                format!("remove it, or use one of {}", known.join(", ")),
            );
        }
        let sound = table.iter().map(|field| member(members, pointer, field, faults)).collect();
        Some(Self { pointer: pointer.to_owned(), table, sound })
    }

    pub(crate) fn at(&self, name: &str) -> String {
        below(&self.pointer, name)
    }

    fn find(&self, name: &str) -> (Option<&'v Value>, Presence) {
        let known = self.table.iter().zip(&self.sound).find(|(field, _)| field.name == name);
        known.map_or((None, Presence::Optional), |(field, value)| (*value, field.presence))
    }

    /// The value of the field, when it is there and sound.
    pub(crate) fn get(&self, name: &str) -> Option<&'v Value> {
        self.find(name).0
    }

    /// Whether the field is sound or absent in `written`, the object that was read: not there with a fault.
    pub(crate) fn readable(&self, name: &str, written: &Value) -> bool {
        self.get(name).is_some() || written.get(name).is_none()
    }

    pub(crate) fn switch(&self, name: &str) -> bool {
        let (value, presence) = self.find(name);
        value.and_then(Value::as_bool).unwrap_or(matches!(presence, Presence::On))
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        match self.find(name) {
            (None, Presence::Number(number)) => number,
            (value, _) => value.and_then(Value::as_u64).unwrap_or_default(),
        }
    }

    /// A count whose table bounds it below 2^32.
    pub(crate) fn count_u32(&self, name: &str) -> u32 {
        u32::try_from(self.count(name)).unwrap_or(u32::MAX)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'v str> {
        self.get(name).and_then(Value::as_str)
    }

    /// The members of the named object; none when it is absent.
    pub(crate) fn members(&self, name: &str) -> impl Iterator<Item = (&'v String, &'v Value)> + use<'v> {
        self.get(name).and_then(Value::as_object).into_iter().flatten()
    }

    /// The items of a list; none when it is absent.
    pub(crate) fn items(&self, name: &str) -> &'v [Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The texts of a list in `written`, the object that was read.
    pub(crate) fn texts(&self, name: &str, written: &Value, faults: &mut Faults) -> Texts<'v> {
        let Some((field, value)) = self.table.iter().zip(&self.sound).find(|(field, _)| field.name == name) else {
            return Texts::default();
        };
        let Kind::Texts { text: rule, .. } = field.kind else { return Texts::default() };
        let mut texts = Texts { at: self.at(name), entries: Vec::new(), whole: self.readable(name, written) };
        let mut known = HashSet::new();
        for (index, item) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
            match item.as_str().filter(|text| rule.fault(text).is_none()) {
                Some(entry) if known.insert(entry) => texts.entries.push((index, entry)),
                Some(_) => {
                    let pointer = format!("{}/{index}", texts.at);
                    faults.add(Rule::DuplicateEntry, pointer, "keep one of the entries of this name");
                }
                None => {
                    text(item, &format!("{}/{index}", texts.at), rule, faults);
                    texts.whole = false;
                }
            }
        }
        texts
    }
}

/// The value of `field`, when it is there and sound; the entries of lists and maps are checked where they are read.
fn member<'v>(members: &'v Map<String, Value>, pointer: &str, field: &Field, faults: &mut Faults) -> Option<&'v Value> {
    let at = below(pointer, field.name);
    let Some(value) = members.get(field.name) else {
        if matches!(field.presence, Presence::Required) {
            faults.add(Rule::MissingField, at, "add the field");
        }
        return None;
    };
    let sound = match field.kind {
        Kind::Switch => typed(value, &at, value.is_boolean(), "true or false", faults),
        Kind::Count { min, max } => count(value, &at, min, max, faults),
        Kind::Text(rule) => text(value, &at, rule, faults).is_some(),
        Kind::Texts { max, .. } | Kind::Objects { max } => {
            typed(value, &at, value.is_array(), "a list", faults)
                && bounded(value.as_array().map_or(0, Vec::len), max, &at, faults)
        }
        Kind::Object => object(value, &at, faults).is_some(),
        Kind::Named { max } => keyed(value, &at, max, faults, |key| Text::Name.fault(key)),
        Kind::Pointers { max } => keyed(value, &at, max, faults, |key| {
            let remedy = "use a JSON pointer into the data, as in /repository/name, with ~0 for ~ and ~1 for /";
            (!is_pointer(key)).then(|| (Rule::InvalidPointer, remedy.to_owned()))
        }),
    };
    sound.then_some(value)
}

/// Notes `wrong_type` unless `right`. A null was noted when the document was read.
fn typed(value: &Value, pointer: &str, right: bool, wanted: &str, faults: &mut Faults) -> bool {
    if !right && !value.is_null() {
        faults.add(Rule::WrongType, pointer, format!("use {wanted}"));
    }
    right
}

fn bounded(entries: usize, max: usize, pointer: &str, faults: &mut Faults) -> bool {
    if entries > max {
        faults.add(Rule::TooManyEntries, pointer, format!("keep at most {max} entries"));
    }
    entries <= max
}

fn count(value: &Value, pointer: &str, min: u64, max: u64, faults: &mut Faults) -> bool {
    let wanted = format!("a whole number from {min} to {max}");
    if !typed(value, pointer, value.is_number(), &wanted, faults) {
        return false;
    }
    let sound = value.as_u64().is_some_and(|number| (min..=max).contains(&number));
    if !sound {
        faults.add(Rule::OutOfRange, pointer, format!("use {wanted}"));
    }
    sound
}

fn text<'v>(value: &'v Value, pointer: &str, rule: Text, faults: &mut Faults) -> Option<&'v str> {
    let Some(text) = value.as_str() else {
        typed(value, pointer, false, "a text", faults);
        return None;
    };
    match rule.fault(text) {
        None => Some(text),
        Some((broken, remedy)) => {
            faults.add(broken, pointer, remedy);
            None
        }
    }
}

pub(crate) fn object<'v>(value: &'v Value, pointer: &str, faults: &mut Faults) -> Option<&'v Map<String, Value>> {
    typed(value, pointer, value.is_object(), "an object", faults);
    value.as_object()
}

/// Checks each key of an object; the object stays readable, the reader skips what is not a key.
fn keyed(
    value: &Value,
    pointer: &str,
    max: usize,
    faults: &mut Faults,
    fault: impl Fn(&str) -> Option<(Rule, String)>,
) -> bool {
    let Some(members) = object(value, pointer, faults) else { return false };
    for key in members.keys() {
        if let Some((rule, remedy)) = fault(key) {
            faults.add(rule, below(pointer, key), remedy);
        }
    }
    bounded(members.len(), max, pointer, faults)
}
