//! Arguments that several commands share: the image and how it is opened, order and shares, processors, tiers and
//! metrics.
//!
//! `mix.rs` has the arguments of mixtures, `weights.rs` those of weighted sampling.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::str::FromStr;

use clap::Args;
use clap::builder::{
    OsStringValueParser, TryMapValueParser, TypedValueParser as _, ValueParserFactory,
};

use dlfs::address::{Address, AddressError, CatalogName};
use dlfs::cache::{Probe, TierOptions, TierSpec, probe};
use dlfs::dataset::{Dataset, Image, OpenOptions};
use dlfs::exporter::Exporter;
use dlfs::folders::FolderOptions;
use dlfs::keys::is_key_text;
use dlfs::options::{Choice, Connect, Kind, Open, Order, Tiers};
use dlfs::order::{OrderSpec, Sharding};
use dlfs::qpair::{ConnectOptions, Cpus};
use dlfs::reader::ReaderOptions;
use dlfs::{Error, ErrorKind};

use crate::exit::{Failure, usage};
use crate::log;

/// An image: the addresses of its namespaces, in the order in which the user wrote them.
#[derive(Debug, Clone)]
pub(crate) struct ImageAddress(pub(crate) Vec<Address>);

/// Parses `ADDRESS[,ADDRESS...]`; paths need not be UTF-8.
impl ValueParserFactory for ImageAddress {
    type Parser =
        TryMapValueParser<OsStringValueParser, fn(OsString) -> Result<ImageAddress, AddressError>>;

    fn value_parser() -> Self::Parser {
        let parse: fn(OsString) -> _ = |text| Address::parse_list_os(&text).map(ImageAddress);
        OsStringValueParser::new().try_map(parse)
    }
}

impl ImageAddress {
    /// The addresses for a line of output: if there are many, the first one and their number.
    pub(crate) fn in_short(&self) -> String {
        match &self.0[..] {
            [first, rest @ ..] if rest.len() >= MAX_SHOWN_ADDRESSES => {
                let first = Address::list_to_string(std::slice::from_ref(first));
                format!("{first} and {} more", rest.len())
            }
            all => Address::list_to_string(all),
        }
    }

    /// The addresses for a command to copy, or a placeholder if there are many.
    pub(crate) fn as_argument(&self) -> String {
        if self.0.len() > MAX_SHOWN_ADDRESSES { "IMAGE".to_owned() } else { self.to_string() }
    }
}

impl fmt::Display for ImageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Address::list_to_string(&self.0))
    }
}

/// The name of a data set in a catalogue.
#[derive(Debug, Clone)]
pub(crate) struct DatasetName(pub(crate) CatalogName);

impl FromStr for DatasetName {
    type Err = String;

