//! Encodes names in the order of ids, appending to the names of an earlier generation.
//!
//! The encoded bytes of the earlier names are copied unchanged, since a name's encoding depends only on the names
//! before it in its block. The order of the earlier names is merged with that of the new names (see `name_order.rs`).

use std::cmp::Ordering;

use crate::directory::name_order::merged_order;
use crate::directory::names::{BLOCK, Names};
use crate::directory::tree::id_width;
use crate::directory::{Bytes, IdSet};
use crate::format::FormatError;
use crate::format::cursor::{put_number, put_string};
use crate::format::names::{common, compare};

/// Names under construction: each is front-coded when it is added.
#[derive(Debug, Default)]
pub(crate) struct NamesWriter {
    /// Names of the earlier generation, which have the first ids.
    base: Option<Names>,
    text: Vec<u8>,
    /// For each block that begins with a new name, its offset in the text of all names.
    blocks: Vec<u8>,
    /// The name that was added last.
    before: Vec<u8>,
    num_samples: u64,
    /// The first id of each ascending run of new names.
    runs: Vec<u64>,
    /// Set if the names, earlier ones included, do not ascend with ids.
    unsorted: bool,
}

impl NamesWriter {
    /// Starts with the names of an earlier generation.
    ///
    /// # Errors
    /// The last name of `base` is damaged.
    pub(crate) fn after(base: &Names) -> Result<NamesWriter, FormatError> {
        let mut before = Vec::new();
        if let Some(last) = base.num_samples().checked_sub(1) {
            base.get(last, &mut before)?;
        }
        Ok(NamesWriter {
            num_samples: base.num_samples(),
            base: Some(base.clone()),
            before,
            unsorted: base.order.is_some(),
            ..NamesWriter::default()
        })
    }

    /// Adds the name of the next id.
    pub(crate) fn push(&mut self, name: &[u8]) {
        let falls = compare(&self.before, name) == Ordering::Greater;
        self.unsorted |= falls;
        if falls || self.runs.is_empty() {
            self.runs.push(self.num_samples);
        }
        if self.num_samples.is_multiple_of(BLOCK) {
            self.put_offset();
            put_string(&mut self.text, name);
        } else {
            let shared = common(&self.before, name);
            put_number(&mut self.text, shared as u64);
            put_string(&mut self.text, &name[shared..]);
        }
        self.before.clear();
        self.before.extend_from_slice(name);
        self.num_samples += 1;
    }

    /// All names, earlier and new.
    ///
    /// # Errors
    /// An earlier name is damaged.
    pub(crate) fn finish(self) -> Result<Names, FormatError> {
        self.finish_in_order(merged_order)
    }

    /// All names; `merge` computes their order, if it is not that of ids.
    fn finish_in_order(
        mut self,
        merge: impl FnOnce(&Names, Option<&Names>, &[u64]) -> Result<Bytes, FormatError>,
    ) -> Result<Names, FormatError> {
        self.put_offset();
        let NamesWriter { base, text, blocks, num_samples, runs, unsorted, .. } = self;
        let (text, blocks) = match &base {
            None => (text.into(), blocks.into()),
            Some(base) => {
                // Drop the end offset of the earlier blocks: `blocks` continues with the next start, or the new end.
                let starts = base.num_samples().div_ceil(BLOCK) as usize * 8;
                (Bytes::joined(&base.text, text), Bytes::joined(&base.blocks[..starts], blocks))
            }
        };
        let mut names = Names { blocks, text, order: None, num_samples };
        if unsorted {
            names.order = Some(merge(&names, base.as_ref(), &runs)?);
        }
        Ok(names)
    }

    fn put_offset(&mut self) {
        let before = self.base.as_ref().map_or(0, |base| base.text.len());
        let offset = (before + self.text.len()) as u64;
        self.blocks.extend_from_slice(&offset.to_le_bytes());
    }
}

impl Names {
    /// A copy of these names in which the ids in `dropped` have empty names.
    ///
    /// # Errors
    /// A name is damaged.
    pub(crate) fn without(&self, dropped: &IdSet) -> Result<Names, FormatError> {
        let mut writer = NamesWriter::default();
        let mut nameless = IdSet::new(self.num_samples());
        let mut cursor = self.cursor(0)?;
        while cursor.advance()? {
            let is_kept = !dropped.contains(cursor.id());
            let name = if is_kept { cursor.name() } else { b"" };
            if name.is_empty() {
                nameless.insert(cursor.id());
            }
            writer.push(name);
        }
        // Empty names come first, in the order of ids, and all others keep their order.
        writer.finish_in_order(|_, _, _| {
            let width = id_width(self.num_samples());
            let mut order = Vec::with_capacity(self.num_samples() as usize * width);
            let mut put = |id: u64| order.extend_from_slice(&id.to_le_bytes()[..width]);
            nameless.iter().for_each(&mut put);
            let all = (0..self.num_samples()).map(|rank| self.at_rank(rank));
            all.filter(|id| !nameless.contains(*id)).for_each(put);
            Ok(order.into())
        })
    }
}
