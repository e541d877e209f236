//! All options of a job, by what they are about.

mod io;
mod measure;
mod none;
mod run;
mod samples;
mod verify;

use super::table::{Opt, Set};

/// Heading and options, in the order of the help.
pub(crate) const TABLES: &[(&str, &[Opt])] = &[
    ("Job", run::JOB),
    ("Target", run::TARGET),
    ("Pattern", io::PATTERN),
    ("Blocks and buffers", io::BLOCKS),
    ("Size", io::SIZE),
    ("Depth", io::DEPTH),
    ("Rate, thinking and latency target", io::RATE),
    ("Verification and errors", verify::VERIFY),
    ("Samples (rw=samples)", samples::SAMPLES),
    ("Connection (as in nvme-cli)", samples::CONNECTION),
    ("Steady state", measure::STEADY),
    ("Logs", measure::LOGS),
    ("Measurement", measure::MEASUREMENT),
    ("Accepted, without effect here", none::NONE),
    ("Refused", none::REFUSED),
];

type Setter = fn(&mut super::Job, &str) -> Result<(), String>;

const fn opt(
    name: &'static str,
    aliases: &'static [&'static str],
    value: &'static str,
    help: &'static str,
    set: Setter,
) -> Opt {
    Opt { name, aliases, value, help, set: Set::To(set) }
}
