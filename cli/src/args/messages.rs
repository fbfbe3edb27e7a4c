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
    /// Memory of all image decoders together, such as 2G or 500M (default: a quarter of the machine's
    /// memory). An image that needs more is decoded while no other is.
    #[arg(long, global = true, value_name = "SIZE", value_parser = bytes, help_heading = "Process")]
    pub decode_memory: Option<u64>,
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

/// Parses a number of bytes with an optional K, M or G (powers of 1024).
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let of_unit = units.iter().find_map(|(name, size)| Some((text.strip_suffix(name)?, *size)));
    let (digits, unit) = of_unit.unwrap_or((text, 1));
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|&n| n > 0);
    number.ok_or_else(|| "must be a number of bytes from 1, such as 2G, 500M or 1000000".to_owned())
}

/// The value of `--color` among the words of a command line, before they are parsed: errors of the parser
/// have colours too.
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
    fn sizes_have_units() {
        assert_eq!(["1", "2K", "3M", "4G"].map(bytes), [1, 2 << 10, 3 << 20, 4 << 30].map(Ok));
        for text in ["0", "", "G", "-1", "1.5G", "99999999999G", "2T"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_colour_is_known_before_the_words_are_parsed() {
        let of = |text: &str| color_of(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of("swinq eval"), ColorChoice::Auto);
        assert_eq!(of("swinq --color always eval --color=never"), ColorChoice::Never);
        assert_eq!(of("swinq --color=always --colour never -- --color never"), ColorChoice::Always);
        assert_eq!(of("swinq --color"), ColorChoice::Auto);
    }
}
