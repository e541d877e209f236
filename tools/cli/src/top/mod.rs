//! `dlfs top`: the current activity of targets and jobs, from the metrics that they serve.
//!
//! Pages of metrics go in, tables come out:
//!
//! 1. `fleet.rs`: threads ask the addresses for pages.
//! 2. `page.rs` parses a page, and compares two of one address.
//! 3. `report.rs` makes the rows of the tables, whose columns `table.rs` defines. Read `table.rs` first.
//! 4. `layout.rs` makes lines of the rows. [`once`] prints them; `draw.rs` shows them on a terminal, with the choices
//!    that the user has made by keys.
//!
//! Everything but this file and the threads of `fleet.rs` is pure: time and keys are arguments. Every
//! answer is limited in size and made harmless for the terminal; a slow address does not delay the others.
//!
//! The terminal is in raw mode and on its alternate screen while the page is shown. It is restored at the end, also
//! after a panic or a signal.

mod draw;
mod fleet;
mod layout;
mod page;
mod report;
mod table;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use dlfs::{Error, ErrorKind};

use self::draw::{View, draw};
use self::fleet::{Answer, Fleet, MetricsAddress};
use self::report::Report;
use self::table::SECTIONS;
use crate::exit::{Failure, GRACE, Outcome, Stop};
use crate::out::Out;

/// Show what targets and jobs do now, by the metrics that they serve
///
/// Asks each address for its metrics every few seconds and shows rates, latencies, waits, hosts, tiers and nodes. An
/// address that does not answer delays no other, and comes back by itself.
///
/// Where standard input or output is no terminal, and with --once or --json, it prints the page once, after one
/// interval. The exit code is then 1 if an address did not answer, else 0.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Addresses that serve metrics (--metrics, dlfs.metrics.serve): HOST:PORT or http://HOST:PORT/metrics
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<MetricsAddress>,
    /// How often the addresses are asked
    #[arg(long, short = 'i', value_name = "SECONDS", default_value_t = 2.0, value_parser = interval)]
    interval: f64,
    /// Print the page as text once, after one interval
    #[arg(long)]
    once: bool,
    /// Print the page as one line of JSON once, after one interval
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: TopArgs) -> Result<Outcome, Failure> {
    let TopArgs { addresses, interval, json, .. } = args;
    let interval = Duration::from_secs_f64(interval);
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if args.once || json || is_dumb || !has_terminal {
        return once(addresses, interval, json);
    }
    show(addresses, interval)
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds from 0.1 to 3600".to_owned()),
    }
}

/// Asks all addresses twice, `interval` apart, and prints the difference: as text, or as one JSON value.
///
/// `Incomplete`: an address did not answer, or not with metrics of dlfs; the report says why.
fn once(
    addresses: Vec<MetricsAddress>,
    interval: Duration,
    json: bool,
) -> Result<Outcome, Failure> {
    let report = measure(addresses, interval)?;
    Out::answer(json, &report.to_json(), |out| print(out, &report))?;
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}

/// Prints the tables that have rows.
fn print(out: &mut Out, report: &Report) -> Result<(), Failure> {
    let tables = SECTIONS.iter().zip(&report.rows).filter(|(_, rows)| !rows.is_empty());
    for (nth, (section, rows)) in tables.enumerate() {
        if nth > 0 {
            out.line("")?;
        }
        for line in layout::lines(section, &layout::sorted(rows, None), usize::MAX / 2, None) {
            out.line(line.to_string().trim_end())?;
        }
    }
    Ok(())
}