    fn from_str(text: &str) -> Result<DatasetName, String> {
        match text.parse::<Address>() {
            Ok(Address::Named(name)) => Ok(DatasetName(name)),
            Ok(_) => Err(format!("{text} is not dlfs://CATALOGUE/NAME")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The most addresses that a line of output lists.
pub(crate) const MAX_SHOWN_ADDRESSES: usize = 8;

/// A sample's name: any bytes.
#[derive(Debug, Clone)]
pub(crate) struct Name(pub(crate) Vec<u8>);

/// Takes the argument unchanged.
impl From<OsString> for Name {
    fn from(text: OsString) -> Name {
        Name(text.into_vec())
    }
}

/// The options of connections.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectionArgs {
    #[command(flatten)]
    connect: Connect,
}

impl ConnectionArgs {
    /// The options for plain folders, which say which entries are samples.
    pub(crate) fn folders(&self) -> FolderOptions {
        self.connect.folders()
    }

    /// The library's options for these arguments. Warns of keys that are given as text.
    ///
    /// # Errors
    /// As [`Connect::options`].
    pub(crate) fn options(&self, writable: bool) -> dlfs::Result<ConnectOptions> {
        for (option, text) in [
            ("--dhchap-secret", &self.connect.dhchap_secret),
            ("--dhchap-ctrl-secret", &self.connect.dhchap_ctrl_secret),
            ("--tls-key", &self.connect.tls_key),
        ] {
            text.iter().for_each(|text| warn_of_key_text(option, text));
        }
        self.connect.options(writable)
    }
}

/// Warns if the value of an option is a key, which should be in a file.
pub(crate) fn warn_of_key_text(option: &str, text: &str) {
    if is_key_text(text) {
        log::say(&format!(
            "warning: {option} contains the key, which `ps` shows to every user of this machine: give the path of a \
             file with mode 0600"
        ));
    }
}

/// The image argument of commands that read.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageArgs {
    /// The image: ADDRESS[,ADDRESS...], in any order
    pub(crate) image: ImageAddress,
    #[command(flatten)]
    open: Open,
}

impl ImageArgs {
    /// Opens the image for reading.
    ///
    /// # Errors
    /// Errors of [`Image::open`].
    pub(crate) fn open(&self, connection: &ConnectionArgs) -> Result<Image, Error> {
        self.open_with_tiers(connection, TierOptions::default())
    }

    /// Opens the image for reading, as a data set.
    ///
    /// # Errors
    /// Errors of [`Image::open`].
    pub(crate) fn open_dataset(&self, connection: &ConnectionArgs) -> Result<Dataset, Error> {
        Ok(Dataset::from_image(self.open(connection)?, ReaderOptions::default()))
    }

    /// Opens the image for reading through `tiers`.
    ///
    /// # Errors
    /// Errors of [`Image::open`].
    pub(crate) fn open_with_tiers(
        &self,
        connection: &ConnectionArgs,
        tiers: TierOptions,
    ) -> Result<Image, Error> {
        Image::open(&self.image.0, &self.options(connection, tiers)?)
    }

    /// The options of opening the image for reading.
    ///
    /// # Errors
    /// As [`ConnectionArgs::options`].
    pub(crate) fn options(
        &self,
        connection: &ConnectionArgs,
        tiers: TierOptions,
    ) -> Result<OpenOptions, Error> {
        Ok(self.open.options(connection.options(false)?, tiers))
    }

    /// Returns whether the image is shards whose index is kept.
    pub(crate) fn keeps_index(&self) -> bool {
        self.open.shards && self.open.index.is_some()
    }

    /// Returns whether only the samples of a view are read.
    pub(crate) fn has_view(&self) -> bool {
        self.open.view.is_some()
    }

    /// Opens the image for reading, and loads the samples' names.
    ///
    /// # Errors
    /// Errors of [`Image::open`] and [`Image::load_names`].
    pub(crate) fn open_with_names(&self, connection: &ConnectionArgs) -> Result<Image, Error> {
        let image = self.open(connection)?;
        image.load_names()?;
        Ok(image)
    }
}

/// The engines in use, each named once: `tcp`, `file (io_uring)`.
pub(crate) fn engines<'a>(images: impl Iterator<Item = &'a Image>) -> String {
    let devices = images.flat_map(|image| image.devices());
    let engines: BTreeSet<String> = devices.map(|device| device.namespace().engine).collect();
    engines.into_iter().collect::<Vec<_>>().join(", ")
}

/// The option to serve metrics.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Serve metrics in OpenMetrics at http://IP:PORT/metrics, to anybody who can connect; port 0 selects a free one
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
}

impl MetricsArgs {
    /// Serves the metrics until the returned value is dropped, and logs the address; `None` without the option.
    pub(crate) fn serve(&self) -> Result<Option<Exporter>, Failure> {
        let exporter = self.metrics.map(Exporter::serve).transpose()?;
        if let Some(exporter) = &exporter {
            log::say(&format!("metrics at http://{}/metrics", exporter.local_addr()));
        }
        Ok(exporter)
    }
}

/// The order for `world_size` ranks, if no weights are given.
///
/// # Errors
/// `Usage`: options exclude each other, or a number is out of range.
pub(crate) fn unweighted(order: &Order, world_size: u32) -> Result<OrderSpec, Failure> {
    if order.order.0 == Kind::Weighted {
        let text = "give --weights, of dlfs read, instead of --order weighted".to_owned();
        return Err(Failure::Usage(text));
    }
    order.spec(world_size).map_err(usage)
}

