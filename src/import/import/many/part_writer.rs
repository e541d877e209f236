//! The writer of one part.

use crate::import::many::placing;
use crate::import::many::write_plan::WritePlan;
use crate::import::writer::{NewSample, Writer};
use crate::import::written_part::WrittenPart;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_io::qpair::ConnectOptions;

/// The choice of a namespace for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PartPlace {
    /// The namespace with the part's number: part `k` goes to number `k` modulo the number of namespaces. A
    /// second attempt while the first one runs is `Busy`.
    #[default]
    Own,
    /// The part's own namespace, or the next one that no other process writes to. For frameworks that run a
    /// part several times at once and then choose an attempt.
    AnyFree,
}

/// Writes the samples of one part. Dropping it without [`finish`](Self::finish) discards them.
#[derive(Debug)]
pub struct PartWriter(Writer);

/// The output of a program that writes samples.
#[derive(Debug)]
pub enum Output {
    /// A generation.
    Image(Box<Writer>),
    /// A part of a generation, to be committed with the others.
    Part(Box<PartWriter>),
}

impl Output {
    /// The writer, to which samples are written.
    pub fn samples(&mut self) -> &mut Writer {
        match self {
            Output::Image(writer) => writer,
            Output::Part(part) => &mut part.0,
        }
    }
}

impl PartWriter {
    /// Begins to write part number `key` of `plan`.
    ///
    /// # Errors
    /// `Busy`: another attempt, or another part, is being written to the namespace. `InvalidArgument`: the
    /// namespace is not prepared for this plan, or the plan is committed. `Stale`: the image has changed since.
    /// Errors of opening.
    pub fn begin(
        plan: &WritePlan,
        key: u64,
        place: PartPlace,
        connect: &ConnectOptions,
    ) -> Result<PartWriter> {
        let count = plan.image().len() as u64;
        let tries = if place == PartPlace::Own { 1 } else { count };
        let mut busy = None;
        for step in 0..tries {
            let namespace = (key % count + step) % count;
            match PartWriter::begin_on(plan, key, namespace as u16, connect) {
                Err(error) if error.kind() == ErrorKind::Busy => busy = Some(error),
                begun => return begun,
            }
        }
        Err(busy.unwrap_or_else(|| Error::new(ErrorKind::Internal, "a plan has namespaces")))
    }

    fn begin_on(
        plan: &WritePlan,
        key: u64,
        namespace: u16,
        connect: &ConnectOptions,
    ) -> Result<PartWriter> {
        let options = plan.options();
        let plan = plan.clone();
        let connect = connect.clone();
        let place = move |thread: &_| placing::run(&plan, key, namespace, &connect, thread);
        Writer::start_part(&options, place).map(PartWriter)
    }

    /// The writer, to which samples are written. Its ids start at 0 in each part.
    pub fn samples(&mut self) -> &mut Writer {
        &mut self.0
    }

    /// Same as [`Writer::write`]; returns the number of earlier samples of the part.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn write(&mut self, sample: &NewSample<'_>) -> Result<u64> {
        self.0.write(sample).map(|id| id.0)
    }

    /// Writes the remaining samples, and makes the part durable. A part may be empty.
    ///
    /// # Errors
    /// Errors of writing: the part is not complete.
    pub fn finish(self) -> Result<WrittenPart> {
        self.0.finish_part()
    }
}
