//! `dlfs ctl`: asks a running service, and changes it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use dlfs::nvme::Nqn;

use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::service::control::call;
use crate::service::methods::{OneHost, RemoveNamespace, Whole};

/// Ask a running `dlfs serve --control`, and change it
///
/// What it changes lasts until the service is restarted or its configuration file is read again: write it into
/// the file as well.
#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// The socket that the service was started with
    #[arg(long, value_name = "PATH", default_value = "/run/dlfs/control.sock")]
    socket: PathBuf,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the subsystems, with their namespaces and hosts
    ListSubsys(Whole),
    /// List the controllers of connected hosts
    ListHosts(Whole),
    /// Add a namespace; connected hosts are told
    AddNs(AddNs),
    /// Remove a namespace; connected hosts are told
    RemoveNs(RemoveNamespace),
    /// Allow a host to connect without a key
    AddHost(OneHost),
    /// Disconnect a host and remove it, and its keys, from the list
    DropHost(OneHost),
    /// Print the counters since the start
    Stats(Whole),
    /// Change which lines the service writes to its log
    LogLevel {
        /// The least severe lines that are written
        level: Level,
    },
    /// Read the configuration file again, as SIGHUP does, and print what has changed
    Reload,
    /// Send all hosts away in order, and end the service, as SIGTERM does
    Drain,
}

#[derive(Debug, Args)]
struct AddNs {
    /// The address of the namespace; a relative path begins at this command's folder
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Its NSID [default: the lowest that is free]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    nsid: Option<u32>,
    /// Let hosts write to it
    #[arg(long)]
    writable: bool,
    /// The subsystem [default: the only one]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

pub(crate) fn run(args: CtlArgs) -> Result<Outcome, Failure> {
    let (method, params) = request(&args.verb)?;
    let answer = call(&args.socket, method, params)?;
    let mut out = Out::new();
    if args.json {
        out.json(&answer)?;
    } else {
        lines(&args.verb, &answer).iter().try_for_each(|line| out.line(line))?;
    }
    out.end(Outcome::Done)
}

fn request(verb: &Verb) -> Result<(&'static str, Value), Failure> {
    Ok(match verb {
        Verb::ListSubsys(of) => ("list-subsys", json!(of)),
        Verb::ListHosts(of) => ("list-hosts", json!(of)),
        Verb::Stats(of) => ("stats", json!(of)),
        Verb::AddNs(AddNs { address, nsid, writable, subsystem }) => {
            let address = absolute(address)?;
            let params = json!({ "address": address, "nsid": nsid, "read_only": !writable, "subsystem": subsystem });
            ("add-ns", params)
        }
        Verb::RemoveNs(namespace) => ("remove-ns", json!(namespace)),
        Verb::AddHost(host) => ("add-host", json!(host)),
        Verb::DropHost(host) => ("drop-host", json!(host)),
        Verb::LogLevel { level } => {
            ("log-level", json!({ "level": format!("{level:?}").to_lowercase() }))
        }
        Verb::Reload => ("reload", json!({})),
        Verb::Drain => ("drain", json!({})),
    })
}

/// The service may run in another folder.
fn absolute(address: &str) -> Result<String, Failure> {
    let folder = std::env::current_dir().map_err(dlfs::Error::from)?;
    let address =
        crate::service::config::parse_address(address, &folder).map_err(Failure::Usage)?;
    Ok(address.to_string())
}

/// The answer as text.
fn lines(verb: &Verb, answer: &Value) -> Vec<String> {
    let entries = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    match verb {
        Verb::ListSubsys(_) => entries.iter().flat_map(subsystem).collect(),
        Verb::ListHosts(_) | Verb::Stats(_) => entries.iter().map(fields).collect(),
        Verb::AddNs(_) | Verb::RemoveNs(_) | Verb::DropHost(_) | Verb::Drain => {
            vec![fields(answer)]
        }
        Verb::Reload => vec![text(&answer["changed"])],
        Verb::AddHost(_) | Verb::LogLevel { .. } => Vec::new(),
    }
}

fn subsystem(subsystem: &Value) -> Vec<String> {
    let namespaces = subsystem["namespaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = |key: &str| -> String {
        let texts = subsystem[key].as_array().map(Vec::as_slice).unwrap_or_default();
        texts.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    let mut lines = vec![
        text(&subsystem["nqn"]),
        format!(
            "  listen={} controllers={}{}",
            texts("listen"),
            subsystem["controllers"],
            if subsystem["draining"] == true { " draining=true" } else { "" }
        ),
        format!(
            "  hosts={}",
            match &subsystem["allow_any_host"] {
                Value::Bool(true) => "any".to_owned(),
                _ => texts("hosts"),
            }
        ),
    ];
    lines.extend(namespaces.iter().map(|namespace| format!("  {}", fields(namespace))));
    lines
}

/// `key=value` of each field.
fn fields(value: &Value) -> String {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, value)| format!("{key}={}", text(value))).collect::<Vec<_>>().join(" ")
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
