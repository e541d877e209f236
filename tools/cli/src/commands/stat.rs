//! `dlfs stat`: describes an image and its directory, or one sample.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;

use dlfs::Error;
use dlfs::dataset::Image;
use dlfs::directory::Directory;
use dlfs::format::Origin;
use dlfs::format::superblock_copies::BadCopy;
use dlfs::units::SampleId;

use super::cat::find;
use super::ls::{json_name, json_values};
use crate::args::{ConnectionArgs, Name};
use crate::exit::{Failure, Outcome};
use crate::open::ImageArgs;
use crate::out::Out;
use crate::text::{self, safe_name};

/// Show facts about an image and its directory, or about one sample
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// A sample's name, or its id with --id
    #[arg(value_name = "NAME", value_parser = Name::parser())]
    name: Option<Name>,
    /// NAME is an id, counted from 0
    #[arg(long, requires = "name")]
    id: bool,
    /// List the objects of stores that it was imported from: generation, bytes, entity tag, address
    #[arg(long, conflicts_with = "name")]
    origins: bool,
    /// Print as JSON: one line, or with --origins one for each object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: StatArgs) -> Result<Outcome, Failure> {
    if args.origins {
        return list_origins(&args);
    }
    let image = args.image.open_with_names(&args.connection)?;
    let mut out = Out::new();
    match &args.name {
        Some(name) => {
            let directory = image.directory();
            let sample = SampleFacts::of(directory, find(directory, &name.0, args.id)?)?;
            if args.json { out.json(&sample)? } else { sample.print(&mut out)? }
        }
        None => {
            let facts = ImageFacts::of(&image)?;
            if args.json { out.json(&facts)? } else { facts.print(&mut out)? }
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn list_origins(args: &StatArgs) -> Result<Outcome, Failure> {
    let image = args.image.open(&args.connection)?;
    let mut out = Out::new();
    let mut written = Ok(());
    image.origins(&mut |origin| {
        let Origin { generation, address, len_bytes, etag } = origin;
        let facts = OriginFacts { generation: generation.0, bytes: len_bytes, etag, address };
        if written.is_ok() {
            written = if args.json { out.json(&facts) } else { facts.print(&mut out) };
        }
    })?;
    written?;
    out.flush()?;
    Ok(Outcome::Done)
}

/// An object that the image was imported from.
#[derive(Serialize)]
struct OriginFacts {
    generation: u64,
    bytes: u64,
    etag: Option<String>,
    address: String,
}

impl OriginFacts {
    fn print(&self, out: &mut Out) -> Result<(), Failure> {
        let OriginFacts { generation, bytes, etag, address } = self;
        let etag = safe_name(etag.as_deref().unwrap_or("-").as_bytes());
        out.line(format!("{generation:>4} {bytes:>14} {etag} {}", safe_name(address.as_bytes())))
    }
}

/// The objects that an image was imported from.
#[derive(Default, Serialize)]
struct OriginsFacts {
    objects: u64,
    bytes: u64,
}

/// Samples without a label.
fn unlabelled(directory: &Directory) -> u64 {
    let is_without = |id: &SampleId| directory.is_live(*id) && directory.label(*id).is_none();
    match directory.labels() {
        None => directory.num_live(),
        Some(_) => (0..directory.num_samples()).map(SampleId).filter(is_without).count() as u64,
    }
}

#[derive(Serialize)]
struct ImageFacts {
    uuid: String,
    generation: u64,
    /// Seconds since 1970.
    written: u64,
    /// The hash of the view that was opened, of which the numbers of samples and bytes are.
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<String>,
    samples: u64,
    deleted: u64,
    sample_bytes: u64,
    chunks: u32,
    chunk_size: u64,
    fields: Vec<String>,
    /// The type of each field that has one, by name.
    field_types: BTreeMap<String, String>,
    classes: u64,
    labels: bool,
    /// Samples without a label.
    unlabelled: u64,
    /// The typed columns.
    columns: Vec<ColumnFacts>,
    /// The objects of stores that it was imported from, in all generations.
    origins: OriginsFacts,
    /// Checksums learned so far, of a folder without import; null where all are on the image.
    checksums_learned: Option<u64>,
    /// Superblock copies that could not be read or used.
    bad_superblock_copies: Vec<CopyFacts>,
    namespaces: Vec<NamespaceFacts>,
    directory: DirectoryFacts,
}

#[derive(Serialize)]
struct ColumnFacts {
    name: String,
    r#type: &'static str,
}

#[derive(Serialize)]
struct CopyFacts {
    namespace: u16,
    offset_bytes: u64,
    what: String,
    /// It may have committed a newer generation.
    may_be_newer: bool,
}

#[derive(Serialize)]
struct NamespaceFacts {
    address: String,
    engine: String,
    len_bytes: u64,
    used_bytes: u64,
    block_len_bytes: u32,
    max_transfer_bytes: u32,
    queue_depth: u16,
    read_only: bool,
}

#[derive(Serialize)]
struct DirectoryFacts {
    bytes: u64,
    bytes_per_sample: f64,
    tree_height: u32,
    parts: Vec<PartFacts>,
}

/// Memory used by one component of the directory.
#[derive(Serialize)]
struct PartFacts {
    part: &'static str,
    bytes: u64,
    bytes_per_sample: f64,
}

impl CopyFacts {
    fn of(copy: &BadCopy) -> CopyFacts {
        CopyFacts {
            namespace: copy.namespace,
            offset_bytes: copy.offset_bytes,
            what: safe_name(copy.error.to_string().as_bytes()),
            may_be_newer: copy.may_be_newer,
        }
    }
}

impl ImageFacts {
    fn of(image: &Image) -> Result<ImageFacts, Error> {
        let directory = image.directory();
        let mut origins = OriginsFacts::default();
        image.origins(&mut |origin| {
            origins.objects += 1;
            origins.bytes += origin.len_bytes;
        })?;
        let lens = (0..directory.num_samples()).filter_map(|id| directory.len_bytes(SampleId(id)));
        let namespaces = image.devices().iter().zip(image.superblocks());
        Ok(ImageFacts {
            uuid: directory.uuid().to_string(),
            generation: directory.generation().0,
            written: directory.time_ns() / 1_000_000_000,
            samples: directory.num_live(),
            view: directory.view().map(|mark| format!("{:032x}", u128::from_be_bytes(mark.hash))),
            deleted: directory.num_samples() - image.unviewed().directory().num_live(),
            sample_bytes: lens.map(u64::from).sum(),
            chunks: directory.num_chunks(),
            chunk_size: directory.layout().chunk_size_bytes.into(),
            fields: directory.fields().iter().map(|field| safe_name(field)).collect(),
            field_types: directory
                .field_types()
                .iter()
                .map(|(field, kind)| (safe_name(&directory.fields()[field]), kind.to_string()))
                .collect(),
            classes: directory.classes().len() as u64,
            labels: directory.labels().is_some(),
            unlabelled: unlabelled(directory),
            columns: directory
                .columns()
                .iter()
                .map(|column| ColumnFacts {
                    name: column.name().to_owned(),
                    r#type: column.kind().name(),
                })
                .collect(),
            origins,
            checksums_learned: directory.learned().map(|learned| learned.count()),
            bad_superblock_copies: image
                .bad_superblock_copies()
                .iter()
                .map(CopyFacts::of)
                .collect(),
            namespaces: namespaces
                .map(|(device, superblock)| {
                    let namespace = device.namespace();
                    NamespaceFacts {
                        len_bytes: namespace.len_bytes(),
                        used_bytes: superblock.used_len_bytes,
                        address: namespace.address,
                        engine: namespace.engine,
                        block_len_bytes: namespace.block_len_bytes,
                        max_transfer_bytes: namespace.max_transfer_bytes,
                        queue_depth: namespace.queue_depth,
                        read_only: namespace.read_only,
                    }
                })
                .collect(),
            directory: DirectoryFacts::of(directory),
        })
    }

    fn print(&self, out: &mut Out) -> Result<(), Failure> {
        out.line(format!("image        {}, generation {}", self.uuid, self.generation))?;
        for copy in &self.bad_superblock_copies {
            let lost = if copy.may_be_newer {
                format!("; generation {} may be lost with it", self.generation + 1)
            } else {
                String::new()
            };
            let CopyFacts { namespace, offset_bytes, what, .. } = copy;
            let place = format!("copy at byte {offset_bytes} of namespace {namespace}");
            out.line(format!("superblock   {place}: {what}{lost}"))?;
        }
        out.line(format!("written      {}", text::utc(self.written)))?;
        if let Some(view) = &self.view {
            out.line(format!("view         {view}"))?;
        }
        let deleted = match self.deleted {
            0 => String::new(),
            deleted => format!(", and {} deleted", text::count(deleted)),
        };
        out.line(format!(
            "samples      {}, {}{deleted}",
            out.bold(&text::count(self.samples)),
            text::bytes(self.sample_bytes)
        ))?;
        out.line(format!(
            "chunks       {} of {}",
            text::count(self.chunks.into()),
            text::binary_size(self.chunk_size)
        ))?;
        if !self.fields.is_empty() {
            let shown = self.fields.iter().map(|field| match self.field_types.get(field) {
                Some(kind) => format!("{field} {kind}"),
                None => field.clone(),
            });
            out.line(format!("fields       {}", shown.collect::<Vec<_>>().join(", ")))?;
        }
        let labels = match (self.labels, self.unlabelled) {
            (false, _) => "no labels".to_owned(),
            (true, 0) => "a label each".to_owned(),
            (true, 1) => format!("1 of {} samples has no label", text::count(self.samples)),
            (true, some) => {
                let some = text::count(some);
                let all = text::count(self.samples);
                format!("{some} of {all} samples have no label")
            }
        };
        out.line(format!("classes      {}; {labels}", text::count(self.classes)))?;
        if !self.columns.is_empty() {
            let columns =
                self.columns.iter().map(|column| format!("{} {}", column.name, column.r#type));
            out.line(format!("columns      {}", columns.collect::<Vec<_>>().join(", ")))?;
        }
        if self.origins.objects > 0 {
            out.line(format!(
                "origins      {} objects of stores, {}; --origins lists them",
                text::count(self.origins.objects),
                text::bytes(self.origins.bytes)
            ))?;
        }
        if let Some(learned) = self.checksums_learned {
            let learned = text::count(learned);
            let samples = text::count(self.samples);
            out.line(format!(
                "checksums    {learned} of {samples} known: a folder's are learned at first read"
            ))?;
        }
        for namespace in &self.namespaces {
            out.line(format!("namespace    {}", namespace.address))?;
            out.line(format!(
                "  engine     {}{}",
                namespace.engine,
                if namespace.read_only { ", read-only" } else { "" }
            ))?;
            out.line(format!(
                "  size       {}, {} in use, blocks of {}",
                text::bytes(namespace.len_bytes),
                text::bytes(namespace.used_bytes),
                namespace.block_len_bytes
            ))?;
            out.line(format!(
                "  limits     {} an I/O, {} I/Os a queue",
                text::bytes(namespace.max_transfer_bytes.into()),
                namespace.queue_depth
            ))?;
        }
        self.directory.print(out)
    }
}

impl DirectoryFacts {
    fn of(directory: &Directory) -> DirectoryFacts {
        let samples = directory.num_samples().max(1) as f64;
        let memory = directory.memory_bytes();
        let parts = [
            ("lengths and checksums", memory.lengths_and_checksums),
            ("checkpoints", memory.checkpoints),
            ("chunks", memory.chunks),
            ("tree", memory.tree),
            ("deletions", memory.deletions),
            ("labels", memory.labels),
            ("typed columns", memory.columns),
            ("names", memory.names),
            ("order of names", memory.name_order),
        ];
        let bytes = parts.iter().map(|(_, bytes)| bytes).sum();
        DirectoryFacts {
            bytes,
            bytes_per_sample: bytes as f64 / samples,
            tree_height: directory.tree_height(),
            parts: parts
                .into_iter()
                .map(|(part, bytes)| PartFacts {
                    part,
                    bytes,
                    bytes_per_sample: bytes as f64 / samples,
                })
                .collect(),
        }
    }

    fn print(&self, out: &mut Out) -> Result<(), Failure> {
        out.line(format!(
            "directory    {} in memory, {:.2} bytes a sample; tree of height {}",
            text::bytes(self.bytes),
            self.bytes_per_sample,
            self.tree_height
        ))?;
        for part in self.parts.iter().filter(|part| part.bytes > 0) {
            out.line(format!("  {:<23} {:>8.2}", part.part, part.bytes_per_sample))?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct SampleFacts {
    id: u64,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    bytes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    columns: serde_json::Map<String, serde_json::Value>,
    slot: Option<u64>,
    chunk: Option<u32>,
    namespace: u16,
    offset_bytes: u64,
    crc32c: u32,
}

impl SampleFacts {
    fn of(directory: &Directory, id: SampleId) -> Result<SampleFacts, Error> {
        let extent = directory.extent(id).expect("the caller found it alive");
        let (name, name_hex) = json_name(&directory.name(id)?.unwrap_or_default());
        let label = directory.label(id);
        let class = label.and_then(|label| directory.classes().get(usize::try_from(label).ok()?));
        Ok(SampleFacts {
            id: id.0,
            name,
            name_hex,
            bytes: extent.len_bytes,
            label,
            class: class.map(|class| safe_name(class)),
            columns: json_values(directory, id),
            slot: directory.slot_of(id).map(|slot| slot.0),
            chunk: directory.chunk_of(id),
            namespace: extent.namespace,
            offset_bytes: extent.offset_bytes,
            crc32c: extent.crc32c,
        })
    }

    fn print(&self, out: &mut Out) -> Result<(), Failure> {
        // With `name_hex` the name is escaped already.
        let name = if self.name_hex.is_some() {
            self.name.clone()
        } else {
            safe_name(self.name.as_bytes())
        };
        out.line(format!("sample       {}", out.bold(&name)))?;
        out.line(format!("id           {}", self.id))?;
        out.line(format!("length       {} bytes", text::count(self.bytes.into())))?;
        if let Some(label) = self.label {
            let class = self.class.as_ref().map_or_else(String::new, |class| format!(" ({class})"));
            out.line(format!("label        {label}{class}"))?;
        }
        for (name, value) in &self.columns {
            out.line(format!("{name:<12} {}", safe_name(value.to_string().as_bytes())))?;
        }
        if let (Some(slot), Some(chunk)) = (self.slot, self.chunk) {
            out.line(format!("place        slot {slot}, chunk {chunk}"))?;
        }
        out.line(format!("             namespace {}, byte {}", self.namespace, self.offset_bytes))?;
        out.line(format!("CRC32C       {:08x}", self.crc32c))
    }
}
