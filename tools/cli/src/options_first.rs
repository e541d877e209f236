//! Options stand anywhere: they are moved in front of the positional arguments.
//!
//! Of `SOURCE... IMAGE` clap knows the last one only where no option stands between.

use std::ffi::OsString;

use clap::{Arg, Command};

/// The same arguments in order, for `command`, which is built: the options of its subcommand, `--` if that is given,
/// then the rest.
pub(crate) fn options_first(
    command: &Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut ordered: Vec<OsString> = arguments.next().into_iter().collect();
    let mut rest = Vec::new();
    let mut commands = vec![command];
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            ordered.push(argument);
            rest.extend(arguments);
            break;
        }
        let text = argument.to_string_lossy();
        let below = commands.last().and_then(|command| command.find_subcommand(&argument));
        if let Some(subcommand) = below.filter(|_| rest.is_empty()) {
            commands.push(subcommand);
            ordered.push(argument);
        } else if text.len() > 1 && text.starts_with('-') {
            let has_value = wants_next(&commands, &text);
            ordered.push(argument);
            if has_value {
                ordered.extend(arguments.next());
            }
        } else {
            rest.push(argument);
        }
    }
    ordered.extend(rest);
    ordered
}

/// Returns whether the argument behind this option is its value.
fn wants_next(commands: &[&Command], option: &str) -> bool {
    let takes = |is_it: &dyn Fn(&Arg) -> bool| {
        let known = commands.iter().rev().flat_map(|command| command.get_arguments());
        known.filter(|arg| is_it(arg)).map(|arg| arg.get_action().takes_values()).next()
    };
    if let Some(long) = option.strip_prefix("--") {
        return takes(&|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        }) == Some(true);
    }
    // In a group of letters, the first one that takes a value has the rest as its value.
    let mut letters = option.chars().skip(1);
    let valued =
        letters.find(|letter| takes(&|arg| arg.get_short() == Some(*letter)) == Some(true));
    valued.is_some() && letters.next().is_none()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::CommandFactory;

    use super::*;
    use crate::commands::Cli;

    fn built() -> Command {
        let mut command = Cli::command();
        command.build();
        command
    }

    #[test]
    fn options_stand_anywhere_and_keep_their_values() {
        let ordered = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            options_first(&built(), words).join(OsStr::new(" ")).into_string().unwrap()
        };
        for (given, expected) in [
            ("dlfs import a --force o.dlfs", "dlfs import --force a o.dlfs"),
            ("dlfs import a b --seed 3 o.dlfs", "dlfs import --seed 3 a b o.dlfs"),
            ("dlfs import a --seed=3 o.dlfs --quiet", "dlfs import --seed=3 --quiet a o.dlfs"),
            ("dlfs -v import a -vv - o.dlfs", "dlfs -v import -vv a - o.dlfs"),
            ("dlfs import a --force -- --b o.dlfs", "dlfs import --force -- a --b o.dlfs"),
            ("dlfs import plan --seed -1 o.dlfs", "dlfs import --seed -1 plan o.dlfs"),
            ("dlfs import-parts plan a -o p o.dlfs", "dlfs import-parts plan -o p a o.dlfs"),
            ("dlfs import-parts plan a -op o.dlfs", "dlfs import-parts plan -op a o.dlfs"),
            ("dlfs import a --no-such o.dlfs", "dlfs import --no-such a o.dlfs"),
        ] {
            assert_eq!(ordered(given), expected);
        }
    }

    /// Every option of every command may stand in front of, between and behind what the command is given.
    #[test]
    fn no_option_takes_more_than_the_next_argument() {
        let mut commands = vec![built()];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for arg in command.get_opts() {
                let most = arg.get_num_args().map_or(1, |range| range.max_values());
                assert!(most <= 1, "{} {arg}", command.get_name());
            }
        }
    }
}
