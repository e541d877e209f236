//! Structs that carry their size, strings and buffers: what comes from C, checked as far as it can be.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{DLFS_E_SIZE, DLFS_E_TOO_SMALL, DLFS_E_UNSUPPORTED, Failure};

/// A struct of the ABI: `repr(C)`, `size` first, and any bytes make one.
///
/// # Safety
/// As said: its first field is a `usize` at offset 0, and no byte pattern is invalid for it.
pub(crate) unsafe trait Struct: Copy {
    const NAME: &str;
}

/// What is behind `from`, whose size is known and whose unknown rest is zero.
///
/// # Safety
/// `from` is NULL or points to a struct of the size that its first field says.
pub(crate) unsafe fn take<T: Struct>(from: *const T) -> Result<T, Failure> {
    let size = known_size(from)?;
    let known = size_of::<T>();
    // SAFETY: the caller's promise; `size` bytes are there.
    let rest = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let text = format!("{} has fields that this version does not know", T::NAME);
        return Err(Failure::new(DLFS_E_UNSUPPORTED, text));
    }
    // SAFETY: aligned, as large as it must be, and any bytes make a `T`.
    Ok(unsafe { from.read() })
}

/// As [`take`], where NULL means `T`'s defaults.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn take_or<T: Struct>(from: *const T, default: T) -> Result<T, Failure> {
    // SAFETY: the same promise.
    if from.is_null() { Ok(default) } else { unsafe { take(from) } }
}

/// Whether a struct can be given back in `to`; asked before anything is done.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn check_out<T: Struct>(to: *mut T) -> Result<(), Failure> {
    known_size(to.cast_const()).map(drop)
}

/// Writes `value` to `to`, which [`check_out`] was asked about; its size stays, its unknown rest
/// becomes zero.
///
/// # Safety
/// As [`take`], and nothing else looks at it meanwhile.
pub(crate) unsafe fn give<T: Struct>(to: *mut T, value: T) -> Result<(), Failure> {
    let size = known_size(to.cast_const())?;
    // SAFETY: aligned, and `size` bytes of it are there.
    unsafe {
        to.write(value);
        to.cast::<usize>().write(size);
        to.cast::<u8>().add(size_of::<T>()).write_bytes(0, size - size_of::<T>());
    }
    Ok(())
}

fn known_size<T: Struct>(at: *const T) -> Result<usize, Failure> {
    let name = T::NAME;
    if at.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    if !at.is_aligned() {
        return Err(Failure::invalid(format!("{name} is not aligned")));
    }
    // SAFETY: not NULL and aligned; by the trait, the first field is a `usize`.
    let size = unsafe { at.cast::<usize>().read() };
    if (size_of::<T>()..=MAX_SIZE).contains(&size) {
        return Ok(size);
    }
    let known = size_of::<T>();
    let text = format!("{name} says that it has {size} bytes, at least {known} are known");
    Err(Failure::new(DLFS_E_SIZE, text))
}

/// The bytes of a string, without its NUL.
///
/// # Safety
/// `text` is NULL or ends with NUL, and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: the same promise.
    unsafe { optional_text(text) }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: not NULL, and it ends with NUL by the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: the same promise.
    Ok(Path::new(OsStr::from_bytes(unsafe { text(path, "path") }?)))
}

/// The array of `count` values at `at`; empty when there are none.
///
/// # Safety
/// `at` is NULL or points to `count` values, which stay as they are for `'a`.
pub(crate) unsafe fn array<'a, T>(
    at: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() || !at.is_aligned() {
        return Err(Failure::invalid(format!("{what} is NULL or not aligned")));
    }
    if count > MAX_COUNT {
        return Err(Failure::invalid(format!("{what} has {count} entries, at most {MAX_COUNT}")));
    }
    // SAFETY: not NULL, aligned, and the caller promises the values.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// Copies `text` and a NUL into `out`; with no room for both, only says in `needed` how much it takes.
