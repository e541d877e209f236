//! The cases: what can be measured, by name, and how each is run.

use crate::data::Data;

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) id: String,
    /// Cases of one family are measured one right after the other.
    pub(crate) family: &'static str,
    pub(crate) how: How,
    /// Measured once in this many rounds.
    pub(crate) every: u64,
}

impl Case {
    /// Returns whether a process of the case runs from the first round to the last.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.how, How::Host { keep: true, .. })
    }
}

/// How a case is run.
#[derive(Debug, Clone)]
pub(crate) enum How {
    /// This program as the measured side, with these arguments, against a target if it needs one.
    Host { arguments: Vec<String>, to: To, keep: bool },
    /// fio, on the file of the large data set.
    Fio { len: usize },
    /// SPDK's `spdk_nvme_perf` against a target.
    SpdkPerf { len: usize, depth: usize, to: To },
    /// SPDK's `bdevperf` on its own target, inside TLS.
    Bdevperf { len: usize, depth: usize },
    /// iperf3, both sides.
    Iperf3 { len: usize },
    /// `openssl speed` of TLS_AES_128_GCM_SHA256's cipher, on records of the most plaintext.
    OpensslSpeed,
}

/// The source that a case reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum To {
    /// A file; no other process is involved.
    File(Data),
    /// A folder of files, each a sample.
    Folder,
    /// The snapshot of ten million samples, a file too.
    Snapshot,
    /// Our target with a region of memory, served by this many pollers.
    Region { pollers: usize },
    /// The same inside TLS, by one poller.
    Secured,
    /// Our target with a data set in memory.
    Served(Data),
    /// A raw sender.
    Raw { len: usize, depth: usize, ping_pong: bool },
    /// SPDK's `nvmf_tgt` with a region of memory.
    Spdk,
}

/// All cases, grouped by what they are compared with.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (len, depth) in [(4096, 32), (4096, 128), (131_072, 32)] {
        raw_reads(&mut cases, len, depth);
    }
    let ours = To::Region { pollers: 1 };
    cases.push(host("raw-128k-32-digests", "128k", ours, &read(131_072, 32, &["--digests"])));
    for (name, family, len, depth) in
        [("4k-128", "4k-128", 4096, 128), ("128k-32", "128k", 131_072, 32)]
    {
        let arguments = read(len, depth, &["--tls"]);
        cases.push(host(&format!("tls-{name}"), family, To::Secured, &arguments));
        let how = How::Bdevperf { len, depth };
        cases.push(Case { how, ..case(&format!("spdk-tls-{name}"), family) });
    }
    cases.push(Case { how: How::OpensslSpeed, ..case("openssl-speed", "128k") });
    let stream = To::Raw { len: 131_072, depth: 32, ping_pong: false };
    cases.push(host(
        "stream-128k",
        "128k",
        stream,
        &words("--side receive --len 131072 --depth 32"),
    ));
    cases.push(Case { how: How::Iperf3 { len: 131_072 }, ..case("iperf3-128k", "128k") });
    for (name, data, batch) in
        [("4k", Data::Small, 256), ("110k", Data::Pictures, 64), ("8m", Data::Long, 4)]
    {
        for order in ["grouped", "global"] {
            // Samples read one by one are compared with reads one by one.
            let family = if (name, order) == ("4k", "global") { "4k-128" } else { "128k" };
            let id = format!("samples-{name}-{order}");
            let arguments = words(&format!("--side samples --order {order} --batch {batch}"));
            sample_pair(&mut cases, &id, family, To::Served(data), &arguments, false);
        }
    }
    orders(&mut cases);
    local(&mut cases);
    scaling(&mut cases);
    cases.push(host("files-4k", "128k", To::Folder, &words("--side files")));
    for (name, data, batch) in
        [("100", Data::Tiny, 256), ("4k", Data::Large, 256), ("110k", Data::Pictures, 64)]
    {
        for order in ["grouped", "global"] {
            let line = format!("--side first-batch --order {order} --batch {batch}");
            let id = format!("first-batch-{name}-{order}");
            cases.push(host(&id, "first", To::Served(data), &words(&line)));
        }
    }
    let idle = host("idle", "idle", To::Served(Data::Small), &words("--side idle"));
    cases.push(Case { every: 5, ..idle });
    cases.push(host("open-10m", "open", To::Snapshot, &words("--side open")));
    cases
}

/// Reads of blocks over TCP: both hosts on both targets, and the same messages without a protocol.
fn raw_reads(cases: &mut Vec<Case>, len: usize, depth: usize) {
    let (name, family) = match (len, depth) {
        (4096, 32) => ("4k-32", "4k-32"),
        (4096, _) => ("4k-128", "4k-128"),
        _ => ("128k-32", "128k"),
    };
    let ours = To::Region { pollers: 1 };
    let spdk = To::Spdk;
    cases.push(host(&format!("raw-{name}"), family, ours, &read(len, depth, &[])));
    cases.push(host(&format!("raw-{name}-on-spdk"), family, spdk, &read(len, depth, &[])));
    for (id, to) in [(format!("spdk-{name}"), spdk), (format!("spdk-{name}-on-ours"), ours)] {
        cases.push(Case { how: How::SpdkPerf { len, depth, to }, ..case(&id, family) });
    }
    if len == 4096 {
        let to = To::Raw { len, depth, ping_pong: true };
        let arguments = format!("--side receive --len {len} --depth {depth} --ping-pong");
        cases.push(host(&format!("ping-pong-{name}"), family, to, &words(&arguments)));
    }
}

