use proptest::prelude::*;

use super::*;

fn small_pool(num_slots: usize) -> Pool {
    let slot_len_bytes = 4096;
    let huge_pages = HugePages::Off;
    Pool::new(PoolOptions { bytes: num_slots * slot_len_bytes, slot_len_bytes, huge_pages })
        .unwrap()
}

#[test]
fn buffers_are_joined_again_even_when_one_was_replaced() {
    for replace in [false, true] {
        let mut first = IoBuf::zeroed(3000);
        let mut second = first.split_off(1000);
        first.fill(1);
        second.fill(2);
        let start = first.as_ptr();
        if replace {
            second = IoBuf::zeroed(2000);
            second.fill(2);
        }
        first.rejoin(second);
        assert!(first[..1000].iter().all(|&b| b == 1) && first[1000..].iter().all(|&b| b == 2));
        assert_eq!((first.len(), first.as_ptr() == start), (3000, !replace));
    }
}

#[test]
fn an_empty_buffer_owns_nothing_and_splits_into_nothing() {
    let mut empty = IoBuf::empty();
    assert!(empty.split_off(0).is_empty() && IoBuf::zeroed(0).is_empty());
    assert!(empty.unsplit(IoBuf::empty()).is_ok());
    assert!(empty.freeze().is_empty());
}

#[test]
fn a_stand_alone_buffer_is_zeroed_and_aligned() {
    let buf = IoBuf::zeroed(5000);
    assert_eq!(buf.as_ptr().addr() % 4096, 0);
    assert!(buf.len() == 5000 && buf.iter().all(|&byte| byte == 0));
}

#[test]
fn buffers_join_again_only_in_their_order() {
    let mut first = IoBuf::zeroed(9000);
    let mut second = first.split_off(4096);
    let third = second.split_off(4096);
    let third = first.unsplit(third).expect_err("the middle is missing");
    assert!(second.unsplit(third).is_ok());
    assert!(first.unsplit(second).is_ok());
    assert_eq!(first.len(), 9000);
    let stranger = first.unsplit(IoBuf::zeroed(10)).expect_err("of another allocation");
    assert_eq!(stranger.len(), 10);
}

#[test]
fn a_truncated_buffer_cannot_be_joined() {
    let mut first = IoBuf::zeroed(8192);
    let second = first.split_off(4096);
    first.truncate(4000);
    assert!(first.unsplit(second).is_err());
}

#[test]
fn a_slice_of_a_frozen_buffer_outlives_it() {
    let mut buf = IoBuf::zeroed(4096);
    buf[100..104].copy_from_slice(b"dlfs");
    let frozen = buf.freeze();
    let slice = frozen.slice(100..104).slice(..=3);
    drop(frozen);
    assert_eq!(&*slice, b"dlfs");
}

#[test]
fn a_frozen_buffer_thaws_only_for_its_last_handle() {
    let frozen = IoBuf::zeroed(4096).freeze();
    let slice = frozen.slice(10..20);
    let frozen = frozen.thaw().expect_err("the slice reads them");
    drop(slice);
    let mut thawed = frozen.thaw().expect("nobody else has them");
    thawed[4095] = 1;
    assert_eq!((thawed.len(), thawed.freeze()[4095]), (4096, 1));
    assert!(SharedBuf::empty().thaw().expect("holds nothing").is_empty());
}

#[test]
#[should_panic(expected = "of 10 bytes")]
fn a_slice_past_the_end_panics() {
    let _panics = IoBuf::zeroed(10).freeze().slice(4..11);
}

#[test]
fn a_pool_refuses_impossible_sizes() {
    let new = |bytes, slot_len_bytes| {
        let huge_pages = HugePages::Off;
        Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages }).unwrap_err().kind()
    };
    use crate::ErrorKind::InvalidArgument;
    assert_eq!(new(1 << 20, 0), InvalidArgument);
    assert_eq!(new(1 << 20, 5000), InvalidArgument);
    assert_eq!(new(4095, 4096), InvalidArgument);
    assert_eq!(new(1 << 50, 4096), InvalidArgument);
}

