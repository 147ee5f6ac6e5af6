//! JSON from an argument, a file or standard input, parsed strictly before anything is sent.

use std::fs::File;
use std::io::Read;

use conduit_api::json;
use conduit_api::limits::BODY_BYTES_MAX;
use serde_json::{Map, Value};

/// The input cannot be used; nothing was sent. The sentence names where it came from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

type Result<T, E = Unusable> = std::result::Result<T, E>;

/// The object that `argument` names; an empty one without an argument.
///
/// `-` is standard input, `@PATH` a file, all else the document itself. Error: [`Unusable`].
pub fn object(argument: Option<&str>) -> Result<Map<String, Value>> {
    let Some(argument) = argument else {
        return Ok(Map::new());
    };
    let (origin, bytes) = bytes(argument)?;
    match json::parse(&bytes, BODY_BYTES_MAX) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Unusable(format!("{origin} is not a JSON object"))),
        Err(refused) => Err(Unusable(format!("{origin} is not accepted as JSON: {refused}"))),
    }
}

/// The bytes that `argument` names, at most one more than a body may have, and what to call them in a message.
pub fn bytes(argument: &str) -> Result<(String, Vec<u8>)> {
    if argument == "-" {
        let origin = String::from("standard input");
        let bytes = bounded(std::io::stdin().lock(), &origin)?;
        Ok((origin, bytes))
    } else if let Some(path) = argument.strip_prefix('@') {
        let origin = format!("the file {path}");
        let file = File::open(path).map_err(|e| Unusable(format!("cannot read {origin}: {e}")))?;
        let bytes = bounded(file, &origin)?;
        Ok((origin, bytes))
    } else {
        Ok(("the JSON argument".into(), argument.as_bytes().to_vec()))
    }
}

/// Reads one byte past the limit at most: enough for the parser to see that it is passed.
fn bounded(source: impl Read, origin: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source
        .take(BODY_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Unusable(format!("cannot read {origin}: {e}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(argument: &str) -> String {
        object(Some(argument)).unwrap_err().to_string()
    }

    #[test]
    fn a_document_is_the_argument_or_a_file() {
        assert!(object(None).unwrap().is_empty());
        assert_eq!(object(Some(r#"{"n":1}"#)).unwrap()["n"], 1);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in.json");
        std::fs::write(&path, r#"{"n":2}"#).unwrap();
        assert_eq!(object(Some(&format!("@{}", path.display()))).unwrap()["n"], 2);
    }

    #[test]
    fn what_is_not_one_strict_object_is_refused_with_its_origin() {
        assert!(refusal("[1]").contains("the JSON argument is not a JSON object"));
        assert!(refusal(r#"{"a":1,"a":2}"#).contains("twice"));
        assert!(refusal(r#"{"a":null}"#).contains("null"));
        assert!(refusal("@/nowhere/at/all").contains("cannot read the file /nowhere/at/all"));
    }

    #[test]
    fn a_file_without_an_end_is_read_up_to_the_limit() {
        assert!(refusal("@/dev/zero").contains("larger than"));
    }
}
