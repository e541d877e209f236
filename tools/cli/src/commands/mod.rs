//! The commands of `dlfs`, those of one subject in a file: arguments, work, output.

mod catalog;
mod demo;
mod doctor;
mod edit;
mod fabric;
mod import;
mod import_parts;
mod info;
mod key;
mod mount;
mod order;
mod read;
pub(crate) mod samples;
mod serve;
mod stat;

#[cfg(not(feature = "top"))]
mod without_top;
#[cfg(not(feature = "top"))]
use self::without_top as top;
#[cfg(feature = "top")]
use crate::top;

use clap::{ArgAction, Parser, Subcommand};

use crate::exit::{Failure, Outcome};
use crate::export;

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
    Index(edit::IndexArgs),
    Serve(Box<serve::ServeArgs>),
    Ctl(serve::CtlArgs),
    Cached(mount::CachedArgs),
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
    Info(info::InfoArgs),
    Doctor(doctor::DoctorArgs),
    Top(top::TopArgs),
    Ls(samples::LsArgs),
    Stat(stat::StatArgs),
    Cat(samples::CatArgs),
    Catalog(catalog::CatalogArgs),
    Export(export::ExportArgs),
    Mount(mount::MountArgs),
    Verify(stat::VerifyArgs),
    Read(Box<read::ReadArgs>),
    Order(Box<order::OrderArgs>),
    Select(samples::SelectArgs),
    ShuffleReport(order::ShuffleReportArgs),
    Tokens(order::TokensArgs),
    Delete(edit::DeleteArgs),
    Probe(fabric::ProbeArgs),
    Purge(edit::PurgeArgs),
    Rebuild(edit::RebuildArgs),
    Snapshot(edit::SnapshotArgs),
    Completions(info::CompletionsArgs),
    Key(key::KeyArgs),
    Man(info::ManArgs),
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
            Command::Index(args) => edit::index(args, quiet),
            Command::Serve(args) => serve::run(*args),
            Command::Ctl(args) => serve::ctl(args),
            Command::Cached(args) => mount::cached(args),
            Command::Discover(args) => fabric::discover(args),
            Command::IdCtrl(args) => fabric::id_ctrl(&args),
            Command::IdNs(args) => fabric::id_ns(&args),
            Command::ListSubsys(args) => fabric::list_subsys(&args),
            Command::Info(args) => info::info(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Top(args) => top::run(args),
            Command::Ls(args) => samples::ls(args),
            Command::Stat(args) => stat::stat(args),
            Command::Cat(args) => samples::cat(args),
            Command::Catalog(args) => catalog::run(args, quiet),
            Command::Export(args) => export::run(args, quiet),
            Command::Mount(args) => mount::mount_image(args),
            Command::Verify(args) => stat::verify(args, quiet),
            Command::Read(args) => read::run(*args, quiet),
            Command::Order(args) => order::order(*args),
            Command::Select(args) => samples::select(args),
            Command::ShuffleReport(args) => order::shuffle_report(args),
            Command::Tokens(args) => order::tokens(args),
            Command::Delete(args) => edit::delete(args),
            Command::Probe(args) => fabric::probe(args),
            Command::Purge(args) => edit::purge(args, quiet),
            Command::Rebuild(args) => edit::rebuild(args, quiet),
            Command::Snapshot(args) => edit::snapshot(args),
            Command::Completions(args) => info::completions(args),
            Command::Key(args) => key::run(args),
            Command::Man(args) => info::man(args),
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
