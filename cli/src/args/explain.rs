//! Errors of the command line's parser, with tips, and without values of any length.

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::shared::OPTS_HINT;

/// The most bytes of a word that a message shows in full.
const LONGEST: usize = 256;

/// Prints `error` and ends the process.
pub fn exit(error: clap::Error, words: &[OsString]) -> ! {
    let error = explain(error, words);
    match short(&error) {
        None => error.exit(),
        Some(text) => {
            // A failure to print cannot be reported.
            let _ = anstream::stderr().lock().write_all(text.as_bytes());
            std::process::exit(error.exit_code())
        }
    }
}

/// `error` with a tip that the parser does not know.
fn explain(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    if let Some(tip) = tip(&error, words) {
        error.remove(ContextKind::SuggestedValue);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    } else if error.kind() == ErrorKind::UnknownArgument && error.get(ContextKind::SuggestedArg).is_none() {
        // The parser proposes to pass the word as a model or an image, which it is not.
        error.remove(ContextKind::Suggested);
    }
    error
}

fn tip(error: &clap::Error, words: &[OsString]) -> Option<&'static str> {
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => argument.as_str(),
        _ => "",
    };
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    match error.kind() {
        ErrorKind::MissingRequiredArgument if has("--opts") => Some(OPTS_HINT),
        ErrorKind::UnknownArgument if argument == "--limit" && (has("sensitivity") || has("tune")) => {
            Some("--images N sets the number of images, --calibration-images N that of the calibration")
        }
        ErrorKind::UnknownArgument if has("qat") && !argument.starts_with('-') => Some(
            "qat takes a job; models and images are values of its keys: qat default --opts model Q float F data.path D output O",
        ),
        ErrorKind::UnknownArgument if has("calibrate") && SAMPLES.contains(&argument) => {
            Some("--batches N and --batch-size N set the number of images")
        }
        ErrorKind::InvalidValue if argument.starts_with("--target") && value.starts_with("trt") => {
            Some("TensorRT is 'tensorrt'")
        }
        ErrorKind::UnknownArgument if argument == "--config" => {
            Some("--cfg NAME|FILE takes the configuration of a bare float checkpoint")
        }
        ErrorKind::UnknownArgument if is_negative(argument) => {
            Some("the option before it takes no negative number")
        }
        ErrorKind::InvalidValue if argument.starts_with("--backend") && GPU.contains(&value) => {
            Some("the backend of NVIDIA GPUs is 'cuda'")
        }
        _ => None,
    }
}

/// Names that other commands and tools give the number of images of a calibration.
const SAMPLES: [&str; 6] =
    ["--limit", "--samples", "--num-samples", "--images", "--num-images", "--calib-size"];

/// Names that others give a GPU.
const GPU: [&str; 3] = ["gpu", "nvidia", "tensorrt"];

/// Whether an unknown argument is a number below zero.
fn is_negative(argument: &str) -> bool {
    argument.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// The text of `error` with the middle of long words left out; `None` if no word is long.
fn short(error: &clap::Error) -> Option<String> {
    let long = error.context().flat_map(|(_, value)| match value {
        ContextValue::String(text) => vec![text.clone()],
        ContextValue::Strings(texts) => texts.clone(),
        _ => Vec::new(),
    });
    let long: Vec<String> = long.filter(|text| text.len() > LONGEST).collect();
    if long.is_empty() {
        return None;
    }
    let mut text = error.render().ansi().to_string();
    for word in &long {
        let start = word.floor_char_boundary(LONGEST / 2);
        let left_out = word.len() - start;
        text = text.replace(word, &format!("{} ... ({left_out} bytes left out)", &word[..start]));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    fn error(words: &[&str]) -> clap::Error {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        explain(Cli::try_parse_from(&words).unwrap_err(), &words)
    }

    #[test]
    fn the_option_for_the_number_of_images_is_named() {
        let tune = error(&["swinq", "tune", "m", "--data-path", "d", "-o", "q", "--limit", "4"]).to_string();
        assert!(tune.contains("--images N"), "{tune}");
        let calibrate = error(&["swinq", "calibrate", "m", "--limit", "4"]).to_string();
        assert!(calibrate.contains("--batches N"), "{calibrate}");
    }

    #[test]
    fn names_of_other_tools_get_the_option_that_is_meant() {
        for (words, tip) in [
            (&["calibrate", "m.pth", "--config", "swin_tiny"][..], "--cfg NAME|FILE"),
            (&["bench", "m", "--threads", "-2"], "takes no negative number"),
            (&["bench", "m", "--backend", "gpu"], "NVIDIA GPUs is 'cuda'"),
            (&["export", "m", "-o", "x.onnx", "--target", "trt"], "TensorRT is 'tensorrt'"),
            (&["calibrate", "m.pth", "--num-samples", "64"], "--batches N"),
            (&["predict", "--model", "m", "x.png"], "unexpected argument '--model'"),
        ] {
            let words: Vec<&str> = std::iter::once("swinq").chain(words.iter().copied()).collect();
            let error = error(&words).to_string();
            assert!(error.contains(tip) && !error.contains("a similar value"), "{error}");
            assert!(!error.contains("as a value, use"), "{error}");
        }
    }

    #[test]
    fn models_and_images_are_values_of_a_job() {
        let qat = error(&["swinq", "qat", "q.safetensors", "images"]).to_string();
        assert!(qat.contains("qat default --opts model Q float F data.path D output O"), "{qat}");
        let words = [
            "swinq",
            "qat",
            "default",
            "--opts",
            "model",
            "Q",
            "float",
            "F",
            "data.path",
            "D",
            "output",
            "O",
        ];
        assert!(Cli::try_parse_from(words).is_ok());
        assert!(!error(&["swinq", "qat", "default", "--limit", "4"]).to_string().contains("takes a job"));
    }

    #[test]
    fn a_long_value_is_shown_in_part() {
        let long = "€".repeat(1000);
        for words in [
            ["swinq", "calibrate", "m", "--calibrator", &long],
            ["swinq", "bench", "m", "--seconds", &long],
            ["swinq", "bench", "m", "--backend", &long],
        ] {
            let error = error(&words);
            let text = short(&error).unwrap();
            assert!(text.contains("bytes left out") && text.len() < 1500, "{text}");
        }
        assert_eq!(short(&error(&["swinq", "bench", "m", "--seconds", "x"])), None);
    }
}
