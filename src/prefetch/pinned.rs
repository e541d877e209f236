//! The driver of accelerators that registers a loader's memory, and the processors near a device.

use crate::buf::Registrar;
use crate::gpu::{Driver, Pin};
use crate::qpair::Cpus;

use super::LoaderOptions;

/// The driver that registers memory for a loader with these options. If it is not there, warns, and returns `None`;
/// [`Pin::Auto`] says nothing in a process that uses no device.
pub(super) fn registrar(options: &LoaderOptions) -> Option<&'static dyn Registrar> {
    let found = Driver::find(options.pin?).and_then(|driver| {
        if let (Some(driver), Some(ordinal)) = (driver, options.device) {
            driver.use_device(ordinal)?;
        }
        Ok(driver)
    });
    match found {
        Ok(driver) => driver.map(|driver| driver as &dyn Registrar),
        Err(error) => {
            warn_of_refusal(&error);
            None
        }
    }
}

/// Says that memory is not registered.
pub(super) fn warn_of_refusal(error: &crate::Error) {
    tracing::warn!(%error, "batches are in memory that is not pinned, so devices copy them more slowly");
}

/// The processors near which a loader with these options allocates its window.
pub(super) fn cpus(options: &LoaderOptions) -> Option<Cpus> {
    let near_device = || {
        let ordinal = options.device?;
        let driver = Driver::find(options.pin.unwrap_or(Pin::Auto)).ok()??;
        Cpus::of_node(driver.numa_node(ordinal)?).ok()
    };
    options.cpus.clone().or_else(near_device)
}
