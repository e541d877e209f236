//! Checks a job against its target, and makes its buffers.

use std::time::{SystemTime, UNIX_EPOCH};

use dlfs::buf::{HugePages, Pool, PoolOptions};

use super::Slot;
use crate::engine::Target;
use crate::options::Job;
use crate::options::job::Engine;
use crate::options::value::Size;
use crate::workload::random::derive;

/// The seed of everything random in the `number`th clone of job `index`.
pub(crate) fn seed_of(job: &Job, index: u64, number: u64) -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let by_default = if job.randrepeat { DEFAULT_SEED } else { since_1970.as_nanos() as u64 };
    let base = job.randseed.unwrap_or(by_default);
    derive(base, index << 16 | number)
}

/// The part of `target` that the `number`th clone works on: begin and length in bytes.
///
/// # Errors
/// A sentence with the job's demand and the target's capacity.
pub(super) fn region(job: &Job, number: u64, target: &Target) -> Result<(u64, u64), String> {
    let name = &target.name;
    let has = target.namespace.len_bytes();
    let align = u64::from(target.namespace.block_len_bytes);
    let begin = (number.checked_mul(job.offset_increment.of(has)))
        .and_then(|more| job.offset.of(has).checked_add(more))
        .and_then(|begin| begin.checked_next_multiple_of(align))
        .ok_or_else(|| format!("{name}: the offset is past 2^64 bytes"))?;
    let rest = has.saturating_sub(begin);
    let wanted = match job.size {
        None => rest,
        Some(Size::Bytes(bytes)) => bytes,
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
pub(super) fn check(job: &Job, Target { name, namespace, .. }: &Target) -> Result<(), String> {
    let block = u64::from(namespace.block_len_bytes);
    if let Some(size) = job.block_sizes().iter().find(|size| !size.is_multiple_of(block)) {
        return Err(format!(
            "{name} has blocks of {block} bytes, and bs={size} is not a multiple of them"
        ));
    }
    let (_, max) = job.block_range();
    let most = namespace.max_transfer_bytes;
    if max > most.into() {
        return Err(format!("{name} takes {most} bytes at a time, bs is {max}"));
    }
    let depth = job.iodepth;
    let most = namespace.queue_depth;
    if depth > most.into() {
        let is_remote = namespace.engine.starts_with("tcp");
        let longer = if is_remote { "; queue_size= asks for a longer queue" } else { "" };
        return Err(format!("{name} takes {most} I/Os at a time, iodepth is {depth}{longer}"));
    }
    Ok(())
}

/// One buffer for each outstanding I/O.
pub(super) fn slots(job: &Job) -> Result<Vec<Slot>, String> {
    let (_, max) = job.block_range();
    let depth = job.iodepth as usize;
    let slot_len_bytes = (max as usize).next_multiple_of(4096);
    let bytes = slot_len_bytes.saturating_mul(depth);
    let huge_pages = if job.ioengine == Engine::Null { HugePages::Off } else { HugePages::Auto };
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

/// The seed if the user gives none: the same in every run, as in fio.
pub(super) const DEFAULT_SEED: u64 = 0x89;
