//! Passes data between C and Rust: strings, arrays, and structs that begin with their own size. Pointers
//! and sizes from C are checked as far as possible; the caller promises the rest (`lib.rs`).

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dlfs::address::Address;
use dlfs::units::SampleId;

use crate::error::{DLFS_E_SIZE, DLFS_E_TOO_SMALL, DLFS_E_UNSUPPORTED, Failure, guard};

/// A struct of the ABI: `repr(C)`, with its own size as the first field.
///
/// # Safety
/// Its first field is a `usize` at offset 0, and no byte pattern is invalid for it.
pub(crate) unsafe trait Struct: Copy {
    /// The name in C.
    const NAME: &str;
    /// The sizes of the struct in earlier versions: fields added later are zero for programs compiled with these.
    const EARLIER: &[usize] = &[];

    /// The struct with all fields zero, which means the default of each.
    fn zeroed() -> Self {
        // SAFETY: no byte pattern is invalid.
        unsafe { std::mem::zeroed() }
    }
}

/// Reads the struct at `from`. Its size must be that of this or an earlier version, or larger: missing
/// fields are zero, and bytes after the last known field must be zero.
///
/// # Safety
/// `from` is NULL or points to a struct of the size in its first field.
pub(crate) unsafe fn take<T: Struct>(from: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise is the one that `known_size` requires.
    let size = unsafe { known_size(from)? };
    let known = size.min(size_of::<T>());
    // SAFETY: `known_size` refuses NULL, and the caller promises that the `size` bytes stated in the
    // first field exist; `known` is at most `size`.
    let rest = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let text = format!("{} has fields that this version does not know", T::NAME);
        return Err(Failure::new(DLFS_E_UNSUPPORTED, text));
    }
    let mut value = T::zeroed();
    // SAFETY: `known` bytes exist at `from` and fit in `value`, which is ours; any bytes are a valid
    // `T` by the trait.
    unsafe { (&raw mut value).cast::<u8>().copy_from_nonoverlapping(from.cast(), known) };
    Ok(value)
}

/// Like [`take`], but NULL means the defaults.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn take_or_zeroed<T: Struct>(from: *const T) -> Result<T, Failure> {
    // SAFETY: not NULL, so the caller promises that a struct of the size in its first field is there.
    if from.is_null() { Ok(T::zeroed()) } else { unsafe { take(from) } }
}

/// Runs the body of a function that fills the struct at `to`.
///
/// # Safety
/// As [`give`].
pub(crate) unsafe fn fill<T: Struct>(
    to: *mut T,
    value: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    // SAFETY: the caller's promise is the one that the called functions require.
    guard(|| unsafe {
        check_out(to)?;
        give(to, value()?)
    })
}

/// Checks, before anything is done, that a struct can be stored in `to`.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn check_out<T: Struct>(to: *mut T) -> Result<(), Failure> {
    // SAFETY: the caller's promise is the one that `known_size` requires.
    unsafe { known_size(to.cast_const()) }.map(drop)
}

/// Writes `value` to `to`, for which [`check_out`] has passed; the size stays, and an unknown rest
/// becomes zero.
///
/// # Safety
/// As [`take`], and nobody else accesses it meanwhile.
pub(crate) unsafe fn give<T: Struct>(to: *mut T, value: T) -> Result<(), Failure> {
    // SAFETY: the caller's promise is the one that `known_size` requires.
    let size = unsafe { known_size(to.cast_const())? };
    let known = size.min(size_of::<T>());
    let bytes = to.cast::<u8>();
    // SAFETY: `known_size` has checked that `to` is aligned and not NULL, and the caller promises that
    // `size` bytes are there, which nobody else accesses. `known` is at most `size` and the length of
    // `value`; the first field is a `usize` by the trait.
    unsafe {
        bytes.copy_from_nonoverlapping((&raw const value).cast(), known);
        bytes.cast::<usize>().write(size);
        bytes.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// The size that the struct at `at` states, if this version knows it.
///
/// # Safety
/// As [`take`].
unsafe fn known_size<T: Struct>(at: *const T) -> Result<usize, Failure> {
    let name = T::NAME;
    if at.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    if !at.is_aligned() {
        return Err(Failure::invalid(format!("{name} is not aligned")));
    }
    // SAFETY: not NULL and aligned, so the caller promises a struct there, whose first field is a `usize`
    // by the trait.
    let size = unsafe { at.cast::<usize>().read() };
    let known = size_of::<T>();
    if (known..=MAX_SIZE).contains(&size) || T::EARLIER.contains(&size) {
        return Ok(size);
    }
    let text = format!(
        "{name} says that it has {size} bytes, which is none of its sizes; here it has {known}: \
         set size to sizeof({name})"
    );
    Err(Failure::new(DLFS_E_SIZE, text))
}

/// The bytes of a string, without its NUL.
///
/// # Safety
/// `text` is NULL or ends with NUL, and does not change during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's promise is the one that the called function requires.
    unsafe { optional_text(text) }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// The bytes of a string, without its NUL; `None`: it is NULL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: not NULL, and the caller promises that it ends with NUL and does not change during
    // `'a`.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A UTF-8 string. Other bytes are an error: replacing them could turn one name into another.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn utf8<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise is the one that the called function requires.
    let bytes = unsafe { self::text(text, what)? };
    std::str::from_utf8(bytes)
        .map_err(|_| Failure::invalid(format!("{what} is not UTF-8: '{}'", bytes.escape_ascii())))
}

/// The path in a string, of any bytes.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char, what: &str) -> Result<&'a Path, Failure> {
    // SAFETY: the caller's promise is the one that the called function requires.
    Ok(Path::new(OsStr::from_bytes(unsafe { text(path, what) }?)))
}

