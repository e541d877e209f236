//! Rows of tokens: documents packed into arrays `[B, L]`, by arithmetic.
//!
//! A sample is a document: a list of tokens. The documents of an epoch come in the order's sequence, and fill *rows* of
//! a limited number of tokens by the rule of a [`RowSpec`](dlfs_order::order::budget::RowSpec). Rows depend only on the
//! order and on lengths, so every rank computes the same rows, and takes its share of each global batch.
//!
//! This crate does no I/O: `deal` computes which tokens of which documents make the rows of a rank, and `fill` writes
//! them into arrays. The library's `prefetch` reads the documents.
//!
//! Read `layout.rs` first, then `deal.rs`, which defines rows.

mod best_fit;
mod buckets;
mod columns;
mod deal;
mod fill;
mod layout;
mod line;
mod phases;
mod windows;

pub use columns::Columns;
pub use deal::{RowCounts, RowDeal, count_rows};
pub use fill::{Arrays, Document, FillRules, TokenType, TokensMut, fill};
pub use layout::{Layout, Segment};
