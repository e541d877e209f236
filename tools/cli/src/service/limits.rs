//! Limits of hosts' use: options of `dlfs serve`, and the table `limits` of a configuration file.

use std::time::Duration;

use clap::{Args, Parser};

use dlfs::target::TargetOptions;
use dlfs::units::parse_size;

/// Limits on what hosts may use. The defaults suffice for a thousand nodes of 8 ranks.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// The most controllers; a process needs one for each image that it has open [default: 16384]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    max_controllers: Option<u16>,
    /// The most controllers per address; hosts behind a NAT router count as one address [default:
    /// 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_controllers_per_address: Option<u16>,
    /// The most controllers of the discovery service [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_discovery_controllers: Option<u16>,
    /// The most of those per address [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_discovery_controllers_per_address: Option<u16>,
    /// The most connections per poller; fewer if the limit of open files is lower [default: 32768]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: Option<u16>,
    /// The most of those per address [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections_per_address: Option<u16>,
    /// The most I/O queues per controller [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_io_queues: Option<u16>,
    /// The most entries per queue; hosts read this limit and stay within it [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(32..))]
    max_queue_entries: Option<u16>,
    /// Memory per poller for data in flight; one connection gets at most a quarter [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    buffer_memory: Option<u64>,
    /// In seconds: a controller that is silent for twice this time is replaced if its place is
    /// needed [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_keep_alive: Option<u32>,
    /// Seconds that a connection may take to become a queue [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connect_timeout: Option<u32>,
    /// Seconds that a host may take to receive 64 KiB of responses, or to send requested data; 1
    /// while others wait for memory [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    send_timeout: Option<u32>,
}

impl LimitArgs {
    /// Applies the given limits to `options`.
    pub(crate) fn apply(&self, options: &mut TargetOptions) {
        fn set<T>(option: &mut T, value: Option<impl Into<T>>) {
            if let Some(value) = value {
                *option = value.into();
            }
        }
        let seconds = |value: Option<u32>| value.map(|value| Duration::from_secs(value.into()));
        let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        set(&mut options.max_controllers, self.max_controllers);
        set(&mut options.max_controllers_per_address, self.max_controllers_per_address);
        set(&mut options.max_discovery_controllers, self.max_discovery_controllers);
        let per_address = &mut options.max_discovery_controllers_per_address;
        set(per_address, self.max_discovery_controllers_per_address);
        set(&mut options.max_connections, self.max_connections);
        set(&mut options.max_connections_per_address, self.max_connections_per_address);
        set(&mut options.max_io_queues, self.max_io_queues);
        set(&mut options.max_queue_entries, self.max_queue_entries);
        set(&mut options.buffer_bytes, self.buffer_memory.map(bytes));
        set(&mut options.max_keep_alive, seconds(self.max_keep_alive));
        set(&mut options.connect_timeout, seconds(self.connect_timeout));
        set(&mut options.send_timeout, seconds(self.send_timeout));
    }
}

#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Table<T: Args> {
    #[command(flatten)]
    args: T,
}

/// The options in the table `name`, whose keys are the options' names with underscores.
pub(crate) fn parse_table<T: Args>(name: &str, table: &toml::Table) -> Result<T, String> {
    let mut arguments = Vec::new();
    for (key, value) in table {
        let value = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            other => return Err(format!("{name}.{key} is a {}", other.type_str())),
        };
        arguments.push(format!("--{}={value}", key.replace('_', "-")));
    }
    let table = Table::try_parse_from(arguments).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        format!("in the table {name}: {}", first.trim_start_matches("error: "))
    })?;
    Ok(table.args)
}

/// Parses a memory size.
fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let is_memory = (1 << 20..=1 << 40).contains(&bytes);
    if is_memory { Ok(bytes) } else { Err("1M to 1T".to_owned()) }
}

#[cfg(test)]
mod tests {
    use dlfs::nvme::Nqn;

    use super::*;

    #[test]
    fn every_limit_reaches_the_target_and_what_is_not_given_stays() {
        let apply = |arguments: &str| {
            let mut options = TargetOptions::new(Nqn::new("nqn.x").unwrap());
            let table = Table::<LimitArgs>::parse_from(arguments.split_whitespace());
            table.args.apply(&mut options);
            options
        };
        let before = TargetOptions::new(Nqn::new("nqn.x").unwrap());
        assert_eq!(format!("{:?}", apply("")), format!("{before:?}"));
        let seconds = Duration::from_secs;
        let expected = TargetOptions {
            max_controllers: 1,
            max_controllers_per_address: 2,
            max_discovery_controllers: 3,
            max_discovery_controllers_per_address: 4,
            max_connections: 5,
            max_connections_per_address: 6,
            max_io_queues: 7,
            max_queue_entries: 80,
            buffer_bytes: 9 << 20,
            max_keep_alive: seconds(10),
            connect_timeout: seconds(11),
            send_timeout: seconds(12),
            ..before
        };
        let found = apply(
            "--max-controllers 1 --max-controllers-per-address 2 --max-discovery-controllers 3 \
             --max-discovery-controllers-per-address 4 --max-connections 5 \
             --max-connections-per-address 6 --max-io-queues 7 --max-queue-entries 80 \
             --buffer-memory 9M --max-keep-alive 10 --connect-timeout 11 --send-timeout 12",
        );
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn a_table_has_the_names_and_ranges_of_the_options() {
        let limits = |text: &str| parse_table::<LimitArgs>("limits", &text.parse().unwrap());
        let found = limits("max_io_queues = 7\nbuffer_memory = \"9M\"").unwrap();
        assert_eq!((found.max_io_queues, found.buffer_memory), (Some(7), Some(9 << 20)));
        for (wrong, named) in [
            ("max_io_quees = 7", "max-io-quees"),
            ("max_io_queues = 0", "0"),
            ("buffer_memory = \"x\"", "x"),
            ("max_io_queues = true", "limits.max_io_queues is a boolean"),
        ] {
            let error = limits(wrong).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
