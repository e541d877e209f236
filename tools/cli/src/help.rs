//! The texts behind the options of each command.

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::commands::Cli;

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
