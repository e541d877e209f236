//! The commands on an image that a power loss interrupts, and the expected results.

use std::collections::BTreeMap;
use std::fs;

use dlfs::dataset::{Image, OpenOptions, VerifyOptions};
use dlfs::import::{ImportOptions, Onto, delete_on, import_onto, purge_on, rebuild_on};
use dlfs::qpair::blocking::Blocking;
use dlfs::{ErrorKind, Result};

use super::disk::{Content, Disks, Event, PAGE_BYTES};
use crate::import_support::{options, paths, tree};
use crate::support::random::Random;

/// Names and bytes of all samples.
pub type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// One command.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Imports the source of this number, with this time stamp everywhere.
    Import {
        source: usize,
        onto: Onto,
        time_ns: u64,
    },
    /// Deletes every sample whose index in the list of names is a multiple of this.
    Delete {
        every: usize,
    },
    Purge,
    Rebuild,
}

/// The contents of an image.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// It cannot be opened: nothing was committed, or what is needed to open it was destroyed.
    Nothing,
    Samples(Files),
}

/// A history of commands on disks, with the expected result of each.
pub struct Scene {
    pub name: &'static str,
    sources: Vec<(tempfile::TempDir, Files)>,
    chunk_size_bytes: u32,
    /// True if more than the power failed: superblocks were destroyed.
    pub medium_went_bad: bool,
    pub start: Vec<Content>,
    pub steps: Vec<Step>,
    /// The state before each step, and after the last.
    pub states: Vec<State>,
    /// For each step, a hash of the disks after it.
    pub ends: Vec<u64>,
    pub events: Vec<Event>,
}

/// The description of a scene.
pub struct Script {
    pub name: &'static str,
    pub disks: usize,
    pub chunk_size_bytes: u32,
    /// The commands before, undisturbed.
    pub before: Vec<Step>,
    /// True if all superblocks are destroyed after them.
    pub destroyed: bool,
    pub steps: Vec<Step>,
}

/// Source 3 is for the commands afterwards.
pub const LATER: usize = 3;

impl Scene {
    pub fn record(script: Script) -> Scene {
        let Script { name, disks, chunk_size_bytes, before, destroyed, steps } = script;
        let sources = (0..4).map(source).collect();
        let num_pages = chunk_size_bytes as usize / PAGE_BYTES * CELLS;
        let blank = vec![Content::zeroes(num_pages); disks];
        let mut scene = Scene {
            name,
            sources,
            chunk_size_bytes,
            medium_went_bad: destroyed,
            start: blank,
            steps: Vec::new(),
            states: vec![State::Nothing],
            ends: Vec::new(),
            events: Vec::new(),
        };
        let disks = Disks::holding(scene.start.clone());
        for step in &before {
            let after = scene.after(scene.states.last().expect("one was put there"), step);
            scene.run(step, &disks).unwrap();
            assert_eq!(scene.read_all(&disks), Ok(after.clone()), "{name}: {step:?}");
            scene.states = vec![after];
        }
        scene.start = disks.contents();
        if destroyed {
            scene.start.iter_mut().for_each(Content::destroy_superblocks);
        }
        let disks = Disks::holding(scene.start.clone());
        disks.record(Random::new(7));
        for step in steps {
            let after = scene.after(scene.states.last().expect("one was put there"), &step);
            scene.run(&step, &disks).unwrap();
            disks.acknowledge();
            scene.ends.push(disks.hash());
            scene.states.push(after);
            scene.steps.push(step);
        }
        scene.events = disks.events();
        if scene.read_all(&Disks::holding(scene.start.clone())) == Ok(State::Nothing) {
            scene.states[0] = State::Nothing;
        }
        assert_eq!(scene.read_all(&disks).as_ref(), Ok(scene.states.last().unwrap()), "{name}");
        scene
    }

