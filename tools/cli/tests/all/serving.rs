//! serve, and every reading command over its socket; import onto a served namespace.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv6Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{self, Served, TestDir, dlfs, finish, refusing, run, signal, wait};
use crate::service_support::{one, private, write};

#[test]
fn every_reading_command_works_over_nvme_tcp_as_on_the_file() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let served = Served::start(&image, &[]);
    let remote = served.address.as_str();
    assert!(remote.starts_with("nvme-tcp://127.0.0.1:"), "{remote}");
    assert!(remote.ends_with("/nqn.2026-11.io.dlfs:train"), "{remote}");
    let local_and_remote = |before: &[&str], after: &[&str]| {
        let local = run(&[before, &[&image], after].concat()).code(0);
        let remote = run(&[before, &[remote], after].concat()).code(0);
        assert_eq!(local.stdout, remote.stdout, "{before:?}");
    };
    local_and_remote(&["ls", "-R", "-l"], &[]);
    local_and_remote(&["cat"], &["dog/031.bin", "newt/099.bin"]);
    local_and_remote(&["stat"], &["dog/031.bin", "--json"]);
    let stat = run(&["stat", remote, "--json"]).code(0).json();
    assert!(stat["namespaces"][0]["engine"].as_str().unwrap().starts_with("tcp"));
    assert_eq!(stat["namespaces"][0]["read_only"], true);
    assert_eq!(run(&["verify", remote, "--json"]).code(0).json()["verified"], true);
    run(&["export", remote, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
    let crc = |image: &str| {
        let options =
            ["--order", "grouped", "--epochs", "2", "--json", "--hdr-digest", "--data-digest"];
        run(&[&["read", image], &options[..]].concat()).code(0).json()["order_crc32c"].clone()
    };
    assert_eq!(crc(&image), crc(remote));
}

#[test]
fn serve_prints_the_address_and_a_line_for_linux() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let dir = TestDir::with_image();
    let mut command = common::dlfs();
    command.args(["serve", &dir.arg("train.dlfs"), "--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let lines: Vec<String> = stdout.lines().take(4).map(Result::unwrap).collect();
    let said = lines.join("\n");
    assert!(said.contains("read-only"), "{said}");
    assert!(said.contains("nvme-tcp://127.0.0.1:"), "{said}");
    assert!(said.contains("nvme connect -t tcp -a 127.0.0.1 -s "), "{said}");
    assert!(said.contains("-n nqn.2026-11.io.dlfs:train"), "{said}");
    common::signal(&child, "INT");
    assert_eq!(common::wait(&mut child).code(), Some(0), "Ctrl-C is how serving ends");
}

#[test]
fn pollers_run_on_the_processors_that_were_asked_for() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let allowed = |path: &Path| {
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.expect("a line of every thread").trim().to_owned()
        };
        (line("Name:"), line("Cpus_allowed_list:"))
    };
    let mine = allowed(Path::new("/proc/self")).1;
    let first: String = mine.chars().take_while(char::is_ascii_digit).collect();
    let served = Served::start(&image, &["--cpus", &first, "--pollers", "2", "--busy-poll"]);
    let threads = || -> Vec<(String, String)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", served.child.id())).unwrap();
        tasks.map(|task| allowed(&task.unwrap().path())).collect()
    };
    // A thread sets its name and binding once it runs, which may be after the address was printed.
    let late = Instant::now() + Duration::from_secs(60);
    for name in ["dlfs-target-0", "dlfs-target-1"] {
        while !threads().contains(&(name.to_owned(), first.clone())) {
            assert!(Instant::now() < late, "{name} is not bound to {first}: {:?}", threads());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let bound = ["--cpus", &first, "--numa", "0", "--busy-poll", "--json"];
    let options = [&["read", &served.address], &bound[..]].concat();
    // On a machine with several NUMA nodes the first processor may belong to another node than 0.
    let node_0 = Path::new("/sys/devices/system/node/node1").exists();
    let options = if node_0 { &options[..4] } else { &options[..] };
    run(options).code(0);
}

#[test]
fn processors_and_nodes_that_are_not_there_are_told_at_once() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    for command in ["serve", "read"] {
        let refused = |options: &[&str], reason: &str| {
            run(&[&[command, &image], options].concat())
                .code(2)
                .complains_of(&[options[0], reason]);
        };
        refused(&["--cpus", "0-1000"], "does not exist: there are 0");
        refused(&["--cpus", "all"], "such as 0,2-5");
        refused(&["--numa", "4000"], "NUMA node 4000 does not exist");
    }
    run(&["serve", &image, "--pollers", "0"]).code(2).complains_of(&["--pollers"]);
}

