//! The option structs of C: zero always means the default. `converted.rs` makes the library's options of them.

use std::ffi::{c_char, c_int, c_void};

use crate::structs::Struct;

/// A full shuffle of all samples. The default.
pub const DLFS_ORDER_GLOBAL: u32 = 0;
/// Whole chunks at a time, shuffled in groups: the fastest shuffle.
pub const DLFS_ORDER_GROUPED: u32 = 1;
/// No shuffle: in the order of ids.
pub const DLFS_ORDER_SEQUENTIAL: u32 = 2;
/// Each rank shuffles a fixed share of its own.
pub const DLFS_ORDER_LOCAL: u32 = 3;
/// Like DLFS_ORDER_LOCAL, but the fraction `exchange` of each share moves to other ranks every
/// epoch.
pub const DLFS_ORDER_PARTIAL: u32 = 4;
/// Samples are drawn in proportion to weights: `weights`, or `balanced`.
pub const DLFS_ORDER_WEIGHTED: u32 = 5;

/// A batch by tokens costs the tokens of its longest sample times the number of its samples, as a padded
/// tensor does. The default.
pub const DLFS_COST_PADDED: u32 = 0;
/// A batch by tokens costs the sum of its samples' tokens.
pub const DLFS_COST_SUM: u32 = 1;

/// A sample with more tokens than a batch may cost is an error of dlfs_sequence. The default.
pub const DLFS_TOO_LONG_RAISE: u32 = 0;
/// A sample with more tokens than a batch may cost is a batch of its own.
pub const DLFS_TOO_LONG_ALONE: u32 = 1;

/// Documents lie end to end, cut wherever a row ends, without padding. The default.
pub const DLFS_PACK_CONCAT: u32 = 0;
/// Documents lie whole, each in the row of its window with the least room for it.
pub const DLFS_PACK_BEST_FIT: u32 = 1;
/// Each document has a row of its own. Rows are only as wide as their batch needs.
pub const DLFS_PACK_NONE: u32 = 2;

/// A document that is longer than a row is cut into pieces. The default.
pub const DLFS_LONG_DOCUMENT_CUT: u32 = 0;
/// A document that is longer than a row is an error of dlfs_tokens_open.
pub const DLFS_LONG_DOCUMENT_RAISE: u32 = 1;

/// A rank takes every W-th sample of each global batch, for W ranks. The default.
pub const DLFS_SHARD_STRIDED: u32 = 0;
/// Grouped order: whole chunks go to one rank, as far as equal shares allow. Each global batch has
/// the same samples, and each rank as many, as with DLFS_SHARD_STRIDED; a run that resumes with
/// another world size reads fewer chunks twice.
pub const DLFS_SHARD_ALIGNED: u32 = 1;
/// Each rank takes what its own node holds, as far as equal shares allow. Each global batch has the
/// same samples, and each rank as many, as with DLFS_SHARD_STRIDED. For data sets that are read through
/// the tiers of the job's other nodes; without them it is refused.
pub const DLFS_SHARD_LOCAL: u32 = 2;

/// Chosen automatically: by chunks in grouped order, otherwise by samples; also by
/// samples in grouped order if samples are large and in the page cache. The default.
pub const DLFS_BATCHING_AUTO: u32 = 0;
/// Whole chunks are read, and kept until their samples are delivered; in grouped order only.
pub const DLFS_BATCHING_CHUNK: u32 = 1;
/// Each sample is read separately, just before it is needed, many at a time.
pub const DLFS_BATCHING_SAMPLE: u32 = 2;

/// The call fails if one of its samples does. The default.
pub const DLFS_ON_ERROR_RAISE: u32 = 0;
/// Samples that fail are skipped.
pub const DLFS_ON_ERROR_SKIP: u32 = 1;
/// Samples that fail keep their position, with their status and without bytes; dlfs_read_batch
/// only.
pub const DLFS_ON_ERROR_KEEP: u32 = 2;

/// Bypass the page cache for block devices and for files larger than half of the memory. The
/// default.
pub const DLFS_DIRECT_AUTO: u32 = 0;
/// Bypass the page cache always.
pub const DLFS_DIRECT_ON: u32 = 1;
/// Never bypass the page cache.
pub const DLFS_DIRECT_OFF: u32 = 2;

/// Follow links, as torchvision's ImageFolder does, except a link to a folder that contains it. The
/// default.
pub const DLFS_LINKS_FOLLOW: u32 = 0;
/// Follow links that stay in the folder; others are errors.
pub const DLFS_LINKS_INSIDE: u32 = 1;
/// Follow no links: each is an error.
pub const DLFS_LINKS_REFUSE: u32 = 2;

