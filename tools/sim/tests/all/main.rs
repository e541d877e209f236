//! Tests of the simulator, as one program.

mod command;
mod policies;
mod thesis;
