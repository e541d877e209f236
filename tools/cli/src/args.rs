//! Arguments that several commands share.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};

use dlfs::address::{Address, CatalogName};
use dlfs::auth::Derivation;
use dlfs::folders::{FolderOptions, Links};
use dlfs::keys::{KEYRING, is_key_text, secret_of, set_tls_key};
use dlfs::nvme::Nqn;
use dlfs::qpair::{ConnectOptions, Direct, SpdkOptions};

use crate::help::opening;
use crate::size::parse_size;

/// An image: the addresses of its namespaces, in the order in which they were written.
#[derive(Debug, Clone)]
pub(crate) struct ImageAddress(pub(crate) Vec<Address>);

impl ImageAddress {
    /// Reads `ADDRESS[,ADDRESS...]`; paths need not be UTF-8.
    pub(crate) fn parser() -> impl TypedValueParser<Value = ImageAddress> {
        OsStringValueParser::new()
            .try_map(|text: OsString| Address::parse_list_os(&text).map(ImageAddress))
    }
}

impl ImageAddress {
    /// The addresses for a line of text: of many, the first and their number.
    pub(crate) fn in_short(&self) -> String {
        match &self.0[..] {
            [first, rest @ ..] if rest.len() >= MOST_SHOWN => {
                let first = Address::list_to_string(std::slice::from_ref(first));
                format!("{first} and {} more", rest.len())
            }
            all => Address::list_to_string(all),
        }
    }

    /// The addresses for a command to copy, or a word that stands for many.
    pub(crate) fn as_argument(&self) -> String {
        if self.0.len() > MOST_SHOWN { "IMAGE".to_owned() } else { self.to_string() }
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

/// The most addresses in a line of text.
pub(crate) const MOST_SHOWN: usize = 8;

/// A sample's name: any bytes.
#[derive(Debug, Clone)]
pub(crate) struct Name(pub(crate) Vec<u8>);

impl Name {
    /// Takes the argument as it is.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Name> {
        OsStringValueParser::new().map(|text: OsString| Name(text.into_vec()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinksArg {
    /// All, as torchvision's ImageFolder does, but none back to a folder around it
    Follow,
    /// Those that stay in the folder; others are errors
    Inside,
    /// None: each is an error
    Refuse,
}

/// Connection options, named as in nvme-cli.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection (named as in nvme-cli)")]
pub(crate) struct ConnectionArgs {
    #[arg(long)]
    #[arg(help = opening("hdr_digest", ""))]
    hdr_digest: bool,
    #[arg(long)]
    #[arg(help = opening("data_digest", ""))]
    data_digest: bool,
    #[arg(long, value_name = "NQN")]
    #[arg(help = opening("hostnqn", " [default: that of /etc/nvme/hostnqn]"))]
    hostnqn: Option<Nqn>,
    /// The host identifier to present [default: that of /etc/nvme/hostid]
    #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
    hostid: Option<[u8; 16]>,
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(help = opening("nr_io_queues", ", each a connection of its own"))]
    nr_io_queues: u16,
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(2..))]
    #[arg(help = opening("queue_size", "; one fewer may be outstanding"))]
    queue_size: u16,
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    #[arg(help = opening("keep_alive_tmo", " in seconds; 0 switches it off"))]
    keep_alive_tmo: u32,
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    #[arg(help = opening("ctrl_loss_tmo", " after a connection is lost, in seconds"))]
    ctrl_loss_tmo: u32,
    #[arg(long, value_name = "ADDRESS")]
    #[arg(help = opening("paths", "; may be repeated"))]
    path: Vec<Address>,
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = DirectArg::Auto)]
    #[arg(help = opening(
        "direct",
        "; auto: block devices, and files larger than half of the memory"
    ))]
    direct: DirectArg,
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = LinksArg::Follow)]
    #[arg(help = opening("links", ", or of one that is imported"))]
    links: LinksArg,
    #[arg(long)]
    #[arg(help = opening(
        "hidden",
        " (._*, .DS_Store, Thumbs.db, desktop.ini, @eaDir, __MACOSX); of archives and stores, too"
    ))]
    hidden: bool,
    /// Memory for SPDK and its devices, for addresses that use SPDK
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    spdk_memory: u64,
    /// Use huge pages for SPDK's memory; auto: if enough are free
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = DirectArg::Auto)]
    spdk_huge_pages: DirectArg,
    #[arg(long, value_name = "FILE|KEY")]
    #[arg(help = opening("dhchap_secret", ", which `ps` shows to everybody; `dlfs key gen` makes keys"))]
    dhchap_secret: Option<String>,
    #[arg(long, value_name = "FILE|KEY", requires = "dhchap_secret")]
    #[arg(help = opening("dhchap_ctrl_secret", ""))]
    dhchap_ctrl_secret: Option<String>,
    /// This host's key for DH-HMAC-CHAP, in a file; through SPDK only
    #[arg(long, value_name = "FILE")]
    dhchap_key: Option<PathBuf>,
    /// The controller's key for DH-HMAC-CHAP, in a file; through SPDK only
    #[arg(long, value_name = "FILE")]
    dhchap_ctrl_key: Option<PathBuf>,
    #[arg(long, requires = "dhchap_secret", conflicts_with = "tls_key")]
    #[arg(help = opening("concat", ""))]
    concat: bool,
    /// Connect inside TLS 1.3; without --tls-key, with the key that nvme-cli has put into the kernel's keyring .nvme
    #[arg(long, conflicts_with = "concat")]
    tls: bool,
    #[arg(long, value_name = "FILE|KEY")]
    #[arg(help = opening("tls_key", ", which `ps` shows to everybody; through SPDK a file only"))]
    tls_key: Option<String>,
    #[arg(long)]
    #[arg(help = opening("tls_compat", "; for targets whose keys it installed"))]
    tls_compat: bool,
}

