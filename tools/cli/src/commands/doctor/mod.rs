//! `dlfs doctor`: checks this machine and, given an address, finds the bottleneck of a training job.
//!
//! With an address it connects to the data set or target, reads from it for a few seconds, and examines the path to
//! it; without an address it examines only this machine.
//!
//! `load.rs` measures, and `bound.rs` concludes. `network.rs` has the operating system's view of the connection, and
//! `machine.rs` the clock of the processors and what SPDK and drives need.

mod bound;
mod load;
mod machine;
mod network;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::catalog::{Named, resolve};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::qpair::{ConnectOptions, Device, open_all};
use dlfs::units::SampleId;

use self::network::Route;
use crate::args::{ConnectionArgs, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::{self, Out};

/// Check what this machine provides and, given an address, how fast it can be read and what bounds that
///
/// With an address: connects, reads from its first namespace for a few seconds (nothing is written), and looks at
/// the network path. Of a drive (pcie:), it says first whether VFIO has it, and the commands that help. Each line
/// begins with `ok`, with `look` where something could be better, or with `-` where it is not needed for what is read.
/// The exit code is 1 if it cannot be read, else 0.
///
/// Without one: checks huge pages, locked memory, VFIO, permissions and the IOMMU, which only drives (pcie:,
/// trtype:PCIE) and RDMA use; huge pages are for SPDK. The exit code is 0.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// The data set, namespace or target to examine: ADDRESS[,ADDRESS...]
    address: Option<ImageAddress>,
    /// How long each of the four measurements takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Print one line of JSON for each check
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// One check.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    check: &'static str,
    /// True unless something could be better.
    good: bool,
    /// True if the check matters for the data that is read; JSON has this field only if it is false.
    #[serde(skip_serializing_if = "Clone::clone")]
    needed: bool,
    found: String,
    /// If something is missing: the benefit of having it, and how to get it.
    #[serde(rename = "mend", skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn good(check: &'static str, found: String) -> Finding {
        Finding { check, good: true, needed: true, found, remedy: None }
    }

    /// A check that does not matter for the data that is read, and the reason.
    fn unneeded(check: &'static str, why: &str) -> Finding {
        let found = format!("not needed for what you do: {why}");
        Finding { needed: false, ..Finding::good(check, found) }
    }

    fn bad(check: &'static str, found: String, remedy: impl Into<String>) -> Finding {
        Finding { remedy: Some(remedy.into()), good: false, ..Finding::good(check, found) }
    }

    /// An error as a finding: the report in one line, with the error's hint as the remedy.
    fn of_error(check: &'static str, error: &dlfs::Error) -> Finding {
        let report = error.report();
        let (found, remedy) =
            report.split_once("\n  try: ").unwrap_or((&report, "check the address"));
        Finding::bad(check, found.replace("\n  because: ", ": "), remedy.replace("\n  ", " "))
    }
}

/// A check that passes, or one that fails and has a remedy.
fn finding(check: &'static str, good: bool, found: impl Into<String>, remedy: &str) -> Finding {
    let found = found.into();
    if good { Finding::good(check, found) } else { Finding::bad(check, found, remedy) }
}

pub(crate) fn run(args: DoctorArgs) -> Result<Outcome, Failure> {
    let Some(address) = &args.address else {
        return print(args.json, &machine::findings(Path::new("/")), report_machine);
    };
    let options = args.connection.options(false)?;
    let slice = Duration::from_secs_f64(args.seconds);
    let mut findings = Vec::new();
    let examined = examine(&address.0, options, slice, &mut findings);
    let done = print(args.json, &findings, |findings, green| {
        report_address(&address.in_short(), findings, green)
    })?;
    Ok(examined.map(|()| done)?)
}

/// Prints the findings: each as a line of JSON, or the lines of `report`.
fn print(
    json: bool,
    findings: &[Finding],
    report: impl FnOnce(&[Finding], &dyn Fn(&str) -> String) -> Vec<String>,
) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    if json {
        findings.iter().try_for_each(|finding| out.json(finding))?
    } else {
        let lines = report(findings, &|text| out.green(text));
        lines.into_iter().try_for_each(|line| out.line(line))?;
    }
    out.end(Outcome::Done)
}

