//! The possible disk contents after a power loss: each prefix of a history, combined with each subset, or
//! as many subsets as time permits, of what was not yet durable at that point.
//!
//! A write is durable once a flush of its disk has completed that was submitted after the write had
//! completed: NVMe guarantees no more, and neither does a file system. Until then any part of it may have
//! reached the medium, in sectors of 512 bytes or blocks of 4,096, independent of what was submitted before
//! or after it.

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::disk::{Content, Event, Page, Write};
use crate::support::random::Random;

/// A moment at which power may be lost.
pub struct Cut {
    /// Commands that had reported success.
    pub acknowledged: usize,
    /// Number of the event before it.
    pub event: usize,
    /// The durable contents of each disk.
    durable: Vec<Content>,
    /// Writes that may or may not be on the medium, in the order of submission.
    writes: Vec<Write>,
    /// How thoroughly to check it.
    pub thoroughness: Thoroughness,
}

/// How thoroughly to check a cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Thoroughness {
    /// A write was added to those of the previous cut: with it, without it, only it, half of it.
    Newest,
    /// As many subsets as time permits.
    Many,
}

/// The cuts of a history that began with `start`, in order.
pub fn cuts(start: &[Content], events: &[Event]) -> Vec<Cut> {
    let mut cuts = Vec::new();
    let mut durable = start.to_vec();
    let mut acknowledged = 0;
    let mut writes: Vec<Write> = Vec::new();
    let mut ended: HashMap<usize, usize> = HashMap::new();
    for (event, what) in events.iter().enumerate() {
        let cut = |durable: &[Content], writes: &[Write], acknowledged, thoroughness| {
            let durable = durable.to_vec();
            let writes = writes.to_vec();
            Cut { acknowledged, event, durable, writes, thoroughness }
        };
        match what {
            Event::Begin(write) => {
                writes.push(write.clone());
                cuts.push(cut(&durable, &writes, acknowledged, Thoroughness::Newest));
            }
            Event::End(number) => {
                ended.insert(*number, event);
            }
            Event::Flush { disk, begun } => {
                cuts.push(cut(&durable, &writes, acknowledged, Thoroughness::Many));
                let is_durable = |write: &Write| {
                    write.disk == *disk && ended.get(&write.number).is_some_and(|end| end < begun)
                };
                for write in writes.iter().filter(|write| is_durable(write)) {
                    put(&mut durable, write, &vec![u8::MAX; write.pages.len()]);
                }
                writes.retain(|write| !is_durable(write));
            }
            Event::Acknowledged => {
                acknowledged += 1;
                cuts.push(cut(&durable, &writes, acknowledged, Thoroughness::Many));
            }
        }
    }
    cuts
}

/// A sector of a write that differs from the durable contents, or a page of them.
#[derive(Clone, Copy)]
struct Atom {
    write: usize,
    page: usize,
    mask: u8,
}

impl Cut {
    /// Returns whether nothing is undecided: there is only one image.
    pub fn is_still(&self) -> bool {
        self.writes.is_empty()
    }

    /// Yields the images of this cut that are always tried: all possible ones if at most `most` sectors are
    /// undecided, else those of whole writes.
    pub fn images(&self, most: usize, take: &mut dyn FnMut(Vec<Content>)) {
        let sectors = self.sectors();
        if sectors.len() <= most {
            for subset in 0..1usize << sectors.len() {
                take(self.image(&sectors, |at| subset >> at & 1 == 1));
            }
            return;
        }
        let whole =
            |keep: &dyn Fn(usize) -> bool| self.image(&sectors, |at| keep(sectors[at].write));
        let newest = self.writes.len() - 1;
        take(whole(&|_| true));
        match self.thoroughness {
            Thoroughness::Newest => {
                take(whole(&|write| write == newest));
                take(self.image(&sectors, |at| sectors[at].write < newest || at % 2 == 0));
            }
            Thoroughness::Many => {
                take(whole(&|_| false));
                for this in 0..self.writes.len() {
                    take(whole(&|write| write == this));
                    take(whole(&|write| write != this));
                }
            }
        }
    }

    /// An image that keeps each write, page or sector with the same probability.
    pub fn draw(&self, random: &mut Random) -> Vec<Content> {
        let sectors = self.sectors();
        let grain = random.below(4);
        let luck = [10, 50, 90, 97][random.below(4) as usize];
        let seed = random.next_u64();
        self.image(&sectors, |at| {
            let Atom { write, page, mask } = sectors[at];
            let unit = match grain {
                0 => (write, 0, 0),
                1 | 2 => (write, page + 1, 0),
                _ => (write, page + 1, mask),
            };
            let unit = (unit.0 << 40 | unit.1 << 8 | usize::from(unit.2)) as u64;
            xxh3_64_with_seed(&unit.to_le_bytes(), seed) % 100 < luck
        })
    }

    fn image(&self, sectors: &[Atom], kept: impl Fn(usize) -> bool) -> Vec<Content> {
        let mut masks: Vec<Vec<u8>> = self.writes.iter().map(|w| vec![0; w.pages.len()]).collect();
        for (_, atom) in sectors.iter().enumerate().filter(|(at, _)| kept(*at)) {
            masks[atom.write][atom.page] |= atom.mask;
        }
        let mut contents = self.durable.clone();
        for (write, masks) in self.writes.iter().zip(&masks) {
            put(&mut contents, write, masks);
        }
        contents
    }

    /// Every sector that makes a difference.
    fn sectors(&self) -> Vec<Atom> {
        let mut times: HashMap<(usize, usize), u32> = HashMap::new();
        for write in &self.writes {
            for page in 0..write.pages.len() {
                *times.entry((write.disk, write.first_page + page)).or_default() += 1;
            }
        }
        let mut sectors = Vec::new();
        for (at, write) in self.writes.iter().enumerate() {
            for (page, new) in write.pages.iter().enumerate() {
                let place = write.first_page + page;
                let old: &Arc<Page> = self.durable[write.disk].page(place);
                let once = times[&(write.disk, place)] == 1;
                let differs = if once { new.difference(old) } else { u8::MAX };
                let bits = (0..8).map(|sector| 1 << sector).filter(|bit| differs & bit != 0);
                sectors.extend(bits.map(|mask| Atom { write: at, page, mask }));
            }
        }
        sectors
    }
}

fn put(contents: &mut [Content], write: &Write, masks: &[u8]) {
    let content = &mut contents[write.disk];
    for ((at, page), mask) in (write.first_page..).zip(&write.pages).zip(masks) {
        let merged = page.over(content.page(at), *mask);
        content.set(at, merged);
    }
}
