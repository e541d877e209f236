//! The client of a store: requests, responses, retries and readahead.
//!
//! Read `flow.rs` first, then `fetch.rs`, which requests one range, `direct.rs`, which receives it over plain
//! HTTP, and `reader.rs`. `web.rs` and `pages.rs` are for web servers only.

mod client;
mod direct;
mod failure;
mod fetch;
mod flow;
mod http_client;
mod hub;
mod pages;
mod reader;
mod store;
mod watch;
mod web;

pub use client::{Client, Pending};
pub use reader::Reader;