///
/// # Safety
/// `out` is NULL or has `len` bytes, `needed` is NULL or a `size_t`, and nobody else looks at them.
pub(crate) unsafe fn give_text(
    text: &[u8],
    out: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> Result<(), Failure> {
    let need = text.len() + 1;
    if !needed.is_null() {
        // SAFETY: the caller's promise.
        unsafe { needed.write_unaligned(need) };
    }
    if out.is_null() || len < need {
        let text = format!("the text has {need} bytes with its NUL, there is room for {len}");
        return Err(Failure::new(DLFS_E_TOO_SMALL, text));
    }
    // SAFETY: `need` bytes of `out` are there, and `text` is ours.
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        out.cast::<u8>().add(text.len()).write(0);
    }
    Ok(())
}

/// Writes `value` where the caller wants it.
///
/// # Safety
/// `to` is NULL or points to a `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if to.is_null() || !to.is_aligned() {
        return Err(Failure::invalid(format!("{what} is NULL or not aligned")));
    }
    // SAFETY: not NULL, aligned, and a `T` by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// No struct of this library will ever be as large: such a size is a mistake.
const MAX_SIZE: usize = 4096;

/// Entries of an array at most, so that lengths in bytes cannot overflow.
const MAX_COUNT: usize = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DLFS_E_INVALID;

    #[derive(Debug, Clone, Copy, PartialEq)]
    #[repr(C)]
    struct Two {
        size: usize,
        value: u64,
    }
    // SAFETY: numbers alone, the size first.
    unsafe impl Struct for Two {
        const NAME: &str = "two";
    }

    fn code<T>(result: Result<T, Failure>) -> i32 {
        result.err().map_or(0, |failure| failure.code)
    }

    #[test]
    fn only_sizes_that_make_sense_are_taken() {
        let take = |numbers: &[u64]| {
            // SAFETY: the first number is never more than there are.
            unsafe { take(numbers.as_ptr().cast::<Two>()) }
        };
        assert_eq!(take(&[16, 7]).ok(), Some(Two { size: 16, value: 7 }));
        assert_eq!(take(&[24, 7, 0]).ok().map(|two| two.value), Some(7));
        assert_eq!(code(take(&[24, 7, 1])), DLFS_E_UNSUPPORTED);
        for size in [0, 8, 15, 4097, u64::MAX] {
            assert_eq!(code(take(&[size, 7])), DLFS_E_SIZE);
        }
        let bytes = [16u64, 7, 0];
        // SAFETY: NULL and unaligned pointers are refused before they are read.
        unsafe {
            assert_eq!(code(super::take(std::ptr::null::<Two>())), DLFS_E_INVALID);
            let unaligned = bytes.as_ptr().cast::<u8>().add(4).cast::<Two>();
            assert_eq!(code(super::take(unaligned)), DLFS_E_INVALID);
        }
    }

    #[test]
    fn a_larger_struct_of_a_later_version_is_filled_with_zeroes() {
        let mut numbers = [24u64, 1, 9];
        let to = numbers.as_mut_ptr().cast::<Two>();
        // SAFETY: three numbers are there.
        unsafe { give(to, Two { size: 0, value: 5 }) }.ok().unwrap();
        assert_eq!(numbers, [24, 5, 0]);
    }

    #[test]
    fn a_text_is_given_whole_or_not_at_all() {
        let mut out = [1 as c_char; 4];
        let mut needed = 0;
        // SAFETY: `out` has as many bytes as it says.
        unsafe {
            assert_eq!(
                code(give_text(b"abcd", out.as_mut_ptr(), 4, &mut needed)),
                DLFS_E_TOO_SMALL
            );
            assert_eq!((needed, out), (5, [1; 4]));
            assert_eq!(code(give_text(b"abc", out.as_mut_ptr(), 4, &mut needed)), 0);
        }
        assert_eq!((needed, out), (4, [97, 98, 99, 0]));
    }
}
