//! What loopback TCP carries between two processes with the messages of NVMe reads, and iperf3 beside.

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use support::raw::{self, Rate};
use support::{Options, Side};

const USAGE: &str = "cargo bench --bench raw_tcp -- [--seconds S] [--rounds N]

Two processes, each pinned to a processor of its own: one streams messages from a region of --region
bytes, the other receives them into --pool bytes. iperf3 with the same message size is run beside it
if it is installed.";

fn main() {
    let options = Options::parse(
        USAGE,
        &[
            ("region", "1G"),
            ("pool", "16M"),
            ("seconds", "2"),
            ("rounds", "3"),
            ("side", ""),
            ("len", "128K"),
            ("burst", "32"),
        ],
    );
    let number = |name| options.number(name) as usize;
    if options.text("side") == "sender" {
        std::thread::spawn(|| {
            support::wait_for_end_of_input();
            std::process::exit(0);
        });
        support::pin(1);
        return raw::send_forever(number("region"), number("len"), number("burst"));
    }
    println!("{}", support::machine());
    support::pin(0);
    println!(
        "{:<10}{:>9}{:>7}{:>12}{:>10}{:>22}",
        "", "bytes", "burst", "messages/s", "MB/s", "CPU s/GB recv + send"
    );
    for (len, burst) in [(131_072, 32), (4096, 32), (4096, 128)] {
        for _ in 0..options.number("rounds") {
            let rate = round(&options, len, burst);
            let Rate { messages_s, mb_s, cpu_s_gb: (receive, send) } = rate;
            println!(
                "{:<10}{len:>9}{burst:>7}{messages_s:>12.0}{mb_s:>10.0}{receive:>14.3}{send:>8.3}",
                "raw TCP"
            );
        }
        match iperf3(len, options.number("seconds")) {
            Some(mb_s) => println!("{:<10}{len:>9}{:>7}{:>12}{mb_s:>10.0}", "iperf3", "", ""),
            None => println!("iperf3 is not installed or failed"),
        }
    }
}

fn round(options: &Options, len: usize, burst: usize) -> Rate {
    let (len_text, burst) = (len.to_string(), burst.to_string());
    let region = options.text("region");
    let arguments = ["--side", "sender", "--region", region, "--len", &len_text, "--burst", &burst];
    let mut sender = Side::start(&arguments);
    let port = sender.line().parse().expect("a port");
    let limit = Duration::from_secs(options.number("seconds"));
    raw::receive(port, options.number("pool") as usize, len, limit, &sender).expect("loopback")
}

/// MB/s of iperf3, its two sides pinned as ours are.
fn iperf3(len: usize, seconds: u64) -> Option<f64> {
    let port = "5211";
    let mut server = Command::new("iperf3")
        .args(["-s", "-1", "-p", port, "-A", "0"])
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    std::thread::sleep(Duration::from_millis(300)); // it does not say when it listens
    let (seconds, len) = (seconds.to_string(), len.to_string());
    let output = Command::new("iperf3")
        .args(["-c", "127.0.0.1", "-p", port, "-t", &seconds, "-l", &len, "-A", "1", "-J"])
        .output();
    let report =
        output.ok().and_then(|o| serde_json::from_slice::<serde_json::Value>(&o.stdout).ok());
    let bits_s =
        report.and_then(|report| report["end"]["sum_received"]["bits_per_second"].as_f64());
    if bits_s.is_none() {
        let _ = server.kill(); // it may have ended
    }
    let _ = server.wait(); // whatever it says
    bits_s.map(|bits_s| bits_s / 8e6)
}