/// Tiers keep what is read first, while there is room. The default.
pub const DLFS_POLICY_FIRST_TOUCH: u32 = 0;
/// Tiers keep what each sequence will read most, according to the plan of all its epochs.
pub const DLFS_POLICY_CLAIRVOYANT: u32 = 1;
/// Tiers keep nothing.
pub const DLFS_POLICY_NONE: u32 = 2;

/// A node that lacks what a peer asks for reads it from the data set, keeps it and answers. The default.
pub const DLFS_PEER_READ_THROUGH: u32 = 0;
/// A node that lacks what a peer asks for says so, and fetches by itself what it holds for all nodes.
pub const DLFS_PEER_COPIES: u32 = 1;
/// A node holds what its own ranks read most often, by the plan of the run instead of a hash, and
/// answers as with DLFS_PEER_COPIES (NoPFS). For DLFS_POLICY_CLAIRVOYANT.
pub const DLFS_PEER_PLAN: u32 = 2;

/// A waiting call calls this at least every 100 ms, on the thread that made the call; a value other
/// than zero ends the call with DLFS_E_INTERRUPTED. A call that does not wait may not call it.
pub type ShouldStop = Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>;

/// Stores the `len` bytes at `record` where all ranks get them, under `round` and `rank`: at most
/// DLFS_PEER_RECORD bytes, without a zero. A value other than zero ends the call with DLFS_E_IO.
pub type PeerSet = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        round: *const c_char,
        rank: u32,
        record: *const c_void,
        len: usize,
    ) -> c_int,
>;

/// Copies the records that are there under `round`, of `world_size` ranks: rank r's to `records` +
/// r * DLFS_PEER_RECORD, where all bytes are zero before. It may wait for missing records, for
/// `wait_ms` at most; it is called again until all are there. A value other than zero ends the call
/// with DLFS_E_IO.
pub type PeerGet = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        round: *const c_char,
        world_size: u32,
        records: *mut c_void,
        wait_ms: u32,
    ) -> c_int,
>;

/// The most bytes of a rank's record.
pub const DLFS_PEER_RECORD: u32 = 1024;

