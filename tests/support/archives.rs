//! Hand-made archives and shards, for tests of sources.

use std::fs;
use std::path::{Path, PathBuf};

/// A header and its payload, padded.
pub fn member(name: &str, kind: u8, link: &str, content: &[u8]) -> Vec<u8> {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[257..265].copy_from_slice(b"ustar\x0000");
    fix_checksum(&mut block);
    let mut bytes = [&block[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub fn archive(dir: &Path, name: &str, members: &[Vec<u8>]) -> PathBuf {
    let path = dir.join(name);
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(&path, bytes).unwrap();
    path
}

pub fn fix_checksum(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

pub fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

pub fn record(payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u64).to_le_bytes();
    [&len[..], &masked(&len), payload, &masked(payload)].concat()
}
