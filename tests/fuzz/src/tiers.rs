//! The index of a tier on local storage, which survives a restart.

use dlfs::format::Uuid;
use dlfs::format::names::crc32c;
use dlfs::tier::{
    CopyTable, ENTRY_BYTES, HEADER_BYTES, Index, Kept, Ledger, OWN_FILES_PAGE, PageSet, Policy,
    Stop, Units,
};
use dlfs::units::Generation;

use super::media::put_crc;
use super::{Target, script};

/// The index of a tier: a script that damages one with a few copies.
pub const TIER_INDEX: Target = Target {
    name: "tier_index",
    seeds: scripts,
    refit: None,
    run: index,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

const UUID: Uuid = Uuid([7; 16]);
const GENERATION: Generation = Generation(3);
const NUM_UNITS: u32 = 20;
/// Offset of the header's checksum.
const HEADER_CRC: usize = 508;
const CAPACITY_PAGES: u64 = 10;

fn units() -> Units {
    Units::from_pages((0..u64::from(NUM_UNITS)).map(|unit| (unit * 2, 2)))
}

fn whole() -> Index {
    let mut index = Index::new(UUID, GENERATION, &units());
    for (unit, page) in [(0, 4), (5, 0), (NUM_UNITS - 1, 8)] {
        let pages = PageSet(1 + u64::from(unit) % 3);
        index.set(unit, Some(Kept { unit, first: 0, page, pages, sum: 9 }));
    }
    index
}

fn scripts() -> Vec<Vec<u8>> {
    let header = [0, 8, 12, 16, 32, 40, 48, 508].map(|field| script::number(field, 1, 4, 1));
    let entries =
        [0, 7, 8, 16, 20, 5 * ENTRY_BYTES].map(|at| script::number(HEADER_BYTES + at, 3, 1, 0));
    [vec![], vec![3, 0, 16, 0]].into_iter().chain(header).chain(entries).collect()
}

fn index(changes: &[u8]) {
    let mut bytes = whole().bytes().to_vec();
    script::apply(changes, &mut bytes);
    parse(&bytes);
    put_crc(&mut bytes, 0..HEADER_CRC, HEADER_CRC);
    let header_crc = bytes.get(HEADER_CRC..HEADER_CRC + 4).unwrap_or_default().to_vec();
    for unit in 0..NUM_UNITS {
        let entry = HEADER_BYTES + unit as usize * ENTRY_BYTES;
        let Some(field) = bytes.get_mut(entry..entry + ENTRY_BYTES) else { continue };
        let crc = crc32c(&[&field[..20], &unit.to_le_bytes(), &header_crc].concat());
        field[20..].copy_from_slice(&crc.to_le_bytes());
    }
    parse(&bytes);
}

fn parse(bytes: &[u8]) {
    let Ok((index, kept)) = Index::parse(bytes, UUID, GENERATION, &units()) else { return };
    assert!(kept.windows(2).all(|pair| pair[0].unit < pair[1].unit), "one copy a unit");
    let mut again = Index::new(UUID, GENERATION, &units());
    for copy in &kept {
        assert!(copy.unit < NUM_UNITS);
        again.set(copy.unit, Some(*copy));
    }
    let (_, found) = Index::parse(again.bytes(), UUID, GENERATION, &units()).expect("our own");
    assert_eq!(found, kept, "what was believed reads back");
    assert_eq!(index.bytes(), bytes);
    // As in the cache: copies outside the tier, or overlapping another one, are skipped.
    let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[CAPACITY_PAGES]);
    let copies = CopyTable::new(NUM_UNITS);
    let mut pages = 0;
    for copy in kept {
        let end = copy.page.saturating_add(2 - u64::from(copy.first));
        let is_in_medium = copy.page < OWN_FILES_PAGE;
        if is_in_medium && ledger.restore(0, copy.page..end, copy.pages.len().into()) {
            assert!(end <= CAPACITY_PAGES && copies.place(copy.unit, copy.location(0)));
            assert!(
                copy.pages.runs().flatten().all(|page| copy.location(0).of_page(page).is_some())
            );
            pages += u64::from(copy.pages.len());
        }
    }
    assert_eq!(ledger.used(0), pages);
    assert!(pages <= CAPACITY_PAGES);
}
