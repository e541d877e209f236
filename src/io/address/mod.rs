//! The syntax of addresses, which name a namespace, or an image that is striped over several namespaces.
//!
//! ```text
//! IMAGE   = ADDRESS[,ADDRESS...]
//! ADDRESS = path
//!         | nvme-tcp://host[:4420]/NQN[?ns=N]                 host: name, IPv4, or IPv6 in brackets
//!         | trtype:TCP [adrfam:IPv4|IPv6] traddr:A [trsvcid:4420] subnqn:NQN [ns:N]
//!         | s3://BUCKET/PREFIX | gs://BUCKET/PREFIX | az://CONTAINER/PREFIX | http(s)://HOST/PATH
//!         | hf://datasets/OWNER/NAME[@REVISION][/PREFIX]
//!                                                             objects of a store, as files of a folder; only read
//!         | dlfs://CATALOGUE/NAME[@GENERATION|@ALIAS]           a whole image: see [`CatalogName`]
//!         | pcie:0000:5e:00.0[?ns=N]                          a drive of this machine: see [`PcieAddress`]
//!         | trtype:VFIOUSER traddr:SOCKET [subnqn:NQN] [ns:N] a controller that a process of this machine emulates
//!         | spdk:ADDRESS | trtype:PCIE|RDMA ...               through SPDK: see [`SpdkAddress`]
//! ```
//! An NVMe/TCP address without `?ns=` (or `ns:`) names a subsystem. Reading an image uses all namespaces of the
//! subsystem that hold the image. Writing, or reading a bare namespace, requires a subsystem with only one
//! namespace. Through SPDK, on PCIe and over vfio-user, such an address means the first active namespace.
//!
//! A comma inside an address is `%2C`. In a path, only `%2C`, `%25` (the percent sign) and escapes
//! of bytes from 80h on (names that are not UTF-8) stand for a byte; in a key of a store, only `%2C` and `%25`.
//! Any other `%` stands for itself, so ordinary names need no escapes. In host names, `traddr`, NQNs and the folder
//! of a catalogue every `%XX` stands for a byte. An http URL is passed on with its escapes.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub mod catalog_name;
mod device;
mod parts;
pub mod tcp;

pub use catalog_name::{CatalogName, CatalogPlace, CatalogVersion};
pub use device::{PcieAddress, SpdkAddress, VfioUserAddress};
pub use parts::AddressError;
#[doc(hidden)]
pub use parts::unescape_all;
pub use tcp::TcpAddress;

use catalog_name::CATALOG_SCHEME;
use device::{PCIE_SCHEME, TransportId};
use dlfs_base::percent::{escape, hex_pair, unescape};
use tcp::{URL_SCHEME, parse_url};

/// The address of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// An image file, a block device or a plain folder.
    Path(PathBuf),
    /// A namespace of an NVMe/TCP target, reached with this library's host.
    Tcp(TcpAddress),
    /// A namespace of a drive of this machine, reached with this library's driver.
    Pcie(PcieAddress),
    /// A namespace of a controller that another process emulates, reached with this library's driver.
    VfioUser(VfioUserAddress),
    /// A namespace reached through SPDK.
    Spdk(SpdkAddress),
    /// Objects of a store, by their address, which the crate `dlfs-places` parses. It holds no secret.
    Objects(String),
    /// A whole image by its name; the catalogue (crate `dlfs-import`) finds its addresses.
    Named(CatalogName),
}

