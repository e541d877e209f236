//! The invariants after each power loss: the previous generation or the next one, complete, and a way to
//! continue.

use std::collections::{BTreeMap, HashSet};

use dlfs::import::Onto;
use dlfs::{Error, ErrorKind};

use super::cuts::{Cut, cuts};
use super::disk::{Content, Disks, hash_of};
use super::scene::{LATER, Scene, State, Step};
use crate::support::random::Random;

/// How much to check.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Images per scene, at least, if there are that many.
    pub images: usize,
    /// Up to this many undecided sectors, all subsets are tried.
    pub sectors: usize,
    pub seed: u64,
}

/// A scene being checked.
pub struct Checker<'a> {
    scene: &'a Scene,
    effort: Effort,
    random: Random,
    seen: HashSet<(u64, usize)>,
    pub counts: BTreeMap<String, usize>,
    pub failures: Vec<String>,
}

impl<'a> Checker<'a> {
    pub fn new(scene: &'a Scene, effort: Effort) -> Checker<'a> {
        let random = Random::new(effort.seed);
        let seen = HashSet::new();
        let counts = BTreeMap::new();
        let failures = Vec::new();
        Checker { scene, effort, random, seen, counts, failures }
    }

    /// Tries every cut of the history; returns the number of distinct images.
    pub fn run(&mut self) -> usize {
        let cuts = cuts(&self.scene.start, &self.scene.events);
        for cut in &cuts {
            let mut images = Vec::new();
            cut.images(self.effort.sectors, &mut |image| images.push(image));
            images.into_iter().for_each(|image| self.try_image(cut, image));
        }
        for _ in 0..MOST_ROUNDS {
            for cut in cuts.iter().filter(|cut| !cut.is_still()) {
                if self.seen.len() >= self.effort.images || self.failures.len() >= MOST_FAILURES {
                    return self.seen.len();
                }
                let image = cut.draw(&mut self.random);
                self.try_image(cut, image);
            }
        }
        self.seen.len()
    }

    fn try_image(&mut self, cut: &Cut, image: Vec<Content>) {
        let hash = hash_of(&image);
        if self.failures.len() >= MOST_FAILURES || !self.seen.insert((hash, cut.acknowledged)) {
            return;
        }
        let number = self.seen.len();
        if let Err(why) = self.check(cut.acknowledged, &image, number as u64, true) {
            let name = self.scene.name;
            let event = cut.event;
            let what = self.scene.steps.get(cut.acknowledged);
            self.failures.push(format!(
                "{name}, image {number}, after event {event}, during {what:?}: {why}"
            ));
        }
    }

    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Checks one image. Its number decides how deeply: what follows a recovery takes longer.
    fn check(
        &mut self,
        acknowledged: usize,
        image: &[Content],
        number: u64,
        may_recurse: bool,
    ) -> Result<(), String> {
        let scene = self.scene;
        let before = &scene.states[acknowledged];
        let after = scene.states.get(acknowledged + 1);
        let step = scene.steps.get(acknowledged);
        let disks = Disks::holding(image.to_vec());
        let found = scene.read_all(&disks)?;
        let given_up = matches!(step, Some(Step::Import { onto: Onto::Force, .. }));
        self.count(match &found {
            State::Nothing if *before == State::Nothing || given_up => "nothing",
            found if Some(found) == after && found == before => "the same",
            found if found == before => "previous",
            found if Some(found) == after => "next",
            State::Nothing => return Err("it cannot be opened any more".to_owned()),
            State::Samples(files) => {
                return Err(format!("{} samples of neither generation", files.len()));
            }
        });
        let (Some(step), Some(after)) = (step, after) else { return Ok(()) };
        if number % 4 == 1 {
            return self.abandon(step, &found, &disks);
        }
        if may_recurse && number % 64 == 2 {
            return self.second_cut(acknowledged, image, step, &found, number);
        }
        if number % 16 == 3 && *before != State::Nothing && !given_up {
            return self.lose_superblocks(before, after, &disks);
        }
        recover(scene, step, &found == after, &disks)?;
        if let Step::Import { .. } = step {
            let same = disks.hash() == scene.ends[acknowledged];
            same.then_some(()).ok_or("going on ended with other bytes than undisturbed")?;
            if number % 8 != 4 {
                return Ok(()); // the bytes were checked when the scene was recorded
            }
        }
        expect(scene, &disks, after, "after going on")?;
        if number % 8 == 4 { self.live_on(after, &disks) } else { Ok(()) }
    }

    /// A second power loss, during the recovery from the first.
    fn second_cut(
        &mut self,
        acknowledged: usize,
        image: &[Content],
        step: &Step,
        found: &State,
        number: u64,
    ) -> Result<(), String> {
        let scene = self.scene;
        let after = &scene.states[acknowledged + 1];
        let disks = Disks::holding(image.to_vec());
        disks.record(Random::new(number));
        recover(scene, step, found == after, &disks)?;
        let history = cuts(image, &disks.events());
        let moving: Vec<&Cut> = history.iter().filter(|cut| !cut.is_still()).collect();
        for _ in 0..moving.len().min(SECOND_CUTS) {
            let cut = moving[self.random.below(moving.len() as u64) as usize];
            let second = cut.draw(&mut self.random);
            self.count("second power loss");
            self.check(acknowledged, &second, 0, false)
                .map_err(|why| format!("a second time, event {}: {why}", cut.event))?;
        }
        Ok(())
    }

    /// The superblocks are destroyed too: what a record on media describes is there, complete.
    fn lose_superblocks(
        &mut self,
        before: &State,
        after: &State,
        disks: &Disks,
    ) -> Result<(), String> {
        self.count("superblocks lost too");
        let mut contents = disks.contents();
        contents.iter_mut().for_each(Content::destroy_superblocks);
        let disks = Disks::holding(contents);
        let rebuilt = self.scene.run(&Step::Rebuild, &disks);
        rebuilt.map_err(|error| format!("rebuild without superblocks: {}", error.report()))?;
        let when = "after a rebuild without superblocks";
        expect(self.scene, &disks, before, when)
            .or_else(|_| expect(self.scene, &disks, after, when))
    }

    /// The interrupted command is not resumed: another one is run instead.
    fn abandon(&mut self, step: &Step, found: &State, disks: &Disks) -> Result<(), String> {
        self.count("abandoned");
        if *found == State::Nothing {
            return match step {
                Step::Import { source, time_ns, .. } => {
                    let force =
                        Step::Import { source: *source, onto: Onto::Force, time_ns: time_ns + 1 };
                    self.must(&force, disks, found).map(drop)
                }
                _ => Ok(()),
            };
        }
        let delete = Step::Delete { every: 4 };
        let files = self.must(&delete, disks, found)?;
        if let Step::Import { source, time_ns, .. } = step {
            let resume = Step::Import { source: *source, onto: Onto::Resume, time_ns: *time_ns };
            if self.scene.run(&resume, disks).is_ok() {
                return Err("an import went on that another command had overtaken".to_owned());
            }
            expect(self.scene, disks, &files, "after a resume that was refused")?;
        }
        self.live_on(&files, disks)
    }

    /// The image can be used as any other: rebuilt, appended to, deleted from.
    fn live_on(&mut self, state: &State, disks: &Disks) -> Result<(), String> {
        self.count("lived on");
        let append = Step::Import { source: LATER, onto: Onto::Append, time_ns: 1 << 61 };
        let mut state = self.must(&Step::Rebuild, disks, state)?;
        for step in [append, Step::Delete { every: 3 }, Step::Purge, Step::Rebuild] {
            state = self.must(&step, disks, &state)?;
        }
        Ok(())
    }

    fn must(&self, step: &Step, disks: &Disks, state: &State) -> Result<State, String> {
        let after = self.scene.after(state, step);
        let mut run = self.scene.run(step, disks);
        let hides_a_newer_one = |error: &Error| error.kind() == ErrorKind::Refused;
        // Never after a mere power loss, which must need no manual repair.
        if self.scene.medium_went_bad && run.as_ref().is_err_and(hides_a_newer_one) {
            // A superblock copy is bad, so it is unknown whether it was committed: a rebuild finds out.
            let rebuilt = self.scene.run(&Step::Rebuild, disks);
            rebuilt.map_err(|error| format!("rebuild of a bad copy: {}", error.report()))?;
            expect(self.scene, disks, state, "after a rebuild of a bad copy")?;
            run = self.scene.run(step, disks);
        }
        run.map_err(|error| format!("{step:?} afterwards: {}", error.report()))?;
        expect(self.scene, disks, &after, &format!("after {step:?}"))?;
        Ok(after)
    }
}

fn expect(scene: &Scene, disks: &Disks, state: &State, when: &str) -> Result<(), String> {
    match scene.read_all(disks) {
        Ok(found) if found == *state => Ok(()),
        Ok(State::Nothing) => Err(format!("{when}: it cannot be opened")),
        Ok(State::Samples(files)) => Err(format!("{when}: {} samples, not those", files.len())),
        Err(why) => Err(format!("{when}: {why}")),
    }
}

/// Completes the interrupted command: resumes it, or repeats it if it had not begun.
fn recover(scene: &Scene, step: &Step, is_done: bool, disks: &Disks) -> Result<(), String> {
    let told = |what: &str, error: dlfs::Error| Err(format!("{what}: {}", error.report()));
    let Step::Import { source, onto, time_ns } = step else {
        if is_done && matches!(step, Step::Delete { .. }) {
            return Ok(());
        }
        return scene.run(step, disks).or_else(|error| told("doing it again", error));
    };
    let resume = Step::Import { source: *source, onto: Onto::Resume, time_ns: *time_ns };
    match scene.run(&resume, disks) {
        Ok(()) => Ok(()),
        Err(error) => {
            let kind = error.kind();
            // It had not begun: the previous generation is all there is, or what is left of it. It must
            // never report a different source: no journal of this import says so.
            let not_begun = match onto {
                Onto::Append => kind == ErrorKind::NotFound,
                Onto::Force => matches!(kind, ErrorKind::NotFound | ErrorKind::Refused),
                _ => false,
            };
            if not_begun {
                scene.run(step, disks).or_else(|error| told("beginning again", error))
            } else {
                told("resume", error)
            }
        }
    }
}

/// Cuts of one recovery.
const SECOND_CUTS: usize = 12;

/// Rounds of one draw per cut: with few possible images, most draws repeat one.
const MOST_ROUNDS: usize = 2_500;

/// More would add nothing.
const MOST_FAILURES: usize = 5;
