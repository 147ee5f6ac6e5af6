//! What executions swear to, in files that nothing of the suite knows: one line per fact, appended in one write.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The kinds of facts; each has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// A process of a segment began: `execution segment attempt pid`.
    Started,
    /// An emit was acknowledged: `event`.
    Emitted,
    /// A create_work was acknowledged: `work`.
    Created,
    /// The token was rotated, and the old one asked with once more: `execution code-of-the-refusal`.
    Rotated,
    /// A call was refused for good, which no kill may cause: words.
    Refused,
}

impl Fact {
    const fn file(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Emitted => "emitted",
            Self::Created => "created",
            Self::Rotated => "rotated",
            Self::Refused => "refused",
        }
    }
}

/// Appends `line` to the journal in `folder`. Lines of many processes never mix: each is one write to the end.
pub fn note(folder: &Path, fact: Fact, line: &str) -> std::io::Result<()> {
    let mut file = File::options().create(true).append(true).open(folder.join(fact.file()))?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Reads what was added to one kind of fact since it was last asked.
#[derive(Debug)]
pub struct Reader {
    file: PathBuf,
    at: u64,
}

impl Reader {
    pub fn new(folder: &Path, fact: Fact) -> Self {
        Self { file: folder.join(fact.file()), at: 0 }
    }

    /// The new whole lines; a line that is still being written waits for the next time.
    pub fn more(&mut self) -> Vec<String> {
        let mut text = String::new();
        let read = File::open(&self.file).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.at))?;
            file.read_to_string(&mut text)
        });
        if read.is_err() {
            return Vec::new(); // nothing was noted yet
        }
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.at += whole as u64;
        text[..whole].lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gives_each_line_once_and_only_whole_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = Reader::new(folder.path(), Fact::Emitted);
        assert!(reader.more().is_empty());
        note(folder.path(), Fact::Emitted, "a").unwrap();
        note(folder.path(), Fact::Emitted, "b").unwrap();
        assert_eq!(reader.more(), ["a", "b"]);
        File::options().append(true).open(folder.path().join("emitted")).unwrap().write_all(b"half").unwrap();
        assert!(reader.more().is_empty());
        note(folder.path(), Fact::Emitted, "").unwrap();
        assert_eq!(reader.more(), ["half"]);
    }
}
