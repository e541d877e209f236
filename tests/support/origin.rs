//! The origin behind tiers: a namespace of random bytes in memory.

use std::sync::Arc;

use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;

use super::random::Random;

/// Random bytes, and the read-only namespace that holds them.
pub struct Origin {
    pub bytes: Vec<u8>,
    pub device: Arc<dyn Device>,
}

impl Origin {
    pub fn new(seed: u64, len_bytes: u64) -> Origin {
        let mut bytes = vec![0; len_bytes as usize];
        Random::new(seed).fill(&mut bytes);
        let device = MemNamespace::new(len_bytes, 4096).unwrap();
        Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &bytes).unwrap();
        Origin { bytes, device: Arc::new(device.read_only()) }
    }
}
