//! Opens addresses as devices, with the engine that each address selects. Addresses of one subsystem share a
//! controller.

use std::collections::HashMap;
use std::sync::Arc;

use super::file::{FileNamespace, FileOptions};
use super::folder::FolderNamespace;
use super::pcie::PcieNamespace;
use super::tcp::TcpNamespace;
use super::{ConnectOptions, Device};
use crate::address::{Address, TcpAddress};
#[cfg(not(feature = "spdk"))]
use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::error::{Result, invalid};
use dlfs_base::threads::map_at_once;
use dlfs_base::units::Nsid;
use dlfs_places::Place;

/// Opens the namespace at `address`.
///
/// # Errors
/// As [`FileNamespace::open`] or [`FolderNamespace::open`] for a path, [`FolderNamespace::open_objects`] for objects,
/// [`TcpNamespace::connect`] over NVMe/TCP, `PcieNamespace::connect` on PCIe and over vfio-user, and
/// `SpdkNamespace::connect` through SPDK. `Unsupported`: this build lacks SPDK. `InvalidArgument`: a name in a
/// catalogue, which is a whole image; a malformed address of objects, or objects that are to be written; or SPDK with a
/// key from the kernel's keyring.
pub fn open(address: &Address, options: &ConnectOptions) -> Result<Arc<dyn Device>> {
    let device = open_one(address, options)?;
    Ok(with_test_fault(device))
}

/// Opens the namespaces at `addresses` in parallel. Returns the devices of each address: one namespace, or
/// all of an NVMe/TCP subsystem whose address names none.
///
/// Namespaces of one NVMe/TCP subsystem at one transport address share a controller if their further paths are equal. A
/// single address uses all of `options.paths`. With several addresses, each uses only the paths that name the same
/// namespace.
///
/// # Errors
/// As [`open`], for the first address that cannot be opened.
pub fn open_all(
    addresses: &[Address],
    options: &ConnectOptions,
) -> Result<Vec<Vec<Arc<dyn Device>>>> {
    let groups = group(addresses, options);
    let opened = map_at_once(THREAD_NAME, &groups, Group::open)?;
    let mut devices: Vec<Vec<Arc<dyn Device>>> = vec![Vec::new(); addresses.len()];
    for (group, opened) in groups.iter().zip(opened) {
        for (&(at, _), found) in group.members.iter().zip(opened) {
            devices[at] = found.into_iter().map(with_test_fault).collect();
        }
    }
    Ok(devices)
}

/// Addresses that are opened together: one address, or several ones of the same subsystem.
struct Group {
    /// The first address.
    address: Address,
    /// The options, with the paths that are left for these addresses.
    options: ConnectOptions,
    /// Each address's index in the list, and over NVMe/TCP the namespace that it names, if it names one.
    members: Vec<(usize, Option<Nsid>)>,
}

/// The properties that addresses must have in common to use one controller.
#[derive(PartialEq, Eq, Hash)]
struct Subsystem {
    /// The address, without a namespace.
    address: TcpAddress,
    /// True if the address names no namespace, and so means all of them.
    is_whole: bool,
    /// The other paths. They must be equal, so that all namespaces of the controller fail over together.
    paths: Vec<(String, u16)>,
}

/// Groups the addresses that can share a controller.
fn group(addresses: &[Address], options: &ConnectOptions) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut of_subsystem: HashMap<Subsystem, usize> = HashMap::new();
    for (at, address) in addresses.iter().enumerate() {
        let mut options = options.clone();
        if addresses.len() > 1 {
            options.paths.retain(|path| path.is_same_namespace(address));
        }
        let nsid = match address {
            Address::Tcp(address) => address.nsid,
            _ => None,
        };
        let next = groups.len();
        let index = match subsystem_of(address, &options) {
            Some(subsystem) if addresses.len() > 1 => {
                *of_subsystem.entry(subsystem).or_insert(next)
            }
            _ => next,
        };
        match groups.get_mut(index) {
            Some(group) => group.members.push((at, nsid)),
            None => {
                groups.push(Group { address: address.clone(), options, members: vec![(at, nsid)] })
            }
        }
    }
    groups
}

