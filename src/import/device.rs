//! Opens the namespaces of an existing image for writing.

use std::sync::Arc;

use crate::Result;
use crate::nvme::Address;
use crate::qpair::{self, ConnectOptions, Device};

/// Opens one namespace of an image; `--path` gives alternative paths to it among those to others.
pub(super) fn open_device(
    address: &Address,
    image: &[Address],
    connect: &ConnectOptions,
) -> Result<Arc<dyn Device>> {
    // Digests are proof that what was written over a network arrived intact.
    let prefer_digests = connect.prefer_digests || connect.writable;
    let mut connect = ConnectOptions { prefer_digests, ..connect.clone() };
    if image.len() > 1 {
        connect.paths.retain(|path| path.is_same_namespace(address));
    }
    qpair::open(address, &connect)
}
