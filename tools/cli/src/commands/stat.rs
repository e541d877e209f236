//! `dlfs stat` describes an image and its directory, or one sample.

use clap::Args;
use serde_json::{Map, Value, json};

use dlfs::Error;
use dlfs::dataset::Image;
use dlfs::directory::Directory;
use dlfs::format::Origin;
use dlfs::units::SampleId;

use super::samples::{find, json_name, json_values};
use crate::args::{ConnectionArgs, ImageArgs, Name};
use crate::exit::{Failure, Outcome};
use crate::out::{self, Out, known, safe_name};

/// Show facts about an image and its directory, or about one sample
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// A sample's name, or its id with --id
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

pub(crate) fn stat(args: StatArgs) -> Result<Outcome, Failure> {
    if args.origins {
        return list_origins(&args);
    }
    let image = args.image.open_with_names(&args.connection)?;
    let Some(name) = &args.name else {
        let sums = Sums::of(&image)?;
        let facts = image_json(&image, &sums);
        return Out::answer(args.json, &facts, |out| print_image(out, &image, &sums));
    };
    let directory = image.directory();
    let id = find(directory, &name.0, args.id)?;
    let facts = sample_json(directory, id)?;
    Out::answer(args.json, &facts, |out| print_sample(out, directory, id))
}

/// Prints a line for each object of a store that the image was imported from.
fn list_origins(args: &StatArgs) -> Result<Outcome, Failure> {
    let image = args.image.open(&args.connection)?;
    let mut out = Out::new();
    let mut written = Ok(());
    image.origins(&mut |Origin { generation, address, len_bytes, etag }| {
        if written.is_err() {
            return;
        }
        written = if args.json {
            out.json(&json!({
                "generation": generation.0, "bytes": len_bytes, "etag": etag, "address": address,
            }))
        } else {
            let etag = safe_name(etag.as_deref().unwrap_or("-").as_bytes());
            let address = safe_name(address.as_bytes());
            out.line(format!("{:>4} {len_bytes:>14} {etag} {address}", generation.0))
        };
    })?;
    written?;
    out.end(Outcome::Done)
}

/// Sums over the samples and origins of an image, or over the samples of an open view.
struct Sums {
    sample_bytes: u64,
    /// Deleted samples of the whole image, also when a view is open.
    deleted: u64,
    /// Samples without a label.
    unlabelled: u64,
    /// The store objects that the image was imported from, in all generations, and their bytes.
    objects: u64,
    object_bytes: u64,
}

impl Sums {
    fn of(image: &Image) -> Result<Sums, Error> {
        let directory = image.directory();
        let ids = || (0..directory.num_samples()).map(SampleId);
        let is_without = |id: &SampleId| directory.is_live(*id) && directory.label(*id).is_none();
        let mut sums = Sums {
            sample_bytes: ids().filter_map(|id| directory.len_bytes(id)).map(u64::from).sum(),
            deleted: directory.num_samples() - image.unviewed().directory().num_live(),
            unlabelled: match directory.labels() {
                None => directory.num_live(),
                Some(_) => ids().filter(is_without).count() as u64,
            },
            objects: 0,
            object_bytes: 0,
        };
        image.origins(&mut |origin| {
            sums.objects += 1;
            sums.object_bytes += origin.len_bytes;
        })?;
        Ok(sums)
    }
}

/// The hash of the view, if the image was opened through one. The report is then about the samples of the view.
fn view_hash(directory: &Directory) -> Option<String> {
    directory.view().map(|mark| format!("{:032x}", u128::from_be_bytes(mark.hash)))
}

/// The time when the generation was written, in seconds since 1970.
fn written(directory: &Directory) -> u64 {
    directory.time_ns() / 1_000_000_000
}

