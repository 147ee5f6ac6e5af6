//! What `os wait` waits for: one JSON document, or flags for the common shapes.

use conduit_api::json;
use conduit_api::toolbelt::{Predicate, WaitInput, WaitMode};
use serde_json::{Map, Value};

use super::args::WaitArgs;
use super::failure::{Failure, Result};
use crate::input;

impl WaitArgs {
    /// The input of `wait`. Errors: usage.
    pub fn input(&self) -> Result<WaitInput> {
        if let Some(document) = &self.document {
            let fields = input::object(Some(document))?;
            return json::from_value(Value::Object(fields))
                .map_err(|refused| Failure::Usage(format!("the document is not a wait: {refused}")));
        }
        if self.predicates.is_empty() {
            return Err(Failure::Usage("nothing to wait for: give --for TYPE, or a JSON document".into()));
        }
        Ok(WaitInput {
            mode: if self.all { WaitMode::All } else { WaitMode::Any },
            predicates: self.predicates.clone(),
            timeout_s: self.timeout,
            watermark: self.watermark,
        })
    }
}

/// Reads `TYPE[,work=ID][,key=K][,source=S]`.
pub fn predicate(text: &str) -> Result<Predicate, String> {
    let mut parts = text.split(',');
    let kind = parts.next().unwrap_or_default();
    if kind.is_empty() || kind.contains('=') {
        return Err("it starts with an event type, as in core.work.finished,work=wrk_...".into());
    }
    let mut predicate =
        Predicate { kind: kind.to_owned(), correlation_key: None, work_id: None, source: None, data: Map::new() };
    for part in parts {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=VALUE"))?;
        let first = match name {
            "work" => predicate.work_id.replace(value.parse().map_err(|e| format!("work: {e}"))?).is_none(),
            "key" => predicate.correlation_key.replace(value.to_owned()).is_none(),
            "source" => predicate.source.replace(value.to_owned()).is_none(),
            _ => return Err(format!("`{name}` is not work, key or source")),
        };
        if !first {
            return Err(format!("`{name}` stands twice"));
        }
    }
    Ok(predicate)
}

/// Reads a whole number of seconds: `90`, `90s`, `5m`, `2h`, `1d`.
pub fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit_s) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1),
        Some(b'm') => (&text[..text.len() - 1], 60),
        Some(b'h') => (&text[..text.len() - 1], 3600),
        Some(b'd') => (&text[..text.len() - 1], 86_400),
        _ => (text, 1),
    };
    let count = number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse::<u64>().ok()).flatten();
    count
        .and_then(|count| count.checked_mul(unit_s))
        .ok_or_else(|| "it is a whole number with s, m, h or d, as in 30s".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::WorkId;

    #[test]
    fn a_predicate_is_a_type_and_what_narrows_it() {
        let work = WorkId::from_parts(1, 2);
        let read = predicate(&format!("core.work.finished,work={work},key=pr/7=a,source=core")).unwrap();
        assert_eq!((read.kind.as_str(), read.work_id), ("core.work.finished", Some(work)));
        assert_eq!((read.correlation_key.as_deref(), read.source.as_deref()), (Some("pr/7=a"), Some("core")));
    }

    #[test]
    fn a_predicate_that_cannot_be_meant_is_refused() {
        for wrong in ["", "key=a", "t,key", "t,colour=red", "t,key=a,key=b", "t,work=exe_1"] {
            assert!(predicate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_is_a_whole_number_with_a_unit() {
        assert_eq!(seconds("30s"), Ok(30));
        assert_eq!(
            (seconds("90"), seconds("5m"), seconds("2h"), seconds("1d")),
            (Ok(90), Ok(300), Ok(7200), Ok(86_400))
        );
        for wrong in ["", "s", "-1s", "+1", "1.5h", "1w", "99999999999999999999", "9999999999999999999d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
