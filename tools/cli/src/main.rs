//! The command `dlfs`.

fn main() {}
