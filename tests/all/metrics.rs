//! Metrics of a process equal what its target, its readers and the files say, and their page over HTTP
//! withstands any client.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::support::alone::ran_alone;
use crate::support::random::Random;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, OnError, Options, Query};
use dlfs::exporter::Exporter;
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::metrics::{ALL, Kind, Metric};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::report::Cause;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};

/// The answer to `request`, as text, until the responder closes the connection.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The values of the page by series: `name{labels}`.
fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: dlfs\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.ends_with("\n# EOF\n"), "{body}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let value = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    lines.map(value).collect()
}

/// Waits for something that is about to be the case.
fn wait_until(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never is");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// In a process of its own, whose metrics they are.
#[test]
fn the_page_says_what_target_readers_and_files_say_and_keeps_what_has_ended() {
    if ran_alone(the_page_says_what_target_readers_and_files_say_and_keeps_what_has_ended) {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let seed = 26;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut sizes = Vec::new();
    fs::create_dir(temp.path().join("files")).unwrap();
    for id in 0..200 {
        let mut bytes = vec![0; 1 + random.below(20_000) as usize];
        random.fill(&mut bytes);
        fs::write(temp.path().join(format!("files/{id:04}")), &bytes).unwrap();
        sizes.push(bytes.len() as u64);
    }
    let image: Address = Address::from_path(temp.path().join("train.dlfs"));
    let options =
        ImportOptions { chunk_size_bytes: 64 << 10, onto: Onto::Empty, ..ImportOptions::default() };
    let files = [temp.path().join("files")];
    let connect = ConnectOptions::default();
    import(&files, std::slice::from_ref(&image), &options, &connect, &mut ()).unwrap();

    let exporter = Exporter::serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let page = || scrape(exporter.local_addr());
    // The import has ended; what it counted stays.
    let begun = page();
    let is_of_import = |name: &String| name.starts_with("dlfs_import_");
    let (of_import, others): (Vec<_>, Vec<_>) = begun.keys().partition(|name| is_of_import(name));
    assert!(others.len() == 1 && others[0].starts_with("dlfs_build_info{"), "{others:?}");
    assert_eq!(of_import.len(), 9, "{of_import:?}");
    for (series, value) in [
        ("dlfs_import_samples_total{stage=\"writing\"}", sizes.len() as u64),
        ("dlfs_import_bytes_total{stage=\"writing\"}", sizes.iter().sum()),
    ] {
        assert_eq!(begun[series], value as f64, "{series}");
    }
    for stage in ["indexing", "writing", "committing"] {
        assert!(begun[&format!("dlfs_import_seconds_total{{stage=\"{stage}\"}}")] > 0.0, "{stage}");
    }

    let nqn = "nqn.2026-11.io.dlfs:metrics";
    let target = Target::bind(
        TargetOptions::new(Nqn::new(nqn).unwrap()),
        vec![qpair::open(&image, &connect).unwrap()],
    )
    .unwrap();
    let remote = [target.address(Nsid(1))];
    let dataset = Dataset::open(&remote, &Options::default(), &mut ()).unwrap();
    let order = OrderSpec { kind: OrderKind::Global, seed };
    let loader = dataset.loader(LoaderOptions::new(order, 16, 2)).unwrap();
    let mut batches = 0;
    let mut samples = 0;
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        batches += 1;
        samples += batch.len();
    }
    let ids = [SampleId(3), SampleId(150)];
    dataset.read(Query::Ids(&ids), OnError::Raise, &mut ()).unwrap();

    // The controller is lost, and the next read connects again.
    let host = target.connected()[0].host.clone();
    assert_eq!(target.disconnect(&host), 1);
    dataset.read(Query::Ids(&ids), OnError::Raise, &mut ()).unwrap();
    // The target records latencies a turn after the responses.
    wait_until(|| target.latency().read.count() == target.stats().reads);

    let stats = target.stats();
    let by_loader = loader.stats();
    let by_id = dataset.stats();
    let values = page();
    let of = |name: &str, labels: &[(&str, &str)]| {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let series =
            if labels.is_empty() { name.into() } else { format!("{name}{{{}}}", labels.join(",")) };
        *values.get(&series).unwrap_or_else(|| panic!("no {series} in {values:#?}"))
    };
    let target_says = |name: &str| of(&format!("dlfs_target_{name}"), &[("subsystem", nqn)]);
    assert_eq!(target_says("reads_total"), stats.reads as f64);
    assert_eq!(target_says("read_bytes_total"), stats.read_bytes as f64);
    assert_eq!(target_says("controllers"), 1.0);
    assert_eq!(target_says("connections_accepted_total"), stats.accepted as f64);
    let commands =
        |command| of("dlfs_target_commands_total", &[("subsystem", nqn), ("command", command)]);
    assert_eq!(commands("read"), stats.commands.of("read") as f64);
    assert_eq!(commands("connect"), stats.commands.of("connect") as f64);
    let read = |name: &str, by| of(&format!("dlfs_read_{name}_total"), &[("by", by)]);
    assert_eq!(read("commands", "loader"), by_loader.read.commands as f64);
    assert_eq!(read("bytes", "id"), by_id.bytes as f64);
    // Opening reads superblocks and the directory, beside what readers read; each byte crossed the target.
    let both = read("bytes", "loader") + read("bytes", "id");
    assert!(both > 0.0 && target_says("read_bytes_total") > both, "{both} of {stats:?}");
    let both = read("commands", "loader") + read("commands", "id");
    assert!(commands("read") > both, "{both} of {stats:?}");
    // And what the files say: two epochs of each.
    assert_eq!(of("dlfs_loader_samples_total", &[]), 2.0 * sizes.len() as f64);
    assert_eq!(
        (samples, of("dlfs_loader_batches_total", &[])),
        (2 * sizes.len(), f64::from(batches))
    );
    assert_eq!(of("dlfs_loader_sample_bytes_total", &[]), 2.0 * sizes.iter().sum::<u64>() as f64);
    assert_eq!(of("dlfs_loader_stall_seconds_total", &[]), by_loader.stall_s);
    let stalled = |cause: Cause| of("dlfs_loader_stalls_seconds_total", &[("cause", cause.name())]);
    let causes: f64 = Cause::ALL.into_iter().map(stalled).sum();
    assert!((causes - by_loader.stall_s).abs() < 1e-6, "{causes} of {}", by_loader.stall_s);
    assert!(stalled(Cause::Start) > 0.0, "it connected");

    // Each command has a latency, of which each side has its own view.
    let durations = |name: &str, labels: &[(&str, &str)]| {
        let count = of(&format!("{name}_count"), labels);
        let sum_s = of(&format!("{name}_sum"), labels);
        let mut infinite = labels.to_vec();
        infinite.push(("le", "+Inf"));
        assert_eq!(of(&format!("{name}_bucket"), &infinite), count, "{name}");
        assert!(sum_s > 0.0, "{name}");
        count
    };
    for (by, commands) in [("loader", by_loader.read.commands), ("id", by_id.commands)] {
        assert_eq!(durations("dlfs_read_command_seconds", &[("by", by)]), commands as f64);
    }
    let labels = [("subsystem", nqn), ("command", "read")];
    assert_eq!(durations("dlfs_target_command_seconds", &labels), stats.reads as f64);
    assert_eq!(by_loader.latency.count(), by_loader.read.commands);
    assert_eq!(dataset.latency().count(), by_id.commands);
    let latency = by_loader.latency.summary();
    assert!(0.0 < latency.p50_us && latency.p50_us <= latency.p99_us, "{latency:?}");

    let host_says = |name: &str| of(&format!("dlfs_host_{name}"), &[("subsystem", nqn)]);
    assert_eq!((host_says("controllers"), host_says("paths")), (1.0, 1.0));
    assert!(host_says("reconnects_total") >= 1.0 && host_says("digest_errors_total") == 0.0);
    assert!(host_says("receives_total") > host_says("empty_receives_total"));
    // The loader has ended, and the batches that it had delivered are gone.
    assert_eq!(of("dlfs_loader_window_bytes", &[]), by_loader.window_bytes as f64);
    assert!(by_loader.window_used_bytes <= by_loader.window_bytes);

    // Counters outlive what counted, gauges do not.
    drop((loader, dataset, target));
    let after = page();
    for (series, value) in &values {
        let name = series.split('{').next().unwrap();
        let is_of = |metric: &&&Metric| {
            let ends = ["_bucket", "_count", "_sum"].map(|end| name.strip_suffix(end));
            metric.name() == name || ends.contains(&Some(metric.family))
        };
        let metric = ALL.iter().find(is_of).unwrap();
        match metric.kind {
            Kind::Counter | Kind::Histogram => {
                assert!(after[series] >= *value, "{series} fell");
            }
            Kind::Gauge => assert!(!after.contains_key(series), "{series} is still there"),
            Kind::Info => {}
        }
    }
    assert_eq!(after["dlfs_loader_samples_total"], 2.0 * sizes.len() as f64);
}

#[test]
pub(crate) fn requests_that_are_wrong_slow_or_never_end_delay_nobody() {
    let exporter = Exporter::serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = exporter.local_addr();
    // More than it serves at a time, each silent or in the middle of a request.
    let silent: Vec<TcpStream> = (0..80)
        .map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /metr").unwrap();
            }
            stream
        })
        .collect();
    scrape(address);
    for (request, status) in [
        (&b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"[..], "405"),
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", "505"),
        (b"\x16\x03\x01\x02\x00\x01\n\n", "400"),
        (&[b'x'; 8 << 10], "431"),
    ] {
        let answer = ask(address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    let head = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    // A request in single bytes, and one whose sender closes its side.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for byte in b"GET /metrics HTTP/1.1\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "nothing was asked");
    exporter.check().unwrap();
    drop(silent);
}

#[test]
fn an_address_in_use_is_named_in_the_error() {
    let first = Exporter::serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = Exporter::serve(first.local_addr()).unwrap_err();
    assert_eq!(error.kind(), dlfs::ErrorKind::Busy);
    assert!(error.to_string().contains(&first.local_addr().to_string()), "{error}");
}

#[test]
fn the_page_of_metrics_has_every_metric_of_the_code_and_no_other() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let row = |metric: &&Metric| {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {} | {} |", metric.name(), labels.join(", "), metric.help)
    };
    let expected: Vec<String> = ALL.iter().map(row).collect();
    let found: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(found, expected);
    // The page tells the kinds apart by the ends of the names.
    for metric in ALL {
        let kind = match metric.name().as_str() {
            "dlfs_build_info" => Kind::Info,
            name if name.ends_with("_total") => Kind::Counter,
            name if name.ends_with("_command_seconds") => Kind::Histogram,
            _ => Kind::Gauge,
        };
        assert_eq!(metric.kind, kind, "{}", metric.name());
    }
}

/// A panel over a name that does not exist stays empty, and nobody knows why.
#[test]
fn the_dashboard_asks_for_metrics_and_labels_that_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/grafana/dlfs.json");
    let dashboard: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut queries = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one id: {panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = |key: &str| target[key].as_str().unwrap().to_owned();
            queries.push((text("expr"), text("legendFormat")));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        queries.extend(variable["query"]["query"].as_str().map(|q| (q.to_owned(), String::new())));
    }
    assert!(queries.len() > 30, "{} queries", queries.len());
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (query, legend) in &queries {
        let words: Vec<&str> = query.split(|c| !is_name(c)).collect();
        let names: Vec<_> = words.iter().filter(|word| word.starts_with("dlfs_")).collect();
        assert!(!names.is_empty(), "{query}");
        let found = names.iter().map(|name| {
            let is_of = |metric: &&&Metric| match metric.kind {
                Kind::Histogram => name.strip_suffix("_bucket") == Some(metric.family),
                _ => metric.name() == **name,
            };
            let metric = ALL.iter().find(is_of);
            *metric.unwrap_or_else(|| panic!("no metric {name}: {query}"))
        });
        let found: Vec<&Metric> = found.collect();
        // Prometheus adds the first two, buckets have the third; whatever else is grouped by or shown is a label of
        // each metric.
        let own = |label: &str| ["instance", "job", "le"].contains(&label);
        let grouped = query
            .split("by (")
            .skip(1)
            .flat_map(|rest| rest.split(')').next().unwrap_or_default().split(", "));
        let shown = legend.split("{{").skip(1).map(|rest| rest.split('}').next().unwrap());
        for label in grouped.chain(shown).filter(|label| !own(label)) {
            let has = |metric: &&Metric| metric.labels.contains(&label);
            assert!(found.iter().all(has), "{label} is no label of all in {query}");
        }
        // A counter is asked for its rate, as the buckets of a histogram are; a gauge for its value.
        let rates = query.matches("rate(").count();
        let grows = |metric: &&&Metric| matches!(metric.kind, Kind::Counter | Kind::Histogram);
        assert_eq!(rates, found.iter().filter(grows).count(), "{query}");
        let histograms = found.iter().filter(|metric| metric.kind == Kind::Histogram).count();
        assert_eq!(query.matches("histogram_quantile(").count(), histograms, "{query}");
    }
}
