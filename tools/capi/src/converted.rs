//! The library's options, made of the option structs of C.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::time::Duration;

use dlfs::dataset::{Options, TokenOptions, TokenPhase, Watch};
use dlfs::directory::Directory;
use dlfs::options::{
    Choice, Connect, Kind, Load, Named, Open, Order, Peers, Read, Rows, Seconds, Size, Store,
    Tiers, Tokens,
};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::tokens::Columns;

use crate::error::Failure;
use crate::options::{
    DLFS_BATCHING_AUTO, DLFS_POLICY_FIRST_TOUCH, MountOptions, SequenceOptions, ShouldStop,
    TokensOptions,
};
use crate::structs::{array, path, strings, take_or_zeroed, utf8};

/// Asks the caller's function whether a call should continue.
#[derive(Clone, Copy)]
pub(crate) struct Stop {
    /// The function; NULL: the call continues.
    should_stop: ShouldStop,
    /// The argument of the function.
    user: *mut c_void,
}

// SAFETY: the header says that any thread that makes a call may call the function, so the caller's
// function and its argument allow that.
unsafe impl Send for Stop {}
// SAFETY: as for `Send`; a `&Stop` can only be copied.
unsafe impl Sync for Stop {}

impl Watch for Stop {
    fn goes_on(&mut self) -> bool {
        // SAFETY: the caller's function, with the caller's argument, on a thread that makes a call.
        self.should_stop.is_none_or(|ask| unsafe { ask(self.user) } == 0)
    }
}

/// The connection options for writing, and the caller's `should_stop`, from `given`, which may be NULL.
///
/// # Safety
/// `given` satisfies the header.
pub(crate) unsafe fn to_write(
    given: *const MountOptions,
) -> Result<(ConnectOptions, Stop), Failure> {
    // SAFETY: the caller promises that `given` satisfies the header, which is what both require.
    let (given, connect) = unsafe {
        let given = take_or_zeroed(given)?;
        (given, given.options()?.open.connect)
    };
    Ok((ConnectOptions { writable: true, ..connect }, given.stop()))
}

impl MountOptions {
    /// The caller's `should_stop`.
    pub(crate) fn stop(&self) -> Stop {
        Stop { should_stop: self.should_stop, user: self.user }
    }

    /// The library's options for this struct.
    ///
    /// # Safety
    /// Strings and arrays satisfy the header.
    pub(crate) unsafe fn options(&self) -> Result<Options, Failure> {
        // SAFETY: the caller promises that strings and arrays satisfy the header.
        let (connect, tiers, open, node) =
            unsafe { (self.connect()?, self.tiers()?, self.open()?, owned(self.node, "node")?) };
        let read = read(self.window_bytes, self.queue_pairs, self.deadline_ms, self.busy_poll)?;
        let open = open.options(connect.options(false)?, tiers.options(node)?);
        Ok(Options { open, read: read.options()? })
    }

    /// The options for connections.
    ///
    /// # Safety
    /// Strings and arrays satisfy the header.
    unsafe fn connect(&self) -> Result<Connect, Failure> {
        let default = Connect::default();
        let keep_alive_tmo = match self.keep_alive_tmo_ms {
            u32::MAX => Seconds(Duration::ZERO),
            ms => time(ms, default.keep_alive_tmo),
        };
        // SAFETY: the caller promises that strings end with NUL and that the array has `num_paths` entries; all of
        // it is copied before this returns.
        unsafe {
            Ok(Connect {
                hdr_digest: flag(self.hdr_digest, "hdr_digest")?,
                data_digest: flag(self.data_digest, "data_digest")?,
                hostnqn: owned(self.hostnqn, "hostnqn")?,
                dhchap_secret: owned(self.dhchap_secret, "dhchap_secret")?,
                dhchap_ctrl_secret: owned(self.dhchap_ctrl_secret, "dhchap_ctrl_secret")?,
                concat: flag(self.concat, "concat")?,
                tls_key: owned(self.tls_key, "tls_key")?,
                tls_compat: flag(self.tls_compat, "tls_compat")?,
                nr_io_queues: short(self.nr_io_queues, default.nr_io_queues, "nr_io_queues")?,
                queue_size: short(self.queue_size, default.queue_size, "queue_size")?,
                keep_alive_tmo,
                ctrl_loss_tmo: time(self.ctrl_loss_tmo_ms, default.ctrl_loss_tmo),
                io_timeout: time(self.io_timeout_ms, default.io_timeout),
                connect_timeout: time(self.connect_timeout_ms, default.connect_timeout),
                paths: texts(self.paths, self.num_paths, "paths")?,
                direct: choice(self.direct, "direct")?,
                links: choice(self.links, "links")?,
                hidden: flag(self.hidden, "hidden")?,
                ..default
            })
        }
    }

