//! The files of a folder after a power loss.
//!
//! The model is the weakest that POSIX allows, as in ALICE and CrashMonkey. What was written to a file
//! since its last `fsync` or `fdatasync` may be there in part, page by page and in any order, and so may
//! its length. A name that was created, renamed or removed since the folder's last `fsync` may be there or
//! not, each independently. Syncing a file does not sync its name.

use std::collections::BTreeMap;

use super::strace::Call;
use crate::support::random::Random;

/// Names and contents.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A folder whose history is tracked.
#[derive(Clone, Default)]
pub struct Folder {
    /// The durable contents of each file, and the changes since.
    files: Vec<File>,
    /// The durable names, and the changes since.
    names: BTreeMap<String, usize>,
    changes: Vec<Change>,
    /// Names as the process sees them.
    seen: BTreeMap<String, usize>,
}

#[derive(Clone, Default)]
struct File {
    durable: Vec<u8>,
    edits: Vec<Edit>,
    /// The offset of the next `write`.
    position: usize,
}

#[derive(Clone)]
enum Edit {
    Write(usize, Vec<u8>),
    Resize(usize),
}

#[derive(Clone)]
enum Change {
    Name(String, usize),
    Rename(String, String, usize),
    Remove(String),
}

impl Folder {
    pub fn holding(files: &Files) -> Folder {
        let mut folder = Folder::default();
        for (name, bytes) in files {
            folder.names.insert(name.clone(), folder.files.len());
            folder.files.push(File { durable: bytes.clone(), ..File::default() });
        }
        folder.seen.clone_from(&folder.names);
        folder
    }

    /// Applies one call.
    pub fn follow(&mut self, call: &Call) {
        match call.clone() {
            Call::Create { name, truncates } => {
                let made = self.files.len();
                let number = *self.seen.entry(name.clone()).or_insert(made);
                if number == made {
                    self.files.push(File::default());
                    self.changes.push(Change::Name(name, number));
                } else if truncates {
                    self.files[number].edits.push(Edit::Resize(0));
                }
                self.files[number].position = 0;
            }
            Call::Write { name, offset, bytes } => {
                let file = &mut self.files[self.seen[&name]];
                let start = offset.unwrap_or(file.position);
                if offset.is_none() {
                    file.position += bytes.len();
                }
                // A page, or the written part of it, is atomic.
                let mut at = 0;
                while at < bytes.len() {
                    let len = (PAGE_BYTES - (start + at) % PAGE_BYTES).min(bytes.len() - at);
                    file.edits.push(Edit::Write(start + at, bytes[at..at + len].to_vec()));
                    at += len;
                }
            }
            Call::Resize { name, len } => {
                self.files[self.seen[&name]].edits.push(Edit::Resize(len));
            }
            Call::Sync { name } => {
                let file = &mut self.files[self.seen[&name]];
                file.durable = file.with(|_| true);
                file.edits.clear();
            }
            Call::SyncFolder => {
                self.names = self.names_with(|_| true);
                self.changes.clear();
            }
            Call::Rename { from, to } => {
                let number = self.seen.remove(&from).expect("it was there to be renamed");
                self.seen.insert(to.clone(), number);
                self.changes.push(Change::Rename(from, to, number));
            }
            Call::Unlink { name } => {
                self.seen.remove(&name);
                self.changes.push(Change::Remove(name));
            }
        }
    }

    /// The number of operations that may be lost: changes of names, then edits of all files.
    fn at_stake(&self) -> usize {
        self.changes.len() + self.files.iter().map(|file| file.edits.len()).sum::<usize>()
    }

    /// States that a power loss may leave now: all possible ones if they are few; else those with everything, with
    /// nothing, without each change or with it alone, and as many random draws as requested.
    pub fn losses(&self, draws: usize, random: &mut Random) -> Vec<Files> {
        let at_stake = self.at_stake();
        if at_stake <= MOST_TRIED_ALL {
            return (0..1usize << at_stake).map(|set| self.left(|at| set >> at & 1 == 1)).collect();
        }
        let mut found = vec![self.left(|_| true), self.left(|_| false)];
        for this in [random.below(at_stake as u64) as usize, self.changes.len(), at_stake - 1] {
            found.extend([self.left(|at| at == this), self.left(|at| at != this)]);
        }
        // Data without names, and names without data.
        let names = self.changes.len();
        found.extend([self.left(|at| at < names), self.left(|at| at >= names)]);
        // Each prefix and suffix of the changes: pages are written back in order or in reverse.
        for _ in 0..draws {
            let luck = [10, 50, 90][random.below(3) as usize];
            let bits: Vec<bool> = (0..at_stake).map(|_| random.below(100) < luck).collect();
            found.push(self.left(|at| bits[at]));
            let until = random.below(at_stake as u64) as usize;
            found.push(self.left(|at| at < names || at >= until));
            found.push(self.left(|at| at < until));
        }
        found
    }

    fn left(&self, kept: impl Fn(usize) -> bool) -> Files {
        let names = self.names_with(&kept);
        let mut first = self.changes.len();
        let mut contents = Vec::with_capacity(self.files.len());
        for file in &self.files {
            contents.push(file.with(|at| kept(first + at)));
            first += file.edits.len();
        }
        names.into_iter().map(|(name, number)| (name, contents[number].clone())).collect()
    }

    fn names_with(&self, kept: impl Fn(usize) -> bool) -> BTreeMap<String, usize> {
        let mut names = self.names.clone();
        for (_, change) in self.changes.iter().enumerate().filter(|(at, _)| kept(*at)) {
            match change {
                Change::Name(name, number) => {
                    names.insert(name.clone(), *number);
                }
                Change::Rename(from, to, number) => {
                    names.remove(from);
                    names.insert(to.clone(), *number);
                }
                Change::Remove(name) => {
                    names.remove(name);
                }
            }
        }
        names
    }
}

impl File {
    fn with(&self, kept: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (_, edit) in self.edits.iter().enumerate().filter(|(at, _)| kept(*at)) {
            match edit {
                Edit::Resize(len) => bytes.resize(*len, 0),
                Edit::Write(start, new) => {
                    bytes.resize(bytes.len().max(start + new.len()), 0);
                    bytes[*start..start + new.len()].copy_from_slice(new);
                }
            }
        }
        bytes
    }
}

const PAGE_BYTES: usize = 4096;

/// 2^7 losses per moment are few enough.
const MOST_TRIED_ALL: usize = 7;
