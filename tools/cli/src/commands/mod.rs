//! The commands of `dlfs`, one file each: arguments, work, output.

mod cached;
mod cat;
mod catalog;
mod completions;
mod ctl;
mod delete;
mod demo;
mod discover;
mod doctor;
mod export;
mod identify;
mod import;
mod import_parts;
mod index;
mod info;
mod key;
mod ls;
mod man;
mod mount;
mod order;
mod probe;
mod purge;
mod read;
mod rebuild;
mod select;
mod serve;
mod shuffle_report;
mod snapshot;
mod stat;
mod tokens;
#[cfg(feature = "top")]
mod top;
mod verify;
#[cfg(not(feature = "top"))]
mod without_top;

use clap::{ArgAction, Parser, Subcommand};

#[cfg(not(feature = "top"))]
use self::without_top as top;
use crate::exit::{Failure, Outcome};

/// A user-level NVMe-oF file system for deep-learning training.
///
/// Import a data set onto NVMe namespaces, serve it over NVMe/TCP, and read it in shuffled, verified
/// batches. `dlfs demo` shows all of it in a few seconds.
#[derive(Debug, Parser)]
#[command(name = "dlfs", version = info::VERSION.as_str(), after_help = EXIT_CODES)]
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
    ImportParts(import_parts::ImportPartsArgs),
    Index(index::IndexArgs),
    Serve(Box<serve::ServeArgs>),
    Ctl(ctl::CtlArgs),
    Cached(cached::CachedArgs),
    Discover(discover::DiscoverArgs),
    /// Print Identify Controller of a subsystem, as nvme id-ctrl does
    ///
    /// It connects with an admin queue and asks; no I/O queue is created. Fields that the target leaves out are 0.
    IdCtrl(identify::CommonArgs),
    IdNs(identify::IdNsArgs),
    /// List the subsystem at an address and the paths to it, as nvme list-subsys does
    ///
    /// The discovery service of the same port is asked for the paths; of a target without one, the address itself is
    /// listed.
    ListSubsys(identify::CommonArgs),
    Info(info::InfoArgs),
    Doctor(doctor::DoctorArgs),
    Top(top::TopArgs),
    Ls(ls::LsArgs),
    Stat(stat::StatArgs),
    Cat(cat::CatArgs),
    Catalog(catalog::CatalogArgs),
    Export(export::ExportArgs),
    Mount(mount::MountArgs),
    Verify(verify::VerifyArgs),
    Read(Box<read::ReadArgs>),
    Order(Box<order::OrderArgs>),
    Select(select::SelectArgs),
    ShuffleReport(shuffle_report::ShuffleReportArgs),
    Tokens(tokens::TokensArgs),
    Delete(delete::DeleteArgs),
    Probe(probe::ProbeArgs),
    Purge(purge::PurgeArgs),
    Rebuild(rebuild::RebuildArgs),
    Snapshot(snapshot::SnapshotArgs),
    Completions(completions::CompletionsArgs),
    Key(key::KeyArgs),
    Man(man::ManArgs),
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
            Command::ImportParts(args) => import_parts::run(args, quiet),
            Command::Index(args) => index::run(args, quiet),
            Command::Serve(args) => serve::run(*args),
            Command::Ctl(args) => ctl::run(args),
            Command::Cached(args) => cached::run(args),
            Command::Discover(args) => discover::run(args),
            Command::IdCtrl(args) => identify::id_ctrl(&args),
            Command::IdNs(args) => identify::id_ns(&args),
            Command::ListSubsys(args) => identify::list_subsys(&args),
            Command::Info(args) => info::run(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Top(args) => top::run(args),
            Command::Ls(args) => ls::run(args),
            Command::Stat(args) => stat::run(args),
            Command::Cat(args) => cat::run(args),
            Command::Catalog(args) => catalog::run(args, quiet),
            Command::Export(args) => export::run(args, quiet),
            Command::Mount(args) => mount::run(args),
            Command::Verify(args) => verify::run(args, quiet),
            Command::Read(args) => read::run(*args, quiet),
            Command::Order(args) => order::run(*args),
            Command::Select(args) => select::run(args),
            Command::ShuffleReport(args) => shuffle_report::run(args),
            Command::Tokens(args) => tokens::run(args),
            Command::Delete(args) => delete::run(args),
            Command::Probe(args) => probe::run(args),
            Command::Purge(args) => purge::run(args, quiet),
            Command::Rebuild(args) => rebuild::run(args, quiet),
            Command::Snapshot(args) => snapshot::run(args),
            Command::Completions(args) => completions::run(args),
            Command::Key(args) => key::run(args),
            Command::Man(args) => man::run(args),
        }
    }
}

const EXIT_CODES: &str = "\
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