/// Adds the findings about an image.
///
/// # Errors
/// The image cannot be examined further; a finding has the reason.
fn examine(
    image: &[Address],
    connect: ConnectOptions,
    slice: Duration,
    findings: &mut Vec<Finding>,
) -> dlfs::Result<()> {
    let resolved =
        resolve(image).inspect_err(|error| findings.push(Finding::of_error("name", error)))?;
    let addresses = &resolved.sites[0];
    findings.extend(resolved.named.map(|Named { name, .. }| {
        let stands_for = Address::list_to_string(addresses);
        let sites = out::counted(resolved.sites.len() as u64, "site");
        Finding::good("name", format!("{name} stands for {stands_for}, the first of {sites}"))
    }));
    let route = network::reach(addresses, findings);
    // Another path or another site may work, so the examination ends here only if there is none.
    if let Some(finding) = findings.iter().find(|finding| !finding.good)
        && connect.paths.is_empty()
        && resolved.sites.len() == 1
    {
        return Err(dlfs::Error::new(ErrorKind::Refused, finding.found.clone()));
    }
    examine_data(image, addresses, connect, slice, route, findings)
        .inspect_err(|error| findings.push(Finding::of_error("data", error)))
}

/// Measures an image, and adds what it finds. `addresses` are the resolved addresses of `image`.
fn examine_data(
    image: &[Address],
    addresses: &[Address],
    connect: ConnectOptions,
    slice: Duration,
    route: Option<Route>,
    findings: &mut Vec<Finding>,
) -> dlfs::Result<()> {
    for address in addresses {
        if let Address::Pcie(address) = address {
            findings.extend(machine::drive_findings(Path::new("/"), &address.traddr));
        }
    }
    let began = Instant::now();
    let opened = Opened::at(image, connect)?;
    findings.push(opened.finding(began.elapsed()));
    let device = &opened.devices[0];
    let loads = load::measure(device, slice)?;
    findings.extend(loads.findings());
    match route {
        Some(route) => {
            findings.extend(route.findings(loads.single.median, loads.best_bytes_per_s()));
        }
        None => findings.push(network::without_route(addresses)),
    }
    findings.push(network::digests(device));
    findings.push(machine::clock(Path::new("/")));
    if addresses.iter().any(|address| matches!(address, Address::Spdk(_))) {
        findings.extend(machine::findings(Path::new("/")));
    } else if !addresses.iter().any(|address| matches!(address, Address::Pcie(_))) {
        let why = "huge pages, locked memory, VFIO and the IOMMU are for spdk: and pcie: addresses";
        findings.push(Finding::unneeded("SPDK", why));
    }
    findings.push(bound::conclusion(&loads, opened.mean_sample_bytes));
    Ok(())
}

/// The devices at an address, and a description of their content.
struct Opened {
    devices: Vec<Arc<dyn Device>>,
    /// The description of the content.
    content: String,
    /// The mean length of the samples; `None` unless the devices hold a data set with samples.
    mean_sample_bytes: Option<u64>,
}

impl Opened {
    /// Opens the data set, or the namespaces if they hold none.
    fn at(image: &[Address], connect: ConnectOptions) -> dlfs::Result<Opened> {
        let options = OpenOptions { connect: connect.clone(), ..OpenOptions::default() };
        let error = match Image::open(image, &options) {
            Ok(image) => return Ok(Opened::image(&image)),
            Err(error) => error,
        };
        // Namespaces whose data set is missing or damaged are opened again without a data set. Other errors would come
        // again.
        let holds_no_image = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt);
        let devices = match holds_no_image.then(|| open_all(image, &connect)) {
            Some(Ok(devices)) => devices.into_iter().flatten().collect::<Vec<_>>(),
            _ => return Err(error),
        };
        if devices.is_empty() {
            Err(error)
        } else {
            let content = format!("no data set to open ({error})");
            Ok(Opened { devices, content, mean_sample_bytes: None })
        }
    }

    fn image(image: &Image) -> Opened {
        let directory = image.directory();
        let samples = directory.num_samples();
        // One or two thousand evenly spaced lengths suffice for a rough mean.
        let step = (samples / 1000).max(1);
        let lengths = (0..samples).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let (count, bytes) = lengths
            .filter_map(|id| directory.len_bytes(SampleId(id)))
            .fold((0, 0), |(count, bytes), len| (count + 1, bytes + u64::from(len)));
        let mean_sample_bytes = (count > 0).then(|| bytes / count);
        let of = mean_sample_bytes
            .map_or_else(String::new, |len| format!(" of about {}", out::bytes(len)));
        let content = format!("{}{of}", out::counted(samples, "sample"));
        Opened { devices: image.devices().to_vec(), content, mean_sample_bytes }
    }

    fn finding(&self, took: Duration) -> Finding {
        let namespace = self.devices[0].namespace();
        let namespaces = match self.devices.len() {
            1 => "1 namespace".to_owned(),
            many => format!(
                "{}, of which the first is measured",
                out::counted(many as u64, "namespace")
            ),
        };
        let found = format!(
            "{}; opened in {}; {namespaces}, with {} in blocks of {}, engine {}",
            self.content,
            out::duration(took),
            out::bytes(namespace.len_bytes()),
            out::binary_size(namespace.block_len_bytes.into()),
            namespace.engine,
        );
        Finding::good("data", found)
    }
}

