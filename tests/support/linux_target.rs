//! Linux's own NVMe/TCP target, booted in QEMU.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use dlfs::Result;
use dlfs::address::{Address, TcpAddress};
use dlfs::nvme::Nqn;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{ConnectOptions, open};
use tempfile::NamedTempFile;

/// The size of each image.
pub const LEN: usize = 64 << 20;

/// A Linux guest that serves an image; it ends when this is dropped.
pub struct Linux {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Namespace 1 of each port.
    pub addresses: Vec<Address>,
    /// Each namespace.
    pub images: Vec<NamedTempFile>,
}

impl Linux {
    /// Boots a guest that serves a new image of zeroes on so many ports; `None`: not possible here,
    /// and the reason was printed.
    pub fn boot(num_ports: usize) -> Option<Linux> {
        Linux::boot_with(num_ports, 1, &[])
    }

    /// The same with so many images, and more options of the script.
    pub fn boot_with(num_ports: usize, num_images: usize, options: &[&str]) -> Option<Linux> {
        if !is_there("our host against Linux's target") {
            return None;
        }
        let images: Vec<NamedTempFile> =
            (0..num_images).map(|_| NamedTempFile::new().unwrap()).collect();
        let script: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "tests", "interop", "linux-nvmet"].iter().collect();
        let mut command = Command::new(script);
        command.args(["--stdin", "--timeout", "500"]).args(options);
        command.args(["--port", "0"].repeat(num_ports));
        for image in &images {
            image.as_file().set_len(LEN as u64).unwrap();
            command.arg("--image").arg(image.path());
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the lab's script");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(std::io::Result::ok) {
                // Nobody receives once the test is over.
                let _ = sender.send(line);
            }
        });
        let commands = child.stdin.take();
        let mut linux = Linux { child, commands, lines, addresses: Vec::new(), images };
        linux.addresses = linux.wait_ready();
        Some(linux)
    }

    /// The addresses in the line `READY 127.0.0.1:PORT[,127.0.0.1:PORT]... NQN`.
    fn wait_ready(&self) -> Vec<Address> {
        let line = self.wait_line(|line| line.starts_with("READY"));
        let mut words = line.split_whitespace().skip(1);
        let listeners = words.next().expect("where");
        let nqn = words.next().expect("what");
        let address = |listener: &str| {
            let (traddr, port) = listener.split_once(':').expect("host:port");
            Address::Tcp(TcpAddress {
                traddr: traddr.to_owned(),
                trsvcid: port.parse().expect("a port"),
                subnqn: Nqn::new(nqn).unwrap(),
                nsid: None,
            })
        };
        listeners.split(',').map(address).collect()
    }

    fn wait_line(&self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            match self.lines.recv_timeout(Duration::from_secs(300)) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => eprintln!("linux-nvmet: {line}"),
                Err(error) => panic!("the guest says nothing: {error}"),
            }
        }
    }

    pub fn command(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("open until dropped");
        writeln!(commands, "{command}").unwrap();
        let answer = self.wait_line(|line| line.starts_with("OK") || line.starts_with("ERR"));
        assert!(answer.starts_with("OK"), "{command}: {answer}");
    }

    pub fn connect(&self, options: &ConnectOptions) -> Result<Blocking> {
        let device = open(&self.addresses[0], options)?;
        assert_eq!(device.namespace().len_bytes(), LEN as u64);
        let mut blocking = Blocking::new(device.queue_pair()?)?;
        blocking.set_deadline(Duration::from_secs(120));
        Ok(blocking)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        drop(self.commands.take()); // the end of its input stops the script
        let _ = self.child.wait(); // it is ours, so there is something to wait for
    }
}

/// Returns whether Linux can be booted here; prints the reason if not.
pub fn is_there(what: &str) -> bool {
    if std::env::var_os("DLFS_INTEROP").is_none_or(|value| value != "1") {
        eprintln!("SKIPPED: {what} (set DLFS_INTEROP=1 to run it)");
        return false;
    }
    let found = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: {what}: qemu-system-x86_64 is not installed");
    }
    found
}

/// An emulated guest on a busy machine is slow: the limit of the lab's notes.
pub fn long_timeouts() -> ConnectOptions {
    ConnectOptions {
        writable: true,
        io_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(60),
        keep_alive_tmo: Duration::from_secs(60),
        ..ConnectOptions::default()
    }
}