/// Checks that shares of this kind suit the order and the run.
///
/// # Errors
/// `Usage`: aligned shares in an order that does not read whole chunks; local shares without peers, or in an
/// order that gives each rank its own samples.
pub(crate) fn check_shard(
    order: &Order,
    Choice(shard): Choice<Sharding>,
    has_peers: bool,
) -> Result<(), Failure> {
    let refuse = |text: &str| Err(Failure::Usage(text.to_owned()));
    match shard {
        Sharding::Local if !has_peers => refuse(
            "--shard local goes with --peers only: it gives each rank what its node holds for all",
        ),
        Sharding::Local if matches!(order.order.0, Kind::Local | Kind::Partial) => refuse(
            "--shard local goes with --order global, grouped or sequential: this order gives each \
             rank samples of its own",
        ),
        Sharding::Aligned if order.order.0 != Kind::Grouped => {
            refuse("--shard aligned goes with --order grouped only")
        }
        _ => Ok(()),
    }
}

/// Processors of pollers. By default pollers run on any processor, and sleep when idle.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Processors")]
pub(crate) struct PlacementArgs {
    /// Spin instead of sleeping: the lowest latency, for a whole core a poller
    #[arg(long)]
    pub(crate) busy_poll: bool,
    /// Bind pollers to these processors, one each in turn, as 0,2-5
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Bind pollers to the processors of this NUMA node, and allocate their memory there
    #[arg(long, value_name = "NODE")]
    numa: Option<u32>,
}

impl PlacementArgs {
    /// The processors to bind pollers to: those of `--cpus`, of `--numa`, or those that both name. `None` without these
    /// options.
    pub(crate) fn cpus(&self) -> Result<Option<Cpus>, Failure> {
        let wrong = |option: &'static str| {
            move |error: Error| Failure::Usage(format!("{option}: {}", error.report()))
        };
        let Some(list) = &self.cpus else {
            return self.numa.map(Cpus::of_node).transpose().map_err(wrong("--numa"));
        };
        let cpus = Cpus::parse(list).map_err(wrong("--cpus"))?;
        match self.numa {
            None => Ok(Some(cpus)),
            Some(node) => cpus.within_node(node).map(Some).map_err(wrong("--numa")),
        }
    }
}