/// Options for mounting a data set. Set `size` to `sizeof(dlfs_mount_options)`, and all fields
/// without a value to zero. The call copies it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MountOptions {
    /// sizeof(dlfs_mount_options).
    pub size: usize,
    /// More addresses of the same namespaces, used while the first is down; `num_paths` strings.
    pub paths: *const *const c_char,
    /// The number of paths.
    pub num_paths: usize,
    /// A directory saved by `dlfs snapshot save`, used instead of the image's own; or NULL.
    pub snapshot: *const c_char,
    /// The host NQN to present; NULL: the one in /etc/nvme/hostnqn, else one of this machine's own.
    pub hostnqn: *const c_char,
    /// 1: protect PDU headers with CRC32C.
    pub hdr_digest: u32,
    /// 1: protect PDU data with CRC32C.
    pub data_digest: u32,
    /// Bypass of the page cache for image files and block devices: DLFS_DIRECT_AUTO, _ON or _OFF.
    pub direct: u32,
    /// I/O queues to request; default 16.
    pub nr_io_queues: u32,
    /// Entries of an I/O queue; default 128.
    pub queue_size: u32,
    /// Keep-alive timeout in ms; default 15,000; UINT32_MAX disables it.
    pub keep_alive_tmo_ms: u32,
    /// How long to keep reconnecting after a connection is lost, in ms; default 600,000. After that the
    /// connection is lost for good: DLFS_E_DISCONNECTED, until the data set is mounted again.
    pub ctrl_loss_tmo_ms: u32,
    /// How long a queue may make no progress before its reads are repeated on another connection, in
    /// ms; default 5,000.
    pub io_timeout_ms: u32,
    /// How long connecting may take, in ms; default 10,000.
    pub connect_timeout_ms: u32,
    /// The longest that one read may take, in ms; default 60,000.
    pub deadline_ms: u32,
    /// Queue pairs per namespace for each reading thread; default 1.
    pub queue_pairs: u32,
    /// 1: spin instead of sleeping while a call waits.
    pub busy_poll: u32,
    /// Memory for reads by id or name, in bytes for each thread that reads at the same time; default 64 MiB.
    pub window_bytes: u64,
    /// Called while a call on this mount waits; or NULL. Any thread that makes a call may call it.
    pub should_stop: ShouldStop,
    /// Passed to `should_stop`.
    pub user: *mut c_void,
    /// Tiers that keep copies of samples after the first read, fastest first, `num_tiers` strings:
    /// "ram:4G"; "file:/fast/cache:20G" for a folder, file or block device; or
    /// "nvme-tcp://HOST/NQN?ns=N:200G" for a remote namespace that no other node uses. Files, devices and
    /// namespaces must be empty or earlier tiers, unless ":overwrite" is appended.
    pub tiers: *const *const c_char,
    /// The number of tiers.
    pub num_tiers: usize,
    /// The samples that tiers keep: DLFS_POLICY_...
    pub policy: u32,
    /// 1: stop adding copies for good once a sample fits in no tier, as Monarch does.
    pub stop_at_first_failure: u32,
    /// A file that describes the tiers, as written by `dlfs probe` or for NoPFS, instead of `tiers`; or NULL.
    /// Its policy applies if `policy` is the default.
    pub tiers_file: *const c_char,
    /// The most bytes a second that the copier may read from the origin by itself; 0: no limit, or
    /// that of `tiers_file`.
    pub copy_bandwidth_bytes: u64,
    /// Name of the field that represents the sample, if samples have several: the `data` of a
    /// dlfs_item, and the content of a file opened by dlfs_open; or NULL.
    pub field: *const c_char,
    /// The host's key for DH-HMAC-CHAP: the path of a key file with mode 0600, or the key itself;
    /// NULL: none.
    pub dhchap_secret: *const c_char,
    /// The subsystem's key, with which the target must authenticate itself, too; a file or the key;
    /// NULL: it need not.
    pub dhchap_ctrl_secret: *const c_char,
    /// The name of this node, if several run on one machine: processes on nodes of other names do
    /// not share tiers in memory; or NULL.
    pub node: *const c_char,
    /// The key with which each connection establishes TLS 1.3: the path of a key file with mode 0600,
    /// the key itself, or `keyring` for the kernel's keyring .nvme; NULL: plain TCP. Needs
    /// OpenSSL 3.
    pub tls_key: *const c_char,
    /// 1: derive TLS keys as libnvme before July 2025 did.
    pub tls_compat: u32,
    /// 1: go on inside TLS with a key that the authentication generates (secure channel
    /// concatenation). Needs dhchap_secret and OpenSSL 3.
    pub concat: u32,
    /// A view saved by `dlfs select`: its samples are the data set. A path, and behind a colon the
    /// name of one of several views in it; or NULL.
    pub view: *const c_char,
    /// Links to follow in a plain folder, also in one that is imported: DLFS_LINKS_FOLLOW, _INSIDE or
    /// _REFUSE.
    pub links: u32,
    /// 1: take hidden files of a plain folder, and what file systems and tools leave behind (._*,
    /// .DS_Store, Thumbs.db, desktop.ini, @eaDir, __MACOSX).
    pub hidden: u32,
    /// Not NULL: the addresses are tar archives, tables and other shards, whose samples are read as they
    /// are. The place that keeps their indexes: a folder, or a prefix of a store.
    pub index: *const c_char,
}
// SAFETY: numbers, pointers and an optional function, for which zero is none; the size first.
unsafe impl Struct for MountOptions {
    const NAME: &str = "dlfs_mount_options";
    const EARLIER: &[usize] = &[std::mem::offset_of!(MountOptions, field)];
}

