//! Imports from a store that are interrupted and resumed, and what they ask the store for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use dlfs::import::sources::SourceKind;
use dlfs::import::{
    ImportOptions, ImportReport, OnError, Onto, PlacementOrder, Progress, Stage, import_onto,
};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::{ErrorKind, Result};

use super::object_store::{Fault, ObjectStore};
use crate::import_support::{contents, options};

/// Stops an import after so many samples.
pub struct After(pub u64);

impl Progress for After {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}

    fn advance(&mut self, samples: u64, _: u64) {
        self.0 = self.0.saturating_sub(samples);
    }

    fn stop(&mut self) -> bool {
        self.0 == 0
    }
}

/// A store that keeps which bytes of which objects it was asked for.
pub struct Watched {
    pub store: ObjectStore,
    asked: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Watched {
    pub fn new() -> Watched {
        let asked: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let seen = Arc::clone(&asked);
        let store = ObjectStore::with_faults(move |request| {
            if let Some((from, to)) = request.range.filter(|_| request.method == "GET") {
                *seen.lock().unwrap().entry(request.key.clone()).or_default() += to - from + 1;
            } else if request.method == "GET" && !request.key.is_empty() {
                // A whole object.
                *seen.lock().unwrap().entry(request.key.clone()).or_default() += 1 << 40;
            }
            Fault::None
        });
        Watched { store, asked }
    }

    /// Bytes that were asked for since the last call, by key.
    pub fn asked(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

/// An import: its sources and its options.
pub struct Case {
    pub watched: Watched,
    pub kind: SourceKind,
    pub sources: Vec<PathBuf>,
    pub placement: PlacementOrder,
    pub on_error: OnError,
    /// Sets further options.
    pub more: Box<dyn Fn(&mut ImportOptions)>,
}

impl Case {
    pub fn new(
        kind: SourceKind,
        placement: PlacementOrder,
        shards: &[(impl AsRef<str>, Vec<u8>)],
    ) -> Case {
        let watched = Watched::new();
        for (name, bytes) in shards {
            watched.store.put(&format!("x/{}", name.as_ref()), bytes.clone());
        }
        let sources = vec![PathBuf::from("s3://bucket/x")];
        Case { watched, kind, sources, placement, on_error: OnError::Stop, more: Box::new(|_| {}) }
    }

    pub fn import(
        &self,
        devices: &[Arc<dyn Device>],
        onto: Onto,
        after: u64,
    ) -> Result<ImportReport> {
        let mut places = self.watched.store.options();
        places.range_bytes = 1 << 20;
        places.window_bytes = 4 << 20;
        let mut options = ImportOptions {
            places,
            from: self.kind,
            placement: self.placement,
            on_error: self.on_error,
            chunk_size_bytes: 1 << 20,
            ..options(onto)
        };
        (self.more)(&mut options);
        import_onto(&self.sources, devices, &options, &mut After(after))
    }

    /// An import in one go.
    pub fn whole(&self) -> (ImportReport, Vec<u8>) {
        let devices = memory();
        let report = self.import(&devices, Onto::Empty, u64::MAX).unwrap();
        contents(&devices).unwrap();
        self.watched.asked();
        (report, all(&devices))
    }

    /// One that stops after so many samples.
    pub fn interrupted(&self, after: u64) -> Vec<Arc<dyn Device>> {
        let devices = memory();
        let error = self.import(&devices, Onto::Empty, after).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error:?}");
        self.watched.asked();
        devices
    }
}

pub fn memory() -> Vec<Arc<dyn Device>> {
    let namespace = || MemNamespace::new(32 << 20, 4096).unwrap();
    vec![Arc::new(namespace()), Arc::new(namespace())]
}

pub fn all(devices: &[Arc<dyn Device>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for device in devices {
        let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
        bytes.extend_from_slice(&io.read(0, device.namespace().len_bytes() as usize).unwrap());
    }
    bytes
}
