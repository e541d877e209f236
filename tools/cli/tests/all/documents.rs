//! Runs the shell commands of the documents.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{TestDir, finish, free_port};

/// The ports in the documents.
const PORTS: [&str; 6] = ["4420", "4421", "4422", "4423", "4424", "9410"];

#[test]
fn the_commands_of_the_readme_run() {
    run_commands_of("README.md");
}

#[test]
fn the_commands_of_the_tutorial_run() {
    run_commands_of("docs/tutorial.md");
}

#[test]
fn the_commands_about_training_run() {
    run_commands_of("docs/training.md");
}

#[test]
fn the_commands_about_operations_run() {
    run_commands_of("docs/operations.md");
}

#[test]
fn the_commands_about_performance_run() {
    run_commands_of("docs/performance.md");
}

#[test]
fn the_commands_about_installing_run() {
    run_commands_of("docs/install.md");
}

/// Runs all shell blocks in one shell, in a folder with `pictures/`; a failing command ends it.
fn run_commands_of(document: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(document)).expect("a document of this tree");
    let dir = TestDir::new();
    for (class, sign) in ["dark", "light"].iter().zip([b'd', b'l']) {
        let folder = dir.path("pictures").join(class);
        fs::create_dir_all(&folder).expect("a new folder");
        for index in 0..150_usize {
            let bytes = vec![sign ^ index as u8; 500 + 37 * index];
            fs::write(folder.join(format!("{index:03}.png")), bytes).expect("a new file");
        }
    }
    // When the document ends, its background processes are stopped, too.
    let mut script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
    script += "listens() { (exec 3<>/dev/tcp/127.0.0.1/$1) 2>/dev/null; }\n";
    for line in commands(&text).lines() {
        script += line;
        script.push('\n');
        // `dlfs cached --wait` owns its tiers whenever it can.
        if line.ends_with('&') && !line.starts_with("dlfs cached ") {
            let address = line.split("127.0.0.1:").nth(1).expect("what runs beside is a target");
            let port: String = address.chars().take_while(char::is_ascii_digit).collect();
            script +=
                &format!("for _ in {{1..600}}; do listens {port} && break; sleep 0.1; done\n");
        }
    }
    // Each port in a document is replaced by another free one: first by a mark, since a free port may begin with the
    // digits of one that is still to be replaced.
    for port in PORTS {
        script = script.replace(port, &format!("<{port}>"));
    }
    for port in PORTS {
        script = script.replace(&format!("<{port}>"), &free_port().to_string());
    }
    let program = Path::new(env!("CARGO_BIN_EXE_dlfs")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.args(["-euc", &script]).current_dir(dir.path(""));
    shell.env("PATH", format!("{}:{path}", program.display())).env("HOME", dir.path("home"));
    let ran = finish(shell);
    assert_eq!(ran.status.code(), Some(0), "{document}:\n{script}\n{}\n{}", ran.text(), ran.stderr);
}

/// The shell blocks, except those after a comment that says why they are not run.
fn commands(text: &str) -> String {
    let mut found = String::new();
    let mut inside = None;
    let mut before = "";
    for line in text.lines() {
        if line.starts_with("```") {
            let runs = line == "```sh" && !before.starts_with("<!-- not run: ");
            inside = if inside.is_some() { None } else { Some(runs) };
        } else if inside == Some(true) {
            found += line;
            found.push('\n');
        }
        before = line;
    }
    found
}

#[test]
fn blocks_that_are_not_for_running_are_left_out() {
    let text =
        "```sh\na\n```\n<!-- not run: c -->\n```sh\nd\n```\n```text\ne\n```\n```sh\nf &\n```\n";
    assert_eq!(commands(text), "a\nf &\n");
}
