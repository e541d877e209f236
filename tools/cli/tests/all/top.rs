//! `dlfs top` over real targets and jobs, on the screen of a terminal and as text.

mod screen;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use screen::Screen;
use serde_json::Value;

use crate::common::{TestDir, dlfs, finish, refusing, run, signal, wait};

/// A running command that serves its metrics.
struct Serving {
    child: Child,
    /// `IP:PORT`.
    metrics: String,
    /// The first line of its standard output, if that was asked for.
    said: Value,
    _pipes: (BufReader<std::process::ChildStdout>, BufReader<std::process::ChildStderr>),
}

impl Serving {
    fn start(metrics: &str, arguments: &[&str], speaks: bool) -> Serving {
        let mut command = dlfs();
        command.args(arguments).args(["--metrics", metrics]);
        Serving::run(command, speaks)
    }

    fn run(mut command: Command, speaks: bool) -> Serving {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let at = line.trim_end().split("metrics at http://").nth(1).expect(&line);
        let metrics = at.strip_suffix("/metrics").expect(at).to_owned();
        let mut first = String::new();
        if speaks {
            stdout.read_line(&mut first).unwrap();
        }
        let said = serde_json::from_str(&first).unwrap_or_default();
        Serving { child, metrics, said, _pipes: (stdout, stderr) }
    }

    fn target(metrics: &str, image: &str) -> Serving {
        let arguments = ["serve", image, "--listen", "127.0.0.1:0", "--json"];
        Serving::start(metrics, &arguments, true)
    }

    /// A job that reads from the target until it is dropped.
    fn job(target: &Serving) -> Serving {
        let address = target.said["address"].as_str().unwrap();
        let arguments = ["read", address, "--batch-size", "16", "--epochs", "1000000", "--quiet"];
        let job = Serving::start("127.0.0.1:0", &arguments, false);
        job.wait_until_it_reads();
        job
    }

