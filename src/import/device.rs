//! How the namespaces of an image that is there are opened for writing.

use std::sync::Arc;

use crate::Result;
use crate::nvme::Address;
use crate::qpair::{self, ConnectOptions, Device};

/// Opens one namespace of an image; `--path` names other ways to it among those to others.
pub(super) fn open_device(
    address: &Address,
    image: &[Address],
    connect: &ConnectOptions,
) -> Result<Arc<dyn Device>> {
    // What is written over a network is known to be right when it was covered by digests.
    let prefer_digests = connect.prefer_digests || connect.writable;
    let mut connect = ConnectOptions { prefer_digests, ..connect.clone() };
    if image.len() > 1 {
        connect.paths.retain(|path| path.is_same_namespace(address));
    }
    qpair::open(address, &connect)
}
