//! Shared by the benches: options, the machine's name, pinning, processor time, side processes.
#![allow(dead_code, unreachable_pub)] // a module of each bench, which uses a part of it

pub mod files;
pub mod loaded;
pub mod random_reads;
pub mod raw;
pub mod results;
pub mod snapshot;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

pub use results::machine;

/// The options of a bench: `--name VALUE`, each with a default. An option with the default `no` is
/// a flag without a value.
pub struct Options(BTreeMap<&'static str, String>);

impl Options {
    /// Parses the command line. `--help` prints `usage` and the defaults and ends the process; an
    /// unknown option does the same with status 2.
    pub fn parse(usage: &str, defaults: &[(&'static str, &str)]) -> Options {
        let mut options: BTreeMap<&'static str, String> =
            defaults.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        let mut arguments = std::env::args().skip(1).filter(|a| a != "--bench"); // cargo's own
        while let Some(argument) = arguments.next() {
            let name = argument.strip_prefix("--").unwrap_or_default();
            let is_flag = defaults.contains(&(name, "no"));
            let value = if is_flag { Some("yes".to_owned()) } else { arguments.next() };
            match (options.get_mut(name), value) {
                (Some(option), Some(value)) => *option = value,
                _ if name == "help" => {
                    println!("{usage}\n\noptions, with their defaults:");
                    defaults.iter().for_each(|(name, value)| println!("  --{name} '{value}'"));
                    std::process::exit(0);
                }
                _ => {
                    eprintln!("'{argument}' is no option with a value; see --help");
                    std::process::exit(2);
                }
            }
        }
        Options(options)
    }

    /// The value of `name`.
    pub fn text(&self, name: &str) -> &str {
        &self.0[name]
    }

    /// Returns whether the flag `name` was given.
    pub fn is_set(&self, name: &str) -> bool {
        self.text(name) == "yes"
    }

    /// The value of `name` as a number; the suffixes `K`, `M` and `G` are powers of 1,024.
    pub fn number(&self, name: &str) -> u64 {
        parse_number(self.text(name)).unwrap_or_else(|| {
            eprintln!("--{name} '{}' is no number", self.text(name));
            std::process::exit(2);
        })
    }
}

fn parse_number(text: &str) -> Option<u64> {
    let shift = match text.chars().last()? {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => 0,
    };
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The default congestion control of sockets.
pub fn congestion_control() -> String {
    let path = "/proc/sys/net/ipv4/tcp_congestion_control";
    std::fs::read_to_string(path).map_or("unknown".into(), |name| name.trim().to_owned())
}

/// The processors that this process may run on.
pub fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("the affinity of this thread");
    (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}

/// Binds this thread, and the threads and processes that it starts from now on, to the `nth` of the
/// processors that it may run on, modulo their number.
///
/// Each side of a bench does this itself: a process that was started by a bound one can use only
/// that processor.
pub fn pin(nth: usize) {
    pin_to(nth..nth + 1);
}

/// Like [`pin`], to several of the processors.
pub fn pin_to(nths: Range<usize>) {
    let cpus = cpus();
    let mut set = CpuSet::new();
    nths.for_each(|nth| set.set(cpus[nth % cpus.len()]));
    sched_setaffinity(None, &set).expect("some of the processors that were allowed");
}

/// Binds this thread, and those that it starts, to all processors but the one that [`pin`] takes for `nth`, if there is
/// another.
pub fn pin_off(nth: usize) {
    let cpus = cpus();
    if cpus.len() == 1 {
        return;
    }
    let mut set = CpuSet::new();
    let other = cpus[nth % cpus.len()];
    cpus.iter().filter(|cpu| **cpu != other).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).expect("processors that were allowed");
}

/// Processor time of this process so far, in user and kernel mode together.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Wall and processor time of a piece of work.
pub struct Stopwatch {
    start: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch { start: Instant::now(), cpu: cpu_time() }
    }

    /// Seconds of wall and of processor time since the start.
    pub fn seconds(&self) -> (f64, f64) {
        (self.start.elapsed().as_secs_f64(), (cpu_time() - self.cpu).as_secs_f64())
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The other half of a bench: this program again, as its own process, so that the processor time of
/// each side is separate. This side reads its standard output; it ends when its standard input
/// closes.
pub struct Side {
    child: Child,
    output: std::io::BufReader<ChildStdout>,
    is_abandoned: bool,
}

impl Side {
    /// Starts this program with `arguments`.
    pub fn start<A: AsRef<std::ffi::OsStr>>(arguments: &[A]) -> Side {
        Side::run(Command::new(this_program()).args(arguments))
    }

    /// Like [`Side::start`], in the network namespace `machine`. Needs root.
    pub fn start_in<A: AsRef<std::ffi::OsStr>>(machine: &str, arguments: &[A]) -> Side {
        let mut command = Command::new("ip");
        Side::run(command.args(["netns", "exec", machine]).arg(this_program()).args(arguments))
    }

    /// Another program that ends when its standard input closes.
    pub fn run(command: &mut Command) -> Side {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs a second time");
        let output = std::io::BufReader::new(child.stdout.take().expect("piped above"));
        Side { child, output, is_abandoned: false }
    }

    /// The next line that it prints; an error if it ends without one.
    pub fn try_line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.output, &mut line)?;
        if !line.ends_with('\n') {
            return Err(std::io::Error::other("the other side of the bench has died"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Like [`Side::try_line`], but a bench that cannot continue without the line panics.
    pub fn line(&mut self) -> String {
        self.try_line().expect("a line of the other side")
    }

    /// Tells it to continue: an empty line on its standard input.
    pub fn go_on(&mut self) {
        self.tell("");
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("piped at the start");
        writeln!(input, "{line}").expect("the other side reads");
    }

    /// Drops it without checking its end: it has failed, and the caller reports that.
    pub fn abandon(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        self.is_abandoned = true;
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that it has used so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds_of(self.pid())
    }
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("the path of this program")
}

/// Processor time, user and system, that all threads of the process `pid` have used so far.
pub fn cpu_seconds_of(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    tasks.flatten().map(|task| schedstat_seconds(&task.path().join("schedstat"))).sum()
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // tells it to end
        let ended = self.child.wait();
        let is_well = ended.is_ok_and(|status| status.success());
        let is_expected = self.is_abandoned || std::thread::panicking();
        assert!(is_well || is_expected, "the other side of the bench failed");
    }
}

fn schedstat_seconds(path: &std::path::Path) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|nanos| nanos.parse::<u64>().ok());
    nanos.unwrap_or_default() as f64 / 1e9
}

/// Blocks until the standard input of this process closes: the other side is done.
pub fn wait_for_end_of_input() {
    let mut rest = Vec::new();
    // An error is an end, too.
    let _ = std::io::Read::read_to_end(&mut std::io::stdin(), &mut rest);
}
