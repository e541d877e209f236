//! Hashes, lengths and counts that an index states for its shards, and their verification.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use sha2::Digest;
use xxhash_rust::{xxh3::Xxh3, xxh32::Xxh32, xxh64::Xxh64};

use crate::import::formats::input::{BUFFER_BYTES, Input};
use dlfs_base::Result;

/// The length, hashes and number of items that an index states for a shard. Hashes have the names of Python's `hashlib`
/// and `xxhash`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Stated {
    /// Length of the file in bytes. `None`: it is not stated.
    #[serde(default)]
    pub(super) bytes: Option<u64>,
    /// Hashes of the file in hexadecimal, by name.
    #[serde(default)]
    pub(super) hashes: BTreeMap<String, String>,
    /// Number of items. `None`: it is not stated.
    #[serde(skip)]
    pub(super) items: Option<u64>,
}

impl Stated {
    /// Compares the stated number of items with the number that the file has.
    ///
    /// # Errors
    /// `BadSource`: they differ.
    pub(super) fn check_items(&self, found: u64, input: &Input) -> Result<()> {
        match self.items.filter(|items| *items != found) {
            Some(items) => {
                differs(input, &format!("table has {found} items, and the index states {items}"))
            }
            None => Ok(()),
        }
    }

    /// Reads the file and compares its hashes and length, if a hash is stated that dlfs knows.
    ///
    /// # Errors
    /// `BadSource`: a hash or the length differs. Errors of reading.
    pub(super) fn check(&self, input: &Input) -> Result<()> {
        let known = self.hashes.iter().filter_map(|(name, hash)| Some((name, hash, sum(name)?)));
        let mut sums: Vec<_> = known.collect();
        if sums.is_empty() && !self.hashes.is_empty() {
            let names: Vec<&str> = self.hashes.keys().map(String::as_str).collect();
            let path = input.path.display();
            tracing::warn!(
                "{path}: hashes are not checked: dlfs knows none of {}",
                names.join(", ")
            );
        }
        if sums.is_empty() {
            return Ok(());
        }
        let mut from = input.read(0, None)?;
        let mut len = 0;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = from.read(&mut buffer);
            input.check()?;
            let read = read.map_err(|error| input.named(error))?;
            if read == 0 {
                break;
            }
            len += read as u64;
            sums.iter_mut().for_each(|(.., sum)| drop(sum(&buffer[..read])));
        }
        if let Some(bytes) = self.bytes.filter(|bytes| *bytes != len) {
            return differs(input, &format!("length is {len}, and the index states {bytes}"));
        }
        for (name, hash, mut sum) in sums {
            let found = sum(&[]);
            if found != hash.to_ascii_lowercase() {
                return differs(input, &format!("{name} is {found}, and the index states {hash}"));
            }
        }
        Ok(())
    }
}

/// The error for a file that differs from the index.
fn differs(input: &Input, what: &str) -> Result<()> {
    let text = format!("its {what}: it was damaged, or written again without its index");
    Err(input.bad(text).hint("copy the shard and its index again from where they come"))
}

/// Adds bytes to a hash; returns the hash of all bytes so far in hexadecimal.
type RunningHash = Box<dyn FnMut(&[u8]) -> String>;

fn digest<D: Digest + Clone + 'static>() -> RunningHash {
    let mut digest = D::new();
    Box::new(move |bytes| {
        digest.update(bytes);
        digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

fn xxhash<H: 'static>(mut hash: H, add: fn(&mut H, &[u8]), hex: fn(&H) -> String) -> RunningHash {
    Box::new(move |bytes| {
        add(&mut hash, bytes);
        hex(&hash)
    })
}

/// The hash with this name; `None`: dlfs does not know it.
fn sum(name: &str) -> Option<RunningHash> {
    Some(match name {
        "md5" => digest::<md5::Md5>(),
        "sha1" => digest::<sha1::Sha1>(),
        "sha224" => digest::<sha2::Sha224>(),
        "sha256" => digest::<sha2::Sha256>(),
        "sha384" => digest::<sha2::Sha384>(),
        "sha512" => digest::<sha2::Sha512>(),
        "xxh32" => xxhash(Xxh32::new(0), Xxh32::update, |hash| format!("{:08x}", hash.digest())),
        "xxh64" => xxhash(Xxh64::new(0), Xxh64::update, |hash| format!("{:016x}", hash.digest())),
        "xxh3_64" => xxhash(Xxh3::new(), Xxh3::update, |hash| format!("{:016x}", hash.digest())),
        "xxh128" | "xxh3_128" => {
            xxhash(Xxh3::new(), Xxh3::update, |hash| format!("{:032x}", hash.digest128()))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_pythons_libraries() {
        for (name, hash) in [
            ("md5", "900150983cd24fb0d6963f7d28e17f72"),
            ("sha1", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            ("sha224", "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"),
            ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            ("xxh32", "32d153ff"),
            ("xxh64", "44bc2cf5ad770999"),
            ("xxh3_64", "78af5f94892f3950"),
            ("xxh128", "06b05ab6733a618578af5f94892f3950"),
        ] {
            let mut sum = sum(name).unwrap();
            sum(b"a");
            assert_eq!(sum(b"bc"), hash, "{name}");
        }
        assert!(sum("blake2b").is_none());
    }
}
