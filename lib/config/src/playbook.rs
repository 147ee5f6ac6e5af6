//! Playbooks, as far as grants go: a name, and the operations that it relies on (S05). What a playbook tells an agent is
//! not read here.

use conduit_api::id::{is_name, is_namespaced};
use serde::{Deserialize, Serialize};

/// Most operations that one playbook lists.
const OPERATIONS_MAX: usize = 1024;

/// A playbook and the operations that it relies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Playbook {
    pub name: String,
    pub operations: Vec<String>,
}

/// Why the text of a playbook cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the playbook's frontmatter cannot be read: line {line} {why}")]
pub struct Unreadable {
    /// Counted from 1.
    pub line: usize,
    pub why: &'static str,
}

impl Playbook {
    /// Reads the frontmatter of a `SKILL.md`: `name` and, if it uses any, `operations: [a, b.c]` or one `- a` per line.
    ///
    /// Other fields are for whoever shows the playbook; these two stand once. The frontmatter is the text between a first
    /// line `---` and the next, in the part of YAML that such files use: `key: value`, and nothing nested but that list.
    pub fn read(text: &str) -> Result<Self, Unreadable> {
        let mut reader = Reader { name: None, operations: None, open: false };
        let mut lines = (1..).zip(text.lines().map(str::trim_end));
        if lines.next().is_none_or(|(_, first)| first != "---") {
            return Err(Unreadable { line: 1, why: "has to be `---`" });
        }
        for (line, text) in lines {
            if text == "---" {
                let name = reader.name.ok_or(Unreadable { line, why: "ends a frontmatter without `name`" })?;
                return Ok(Self { name, operations: reader.operations.unwrap_or_default() });
            }
            reader.take(text).map_err(|why| Unreadable { line, why })?;
        }
        Err(Unreadable { line: text.lines().count(), why: "is the last, and no `---` ends the frontmatter" })
    }
}

struct Reader {
    name: Option<String>,
    operations: Option<Vec<String>>,
    /// Whether lines of the form `- a` go on with `operations`.
    open: bool,
}

impl Reader {
    fn take(&mut self, line: &str) -> Result<(), &'static str> {
        let item = line.trim_start().strip_prefix("- ");
        if let (true, Some(item)) = (self.open, item) {
            return self.operation(item);
        }
        self.open = false;
        if line.is_empty() || line.starts_with([' ', '\t', '#', '-']) {
            return Ok(()); // a blank or a comment, or it belongs to a field of somebody else's
        }
        let Some((key, value)) = line.split_once(':') else { return Err("is not `key: value`") };
        match (key, value.trim()) {
            ("name", _) if self.name.is_some() => Err("is a second `name`"),
            ("name", value) if is_name(value) => {
                self.name = Some(value.to_owned());
                Ok(())
            }
            ("name", _) => Err("has no name: a lower-case letter, then letters, digits, - or _"),
            ("operations", _) if self.operations.is_some() => Err("is a second `operations`"),
            ("operations", "") => {
                (self.operations, self.open) = (Some(Vec::new()), true);
                Ok(())
            }
            ("operations", value) => {
                let inside = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let inside = inside.ok_or("has no list: `operations: [a, b.c]`")?;
                self.operations = Some(Vec::new());
                inside.split(',').filter(|_| !inside.trim().is_empty()).try_for_each(|item| self.operation(item))
            }
            _ => Ok(()),
        }
    }

    fn operation(&mut self, item: &str) -> Result<(), &'static str> {
        let name = item.trim();
        let operations = self.operations.get_or_insert_default();
        if !is_name(name) && !is_namespaced(name) {
            return Err("names something that is no operation");
        }
        if operations.iter().any(|known| known == name) {
            return Err("names an operation twice");
        }
        if operations.len() >= OPERATIONS_MAX {
            return Err("names more operations than a playbook may");
        }
        operations.push(name.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(front: &str) -> Result<Playbook, Unreadable> {
        Playbook::read(&format!("---\n{front}\n---\n# Text\noperations: [not.this]\n"))
    }

    /// S05
    #[test]
    fn the_frontmatter_lists_the_operations_that_a_playbook_uses() {
        let expected = Playbook { name: "author".into(), operations: vec!["emit".into(), "github.pr.view".into()] };
        let inline = "name: author\ndescription: Writes: well.\noperations: [emit, github.pr.view]";
        let lines = "operations:\n  - emit\n- github.pr.view\nname: author\nother:\n  - odd: 1";
        for front in [inline, lines] {
            assert_eq!(read(front).as_ref(), Ok(&expected), "{front}");
        }
        assert_eq!(read("name: none").unwrap().operations, [""; 0]);
        assert_eq!(read("name: none\noperations: []").unwrap().operations, [""; 0]);
    }

    /// S05
    #[test]
    fn a_frontmatter_that_cannot_be_told_is_refused_with_its_line() {
        for (front, line) in [
            ("name: a\noperations: emit", 3),
            ("name: a\noperations: [emit, emit]", 3),
            ("name: a\noperations: [Emit]", 3),
            ("name: a\noperations: [emit]\noperations: [wait]", 4),
            ("name: a\noperations:\n  - emit\n  - no such", 5),
            ("name: A b", 2),
            ("name: a\nname: b", 3),
            ("operations: [emit]", 3),
            ("name: a\njust words", 3),
        ] {
            assert_eq!(read(front).unwrap_err().line, line, "{front}");
        }
        assert!(
            Playbook::read("").is_err() && Playbook::read("# Text").is_err() && Playbook::read("---\nname: a").is_err()
        );
    }
}
