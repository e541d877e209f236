//! The client of a store: requests, responses, retries and readahead.
//!
//! Read `flow/` first, then `fetch.rs`, which requests one range, `direct.rs`, which receives it over plain
//! HTTP, and `reader.rs`. `web.rs`, `pages.rs` and `copies.rs` are for web servers only.

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
