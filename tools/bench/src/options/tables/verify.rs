//! Verification, and what happens after an error.

use super::super::job::{ContinueOn, Verify};
use super::super::value::{boolean, bytes, integer};
use super::io::pattern;
use super::{Opt, opt};

pub(super) const VERIFY: &[Opt] = &[
    opt(
        "verify",
        &[],
        "crc32c|pattern|0",
        "Write blocks that can be checked, and check what is read. crc32c: each verify_interval begins with \
         a header of 32 bytes (magic, seed, offset, CRC32C); pattern: every byte is verify_pattern's. A job \
         that writes reads all of it again afterwards.",
        |j, v| {
            j.verify = match v {
                "0" | "none" | "null" => Verify::None,
                "crc32c" | "crc32c-intel" | "1" => Verify::Crc32c,
                "pattern" => Verify::Pattern,
                _ => return Err("only crc32c and pattern are offered".to_owned()),
            };
            Ok(())
        },
    ),
    opt(
        "do_verify",
        &[],
        "BOOL",
        "Whether a job that writes reads it again afterwards; on unless switched off.",
        |j, v| {
            j.do_verify = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "verify_only",
        &[],
        "BOOL",
        "Write nothing; check what an equal job has written.",
        |j, v| {
            j.verify_only = boolean(v)?;
            Ok(())
        },
    ),
    opt(
        "verify_interval",
        &[],
        "SIZE",
        "Bytes that one header covers; the smallest block unless given.",
        |j, v| {
            j.verify_interval = bytes(v, j.kb_base)?;
            if j.verify_interval < 64 {
                return Err("at least 64 bytes".to_owned());
            }
            Ok(())
        },
    ),
    opt(
        "verify_pattern",
        &[],
        "PATTERN",
        "Bytes of verify=pattern: \"text\", 0xHEX or a number.",
        |j, v| {
            j.verify_pattern = pattern(v)?;
            Ok(())
        },
    ),
    opt("verify_fatal", &[], "BOOL", "End the job with the first block that is wrong.", |j, v| {
        j.verify_fatal = boolean(v)?;
        Ok(())
    }),
    opt(
        "continue_on_error",
        &[],
        "none|read|write|io|verify|all",
        "Which errors are counted rather than end the job.",
        |j, v| {
            let set = |read, write, verify| ContinueOn { read, write, verify };
            j.continue_on = match v {
                "none" | "0" => set(false, false, false),
                "read" => set(true, false, false),
                "write" => set(false, true, false),
                "io" => set(true, true, false),
                "verify" => set(false, false, true),
                "all" | "1" => set(true, true, true),
                _ => return Err("no kind of error of that name".to_owned()),
            };
            Ok(())
        },
    ),
    opt(
        "ignore_error",
        &[],
        "READ[:...],WRITE[:...],VERIFY[:...]",
        "Errors that do not count at all: EIO, ENOSPC, EILSEQ, ..., or numbers.",
        |j, v| {
            for (kind, list) in v.split(',').enumerate().take(3) {
                let numbers = list.split(':').filter(|name| !name.is_empty()).map(errno);
                j.ignore_error[kind] = numbers.collect::<Result<_, _>>()?;
            }
            Ok(())
        },
    ),
];

fn errno(name: &str) -> Result<i32, String> {
    let known = [
        ("EIO", libc::EIO),
        ("ENOSPC", libc::ENOSPC),
        ("EILSEQ", libc::EILSEQ),
        ("EINVAL", libc::EINVAL),
        ("EROFS", libc::EROFS),
        ("ENOMEM", libc::ENOMEM),
        ("ETIMEDOUT", libc::ETIMEDOUT),
        ("ENOTCONN", libc::ENOTCONN),
    ];
    match known.iter().find(|entry| entry.0 == name) {
        Some(entry) => Ok(entry.1),
        None => integer(name).map(|number| number as i32),
    }
}
