//! Two levels of help: `-h` and `--help`, both in two columns, and both without the rare options, which are in the
//! manual pages (`dlfs man`). `--help` has the long description, `-h` the short one. Of the options of `dlfs read`,
//! which has many, `-h` shows only the most used.

use clap::{Arg, ArgAction, Command};

/// The command with the help of this level; its subcommands too.
pub(crate) fn of_level(command: Command, is_brief: bool) -> Command {
    let is_read = command.get_name() == "read";
    let command = command
        .disable_help_flag(true)
        .arg(Arg::new("help").short('h').long("help").action(ArgAction::HelpShort))
        .mut_arg("help", |arg| {
            arg.help("Print help; -h: less, `dlfs man`: all options").display_order(999)
        })
        .mut_args(|arg| if is_brief { brief(arg, is_read) } else { full(arg, is_read) })
        .mut_subcommands(|below| of_level(below, is_brief));
    let about = command.get_long_about().cloned();
    match (is_brief, about) {
        (true, _) if is_read => command.after_help(MORE),
        (false, Some(about)) => command.about(about),
        _ => command,
    }
}

/// The option in `-h`. Of `dlfs read`, only the most used options are shown, each with the first clause of its help.
fn brief(arg: Arg, is_read: bool) -> Arg {
    if !is_read {
        return full(arg, is_read);
    }
    let is_common = arg.is_positional() || is_among(COMMON, arg.get_id().as_str());
    let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let ends = [": ", "; ", ". ", " [", ", as the"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    arg.help(text[..end].to_owned()).help_heading(None::<&'static str>).hide(!is_common)
}

/// The option in `--help`: hidden if it is rare.
fn full(arg: Arg, is_read: bool) -> Arg {
    let id = arg.get_id().as_str();
    let is_rare = is_among(RARE, id) || (is_read && is_among(RARE_IN_READ, id));
    let is_hidden = arg.is_hide_set() || is_rare;
    arg.hide(is_hidden)
}

/// Returns whether a list of ids has this one.
fn is_among(ids: &str, id: &str) -> bool {
    ids.split_whitespace().any(|listed| listed == id)
}

/// The most used options of `dlfs read`.
const COMMON: &str = "
    order seed batch_size epochs rank world_size drop_last window state tiers policy peers view
    json help verbose quiet";

/// Rare options of connections, which only the manual pages have.
const RARE: &str = "
    hostid tls_compat nr_io_queues queue_size keep_alive_tmo ctrl_loss_tmo io_timeout hdr_digest
    data_digest spdk_memory spdk_huge_pages";

/// Options of `dlfs read`, which has many, that only the manual page has.
const RARE_IN_READ: &str = "
    blocking_exchange bucket_window copy_bandwidth copy_threads cpus deadline dhchap_ctrl_secret
    direct group hidden job lanes lengths links local_rank local_world_size loss_field max_batch
    mix_batching mix_count node numa pack_window peer_address peer_timeout peer_tls phase
    queue_pairs rendezvous_port restart_shares round row_lengths row_pad row_phase row_too_long
    snapshot stop_at_first_failure token_bytes too_long";

/// The end of `dlfs read -h`.
const MORE: &str = "`dlfs read --help` has more options and examples.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::Cli;

    fn read(is_brief: bool) -> String {
        let mut command = of_level(Cli::command().term_width(100), is_brief);
        command.build();
        let read = command.find_subcommand_mut("read").expect("there is dlfs read");
        read.render_help().to_string()
    }

    #[test]
    fn the_brief_help_of_read_fits_a_screen_and_the_other_has_at_most_200_lines() {
        for (is_brief, most) in [(true, 40), (false, 200)] {
            let text = read(is_brief);
            let lines = text.lines().count();
            assert!(lines <= most, "{lines} lines, at most {most}:\n{text}");
        }
    }

    #[test]
    fn every_option_that_a_level_names_exists() {
        let mut command = Cli::command();
        command.build();
        let read = command.find_subcommand("read").expect("there is dlfs read");
        for id in [COMMON, RARE, RARE_IN_READ].iter().flat_map(|ids| ids.split_whitespace()) {
            assert!(read.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
    }

    /// The text after the options is printed as written, and wrapped again if it is too wide.
    #[test]
    fn no_paragraph_behind_the_options_is_wrapped_twice() {
        let command = Cli::command();
        let mut commands: Vec<_> = command.get_subcommands().collect();
        let mut told = 0;
        let mut wide = Vec::new();
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // An indented line is a command, to be copied as one line.
            let lines = text.lines().filter(|line| !line.starts_with(' '));
            let found = lines.filter(|line| line.chars().count() > 100);
            wide.extend(found.map(|line| format!("{}: {line}", command.get_name())));
            told += usize::from(!text.is_empty());
        }
        assert!(wide.is_empty(), "more than 100 columns:\n{}", wide.join("\n"));
        assert!(told > 10, "{told} commands have such a text");
    }
}
