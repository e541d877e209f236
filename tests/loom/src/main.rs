//! Checks the lock-free code of dlfs in every execution that the memory model allows, with loom.
//!
//! The files are dlfs's own; `sync` replaces its module of that name. Each model runs twice:
//! unchanged, which must pass, and with every ordering `Relaxed`, which must fail, since otherwise
//! the model proves nothing. loom does not model a total order of `SeqCst` except for fences, so
//! these files use fences where they need one.

// The files of other crates name `sync` by the crate that has it; here that is this one.
extern crate self as dlfs_base;

mod sync;

#[path = "../../../src/order/tier/copies.rs"]
mod copies;
#[path = "../../../src/base/buf/handles.rs"]
mod handles;
#[path = "../../../src/order/tier/page_set.rs"]
mod page_set;
#[path = "../../../src/base/buf/slots.rs"]
mod slots;
#[path = "../../../src/io/qpair/wake.rs"]
mod wake;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use copies::{CopyLocation, CopyTable};
use handles::Handles;
use loom::sync::Arc;
use loom::thread;
use page_set::PageSet;
use slots::Slots;
use sync::{AtomicU64, Ordering, weaken};
use wake::{Mark, Wake};

const MODELS: &[(&str, fn())] = &[
    ("who wakes a poller rings, or the poller does not sleep", a_call_is_never_slept_over),
    ("who marks a queue pair rings, or the poller does not sleep", a_mark_is_never_slept_over),
    ("what comes before a mark is seen by whoever takes it", a_mark_brings_what_came_before),
    ("the bytes of a copy are there before it is read", a_copy_is_published_with_its_bytes),
    ("of those who want a page one reads it, once", a_page_is_read_from_the_origin_once),
    ("slots have one owner, who sees what the last one did", slots_have_one_owner_at_a_time),
    ("a run over two words is taken whole or not at all", a_run_is_taken_whole_or_not_at_all),
    ("whoever drops the last handle sees what all did", memory_is_freed_once_and_after_every_use),
    ("whoever has the only handle sees what others did", an_only_handle_comes_after_the_others),
];

fn main() -> ExitCode {
    let mut failed = 0;
    for (name, model) in MODELS {
        weaken(false);
        let holds = catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_ok();
        weaken(true);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {})); // a panic is expected
        let can_fail = catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err();
        std::panic::set_hook(hook);
        let verdict = match (holds, can_fail) {
            (true, true) => "holds, and fails without its orderings",
            (true, false) => "SHOWS NOTHING: it holds without orderings as well",
            (false, _) => "FAILS",
        };
        println!("{name}: {verdict}");
        failed += u8::from(!(holds && can_fail));
    }
    ExitCode::from(failed)
}

fn a_call_is_never_slept_over() {
    let wake = Arc::new(Wake::default());
    let caller = {
        let wake = Arc::clone(&wake);
        thread::spawn(move || wake.wake())
    };
    let sleeps = !wake.take_woken() && wake.fall_asleep();
    let rings = caller.join().unwrap();
    assert!(rings || !sleeps, "nothing ends the sleep");
}

fn a_mark_is_never_slept_over() {
    let wake = Arc::new(Wake::default());
    let caller = {
        let wake = Arc::clone(&wake);
        thread::spawn(move || wake.mark(&std::sync::Arc::new(Mark::new(1))))
    };
    let mut taken = 0;
    wake.take_marks(|_| taken += 1);
    let is_known = taken == 1;
    let sleeps = wake.fall_asleep();
    let rings = caller.join().unwrap();
    wake.take_marks(|_| taken += 1);
    assert_eq!(taken, 1);
    assert!(is_known || rings || !sleeps, "nothing ends the sleep");
}

fn a_mark_brings_what_came_before() {
    let wake = Arc::new(Wake::default());
    let mark = std::sync::Arc::new(Mark::new(1));
    let arrived = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let markers = [0, 1].map(|number| {
        let wake = Arc::clone(&wake);
        let mark = std::sync::Arc::clone(&mark);
        let arrived = Arc::clone(&arrived);
        thread::spawn(move || {
            arrived[number].store(1, Ordering::Relaxed);
            wake.mark(&mark);
        })
    });
    let look = || {
        let mut is_marked = false;
        let mut seen = [0, 0];
        wake.take_marks(|_| is_marked = true);
        if is_marked {
            seen = [0, 1].map(|number| arrived[number].load(Ordering::Relaxed));
        }
        (is_marked, seen)
    };
    let (_, seen) = look();
    for marker in markers {
        marker.join().unwrap();
    }
    let (is_marked, _) = look();
    assert!(is_marked || seen == [1, 1], "lost: {seen:?} was seen, and no mark is left");
}

