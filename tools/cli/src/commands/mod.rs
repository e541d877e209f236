//! The commands of `dlfs`: [`Cli`] parses the arguments and runs the selected one.
//!
//! Each command has its arguments, its work and its output in one file or folder, together with the commands of the
//! same subject. `dlfs export` is in `src/export/`, `dlfs top` in `src/top/`. This file also has the commands about the
//! program itself: `info` shows the version and the engines of this build; `completions` and `man` generate shell
//! completions and manual pages from the `--help` texts.

mod cached;
mod catalog;
mod ctl;
mod demo;
mod doctor;
mod edit;
mod fabric;
mod import;
mod import_parts;
mod key;
mod mount;
mod order;
mod probe;
mod read;
pub(crate) mod samples;
mod select;
mod serve;
mod shuffle_report;
mod stat;
mod tokens;
mod verify;

#[cfg(not(feature = "top"))]
mod without_top;
#[cfg(not(feature = "top"))]
use self::without_top as top;
#[cfg(feature = "top")]
use crate::top;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use serde_json::json;

use dlfs::qpair::{self, Engine};

use crate::exit::{Failure, Outcome, about_file};
use crate::export;
use crate::out::Out;

/// A user-level NVMe-oF file system for deep-learning training.
///
/// Import a data set onto NVMe namespaces, serve it over NVMe/TCP, and read it in shuffled, verified
/// batches. `dlfs demo` shows all of it in a few seconds.
#[derive(Debug, Parser)]
#[command(name = "dlfs", version = VERSION.as_str(), after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Print more on stderr; twice for details
    #[arg(short, long, global = true, display_order = 900, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print neither progress nor warnings on stderr
    #[arg(long, global = true, display_order = 901)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Import(Box<import::ImportArgs>),
    #[command(subcommand)]
    ImportParts(import_parts::PartsCommand),
    Index(edit::IndexArgs),
    Serve(Box<serve::ServeArgs>),
    Ctl(ctl::CtlArgs),
    Cached(cached::CachedArgs),
    Discover(fabric::DiscoverArgs),
    /// Print Identify Controller of a subsystem, as nvme id-ctrl does
    ///
    /// It connects with an admin queue and asks; no I/O queue is created. Fields that the target leaves out are 0.
    IdCtrl(fabric::CommonArgs),
    IdNs(fabric::IdNsArgs),
    /// List the subsystem at an address and the paths to it, as nvme list-subsys does
    ///
    /// The discovery service of the same port is asked for the paths; of a target without one, the address itself is
    /// listed.
    ListSubsys(fabric::CommonArgs),
    Info(InfoArgs),
    Doctor(doctor::DoctorArgs),
    Top(top::TopArgs),
    Ls(samples::LsArgs),
    Stat(stat::StatArgs),
    Cat(samples::CatArgs),
    #[command(subcommand)]
    Catalog(catalog::Action),
    Export(export::ExportArgs),
    Mount(mount::MountArgs),
    Verify(verify::VerifyArgs),
    Read(Box<read::ReadArgs>),
    Order(Box<order::OrderArgs>),
    Select(select::SelectArgs),
    ShuffleReport(shuffle_report::ShuffleReportArgs),
    #[command(subcommand)]
    Tokens(tokens::Action),
    Delete(edit::DeleteArgs),
    Probe(probe::ProbeArgs),
    Purge(edit::PurgeArgs),
    Rebuild(edit::RebuildArgs),
    #[command(subcommand)]
    Snapshot(edit::SnapshotAction),
    Completions(CompletionsArgs),
    #[command(subcommand)]
    Key(key::KeyCommand),
    Man(ManArgs),
}

impl Cli {
    /// Returns whether the command is a service, which writes a log.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.command, Command::Serve(_) | Command::Cached(_))
    }

    /// Runs the selected command.
    pub(crate) fn run(self) -> Result<Outcome, Failure> {
        let quiet = self.quiet;
        match self.command {
            Command::Demo(args) => demo::run(args, quiet),
            Command::Import(args) => import::run(*args, quiet),
            Command::ImportParts(command) => import_parts::run(command, quiet),
            Command::Index(args) => edit::index(args, quiet),
            Command::Serve(args) => serve::run(*args),
            Command::Ctl(args) => ctl::ctl(args),
            Command::Cached(args) => cached::cached(args),
            Command::Discover(args) => fabric::discover(args),
            Command::IdCtrl(args) => fabric::id_ctrl(&args),
            Command::IdNs(args) => fabric::id_ns(&args),
            Command::ListSubsys(args) => fabric::list_subsys(&args),
            Command::Info(args) => info(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Top(args) => top::run(args),
            Command::Ls(args) => samples::ls(args),
            Command::Stat(args) => stat::stat(args),
            Command::Cat(args) => samples::cat(args),
            Command::Catalog(action) => catalog::run(action, quiet),
            Command::Export(args) => export::run(args, quiet),
            Command::Mount(args) => mount::mount_image(args),
            Command::Verify(args) => verify::run(args, quiet),
            Command::Read(args) => read::run(*args, quiet),
            Command::Order(args) => order::order(*args),
            Command::Select(args) => select::select(args),
            Command::ShuffleReport(args) => shuffle_report::run(args),
            Command::Tokens(action) => tokens::run(action),
            Command::Delete(args) => edit::delete(args),
            Command::Probe(args) => probe::probe(args),
            Command::Purge(args) => edit::purge(args, quiet),
            Command::Rebuild(args) => edit::rebuild(args, quiet),
            Command::Snapshot(action) => edit::snapshot(action),
            Command::Completions(args) => completions(args),
            Command::Key(command) => key::run(command),
            Command::Man(args) => man(args),
        }
    }
}

