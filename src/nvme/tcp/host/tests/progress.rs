//! The timeout of a controller that makes no progress.

use super::*;

const LIMIT: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

#[test]
fn a_trickle_is_no_progress_and_whole_pdus_or_many_bytes_are() {
    let start = Instant::now();
    let both = || [0, 1000].map(|least| Progress::new(start, LIMIT, least));
    for mut progress in both() {
        for nth in 1..=9 {
            progress.received(start + 100 * nth * MS, 50);
            progress.sent(start + 100 * nth * MS, 50);
        }
        assert!(!progress.is_over(start + 999 * MS) && progress.is_over(start + LIMIT));
    }
    let [mut usual, mut least] = both();
    for progress in [&mut usual, &mut least] {
        progress.received_pdu(start + 500 * MS);
        progress.sent(start + 600 * MS, 32 << 10);
    }
    usual.received(start + 700 * MS, 32 << 10);
    assert_eq!(usual.deadline(), start + 700 * MS + LIMIT);
    assert_eq!(least.deadline(), start + LIMIT, "only what is received counts");
}

#[test]
fn the_least_amount_and_a_command_that_ends_are_progress() {
    let start = Instant::now();
    let mut progress = Progress::new(start, LIMIT, 1000);
    progress.received(start + 400 * MS, 999);
    assert_eq!(progress.deadline(), start + LIMIT);
    progress.received(start + 500 * MS, 1);
    assert_eq!(progress.deadline(), start + 500 * MS + LIMIT);
    progress.received(start + 600 * MS, 999);
    progress.made(start + 700 * MS);
    progress.received(start + 800 * MS, 999);
    assert_eq!(progress.deadline(), start + 700 * MS + LIMIT);
}

#[test]
fn data_that_nobody_has_looked_for_begin_a_new_time() {
    let start = Instant::now();
    let mut progress = Progress::new(start, LIMIT, 1000);
    progress.received(start + 3 * LIMIT, 500);
    assert!(!progress.is_over(start + 3 * LIMIT));
    assert!(progress.is_over(start + 4 * LIMIT), "nothing has come since");
    let mut silent = Progress::new(start, LIMIT, 1000);
    assert!(silent.is_over(start + 3 * LIMIT));
}
