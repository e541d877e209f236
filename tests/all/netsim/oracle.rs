//! Compares what the host was asked and what it answered with the target's actual contents: checks the rules
//! at the head of `src/io/qpair/remote/mod.rs`.

use std::ops::Range;

use super::schedule::namespace_of;
use super::subsystem::{BLOCK_LEN, Subsystem, number_at};

/// An I/O and its history.
struct Asked {
    kind: Kind,
    blocks: Range<u64>,
    namespace: usize,
    is_done: bool,
    /// The writes that had completed when it was submitted.
    writes_done: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    /// A read that must succeed, because nothing is wrong.
    Probe,
    Write,
    Flush,
}

/// A completion.
pub(crate) struct Outcome<'a> {
    pub(crate) tag: u64,
    pub(crate) buf: &'a [u8],
    pub(crate) is_ok: bool,
    /// The controller of the main session, if one is live.
    pub(crate) live: Option<u16>,
}

/// A completed write that no flush has reported on.
struct Unsettled {
    tag: u64,
    namespace: usize,
    /// The controller that executed it.
    writer: Option<u16>,
}

/// Tags are indexes in the list of submitted I/Os, from 1. A write writes its tag.
pub(crate) struct Oracle {
    namespaces: usize,
    asked: Vec<Asked>,
    unsettled: Vec<Unsettled>,
    done: Vec<u64>,
    pub(crate) num_flushes: u64,
    pub(crate) num_failed: u64,
    pub(crate) num_failed_flushes: u64,
    /// Writes that were answered after the end of the session in which they were sent.
    pub(crate) num_late: u64,
    pub(crate) broken_rules: Vec<String>,
}

impl Oracle {
    pub(crate) fn new(namespaces: usize) -> Oracle {
        Oracle {
            namespaces,
            asked: Vec::new(),
            unsettled: Vec::new(),
            done: Vec::new(),
            num_flushes: 0,
            num_failed: 0,
            num_failed_flushes: 0,
            num_late: 0,
            broken_rules: Vec::new(),
        }
    }

    fn ask(&mut self, kind: Kind, blocks: Range<u64>) -> u64 {
        let namespace = namespace_of(blocks.start, self.namespaces);
        self.ask_of(kind, blocks, namespace)
    }

    fn ask_of(&mut self, kind: Kind, blocks: Range<u64>, namespace: usize) -> u64 {
        let writes_done = self.done.clone();
        self.asked.push(Asked { kind, blocks, namespace, is_done: false, writes_done });
        self.asked.len() as u64
    }

    /// The tag of a read that is submitted now; `is_probe`: it must succeed.
    pub(crate) fn read(&mut self, blocks: Range<u64>, is_probe: bool) -> u64 {
        self.ask(if is_probe { Kind::Probe } else { Kind::Read }, blocks)
    }

    /// The tag of a write that is submitted now, the only one to these blocks.
    pub(crate) fn write(&mut self, blocks: Range<u64>) -> u64 {
        self.ask(Kind::Write, blocks)
    }

    /// The tag of a flush of a namespace that is submitted now.
    pub(crate) fn flush(&mut self, namespace: usize) -> u64 {
        self.num_flushes += 1;
        self.ask_of(Kind::Flush, 0..0, namespace)
    }

    /// The member of these I/Os was removed and must get no completions. Returns the blocks that it was
    /// writing.
    pub(crate) fn abandon(&mut self, tags: &[u64]) -> Vec<Range<u64>> {
        let mut writes = Vec::new();
        for &tag in tags {
            let asked = &mut self.asked[tag as usize - 1];
            asked.is_done = true;
            if asked.kind == Kind::Write {
                writes.push(asked.blocks.clone());
            }
        }
        writes
    }

    /// Checks a completion.
    pub(crate) fn complete(&mut self, outcome: Outcome<'_>, target: &Subsystem) {
        let Outcome { tag, buf, is_ok, live } = outcome;
        let asked = &mut self.asked[tag as usize - 1];
        if std::mem::replace(&mut asked.is_done, true) {
            return self.broken_rules.push(format!("{tag} is done twice"));
        }
        let asked = &self.asked[tag as usize - 1];
        if asked.blocks.clone().count() * BLOCK_LEN != buf.len() {
            let message = format!("{tag} comes with {} bytes", buf.len());
            return self.broken_rules.push(message);
        }
        self.num_failed += u64::from(!is_ok);
        self.num_failed_flushes += u64::from(!is_ok && asked.kind == Kind::Flush);
        match (asked.kind, is_ok) {
            (Kind::Probe, false) => {
                self.broken_rules.push(format!("all is well again, and {tag} has failed"));
            }
            (Kind::Read | Kind::Probe, true) => self.check_read(tag, buf, target),
            (Kind::Write, true) => {
                self.done.push(tag);
                let namespace = asked.namespace;
                let writer = target.writer(tag);
                self.num_late += u64::from(writer != live);
                self.unsettled.push(Unsettled { tag, namespace, writer });
            }
            (Kind::Flush, true) => self.check_flush(tag, target),
            // It has reported everything on its namespace up to the end of the previous session.
            (Kind::Flush, false) => {
                let namespace = asked.namespace;
                self.unsettled.retain(|write| write.namespace != namespace || write.writer == live);
            }
            (Kind::Read | Kind::Write, false) => {}
        }
    }

    fn check_read(&mut self, tag: u64, buf: &[u8], target: &Subsystem) {
        let asked = &self.asked[tag as usize - 1];
        for (lba, block) in asked.blocks.clone().zip(buf.chunks_exact(BLOCK_LEN)) {
            let value = number_at(block, 0);
            let place = number_at(block, 8);
            let is_of = |write: &&Asked| write.kind == Kind::Write && write.blocks.contains(&lba);
            let write = (1..).zip(&self.asked).find(|(_, asked)| is_of(asked));
            let expected = write.map_or(0, |(number, _)| number);
            let written = write.is_some_and(|(number, write)| {
                asked.writes_done.contains(&number) && !target.is_lost(write.blocks.clone(), number)
            });
            if place != lba || value != 0 && value != expected || value == 0 && written {
                let message = format!(
                    "read {tag} of block {lba} has block {place} by {value}, not by {expected}"
                );
                return self.broken_rules.push(message);
            }
        }
    }

    fn check_flush(&mut self, tag: u64, target: &Subsystem) {
        let Asked { writes_done, namespace, .. } = &self.asked[tag as usize - 1];
        let is_covered =
            |write: &Unsettled| write.namespace == *namespace && writes_done.contains(&write.tag);
        for write in self.unsettled.iter().filter(|write| is_covered(write)) {
            let blocks = self.asked[write.tag as usize - 1].blocks.clone();
            if !target.is_durable(blocks, write.tag) {
                let message = format!("flush {tag} says that write {} is durable", write.tag);
                self.broken_rules.push(message);
            }
        }
        self.unsettled.retain(|write| !is_covered(write));
    }
}
