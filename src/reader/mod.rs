//! Turns a batch of samples into few large reads, and verified bytes.
