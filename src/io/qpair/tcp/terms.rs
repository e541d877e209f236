//! The parameters of connections: from the options of opening a namespace to the terms of a session.

use std::sync::Arc;
use std::time::Duration;

use super::Tcp;
use crate::qpair::ConnectOptions;
use crate::qpair::remote::{Remote, Selection};
use crate::qpair::session::{Goal, HostIdentity, Portal, Terms};
use crate::tls::keyring::{self, KeyringError};
use crate::tls::{self, TlsError};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_nvme::auth::{IdentityVersion, TlsPsk};
use dlfs_nvme::nvme::Nqn;
use dlfs_nvme::tcp::Digests;

/// The parameters of a connection to a portal.
pub(super) fn portal_terms(remote: &Remote<Tcp>, portal: &Portal) -> Terms {
    let Portal { address, psk, .. } = portal;
    let goal = goal(remote, portal);
    terms_of(&remote.options, remote.host.clone(), &address.subnqn, psk.clone(), goal)
}

/// The parameters of a connection to a subsystem; `stored` is the TLS PSK from the kernel's keyring. `None`: the PSK
/// follows from the key in the options, if there is one.
pub(super) fn terms_of(
    options: &ConnectOptions,
    host: HostIdentity,
    subnqn: &Nqn,
    stored: Option<TlsPsk>,
    goal: Goal,
) -> Terms {
    let derived = |version| {
        let key = options.tls_key.as_ref()?;
        key.tls_psk(version, options.tls_derivation, &host.nqn, subnqn)
    };
    let (psk, psk_v0) = match stored {
        Some(psk) => (Some(psk), None),
        None => (derived(IdentityVersion::V1), derived(IdentityVersion::V0)),
    };
    // TLS already detects every change, so only required digests are requested.
    let prefers = options.prefer_digests && psk.is_none() && !options.concat;
    Terms {
        subnqn: subnqn.clone(),
        goal,
        host,
        digests: Digests {
            header: options.hdr_digest || prefers,
            data: options.data_digest || prefers,
        },
        required: Digests { header: options.hdr_digest, data: options.data_digest },
        psk,
        psk_v0,
        nr_io_queues: options.nr_io_queues,
        keep_alive_tmo: options.keep_alive_tmo,
        tcp_timeout: options.tcp_connect_timeout,
        io_timeout: io_timeout(options),
        least_progress_bytes: options.least_progress_bytes,
    }
}

/// The longest time without progress. If there are other paths, a silent path is given up after at most 1.1 Keep Alive
/// Timeouts, so that its reads end on another path within 1.2 Keep Alive Timeouts.
fn io_timeout(options: &ConnectOptions) -> Duration {
    if options.paths.is_empty() || options.keep_alive_tmo.is_zero() {
        return options.io_timeout;
    }
    options.io_timeout.min(options.keep_alive_tmo.mul_f64(1.1))
}

/// The TLS PSK for this host and subsystem from the kernel's keyring, if the options name a keyring.
pub(super) fn keyring_psk(
    options: &ConnectOptions,
    hostnqn: &Nqn,
    subnqn: &Nqn,
) -> Result<Option<TlsPsk>> {
    let Some(keyring) = &options.tls_keyring else { return Ok(None) };
    keyring::find(keyring, hostnqn, subnqn).map(Some).map_err(|error| {
        let kind = match error {
            KeyringError::NoKeyring(_) | KeyringError::NoKey { .. } => ErrorKind::NotFound,
            KeyringError::Unreadable { .. } => ErrorKind::Refused,
        };
        Error::new(kind, error.to_string()).hint(KEYRING)
    })
}

/// The hint when the kernel's keyring has no key, or it cannot be read.
const KEYRING: &str = "as root, nvme check-tls-key --insert (nvme-cli) puts a key there once the module nvme-keyring \
    is loaded, and only root may read it; or give a key file: --tls-key FILE, or tls_key in Rust, C and Python";

/// Refuses contradictory TLS options, and TLS if OpenSSL cannot be loaded, before anything is sent.
pub(super) fn check_tls(options: &ConnectOptions) -> Result<()> {
    let refuse = |message: &'static str| Err(invalid(message));
    if options.concat && options.dhchap_secret.is_none() {
        return refuse("concat needs dhchap_secret: the authentication generates the key of TLS");
    }
    if options.concat && options.tls_key.is_some() {
        return refuse("give concat or tls_key: either generates the key of TLS or names it");
    }
    if options.tls_keyring.is_some() && (options.concat || options.tls_key.is_some()) {
        return refuse(
            "give tls_keyring, tls_key or concat: each says alone where the key of TLS comes from",
        );
    }
    let is_plain = options.tls_key.is_none() && options.tls_keyring.is_none() && !options.concat;
    if is_plain {
        return Ok(());
    }
    let unsupported = |error: TlsError| Error::new(ErrorKind::Unsupported, error.to_string());
    tls::load().map_err(|error| unsupported(error).hint(tls::HOW_TO_INSTALL))
}

/// The namespaces that a controller at `portal` must identify.
fn goal(remote: &Remote<Tcp>, portal: &Portal) -> Goal {
    let named_or_first = || match portal.address.nsid {
        Some(nsid) => Goal::Namespaces([nsid].into()),
        None => Goal::FirstNamespace,
    };
    match (&remote.selection, remote.identity()) {
        (Selection::These(nsids), _) => Goal::Namespaces(Arc::clone(nsids)),
        (Selection::OfPath, _) => named_or_first(),
        (Selection::All, None) if portal.address.nsid.is_none() => Goal::AllNamespaces,
        // The namespaces of the first session; namespaces that were added later are not used.
        (Selection::All, Some(seen)) if seen.len() > 1 => {
            Goal::Namespaces(seen.iter().map(|attached| attached.nsid).collect())
        }
        (Selection::All, _) => named_or_first(),
    }
}