/// The addresses in a list, separated by commas.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn addresses(list: *const c_char, what: &str) -> Result<Vec<Address>, Failure> {
    // SAFETY: the caller's promise is the one that the called function requires.
    let list = OsStr::from_bytes(unsafe { text(list, what) }?);
    Ok(Address::parse_list_os(list).map_err(dlfs::Error::from)?)
}

/// Calls `make` with each of the `count` strings at `at`, and returns the results.
///
/// # Safety
/// `at` is NULL or points to `count` strings, each NULL or with a NUL at its end, which do not change during `'a`.
pub(crate) unsafe fn strings<T>(
    at: *const *const c_char,
    count: usize,
    what: &str,
    make: impl FnMut(&*const c_char) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    // SAFETY: the caller's promise is the one that the called function requires.
    unsafe { array(at, count, what)? }.iter().map(make).collect()
}

/// Copies the strings at `at`. Errors call the array `what` and one of its strings `each`.
///
/// # Safety
/// As [`strings`].
pub(crate) unsafe fn names(
    at: *const *const c_char,
    count: usize,
    what: &str,
    each: &str,
) -> Result<Vec<Vec<u8>>, Failure> {
    // SAFETY: the caller's promise is the one that the called functions require.
    unsafe { strings(at, count, what, |&name| Ok(text(name, each)?.to_vec())) }
}

/// The ids at `at`.
///
/// # Safety
/// As [`array`].
pub(crate) unsafe fn ids(at: *const u64, count: usize) -> Result<Vec<SampleId>, Failure> {
    // SAFETY: the caller's promise is the one that the called function requires.
    Ok(unsafe { array(at, count, "ids")? }.iter().map(|&id| SampleId(id)).collect())
}

/// The array of `count` values at `at`, which may be NULL if `count` is 0.
///
/// # Safety
/// `at` is NULL or points to `count` values, which do not change during `'a`.
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
    // SAFETY: not NULL and aligned, and the caller promises that `count` values exist and stay for
    // `'a`; `MAX_COUNT` of the largest type are fewer bytes than `isize::MAX`.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// Runs the body of a function that copies a text to `out`.
///
/// # Safety
/// As [`give_text`].
pub(crate) unsafe fn fill_text<T: AsRef<[u8]>>(
    out: *mut c_char,
    len: usize,
    needed: *mut usize,
    text: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    // SAFETY: the caller's promise is the one that the called function requires.
    guard(|| unsafe { give_text(text()?.as_ref(), out, len, needed) })
}

/// Stores the length of `text` with its NUL in `needed`, then copies both to `out`.
///
/// # Errors
/// `DLFS_E_TOO_SMALL`: `out` is NULL or has no room for both; nothing is copied.
///
/// # Safety
/// `out` is NULL or has `len` bytes, `needed` is NULL or a `size_t`, and nobody else accesses them.
unsafe fn give_text(
    text: &[u8],
    out: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> Result<(), Failure> {
    let need = text.len() + 1;
    if !needed.is_null() {
        // SAFETY: not NULL, so the caller promises that a `size_t` is there; unaligned is allowed.
        unsafe { needed.write_unaligned(need) };
    }
    if out.is_null() || len < need {
        let text = format!("the text has {need} bytes with its NUL, there is room for {len}");
        return Err(Failure::new(DLFS_E_TOO_SMALL, text));
    }
    // SAFETY: `out` is not NULL and has at least `need` of its `len` bytes, which nobody else accesses.
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        out.cast::<u8>().add(text.len()).write(0);
    }
    Ok(())
}

/// Writes `value` to `to`.
///
/// # Safety
/// `to` is NULL or points to a `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if to.is_null() || !to.is_aligned() {
        return Err(Failure::invalid(format!("{what} is NULL or not aligned")));
    }
    // SAFETY: not NULL and aligned, and the caller promises that a `T` there may be overwritten.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes `value` to `to`, unless that is NULL.
///
/// # Safety
/// As [`put`].
pub(crate) unsafe fn put_if_asked<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    // SAFETY: the caller's promise is the one that the called function requires.
    if to.is_null() { Ok(()) } else { unsafe { put(to, value, what) } }
}

/// No struct of this library will ever be larger: such a size is an error.
const MAX_SIZE: usize = 4096;

/// The most entries of an array, so that lengths in bytes cannot overflow.
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

    /// As a later version has it.
    #[derive(Debug, Clone, Copy, PartialEq)]
    #[repr(C)]
    struct Three {
        two: Two,
        added: u64,
    }
    // SAFETY: numbers alone, the size first.
    unsafe impl Struct for Three {
        const NAME: &str = "three";
        const EARLIER: &[usize] = &[size_of::<Two>()];
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
    fn a_smaller_struct_of_an_earlier_version_is_taken_and_filled_as_far_as_it_goes() {
        let mut numbers = [16u64, 7, 9];
        let at = numbers.as_mut_ptr().cast::<Three>();
        // SAFETY: as many numbers are there as the first says.
        let three = unsafe { take(at.cast_const()) }.ok().unwrap();
        assert_eq!((three.two.value, three.added), (7, 0), "what it has not is zero");
        let value = Three { two: Two { size: 0, value: 5 }, added: 6 };
        // SAFETY: as above.
        unsafe { give(at, value) }.ok().unwrap();
        assert_eq!(numbers, [16, 5, 9], "nothing behind its end is touched");
        numbers[0] = 20; // of no version: half a field
        // SAFETY: as above.
        assert_eq!(code(unsafe { take(numbers.as_ptr().cast::<Three>()) }), DLFS_E_SIZE);
    }

    #[test]
    fn a_text_is_returned_whole_or_not_at_all() {
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