impl Address {
    /// Returns whether both addresses name the same namespace of the same subsystem, over any path. Addresses
    /// other than NVMe/TCP must be equal.
    pub fn is_same_namespace(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Tcp(one), Address::Tcp(other)) => {
                (&one.subnqn, one.nsid) == (&other.subnqn, other.nsid)
            }
            _ => self == other,
        }
    }

    /// Parses an IMAGE: one or more addresses separated by commas.
    ///
    /// # Errors
    /// The first address that is invalid.
    pub fn parse_list(text: &str) -> Result<Vec<Address>, AddressError> {
        text.split(',').map(str::parse).collect()
    }

    /// As [`Address::parse_list`], for a command-line argument, in which a path need not be UTF-8.
    ///
    /// # Errors
    /// As [`Address::parse_list`].
    pub fn parse_list_os(text: &OsStr) -> Result<Vec<Address>, AddressError> {
        let mut escaped = String::with_capacity(text.len());
        escape(&mut escaped, text.as_bytes(), |_| false).expect("a String takes all");
        Address::parse_list(&escaped)
    }

    /// Formats `addresses` as an IMAGE, which [`Address::parse_list`] parses back.
    pub fn list_to_string(addresses: &[Address]) -> String {
        let texts: Vec<String> = addresses.iter().map(Address::to_string).collect();
        texts.join(",")
    }

    /// The address of a path, which is not parsed: no character of it is special.
    pub fn from_path(path: impl AsRef<Path>) -> Address {
        Address::Path(path.as_ref().to_owned())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if let Some(rest) = text.strip_prefix(URL_SCHEME) {
            return parse_url(text, rest).map(Address::Tcp);
        }
        if let Some(rest) = text.strip_prefix(CATALOG_SCHEME) {
            return CatalogName::parse(text, rest).map(Address::Named);
        }
        if let Some(rest) = text.strip_prefix(PCIE_SCHEME) {
            return PcieAddress::parse(text, rest).map(Address::Pcie);
        }
        if let Some(inner) = text.strip_prefix(SPDK_PREFIX) {
            return match inner.parse::<Address>()? {
                Address::Tcp(address) => Ok(Address::Spdk(SpdkAddress::Tcp(address))),
                Address::Pcie(address) => Ok(Address::Spdk(SpdkAddress::Pcie(address))),
                Address::VfioUser(address) => Ok(Address::Spdk(SpdkAddress::VfioUser(address))),
                Address::Spdk(address) => Ok(Address::Spdk(address)),
                Address::Path(_) | Address::Objects(_) | Address::Named(_) => {
                    Err(AddressError::SpdkPath(inner.to_owned()))
                }
            };
        }
        if text.trim_start().starts_with(TRTYPE_PREFIX) {
            return parse_transport_id(text);
        }
        if STORES.iter().any(|scheme| text.starts_with(scheme)) {
            return parse_objects(text);
        }
        if has_scheme(text) {
            return Err(AddressError::Scheme(text.to_owned()));
        }
        let path = unescape(text, |byte| byte == b',' || byte == b'%' || byte >= 0x80);
        if path.contains(&0) {
            return Err(AddressError::Nul);
        }
        Ok(Address::Path(PathBuf::from(OsString::from_vec(path))))
    }
}

/// Parses the address of objects. In keys of buckets, `%2C` and `%25` stand for bytes; URLs have their own
/// escapes.
fn parse_objects(text: &str) -> Result<Address, AddressError> {
    if text.starts_with("http") {
        // A user or a query may be a secret, and addresses are printed and stored.
        let authority = text.split("://").nth(1).and_then(|rest| rest.split('/').next());
        let has_user = authority.is_some_and(|authority| authority.contains('@'));
        return if has_user || text.contains('?') {
            Err(AddressError::SecretUrl)
        } else {
            Ok(Address::Objects(text.to_owned()))
        };
    }
    let bytes = unescape(text, |byte| byte == b',' || byte == b'%');
    match String::from_utf8(bytes) {
        Ok(place) if !place.chars().any(char::is_control) => Ok(Address::Objects(place)),
        _ => Err(AddressError::Objects(text.escape_debug().to_string())),
    }
}

