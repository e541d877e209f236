//! Sizes on the command line: `4096`, `4M`, `256MiB`, `1G`, `100MB`.

pub(crate) use dlfs::units::parse_size;