/// The properties by which `address` may share a controller; `None`: it cannot share one.
fn subsystem_of(address: &Address, options: &ConnectOptions) -> Option<Subsystem> {
    let Address::Tcp(address) = address else { return None };
    let transport_address = |path: &Address| match path {
        Address::Tcp(path) => Some((path.traddr.clone(), path.trsvcid)),
        _ => None, // refused when it is opened
    };
    let paths = options.paths.iter().map(transport_address).collect::<Option<_>>()?;
    let is_whole = address.nsid.is_none();
    Some(Subsystem { address: TcpAddress { nsid: None, ..address.clone() }, is_whole, paths })
}

impl Group {
    /// The devices of each member.
    fn open(&self) -> Result<Vec<Vec<Arc<dyn Device>>>> {
        let Address::Tcp(address) = &self.address else {
            return Ok(vec![vec![open_one(&self.address, &self.options)?]]);
        };
        let as_devices = |namespaces: Vec<TcpNamespace>| {
            namespaces
                .into_iter()
                .map(|namespace| Arc::new(namespace) as Arc<dyn Device>)
                .collect::<Vec<_>>()
        };
        if address.nsid.is_none() {
            let all = as_devices(TcpNamespace::connect_all(address, &self.options)?);
            return Ok(vec![all; self.members.len()]);
        }
        if let [_] = self.members[..] {
            return Ok(vec![vec![open_one(&self.address, &self.options)?]]);
        }
        let mut nsids: Vec<Nsid> = self.members.iter().filter_map(|(_, nsid)| *nsid).collect();
        nsids.sort_unstable();
        nsids.dedup();
        let devices = as_devices(TcpNamespace::connect_to(address, &nsids, &self.options)?);
        let index_of = |nsid| nsids.binary_search(&nsid).expect("the list has every member's");
        let device_of =
            |nsid: &Option<Nsid>| vec![Arc::clone(&devices[index_of(nsid.expect("named"))])];
        Ok(self.members.iter().map(|(_, nsid)| device_of(nsid)).collect())
    }
}

/// In a build with debug assertions, adds the fault that a test has requested.
fn with_test_fault(device: Arc<dyn Device>) -> Arc<dyn Device> {
    #[cfg(debug_assertions)]
    let device = super::broken::with_test_fault(device);
    device
}

/// Opens one address with its engine.
fn open_one(address: &Address, options: &ConnectOptions) -> Result<Arc<dyn Device>> {
    let ConnectOptions { direct, writable, .. } = *options;
    let refuse = |message: &'static str| invalid(message).target(address.to_string());
    match address {
        Address::Path(path) if !writable && path.is_dir() => {
            Ok(Arc::new(FolderNamespace::open(path, options.folders)?))
        }
        Address::Path(path) => {
            let options =
                FileOptions { direct, writable, or_lease: true, ..FileOptions::default() };
            Ok(Arc::new(FileNamespace::open(path, options)?))
        }
        Address::Tcp(address) => Ok(Arc::new(TcpNamespace::connect(address, options)?)),
        Address::Pcie(_) | Address::VfioUser(_) => {
            Ok(Arc::new(PcieNamespace::connect(address, options)?))
        }
        Address::Objects(_) if writable => {
            Err(refuse("objects of a store are only read, and hold no image that could be written"))
        }
        Address::Objects(place) => {
            Ok(Arc::new(FolderNamespace::open_objects(&Place::parse(place)?, options)?))
        }
        Address::Named(_) => {
            Err(refuse("a name in a catalogue stands for a whole image, not for a namespace")
                .hint("give the address of the namespace: dlfs catalog show prints it"))
        }
        Address::Spdk(_) if options.tls_keyring.is_some() => {
            Err(refuse("SPDK does not take the key of TLS from the kernel's keyring")
                .hint("give a key file, or leave out spdk:"))
        }
        #[cfg(feature = "spdk")]
        Address::Spdk(address) => {
            Ok(Arc::new(super::spdk::SpdkNamespace::connect(address, options)?))
        }
        #[cfg(not(feature = "spdk"))]
        Address::Spdk(_) => Err(Error::new(ErrorKind::Unsupported, "this build cannot use SPDK")
            .target(address.to_string())
            .hint("build with --features spdk, where SPDK is installed; nvme-tcp: addresses need neither")),
    }
}

