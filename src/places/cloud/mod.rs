//! The client of a store: requests, responses, retries and readahead.
//!
//! Read `flow.rs` first, then `fetch.rs`, which requests one range, `direct.rs`, which receives it over plain
//! HTTP, `flowing.rs`, which takes an object as it arrives, and `client.rs`. `store.rs` opens a store, for which
//! `aws_profile.rs` has settings, and `hub.rs` and `web.rs` the requests that only the Hugging Face Hub and web servers
//! need. `pages.rs` is for web servers only.

mod aws_profile;
mod client;
mod direct;
mod executor;
mod fetch;
mod flow;
mod flowing;
mod http_client;
mod hub;
mod pages;
mod store;
mod watch;
mod web;

pub use client::{Client, Pending, Reader};