#[test]
fn a_pool_rounds_up_to_slots_and_returns_none_when_it_is_empty() {
    let pool = small_pool(4);
    let large = pool.take(2 * 4096 + 1).unwrap();
    assert_eq!((large.len(), pool.free_bytes()), (8193, 4096));
    assert!(pool.take(4097).is_none());
    let last = pool.take(4096).unwrap();
    assert_eq!(last.as_ptr().addr() % 4096, 0);
    assert!(pool.take(1).is_none() && pool.take(usize::MAX).is_none());
    drop(large);
    assert_eq!(pool.free_bytes(), 3 * 4096);
}

#[test]
fn an_allocation_is_freed_with_its_last_buffer_frozen_or_not() {
    let pool = small_pool(8);
    let mut buf = pool.take(8 * 4096).unwrap();
    let rest = buf.split_off(4096).freeze();
    let slice = rest.slice(1..2);
    drop(buf);
    drop(rest);
    assert_eq!(pool.free_bytes(), 0);
    drop(slice);
    assert_eq!(pool.free_bytes(), pool.capacity_bytes());
}

#[test]
fn an_empty_window_holds_no_memory() {
    let pool = small_pool(1);
    let mut buf = pool.take(4096).unwrap();
    let end = buf.split_off(4096);
    drop(buf);
    assert!(end.is_empty() && pool.free_bytes() == 4096);
    let mut buf = pool.take(4096).unwrap();
    buf.truncate(0);
    assert_eq!(pool.free_bytes(), 4096);
}

#[test]
fn a_window_may_outlive_every_handle_on_its_pool() {
    let pool = small_pool(2);
    let mut buf = pool.clone().take(4096).unwrap();
    drop(pool);
    buf.fill(7);
    assert!(buf.freeze().iter().all(|&byte| byte == 7));
}

#[test]
fn a_large_pool_reports_its_kind_of_pages() {
    let bytes = 8 << 20;
    let slot_len_bytes = 1 << 20;
    let pool = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages: HugePages::Auto });
    let pool = pool.unwrap();
    let mut all = pool.take(bytes).unwrap();
    all.fill(0xA5);
    let text = format!("Pool(0 of 8388608 bytes free, {})", pool.pages());
    assert_eq!(format!("{pool:?}"), text);
}

#[test]
fn threads_never_share_a_byte_and_give_everything_back() {
    let pool = small_pool(64);
    std::thread::scope(|scope| {
        for thread in 0u8..4 {
            let pool = pool.clone();
            scope.spawn(move || take_split_and_drop(&pool, thread));
        }
    });
    assert_eq!(pool.free_bytes(), pool.capacity_bytes());
}

