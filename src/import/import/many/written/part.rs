//! A writer of one part, and what it leaves.

use std::fmt;

use crossbeam_channel::{Receiver, bounded};

use crate::import::many::written::{PartRecord, WritePlan, placing};
use crate::import::writer::{NewSample, Writer};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_io::qpair::ConnectOptions;

/// Onto which namespace a part is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PartPlace {
    /// The namespace of its number: part `k` goes to number `k` modulo the number of namespaces. A second attempt
    /// while the first one runs is `Busy`.
    #[default]
    Own,
    /// Its own, or the next one that nobody else writes to: for engines that decide which attempt counts.
    AnyFree,
}

/// Writes the samples of one part. Dropping it without [`finish`](Self::finish) discards them.
#[derive(Debug)]
pub struct PartWriter {
    writer: Writer,
    /// Gets the part from the thread, once it is complete.
    complete: Receiver<PartRecord>,
}

/// The output of a program that writes samples.
#[derive(Debug)]
pub enum Output {
    /// A generation.
    Image(Box<Writer>),
    /// A part of one, which others commit.
    Part(Box<PartWriter>),
}

impl Output {
    /// The writer, to which samples are written.
    pub fn samples(&mut self) -> &mut Writer {
        match self {
            Output::Image(writer) => writer,
            Output::Part(part) => &mut part.writer,
        }
    }
}

impl PartWriter {
    /// Begins to write part number `key` of `plan`.
    ///
    /// # Errors
    /// `Busy`: another attempt, or another part, is written there. `InvalidArgument`: the namespace is not prepared for
    /// this plan, or the plan is committed. Errors of opening.
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
        let options = plan.options().clone();
        let plan = plan.clone();
        let connect = connect.clone();
        let (tell, complete) = bounded(1);
        let writer = Writer::start_part(&options, move |thread| {
            let record = placing::run(&plan, key, namespace, &connect, thread)?;
            // Whoever has dropped the writer does not ask.
            let _ = tell.send(record);
            Ok(())
        })?;
        Ok(PartWriter { writer, complete })
    }

    /// The writer, to which samples are written. Its ids count those of this part.
    pub fn samples(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// As [`Writer::write`]; returns how many samples of the part were before.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn write(&mut self, sample: &NewSample<'_>) -> Result<u64> {
        self.writer.write(sample).map(|id| id.0)
    }

    /// Writes what is left, and makes the part durable. It may have no samples.
    ///
    /// # Errors
    /// Those of writing: the part is not there.
    pub fn finish(self) -> Result<WrittenPart> {
        self.writer.finish_part()?;
        let ended = |_| Error::new(ErrorKind::Internal, "a part that is complete says which it is");
        self.complete.try_recv().map(WrittenPart).map_err(ended)
    }
}

/// A part that is complete: what an engine hands to whoever commits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WrittenPart(pub(super) PartRecord);

impl WrittenPart {
    /// The number of the part.
    pub fn key(&self) -> u64 {
        self.0.key
    }

    /// The index of its namespace.
    pub fn namespace(&self) -> u16 {
        self.0.namespace
    }

    /// Its samples.
    pub fn samples(&self) -> u64 {
        self.0.samples
    }

    /// Their bytes.
    pub fn sample_bytes(&self) -> u64 {
        self.0.sample_bytes
    }

    /// Its chunks.
    pub fn chunks(&self) -> u64 {
        self.0.chunks
    }

    /// As bytes, to be sent to whoever commits.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.encode().to_vec()
    }

    /// From bytes.
    ///
    /// # Errors
    /// `InvalidArgument`: they are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<WrittenPart> {
        let record = Some(bytes).filter(|bytes| bytes.len() == BYTES).and_then(PartRecord::parse);
        let wrong = || Error::new(ErrorKind::InvalidArgument, "these bytes are no written part");
        record.map(WrittenPart).ok_or_else(wrong)
    }
}

impl fmt::Debug for WrittenPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrittenPart")
            .field("key", &self.key())
            .field("namespace", &self.namespace())
            .field("samples", &self.samples())
            .finish_non_exhaustive()
    }
}

const BYTES: usize = 4096;
