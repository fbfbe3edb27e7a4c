//! Standard output and standard error.
//!
//! | macro | text | stream |
//! | --- | --- | --- |
//! | `say!` | results | standard output |
//! | `info!` | what the command works on and which files it wrote; not with `-q` | standard output |
//! | `note!` | progress and remarks; not with `-q` | standard error |
//! | `detail!` | times and choices; only with `-v` | standard error |
//! | `caution!` | warnings | standard error |
//!
//! Characters that control a terminal are escaped in all of them: names of tensors, classes and files are not
//! ours.
//!
//! If JSON goes to standard output (`--json -`), the first two go to standard error. If the reader of
//! standard output ends (`swinq eval ... | head`), printing stops but the work continues. Any other failure
//! to print fails the command, after its files are written.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use anstyle::{AnsiColor, Style};
use swinq::model::printable;

static FAILURE: OnceLock<std::io::Error> = OnceLock::new();
static LEVEL: AtomicU8 = AtomicU8::new(Level::Normal as u8);
static RESERVED: AtomicBool = AtomicBool::new(false);
static RANK: AtomicUsize = AtomicUsize::new(0);

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Results, warnings and errors.
    Quiet,
    /// Also what the command works on, and progress.
    Normal,
    /// Also times and choices.
    Verbose,
}

/// Sets how much is printed.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether texts of `level` are printed.
pub fn prints(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u8
}

/// Makes this process number `rank` of those that train together: its warnings and errors say so, and it
/// prints nothing else, because the first process does.
pub fn set_rank(rank: usize) {
    set_level(Level::Quiet);
    RANK.store(rank, Ordering::Relaxed);
}

/// `text`, for a process other than the first of those that train together with its rank.
fn of_rank(text: String) -> String {
    match RANK.load(Ordering::Relaxed) {
        0 => text,
        _ if text.starts_with("rank ") => text,
        rank => format!("rank {rank}: {text}"),
    }
}

/// Reserves standard output for JSON: text that would go there goes to standard error from now on.
pub fn reserve_stdout() {
    RESERVED.store(true, Ordering::Relaxed);
}

/// Prints one line of results.
pub fn line(text: Arguments<'_>) {
    if RESERVED.load(Ordering::Relaxed) {
        return error_line(text);
    }
    raw(format!("{}\n", printable(&text.to_string())).as_bytes());
}

/// Writes bytes to standard output, also if it is reserved.
pub fn raw(bytes: &[u8]) {
    if FAILURE.get().is_some() {
        return;
    }
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        // Only the first failure is reported.
        let _ = FAILURE.set(error);
    }
}

/// Prints one line to standard error. A failure cannot be reported anywhere, so it is ignored.
pub fn error_line(text: Arguments<'_>) {
    if RANK.load(Ordering::Relaxed) == 0 {
        after("", text);
    }
}

/// Prints a line that begins with the coloured word `warning:`. A long text loses its middle.
pub fn warning(text: Arguments<'_>) {
    let text = of_rank(shortened(text.to_string()));
    after(&format!("{}: ", styled("warning", AnsiColor::Yellow)), format_args!("{text}"));
}

/// Prints a line that begins with the coloured word `error:`. A long text loses its middle.
pub fn error(text: impl Display) {
    let text = of_rank(shortened(text.to_string()));
    after(&format!("{}: ", styled("error", AnsiColor::Red)), format_args!("{text}"));
}

/// `text` without its middle if its printable form is longer than 3,072 bytes: it may quote a value of any
/// length from a file that is not ours.
fn shortened(text: String) -> String {
    const START: usize = 2048;
    const END: usize = 512;
    let text = printable(&text);
    if text.len() <= START + 2 * END {
        return text.into_owned();
    }
    let (start, end) = (text.floor_char_boundary(START), text.ceil_char_boundary(text.len() - END));
    format!("{} ... ({} bytes left out) ... {}", &text[..start], end - start, &text[end..])
}

/// Prints `text`, in which nothing controls the terminal, after a `start` of our own.
fn after(start: &str, text: Arguments<'_>) {
    let _ = writeln!(anstream::stderr().lock(), "{start}{}", printable(&text.to_string()));
}

/// `word` in bold and `color`; the stream removes both if it shows no colours.
fn styled(word: &str, color: AnsiColor) -> String {
    let style = Style::new().bold().fg_color(Some(color.into()));
    format!("{style}{word}{style:#}")
}

/// Returns the failure to print, if there was one. A reader that has ended is not a failure.
///
/// # Errors
/// The system's error.
pub fn check() -> anyhow::Result<()> {
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => anyhow::bail!("standard output: {error}"),
        _ => Ok(()),
    }
}

/// A count with its noun, as in `1 change` and `2 changes`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Prints one line of results, like `println!` but without a panic.
macro_rules! say {
    () => { $crate::out::line(format_args!("")) };
    ($($argument:tt)*) => { $crate::out::line(format_args!($($argument)*)) };
}

/// Prints what the command works on or has written; not with `-q`.
macro_rules! info {
    ($($argument:tt)*) => {
        if $crate::out::prints($crate::out::Level::Normal) {
            $crate::out::line(format_args!($($argument)*));
        }
    };
}

/// Prints progress or a remark to standard error; not with `-q`.
macro_rules! note {
    ($($argument:tt)*) => {
        if $crate::out::prints($crate::out::Level::Normal) {
            $crate::out::error_line(format_args!($($argument)*));
        }
    };
}

/// Prints a time or a choice to standard error; only with `-v`.
macro_rules! detail {
    ($($argument:tt)*) => {
        if $crate::out::prints($crate::out::Level::Verbose) {
            $crate::out::error_line(format_args!($($argument)*));
        }
    };
}

/// Prints a warning to standard error.
macro_rules! caution {
    ($($argument:tt)*) => { $crate::out::warning(format_args!($($argument)*)) };
}

pub(crate) use {caution, detail, info, note, say};