/// Options of a sequence. Set `size` to `sizeof(dlfs_sequence_options)`, set `batch_size` or
/// `batch_tokens`, and set all fields without a value to zero. The call copies it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SequenceOptions {
    /// sizeof(dlfs_sequence_options).
    pub size: usize,
    /// How to shuffle samples: DLFS_ORDER_...
    pub order: u32,
    /// Grouped: number of lanes, which take turns; default 8 per rank, or as in the state that the
    /// run resumes from. With a multiple of the world size no chunk is read twice.
    pub lanes: u32,
    /// Grouped: chunks of one lane that are shuffled together; default 4.
    pub group: u32,
    /// Samples per batch on this rank; at least 1, or 0 with `batch_tokens`.
    pub batch_size: u32,
    /// Partial: fraction of each share that moves to other ranks in an epoch, 0 to 1; default 0.1.
    pub exchange: f64,
    /// The same seed gives the same epochs.
    pub seed: u64,
    /// The first epoch.
    pub epoch: u64,
    /// The number of epochs to read; 0: endless.
    pub epochs: u64,
    /// The rank of this process, from 0.
    pub rank: u32,
    /// The number of ranks that share each epoch; default 1.
    pub world_size: u32,
    /// 1: drop what does not fill a batch on every rank at the end of an epoch.
    pub drop_last: u32,
    /// 1: repeat the first samples of an epoch so that each rank has the same number.
    pub pad: u32,
    /// Handling of a sample that cannot be read: DLFS_ON_ERROR_RAISE or _SKIP.
    pub on_error: u32,
    /// 1: gather each batch into one buffer, its samples contiguous, at the cost of a copy.
    pub contiguous: u32,
    /// The longest that the next batch may take, in ms; default 60,000.
    pub deadline_ms: u32,
    /// Queue pairs per namespace; default 1.
    pub queue_pairs: u32,
    /// The most memory for samples that are read ahead and not yet dropped, in bytes; default 256
    /// MiB, or up to 1 GiB if a grouped order of large chunks has more open at a time.
    pub window_bytes: u64,
    /// Called while a call for this sequence waits, dlfs_sequence included; or NULL. Any thread that makes a
    /// call may call it.
    pub should_stop: ShouldStop,
    /// Passed to `should_stop`.
    pub user: *mut c_void,
    /// 1: spin instead of sleeping in the thread that reads ahead.
    pub busy_poll: u32,
    /// How samples are read: DLFS_BATCHING_...
    pub batching: u32,
    /// How the ranks share each global batch: DLFS_SHARD_...
    pub shard: u32,
    /// Placement of data on the nodes, and a node's answer to a peer that asks for data which its
    /// tiers lack: DLFS_PEER_...
    pub peer_mode: u32,
    /// Meeting place of the ranks, which then share the tiers of all nodes of the job: "auto" (at
    /// rank 0, which the launcher's MASTER_ADDR and MASTER_PORT name), a folder that all nodes see,
    /// "HOST:PORT,HOST:PORT,..." with an address for each rank, or a file with one address a line; or NULL.
    /// The mount needs a tier. With peers, a world size of 1 means rank and world size of the launcher.
    pub peers: *const c_char,
    /// A name for this start of the job, not used before; NULL: the launcher's.
    pub round: *const c_char,
    /// Address at which peers reach this rank: "IP" or "IP:PORT"; NULL: the address from which
    /// MASTER_ADDR is reached, any port.
    pub peer_address: *const c_char,
    /// The port on which rank 0 gathers the addresses of all ranks; 0: MASTER_PORT + 1.
    pub rendezvous_port: u32,
    /// How long to wait for all ranks, in ms; default 60,000.
    pub peer_timeout_ms: u32,
    /// With `peer_get`, and instead of `peers`: the ranks meet by functions of the program, such as MPI's.
    pub peer_set: PeerSet,
    /// With `peer_set`.
    pub peer_get: PeerGet,
    /// Passed to `peer_set` and `peer_get`.
    pub peer_user: *mut c_void,
    /// Store for this rank's share of the samples, in partial and local order: "ram:SIZE" or
    /// "file:FOLDER:SIZE", for all ranks of a node together; or NULL. See dlfs_sequence_stage. The ranks meet
    /// as `peers`, or `peer_set` and `peer_get`, say, and exchange samples; the mount needs no tier.
    pub store: *const c_char,
    /// 1: Exchange samples at the end of each epoch instead of during it.
    pub blocking_exchange: u32,
    /// 1: Resume between epochs with another world size: the ranks begin with new shares.
    pub restart_shares: u32,
    /// The most tokens of a batch, instead of a number of samples: samples of similar length share a
    /// batch, and batches go to the ranks in turn. 0: batches of `batch_size`.
    pub batch_tokens: u64,
    /// Batches by tokens: positions of the epoch that are sorted by length together; default 8192.
    pub bucket_window: u32,
    /// Batches by tokens: the most samples of a batch; 0: as many as have room.
    pub max_batch: u32,
    /// Batches by tokens: bytes of a token; default 1. A part of a token counts as a token.
    pub token_bytes: u32,
    /// Batches by tokens: what a batch costs: DLFS_COST_...
    pub batch_cost: u32,
    /// Batches by tokens: what to do with a sample that costs more than a batch may: DLFS_TOO_LONG_...
    pub too_long: u32,
    /// Weighted: 1: each label gets the same share, instead of `weights`.
    pub balanced: u32,
    /// Batches by tokens: the column of ints with the tokens of each sample, instead of its bytes; or
    /// NULL.
    pub lengths: *const c_char,
    /// Weighted: `num_weights` weights, one for each sample in the order of ids; or, with
    /// `weight_labels`, one for the samples of each label. Finite, and at least 0.
    pub weights: *const f64,
    /// Weighted: the labels that `weights` belong to; or NULL.
    pub weight_labels: *const i64,
    /// The number of weights.
    pub num_weights: usize,
    /// Weighted: samples of an epoch; 0: as many as the data set has, or, without replacement, as have a
    /// weight above 0.
    pub epoch_size: u64,
    /// Weighted: 1: no sample comes twice in an epoch.
    pub without_replacement: u32,
    /// 1: Connect to peers inside TLS with the job's key, which needs OpenSSL 3; otherwise ranks with a
    /// key authenticate, and data are sent in clear.
    pub peer_tls: u32,
    /// The key by which the ranks of the job prove themselves to each other, the same for all: the path of a
    /// key file with mode 0600, the key itself, or "rendezvous": rank 0 draws one, and the others get it where
    /// they meet. NULL: whoever claims the name of a rank's host may read its tiers.
    pub job_key: *const c_char,
    /// 1: Keep the newest events of the run, for dlfs_sequence_trace.
    pub trace: u64,
    /// 1: Read with one process for all ranks of this node, which take their batches from its window without a
    /// copy.
    pub node_loader: u64,
    /// Node loader: the rank among those of this node, with `local_world_size`.
    pub local_rank: u32,
    /// Node loader: the number of ranks on each node; 0: the launcher's, or that of all ranks, and its
    /// `local_rank`.
    pub local_world_size: u32,
    /// Node loader: a name of the job, which no other job on the machine has at the same time; NULL: the
    /// launcher's.
    pub job: *const c_char,
}
// SAFETY: numbers, pointers and optional functions, for which zero is none; the size first.
unsafe impl Struct for SequenceOptions {
    const NAME: &str = "dlfs_sequence_options";
}