/// Grouped and global order with the same window, for samples of several sizes.
fn orders(cases: &mut Vec<Case>) {
    for (name, family, to) in [
        ("100", "orders-100", To::Served(Data::Tiny)),
        ("1k", "orders-1k", To::Served(Data::Short)),
        ("4k", "orders-4k", To::Served(Data::Small)),
        ("110k", "orders-110k", To::Served(Data::Pictures)),
        ("100-file", "orders-100-file", To::File(Data::Tiny)),
        ("1k-file", "orders-1k-file", To::File(Data::Short)),
        ("4k-file", "orders-4k-file", To::File(Data::Small)),
        ("110k-file", "orders-110k-file", To::File(Data::Pictures)),
    ] {
        for order in ["grouped", "global"] {
            // As large as grouped order needs: 8 lanes of 4 chunks, and one more per lane.
            let line = format!("--side samples --order {order} --batch 256 --window 160M");
            cases.push(host(&format!("orders-{name}-{order}"), family, to, &words(&line)));
        }
    }
}

/// Several queue pairs, 32 reads each, with one poller and with as many as queue pairs.
fn scaling(cases: &mut Vec<Case>) {
    for (name, len) in [("4k", 4096), ("128k", 131_072)] {
        for pairs in [1, 2, 4, 8] {
            for pollers in if pairs == 1 { vec![1] } else { vec![1, pairs] } {
                let pairs_text = pairs.to_string();
                let depth = 32 * pairs;
                let arguments = read(len, depth, &["--queue-pairs", &pairs_text, "--pool", "64M"]);
                let id = format!("scaling-{name}-{pairs}-{pollers}");
                let family = if len == 4096 { "scaling-4k" } else { "scaling-128k" };
                cases.push(host(&id, family, To::Region { pollers }, &arguments));
            }
        }
    }
}

/// Cases without a network.
fn local(cases: &mut Vec<Case>) {
    for (name, len, family) in [("4k", 4096, "file-4k"), ("128k", 131_072, "file-128k")] {
        let file = To::File(Data::Large);
        let depth = if len == 4096 { 128 } else { 32 };
        cases.push(host(&format!("direct-{name}"), family, file, &read(len, depth, &[])));
        cases.push(Case { how: How::Fio { len }, ..case(&format!("fio-{name}"), family) });
    }
    let small = To::File(Data::Small);
    let large = To::File(Data::Large);
    for order in ["grouped", "global"] {
        let arguments = words(&format!("--side samples --order {order} --batch 256"));
        sample_pair(cases, &format!("cached-{order}"), "cached", small, &arguments, false);
    }
    cases.push(host("pread", "cached", small, &words("--side pread")));
    let pieces = words("--side pread-pieces --window 128M");
    cases.push(host("pread-pieces", "cached", small, &pieces));
    let memory = words("--side memory --order global --batch 256 --window 32M");
    sample_pair(cases, "memory-global", "memory", large, &memory, true);
    let copy = host("memcpy-crc32c", "memory", large, &words("--side memcpy --window 32M"));
    cases.push(Case { how: kept(copy.how), ..case("memcpy-crc32c", "memory") });
}

/// Samples with and without verification.
fn sample_pair(
    cases: &mut Vec<Case>,
    id: &str,
    family: &'static str,
    to: To,
    arguments: &[String],
    keep: bool,
) {
    let mut without = arguments.to_vec();
    without.push("--without-checksums".into());
    for (id, arguments) in
        [(id.to_owned(), arguments.to_vec()), (format!("{id}-unverified"), without)]
    {
        cases.push(Case { how: How::Host { arguments, to, keep }, ..case(&id, family) });
    }
}

fn read(len: usize, depth: usize, more: &[&str]) -> Vec<String> {
    let mut arguments = words(&format!("--side read --len {len} --depth {depth}"));
    arguments.extend(more.iter().map(|&word| word.to_owned()));
    arguments
}

fn host(id: &str, family: &'static str, to: To, arguments: &[String]) -> Case {
    let how = How::Host { arguments: arguments.to_vec(), to, keep: false };
    Case { how, ..case(id, family) }
}

/// Keeps the measured process from round to round, since its set-up takes long.
fn kept(how: How) -> How {
    match how {
        How::Host { arguments, to, .. } => How::Host { arguments, to, keep: true },
        other => other,
    }
}

fn case(id: &str, family: &'static str) -> Case {
    Case { id: id.to_owned(), family, how: How::Iperf3 { len: 0 }, every: 1 }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}
