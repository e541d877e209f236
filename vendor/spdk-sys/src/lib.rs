//! Declarations of SPDK's C functions and structs, made by bindgen from the headers that are installed.
//!
//! Nothing here is safe and nothing here decides anything: `dlfs::spdk` is the fence around it. The
//! crate is empty without its feature `bindings`, and needs SPDK only with it.

#[cfg(feature = "bindings")]
mod bindings {
    #![allow(
        unsafe_code,
        unsafe_op_in_unsafe_fn,
        missing_docs,
        unreachable_pub,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        clippy::all,
        clippy::undocumented_unsafe_blocks
    )] // what bindgen writes
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

#[cfg(feature = "bindings")]
pub use bindings::*;
