//! Errors of the library as exceptions of `swinq._common.errors`, with the messages that the program prints,
//! in Python's words.

use std::io::ErrorKind;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use swinq::data::DataError;
use swinq::int8_runtime::RuntimeError;
use swinq::onnx::OnnxError;
use swinq::{Error, is_of_corrupt_images};

/// The exception for `error`.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let remedy = match error {
        Error::Data(DataError::MissingSplit { found, .. }) if let Some(split) = found.first() => {
            format!("; split=\"{split}\" takes that")
        }
        _ => String::new(),
    };
    raise_as(py, class(error), message(error) + &remedy)
}

/// The class of the exception for `error`.
fn class(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "NotFoundError",
        error if let Some(class) = of_system(error) => class,
        Error::Io { .. } => "FileError",
        Error::Argument { .. } | Error::OverridesWithoutConfig => "ArgumentError",
        Error::Onnx(OnnxError::Option { .. }) => "ArgumentError",
        Error::Open { .. } | Error::Model(_) | Error::Onnx(_) => "ModelError",
        Error::Data(_) | Error::Labels { .. } | Error::Batch(_) => "DataError",
        Error::Runtime(_) | Error::Device { .. } => "EngineError",
        Error::Calib(_) | Error::Float(_) | Error::NothingQuantized { .. } => "CalibrationError",
        Error::Evaluating { .. } | Error::Eval(_) | Error::Comparison { .. } => "EvaluationError",
        _ => "Error",
    }
}

/// [`raise`] for a call that reads images and has the argument `skip_corrupt`.
pub fn raise_reading(py: Python<'_>, error: &Error) -> PyErr {
    const REMEDY: &str = "; skip_corrupt=N leaves out up to N such images";
    let remedy = if is_of_corrupt_images(error) { REMEDY } else { "" };
    raise_as(py, class(error), message(error) + remedy)
}

/// The exception for an error of a run of an engine.
pub fn raise_run(py: Python<'_>, error: RuntimeError) -> PyErr {
    let of_arguments = error.is_of_arguments();
    let error = Error::from(error);
    if of_arguments { raise_as(py, "ArgumentError", message(&error)) } else { raise(py, &error) }
}

/// The exception for an error of the operating system among the causes of `error`, if there is one.
fn of_system(error: &Error) -> Option<&'static str> {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = next {
        match cause.downcast_ref::<std::io::Error>() {
            Some(found) if found.kind() == ErrorKind::NotFound => return Some("NotFoundError"),
            Some(found) if found.raw_os_error().is_some() => return Some("FileError"),
            _ => next = cause.source(),
        }
    }
    None
}

/// The value of the argument `argument` that `given` names.
///
/// # Errors
/// `ArgumentError` with the names of all values, if it names none.
pub fn choice<T: Copy>(py: Python<'_>, argument: &str, given: &str, all: &[(&str, T)]) -> PyResult<T> {
    if let Some((_, value)) = all.iter().find(|(name, _)| *name == given) {
        return Ok(*value);
    }
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let problem = format!("{argument}: `{given}` is none of {}", names.join(", "));
    Err(raise_as(py, "ArgumentError", problem))
}

/// The exception `class` of `swinq._common.errors` with this message.
pub fn raise_as(py: Python<'_>, class: &str, message: String) -> PyErr {
    let made = py.import("swinq._common.errors").and_then(|errors| errors.getattr(class)?.call1((message,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The error and its causes in one line. A text that another part of the line already contains is left out.
fn message(error: &Error) -> String {
    let mut message = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if text.contains(&message) {
            message = text;
        } else if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        next = cause.source();
    }
    in_python(&message)
}

/// A message of the program with its options in Python's words.
pub fn in_python(message: &str) -> String {
    const WORDS: [(&str, &str); 31] = [
        ("pass --cfg NAME or --cfg FILE.yaml", "pass cfg=, a name of swinq.shipped_configs() or a YAML file"),
        (
            "State --transform timm or --transform ms to decide",
            "State preprocessing=\"timm\" or \"ms\" to decide",
        ),
        ("export without --fp16", "export without fp16=True"),
        ("--residual f16:", "residual=\"f16\":"),
        ("--residual f32", "residual=\"f32\""),
        ("--opset", "opset"),
        ("--fp16", "fp16"),
        ("--batch", "batch"),
        ("--size", "size"),
        ("--probs", "probs"),
        ("--ptq basic", "ptq=\"basic\""),
        ("--ptq reconstruct", "ptq=\"reconstruct\""),
        ("--cfg", "cfg="),
        ("pass --opts", "pass opts="),
        ("cfg=: --opts", "cfg= and opts="),
        ("(other commands: --task features)", "(in Python: task=\"features\")"),
        ("(or --task features)", "(or task=\"features\")"),
        ("add --task features", "add task=\"features\""),
        ("--task features", "task=\"features\""),
        ("--opts", "opts="),
        ("--skip-corrupt", "skip_corrupt"),
        ("--outputs", "outputs="),
        ("--dialect", "dialect="),
        ("--weights", "weights="),
        ("--prefix", "prefix="),
        ("--transform", "preprocessing="),
        ("--orientation", "orientation="),
        ("with --labels", "with swinq.open(..., labels=)"),
        ("--labels", "labels="),
        ("--recipe", "recipe="),
        ("--data-path", "images"),
    ];
    let message =
        WORDS.iter().fold(message.to_owned(), |message, (option, word)| message.replace(option, word));
    // Arrays and tensors are padded and resized by the caller.
    match message.split_once(" (--pad-to ") {
        Some((before, after)) => {
            after.split_once(')').map_or(message.clone(), |(_, rest)| before.to_owned() + rest)
        }
        None => message,
    }
}

/// `value` in JSON.
pub fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