    /// The options of tiers.
    ///
    /// # Safety
    /// Strings and arrays satisfy the header.
    unsafe fn tiers(&self) -> Result<Tiers, Failure> {
        // SAFETY: the caller promises that strings and arrays satisfy the header.
        unsafe {
            Ok(Tiers {
                tiers: texts(self.tiers, self.num_tiers, "tiers")?,
                tiers_file: file(self.tiers_file)?,
                policy: match self.policy {
                    DLFS_POLICY_FIRST_TOUCH => None, // the file's, or the default
                    given => Some(choice(given, "policy")?),
                },
                copy_bandwidth: size_of_bytes(self.copy_bandwidth_bytes),
                stop_at_first_failure: flag(self.stop_at_first_failure, "stop_at_first_failure")?,
            })
        }
    }

    /// The options for opening a data set.
    ///
    /// # Safety
    /// Strings satisfy the header.
    unsafe fn open(&self) -> Result<Open, Failure> {
        // SAFETY: the caller promises that strings satisfy the header.
        unsafe {
            Ok(Open {
                snapshot: file(self.snapshot)?,
                view: file(self.view)?,
                shards: !self.index.is_null(),
                index: file(self.index)?,
            })
        }
    }
}

impl SequenceOptions {
    /// The caller's `should_stop`.
    pub(crate) fn stop(&self) -> Stop {
        Stop { should_stop: self.should_stop, user: self.user }
    }

    /// The options of the store that keeps the rank's share.
    ///
    /// # Safety
    /// `store` is NULL or ends with NUL.
    pub(crate) unsafe fn store(&self) -> Result<Store, Failure> {
        Ok(Store {
            // SAFETY: the caller promises that `store` is NULL or ends with NUL.
            store: unsafe { owned(self.store, "store")? },
            blocking_exchange: flag(self.blocking_exchange, "blocking_exchange")?,
            restart_shares: flag(self.restart_shares, "restart_shares")?,
        })
    }

    /// The options by which ranks share the tiers of their nodes.
    ///
    /// # Safety
    /// Strings satisfy the header.
    pub(crate) unsafe fn peers(&self) -> Result<Peers, Failure> {
        let default = Peers::default();
        let port = u16::try_from(self.rendezvous_port);
        let port = port.map_err(|_| Failure::invalid("rendezvous_port is at most 65,535"))?;
        // SAFETY: the caller promises that strings satisfy the header.
        unsafe {
            Ok(Peers {
                peers: owned(self.peers, "peers")?,
                round: owned(self.round, "round")?,
                peer_mode: choice(self.peer_mode, "peer_mode")?,
                peer_address: owned(self.peer_address, "peer_address")?,
                rendezvous_port: (port != 0).then_some(port),
                job_key: owned(self.job_key, "job_key")?,
                peer_tls: flag(self.peer_tls, "peer_tls")?,
                peer_timeout: time(self.peer_timeout_ms, default.peer_timeout),
                ..default
            })
        }
    }

    /// The library's options for this struct. `launched` are the launcher's rank and world size, used if the
    /// struct has no world size above 1. `directory` is that of the data set, `None` for a mixture.
    ///
    /// # Safety
    /// Strings and arrays satisfy the header.
    pub(crate) unsafe fn options(
        &self,
        launched: Option<(u32, u32)>,
        directory: Option<&Directory>,
    ) -> Result<LoaderOptions, Failure> {
        let read = read(self.window_bytes, self.queue_pairs, self.deadline_ms, self.busy_poll)?;
        let mut load = self.load(launched.is_none())?;
        // SAFETY: the caller promises that strings satisfy the header.
        let tokens = unsafe {
            load.job = owned(self.job, "job")?;
            self.tokens()?
        };
        let mut options = load.options(&self.order()?, &tokens, &read, launched)?;
        let count = if self.epochs == 0 { u64::MAX } else { self.epochs };
        options.epochs = self.epoch..self.epoch.saturating_add(count);
        // SAFETY: the caller promises that arrays satisfy the header.
        unsafe { self.weighted(options, load.draws(), directory) }
    }

