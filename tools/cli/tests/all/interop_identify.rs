//! `dlfs id-ctrl`, `id-ns` and `list-subsys` beside nvme-cli itself, which asks the same target from Linux in QEMU.
//!
//! It runs with `DLFS_INTEROP=1`: `cargo test -p dlfs-cli interop_identify`. Without QEMU it is skipped and
//! says so; see tests/interop/README.md for what it needs. The table in benches/results/interop.md has what it found.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{TestDir, dlfs, finish, run, signal, wait};

const HOSTNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:7c1f6d0e-3a52-4b9d-9e0f-5a0c3f6d2b11";
/// A service: namespaces may come, and it knows ANA.
const SERVICE: &str = "nqn.2026-11.io.dlfs:service";
/// An image that is served by the command line alone, read-only and without ANA.
const IMAGE: &str = "nqn.2026-11.io.dlfs:image";

/// Prints each line that a command writes with a name before it. The namespaces 1 and 3 are the service's.
const SCRIPT: &str = r#"
shows() { name=$1; shift; "$@" 2>&1 | sed "s/^/$name|/"; }
shows version nvme version
for form in normal json; do
    shows "list-subsys $form" nvme list-subsys -o $form
    shows "service id-ctrl $form" nvme id-ctrl "$CTRL" -o $form
    shows "service id-ns 1 $form" nvme id-ns "$CTRL" -n 1 -o $form
    shows "service id-ns 3 $form" nvme id-ns "$CTRL" -n 3 -o $form
