//! Arguments of every command: how much is printed, and in which colours.

use std::ffi::OsString;

use clap::{Args, ColorChoice, ValueEnum};

use crate::out::Level;

/// Arguments that select what is printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct MessageArgs {
    /// Print results, warnings and errors only.
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Messages")]
    quiet: bool,
    /// Also print times and choices, and every cause of an error.
    #[arg(short, long, global = true, help_heading = "Messages")]
    verbose: bool,
    /// Colours in help and messages; auto shows them on a terminal, unless NO_COLOR is set.
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = ColorChoice::Auto, help_heading = "Messages")]
    color: ColorChoice,
}

impl MessageArgs {
    /// How much is printed.
    pub fn level(&self) -> Level {
        match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        }
    }
}

/// The value of `--color` among the words of a command line, before they are parsed: errors of the parser have colours
/// too.
pub fn color_of(words: &[OsString]) -> ColorChoice {
    let words: Vec<_> =
        words.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--").collect();
    let values = words.iter().enumerate().filter_map(|(i, word)| match word.strip_prefix("--color") {
        Some("") => words.get(i + 1).map(AsRef::as_ref),
        Some(rest) => rest.strip_prefix('='),
        None => None,
    });
    values.filter_map(|value| ColorChoice::from_str(value, false).ok()).next_back().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_colour_is_known_before_the_words_are_parsed() {
        let of = |text: &str| color_of(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of("swinq eval"), ColorChoice::Auto);
        assert_eq!(of("swinq --color always eval --color=never"), ColorChoice::Never);
        assert_eq!(of("swinq --color=always --colour never -- --color never"), ColorChoice::Always);
        assert_eq!(of("swinq --color"), ColorChoice::Auto);
    }
}
