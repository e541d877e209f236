//! Network namespaces on one bridge, one for each machine of a cluster, and the limit of the origin's link.

use std::process::Command;

/// A bridge with one network namespace a machine. Removes everything when dropped.
pub(crate) struct Network {
    id: u32,
    machines: Vec<String>,
}

impl Network {
    /// `num` machines; the link of number 0, the origin's, sends at most `megabytes_s`.
    ///
    /// # Errors
    /// The command that failed, and what it said: mostly that this is not root.
    pub(crate) fn new(num: usize, megabytes_s: u64) -> Result<Network, String> {
        let id = std::process::id();
        let mut network = Network { id, machines: Vec::new() };
        let bridge = network.bridge();
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["link", "set", &bridge, "up"])?;
        for number in 0..num {
            network.add_machine(number)?;
        }
        let rate = format!("{}mbit", megabytes_s * 8);
        // A burst of 5 ms: a timer's tick loses nothing.
        let burst = format!("{}kb", (megabytes_s * 5).max(64));
        let limit = ["qdisc", "add", "dev", "eth0", "root", "tbf", "rate", &rate];
        let depth = ["burst", &burst, "latency", "50ms"];
        let tc = ["netns", "exec", &network.machines[0], "tc"];
        ip(&[&tc[..], &limit[..], &depth[..]].concat())?;
        Ok(network)
    }

    fn add_machine(&mut self, number: usize) -> Result<(), String> {
        let machine = format!("dlfs{}n{number}", self.id);
        ip(&["netns", "add", &machine])?;
        self.machines.push(machine.clone());
        let link = self.link(number);
        let peer = ["peer", "name", "eth0", "netns", &machine];
        ip(&[&["link", "add", &link, "type", "veth"][..], &peer[..]].concat())?;
        ip(&["link", "set", &link, "master", &self.bridge()])?;
        ip(&["link", "set", &link, "up"])?;
        let address = format!("{}/16", Network::address(number));
        ip(&["-n", &machine, "addr", "add", &address, "dev", "eth0"])?;
        ip(&["-n", &machine, "link", "set", "eth0", "up"])?;
        ip(&["-n", &machine, "link", "set", "lo", "up"])
    }

    /// The network namespace of machine `number`.
    pub(crate) fn machine(&self, number: usize) -> &str {
        &self.machines[number]
    }

    /// The address of machine `number`.
    pub(crate) fn address(number: usize) -> String {
        format!("10.213.{}.{}", (number + 1) >> 8, (number + 1) & 255)
    }

    /// Takes the link of machine `number` down.
    pub(crate) fn take_down(&self, number: usize) {
        ip(&["link", "set", &self.link(number), "down"]).expect("a link that is there");
    }

    /// Takes the link of machine `number` up again.
    pub(crate) fn take_up(&self, number: usize) {
        ip(&["link", "set", &self.link(number), "up"]).expect("a link that is there");
    }

    fn bridge(&self) -> String {
        format!("db{}", self.id)
    }

    /// The bridge's end of a machine's link.
    fn link(&self, number: usize) -> String {
        format!("d{}v{number}", self.id)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A link would go with its namespace, but later, and the next network has links of the same names.
        // Nothing can be done about an error.
        for (number, machine) in self.machines.iter().enumerate() {
            let _ = ip(&["link", "del", &self.link(number)]);
            let _ = ip(&["netns", "del", machine]);
        }
        let _ = ip(&["link", "del", &self.bridge()]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let command = || format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("{}: {error}", command()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", command(), String::from_utf8_lossy(&output.stderr).trim()))
}
