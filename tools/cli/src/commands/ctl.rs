//! `dlfs ctl` asks a running service over its control socket, and changes it.
//!
//! The service carries the methods out. `service/methods.rs` has their parameters, except for those of `limit`
//! (`service/limits.rs`) and of `log-level` (below).

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::service::control::call;
use crate::service::limits::Limit;
use crate::service::methods::{AddNamespace, OneHost, RemoveNamespace, SetAna, SubsystemFilter};

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

/// A method with its parameters. Its serialized form is the request.
#[derive(Debug, Subcommand, Serialize)]
#[serde(tag = "method", content = "params", rename_all = "kebab-case")]
enum Verb {
    /// List the subsystems, with their namespaces and hosts
    ListSubsys(SubsystemFilter),
    /// List the controllers of connected hosts
    ListHosts(SubsystemFilter),
    /// Add a namespace; connected hosts are told
    AddNs(AddNamespace),
    /// Remove a namespace; connected hosts are told
    RemoveNs(RemoveNamespace),
    /// Allow a host to connect without a key
    AddHost(OneHost),
    /// Disconnect a host and remove it, and its keys, from the list
    DropHost(OneHost),
    /// Set the ANA state of the namespaces through this service; connected hosts are told
    Ana(SetAna),
    /// Limit what a host, a group or a namespace may use, or end its limits if none is given
    Limit(Limit),
    /// Print the counters since the start
    Stats(SubsystemFilter),
    /// Change which lines the service writes to its log
    LogLevel {
        /// The least severe lines that are written
        #[arg(value_parser = ["error", "warn", "info", "debug"])]
        level: String,
    },
    /// Read the configuration file again, as SIGHUP does, and print what has changed
    Reload,
    /// Send all hosts away in order, and end the service, as SIGTERM does
    Drain,
}

pub(crate) fn ctl(args: CtlArgs) -> Result<Outcome, Failure> {
    let mut request = json!(args.verb);
    let params = request["params"].take();
    let answer = call(&args.socket, request["method"].as_str().unwrap_or_default(), params)?;
    Out::answer(args.json, &answer, |out| {
        lines(&args.verb, &answer).iter().try_for_each(|line| out.line(line))
    })
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
        Verb::AddHost(_) | Verb::Ana(_) | Verb::Limit(_) | Verb::LogLevel { .. } => Vec::new(),
    }
}

/// The lines about a subsystem, in the answer to `list-subsys`.
fn subsystem(subsystem: &Value) -> Vec<String> {
    let namespaces = subsystem["namespaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = |key: &str| -> String {
        let texts = subsystem[key].as_array().map(Vec::as_slice).unwrap_or_default();
        texts.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    let is_any = subsystem["allow_any_host"] == true;
    let hosts = if is_any { "any".to_owned() } else { texts("hosts") };
    let ana = subsystem["ana"].as_str().filter(|state| *state != "optimized");
    let mut lines = vec![
        text(&subsystem["nqn"]),
        format!(
            "  listen={} controllers={}{}{}",
            texts("listen"),
            subsystem["controllers"],
            ana.map_or(String::new(), |state| format!(" ana={state}")),
            if subsystem["draining"] == true { " draining=true" } else { "" }
        ),
        format!("  hosts={hosts}"),
    ];
    lines.extend(namespaces.iter().map(|namespace| format!("  {}", fields(namespace))));
    lines
}

/// `key=value` for each field.
fn fields(value: &Value) -> String {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, value)| format!("{key}={}", text(value))).collect::<Vec<_>>().join(" ")
}

/// A string without quotes; any other value as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