/// Returns whether `text` begins as a URL does: with a scheme of RFC 3986, then `://`.
fn has_scheme(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        let mut bytes = scheme.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// Parses an address that begins with `trtype:`. Its keys may be in any order and case.
fn parse_transport_id(text: &str) -> Result<Address, AddressError> {
    const KEYS: [&str; 6] = ["trtype", "adrfam", "traddr", "trsvcid", "subnqn", "ns"];
    let mut values: [Option<&str>; 6] = [None; 6];
    let problem = |key: &str, problem| AddressError::Key { key: key.to_owned(), problem };
    for word in text.split_whitespace() {
        let (key, value) = word.split_once(':').ok_or_else(|| problem(word, "unknown"))?;
        let index = KEYS.iter().position(|known| known.eq_ignore_ascii_case(key));
        let slot = &mut values[index.ok_or_else(|| problem(key, "unknown"))?];
        if slot.replace(value).is_some() {
            return Err(problem(key, "given twice"));
        }
    }
    let [trtype, adrfam, traddr, trsvcid, subnqn, ns] = values;
    let trtype = trtype.ok_or_else(|| problem("trtype", "missing"))?;
    if let Some(adrfam) = adrfam.filter(|a| !["IPV4", "IPV6"].contains(&&*a.to_ascii_uppercase())) {
        let value = adrfam.to_owned();
        let expected = "IPv4, IPv6";
        return Err(AddressError::Value { key: "adrfam", value, expected });
    }
    let id = TransportId { traddr, trsvcid, subnqn, ns };
    match &*trtype.to_ascii_uppercase() {
        "TCP" => {}
        "PCIE" => return device::parse_pcie(&id).map(Address::Spdk),
        "RDMA" => return device::parse_rdma(&id).map(Address::Spdk),
        "VFIOUSER" => return device::parse_vfio_user(&id).map(Address::VfioUser),
        _ => {
            let value = trtype.to_owned();
            let expected = "TCP, PCIE, RDMA, VFIOUSER";
            return Err(AddressError::Value { key: "trtype", value, expected });
        }
    }
    let traddr = unescape_all(traddr.ok_or_else(|| problem("traddr", "missing"))?)?;
    if traddr.is_empty() || traddr.chars().any(|c| c.is_control() || c.is_whitespace()) {
        let expected = "host names and addresses";
        return Err(AddressError::Value { key: "traddr", value: traddr, expected });
    }
    let subnqn = subnqn.ok_or_else(|| problem("subnqn", "missing"))?;
    TcpAddress::of(traddr, trsvcid, subnqn, ns).map(Address::Tcp)
}

impl fmt::Display for Address {
    /// Formats text that parses to an address of the same namespace, also within a list. An exception is an http URL
    /// with a comma, which a list would split.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(tcp) => tcp.fmt(f),
            Address::Pcie(drive) => drive.fmt(f),
            Address::VfioUser(device) => device.fmt(f),
            Address::Spdk(spdk) => spdk.fmt(f),
            Address::Named(name) => name.fmt(f),
            Address::Objects(url) if url.starts_with("http") => f.write_str(url),
            Address::Objects(place) => fmt_path(f, place.as_bytes()),
            Address::Path(path) => {
                let bytes = path.as_os_str().as_bytes();
                let text = String::from_utf8_lossy(bytes);
                // `from_str` would not parse these as paths. It skips leading whitespace only before `trtype:`.
                let schemes = [URL_SCHEME, SPDK_PREFIX, PCIE_SCHEME];
                let is_url = schemes.iter().any(|prefix| text.starts_with(prefix));
                if is_url || has_scheme(&text) || text.trim_start().starts_with(TRTYPE_PREFIX) {
                    f.write_str("./")?;
                }
                fmt_path(f, bytes)
            }
        }
    }
}

