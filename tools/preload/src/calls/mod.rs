//! The functions that programs call instead of the C library's, by what they do.

pub mod attributes;
pub mod descriptors;
pub mod folders;
pub mod open;
pub mod others;
pub mod reads;
pub mod writes;

use std::ffi::c_int;

use crate::own;

/// A number as C returns it: -1 and `errno` for an error.
fn returned(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|errno| {
        own::set_errno(errno);
        -1
    })
}

/// A length as C returns it.
fn returned_len(result: Result<isize, c_int>) -> isize {
    result.unwrap_or_else(|errno| {
        own::set_errno(errno);
        -1
    })
}

/// A pointer as C returns it: NULL and `errno` for an error.
fn returned_pointer<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        own::set_errno(errno);
        std::ptr::null_mut()
    })
}