/// Asks all addresses twice, and reports.
fn measure(addresses: Vec<MetricsAddress>, interval: Duration) -> Result<Report, Failure> {
    let mut fleet = Fleet::new(&addresses, interval, Instant::now());
    let answers = fleet::start(addresses, interval)?;
    // Two answers take an interval, plus at most the time limit of each answer.
    let until = Instant::now() + interval + fleet::TIME_LIMIT * 2;
    while !fleet.is_measured() {
        let left = until.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok(answer) => fleet.take(answer),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(fleet.report(Instant::now()))
}

const EXAMPLES: &str = "\
Keys: q quits, Tab and 1 to 6 choose a section, s the order, p pauses, ? explains the rest.

Examples:
  dlfs top 127.0.0.1:9410                               one target
  dlfs top node{1..8}:9410 trainer:9411                 targets and a job
  dlfs top 127.0.0.1:9410 --json | jq .loaders          for programs";

/// Shows the page until the user quits.
///
/// # Errors
/// There is no terminal for keys, or the terminal has gone.
fn show(addresses: Vec<MetricsAddress>, interval: Duration) -> Result<Outcome, Failure> {
    let fleet = Fleet::new(&addresses, interval, Instant::now());
    let answers = fleet::start(addresses, interval)?;
    let stop = Stop::on_signals(GRACE, || {
        ratatui::restore();
        Outcome::Done
    })?;
    let shown = on_terminal(|terminal| show_on(terminal, fleet, &answers, &stop));
    shown.map_err(|error| {
        let failed = Error::new(ErrorKind::Io, "the terminal cannot be used").source(error);
        failed.hint("--once prints the page as text")
    })?;
    Ok(Outcome::Done)
}

/// Runs `work` with the terminal in raw mode and on its alternate screen. A panic restores the terminal
/// before it prints its message.
fn on_terminal(work: impl FnOnce(DefaultTerminal) -> io::Result<()>) -> io::Result<()> {
    let worked = ratatui::try_init().and_then(work);
    ratatui::restore();
    worked
}

/// Shows the page on `terminal` until the user quits or a signal arrives. `answers` come from the threads that ask the
/// addresses of `fleet`.
fn show_on(
    mut terminal: DefaultTerminal,
    mut fleet: Fleet,
    answers: &Receiver<Answer>,
    stop: &Stop,
) -> io::Result<()> {
    let has_colour = std::env::var_os("NO_COLOR").is_none();
    let mut view = View::default();
    let mut report = Report::default(); // while paused, that of the moment of the pause
    let mut is_old = true;
    let mut drawn = Instant::now();
    while !stop.is_set() {
        for answer in answers.try_iter() {
            fleet.take(answer);
            is_old = true;
        }
        // Also without an answer, to show how long an address has been silent, and a changed size of the screen.
        if is_old || drawn.elapsed() >= REDRAW {
            if !view.is_paused {
                report = fleet.report(Instant::now());
            }
            terminal.draw(|frame| draw(frame, &report, &mut view, has_colour))?;
            (is_old, drawn) = (false, Instant::now());
        }
        is_old |= wait_for_input(ANSWER_CHECK_INTERVAL)?;
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && view.quits_at(key)
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Waits for keys or a signal, such as a resize, up to `limit`, which is below a second; returns whether there is one.
///
/// # Errors
/// The terminal has gone: Crossterm would read its end of file for ever.
fn wait_for_input(limit: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut fds, Some(&limit)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    let found = fds[0].revents();
    if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "it has gone"));
    }
    Ok(found.contains(PollFlags::IN))
}

/// Interval of checks for answers; a key is handled at once.
const ANSWER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time between two drawings.
const REDRAW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::tcgetattr;

    use super::*;

    /// Runs itself on a pseudoterminal, where it panics.
    #[test]
    fn a_panic_leaves_the_page_before_it_says_why() {
        if std::env::var_os(PANIC).is_some() {
            let _ = on_terminal(|_| panic!("in the middle"));
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let main = openpt(flags).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let side = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let before = tcgetattr(&main).unwrap().local_modes;
        let end = || Stdio::from(side.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = std::thread::current().name().unwrap().to_owned();
        command.args(["--exact", &test, "--nocapture"]).env(PANIC, "1");
        let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        drop((command, side));
        let mut main = File::from(main);
        let mut text = Vec::new();
        let mut bytes = [0; 4096];
        // The read fails with EIO once no process has the other end open.
        while let Ok(len @ 1..) = main.read(&mut bytes) {
            text.extend_from_slice(&bytes[..len]);
        }
        assert!(!child.wait().unwrap().success());
        let text = String::from_utf8_lossy(&text);
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?}: {text}"));
        let entered = place("\x1b[?1049h");
        let left = place("\x1b[?1049l");
        assert!(entered < left && left < place("in the middle"), "{text}");
        assert_eq!(tcgetattr(&main).unwrap().local_modes, before, "raw mode is over");
    }

    const PANIC: &str = "DLFS_TEST_PANIC_ON_A_TERMINAL";
}