/// Prints a path and escapes the characters that [`Address::parse_list`] would interpret differently.
fn fmt_path(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        for (at, c) in valid.char_indices() {
            match c {
                ',' => f.write_str("%2C")?,
                // A percent sign needs its escape only before two hexadecimal digits.
                '%' if hex_pair(&valid.as_bytes()[at + 1..]).is_some() => f.write_str("%25")?,
                c => f.write_char(c)?,
            }
        }
        for byte in chunk.invalid() {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

const SPDK_PREFIX: &str = "spdk:";
const TRTYPE_PREFIX: &str = "trtype:";

/// Schemes of object stores.
const STORES: [&str; 6] = ["s3://", "gs://", "az://", "http://", "https://", "hf://"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_objects_are_kept_as_they_are_and_hold_no_secret() {
        for text in
            ["s3://bucket/a b/%2C%25x", "gs://b", "https://h:1/a%20b/", "hf://datasets/o/n@v"]
        {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string().parse::<Address>().unwrap(), address, "{text}");
        }
        let list = Address::parse_list("s3://b/a%2Cb,s3://b/c").unwrap();
        assert_eq!(list[0], Address::Objects("s3://b/a,b".to_owned()));
        assert_eq!(
            (list.len(), Address::list_to_string(&list)),
            (2, "s3://b/a%2Cb,s3://b/c".to_owned())
        );
        for text in ["https://h/a?sig=SECRET", "https://me:SECRET@h/a"] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
    }
    use crate::address::{CatalogPlace, CatalogVersion};
    use dlfs_base::units::{Generation, Nsid};
    use dlfs_nvme::nvme::{Nqn, NqnError};
    use proptest::prelude::*;

    fn tcp(traddr: &str, trsvcid: u16, subnqn: &str, nsid: Option<u32>) -> Address {
        let traddr = traddr.to_owned();
        let subnqn = Nqn::new(subnqn).unwrap();
        Address::Tcp(TcpAddress { traddr, trsvcid, subnqn, nsid: nsid.map(Nsid) })
    }

    fn named(catalog: CatalogPlace, name: &str, version: Option<CatalogVersion>) -> Address {
        Address::Named(CatalogName { catalog, name: name.to_owned(), version })
    }

    #[test]
    fn every_form_of_an_address_is_read() {
        let nqn = "nqn.2026-11.io.dlfs:train";
        #[rustfmt::skip]
        let golden = [
            ("train.dlfs", Address::from_path("train.dlfs")),
            ("/dev/nvme0n1", Address::from_path("/dev/nvme0n1")),
            ("100%.dlfs", Address::from_path("100%.dlfs")),
            ("a%2Cb", Address::from_path("a,b")),
            ("a%252Cb", Address::from_path("a%2Cb")),
            ("nvme-tcp://h/nqn.2026-11.io.dlfs:train", tcp("h", 4420, nqn, None)),
            ("nvme-tcp://10.0.0.1:8009/nqn.2026-11.io.dlfs:train?ns=2", tcp("10.0.0.1", 8009, nqn, Some(2))),
            ("nvme-tcp://[fe80::1%25eth0]:1/nqn.2026-11.io.dlfs:train", tcp("fe80::1%eth0", 1, nqn, None)),
            ("nvme-tcp://[::1]/a%2Cb%3F", tcp("::1", 4420, "a,b?", None)),
            ("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4421 subnqn:nqn.2026-11.io.dlfs:train ns:3",
                tcp("127.0.0.1", 4421, nqn, Some(3))),
            ("trtype:tcp subnqn:x traddr:::1", tcp("::1", 4420, "x", None)),
            ("dlfs://site/imagenet", named(CatalogPlace::Configured("site".into()), "imagenet", None)),
            ("dlfs:///srv/a%2Cb%20%FF/x.1_2-3@7", named(
                CatalogPlace::Folder(OsStr::from_bytes(b"/srv/a,b \xFF").into()),
                "x.1_2-3", Some(CatalogVersion::Generation(Generation(7))))),
            ("dlfs://../data/x@stable", named(
                CatalogPlace::Folder("../data".into()), "x", Some(CatalogVersion::Alias("stable".into())))),
            ("trtype:VFIOUSER traddr:/run/a%20b subnqn:x ns:2", Address::VfioUser(VfioUserAddress {
                traddr: "/run/a b".into(), subnqn: Some(Nqn::new("x").unwrap()), nsid: Some(Nsid(2)) })),
            ("spdk:pcie:0000:5e:00.0?ns=2", Address::Spdk(
                SpdkAddress::Pcie(PcieAddress { traddr: "0000:5e:00.0".into(), nsid: Some(Nsid(2)) }))),
            ("spdk:trtype:VFIOUSER traddr:/x", Address::Spdk(
                SpdkAddress::VfioUser(VfioUserAddress { traddr: "/x".into(), subnqn: None, nsid: None }))),
            ("trtype:PCIE traddr:0000:5e:00.0",
                Address::Spdk(SpdkAddress::Pcie(PcieAddress { traddr: "0000:5e:00.0".into(), nsid: None }))),
        ];
        for (text, address) in golden {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!(address.to_string().parse(), Ok(address), "{text}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason() {
        use AddressError::*;
        let parse = |text: &str| text.parse::<Address>().unwrap_err();
        assert_eq!(parse(""), Empty);
        assert_eq!(Address::parse_list("a,,b"), Err(Empty));
        assert_eq!(parse("a\0b"), Nul);
        assert_eq!(parse("s3://b/a\0"), Objects("s3://b/a\\0".into()));
        assert_eq!(parse("s3://b/\n"), Objects("s3://b/\\n".into()));
        for url in
            ["s4://bucket/train.dlfs", "ftp://h/x", "file:///x", "nvme-rdma://h/x", "a+b.1-2://"]
        {
            assert_eq!(parse(url), Scheme(url.into()));
            let path = Address::from_path(format!("./{url}"));
            assert_eq!(format!("./{url}").parse(), Ok(path), "a file may be called so");
        }
        for path in ["://x", "1a://x", "a b://x", "a:/x", "x/s3://y"] {
            assert_eq!(path.parse(), Ok(Address::from_path(path)));
        }
        assert!(matches!(parse("nvme-tcp://h"), Url(_)));
        assert!(matches!(parse("nvme-tcp:///x"), Url(_)));
        assert!(matches!(parse("nvme-tcp://::1/x"), Url(_)));
        assert!(matches!(parse("nvme-tcp://[::1]4420/x"), Url(_)));
        assert!(matches!(parse("nvme-tcp://h/x?nsid=1"), Url(_)));
        assert!(matches!(parse("nvme-tcp://h/"), Nqn { error: NqnError::Empty, .. }));
        assert!(matches!(parse("nvme-tcp://h/a%0Ab"), Nqn { error: NqnError::Control, .. }));
        assert!(matches!(parse("nvme-tcp://h/x%2"), Escape(_)));
        assert!(matches!(parse("nvme-tcp://h/%FF"), Escape(_)));
        let long = format!("dlfs://site/{}", "x".repeat(101));
        for name in [
            "dlfs://",
            "dlfs://site",
            "dlfs://site/",
            "dlfs:///x",
            "dlfs://site/..",
            "dlfs://site/.x",
            "dlfs://site/a b",
            "dlfs://site/x@",
            "dlfs://site/x@a/b",
            "dlfs://site/x@99999999999999999999",
            "dlfs://site/x@-1",
            "dlfs://a/b/x",
            "dlfs://site/a%2Fb",
            "dlfs:///srv/%00/x",
            &long,
        ] {
            assert!(matches!(parse(name), CatalogName(_)), "{name}: {:?}", parse(name));
        }
        assert!(matches!(parse("dlfs:///srv/%0/x"), Escape(_)));
        for port in ["0", "65536", "+1", "http", ""] {
            assert_eq!(parse(&format!("nvme-tcp://h:{port}/x")), Port(port.into()));
        }
        for ns in ["0", "4294967295", "-1", "one", ""] {
            assert_eq!(parse(&format!("nvme-tcp://h/x?ns={ns}")), AddressError::Nsid(ns.into()));
        }
        assert!(matches!(parse("trtype:FC traddr:x subnqn:y"), Value { key: "trtype", .. }));
        assert!(matches!(
            parse("trtype:TCP adrfam:IB traddr:x subnqn:y"),
            Value { key: "adrfam", .. }
        ));
        assert!(matches!(parse("trtype:TCP traddr:x"), Key { problem: "missing", .. }));
        assert!(matches!(
            parse("trtype:TCP traddr:x traddr:y subnqn:z"),
            Key { problem: "given twice", .. }
        ));
        assert!(matches!(parse("trtype:TCP colour:x"), Key { problem: "unknown", .. }));
    }

    #[test]
    fn a_list_is_split_at_commas_and_printed_so_that_it_reads_back() {
        let text = "a%2Cb.dlfs,nvme-tcp://h:1/x%2Cy?ns=1,trtype:RDMA traddr:1.2.3.4 subnqn:x%2C";
        let list = Address::parse_list(text).unwrap();
        assert_eq!(list.len(), 3);
        assert_eq!(list[0], Address::from_path("a,b.dlfs"));
        assert_eq!(Address::parse_list(&Address::list_to_string(&list)), Ok(list));
    }

    #[test]
    fn paths_that_look_like_something_else_are_printed_as_paths() {
        for name in ["nvme-tcp://x/y", "spdk:x", "trtype:TCP", " trtype:x", "s3://x"] {
            let address = Address::from_path(name);
            let back: Address = address.to_string().parse().unwrap();
            assert_eq!(back, Address::from_path(format!("./{name}")));
        }
        let address = Address::from_path(" nvme-tcp://x/y");
        assert_eq!(address.to_string().parse(), Ok(address), "a blank before it makes it a path");
    }

    #[test]
    fn a_path_that_is_not_utf8_comes_from_the_command_line_and_survives_printing() {
        let name = OsStr::from_bytes(b"caf\xE9%E9,x");
        let list = Address::parse_list_os(name).unwrap();
        assert_eq!(list[0], Address::from_path(OsStr::from_bytes(b"caf\xE9\xE9")));
        let address = Address::from_path(name);
        assert_eq!(address.to_string(), "caf%E9%25E9%2Cx");
        assert_eq!(address.to_string().parse(), Ok(address));
    }

    proptest! {
        #[test]
        fn any_path_survives_printing(bytes in prop::collection::vec(1u8.., 1..40)) {
            let address = Address::from_path(OsStr::from_bytes(&bytes));
            let back = Address::parse_list(&address.to_string()).unwrap();
            prop_assert_eq!(back, [address]);
        }

        #[test]
        fn any_tcp_address_survives_printing(
            traddr in "[!-~]{1,20}", trsvcid in 1u16.., subnqn in "[ -~é]{0,59}[!-~é]",
            nsid in prop::option::of(1u32..u32::MAX),
        ) {
            let address = tcp(&traddr, trsvcid, &subnqn, nsid);
            let back = Address::parse_list(&address.to_string()).unwrap();
            prop_assert_eq!(back, [address]);
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in "(nvme-tcp://|trtype:TCP |spdk:|dlfs://|dlfs:///|)\\PC{0,60}") {
            if let Ok(address) = text.parse::<Address>() {
                let again = address.to_string().parse::<Address>();
                prop_assert!(again.is_ok(), "{:?} from {:?}", again, address);
            }
        }
    }
}
