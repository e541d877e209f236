//! Support code that test programs share.

pub mod alone;
pub mod archives;
pub mod breaking;
pub mod contract;
pub mod disk;
pub mod faults;
pub mod fork;
pub mod hostile_target;
#[cfg(feature = "cloud")]
pub mod hub;
pub mod huge_image;
#[cfg(feature = "cloud")]
pub mod interrupted;
pub mod keyring;
pub mod linux_host;
pub mod linux_target;
#[allow(dead_code, unreachable_pub)] // the crate of the driver uses the rest
pub mod nvme_model;
#[allow(dead_code, unreachable_pub)] // benches use other parts of it
pub mod nvmf_tgt;
#[cfg(feature = "cloud")]
#[allow(dead_code, unreachable_pub)] // benches use other parts of it
pub mod object_store;
pub mod origin;
#[allow(dead_code, unreachable_pub)] // both doors use other parts of it
pub mod plain_folder;
pub mod ports;
pub mod random;
pub mod raw_host;
pub mod short_timeouts;
pub mod stopped;
pub mod tls_tunnel;
pub mod vfio_user_server;
pub mod warnings;
#[cfg(feature = "cloud")]
pub mod web_server;