fn a_copy_is_published_with_its_bytes() {
    let copies = Arc::new(CopyTable::new(1));
    let bytes = Arc::new(AtomicU64::new(0));
    let copier = {
        let copies = Arc::clone(&copies);
        let bytes = Arc::clone(&bytes);
        thread::spawn(move || {
            assert!(copies.place(0, CopyLocation { tier: 1, first: 0, page: 7 }));
            bytes.store(1, Ordering::Relaxed);
            copies.publish(0, PageSet(2));
        })
    };
    if let Some((location, pages)) = copies.copies(0) {
        assert_eq!((location.tier, location.page, pages), (1, 7, PageSet(2)));
        assert_eq!(bytes.load(Ordering::Relaxed), 1, "read before it was written");
    }
    copier.join().unwrap();
}

/// Two want a page: one of them reads it from the origin, and who does not finds it copied or under way. A
/// claim that follows a look at `under_way` and `there` finds nothing that was published before.
fn a_page_is_read_from_the_origin_once() {
    let copies = Arc::new(CopyTable::new(1));
    let reads = Arc::new(AtomicU64::new(0));
    let want = |copies: &CopyTable, reads: &AtomicU64| {
        if !copies.claim(0, PageSet(1)).is_empty() {
            // Two that read it at once, or one that does not see what the last one did, lose a count.
            reads.store(reads.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            copies.publish(0, PageSet(1));
        } else if copies.under_way(0).is_empty() {
            assert_eq!(copies.there(0), PageSet(1), "its claim has ended and it is not there");
            assert_eq!(reads.load(Ordering::Relaxed), 1, "published before it was read");
        }
    };
    let other = {
        let copies = Arc::clone(&copies);
        let reads = Arc::clone(&reads);
        thread::spawn(move || want(&copies, &reads))
    };
    want(&copies, &reads);
    other.join().unwrap();
    assert_eq!((reads.load(Ordering::Relaxed), copies.there(0)), (1, PageSet(1)));
}

fn slots_have_one_owner_at_a_time() {
    let slots = Arc::new(Slots::new(1));
    let bytes = Arc::new(AtomicU64::new(0));
    let own = |slots: &Slots, bytes: &AtomicU64| {
        let Some(first) = slots.take(1) else { return 0 };
        // Two owners at once, or one that does not see what the previous one did, lose a count.
        bytes.store(bytes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        slots.give_back(first, 1);
        1
    };
    let other = {
        let slots = Arc::clone(&slots);
        let bytes = Arc::clone(&bytes);
        thread::spawn(move || own(&slots, &bytes))
    };
    let owned = own(&slots, &bytes) + other.join().unwrap();
    assert_eq!(bytes.load(Ordering::Relaxed), owned);
    assert_eq!(slots.num_free(), 1);
}

fn a_run_is_taken_whole_or_not_at_all() {
    let slots = Arc::new(Slots::new(66));
    let bytes = Arc::new(AtomicU64::new(0));
    // Both have slot 64: the run begins in the word before.
    let own = |slots: &Slots, bytes: &AtomicU64, first, count| {
        if !slots.take_at(first, count) {
            return 0;
        }
        bytes.store(bytes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        slots.give_back(first, count);
        1
    };
    let other = {
        let slots = Arc::clone(&slots);
        let bytes = Arc::clone(&bytes);
        thread::spawn(move || own(&slots, &bytes, 64, 1))
    };
    let owned = own(&slots, &bytes, 63, 2) + other.join().unwrap();
    assert_eq!(bytes.load(Ordering::Relaxed), owned);
    assert_eq!(slots.num_free(), 66);
    assert!(slots.take_at(63, 2), "a run that was refused has kept a part");
}

fn memory_is_freed_once_and_after_every_use() {
    let handles = Arc::new(Handles::new(0));
    handles.begin();
    handles.add();
    let bytes = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let use_and_drop = |handles: &Handles, bytes: &[AtomicU64; 2], own: usize| {
        bytes[own].store(1, Ordering::Relaxed);
        let is_last = handles.remove();
        if is_last {
            let seen = [0, 1].map(|at| bytes[at].load(Ordering::Relaxed));
            assert_eq!(seen, [1, 1], "freed before a use");
        }
        u32::from(is_last)
    };
    let other = {
        let handles = Arc::clone(&handles);
        let bytes = Arc::clone(&bytes);
        thread::spawn(move || use_and_drop(&handles, &bytes, 1))
    };
    let freed = use_and_drop(&handles, &bytes, 0) + other.join().unwrap();
    assert_eq!(freed, 1);
}

fn an_only_handle_comes_after_the_others() {
    let handles = Arc::new(Handles::new(2));
    let bytes = Arc::new(AtomicU64::new(0));
    let other = {
        let handles = Arc::clone(&handles);
        let bytes = Arc::clone(&bytes);
        thread::spawn(move || {
            bytes.store(1, Ordering::Relaxed);
            assert!(!handles.remove(), "there is another");
        })
    };
    if handles.is_one() {
        assert_eq!(bytes.load(Ordering::Relaxed), 1, "written to while it was read");
    }
    other.join().unwrap();
}
