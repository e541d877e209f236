//! The future of a training run, computed: orders of samples, plans of copies, and the tables of tiers. Pure.
//!
//! [`order`] says which sample comes next on which rank, [`plan`] who reads what and how often and what to keep
//! where, and [`tier`] which copies are in which tier.
//!
//! It reads no sample and moves no copy: readers and `dlfs-cache` do. Every sequence is frozen by a golden file.
//!
//! Begin with [`order::EpochOrder`].

pub mod order;
pub mod plan;
pub mod tier;
