//! Messages about jobs and trainings.

use std::path::Path;

use swinq::Task;
use swinq::model::Ptq;
use swinq::qat::Job;
use swinq::qat::ranks::RankError;

use super::{Book, figures, opening, says};
use crate::common::{stderr, swinq};

/// Pairs of a job's keys and values.
type Pairs = Vec<(String, String)>;

/// Every message of this kind.
pub fn cases(book: &Book) {
    jobs(book);
    networks(book);
    processes(book);
    checkpoints(book);
    inputs(book);
}

fn pairs(values: &[(&str, &str)]) -> Pairs {
    values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A job without all it needs, and files that are no jobs.
fn jobs(book: &Book) {
    let mut given = Pairs::new();
    let load = |given: &Pairs| Job::load("default", given).map_err(|error| error.to_string());
    while let Err(message) = load(&given) {
        let (_, rest) = message.split_once("with --opts ").unwrap_or_else(|| panic!("{message}"));
        let (key, _) = rest.split_once(" VALUE").unwrap_or_else(|| panic!("{message}"));
        assert!(given.iter().all(|(known, _)| known != key), "{key} is given: {message}");
        given.push((key.to_owned(), "text".to_owned()));
        book.advised(message.clone(), &format!("qat default --opts {key} text"));
    }
    assert!(given.len() > 1, "{given:?}");
    let own = book.text("q.safetensors");
    let message = says(Job::load(&own, &[]).unwrap_err(), &format!("qat default --opts model {own} ..."));
    let rest = pairs(&[("float", "f"), ("data.path", "d"), ("output", "o")]);
    assert_eq!(
        load(&[pairs(&[("model", &own)]), rest.clone()].concat()).unwrap().model.as_deref(),
        Some(Path::new(&own))
    );
    book.advised(message, "qat default --opts model q.safetensors");
    let folder = book.text("hf");
    let message =
        says(Job::load(&folder, &[]).unwrap_err(), &format!("qat default --opts float {folder} ..."));
    let rest = pairs(&[("model", "q"), ("data.path", "d"), ("output", "o"), ("float", &folder)]);
    assert_eq!(load(&rest).unwrap().float.as_deref(), Some(Path::new(&folder)));
    book.advised(message, "qat default --opts float hf");
}

/// Keys of backbones for a classifier.
fn networks(book: &Book) {
    let load = |more: &[(&str, &str)]| {
        let needed = [("model", "q"), ("float", "f"), ("data.path", "d"), ("output", "o"), ("loss.kl", "0")];
        Job::load("default", &pairs(&[&needed[..], more].concat())).unwrap()
    };
    let classifier = opening::small(book).config;
    let error = load(&[("loss.outputs", "1"), ("loss.labels", "0")]).check_network(&classifier).unwrap_err();
    let message =
        says(error, "set it to 0 and loss.kl to 1, or give a backbone (`swinq calibrate --task features`)");
    load(&[("loss.outputs", "0"), ("loss.kl", "1")]).check_network(&classifier).unwrap();
    let backbone = book.open("eval q_backbone.safetensors").unwrap();
    assert_eq!(backbone.config().task, Task::Features);
    load(&[("loss.outputs", "1"), ("loss.labels", "0")]).check_network(backbone.config()).unwrap();
    book.advised(message, "calibrate ms.pth --task features");
}

/// Trainings on several processes.
fn processes(book: &Book) {
    let needed = pairs(&[("model", "q"), ("float", "f"), ("data.path", "d"), ("output", "o")]);
    let identity = |processes| Job::load("default", &needed).unwrap().identity(&[]).on(processes);
    let error = identity(1).check_resumes(&identity(2)).unwrap_err();
    let message =
        says(error, "it ran on 2 processes, and this is 1 (--devices, or the launcher's WORLD_SIZE)");
    identity(2).check_resumes(&identity(2)).unwrap();
    book.advised(message, "qat --devices 0,1 --resume");
    let silent = RankError::Silent { rank: 1, address: "host:1".to_owned(), seconds: 5 };
    let help = swinq(["qat", "--help"]).assert().success();
    assert!(crate::common::stdout(&help).contains("--timeout"), "the option is one of qat");
    book.advised(says(silent, "raise --timeout"), "qat --timeout 600");
}

/// Checkpoints of a training in the output folder.
fn checkpoints(book: &Book) {
    let picture = std::fs::read(book.path("pictures/0.png")).unwrap();
    for split in ["train", "val"] {
        for class in ["ant", "bee", "cat", "dog", "eel"] {
            book.write(&format!("classes/{split}/{class}/a.png"), &picture);
        }
    }
    let out = book.path("out");
    let qat = |more: &[&str]| {
        let mut command =
            swinq(["qat", "default", "--opts", "steps", "1", "batch_size", "2", "threads", "1"]);
        for (key, file) in
            [("model", "q.safetensors"), ("float", "ms.pth"), ("cfg", "small.yaml"), ("data.path", "classes")]
        {
            command.arg(key).arg(book.path(file));
        }
        command.arg("output").arg(&out).args(more).assert()
    };
    qat(&[]).success();
    let again = stderr(&qat(&[]).code(1));
    let message = says(again, "continue it with --resume, remove them and start anew with --restart");
    qat(&["--resume"]).success();
    qat(&["--restart"]).success();
    book.advised(message, "qat --resume\nqat --restart");
    for entry in std::fs::read_dir(out.join("checkpoints")).unwrap() {
        std::fs::write(entry.unwrap().path(), "damaged").unwrap();
    }
    let message = says(
        stderr(&qat(&["--resume"]).code(1)),
        "start anew with --restart, which removes the damaged ones",
    );
    qat(&["--restart"]).success();
    book.advised(message, "qat --resume\nqat --restart");
}

/// How a job reads its float checkpoint: the options that describe it when it is calibrated, the file and the
/// keys of the job, the refusal, and the keys that it advises.
type Reading = (&'static str, &'static [&'static str], &'static str, &'static [&'static str]);

const READINGS: [Reading; 5] = [
    (
        "inner.safetensors --cfg small.yaml --prefix model.",
        &["cfg", "@small.yaml"],
        "pass prefix: model. to read it alone; `swinq features` reads a backbone",
        &["prefix", "model."],
    ),
    (
        "weights/teacher.pth --cfg small.yaml --weights teacher",
        &["cfg", "@small.yaml"],
        "its dictionaries of tensors: student, teacher; choose one as in weights: student",
        &["weights", "teacher"],
    ),
    (
        "seven --opts MODEL.NUM_CLASSES 5",
        &[],
        "the configuration seven has 6; pass opts.MODEL.NUM_CLASSES 5;",
        &["opts.MODEL.NUM_CLASSES", "5"],
    ),
    (
        "ms.pth --cfg small.yaml --transform hf",
        &["cfg", "@small.yaml"],
        "give the same cfg and transform to both",
        &["transform", "hf"],
    ),
    (
        "unprocessed --transform hf",
        &[],
        "add it, or pass transform: hf for that of the published Swins",
        &["transform", "hf"],
    ),
];

/// Messages of models name keys in a job, which has no options.
fn inputs(book: &Book) {
    let qat = |float: &str, words: &[&[&str]]| {
        let path = |word: &str| word.strip_prefix('@').map_or(word.to_owned(), |name| book.text(name));
        let rest = ["data.path", "@classes", "output", "@new", "batch_size", "2", "threads", "1"];
        let mut command = swinq(["qat", "default", "--dry-run", "--opts", "model"]);
        command.arg(book.path("read.safetensors")).arg("float").arg(book.path(float));
        command.args(words.concat().iter().chain(&rest).map(|word| path(word))).assert()
    };
    for (line, keys, part, remedy) in READINGS {
        let model = figures::calibrated(book, &format!("calibrate {line}"), Ptq::Basic).unwrap();
        model.save(book.path("read.safetensors")).unwrap();
        let (float, _) = line.split_once(' ').unwrap();
        let refusal = says(stderr(&qat(float, &[keys]).code(1)), part);
        assert!(!refusal.contains("--"), "{refusal}");
        qat(float, &[keys, remedy]).success();
    }
    // Which dictionary is read is said.
    let both = "weights/both.pth --cfg small.yaml";
    let model = figures::calibrated(book, &format!("calibrate {both}"), Ptq::Basic).unwrap();
    model.save(book.path("read.safetensors")).unwrap();
    let cfg = ["cfg", "@small.yaml"];
    let remark = "the file also has state_dict (weights: state_dict)";
    says(stderr(&qat("weights/both.pth", &[&cfg]).success()), remark);
    let other = stderr(&qat("weights/both.pth", &[&cfg, &["weights", "state_dict"]]).success());
    assert!(!other.contains(remark), "{other}");
    // A file of torch.save is no calibrated checkpoint.
    let message = stderr(&qat("ms.pth", &[&cfg, &["model", "@ms.pth"]]).code(1));
    says(message, "is a file of torch.save, and a calibrated checkpoint is a safetensors file");
}