/// Options of rows of tokens. Set `size` to `sizeof(dlfs_tokens_options)`, set `seq_len`, and all fields without a
/// value to zero. The call copies it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TokensOptions {
    /// sizeof(dlfs_tokens_options).
    pub size: usize,
    /// The tokens of a row; `batch_size` of dlfs_sequence_options is then a number of rows. A row has one token more,
    /// so that inputs and labels are the same array, shifted by one.
    pub seq_len: u32,
    /// How documents fill rows: DLFS_PACK_...
    pub pack: u32,
    /// Positions of the epoch that best_fit packs together, and of which DLFS_PACK_NONE puts rows of similar length
    /// side by side; default 16,384.
    pub pack_window: u32,
    /// 1: `separator` follows each document.
    pub separated: u32,
    /// The token that follows each document, with `separated`.
    pub separator: u32,
    /// Handling of a document that is longer than a row, except with DLFS_PACK_CONCAT: DLFS_LONG_DOCUMENT_...
    pub too_long: u32,
    /// The token that fills what documents leave free.
    pub pad: u32,
    /// The number of different tokens; a token of this number or above is an error. 0: any.
    pub vocabulary: u32,
    /// The field of tokens: "NAME", or "NAME:TYPE", such as "tok:u16", if the field has no type; "TYPE" alone if
    /// samples have one field without a name. NULL: the only field of tokens.
    pub field: *const c_char,
    /// The column of ints with the tokens of each document, instead of its bytes; or NULL.
    pub lengths: *const c_char,
    /// The field with a byte for each token: 0 for tokens that are not learned from; or NULL.
    pub loss_field: *const c_char,
    /// This rank among the context-parallel ranks, which each have a part of the columns; from 0.
    pub cp_rank: u32,
    /// The number of context-parallel ranks; default 1.
    pub cp_size: u32,
    /// 1: the columns are cut into 2 * `cp_size` parts, of which a rank has `cp_rank` and the one as far from the end.
    pub cp_zigzag: u32,
    /// Zero.
    pub reserved: u32,
    /// Phases of each epoch in which rows have another length, `num_phases` of them, ascending; or NULL.
    pub phases: *const RowPhase,
    /// The number of phases.
    pub num_phases: usize,
}

/// A phase of each epoch, in which rows have another length. It begins once the lengths of the epoch's earlier rows add
/// up to `tokens`; except with DLFS_PACK_CONCAT, it waits for the next window.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RowPhase {
    /// The tokens of the epoch before the phase.
    pub tokens: u64,
    /// The tokens of a row.
    pub seq_len: u32,
    /// The rows of a batch; 0: as many as at the epoch's start.
    pub batch_size: u32,
}

// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for TokensOptions {
    const NAME: &str = "dlfs_tokens_options";
}