/// As on a machine without OpenSSL 3: the loader finds a file that is no library.
#[test]
fn without_openssl_only_what_needs_tls_fails_and_names_the_packages() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    fs::create_dir(dir.path("lib")).unwrap();
    fs::write(dir.path("lib/libssl.so.3"), "").unwrap();
    let without = |arguments: &[&str]| {
        let mut command = dlfs();
        command.env("LD_LIBRARY_PATH", dir.path("lib")).args(arguments);
        finish(command)
    };
    let key = without(&["key", "gen", "--tls"]).code(0).text().trim().to_owned();
    private(&dir, "key", &key);
    let hosts = format!("[[host]]\nnqn = \"nqn.2026-11.io.dlfs:t\"\ntls_key = \"{key}\"\n");
    private(&dir, "hosts.toml", &hosts);
    write(&dir, &one("127.0.0.1:0", &[(1, "train.dlfs")], "hosts = \"hosts.toml\""));
    let served = Served::start(&image, &[]);
    without(&["stat", &image]).code(0);
    without(&["stat", &served.address]).code(0);
    let hosts = dir.arg("hosts.toml");
    let keyed = ["--hostnqn", "nqn.2026-11.io.dlfs:t", "--tls-key", &dir.arg("key")];
    let secured = ["serve", &image, "--listen", "127.0.0.1:0", "--hosts", &hosts];
    for arguments in [
        &[&["stat", &served.address][..], &keyed].concat()[..],
        &secured,
        &[&secured[..], &["--require-tls"]].concat(),
        &["serve", "--check", "--config", &dir.arg("targets.toml")],
    ] {
        let words = ["OpenSSL 3", "libssl.so.3", "libssl3t64", "openssl-libs"];
        without(arguments).code(1).complains_of(&words);
    }
    let checked = ["serve", "--check", "--config", &dir.arg("targets.toml")];
    run(&checked).code(0);
    run(&["serve", &image, "--require-tls"]).code(2).complains_of(&["--hosts"]);
}

#[test]
fn a_port_in_use_is_named_in_the_error() {
    let dir = TestDir::with_image();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    run(&["serve", &dir.arg("train.dlfs"), "--listen", &listen])
        .code(1)
        .complains_of(&[&listen, "in use"]);
}

#[test]
fn other_machines_get_nothing_unless_hosts_are_allowed() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    run(&["serve", &image, "--listen", "0.0.0.0:0"]).code(2).complains_of(&["--allow-host"]);
    run(&["serve", &image, "--listen", "nowhere"]).code(2).complains_of(&["HOST:PORT"]);
    run(&["serve", &image, "--nqn", ""]).code(2).complains_of(&["--nqn"]);
}

#[test]
fn only_the_hosts_on_the_list_get_in() {
    let dir = TestDir::with_image();
    let good = "nqn.2026-11.io.dlfs:good";
    let bad = "nqn.2026-11.io.dlfs:bad";
    let served = Served::start(&dir.arg("train.dlfs"), &["--allow-host", good]);
    run(&["ls", &served.address, "--hostnqn", good]).code(0);
    run(&["ls", &served.address, "--hostnqn", bad]).code(1).complains_of(&["host", bad]);
    let listen = served.said["listen"].as_str().unwrap();
    let listed = |host| run(&["discover", listen, "--hostnqn", host]).code(0).stderr;
    assert!(listed(bad).contains(&format!("nothing is offered to {bad}")), "{}", listed(bad));
    assert_eq!(listed(good), "");
}

