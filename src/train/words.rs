//! Messages about models in the words of jobs.

/// An option of the commands, or a part of a message that names some, and the key of a job in its place; the
/// longest first.
const WORDS: [(&str, &str); 15] = [
    (" (other commands: --task features)", ""),
    (" (or --task features)", ""),
    (", or pass --cfg to a command that also runs float models", ""),
    ("without one, pass --outputs", "without one, `model` states the outputs"),
    ("--cfg NAME and --opts for", "cfg: NAME and opts for"),
    ("leave --opts out", "leave opts out"),
    ("--opts ", "opts."),
    ("--cfg ", "cfg: "),
    ("--cfg", "cfg"),
    ("--weights ", "weights: "),
    ("--weights", "weights"),
    ("--prefix ", "prefix: "),
    ("--prefix", "the key prefix"),
    ("--transform ", "transform: "),
    ("--transform", "transform"),
];

/// `message` with keys of jobs in the place of options.
pub fn in_keys(message: &str) -> String {
    WORDS.iter().fold(message.to_owned(), |message, (option, key)| message.replace(option, key))
}
