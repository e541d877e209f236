//! Checks a job against its targets, and builds what the worker's loop needs.

use std::collections::VecDeque;

use dlfs::buf::{HugePages, Pool, PoolOptions};

use super::{Lane, Slot};
use crate::engine::Target;
use crate::options::Job;
use crate::options::job::Engine;
use crate::workload::content::Content;
use crate::workload::positions::Positions;
use crate::workload::random::derive;

/// The seed of everything random in the `number`th clone of job `index`.
pub(crate) fn seed_of(job: &Job, index: u64, number: u64) -> u64 {
    let base = match (job.randseed, job.randrepeat) {
        (Some(seed), _) => seed,
        (None, true) => DEFAULT_SEED,
        (None, false) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(DEFAULT_SEED, |since| since.as_nanos() as u64)
        }
    };
    derive(base, index << 16 | number)
}

/// The part of `target` that the `number`th clone works on: begin and length in bytes.
///
/// # Errors
/// A sentence with what the job asks for and what the target has.
pub(crate) fn region(
    job: &Job,
    number: u64,
    target: &Target,
    targets: u64,
) -> Result<(u64, u64), String> {
    let name = &target.name;
    let has = target.namespace.len_bytes();
    let align = u64::from(target.namespace.block_len_bytes);
    let increment = job.offset_increment.of(has);
    let begin = (number.checked_mul(increment))
        .and_then(|more| job.offset.of(has).checked_add(more))
        .and_then(|begin| begin.checked_next_multiple_of(align))
        .ok_or_else(|| format!("{name}: the offset is past 2^64 bytes"))?;
    let rest = has.saturating_sub(begin);
    let wanted = match job.size {
        None => rest,
        Some(crate::options::value::Size::Bytes(bytes)) => bytes / targets,
        Some(percent) => percent.of(has).min(rest),
    };
    if begin.checked_add(wanted).is_none_or(|end| end > has) {
        return Err(format!(
            "{name} has {has} bytes; size={wanted} from offset {begin} ends beyond it"
        ));
    }
    let (min, max) = job.block_range();
    let len = wanted / min * min;
    if len < max {
        return Err(format!(
            "{name}: {wanted} bytes from offset {begin} are less than one block of {max}"
        ));
    }
    Ok((begin, len))
}

/// Refuses blocks and depths that the target does not support.
pub(crate) fn check(job: &Job, target: &Target) -> Result<(), String> {
    let (_, max) = job.block_range();
    let Target { name, namespace, .. } = target;
    let block = u64::from(namespace.block_len_bytes);
    let most = namespace.max_transfer_bytes;
    for size in job.block_sizes() {
        if !size.is_multiple_of(block) {
            return Err(format!(
                "{name} has blocks of {block} bytes, and bs={size} is not a multiple of them"
            ));
        }
    }
    if max > most.into() {
        return Err(format!("{name} takes {most} bytes at a time, bs is {max}"));
    }
    let depth = job.depth();
    let most = namespace.queue_depth;
    if depth > most.into() {
        let longer = if namespace.engine.starts_with("tcp") {
            "; queue_size= asks for a longer queue"
        } else {
            ""
        };
        return Err(format!("{name} takes {most} I/Os at a time, iodepth is {depth}{longer}"));
    }
    Ok(())
}

/// One lane for each target.
pub(crate) fn lanes(
    job: &Job,
    number: u64,
    targets: &[Target],
    seed: u64,
) -> Result<Vec<Lane>, String> {
    let count = targets.len() as u64;
    let mut lanes = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        check(job, target)?;
        let (begin, len) = region(job, number, target, count)?;
        let pair = target.queue_pair(job.depth())?;
        let positions = Positions::new(job, begin, len, derive(seed, index as u64));
        lanes.push(Lane {
            block: u64::from(pair.namespace().block_len_bytes),
            name: target.name.clone(),
            replay: positions.clone(),
            positions,
            content: Content::new(job, job.randseed.unwrap_or(DEFAULT_SEED)),
            pending: VecDeque::with_capacity(job.depth() as usize),
            burst: Vec::with_capacity(job.depth() as usize),
            in_flight: 0,
            chosen: None,
            directions: may_swap_directions(job).then(Vec::new),
            issued: 0,
            needs_poll: target.namespace.engine.starts_with("tcp"),
            pair,
        });
    }
    Ok(lanes)
}

/// Returns whether rate limits may change the drawn direction of an I/O; a verification then needs a record of them.
fn may_swap_directions(job: &Job) -> bool {
    let is_mixed = job.pattern.reads && job.pattern.writes;
    let is_limited = job.rate.iter().chain(&job.rate_iops).any(Option::is_some);
    is_mixed && is_limited
}

/// One buffer for each outstanding I/O.
pub(crate) fn slots(job: &Job) -> Result<Vec<Slot>, String> {
    let (_, max) = job.block_range();
    let depth = job.depth() as usize;
    let slot_len_bytes = (max as usize).next_multiple_of(4096);
    let bytes = slot_len_bytes.saturating_mul(depth);
    let huge_pages = if job.engine == Engine::Null { HugePages::Off } else { HugePages::Auto };
    let pool = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages })
        .map_err(|error| format!("no memory for iodepth times bs: {}", error.report()))?;
    let slot = |_| Slot { buf: pool.take(max as usize).unwrap_or_default(), ..Slot::default() };
    let slots: Vec<Slot> = (0..depth).map(slot).collect();
    if slots.iter().all(|slot| slot.buf.len() as u64 == max) {
        Ok(slots)
    } else {
        Err("no memory for iodepth times bs".to_owned())
    }
}

/// The same in every run, as in fio.
const DEFAULT_SEED: u64 = 0x89;
