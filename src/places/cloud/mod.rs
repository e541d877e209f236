//! The client of a store: requests, responses, retries and readahead.
//!
//! Read `flow.rs` first, then `fetch.rs`, which requests one range, `direct.rs`, which receives it over plain
//! HTTP, `flowing.rs`, which takes an object as it arrives, and `client.rs`. `pages.rs` is for web servers only.

mod client;
mod direct;
mod executor;
mod fetch;
mod flow;
mod flowing;
mod http_client;
mod pages;
mod store;
mod watch;

pub use client::{Client, Pending, Reader};
