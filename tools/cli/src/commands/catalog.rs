//! `dlfs catalog`: data sets by name.
//!
//! `src/import/catalog/` reads and changes catalogues; this file has arguments and output.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use dlfs::address::{Address, CatalogName, CatalogPlace, CatalogVersion};
use dlfs::catalog::{Alias, Catalog, Expect, Index, Record, resolve};
use dlfs::dataset::cataloging::{self, Origin};
use dlfs::units::Generation;

use crate::args::{ConnectionArgs, DatasetName, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::{self, Out, joined, progress};

/// Find data sets by name: list, show, add, tag and remove what a catalogue has
///
/// A NAME is dlfs://CATALOGUE/NAME[@GENERATION|@ALIAS], and stands wherever an image's addresses do. CATALOGUE is a
/// folder's path (dlfs:///srv/catalog/NAME), or a word that DLFS_CATALOGS="word=/srv/catalog" or
/// ~/.config/dlfs/catalogs.toml says the place of. Without @, the newest version is meant. Commands that
/// change an image by its name (import --append, delete, purge) add the new generation.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Action {
    /// List the data sets of a catalogue, with their newest versions
    Ls {
        /// The catalogue: dlfs://WORD, dlfs:///PATH, or the path itself
        #[arg(value_name = "CATALOGUE", value_parser = CatalogPlace::from_text)]
        catalog: CatalogPlace,
        /// Print one line of JSON for each data set
        #[arg(long)]
        json: bool,
    },
    /// Show what the catalogue says about a data set: its versions, or the one that is named
    Show {
        name: DatasetName,
        /// Print one line of JSON for each version
        #[arg(long)]
        json: bool,
    },
    /// Add an image as the newest version of a data set; makes the catalogue if its folder is new or empty
    Add(AddArgs),
    /// Let an alias point to a version: NAME@GENERATION, NAME@ALIAS, or NAME for the newest
    Tag {
        name: DatasetName,
        /// The alias, such as stable
        alias: String,
        /// Only if it points to GENERATION now; otherwise exit code 1, and nothing is moved
        #[arg(long, value_name = "GENERATION")]
        from: Option<u64>,
        /// Only if there is no such alias yet
        #[arg(long, conflicts_with = "from")]
        new: bool,
    },
    /// Remove an alias (NAME@ALIAS), a version (NAME@GENERATION), or with --all a data set; images stay
    Rm {
        name: DatasetName,
        /// Remove all versions
        #[arg(long)]
        all: bool,
    },
    /// Rebuild the index of a data set's chunks from the heads of the chunks alone
    Rebuild(RebuildArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    name: DatasetName,
    /// The image: ADDRESS[,ADDRESS...]
    image: ImageAddress,
    /// Something to note about this version; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// An alias that shall point to it
    #[arg(long, value_name = "ALIAS")]
    alias: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RebuildArgs {
    name: DatasetName,
    /// Take older chunks from the index as it is: only those written since this second (since 1970) are rebuilt
    #[arg(long, value_name = "SECONDS")]
    since: Option<u64>,
    /// Change nothing: exit code 3 if the index differs from the chunks
    #[arg(long)]
    compare: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Parses `KEY=VALUE`.
fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".to_owned()),
    }
}

pub(crate) fn run(action: Action, quiet: bool) -> Result<Outcome, Failure> {
    match action {
        Action::Ls { catalog, json } => list(&catalog, json),
        Action::Show { name, json } => show(&name.0, json),
        Action::Add(args) => add(args),
        Action::Tag { name, alias, from, new } => {
            let expect = match (from, new) {
                (Some(generation), _) => Expect::Generation(Generation(generation)),
                (None, true) => Expect::Nothing,
                (None, false) => Expect::Anything,
            };
            tag(&name.0, &alias, expect)
        }
        Action::Rm { name, all } => remove(&name.0, all),
        Action::Rebuild(args) => rebuild(&args, quiet),
    }
}

/// A version as JSON.
fn as_json(name: &str, version: u64, record: &Record, aliases: &[Alias]) -> Value {
    let aliases = names_of(version, aliases);
    joined(record, json!({"name": name, "version": version, "aliases": aliases}))
}

/// The aliases that point to a version.
fn names_of(version: u64, aliases: &[Alias]) -> Vec<&str> {
    aliases.iter().filter(|alias| alias.version == version).map(|alias| &*alias.name).collect()
}

fn list(place: &CatalogPlace, json: bool) -> Result<Outcome, Failure> {
    let catalog = Catalog::open(place)?;
    let mut out = Out::new();
    for name in catalog.names()? {
        let (version, record) = catalog.find(&name, None)?;
        let aliases = catalog.aliases(&name)?;
        if json {
            out.json(&as_json(&name, version, &record, &aliases))?;
        } else {
            out.line(format!("{:<24} {}", out.bold(&name), in_short(version, &record, &aliases)))?;
        }
    }
    out.end(Outcome::Done)
}

/// A version in one line.
fn in_short(version: u64, record: &Record, aliases: &[Alias]) -> String {
    let names = names_of(version, aliases).join(" @");
    let names = if names.is_empty() { names } else { format!("  @{names}") };
    format!(
        "generation {}, {}, {}, {}{names}",
        record.generation,
        out::counted(record.samples, "sample"),
        out::bytes(record.bytes),
        out::utc(record.committed_s),
    )
}

fn show(name: &CatalogName, json: bool) -> Result<Outcome, Failure> {
    let catalog = Catalog::open(&name.catalog)?;
    let versions = match &name.version {
        None => catalog.versions(&name.name)?,
        Some(version) => vec![catalog.find(&name.name, Some(version))?],
    };
    let aliases = catalog.aliases(&name.name)?;
    let mut out = Out::new();
    for (version, record) in &versions {
        if json {
            out.json(&as_json(&name.name, *version, record, &aliases))?;
            continue;
        }
        out.line(in_short(*version, record, &aliases))?;
        if name.version.is_some() || versions.len() == 1 {
            show_record(&mut out, record)?;
        }
    }
    if let (Some(CatalogVersion::Alias(alias)), false) = (&name.version, json) {
        let step = |to: Option<Generation>| to.map_or("removed".to_owned(), |to| to.to_string());
        let history: Vec<String> =
            catalog.history(&name.name, alias)?.into_iter().map(step).collect();
        out.line(format!("  @{alias:<9} {}", history.join(" -> ")))?;
    }
    out.end(Outcome::Done)
}

/// Prints what the catalogue keeps about a version.
fn show_record(out: &mut Out, record: &Record) -> Result<(), Failure> {
    let mut line = |label: &str, value: String| {
        if value.is_empty() {
            Ok(())
        } else {
            out.line(format!("  {label:<10} {}", out::safe_name(value.as_bytes())))
        }
    };
    for site in &record.sites {
        line("image", site.clone())?;
    }
    line("uuid", record.image.clone())?;
    line("chunks", out::count(record.chunks))?;
    line("snapshot", record.snapshot.clone())?;
    line("fields", record.fields.join(", "))?;
    line("made by", record.made_by.clone())?;
    line("sources", record.sources.join(", "))?;
    if let Some(parent) = &record.parent {
        line("parent", format!("generation {} of {}", parent.generation, parent.image))?;
    }
    for (key, value) in &record.labels {
        line("label", format!("{key}={value}"))?;
    }
    line("dlfs", record.dlfs.clone())
}

fn add(args: AddArgs) -> Result<Outcome, Failure> {
    let connect = args.connection.options(false)?;
    let labels = args.label.into_iter().collect();
    let origin = Origin { labels, ..Origin::default() };
    let name = &args.name.0;
    let number = cataloging::add(name, &args.image.0, &connect, origin)?;
    let catalog = Catalog::open(&name.catalog)?;
    let (_, record) = catalog.find(&name.name, None)?;
    if let Some(alias) = &args.alias {
        catalog.tag_version(&name.name, alias, number, Expect::Anything)?;
    }
    let mut out = Out::new();
    let aliases = catalog.aliases(&name.name)?;
    out.line(format!("{}: {}", out.bold(&name.to_string()), in_short(number, &record, &aliases)))?;
    out.end(Outcome::Done)
}

fn tag(name: &CatalogName, alias: &str, expect: Expect) -> Result<Outcome, Failure> {
    let catalog = Catalog::open(&name.catalog)?;
    match &name.version {
        Some(version) => catalog.tag(&name.name, alias, version, expect)?,
        None => {
            let (newest, _) = catalog.find(&name.name, None)?;
            catalog.tag_version(&name.name, alias, newest, expect)?
        }
    };
    let mut out = Out::new();
    let (_, record) = catalog.find(&name.name, Some(&CatalogVersion::Alias(alias.to_owned())))?;
    out.line(format!("{}@{alias} is generation {}", name.with_version(None), record.generation))?;
    out.end(Outcome::Done)
}

fn remove(name: &CatalogName, all: bool) -> Result<Outcome, Failure> {
    let catalog = Catalog::open(&name.catalog)?;
    let mut out = Out::new();
    match &name.version {
        Some(CatalogVersion::Alias(alias)) => {
            catalog.remove_alias(&name.name, alias)?;
            out.line(format!("removed {name}"))?;
        }
        Some(CatalogVersion::Generation(generation)) => {
            catalog.remove(&name.name, Some(*generation))?;
            out.line(format!("removed {name}; the image stays"))?;
        }
        None if all => {
            let versions = catalog.remove(&name.name, None)?;
            out.line(format!(
                "removed {name}: {}; images stay",
                out::counted(versions, "version")
            ))?;
        }
        None => {
            let message = format!("{name} has versions: name one with @, or remove all with --all");
            return Err(Failure::Usage(message));
        }
    }
    out.end(Outcome::Done)
}

fn rebuild(args: &RebuildArgs, quiet: bool) -> Result<Outcome, Failure> {
    let name = &args.name.0;
    let connect = args.connection.options(false)?;
    let catalog = Catalog::open(&name.catalog)?;
    let image = resolve(&[Address::Named(name.clone())])?.sites.swap_remove(0);
    let (directory, times) = dlfs::import::read_heads(&image, &connect, &mut progress(quiet)?)?;
    let time = |chunk| times.get(&directory.chunk_id(chunk)).copied().unwrap_or_default();
    let found = Index::of(&directory, |chunk| Ok::<u64, Failure>(time(chunk)))?;
    let mut out = Out::new();
    let since_ns = args.since.unwrap_or(0).saturating_mul(1_000_000_000);
    if args.compare {
        let known = catalog.index(&name.name)?.unwrap_or_default();
        let differences = known.differences(&found, since_ns, MAX_DIFFERENCES);
        for difference in &differences {
            out.line(format!("index and chunks: {}", out::safe_name(difference.as_bytes())))?;
        }
        if differences.is_empty() {
            out.line(format!(
                "the index is that of {}",
                out::counted(found.chunks.len() as u64, "chunk")
            ))?;
        }
        return out.end(if differences.is_empty() { Outcome::Done } else { Outcome::Damaged });
    }
    let known = if since_ns > 0 { catalog.index(&name.name)? } else { None };
    let index = found.with_older_of(known.as_ref(), since_ns);
    catalog.set_index(&name.name, &index)?;
    out.line(format!(
        "rebuilt the index of {name}: {}, {}",
        out::counted(index.chunks.len() as u64, "chunk"),
        out::counted(index.samples, "sample"),
    ))?;
    out.end(Outcome::Done)
}

/// The most differences to print; one more line counts the other chunks that differ.
const MAX_DIFFERENCES: usize = 20;

const EXAMPLES: &str = "\
Examples:
  dlfs import pictures train.dlfs --catalog dlfs:///srv/catalog/pictures
  dlfs catalog add dlfs:///srv/catalog/pictures nvme-tcp://HOST/NQN --alias stable
  dlfs read dlfs:///srv/catalog/pictures@stable --batch-size 64
  dlfs catalog tag dlfs:///srv/catalog/pictures@7 stable --from 6
  dlfs catalog ls /srv/catalog";