    /// Runs one command.
    pub fn run(&self, step: &Step, disks: &Disks) -> Result<()> {
        let devices = disks.devices();
        match step {
            Step::Import { source, onto, time_ns } => {
                let chunk_size_bytes = self.chunk_size_bytes;
                let time_ns = Some(*time_ns);
                let options = ImportOptions { chunk_size_bytes, time_ns, ..options(*onto) };
                let root = self.sources[*source].0.path();
                import_onto(&paths(root), &devices, &options, &mut ()).map(drop)
            }
            Step::Delete { every } => {
                let image = Image::from_devices(devices.clone(), &OpenOptions::default())?;
                let names = deleted(&names_of(&image)?, *every);
                delete_on(&devices, &names).map(drop)
            }
            Step::Purge => purge_on(&devices, &mut ()).map(drop),
            Step::Rebuild => rebuild_on(&devices, None, &mut ()).map(drop),
        }
    }

    /// The expected state after `step` on `state`.
    pub fn after(&self, state: &State, step: &Step) -> State {
        let mut files = match state {
            State::Samples(files) => files.clone(),
            State::Nothing => Files::new(),
        };
        match step {
            Step::Import { source, onto, .. } => {
                if *onto == Onto::Force {
                    files.clear();
                }
                files.extend(self.sources[*source].1.clone());
            }
            Step::Delete { every } => {
                let names: Vec<Vec<u8>> = files.keys().cloned().collect();
                for name in deleted(&names, *every) {
                    files.remove(&name);
                }
            }
            Step::Purge | Step::Rebuild => {}
        }
        State::Samples(files)
    }

    /// Opens the image, verifies it, and reads every sample.
    pub fn read_all(&self, disks: &Disks) -> std::result::Result<State, String> {
        let image = match Image::from_devices(disks.devices(), &OpenOptions::default()) {
            Ok(image) => image,
            // The first superblock of an image may be torn: that is neither an image nor blank.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                return Ok(State::Nothing);
            }
            Err(error) => return Err(format!("opening: {}", error.report())),
        };
        let told = |error: dlfs::Error| error.report();
        let report = image.verify(&VerifyOptions::default(), &mut |_| ()).map_err(told)?;
        // A power loss alone leaves no bad copy of a superblock.
        let is_expected = |what: &str| self.medium_went_bad && what.starts_with("superblock copy");
        if let Some(damage) = report.damages.iter().find(|damage| !is_expected(&damage.what)) {
            return Err(format!("verify: {damage:?}"));
        }
        let directory = image.directory();
        let pairs = image.devices().iter().map(|device| device.queue_pair());
        let mut ios: Vec<Blocking> =
            pairs.map(|pair| pair.and_then(Blocking::new)).collect::<Result<_>>().map_err(told)?;
        let mut files = Files::new();
        for rank in 0..directory.num_live() {
            let id = directory.id_of_live(rank);
            let extent = directory.extent(id).ok_or("a live sample lies nowhere")?;
            let io = &mut ios[usize::from(extent.namespace)];
            let bytes = io.read(extent.offset_bytes, extent.len_bytes as usize).map_err(told)?;
            let name = directory.name(id).map_err(|error| error.to_string())?;
            files.insert(name.ok_or("a live sample has no name")?, bytes.to_vec());
        }
        Ok(State::Samples(files))
    }
}

/// Cells of a disk.
const CELLS: usize = 28;

/// A few files of all sizes, one of which does not fit into a 64 KiB chunk.
fn source(number: u64) -> (tempfile::TempDir, Files) {
    let folder = tempfile::tempdir().unwrap();
    let (count, large) = [(9, 70_000), (6, 80_000), (7, 0), (4, 0)][number as usize];
    let mut files = tree(folder.path(), count, 15_000, number + 1);
    if large > 0 {
        let bytes: Vec<u8> = (0..large as u32).map(|at| (at * 31 + number as u32) as u8).collect();
        let name = format!("class0/large-{number}");
        fs::write(folder.path().join(&name), &bytes).unwrap();
        files.insert(name.into_bytes(), bytes);
    }
    (folder, files)
}

fn deleted(names: &[Vec<u8>], every: usize) -> Vec<Vec<u8>> {
    names.iter().step_by(every).cloned().collect()
}

fn names_of(image: &Image) -> Result<Vec<Vec<u8>>> {
    image.load_names()?;
    let directory = image.directory();
    let name = |rank| Ok(directory.name(directory.id_of_live(rank))?.expect("it has a name"));
    let mut names = (0..directory.num_live()).map(name).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}
