//! What a power cut leaves of the files: all that was synced, and of the rest whatever the disk likes.

use std::collections::{BTreeMap, BTreeSet};

use crate::disk::Op;

/// Bytes that are on the disk together or not at all.
const SECTOR: usize = 512;

/// Numbers that look random and are the same for the same seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// How much of what was not synced reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Nothing,
    Everything,
    /// Each write whole, in part, or not at all; each name as it was at some moment since it was synced.
    Some,
}

/// The disk while the operations are gone through.
#[derive(Default)]
pub struct Disk {
    files: BTreeMap<usize, File>,
    /// What is in the folder for certain, and what happened to it since.
    names: BTreeMap<&'static str, usize>,
    renamed: Vec<(usize, &'static str, Option<usize>)>,
    told: BTreeSet<i64>,
}

#[derive(Default)]
struct File {
    /// What is on the disk for certain, and what happened to it since.
    kept: Vec<u8>,
    since: Vec<(usize, Change)>,
}

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Truncate { len: usize },
}

impl Change {
    /// Carries out as much of the change as `keeps` says of each of its sectors.
    fn apply(&self, to: &mut Vec<u8>, mut keeps: impl FnMut() -> bool) {
        match self {
            Self::Write { at, bytes } => {
                let mut from = 0;
                while from < bytes.len() {
                    let end = ((at + from) / SECTOR + 1) * SECTOR;
                    let upto = (end - at).min(bytes.len());
                    if keeps() {
                        to.resize(to.len().max(at + upto), 0);
                        to[at + from..at + upto].copy_from_slice(&bytes[from..upto]);
                    }
                    from = upto;
                }
            }
            Self::Truncate { len } if keeps() => to.resize(*len, 0),
            Self::Truncate { .. } => {}
        }
    }
}

impl Disk {
    /// Goes on by one operation, which stands at `index`.
    pub fn then(&mut self, index: usize, op: &Op) {
        match op {
            Op::Create { name, file } => self.renamed.push((index, name, Some(*file))),
            Op::Remove { name } => self.renamed.push((index, name, None)),
            Op::Write { file, at, bytes } => {
                let change = Change::Write { at: *at, bytes: bytes.clone() };
                self.files.entry(*file).or_default().since.push((index, change));
            }
            Op::Truncate { file, len } => {
                self.files.entry(*file).or_default().since.push((index, Change::Truncate { len: *len }));
            }
            Op::Synced { file: Some(file), began } => {
                let file = self.files.entry(*file).or_default();
                let covered = file.since.partition_point(|(index, _)| index < began);
                for (_, change) in file.since.drain(..covered) {
                    change.apply(&mut file.kept, || true);
                }
            }
            Op::Synced { file: None, began } => {
                let covered = self.renamed.partition_point(|(index, ..)| index < began);
                for (_, name, file) in self.renamed.drain(..covered) {
                    point(&mut self.names, name, file);
                }
            }
            Op::Told { row } => {
                self.told.insert(*row);
            }
        }
    }

    /// The rows that someone was told of.
    pub const fn told(&self) -> &BTreeSet<i64> {
        &self.told
    }

    /// The files that are found after a power cut now.
    pub fn cut(&self, fate: Fate, dice: &mut Dice) -> BTreeMap<&'static str, Vec<u8>> {
        let mut names = self.names.clone();
        let mut upto = BTreeMap::new();
        for (index, name, file) in &self.renamed {
            let end = upto.entry(*name).or_insert_with(|| match fate {
                Fate::Nothing => 0,
                Fate::Everything => usize::MAX,
                Fate::Some => match dice.below(2) {
                    0 => 0,
                    _ => self.renamed[dice.below(self.renamed.len() as u64) as usize].0 + 1,
                },
            });
            if *index < *end {
                point(&mut names, name, *file);
            }
        }
        let empty = File::default();
        let bytes = |(name, file)| (name, self.files.get(&file).unwrap_or(&empty).cut(fate, dice));
        names.into_iter().map(bytes).collect()
    }
}

impl File {
    fn cut(&self, fate: Fate, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.kept.clone();
        for (_, change) in &self.since {
            match (fate, dice.below(3)) {
                (Fate::Nothing, _) | (Fate::Some, 0) => {}
                (Fate::Everything, _) | (Fate::Some, 1) => change.apply(&mut bytes, || true),
                (Fate::Some, _) => change.apply(&mut bytes, || dice.below(2) == 0),
            }
        }
        bytes
    }
}

fn point(names: &mut BTreeMap<&'static str, usize>, name: &'static str, file: Option<usize>) {
    match file {
        Some(file) => names.insert(name, file),
        None => names.remove(name),
    };
}