/// The tiers in `given`. `node` is the name of this node; `None`: the identity of the machine. With `--tiers-file
/// auto`, measures the tiers first; without `--tier`, that is [`default_tier`].
///
/// # Errors
/// The file of `--tiers-file` cannot be read or is invalid; `--tier` is given beside a file; a tier cannot be measured.
pub(crate) fn tiers(given: &Tiers, node: Option<String>) -> Result<TierOptions, Error> {
    if given.tiers_file.as_deref() != Some(Path::new("auto")) {
        if given.tiers_file.is_some() && !given.tiers.is_empty() {
            let text = "--tiers-file names the tiers, and so does --tier: give one of both";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        return given.options(node);
    }
    let mut specs = given.specs()?;
    if specs.is_empty() {
        specs.push(default_tier()?);
    }
    given.with(probe(&specs, &[], &Probe::default())?.options()?, node)
}

/// The tier that is measured if none is named: half of the memory that programs can get without swapping.
///
/// # Errors
/// `Unsupported`: the system does not say how much that is.
pub(crate) fn default_tier() -> Result<TierSpec, Error> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let kib = kib.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "the system does not say how much memory is free")
            .hint("name the tiers: --tier ram:4G")
    })?;
    format!("ram:{}", kib * 1024 / 2).parse()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use dlfs::auth::Derivation;
    use dlfs::qpair::{Direct, SpdkOptions};

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        image: ImageAddress,
        #[command(flatten)]
        connection: ConnectionArgs,
    }

    fn options(arguments: &[&str]) -> ConnectOptions {
        let arguments = ["dlfs", "image"].iter().chain(arguments);
        Command::try_parse_from(arguments).unwrap().connection.options(false).unwrap()
    }

    /// The key of 32 zero bytes.
    const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";

    #[test]
    fn without_options_the_library_s_defaults_hold() {
        assert_eq!(options(&[]), ConnectOptions::default());
    }

    #[test]
    fn tls_without_a_key_takes_it_from_the_kernels_keyring() {
        for given in [&["--tls"][..], &["--tls-key", "keyring"]] {
            let found = options(given);
            assert_eq!(found.tls_keyring.as_deref(), Some(".nvme"));
            assert_eq!((found.tls_key, found.spdk.tls_key), (None, None));
        }
        let found = options(&["--tls", "--tls-key", TLS_KEY]);
        assert_eq!((found.tls_keyring, found.tls_key.is_some()), (None, true));
    }

    /// A key from the tests of libnvme.
    const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[test]
    fn a_key_of_tls_may_be_given_as_text_which_spdk_does_not_get() {
        let found = options(&["--tls-key", TLS_KEY]);
        assert_eq!(found.tls_key, Some(TLS_KEY.parse().unwrap()));
        assert_eq!(found.spdk.tls_key, None);
        assert!(options(&["--dhchap-secret", KEY, "--concat"]).concat);
    }

    #[test]
    fn every_connection_option_reaches_the_library() {
        let file = tempfile::NamedTempFile::new().unwrap(); // made with mode 0600
        std::fs::write(&file, TLS_KEY).unwrap();
        let found = options(&[
            "--hdr-digest",
            "--data-digest",
            "--hostnqn",
            "nqn.2026-11.io.dlfs:host",
            "--hostid",
            "00112233-4455-6677-8899-aabbccddeeff",
            "--nr-io-queues",
            "2",
            "--queue-size",
            "64",
            "--keep-alive-tmo",
            "5",
            "--ctrl-loss-tmo",
            "7",
            "--path",
            "nvme-tcp://b/nqn.2026-11.io.dlfs:x",
            "--direct",
            "on",
            "--spdk-memory",
            "64M",
            "--spdk-huge-pages",
            "off",
            "--dhchap-secret",
            KEY,
            "--dhchap-ctrl-secret",
            KEY,
            "--tls-key",
            file.path().to_str().unwrap(),
            "--tls-compat",
        ]);
        let hostid: [u8; 16] = std::array::from_fn(|i| i as u8 * 0x11);
        assert_eq!(
            found,
            ConnectOptions {
                hdr_digest: true,
                data_digest: true,
                hostnqn: Some("nqn.2026-11.io.dlfs:host".parse().unwrap()),
                hostid: Some(hostid),
                nr_io_queues: 2,
                queue_size: 64,
                keep_alive_tmo: Duration::from_secs(5),
                ctrl_loss_tmo: Duration::from_secs(7),
                paths: vec!["nvme-tcp://b/nqn.2026-11.io.dlfs:x".parse().unwrap()],
                direct: Direct::On,
                dhchap_secret: Some(KEY.parse().unwrap()),
                dhchap_ctrl_secret: Some(KEY.parse().unwrap()),
                spdk: SpdkOptions {
                    memory_bytes: 64 << 20,
                    huge_pages: Some(false),
                    dhchap_key: None,
                    dhchap_ctrl_key: None,
                    tls_key: Some(file.path().into()),
                },
                tls_key: Some(TLS_KEY.parse().unwrap()),
                tls_derivation: Derivation::Compatible,
                ..ConnectOptions::default()
            }
        );
    }

    #[test]
    fn a_line_shows_few_addresses_of_many() {
        let of = |count: usize| {
            let names: Vec<String> = (0..count).map(|number| format!("disk{number}")).collect();
            ImageAddress(Address::parse_list_os(&OsString::from(names.join(","))).unwrap())
        };
        assert_eq!((of(2).in_short(), of(2).as_argument()), (of(2).to_string(), of(2).to_string()));
        let many = of(1024);
        assert_eq!(
            (many.in_short(), many.as_argument()),
            ("disk0 and 1023 more".into(), "IMAGE".into())
        );
        assert!(many.to_string().ends_with("disk1023"), "in full where a program reads it");
    }

    #[test]
    fn an_image_is_a_list_of_addresses() {
        let command =
            Command::try_parse_from(["dlfs", "a.dlfs,nvme-tcp://h/nqn.2026-11.io.dlfs:x"]).unwrap();
        assert_eq!(command.image.0.len(), 2);
        assert_eq!(command.image.to_string(), "a.dlfs,nvme-tcp://h:4420/nqn.2026-11.io.dlfs:x");
        for wrong in ["", "a,,b", "nvme-tcp://h", "trtype:TCP"] {
            let error = Command::try_parse_from(["dlfs", wrong]).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn a_uuid_is_read_with_or_without_dashes_and_nothing_else_is() {
        let plain = options(&["--hostid", "00112233445566778899aabbccddeeff"]);
        assert_eq!(plain.hostid, Some(std::array::from_fn(|i| i as u8 * 0x11)));
        for wrong in
            ["", "0011", "+0112233445566778899aabbccddeeff", "zz112233445566778899aabbccddeeff"]
        {
            let given = Command::try_parse_from(["dlfs", "image", "--hostid", wrong]);
            assert!(given.is_err(), "{wrong}");
        }
    }
}