done
nqn=$(cat /lab/nqn)
set -- -t tcp -a "$TRADDR" -s "$(cat /lab/port)" -n "$nqn" --hostnqn "$HOSTNQN" --hostid "$HOSTID"
nvme connect "$@" || exit 1
for c in /sys/class/nvme/nvme*; do
    [ "$(cat "$c/subsysnqn")" = "$nqn" ] && other=/dev/${c##*/}
done
for form in normal json; do
    shows "image id-ctrl $form" nvme id-ctrl "$other" -o $form
    shows "image id-ns 1 $form" nvme id-ns "$other" -n 1 -o $form
done
nvme disconnect -n "$nqn"
"#;

/// A target that runs until this is dropped.
struct Serving {
    child: Child,
    listen: String,
}

impl Serving {
    fn start(arguments: &[&str]) -> Serving {
        let mut command = dlfs();
        command.args(["serve", "--json"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let said: Value = serde_json::from_str(&said).expect("it says where it listens");
        Serving { child, listen: said["listen"].as_str().unwrap().to_owned() }
    }

    fn port(&self) -> &str {
        self.listen.rsplit(':').next().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        signal(&self.child, "TERM");
        wait(&mut self.child);
    }
}

/// Runs the guest, and returns what each command of the script wrote.
fn ask_nvme_cli(dir: &TestDir, suite: &str, service: &Serving, image: &Serving) -> Said {
    for (name, text) in [("script", SCRIPT), ("port", image.port()), ("nqn", IMAGE)] {
        std::fs::write(dir.path(name), text).unwrap();
    }
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/linux-nvme-host");
    let mut command = Command::new(lab);
    command.args(["--suite", suite, "--port", service.port(), "--nqn", SERVICE]);
    command.args(["--hostnqn", HOSTNQN, "--no-discover", "--read", "1M", "--timeout", "280"]);
    command.args(["--script", &dir.arg("script")]);
    command.args(["--file", &dir.arg("port"), "--file", &dir.arg("nqn")]);
    let ran = finish(command);
    let text = ran.text();
    assert!(text.contains("RESULT PASS"), "{suite}: {text}\n{}", ran.stderr);
    let mut said = Said::new();
    let lines = text.lines().filter_map(|line| line.strip_prefix("OUT ")?.split_once('|'));
    for (name, line) in lines {
        said.entry(name.to_owned()).or_default().push(line.to_owned());
    }
    said
}

/// The lines of each command.
type Said = BTreeMap<String, Vec<String>>;

/// The lines that our command prints.
fn ours(verb: &str, address: &str, more: &[&str], form: &str) -> Vec<String> {
    let common = [verb, address, "--output", form, "--hostnqn", HOSTNQN];
    let ran = run(&[&common[..], more].concat()).quiet();
    ran.text().lines().map(str::to_owned).collect()
}

fn json(lines: &[String]) -> Value {
    let text = lines.join("\n");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The identifier of a controller differs from connection to connection.
fn without_cntlid(lines: &[String]) -> Vec<&String> {
    let kept: Vec<&String> = lines.iter().filter(|line| !line.starts_with("cntlid ")).collect();
    assert_eq!(kept.len() + 1, lines.len(), "{lines:#?}");
    kept
}

fn check_id_ctrl(what: &str, said: &Said, address: &str) {
    let theirs = |form: &str| &said[&format!("{what} id-ctrl {form}")];
    let text = ours("id-ctrl", address, &[], "normal");
    assert_eq!(without_cntlid(&text), without_cntlid(theirs("normal")));
    let [mut ours, mut theirs] =
        [ours("id-ctrl", address, &[], "json"), theirs("json").clone()].map(|lines| json(&lines));
    for side in [&mut ours, &mut theirs] {
        assert!(side.as_object_mut().unwrap().remove("cntlid").is_some_and(|id| id.is_u64()));
    }
    assert_eq!(ours, theirs, "{what}");
}

fn check_id_ns(what: &str, nsid: &str, said: &Said, address: &str) {
    let theirs = |form: &str| &said[&format!("{what} id-ns {nsid} {form}")];
    assert_eq!(&ours("id-ns", address, &["-n", nsid], "normal"), theirs("normal"));
    let mut ours = json(&ours("id-ns", address, &["-n", nsid], "json"));
    let theirs = json(theirs("json"));
    // nvme-cli 2.13 has neither of these; 2.16 has both.
    if theirs["lbafs"][0].get("in_use").is_none() {
        for format in ours["lbafs"].as_array_mut().unwrap() {
            let format = format.as_object_mut().unwrap();
            assert!(format.remove("lbaf").is_some() && format.remove("in_use").is_some());
        }
    }
    assert_eq!(ours, theirs, "{what}, namespace {nsid}");
}

/// A kernel says from which address it has connected, and how it chooses among paths; we are no kernel. nvme-cli has
/// the ANA state of a path only if it is asked for a namespace.
fn check_list_subsys(said: &Said, address: &str) {
    let as_ours = |line: &String| {
        let (before, rest) = line.split_once(",src_addr=")?;
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        Some(format!("{before}{rest}"))
    };
    let theirs = |form: &str| -> Vec<String> {
        let lines = said[&format!("list-subsys {form}")].iter();
        let lines = lines.filter(|line| !line.trim_start().starts_with("iopolicy="));
        lines.map(|line| as_ours(line).unwrap_or_else(|| line.clone())).collect()
    };
    let mut lines = ours("list-subsys", address, &[], "normal");
    let last = lines.pop().unwrap();
    lines.push(last.strip_suffix(" optimized").expect("a state").to_owned());
    assert_eq!(lines, theirs("normal"));
    let mut found = json(&ours("list-subsys", address, &[], "json"));
    without_ana_states(&mut found);
    assert_eq!(found, json(&theirs("json")));
}

fn without_ana_states(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.remove("ANAState");
            object.values_mut().for_each(without_ana_states);
        }
        Value::Array(values) => values.iter_mut().for_each(without_ana_states),
        _ => {}
    }
}

#[test]
fn identify_data_and_paths_are_those_that_nvme_cli_prints_of_the_same_target() {
    if std::env::var_os("DLFS_INTEROP").is_none_or(|value| value != "1") {
        return eprintln!("SKIPPED: beside nvme-cli (set DLFS_INTEROP=1 to run it)");
    }
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: beside nvme-cli: qemu-system-x86_64 is not installed");
    }
    let dir = TestDir::with_image();
    let config = format!(
        "[[subsystem]]\nnqn = {SERVICE:?}\nlisten = \"127.0.0.1:0\"\n\
         [[subsystem.namespace]]\nnsid = 1\naddress = \"train.dlfs\"\n\
         [[subsystem.namespace]]\nnsid = 3\naddress = \"small\"\nread_only = false\n"
    );
    std::fs::write(dir.path("targets.toml"), config).unwrap();
    std::fs::write(dir.path("small"), vec![0; 1 << 20]).unwrap();
    let service = Serving::start(&["--config", &dir.arg("targets.toml")]);
    let image = [&dir.arg("train.dlfs"), "--listen", "127.0.0.1:0", "--nqn", IMAGE];
    let image = Serving::start(&image);
    for suite in ["trixie", "forky"] {
        let said = ask_nvme_cli(&dir, suite, &service, &image);
        eprintln!("{suite}: {}", said["version"].join(", "));
        let address = format!("nvme-tcp://{}/{SERVICE}", service.listen);
        check_list_subsys(&said, &address);
        check_id_ctrl("service", &said, &address);
        check_id_ns("service", "1", &said, &address);
        check_id_ns("service", "3", &said, &address);
        let address = format!("nvme-tcp://{}/{IMAGE}", image.listen);
        check_id_ctrl("image", &said, &address);
        check_id_ns("image", "1", &said, &address);
    }
}
