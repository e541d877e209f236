//! Tests of `dlfs-bench`, as one program: a module for each area.

mod common;

mod bad_input;
mod data_sets;
mod fio_engine;
mod fio_keys;
mod job_files;
mod jobs;
mod signals;
