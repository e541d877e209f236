//! The C interface of dlfs, a thin layer over `dlfs::dataset`; `dlfs.h` is generated from it.
//!
//! It adds what C needs: error numbers and a text for each thread, structs that carry their size,
//! and checked handles. A handle looks like a pointer but is a number in a table, given
//! once, so NULL, closed and invalid handles are errors. No panic leaves a function. Nothing
//! here reads, retries or orders samples.
//!
//! # Safety
//! Each function relies on its caller only for what C alone can know: a pointer that is not NULL
//! points to what its type says, a string ends with NUL, a struct has the size in its first field,
//! and during a call nobody changes its inputs or accesses its outputs. `dlfs.h` states this once
//! for all functions.
//!
//! Read `structs.rs`, `handles.rs` and `error.rs` first.
#![allow(unsafe_code)] // one of the homes of `unsafe`: pointers from C
#![allow(clippy::missing_safety_doc)] // stated above, once for all functions

pub mod batch;
pub mod column;
mod converted;
pub mod edit;
pub mod error;
pub mod field_type;
pub mod file;
mod handles;
pub mod log;
pub mod mixture;
pub mod mount;
pub mod namespace;
pub mod options;
pub mod parts;
mod peers;
pub mod read_batch;
pub mod sequence;
pub mod stats;
mod structs;
pub mod tokens;
pub mod views;
pub mod writer;
