//! Signals: SIGINT ends a run with its figures, SIGUSR1 asks for them.

use serde_json::Value;

use crate::common::{Reporting, bench};

fn started(more: &[&str]) -> Reporting {
    let mut command = bench();
    command.args(["--name=s", "--ioengine=null", "--size=1g", "--rw=randread", "--time_based"]);
    command.args(["--runtime=60", "--rate_iops=1000", "--eta=never"]).args(more);
    Reporting::start(command)
}

fn total_ios(figures: &Value) -> u64 {
    figures["jobs"][0]["read"]["total_ios"].as_u64().unwrap_or(0)
}

#[test]
fn an_interrupted_run_prints_what_it_has() {
    let mut running = started(&["--output-format=json"]);
    running.report_until(|figures| total_ios(figures) > 0);
    let figures = running.interrupt();
    assert!(total_ios(&figures) > 0);
    assert!(figures["jobs"][0]["read"]["runtime"].as_u64().unwrap() < 60_000);
}

#[test]
fn figures_so_far_are_printed_on_request_and_the_run_goes_on() {
    let mut running = started(&["--output-format=json"]);
    let first = running.report_until(|figures| total_ios(figures) > 0);
    let second = running.report_until(|figures| total_ios(figures) > total_ios(&first));
    let last = running.interrupt();
    assert!(total_ios(&last) >= total_ios(&second));
}

#[test]
fn figures_come_by_the_clock_when_that_is_asked_for() {
    let mut running = started(&["--output-format=json", "--status-interval=300ms"]);
    running.next_figures();
    running.next_figures();
    running.interrupt();
}
