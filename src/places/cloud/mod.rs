//! The client of a store, with all that asks and answers.
//!
//! Read `flow/` first, then `fetch.rs`, which asks for one range, `direct.rs`, which receives it where it comes over
//! plain HTTP, and `reader.rs`. `web.rs`, `pages.rs` and `copies.rs` are for web servers alone.

mod bodies;
mod client;
mod copies;
mod direct;
mod failure;
mod fetch;
mod flow;
mod http_client;
mod hub;
mod keys;
mod pages;
mod pool;
mod profile;
mod reader;
mod redirect;
mod store;
mod wanted;
mod watch;
mod web;

pub use client::{Client, Pending};
pub use reader::Reader;