/// The report about this machine as lines. The machine is always called healthy: all that is examined is optional.
fn report_machine(findings: &[Finding], green: &dyn Fn(&str) -> String) -> Vec<String> {
    let absent = findings.iter().filter(|finding| !finding.good).count();
    let mut lines = vec![format!(
        "{}: image files, block devices, folders, objects of stores and nvme-tcp:// addresses work as this machine is",
        green("healthy")
    )];
    if absent > 0 {
        lines.push(format!(
            "{absent} optional things are not present; only spdk: and pcie: addresses use them:"
        ));
    }
    for finding in findings {
        let mark = if finding.good { green("present") } else { "optional, not present".to_owned() };
        lines.push(format!("  {:<14} {mark}: {}", finding.check, finding.found));
        lines.extend(finding.remedy.as_ref().map(|remedy| format!("  {:<14} {remedy}", "")));
    }
    lines
}

/// The report about an address as lines.
fn report_address(
    address: &str,
    findings: &[Finding],
    green: &dyn Fn(&str) -> String,
) -> Vec<String> {
    let mut lines = vec![address.to_owned()];
    for finding in findings {
        let mark = match (finding.good, finding.needed) {
            (true, true) => green("ok  "),
            (true, false) => "-   ".to_owned(),
            (false, _) => "look".to_owned(),
        };
        lines.push(format!("  {mark}  {:<16} {}", finding.check, finding.found));
        lines.extend(
            finding.remedy.as_ref().map(|remedy| format!("  {:<4}  {:<16} {remedy}", "", "")),
        );
    }
    lines
}

/// Parses the duration of a measurement.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds from 0.05 to 60".to_owned()),
    }
}

const EXAMPLES: &str = "\
Examples:
  dlfs doctor                                           what SPDK and drives would need of this machine
  dlfs doctor pcie:0000:5e:00.0                         what this drive needs, and its speed
  dlfs doctor nvme-tcp://HOST/nqn.2026-11.io.dlfs:train what bounds reading from there
  dlfs doctor train.dlfs --json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_optional_parts_is_healthy_and_told_what_each_is_for() {
        let empty = tempfile::tempdir().unwrap();
        let found = machine::findings(empty.path());
        let lines = report_machine(&found, &str::to_owned);
        assert!(lines[0].starts_with("healthy: "), "{lines:#?}");
        assert!(lines[1].contains("optional things are not present"), "{lines:#?}");
        let text = lines.join("\n");
        assert!(!text.contains("lack") && !text.contains("mend"), "{text}");
        let absent: Vec<_> = found.iter().filter(|finding| !finding.good).collect();
        assert!(
            absent.len() > 3 && absent.iter().all(|f| f.remedy.as_ref().unwrap().contains("for "))
        );
    }

    #[test]
    fn what_is_fine_is_green_and_what_does_not_count_is_said_to_be_not_needed() {
        let findings = [
            Finding::good("clock", "3 GHz".to_owned()),
            Finding::bad("MTU", "1500 bytes".to_owned(), "larger frames"),
            Finding::unneeded("SPDK", "only spdk: addresses use it"),
        ];
        let lines = report_address("a.dlfs", &findings, &|text| format!("<{text}>"));
        let expected = [
            "a.dlfs",
            "  <ok  >  clock            3 GHz",
            "  look  MTU              1500 bytes",
            "                         larger frames",
            "  -     SPDK             not needed for what you do: only spdk: addresses use it",
        ];
        assert_eq!(lines, expected);
        let [fine, _, unneeded] = findings.map(|f| serde_json::to_value(f).unwrap());
        assert!(fine.get("needed").is_none());
        assert_eq!((&unneeded["needed"], &unneeded["good"]), (&false.into(), &true.into()));
    }
}
