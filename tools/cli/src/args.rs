//! Arguments that several commands share.
//!
//! Options of one subject are in a file of their own: `mix_args.rs`, `tier_args.rs` and the others.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::str::FromStr;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use dlfs::address::{Address, CatalogName};
use dlfs::folders::FolderOptions;
use dlfs::keys::is_key_text;
use dlfs::options::Connect;
use dlfs::qpair::ConnectOptions;

/// An image: the addresses of its namespaces, in the order in which the user wrote them.
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
    /// The addresses for a line of output: if there are many, the first one and their number.
    pub(crate) fn in_short(&self) -> String {
        match &self.0[..] {
            [first, rest @ ..] if rest.len() >= MOST_SHOWN => {
                let first = Address::list_to_string(std::slice::from_ref(first));
                format!("{first} and {} more", rest.len())
            }
            all => Address::list_to_string(all),
        }
    }

    /// The addresses for a command to copy, or a placeholder if there are many.
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

/// The most addresses in a line of output.
pub(crate) const MOST_SHOWN: usize = 8;

/// A sample's name: any bytes.
#[derive(Debug, Clone)]
pub(crate) struct Name(pub(crate) Vec<u8>);

impl Name {
    /// Takes the argument unchanged.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Name> {
        OsStringValueParser::new().map(|text: OsString| Name(text.into_vec()))
    }
}

/// The host and port of HOST:PORT, or of HOST with the usual port. An IPv6 address before a port needs
/// brackets.
pub(crate) fn host_and_port(text: &str, usual: u16) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().ok()?)
        }
        _ => (text, usual),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty() && port > 0).then(|| (host.to_owned(), port))
}

/// How to connect.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectionArgs {
    #[command(flatten)]
    connect: Connect,
}

/// Warns if an option's value is itself a key rather than a file.
pub(crate) fn warn_of_key_text(option: &str, text: &str) {
    if is_key_text(text) {
        crate::log::say(&format!(
            "warning: {option} contains the key, which `ps` shows to every user of this machine: give the path of a \
             file with mode 0600"
        ));
    }
}

impl ConnectionArgs {
    /// The options for folders: which of their entries are samples.
    pub(crate) fn folders(&self) -> FolderOptions {
        self.connect.folders()
    }

    /// The library's options for these arguments.
    ///
    /// # Errors
    /// A key cannot be read.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use dlfs::auth::Derivation;
    use dlfs::qpair::{Direct, SpdkOptions};

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