    /// The options of batches. `is_placed`: rank and world size are those of the struct, not of a launcher.
    fn load(&self, is_placed: bool) -> Result<Load, Failure> {
        let is_placed = is_placed || self.world_size > 1;
        Ok(Load {
            batch_size: given(self.batch_size),
            rank: is_placed.then_some(self.rank),
            world_size: is_placed.then_some(self.world_size.max(1)),
            shard: choice(self.shard, "shard")?,
            drop_last: flag(self.drop_last, "drop_last")?,
            pad: flag(self.pad, "pad")?,
            batching: match self.batching {
                DLFS_BATCHING_AUTO => None,
                number => {
                    Some(choice(number - 1, "batching").map_err(|_| unknown("batching", number))?)
                }
            },
            contiguous: flag(self.contiguous, "contiguous")?,
            on_error: choice(self.on_error, "on_error")?,
            epoch_size: given(self.epoch_size),
            without_replacement: flag(self.without_replacement, "without_replacement")?,
            trace: flag(u32::try_from(self.trace).unwrap_or(u32::MAX), "trace")?,
            node_loader: flag(u32::try_from(self.node_loader).unwrap_or(u32::MAX), "node_loader")?,
            local_rank: (self.local_rank > 0 || self.local_world_size > 0)
                .then_some(self.local_rank),
            local_world_size: given(self.local_world_size),
            ..Load::default()
        })
    }

    /// The options of the order.
    fn order(&self) -> Result<Order, Failure> {
        let order: Choice<Kind> = choice(self.order, "order")?;
        let is = |kind| order.0 == kind;
        Ok(Order {
            order,
            seed: self.seed,
            // Parameters of other orders are ignored.
            lanes: given(self.lanes).filter(|_| is(Kind::Grouped)),
            group: given(self.group).filter(|_| is(Kind::Grouped)),
            exchange: (self.exchange != 0.0 && is(Kind::Partial)).then_some(self.exchange),
        })
    }

    /// The options of batches by tokens.
    ///
    /// # Safety
    /// `lengths` is NULL or ends with NUL.
    unsafe fn tokens(&self) -> Result<Tokens, Failure> {
        let default = Tokens::default();
        Ok(Tokens {
            batch_tokens: given(self.batch_tokens),
            bucket_window: or(self.bucket_window, default.bucket_window),
            max_batch: given(self.max_batch),
            token_bytes: or(self.token_bytes, default.token_bytes),
            // SAFETY: the caller promises that `lengths` is NULL or ends with NUL.
            lengths: unsafe { owned(self.lengths, "lengths")? },
            batch_cost: choice(self.batch_cost, "batch_cost")?,
            too_long: choice(self.too_long, "too_long")?,
        })
    }
}

impl TokensOptions {
    /// The options of a loader of `batch_size` rows a batch.
    ///
    /// # Safety
    /// Strings and the array satisfy the header.
    pub(crate) unsafe fn options(&self, batch_size: u32) -> Result<TokenOptions, Failure> {
        let default = Rows::default();
        let separated = flag(self.separated, "separated")?;
        // SAFETY: the caller promises that strings satisfy the header.
        let (field, lengths, loss_field) = unsafe {
            let loss_field = owned(self.loss_field, "loss_field")?;
            (owned(self.field, "field")?, owned(self.lengths, "lengths")?, loss_field)
        };
        let rows = Rows {
            seq_len: Some(self.seq_len),
            pack: choice(self.pack, "pack")?,
            pack_window: or(self.pack_window, default.pack_window),
            separator: separated.then_some(self.separator),
            too_long: choice(self.too_long, "too_long")?,
            field,
            lengths,
            loss_field,
            pad: self.pad,
            vocabulary: given(self.vocabulary),
            tokenizer: None,
            phases: Vec::new(),
        };
        let rows = rows.options(given(batch_size))?.expect("there is a length of rows");
        // SAFETY: as above.
        let phases = unsafe { array(self.phases, self.num_phases, "phases")? };
        let phases = phases.iter().map(|phase| TokenPhase {
            from: phase.tokens,
            seq_len: phase.seq_len,
            batch_size: given(phase.batch_size),
        });
        Ok(TokenOptions { phases: phases.collect(), ..rows })
    }

