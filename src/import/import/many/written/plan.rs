//! The plan of an image whose parts programs write.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_128;

use crate::import::device::open_for_import;
use crate::import::journal::{JOURNAL_BYTES, Journal};
use crate::import::lease::Lease;
use crate::import::many::plan_file::{
    WRITTEN_MAGIC as MAGIC, put_columns, put_list, put_types, take_columns, take_list, take_types,
    text, wrong,
};
use crate::import::many::planning::addresses;
use crate::import::many::written::Lane;
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::prepare::{self, write_journals};
use crate::import::retry::with_retry;
use crate::import::writer::{self, WriteOrder, WriterOptions};
use dlfs_base::replace_file::{NewMode, replace_file};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::columns::ColumnSpec;
use dlfs_format::format::cursor::{Cursor, put_number, put_string};
use dlfs_format::format::error::{at_most, equal};
use dlfs_format::format::{FieldTypes, FormatError, ImageLayout, Uuid};
use dlfs_io::address::Address;
use dlfs_io::qpair::{ConnectOptions, Device};

/// The plan that all writers of one image share: the image's location, and the properties of its samples. It takes a
/// few thousand bytes, is sent to every writer, and is not changed by what they do.
#[derive(Debug, Clone)]
pub struct WritePlan {
    id: [u8; 16],
    image: Vec<Address>,
    /// The journal of namespace 0.
    journal: Journal,
    options: WriterOptions,
    classes: Vec<Vec<u8>>,
}