/// Memory used by each component of the directory.
fn parts(directory: &Directory) -> [(&'static str, u64); 9] {
    let memory = directory.memory_bytes();
    [
        ("lengths and checksums", memory.lengths_and_checksums),
        ("checkpoints", memory.checkpoints),
        ("chunks", memory.chunks),
        ("tree", memory.tree),
        ("deletions", memory.deletions),
        ("labels", memory.labels),
        ("typed columns", memory.columns),
        ("names", memory.names),
        ("order of names", memory.name_order),
    ]
}

/// `bytes` divided by the number of samples.
fn per_sample(directory: &Directory, bytes: u64) -> f64 {
    bytes as f64 / directory.num_samples().max(1) as f64
}

/// The description of an image as JSON.
fn image_json(image: &Image, sums: &Sums) -> Value {
    let directory = image.directory();
    let fields = directory.fields();
    let kinds = directory.field_types().iter();
    let kinds = kinds.map(|(field, kind)| (safe_name(&fields[field]), kind.to_string().into()));
    let columns = directory.columns().iter();
    let columns =
        columns.map(|column| json!({"name": column.name(), "type": column.kind().name()}));
    let copies = image.bad_superblock_copies().iter().map(|copy| {
        json!({
            "namespace": copy.namespace,
            "offset_bytes": copy.offset_bytes,
            "what": safe_name(copy.error.to_string().as_bytes()),
            "may_be_newer": copy.may_be_newer, // it may hold a newer generation
        })
    });
    let namespaces = image.devices().iter().zip(image.superblocks()).map(|(device, superblock)| {
        let namespace = device.namespace();
        json!({
            "address": namespace.address,
            "engine": namespace.engine,
            "len_bytes": namespace.len_bytes(),
            "used_bytes": superblock.used_len_bytes,
            "block_len_bytes": namespace.block_len_bytes,
            "max_transfer_bytes": namespace.max_transfer_bytes,
            "queue_depth": namespace.queue_depth,
            "read_only": namespace.read_only,
        })
    });
    let part = |(part, bytes): (&str, u64)| {
        let bytes_per_sample = per_sample(directory, bytes);
        json!({"part": part, "bytes": bytes, "bytes_per_sample": bytes_per_sample})
    };
    let bytes = parts(directory).iter().map(|(_, bytes)| bytes).sum();
    let mut facts = json!({
        "uuid": directory.uuid().to_string(),
        "generation": directory.generation().0,
        "written": written(directory),
        "samples": directory.num_live(),
        "deleted": sums.deleted,
        "sample_bytes": sums.sample_bytes,
        "chunks": directory.num_chunks(),
        "chunk_size": directory.layout().chunk_size_bytes,
        "fields": fields.iter().map(|field| safe_name(field)).collect::<Vec<_>>(),
        "field_types": kinds.collect::<Map<_, _>>(),
        "classes": directory.classes().len(),
        "labels": directory.labels().is_some(),
        "unlabelled": sums.unlabelled,
        "columns": columns.collect::<Vec<_>>(),
        "origins": {"objects": sums.objects, "bytes": sums.object_bytes},
        "checksums_learned": directory.learned().map(|learned| learned.count()),
        "bad_superblock_copies": copies.collect::<Vec<_>>(),
        "namespaces": namespaces.collect::<Vec<_>>(),
        "directory": {
            "bytes": bytes,
            "bytes_per_sample": per_sample(directory, bytes),
            "tree_height": directory.tree_height(),
            "parts": parts(directory).map(part),
        },
    });
    if let Some(view_hash) = view_hash(directory) {
        facts["view"] = view_hash.into();
    }
    facts
}

/// Prints the description of an image.
fn print_image(out: &mut Out, image: &Image, sums: &Sums) -> Result<(), Failure> {
    let directory = image.directory();
    let generation = directory.generation().0;
    out.line(format!("image        {}, generation {generation}", directory.uuid()))?;
    for copy in image.bad_superblock_copies() {
        let next = generation + 1;
        let lost = copy.may_be_newer.then(|| format!("; generation {next} may be lost with it"));
        out.line(format!(
            "superblock   copy at byte {} of namespace {}: {}{}",
            copy.offset_bytes,
            copy.namespace,
            safe_name(copy.error.to_string().as_bytes()),
            lost.unwrap_or_default()
        ))?;
    }
    out.line(format!("written      {}", out::utc(written(directory))))?;
    if let Some(view_hash) = view_hash(directory) {
        out.line(format!("view         {view_hash}"))?;
    }
    let samples = out::count(directory.num_live());
    let deleted = match sums.deleted {
        0 => String::new(),
        deleted => format!(", and {} deleted", out::count(deleted)),
    };
    let bytes = out::bytes(sums.sample_bytes);
    out.line(format!("samples      {}, {bytes}{deleted}", out.bold(&samples)))?;
    out.line(format!(
        "chunks       {} of {}",
        out::count(directory.num_chunks().into()),
        out::binary_size(directory.layout().chunk_size_bytes.into())
    ))?;
    print_columns(out, directory, sums)?;
    if sums.objects > 0 {
        out.line(format!(
            "origins      {} objects of stores, {}; --origins lists them",
            out::count(sums.objects),
            out::bytes(sums.object_bytes)
        ))?;
    }
    if let Some(learned) = directory.learned() {
        let learned = out::count(learned.count());
        out.line(format!(
            "checksums    {learned} of {samples} known: a folder's are learned at first read"
        ))?;
    }
    print_namespaces(out, image)?;
    print_memory(out, directory)
}

/// Prints the fields, labels and typed columns of samples.
fn print_columns(out: &mut Out, directory: &Directory, sums: &Sums) -> Result<(), Failure> {
    if !directory.fields().is_empty() {
        let types = directory.field_types();
        let shown = directory.fields().iter().enumerate().map(|(at, field)| match types.of(at) {
            Some(kind) => format!("{} {kind}", safe_name(field)),
            None => safe_name(field),
        });
        out.line(format!("fields       {}", shown.collect::<Vec<_>>().join(", ")))?;
    }
    let samples = out::count(directory.num_live());
    let labels = match (directory.labels(), sums.unlabelled) {
        (None, _) => "no labels".to_owned(),
        (Some(_), 0) => "a label each".to_owned(),
        (Some(_), 1) => format!("1 of {samples} samples has no label"),
        (Some(_), some) => format!("{} of {samples} samples have no label", out::count(some)),
    };
    let classes = out::count(directory.classes().len() as u64);
    out.line(format!("classes      {classes}; {labels}"))?;
    if !directory.columns().is_empty() {
        let columns = directory.columns().iter();
        let columns = columns.map(|column| format!("{} {}", column.name(), column.kind().name()));
        out.line(format!("columns      {}", columns.collect::<Vec<_>>().join(", ")))?;
    }
    Ok(())
}

/// Prints each namespace, with its size and its limits.
fn print_namespaces(out: &mut Out, image: &Image) -> Result<(), Failure> {
    for (device, superblock) in image.devices().iter().zip(image.superblocks()) {
        let namespace = device.namespace();
        let read_only = if namespace.read_only { ", read-only" } else { "" };
        out.line(format!("namespace    {}", namespace.address))?;
        out.line(format!("  engine     {}{read_only}", namespace.engine))?;
        out.line(format!(
            "  size       {}, {} in use, blocks of {}",
            out::bytes(namespace.len_bytes()),
            out::bytes(superblock.used_len_bytes),
            namespace.block_len_bytes
        ))?;
        out.line(format!(
            "  limits     {} an I/O, {} I/Os a queue",
            out::bytes(namespace.max_transfer_bytes.into()),
            namespace.queue_depth
        ))?;
    }
    Ok(())
}

/// Prints the memory that the directory takes.
fn print_memory(out: &mut Out, directory: &Directory) -> Result<(), Failure> {
    let bytes = parts(directory).iter().map(|(_, bytes)| bytes).sum();
    out.line(format!(
        "directory    {} in memory, {:.2} bytes a sample; tree of height {}",
        out::bytes(bytes),
        per_sample(directory, bytes),
        directory.tree_height()
    ))?;
    for (part, bytes) in parts(directory).into_iter().filter(|(_, bytes)| *bytes > 0) {
        out.line(format!("  {part:<23} {:>8.2}", per_sample(directory, bytes)))?;
    }
    Ok(())
}

/// The name of a sample's class, if the image has names of classes.
fn class(directory: &Directory, id: SampleId) -> Option<String> {
    let label = usize::try_from(directory.label(id)?).ok()?;
    directory.classes().get(label).map(|class| safe_name(class))
}

/// The description of a sample as JSON.
fn sample_json(directory: &Directory, id: SampleId) -> Result<Value, Error> {
    let extent = directory.extent(id).expect("the caller found it alive");
    let (name, name_hex) = json_name(&directory.name(id)?.unwrap_or_default());
    let columns = json_values(directory, id);
    let mut facts = known(json!({
        "id": id.0,
        "name": name,
        "name_hex": name_hex,
        "bytes": extent.len_bytes,
        "label": directory.label(id),
        "class": class(directory, id),
        "columns": (!columns.is_empty()).then_some(columns),
        "namespace": extent.namespace,
        "offset_bytes": extent.offset_bytes,
        "crc32c": extent.crc32c,
    }));
    facts["slot"] = json!(directory.slot_of(id).map(|slot| slot.0));
    facts["chunk"] = json!(directory.chunk_of(id));
    Ok(facts)
}

/// Prints the description of a sample.
fn print_sample(out: &mut Out, directory: &Directory, id: SampleId) -> Result<(), Failure> {
    let extent = directory.extent(id).expect("the caller found it alive");
    let name = safe_name(&directory.name(id)?.unwrap_or_default());
    out.line(format!("sample       {}", out.bold(&name)))?;
    out.line(format!("id           {id}"))?;
    out.line(format!("length       {} bytes", out::count(extent.len_bytes.into())))?;
    if let Some(label) = directory.label(id) {
        let class = class(directory, id).map_or_else(String::new, |class| format!(" ({class})"));
        out.line(format!("label        {label}{class}"))?;
    }
    for (name, value) in json_values(directory, id) {
        out.line(format!("{name:<12} {}", safe_name(value.to_string().as_bytes())))?;
    }
    if let (Some(slot), Some(chunk)) = (directory.slot_of(id), directory.chunk_of(id)) {
        out.line(format!("place        slot {}, chunk {chunk}", slot.0))?;
    }
    out.line(format!("             namespace {}, byte {}", extent.namespace, extent.offset_bytes))?;
    out.line(format!("CRC32C       {:08x}", extent.crc32c))
}