/// Fills buffers with the thread's own byte and checks them later, which reveals a second owner.
fn take_split_and_drop(pool: &Pool, thread: u8) {
    let mut held: Vec<IoBuf> = Vec::new();
    let mut state = u32::from(thread) + 1;
    for _ in 0..20_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let choice = (state >> 16) as usize;
        if held.len() > 6 || choice.is_multiple_of(3) && !held.is_empty() {
            let buf = held.swap_remove(choice % held.len());
            assert!(buf.iter().all(|&byte| byte == thread), "written by somebody else");
        } else if let Some(mut buf) = pool.take(choice % 20_000 + 1) {
            buf.fill(thread);
            held.push(buf.split_off(buf.len() / 2));
            held.push(buf);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Take(usize),
    Split(prop::sample::Index, prop::sample::Index),
    Unsplit(prop::sample::Index, prop::sample::Index),
    Truncate(prop::sample::Index, prop::sample::Index),
    Freeze(prop::sample::Index),
    Slice(prop::sample::Index, prop::sample::Index),
    Drop(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = || any::<prop::sample::Index>();
    let step = prop_oneof![
        (1usize..30_000).prop_map(Step::Take),
        (index(), index()).prop_map(|(buf, at)| Step::Split(buf, at)),
        (index(), index()).prop_map(|(a, b)| Step::Unsplit(a, b)),
        (index(), index()).prop_map(|(buf, len)| Step::Truncate(buf, len)),
        index().prop_map(Step::Freeze),
        (index(), index()).prop_map(|(buf, at)| Step::Slice(buf, at)),
        index().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..120)
}

/// Buffers, each with the byte that fills it.
///
#[derive(Default)]
struct Held {
    owned: Vec<(IoBuf, u8)>,
    frozen: Vec<(SharedBuf, u8)>,
}

impl Held {
    fn apply(&mut self, pool: &Pool, step: Step, mark: u8) {
        let owned = self.owned.len();
        match step {
            Step::Take(len) => {
                if let Some(mut buf) = pool.take(len) {
                    buf.fill(mark);
                    self.owned.push((buf, mark));
                }
            }
            Step::Split(which, at) if owned > 0 => {
                let buf = &mut self.owned[which.index(owned)].0;
                let mut rest = buf.split_off(at.index(buf.len() + 1));
                rest.fill(mark);
                self.owned.push((rest, mark));
            }
            Step::Unsplit(a, b) if owned > 1 && a.index(owned) != b.index(owned) => {
                let a = a.index(owned);
                let b = b.index(owned);
                let (other, other_mark) = std::mem::take(&mut self.owned[b]);
                match self.owned[a].0.unsplit(other) {
                    Ok(()) => {
                        self.owned[a].0.fill(mark);
                        self.owned[a].1 = mark;
                    }
                    Err(other) => self.owned[b] = (other, other_mark),
                }
            }
            Step::Truncate(which, len) if owned > 0 => {
                let buf = &mut self.owned[which.index(owned)].0;
                buf.truncate(len.index(buf.len() + 1));
            }
            Step::Freeze(which) if owned > 0 => {
                let (buf, mark) = self.owned.swap_remove(which.index(owned));
                self.frozen.push((buf.freeze(), mark));
            }
            Step::Slice(which, at) if !self.frozen.is_empty() => {
                let (buf, mark) = &self.frozen[which.index(self.frozen.len())];
                let slice = buf.slice(at.index(buf.len() + 1)..);
                self.frozen.push((slice, *mark));
            }
            Step::Drop(which) if owned + self.frozen.len() > 0 => {
                let which = which.index(owned + self.frozen.len());
                if which < owned {
                    self.owned.swap_remove(which);
                } else {
                    self.frozen.swap_remove(which - owned);
                }
            }
            _ => {} // nothing to act on
        }
    }

    fn check(&self) {
        let mut ranges: Vec<_> = self
            .owned
            .iter()
            .map(|(buf, _)| buf.as_ptr_range())
            .filter(|r| r.start != r.end)
            .collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "buffers overlap");
        let frozen = self.frozen.iter().map(|(buf, mark)| (&**buf, mark));
        let owned = self.owned.iter().map(|(buf, mark)| (&**buf, mark));
        for (bytes, mark) in owned.chain(frozen) {
            assert!(bytes.iter().all(|byte| byte == mark), "another buffer was written here");
        }
    }
}

proptest! {
    #[test]
    fn buffers_stay_disjoint_and_every_allocation_is_freed_once(steps in steps()) {
        let pool = small_pool(16);
        let mut held = Held::default();
        for (number, step) in steps.into_iter().enumerate() {
            held.apply(&pool, step, number as u8);
            held.check();
        }
        drop(held);
        // Freeing an allocation twice would have failed in `give_back`; a leaked one shows here.
        prop_assert_eq!(pool.free_bytes(), pool.capacity_bytes());
        prop_assert!(pool.take(pool.capacity_bytes()).is_some());
    }
}

#[test]
fn a_large_buffer_is_zeroed_aligned_and_freed_with_its_last_window() {
    for len in [(8 << 20) - 1, 8 << 20, (9 << 20) + 5] {
        let mut buf = IoBuf::zeroed(len);
        assert_eq!((buf.len(), buf.as_ptr() as usize % 4096), (len, 0));
        assert!(buf.iter().all(|byte| *byte == 0));
        buf[len - 1] = 7;
        let tail = buf.split_off(len - 10).freeze();
        drop(buf);
        assert_eq!(tail[9], 7);
    }
}

#[test]
fn a_window_at_a_given_offset_is_taken_while_it_is_free() {
    let pool = small_pool(8);
    let mut buffer = pool.take_at(4096 * 3 + 5, 8192).expect("it is free");
    buffer.fill(1);
    assert_eq!((pool.offset_of(&buffer), buffer.len()), (Some(4096 * 3), 8192));
    assert!(pool.take_at(4096 * 4, 4096).is_none() && pool.take_at(4096 * 7, 8192).is_none());
    drop(buffer);
    assert!(pool.take_at(4096 * 4, 4096).is_some() && pool.take_at(0, 0).is_none());
    assert_eq!(pool.free_bytes(), 8 * 4096);
}