#[test]
fn a_striped_image_is_served_and_found_in_any_order_of_its_addresses() {
    let dir = TestDir::with_source();
    let image = format!("{},{}", dir.arg("a.dlfs"), dir.arg("b.dlfs"));
    run(&["import", &dir.arg("source"), &image, "--chunk-size", "64K"]).code(0);
    let served = Served::start(&image, &["--nqn", "nqn.2026-11.io.dlfs:striped"]);
    assert_eq!(served.said["namespaces"].as_array().unwrap().len(), 2);
    let (one, two) = served.address.split_once(',').unwrap();
    run(&["export", &format!("{two},{one}"), &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
    run(&["ls", one]).code(1).complains_of(&["namespace"]);
}

#[test]
fn an_import_goes_onto_a_writable_namespace_and_is_refused_on_a_read_only_one() {
    let dir = TestDir::with_source();
    File::create(dir.path("blank.dlfs")).unwrap().set_len(64 << 20).unwrap();
    let blank = dir.arg("blank.dlfs");
    {
        let served = Served::start(&blank, &[]);
        run(&["import", &dir.arg("source"), &served.address]).code(1);
    }
    assert!(std::fs::read(&blank).unwrap().iter().all(|&byte| byte == 0));
    let served = Served::start(&blank, &["--writable"]);
    run(&["import", &dir.arg("source"), &served.address]).code(0);
    run(&["verify", &served.address]).code(0);
    drop(served);
    run(&["export", &blank, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
}

#[test]
fn a_target_that_is_not_there_is_named_with_its_address() {
    let (_bound, gone) = refusing();
    let address = format!("nvme-tcp://{gone}/nqn.2026-11.io.dlfs:x");
    run(&["ls", &address]).code(1).complains_of(&[&gone]);
}

#[test]
fn discover_names_what_a_target_serves() {
    let dir = TestDir::with_image();
    let served = Served::start(&dir.arg("train.dlfs"), &[]);
    let listen = served.said["listen"].as_str().unwrap();
    let text = run(&["discover", listen]).code(0);
    assert!(text.text().lines().any(|line| line == served.address), "{}", text.text());
    let json = run(&["discover", listen, "--json"]).code(0);
    assert!(json.text().contains("\"subnqn\":\"nqn.2026-11.io.dlfs:train\""), "{}", json.text());
    run(&["discover", ":4420"]).code(2).complains_of(&["HOST"]);
}

#[test]
fn the_second_path_is_taken_when_nothing_answers_on_the_first() {
    let dir = TestDir::with_image();
    let served = Served::start(&dir.arg("train.dlfs"), &[]);
    let (_bound, dead) = refusing();
    let dead = format!("nvme-tcp://{dead}/nqn.2026-11.io.dlfs:train");
    let ran = run(&["read", &dead, "--path", &served.address, "--json"]).code(0);
    assert_eq!(ran.json()["samples"], 300);
    ran.complains_of(&["WARN", "refused"]);
    let quiet = run(&["read", &dead, "--path", &served.address, "--json", "--quiet"]).code(0);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn an_address_may_be_written_as_spdk_writes_it() {
    let dir = TestDir::with_image();
    let served = Served::start(&dir.arg("train.dlfs"), &[]);
    let port = served.said["listen"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let address = format!(
        "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:nqn.2026-11.io.dlfs:train ns:1"
    );
    assert_eq!(run(&["ls", &address]).code(0).text(), "cat/\ndog/\nnewt/\n");
    run(&["ls", "trtype:PCIE traddr:0000:01:00.0"]).code(1).complains_of(&["trtype:PCIE"]);
    run(&["ls", "trtype:TCP traddr:127.0.0.1"]).code(2).complains_of(&["subnqn"]);
}

#[test]
fn limits_are_options_and_a_host_beyond_them_is_told_to_try_again() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let served = Served::start(&image, &["--max-controllers", "1", "--max-keep-alive", "3600"]);
    let busy = Served::start(&served.address, &[]); // a relay uses the only connection
    let refused = run(&["ls", &served.address, "--ctrl-loss-tmo", "1"]).code(1);
    refused.complains_of(&["controller busy", "--max-controllers"]);
    run(&["ls", &busy.address]).code(0);
    run(&["serve", &image, "--max-controllers", "0"]).code(2).complains_of(&["--max-controllers"]);
}

#[test]
fn every_limit_of_a_target_is_an_option() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let options = "--max-controllers 9 --max-controllers-per-address 8 --max-discovery-controllers 7 \
                   --max-discovery-controllers-per-address 6 --max-connections 50 \
                   --max-connections-per-address 40 --max-io-queues 2 --max-queue-entries 64 \
                   --buffer-memory 8M --max-keep-alive 60 --connect-timeout 5 --send-timeout 5";
    let served = Served::start(&image, &options.split_whitespace().collect::<Vec<_>>());
    assert_eq!(run(&["verify", &served.address, "--json"]).code(0).json()["verified"], true);
    for option in options.split_whitespace().filter(|word| word.starts_with("--")) {
        run(&["serve", &image, option, "0"]).code(2).complains_of(&[option]);
    }
}

#[test]
fn a_target_that_hangs_up_at_once_may_have_no_place_and_the_error_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("nvme-tcp://{}/nqn.x", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().for_each(drop));
    run(&["ls", &address]).code(1).complains_of(&[&address[11..], "--max-connections"]);
}

#[test]
fn identify_data_are_printed_with_the_names_of_nvme_cli() {
    let dir = TestDir::with_image();
    let image = format!("{0},{0}", dir.arg("train.dlfs"));
    let served = Served::start(&image, &["--nqn", "nqn.2026-11.io.dlfs:asked"]);
    let address = served.address.split(',').nth(1).unwrap();
    let text = run(&["id-ctrl", address]).code(0);
    for line in
        ["mn        : dlfs target", "subnqn    : nqn.2026-11.io.dlfs:asked", "sqes      : 0x66"]
    {
        assert!(
            text.text().lines().any(|known| known.starts_with(line)),
            "{line}: {}",
            text.text()
        );
    }
    let json = run(&["id-ctrl", address, "--output", "json"]).code(0).json();
    assert_eq!(
        (&json["nn"], &json["cntrltype"], &json["ver"]),
        (&2.into(), &1.into(), &0x1_0400.into())
    );
    let bytes = served.said["namespaces"][1].as_u64().unwrap();
    let text = run(&["id-ns", address]).code(0);
    assert!(text.text().starts_with("NVME Identify Namespace 2:\n"), "{}", text.text());
    assert!(text.text().trim_end().ends_with("(in use)"), "{}", text.text());
    let json = run(&["id-ns", address, "-n", "1", "-o", "json"]).code(0).json();
    let block_len = 1 << json["lbafs"][0]["ds"].as_u64().unwrap();
    assert_eq!(json["nsze"].as_u64().unwrap() * block_len, bytes);
    run(&["id-ns", address, "-n", "3"]).code(1).complains_of(&["no namespace 3"]);
    let uuid = "6b1a7a4e-55cf-4a2b-8d7e-0123456789ab";
    let host = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
    let listed = ["list-subsys", address, "-o", "json", "--hostnqn", &host];
    let json = run(&listed).code(0).json();
    assert_eq!((&json[0]["HostNQN"], &json[0]["HostID"]), (&host.into(), &uuid.into()));
    let json = run(&["list-subsys", address, "-o", "json"]).code(0).json();
    assert!(
        json[0]["HostNQN"].as_str().unwrap().starts_with("nqn."),
        "the one that is presented: {json}"
    );
    let subsystem = &json[0]["Subsystems"][0];
    assert_eq!(subsystem["NQN"], "nqn.2026-11.io.dlfs:asked");
    let port = served.said["listen"].as_str().unwrap().rsplit(':').next().unwrap();
    assert_eq!(subsystem["Paths"][0]["Address"], format!("traddr=127.0.0.1,trsvcid={port}"));
    assert!(
        run(&["list-subsys", address]).code(0).text().contains(" +- nvme0 tcp traddr=127.0.0.1")
    );
    run(&["id-ctrl", &dir.arg("train.dlfs")]).code(2).complains_of(&["nvme-tcp://"]);
}

/// An address of a link alone, as `fe80::1`, and the link.
fn of_a_link() -> Option<(Ipv6Addr, String)> {
    let text = fs::read_to_string("/proc/net/if_inet6").ok()?;
    let line = text.lines().find(|line| line.starts_with("fe80"))?;
    let mut words = line.split_whitespace();
    let ip = u128::from_str_radix(words.next()?, 16).ok()?;
    Some((Ipv6Addr::from(ip), words.last()?.to_owned()))
}

#[test]
fn an_address_of_a_link_keeps_its_link_when_it_is_served_told_and_discovered() {
    let Some((ip, link)) = of_a_link() else {
        return eprintln!("SKIPPED: this machine has no address of a link");
    };
    let dir = TestDir::with_image();
    let listen = format!("[{ip}%{link}]:0");
    let options =
        ["serve", &dir.arg("train.dlfs"), "--listen", &listen, "--json", "--allow-any-host"];
    let mut serving = dlfs().args(options).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(serving.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = said["address"].as_str().unwrap();
    let samples =
        |address: &str| run(&["stat", address, "--json"]).code(0).json()["samples"].clone();
    assert_eq!(samples(address), 300, "{address}");
    let port = address.split("]:").nth(1).unwrap().split('/').next().unwrap();
    let found = run(&["discover", &format!("[{ip}%{link}]:{port}")]).code(0);
    let found = found.text().lines().last().unwrap();
    assert!(found.contains(&format!("%25{link}")), "{found}");
    assert_eq!(samples(found), 300, "{found}");
    signal(&serving, "TERM");
    wait(&mut serving);
}
