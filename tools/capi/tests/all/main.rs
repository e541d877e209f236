//! Tests of the C interface, as one program.

mod common;

mod c;
mod hard;
mod header;
