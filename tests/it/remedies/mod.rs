//! What messages advise is accepted: every message in the sources of `model`, `qat` and the library that
//! names an option of the program has a situation here that provokes it, and each remedy that it names is
//! carried out.

mod figures;
mod literals;
mod opening;
mod program;
mod training;

use std::cell::RefCell;
use std::path::PathBuf;

use swinq::{Model, OpenOptions, Task};

use crate::common::{Folder, root};
use literals::options;

/// Strings that name options without advising them, or that no machine without a GPU's libraries shows.
const NO_REMEDIES: [&str; 2] = ["; not needed by --gemm own and auto", "; only --nvtx needs it"];

/// A message, and the command lines that provoke it and that it advises.
struct Case {
    message: String,
    lines: String,
}

/// The folder of generated models and data, and the cases.
struct Book {
    folder: Folder,
    cases: RefCell<Vec<Case>>,
    /// Failures of promises that messages make.
    failures: RefCell<Vec<String>>,
}

impl Book {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.folder.write(name, content)
    }

    /// Opens the model of a command line: `COMMAND MODEL OPTIONS`, with files in the folder.
    fn open(&self, line: &str) -> Result<Model, swinq::Error> {
        let mut words = line.split_whitespace();
        let (command, path) = (words.next().unwrap(), self.path(words.next().unwrap()));
        let mut options = self.options(&words.collect::<Vec<_>>());
        match command {
            "calibrate" => Model::open_float(path, &options),
            "features" => {
                options.reading.task = options.reading.task.or(Some(Task::Features));
                Model::open_with(path, &options)
            }
            "eval" => Model::open_with(path, &options),
            other => panic!("{other} opens no model here"),
        }
    }

    /// The options that `words` state, as the program reads them.
    fn options(&self, words: &[&str]) -> OpenOptions {
        let mut options = OpenOptions::default();
        let mut words = words.iter().peekable();
        while let Some(option) = words.next() {
            let mut values = Vec::new();
            while let Some(value) = words.next_if(|word| !word.starts_with("--")) {
                values.push(if *value == "''" { String::new() } else { value.to_string() });
            }
            let one = || values[0].clone();
            match *option {
                "--cfg" if one().ends_with(".yaml") => options.cfg = Some(self.text(&one())),
                "--cfg" => options.cfg = Some(one()),
                "--opts" => {
                    options.reading.opts =
                        values.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
                }
                "--dialect" => options.reading.dialect = Some(one().parse().unwrap()),
                "--weights" => options.reading.weights = Some(one()),
                "--prefix" => options.reading.prefix = Some(one()),
                "--orientation" => options.orientation = Some(one().parse().unwrap()),
                "--labels" => options.labels = Some(self.path(&one())),
                "--task" if one() == "features" => options.reading.task = Some(Task::Features),
                "--task" => options.reading.task = Some(Task::Classification),
                "--outputs" => {
                    let stage =
                        |name: &str| name.strip_prefix("stage").unwrap().parse::<usize>().unwrap() - 1;
                    options.reading.outputs = Some(one().split(',').map(stage).collect());
                }
                "--transform" => options.transform = Some(one().parse().unwrap()),
                other => panic!("{other} is no option of opening a model"),
            }
        }
        options
    }

    /// The messages about the model of `line`: the error, or the remarks.
    fn said(&self, line: &str) -> String {
        match self.open(line) {
            Ok(model) => model.warnings().join("\n"),
            Err(error) => error.to_string(),
        }
    }

    /// Opening the model of `line` says `part`. The lines `remedies` open it, and do not.
    fn opening(&self, line: &str, part: &str, remedies: &[&str]) {
        let message = self.said(line);
        let mut failures = self.failures.borrow_mut();
        if !message.contains(part) {
            failures.push(format!("`{line}` does not say `{part}`: {message}"));
        }
        for remedy in remedies {
            match self.open(remedy).map(|model| model.warnings().join("\n")) {
                Ok(warnings) if !warnings.contains(part) => {}
                Ok(warnings) => failures.push(format!("`{remedy}` still says: {warnings}")),
                Err(error) => {
                    failures.push(format!("`{line}` says: {message}\nbut `{remedy}` says: {error}"))
                }
            }
        }
        self.advised(message, &[&[line], remedies].concat().join("\n"));
    }

    /// A message whose remedies were carried out: those of `lines`.
    fn advised(&self, message: String, lines: &str) {
        self.cases.borrow_mut().push(Case { message, lines: lines.to_owned() });
    }
}

/// Asserts that `message` says `part`, and returns it.
#[track_caller]
fn says(message: impl ToString, part: &str) -> String {
    let message = message.to_string();
    assert!(message.contains(part), "`{part}` is not in: {message}");
    message
}

#[test]
fn every_remedy_with_an_option_is_accepted() {
    let book = Book { folder: Folder::new(), cases: RefCell::default(), failures: RefCell::default() };
    opening::prepare(&book);
    opening::cases(&book);
    figures::cases(&book);
    training::cases(&book);
    program::cases(&book);
    let (cases, mut missing) = (book.cases.take(), book.failures.take());
    for literal in literals::all() {
        if NO_REMEDIES.contains(&literal.text.as_str()) {
            continue;
        }
        let tried: Vec<&Case> = cases.iter().filter(|case| literal.is_in(&case.message)).collect();
        let known: Vec<String> = tried.iter().flat_map(|case| options(&case.lines)).collect();
        let lacks: Vec<String> =
            literal.options().into_iter().filter(|option| !known.contains(option)).collect();
        if tried.is_empty() {
            missing.push(format!("{}: no situation provokes it: {}", literal.place, literal.text));
        } else if !lacks.is_empty() {
            missing.push(format!("{}: {} is not tried: {}", literal.place, lacks.join(", "), literal.text));
        }
    }
    assert!(
        missing.is_empty(),
        "messages with options in the sources of {}:\n{}",
        root().display(),
        missing.join("\n")
    );
}
