//! Help texts of options that C and Python have, too: the library's sentence, and the command's
//! addition.

use dlfs::dataset::options::{LOADING, OPENING, help};

/// The help of an option for opening a data set, followed by `more`.
pub(crate) fn opening(name: &str, more: &str) -> String {
    format!("{}{more}", help(OPENING, name))
}

/// The help of an option for reading along an order, followed by `more`.
pub(crate) fn loading(name: &str, more: &str) -> String {
    format!("{}{more}", help(LOADING, name))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use dlfs::dataset::options::{SharedOption, Value};

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn the_command_s_help_and_defaults_are_those_that_all_front_ends_share() {
        let command = Cli::command();
        let read = command.find_subcommand("read").expect("there is dlfs read");
        let shared = OPENING.iter().chain(LOADING).filter(|option| !option.command.is_empty());
        for SharedOption { command, default, help, .. } in shared {
            let arg = read.get_arguments().find(|arg| arg.get_long() == Some(command));
            let arg = arg.unwrap_or_else(|| panic!("there is no --{command}"));
            let told = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let begin = told.get(..help.len()).unwrap_or_default();
            assert!(begin.eq_ignore_ascii_case(help), "--{command}: {told}");
            let expected = match default {
                Value::Open | Value::Off => continue,
                Value::Number(value) | Value::Seconds(value) => value.to_string(),
                Value::Bytes(value) => format!("{}M", value >> 20),
                Value::Fraction(value) => value.to_string(),
            };
            let parsed = arg.get_default_values().first().is_some_and(|value| *value == *expected);
            let explained = told.ends_with(&format!("[default: {expected}]"));
            assert!(parsed || explained, "--{command}: the default is not {expected}: {told}");
        }
    }

    /// Text behind the options is printed as it is written, and wrapped again where it is wider.
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
