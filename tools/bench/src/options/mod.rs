//! The user's request: job files, the command line, and the table of all options.
//!
//! `file` reads INI, `command_line` reads arguments; both end in entries that `table` applies to a
//! [`Job`]. `value` reads single values, `text` bounds the files. `fio` refuses what only fio has. `help`
//! prints the table.

pub(crate) mod command_line;
pub(crate) mod file;
mod fio;
pub(crate) mod help;
pub(crate) mod job;
pub(crate) mod table;
mod tables;
mod text;
pub(crate) mod value;

pub(crate) use job::Job;
