//! The C ABI of dlfs: thin over `dlfs::dataset`, which does the work; `dlfs.h` is made from this.
//!
//! What is added here is what C needs: numbers for errors and a text for each thread, structs that carry
//! their size, and handles that are checked. A handle looks like a pointer and is none: it is a place in
//! a table and a generation, so that NULL, a closed or a made-up handle is an error. No panic leaves a
//! function. Nothing here reads, retries or orders samples.
//!
//! # Safety
//! Each function trusts its caller in what C alone can know, and in nothing else: a pointer that is
//! not NULL points to what its type says, a string ends with NUL, a struct has the size that its
//! first field says, and while a call runs nobody changes what it reads or looks at what it fills.
//! `dlfs.h` states it once for all functions, as it is stated here.
//!
//! Read `handles.rs` and `error.rs` first.
#![allow(unsafe_code)] // one of the homes of `unsafe`: pointers from C
#![allow(clippy::missing_safety_doc)] // said above, once for all functions

pub mod batch;
pub mod error;
mod fields;
pub mod file;
mod handles;
pub mod log;
pub mod mount;
pub mod names;
pub mod namespace;
pub mod options;
pub mod read_batch;
pub mod sequence;
pub mod stats;
mod structs;