/// A row in a list of engines for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// The engine's name: the first word of [`super::Namespace::engine`], which is `objects` for a folder in a store.
    pub name: &'static str,
    /// True if this build includes the engine.
    pub compiled_in: bool,
    /// The addresses that the engine opens; if the build lacks it, also the missing feature.
    pub reaches: String,
}

/// All engines that addresses select, including those that this build lacks.
pub fn engines() -> Vec<Engine> {
    let engine =
        |name, reaches: &str| Engine { name, compiled_in: true, reaches: reaches.to_owned() };
    vec![
        engine("file", "image files and block devices, by io_uring or pread"),
        engine("folder", "folders of files, read without an import"),
        engine("tcp", "nvme-tcp:// and trtype:TCP: NVMe/TCP by this library's own host"),
        engine("pcie", "pcie: drives by VFIO; trtype:VFIOUSER: controllers that a process plays"),
        spdk(),
    ]
}

/// The row of SPDK, with the transports that it has.
#[cfg(feature = "spdk")]
fn spdk() -> Engine {
    let transports: Vec<String> = crate::spdk::transports()
        .into_iter()
        .map(|trtype| match trtype {
            "TCP" => "spdk:nvme-tcp://".to_owned(),
            "VFIOUSER" => "spdk:trtype:VFIOUSER".to_owned(),
            trtype => format!("trtype:{trtype}"),
        })
        .collect();
    let reaches = format!("{}, by SPDK {}", transports.join(", "), crate::spdk::version());
    Engine { name: "spdk", compiled_in: true, reaches }
}

/// The row of SPDK, which this build lacks.
#[cfg(not(feature = "spdk"))]
fn spdk() -> Engine {
    let reaches = "spdk:nvme-tcp:// and trtype:PCIE|RDMA need a build with --features spdk";
    Engine { name: "spdk", compiled_in: false, reaches: reaches.to_owned() }
}

/// The name of the threads that open namespaces in parallel.
const THREAD_NAME: &str = "dlfs-open";

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Address> {
        Address::parse_list(text).unwrap()
    }

    fn places(addresses: &str, paths: &str) -> Vec<Vec<usize>> {
        let paths = if paths.is_empty() { Vec::new() } else { list(paths) };
        let options = ConnectOptions { paths, ..ConnectOptions::default() };
        let of = |group: Group| group.members.iter().map(|(at, _)| *at).collect();
        group(&list(addresses), &options).into_iter().map(of).collect()
    }

    const A: &str = "nvme-tcp://one/nqn.2026-11.io.dlfs:a";

    const B: &str = "nvme-tcp://two/nqn.2026-11.io.dlfs:a";

    #[test]
    fn namespaces_of_one_subsystem_at_one_address_are_opened_together() {
        let addresses = format!("{A}?ns=2,file,{B}?ns=1,{A}?ns=1,{B}?ns=1,{A},{A}?ns=1");
        assert_eq!(places(&addresses, ""), [vec![0, 3, 6], vec![1], vec![2, 4], vec![5]]);
        let other = format!("{A}?ns=1,nvme-tcp://one:4421/nqn.2026-11.io.dlfs:a?ns=2,{A}x?ns=3");
        assert_eq!(places(&other, ""), [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn a_namespace_shares_a_controller_only_with_those_that_have_the_same_paths() {
        let addresses = format!("{A}?ns=1,{A}?ns=2,{A}?ns=3");
        assert_eq!(places(&addresses, &format!("{B}?ns=1,{B}?ns=2")), [vec![0, 1], vec![2]]);
        assert_eq!(places(&format!("{A}?ns=1"), &format!("{B}?ns=7")), [vec![0]]);
    }

    #[test]
    fn every_engine_is_listed_once_and_missing_ones_say_what_they_need() {
        let found = engines();
        let names: Vec<&str> = found.iter().map(|engine| engine.name).collect();
        assert_eq!(names, ["file", "folder", "tcp", "pcie", "spdk"]);
        for engine in found {
            assert_eq!(engine.compiled_in, !engine.reaches.contains("--features"), "{engine:?}");
        }
    }
}
