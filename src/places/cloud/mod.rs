//! The client of a store: requests, responses, retries and readahead.
//!
//! | question | file |
//! |---|---|
//! | When is a request sent, retried, hedged? Which range is next? | `flow.rs`; read it first |
//! | How is one range read? | `fetch.rs`, `wanted.rs`; into which memory: `range_buf.rs` |
//! | How does it arrive? | `direct.rs` over plain HTTP, else `http_client.rs`; `watch.rs` observes both |
//! | What is an error, and is it retried? | `failure.rs` |
//! | How do threads use a store? | `client.rs`, `listing.rs`; in order: `reader.rs`, `flowing.rs` |
//! | On which thread does this run? | `executor.rs` |
//! | How is a store opened? | `store.rs` |
//! | What is special about the Hugging Face Hub? | `hub.rs` |
//! | What is special about web servers? | `web.rs`, `pages.rs`, `copies.rs` |
//! | What is special about keys that cannot be named? | `sift.rs` |

mod client;
mod copies;
mod direct;
mod executor;
mod failure;
mod fetch;
mod flow;
mod flowing;
mod http_client;
mod hub;
mod listing;
mod pages;
mod range_buf;
mod reader;
mod sift;
mod store;
mod wanted;
mod watch;
mod web;

pub use client::{Client, Pending};
pub use reader::Reader;