impl WritePlan {
    /// Plans a new image at `image`, and prepares its namespaces; each of them takes one part at a time.
    ///
    /// Labels that are names need `classes`: a class has one number in all parts.
    ///
    /// # Errors
    /// Those of [`Writer::create`](crate::import::Writer::create). `InvalidArgument`: an append, or all samples
    /// shuffled together.
    pub fn create(
        image: &[Address],
        options: &WriterOptions,
        classes: Vec<Vec<u8>>,
        connect: &ConnectOptions,
    ) -> Result<WritePlan> {
        let refused = match (options.image.onto, options.order) {
            (Onto::Append | Onto::Resume, _) => "a plan is for a new image",
            (_, WriteOrder::Whole { .. }) => {
                "parts are shuffled window by window: nobody knows the number of all samples"
            }
            _ => "",
        };
        if !refused.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, refused));
        }
        let mut created = Vec::new();
        let result = open_for_import(image, options.image.onto, connect, &mut created)
            .and_then(|devices| WritePlan::prepare(devices, options, classes));
        if result.is_err() {
            for path in created {
                // If this fails, the user sees the file and can delete it.
                let _ = std::fs::remove_file(path);
            }
        }
        result
    }

    fn prepare(
        devices: Vec<Arc<dyn Device>>,
        options: &WriterOptions,
        classes: Vec<Vec<u8>>,
    ) -> Result<WritePlan> {
        let media = prepare::in_image_order(&Media::new(devices)?)?;
        let lease = Lease::take(&media, options.image.lease)?;
        let ImportOptions { chunk_size_bytes, pack, .. } = options.image;
        let layout = ImageLayout::new(Uuid([0; 16]), chunk_size_bytes, pack, media.len())?;
        writer::check(layout, &options.fields, &options.field_types, &options.columns)?;
        let mut id = [0; 16];
        crate::import::draw(&mut id)?;
        let fingerprint = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| id[at]));
        let image = ImportOptions { placement: PlacementOrder::Source, ..options.image.clone() };
        lease.explain(prepare::prepare(media, &image, fingerprint, 0).and_then(|state| {
            with_retry(state.media.retry_budget(), || {
                let mut channel = state.media.channel();
                let layout = &state.journal.layout;
                for namespace in 0..state.media.len() {
                    state.media.grow(namespace, layout.first_cell() * layout.cell_bytes())?;
                    let end_cell = layout.first_cell();
                    Lane { plan: id, namespace, last_record: 0, end_cell }.write(&mut channel)?;
                }
                write_journals(&state.media, &state.journal)
            })?;
            let options = WriterOptions { image, ..options.clone() };
            let image = addresses(&state.media)?;
            let journal = state.journal;
            Ok(WritePlan { id, image, journal, options, classes })
        }))
    }

    /// The namespaces of the image, in its order.
    pub fn image(&self) -> &[Address] {
        &self.image
    }

    /// The image to be.
    pub fn uuid(&self) -> Uuid {
        self.journal.layout.uuid
    }

    /// The options of its writers.
    pub fn options(&self) -> &WriterOptions {
        &self.options
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[Vec<u8>] {
        &self.classes
    }

    pub(super) fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The layout of chunks that have no place yet: they are of another image, which nobody opens or rebuilds.
    pub(super) fn draft_layout(&self) -> ImageLayout {
        ImageLayout { uuid: Uuid(self.id), ..self.journal.layout }
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> Result<()> {
        replace_file(path, NewMode::Private, &self.to_bytes())
    }

    /// Reads it from a file.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes); those of the file system.
    pub fn load(path: &Path) -> Result<WritePlan> {
        let bytes = std::fs::read(path).map_err(|error| Error::from(error).path(path))?;
        WritePlan::from_bytes(&bytes).map_err(|error| error.path(path))
    }

    /// As bytes, to be sent to the writers.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let WriterOptions { image, fields, field_types, columns, order, window_bytes } =
            &self.options;
        put_number(&mut out, VERSION);
        out.extend_from_slice(&self.id);
        put_string(&mut out, Address::list_to_string(&self.image).as_bytes());
        out.extend_from_slice(&self.journal.encode());
        put_list(&mut out, fields);
        put_types(&mut out, fields.len(), field_types);
        put_columns(&mut out, columns.iter().map(|column| (&*column.name, Some(column.kind))));
        put_list(&mut out, &self.classes);
        put_number(&mut out, u64::from(*order == WriteOrder::Windows));
        put_number(&mut out, *window_bytes as u64);
        put_number(&mut out, image.seed);
        put_number(&mut out, image.lease.as_millis() as u64); // far below 2^64
        let hash = xxh3_128(&out).to_le_bytes();
        out.extend_from_slice(&hash);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// `InvalidArgument`: they are no plan. `Corrupt`: they are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<WritePlan> {
        let Some((body, hash)) = bytes
            .strip_prefix(&MAGIC)
            .and_then(|rest| rest.split_at_checked(rest.len().checked_sub(HASH_BYTES)?))
        else {
            let text = "this is not the plan of parts that programs write";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        if xxh3_128(&bytes[..bytes.len() - HASH_BYTES]).to_le_bytes() != hash {
            let text = "the plan is damaged: its bytes do not have the hash at its end";
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        WritePlan::parse(body).map_err(Error::from)
    }

    fn parse(body: &[u8]) -> std::result::Result<WritePlan, FormatError> {
        let mut from = Cursor::new("plan of written parts", body);
        equal("version of a plan of written parts", VERSION, from.number()?)?;
        let id = from.bytes(16)?.try_into().expect("16 bytes");
        let image = text(&mut from)?;
        let image = Address::parse_list(&image).map_err(|_| wrong("addresses of a plan"))?;
        let journal = Journal::parse(from.bytes(JOURNAL_BYTES as u64)?)?;
        equal("addresses of a plan", journal.layout.num_namespaces.into(), image.len() as u64)?;
        let fields = take_list(&mut from)?;
        let field_types: FieldTypes = take_types(&mut from)?;
        let columns = take_columns(&mut from)?.into_iter().map(|(name, kind)| {
            Ok(ColumnSpec { name, kind: kind.ok_or_else(|| wrong("type of a column"))? })
        });
        let columns = columns.collect::<std::result::Result<Vec<_>, FormatError>>()?;
        let classes = take_list(&mut from)?;
        let order = match from.number()? {
            0 => WriteOrder::Written,
            _ => WriteOrder::Windows,
        };
        let window_bytes = at_most("window of a plan", from.number()?, MAX_WINDOW_BYTES)? as usize;
        let options = ImportOptions {
            seed: from.number()?,
            lease: Duration::from_millis(from.number()?),
            chunk_size_bytes: journal.layout.chunk_size_bytes,
            pack: journal.layout.pack,
            placement: PlacementOrder::Source,
            ..ImportOptions::default()
        };
        equal("bytes behind a plan", 0, from.len() as u64)?;
        let options =
            WriterOptions { image: options, fields, field_types, columns, order, window_bytes };
        Ok(WritePlan { id, image, journal, options, classes })
    }
}

const VERSION: u64 = 1;
const HASH_BYTES: usize = 16;
const MAX_WINDOW_BYTES: u64 = 1 << 40;