    /// A rank of a job of two, on a node of its own, that reads until it is dropped.
    fn rank(dir: &TestDir, number: usize) -> Serving {
        let tier = dir.arg(&format!("tier-{number}"));
        std::fs::create_dir_all(&tier).unwrap();
        let mut command = dlfs();
        command
            .args(["read", &dir.arg("train.dlfs"), "--tier", &format!("file:{tier}:64M")])
            .args(["--batch-size", "16", "--epochs", "1000000", "--quiet"])
            .args(["--peers", &dir.arg("rendezvous"), "--node", &format!("node{number}")])
            .args(["--metrics", "127.0.0.1:0"])
            .env("RANK", number.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500")
            .env("TORCHELASTIC_RUN_ID", "top")
            .env("TORCHELASTIC_RESTART_COUNT", "0");
        Serving::run(command, false)
    }

    /// A rank of a job of two whose ranks keep their shares in stores, and exchange samples, until it is dropped.
    fn store(dir: &TestDir, number: usize) -> Serving {
        let mut command = dlfs();
        command
            .args(["read", &dir.arg("train.dlfs"), "--order", "partial", "--store", "ram:64M"])
            .args(["--batch-size", "16", "--epochs", "1000000", "--quiet"])
            .args(["--peers", &dir.arg("exchange"), "--node", &format!("store{number}")])
            .args(["--metrics", "127.0.0.1:0"])
            .env("RANK", number.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29501")
            .env("TORCHELASTIC_RUN_ID", "stores")
            .env("TORCHELASTIC_RESTART_COUNT", "0");
        Serving::run(command, false)
    }

    fn wait_until_it_reads(&self) {
        let until = Instant::now() + Duration::from_secs(120);
        while !self.page().contains("\ndlfs_loader_batches_total ") {
            assert!(Instant::now() < until, "it does not begin to read:\n{}", self.page());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The text that it serves.
    fn page(&self) -> String {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(&self.child, "TERM");
            wait(&mut self.child);
        }
    }
}

/// An address that answers as another does, half a second late.
fn slow(other: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = other.to_owned();
    thread::spawn(move || {
        for asker in listener.incoming().map_while(Result::ok) {
            let other = other.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(500));
                let mut request = BufReader::new(asker.try_clone().unwrap()).lines();
                while request.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                // The asker may be gone, and the other address as well.
                let Ok(mut asked) = TcpStream::connect(other) else { return };
                let _ = asked.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
                let mut from = asked;
                let mut to = asker;
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    address
}

/// The cells of the row that begins with `name`, if it has figures.
fn figures<'a>(rows: &'a [String], name: &str) -> Option<Vec<&'a str>> {
    let row = rows.iter().find(|row| row.starts_with(name) && row.contains("B/s"))?;
    Some(row.split_whitespace().collect())
}

#[test]
fn a_target_and_a_job_are_seen_while_they_work() {
    let dir = TestDir::with_image();
    let target = Serving::target("127.0.0.1:0", &dir.arg("train.dlfs"));
    let job = Serving::job(&target);
    let url = format!("http://{}/metrics", job.metrics);
    let mut screen =
        Screen::start(80, 24, &["top", &target.metrics, &url, "--interval", "0.3"], &[]);
    let is_busy = |rows: &[String], name: &str| {
        figures(rows, name).is_some_and(|cells| cells.get(2).is_some_and(|iops| *iops != "0"))
    };
    let rows = screen.until("rates of both", |rows| {
        is_busy(rows, &target.metrics) && is_busy(rows, &job.metrics)
    });
    assert!(rows[0].starts_with(" dlfs top  1 target, 1 job "), "{rows:#?}");
    assert!(rows[0].ends_with("every 0.3 s"), "{rows:#?}");
    assert_eq!(figures(&rows, &target.metrics).unwrap()[1], "target");
    assert_eq!(figures(&rows, &job.metrics).unwrap()[1], "job");
    assert!(screen.has_colour());

    screen.press("\t");
    let rows = screen.until("the targets", |rows| rows[2].starts_with("SUBSYSTEM"));
    assert!(rows[3].contains("train "), "{rows:#?}");
    screen.press("3");
    screen.until("the jobs", |rows| rows[2].contains("SAMPLES/S"));
    screen.press("\x1b[C"); // the right arrow
    screen.until("the tiers", |rows| {
        rows.iter().any(|row| row.contains("No process here has tiers."))
    });
    screen.press("1ss");
    screen.until("another order", |rows| rows[2].contains("ROLE*"));
    screen.press("?");
    screen
        .until("the help", |rows| rows.iter().any(|row| row.contains("Any key closes this page")));
    screen.press(" ");
    screen.until("no help", |rows| rows[0].ends_with("every 0.3 s") && rows[2].contains("ROLE*"));
    screen.press("p");
    screen.until("a pause", |rows| rows[0].ends_with("PAUSED"));
    screen.press("p\x1b[B");
    let marked = format!(" {}  job", job.metrics);
    screen.until("a marked row", |rows| rows[23].starts_with(&marked) && rows[0].ends_with(" s"));

    screen.resize(40, 10);
    screen.until("a small screen", |rows| {
        rows.len() == 10 && is_busy(rows, &job.metrics) && rows[9].starts_with(&marked)
    });
    screen.resize(120, 40);
    screen.until("a large screen", |rows| {
        rows.len() == 40
            && rows.iter().any(|row| row.contains("VERSION"))
            && rows.iter().any(|row| row.starts_with("SUBSYSTEM"))
            && rows.iter().any(|row| row.contains("SAMPLES/S"))
    });
    screen.press("q");
    screen.ends_with_everything_restored();
}

#[test]
fn an_address_that_dies_says_so_and_comes_back_by_itself() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    // A loopback address that no other test has, so that the port stays free in between.
    let [_, .., high, low] = std::process::id().to_be_bytes();
    let target = Serving::target(&format!("127.77.{high}.{low}:0"), &image);
    let metrics = target.metrics.clone();
    let (_bound, never) = refusing();
    let screen = Screen::start(100, 24, &["top", &metrics, &never, "--interval", "0.2"], &[]);
    screen.until("the target", |rows| figures(rows, &metrics).is_some());
    drop(target);
    let is_silent = |rows: &[String], name: &str| {
        rows.iter().any(|row| row.starts_with(name) && row.contains("no answer for"))
    };
    let rows = screen.until("its end", |rows| is_silent(rows, &metrics));
    assert!(figures(&rows, &metrics).is_none(), "{rows:#?}");
    assert!(rows[0].contains("2 silent"), "{rows:#?}");
    let again = Serving::target(&metrics, &image);
    assert_eq!(again.metrics, metrics);
    let rows = screen.until("its return", |rows| figures(rows, &metrics).is_some());
    assert!(rows[0].contains("1 silent"), "{rows:#?}");
    assert!(is_silent(&rows, &never), "{rows:#?}");
    screen.press("q");
    screen.ends_with_everything_restored();
}

#[test]
fn of_ten_addresses_those_that_hang_delay_none_of_the_others() {
    let dir = TestDir::with_image();
    let targets = [(); 3].map(|()| Serving::target("127.0.0.1:0", &dir.arg("train.dlfs")));
    // The kernel accepts connections to them, and nobody ever answers.
    let hanging = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let refused = [(); 3].map(|()| refusing());
    let mut addresses: Vec<String> =
        hanging.iter().map(|of| of.local_addr().unwrap().to_string()).collect();
    addresses.extend(refused.iter().map(|(_, address)| address.clone()));
    addresses.extend(targets.iter().map(|target| target.metrics.clone()));
    let arguments = ["top", "--interval", "0.2"].into_iter().chain(addresses.iter().map(|a| &**a));
    let arguments: Vec<&str> = arguments.collect();

    let screen = Screen::start(120, 40, &arguments, &[("NO_COLOR", "1")]);
    let rows = screen.until("all targets", |rows| {
        targets.iter().all(|target| figures(rows, &target.metrics).is_some())
    });
    assert!(rows[0].starts_with(" dlfs top  3 targets, "), "{rows:#?}");
    let rows = screen.until("those that hang", |rows| {
        rows.iter().filter(|row| row.contains("timed out after 5 s")).count() >= 4
    });
    assert!(targets.iter().all(|target| figures(&rows, &target.metrics).is_some()), "{rows:#?}");
    assert!(rows[0].contains("7 silent"), "{rows:#?}");
    assert!(!screen.has_colour(), "NO_COLOR is set");
    screen.press("\x03"); // Ctrl-C
    screen.ends_with_everything_restored();

    let ran = run(&[&arguments[..], &["--json"]].concat()).code(1);
    let report = ran.json();
    let rows = report["addresses"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    for (row, address) in rows.iter().zip(&addresses) {
        assert_eq!(row["address"], **address);
    }
    assert!(rows[..4].iter().all(|row| row["error"] == "timed out after 5 s"), "{report}");
    assert!(rows[4..7].iter().all(|row| row["error"] == "connection refused"), "{report}");
    for row in &rows[7..] {
        assert!(row["error"].is_null() && row["role"] == "target", "{report}");
        assert_eq!(row["commands_per_second"], 0.0, "{report}");
    }
}

#[test]
fn sixteen_addresses_of_every_kind_are_all_reached_on_a_small_terminal() {
    let dir = TestDir::with_image();
    std::fs::create_dir(dir.path("exchange")).unwrap();
    let targets = [(); 4].map(|()| Serving::target("127.0.0.1:0", &dir.arg("train.dlfs")));
    let jobs = [0, 0, 1, 2].map(|target: usize| Serving::job(&targets[target]));
    let stores = [0, 1].map(|number| Serving::store(&dir, number));
    stores.iter().for_each(Serving::wait_until_it_reads);
    let slow = [&targets[0], &jobs[0]].map(|other| slow(&other.metrics));
    let hanging = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let dead = [(); 2].map(|()| refusing());
    let mut addresses: Vec<String> = targets.iter().map(|target| target.metrics.clone()).collect();
    addresses.extend(hanging.iter().map(|of| of.local_addr().unwrap().to_string()));
    addresses.extend(jobs.iter().map(|job| job.metrics.clone()));
    addresses.extend(dead.iter().map(|(_, address)| address.clone()));
    addresses.extend(stores.iter().map(|store| store.metrics.clone()));
    addresses.extend(slow.iter().cloned());
    let arguments = ["top", "--interval", "0.5"].into_iter().chain(addresses.iter().map(|a| &**a));
    let arguments: Vec<&str> = arguments.collect();

    let screen = Screen::start(80, 20, &arguments, &[]);
    let rows = screen.until("what all are", |rows| {
        rows[0].starts_with(" dlfs top  5 targets, 7 jobs, 4 silent")
    });
    assert!(rows[0].ends_with("every 0.5 s"), "{rows:#?}");
    screen.until("that there are more", |rows| rows.iter().any(|row| row.ends_with(" more")));
    // Each has its row; a rank with a store is a peer of others and a job. The mark goes to all of them.
    let roles = ["target"; 4].into_iter().chain(["-"; 2]).chain(["job"; 4]).chain(["-"; 2]);
    let of_stores =
        stores.iter().flat_map(|store| [(&store.metrics, "peer"), (&store.metrics, "job")]);
    let expected = addresses.iter().zip(roles).chain(of_stores);
    let expected = expected.chain([(&slow[0], "target"), (&slow[1], "job")]);
    for (number, (address, role)) in expected.enumerate() {
        screen.press("\x1b[B"); // down
        let footer = format!(" {address}  {role}  ");
        let is_it = |row: &String| row.starts_with(&**address) && row.contains(role);
        let why = match number {
            4 | 5 => "timed out after 5 s",
            10 | 11 => "connection refused",
            _ => "",
        };
        screen.until(&footer, |rows| {
            let is_marked =
                format!("{}  ", rows[19]).starts_with(&footer) && rows[19].contains(why);
            is_marked && rows[2..19].iter().any(is_it)
        });
    }
    let shows = |rows: &[String], text: &str| rows.iter().any(|row| row.starts_with(text));
    screen.press("\x1b[H"); // home
    screen.until("the first one again", |rows| shows(&rows[3..4], &addresses[0]));
    screen.press("\x1b[F"); // end
    screen.until("the last one", |rows| rows[19].starts_with(&format!(" {}", slow[1])));
    screen.press("2");
    screen.until("all subsystems", |rows| {
        rows[2].starts_with("SUBSYSTEM")
            && targets.iter().all(|target| rows.iter().any(|row| row.contains(&target.metrics)))
    });
    screen.press("3");
    screen.until("all jobs", |rows| {
        rows[2].contains("SAMPLES/S")
            && jobs.iter().chain(&stores).all(|job| shows(&rows[3..19], &job.metrics))
            && shows(&rows[3..19], &slow[1])
    });
    screen.press("5");
    screen.until("what ranks exchange", |rows| {
        let of_ranks = rows.iter().filter(|row| row.starts_with("(ranks)"));
        of_ranks.filter(|row| row.contains("B/s") && !row.contains(" 0 B/s")).count() == 2
    });
    screen.press("q");
    screen.ends_with_everything_restored();
}

#[test]
fn without_a_terminal_it_prints_one_page_and_ends() {
    let dir = TestDir::with_image();
    let target = Serving::target("127.0.0.1:0", &dir.arg("train.dlfs"));
    let job = Serving::job(&target);
    let arguments = ["top", &target.metrics, &job.metrics, "--interval", "0.5"];
    let ran = run(&arguments).quiet();
    let rows: Vec<String> = ran.text().lines().map(str::to_owned).collect();
    let of = |address| figures(&rows, address).unwrap_or_else(|| panic!("{}", ran.text()));
    assert_eq!(of(&target.metrics)[1], "target");
    assert_eq!(of(&job.metrics)[1], "job");
    for title in ["ADDRESS ", "SUBSYSTEM ", "SAMPLES/S"] {
        assert!(rows.iter().any(|row| row.contains(title)), "{}", ran.text());
    }
    assert!(!ran.text().contains('\x1b'), "{}", ran.text());

    // On a loaded machine the job may do nothing for an interval.
    let mut reports = (0..100).map(|_| run(&[&arguments[..], &["--json"]].concat()).quiet().json());
    let is_positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
    let moves = |report: &Value, index: usize| {
        let row = &report["addresses"][index];
        is_positive(&row["bytes_per_second"])
            && is_positive(&row["latency_p99_seconds"])
            && is_positive(&report["loaders"][0]["samples_per_second"])
    };
    let report = reports.find(|report| moves(report, 0) && moves(report, 1)).expect("it reads");
    let [of_target, of_job] = [0, 1].map(|index| &report["addresses"][index]);
    assert_eq!((&of_target["role"], &of_job["role"]), (&"target".into(), &"job".into()));
    assert_eq!(report["subsystems"][0]["subsystem"], "nqn.2026-11.io.dlfs:train");
    assert_eq!(report["loaders"][0]["subsystems"][0], "nqn.2026-11.io.dlfs:train");
    assert!(report["subsystems"][0]["connections"].as_f64().unwrap() >= 2.0, "{report}");
    assert!(report["loaders"][0]["waits_by_cause"].is_array(), "{report}");
}

#[test]
fn tiers_are_shown_with_what_they_hold() {
    let dir = TestDir::with_image();
    let arguments = ["cached", &dir.arg("train.dlfs"), "--tier", "ram:64M", "--json"];
    let cached = Serving::start("127.0.0.1:0", &arguments, true);
    let report = run(&["top", "--json", "--interval", "0.2", &cached.metrics]).quiet().json();
    let tier = &report["tiers"][0];
    assert_eq!(tier["tier"], cached.said["tiers"][0]["name"]);
    assert_eq!(tier["capacity_bytes"], cached.said["tiers"][0]["capacity_bytes"].as_f64().unwrap());
    assert_eq!(report["tiers"][1]["tier"], "(data set)");
}

#[test]
fn nodes_are_shown_with_what_is_read_from_them() {
    let dir = TestDir::with_image();
    std::fs::create_dir(dir.path("rendezvous")).unwrap();
    let ranks = [0, 1].map(|number| Serving::rank(&dir, number));
    ranks.iter().for_each(Serving::wait_until_it_reads);
    let [first, second] = &ranks;
    let arguments = ["top", &first.metrics, &second.metrics, "--interval", "0.3", "--json"];
    let mut reports = (0..200).map(|_| run(&arguments).quiet().json());
    let moves = |row: &Value| {
        row["node"].as_str().is_some_and(|node| node.parse::<u16>().is_ok())
            && row["bytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0)
    };
    let report = reports.find(|report| report["peers"].as_array().unwrap().iter().any(moves));
    let report = report.expect("the ranks read from each other");
    let rows = report["addresses"].as_array().unwrap().iter();
    let roles: Vec<&str> = rows.map(|row| row["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["peer", "job", "peer", "job"], "{report}");
    for share in
        report["tiers"].as_array().unwrap().iter().filter_map(|row| row["hit_share"].as_f64())
    {
        assert!((0.0..=1.0).contains(&share), "{report}");
    }
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let (_bound, never) = refusing();
    let screen = Screen::start(80, 24, &["top", &never], &[]);
    screen.until("the page", |rows| rows.iter().any(|row| row.contains("connection refused")));
    screen.signal("TERM");
    screen.ends_with_everything_restored();
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let (_bound, never) = refusing();
    let screen = Screen::start(80, 24, &["top", &never], &[]);
    screen.until("the page", |rows| rows.iter().any(|row| row.contains("connection refused")));
    assert!(!screen.hang_up().success());
}

#[test]
fn wrong_arguments_are_refused_with_what_is_right() {
    run(&["top"]).code(2).complains_of(&["ADDRESS"]);
    run(&["top", "node7"]).code(2).complains_of(&["HOST:PORT"]);
    run(&["top", "https://node7:9410/metrics"]).code(2).complains_of(&["without TLS"]);
    run(&["top", "node7:9410", "--interval", "0"]).code(2).complains_of(&["seconds"]);
    // A terminal that cannot be drawn on gets text.
    let (_bound, never) = refusing();
    let mut dumb = dlfs();
    dumb.args(["top", &never]).env("TERM", "dumb");
    finish(dumb).code(1);
}