/// The end of `dlfs --help`.
const AFTER_HELP: &str = "\
An IMAGE is ADDRESS[,ADDRESS...] in any order; an ADDRESS is
  a path                                           image file, block device, or a plain folder
  nvme-tcp://HOST[:4420]/NQN[?ns=N]                namespace of an NVMe/TCP target
  \"trtype:TCP traddr:A trsvcid:P subnqn:NQN\"       the same, as SPDK writes it
  dlfs://CATALOGUE/NAME[@GENERATION|@ALIAS]        a whole image by its name: see dlfs catalog
  pcie:0000:5e:00.0[?ns=N]                         drive of this machine that VFIO has: see dlfs doctor
  \"trtype:VFIOUSER traddr:SOCKET\"                 vfio-user target of this machine
  spdk:nvme-tcp://..., \"spdk:trtype:VFIOUSER ...\" the same, by SPDK's host
  \"trtype:PCIE traddr:0000:5e:00.0\"                drive, by SPDK; RDMA as TCP with trtype:RDMA
A comma inside a path is written %2C.

Sizes take K, M, G, T (powers of 1,024) or KB, MB, GB, TB (powers of 1,000).

Exit codes: 0 done, 1 failed, 2 usage, 3 damage found, 4 stopped and can be resumed.";

/// The output of `--version` after the name: version, commit and date, and SPDK's version if it is built in.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = dlfs::COMMIT;
    let date = dlfs::COMMIT_DATE;
    #[cfg(feature = "spdk")]
    let spdk = format!(", SPDK {}", dlfs::spdk::version());
    #[cfg(not(feature = "spdk"))]
    let spdk = "";
    format!("{} (commit {commit}, {date}{spdk})", env!("CARGO_PKG_VERSION"))
});

/// Show the engines of this build and what each can reach
#[derive(Debug, Args)]
struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn info(args: InfoArgs) -> Result<Outcome, Failure> {
    let engines = qpair::engines();
    let engine = |engine: &Engine| {
        json!({
            "name": engine.name, "compiled_in": engine.compiled_in, "reaches": engine.reaches,
        })
    };
    let facts = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": dlfs::COMMIT,
        "commit_date": dlfs::COMMIT_DATE,
        "engines": engines.iter().map(engine).collect::<Vec<_>>(),
    });
    Out::answer(args.json, &facts, |out| {
        out.line(format!("dlfs {}", *VERSION))?;
        engines.iter().try_for_each(|engine| {
            let mark = if engine.compiled_in { "yes" } else { "no " };
            out.line(format!("  {:<6} {mark}  {}", engine.name, engine.reaches))
        })
    })
}

/// Print shell completions of commands and options
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
struct CompletionsArgs {
    /// The shell to generate them for
    shell: Shell,
}

fn completions(args: CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dlfs", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.end(Outcome::Done)
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  dlfs completions bash > ~/.local/share/bash-completion/completions/dlfs
  dlfs completions zsh > ~/.zfunc/_dlfs        # where fpath has ~/.zfunc
  dlfs completions fish > ~/.config/fish/completions/dlfs.fish";

/// Print the manual page, or write those of all commands to a folder
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
struct ManArgs {
    /// The folder for dlfs.1, dlfs-import.1 and so on; created if it does not exist
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

fn man(args: ManArgs) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    match args.folder {
        None => {
            let mut page = Vec::new();
            // Writing to memory cannot fail.
            clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(dlfs::Error::from)?;
            out.bytes(&page)?;
        }
        Some(folder) => {
            let failed = |error| about_file("cannot write the manual pages to", &folder, error);
            std::fs::create_dir_all(&folder).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), &folder).map_err(failed)?;
            out.line(format!("the manual pages are in {}", folder.display()))?;
        }
    }
    out.end(Outcome::Done)
}

const MAN_EXAMPLES: &str = "\
Examples:
  dlfs man | man -l -
  dlfs man ~/.local/share/man/man1             # then: man dlfs-read";