    /// The columns of a row that this context-parallel rank has.
    pub(crate) fn columns(&self) -> Result<Columns, Failure> {
        let zigzag = flag(self.cp_zigzag, "cp_zigzag")?;
        Ok(Columns::slice(self.seq_len, self.cp_rank, self.cp_size.max(1), zigzag)?)
    }
}

/// The options of reading.
fn read(window: u64, queue_pairs: u32, deadline_ms: u32, busy_poll: u32) -> Result<Read, Failure> {
    let default = Read::default();
    Ok(Read {
        window: size_of_bytes(window),
        queue_pairs: or(queue_pairs, default.queue_pairs),
        deadline: time(deadline_ms, default.deadline),
        busy_poll: flag(busy_poll, "busy_poll")?,
    })
}

/// The error for a number that stands for nothing; `what` names it.
pub(crate) fn unknown(what: &str, value: u32) -> Failure {
    Failure::invalid(format!("{what} is {value}, which has no meaning"))
}

/// The flag `value`, which must be 0 or 1; `what` names it in an error.
pub(crate) fn flag(value: u32, what: &str) -> Result<bool, Failure> {
    if value < 2 { Ok(value == 1) } else { Err(unknown(what, value)) }
}

/// The choice with this number; `what` names it in an error.
fn choice<T: Named>(number: u32, what: &str) -> Result<Choice<T>, Failure> {
    Choice::at(number).ok_or_else(|| unknown(what, number))
}

/// The value, unless it is zero.
fn given<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// The value, or `default` for zero.
pub(crate) fn or<T: Default + PartialEq>(value: T, default: T) -> T {
    given(value).unwrap_or(default)
}

/// A size in bytes; `None` for zero.
fn size_of_bytes(bytes: u64) -> Option<Size> {
    given(bytes).map(Size)
}

/// A time in ms, or `default` for zero.
fn time(ms: u32, default: Seconds) -> Seconds {
    given(ms).map_or(default, |ms| Seconds(Duration::from_millis(ms.into())))
}

/// A 16-bit number, or `default` for zero; `what` names it in an error.
fn short(value: u32, default: u16, what: &str) -> Result<u16, Failure> {
    let fits = u16::try_from(value);
    Ok(or(fits.map_err(|_| Failure::invalid(format!("{what} is out of range")))?, default))
}

/// A copy of the text; `None` for NULL.
///
/// # Safety
/// `text` is NULL or ends with NUL.
unsafe fn owned(text: *const c_char, what: &str) -> Result<Option<String>, Failure> {
    // SAFETY: not NULL, so the caller promises that `text` ends with NUL.
    (!text.is_null()).then(|| unsafe { utf8(text, what) }.map(str::to_owned)).transpose()
}

/// A copy of the path; `None` for NULL.
///
/// # Safety
/// As [`owned`].
unsafe fn file(text: *const c_char) -> Result<Option<PathBuf>, Failure> {
    // SAFETY: not NULL, so the caller promises that `text` ends with NUL.
    (!text.is_null()).then(|| unsafe { path(text, "path") }.map(PathBuf::from)).transpose()
}

/// Copies of the texts.
///
/// # Safety
/// `at` is NULL or points to `count` strings that end with NUL.
unsafe fn texts(
    at: *const *const c_char,
    count: usize,
    what: &str,
) -> Result<Vec<String>, Failure> {
    // SAFETY: the caller's promise is the one that `strings` and, for each string, `utf8` require.
    unsafe { strings(at, count, what, |&text| Ok(utf8(text, what)?.to_owned())) }
}
