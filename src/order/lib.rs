//! Computes the future of a training run: orders of samples, plans of copies, and the tables of tiers. Pure.
//!
//! [`order`] computes the sequence of samples on each rank. [`plan`] computes how often each rank reads each
//! sample, and where to keep copies. [`tier`] tracks which copies are in which tier.
//!
//! This crate reads no sample and moves no copy: readers and `dlfs-cache` do. Golden files freeze every sequence.
//!
//! Read [`order::EpochOrder`] first.

pub mod order;
pub mod plan;
pub mod tier;