/// Warns if an option contains a key itself.
pub(crate) fn warn_of_key_text(option: &str, text: &str) {
    if is_key_text(text) {
        crate::log::say(&format!(
            "warning: {option} contains the key, which `ps` shows to every user of this machine: give the path of a \
             file with mode 0600"
        ));
    }
}

impl ConnectionArgs {
    /// Options that say which entries of folders are samples.
    pub(crate) fn folders(&self) -> FolderOptions {
        let links = match self.links {
            LinksArg::Follow => Links::Follow,
            LinksArg::Inside => Links::Inside,
            LinksArg::Refuse => Links::Refuse,
        };
        FolderOptions { hidden: self.hidden, links }
    }

    /// The library's options for these arguments.
    ///
    /// # Errors
    /// A key cannot be read.
    pub(crate) fn options(&self, writable: bool) -> dlfs::Result<ConnectOptions> {
        let secret = |given: &Option<String>| given.as_deref().map(secret_of).transpose();
        let given = [
            ("--dhchap-secret", &self.dhchap_secret),
            ("--dhchap-ctrl-secret", &self.dhchap_ctrl_secret),
            ("--tls-key", &self.tls_key),
        ];
        for (option, text) in given {
            text.iter().for_each(|text| warn_of_key_text(option, text));
        }
        let tls_key = self.tls_key.as_deref().or(self.tls.then_some(KEYRING));
        let tls_file = tls_key.filter(|given| !is_key_text(given) && *given != KEYRING);
        let mut options = ConnectOptions {
            concat: self.concat,
            tls_derivation: if self.tls_compat {
                Derivation::Compatible
            } else {
                Derivation::Specification
            },
            dhchap_secret: secret(&self.dhchap_secret)?,
            dhchap_ctrl_secret: secret(&self.dhchap_ctrl_secret)?,
            hdr_digest: self.hdr_digest,
            data_digest: self.data_digest,
            hostnqn: self.hostnqn.clone(),
            hostid: self.hostid,
            folders: self.folders(),
            nr_io_queues: self.nr_io_queues,
            queue_size: self.queue_size,
            keep_alive_tmo: Duration::from_secs(self.keep_alive_tmo.into()),
            ctrl_loss_tmo: Duration::from_secs(self.ctrl_loss_tmo.into()),
            paths: self.path.clone(),
            direct: match self.direct {
                DirectArg::Auto => Direct::Auto,
                DirectArg::On => Direct::On,
                DirectArg::Off => Direct::Off,
            },
            writable,
            spdk: SpdkOptions {
                memory_bytes: usize::try_from(self.spdk_memory).unwrap_or(usize::MAX),
                huge_pages: match self.spdk_huge_pages {
                    DirectArg::Auto => None,
                    DirectArg::On => Some(true),
                    DirectArg::Off => Some(false),
                },
                dhchap_key: self.dhchap_key.clone(),
                dhchap_ctrl_key: self.dhchap_ctrl_key.clone(),
                tls_key: tls_file.map(PathBuf::from),
            },
            ..ConnectOptions::default()
        };
        if let Some(given) = tls_key {
            set_tls_key(&mut options, given)?;
        }
        Ok(options)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DirectArg {
    Auto,
    On,
    Off,
}

/// `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or the 32 digits alone.
fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    let plain = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| plain);
    number
        .map(u128::to_be_bytes)
        .ok_or_else(|| "not a UUID, such as 00112233-4455-6677-8899-aabbccddeeff".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[arg(value_parser = ImageAddress::parser())]
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

    /// The key of the tests of libnvme.
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
            "--dhchap-key",
            "/h",
            "--dhchap-ctrl-key",
            "/c",
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
                    dhchap_key: Some("/h".into()),
                    dhchap_ctrl_key: Some("/c".into()),
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
        assert!(parse_uuid("00112233445566778899aabbccddeeff").is_ok());
        for wrong in
            ["", "0011", "+0112233445566778899aabbccddeeff", "zz112233445566778899aabbccddeeff"]
        {
            assert!(parse_uuid(wrong).is_err(), "{wrong}");
        }
    }
}
