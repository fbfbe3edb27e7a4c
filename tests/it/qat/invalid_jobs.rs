//! Impossible jobs are refused with a message that names the key or file and an exit code, and nothing is
//! written.

use std::path::PathBuf;
use std::process::Command;

use swinq_model::checkpoint::random_model;
use swinq_model::config::load_config;
use swinq_model::{Ptq, QuantizedModel, Recipe};

use super::{calibrated, data};
use crate::common::{
    Folder, files, float_model, refused, sample_cfg, sample_data, sample_model, stderr, swinq,
};

#[test]
fn inputs_that_are_missing_are_named_with_their_key() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    folder.refuses("data.path", "absent", 1, &["data.path: absent", "No such file"]);
    folder.refuses("data.val_path", "absent", 1, &["data.val_path: absent", "No such file"]);
    folder.refuses("cfg", "absent.yaml", 1, &["cfg: absent.yaml", "No such file"]);
    let image = crate::common::root().join("tests/data/airplane.jpg");
    std::fs::create_dir_all(folder.path("only/val/a")).unwrap();
    std::fs::copy(&image, folder.path("only/val/a/1.jpg")).unwrap();
    folder.refuses("data.path", folder.path("only"), 1, &["data.split: ", "`train` is missing", "has `val`"]);
}

/// A limit of the size of files stands for a full disk: the first byte of a file is refused.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_no_file() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    let mut shell = assert_cmd::Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_swinq"), "qat"]);
    refused(shell.arg(folder.path("job.yaml")).assert(), 1, &["run.lock"]);
    assert_eq!(files(&folder.out()), Vec::<String>::new());
}

/// Labels in another order than the model's classes.
#[test]
fn validation_images_with_wrong_labels_are_noticed() {
    let folder = Folder::of_job("steps: 1\n");
    let wrong = folder.path("wrong");
    std::fs::create_dir(&wrong).unwrap();
    std::fs::copy(sample_data().join("val.zip"), wrong.join("val.zip")).unwrap();
    let text = std::fs::read_to_string(sample_data().join("val_map.txt")).unwrap();
    let shifted = text.lines().map(|line| {
        let (name, class) = line.rsplit_once('\t').unwrap();
        format!("{name}\t{}\n", (class.trim().parse::<u32>().unwrap() + 1) % 10)
    });
    std::fs::write(wrong.join("val_map.txt"), shifted.collect::<String>()).unwrap();
    let opts = ["data.path", sample_data().to_str().unwrap()].map(str::to_owned);
    let opts = [opts, ["data.val_path".to_owned(), wrong.display().to_string()]].concat();
    let words: Vec<&str> = ["--opts"].into_iter().chain(opts.iter().map(String::as_str)).collect();
    let limit = ["--opts", "data.val_limit", "100"];
    let warnings = stderr(&folder.run(&[&words[..], &limit].concat()).success());
    assert_eq!(warnings.matches("no better than guessing among 10 classes").count(), 1, "{warnings}");
}

#[test]
fn bad_jobs() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    folder.refuses("optimizer.lrs", "1", 1, &["optimizer.lrs", "did you mean `optimizer.lr`"]);
    folder.refuses("optimizer.lr", "17", 1, &["optimizer.lr", "absolute learning rate"]);
    folder.refuses("schedule.warmup_steps", "5", 1, &["schedule.warmup_steps", "1 iterations"]);
    folder.refuses("augment.flop", "1", 1, &["augment.flop", "`flip`"]);
    folder.refuses("batch_size", "1000", 1, &["batch_size", "256"]);
    let rule = "[{match: '**.fc9.*', scales: learned}]";
    folder.refuses("quantization.rules", rule, 1, &["rules[0]", "matches no site"]);
    if cfg!(not(feature = "cuda")) {
        folder.refuses("device", "cuda", 2, &["device", "--features cuda"]);
    }
    refused(swinq(["qat", "nosuch.yaml"]).assert(), 1, &["nosuch.yaml"]);
    let checkpoint = sample_model();
    refused(swinq(["qat"]).arg(&checkpoint).assert(), 1, &["not a text file", "qat default --opts model"]);
}

/// A float checkpoint of random weights in our own format, which contains its configuration.
fn float_file(folder: &Folder, name: &str, opts: &[(&str, &str)]) -> PathBuf {
    let opts: Vec<(String, String)> = opts.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let cfg = load_config(sample_cfg().to_str().unwrap(), &opts).unwrap();
    let path = folder.path(name);
    QuantizedModel::from_float(random_model(&cfg, 1)).unwrap().save(&path).unwrap();
    path
}

#[test]
fn teachers_that_cannot_teach() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    folder.refuses("teacher", folder.path("nosuch.safetensors"), 1, &["teacher", "nosuch.safetensors"]);
    folder.refuses("teacher", calibrated(), 1, &["teacher", "q.safetensors", "float one is needed"]);
    let other = float_file(&folder, "classes.safetensors", &[("MODEL.NUM_CLASSES", "20")]);
    folder.refuses("teacher", other, 1, &["classes.safetensors", "20 classes", "the model has 10"]);
    let other = float_file(&folder, "size.safetensors", &[("DATA.IMG_SIZE", "112")]);
    folder.refuses("teacher", other, 1, &["size.safetensors", "112 pixels", "the model's is 56"]);
    let other = float_file(&folder, "wide.safetensors", &[("MODEL.SWIN.EMBED_DIM", "32")]);
    let opts = ["--opts", "teacher", other.to_str().unwrap(), "--opts", "loss.features", "1"];
    refused(folder.run(&opts), 1, &["wide.safetensors", "loss.features"]);
    assert!(!folder.out().exists());
}

/// A checkpoint of another network, quantized with invented ranges.
fn of_another_network(folder: &Folder) -> PathBuf {
    let opts = [("MODEL.SWIN.DEPTHS".to_owned(), "[2, 2]".to_owned())];
    let cfg = load_config(sample_cfg().to_str().unwrap(), &opts).unwrap();
    let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic);
    let sites = recipe.resolve(&cfg.config).unwrap();
    let ranges = sites.iter().filter(|(site, spec)| spec.needs_scale(*site)).map(|(site, _)| (*site, 1.0));
    let model = swinq_calib::quantize(&random_model(&cfg, 1), &recipe, &ranges.collect()).unwrap();
    let path = folder.path("other.safetensors");
    model.save(&path).unwrap();
    path
}

#[test]
fn calibrated_checkpoints_that_do_not_fit() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    folder.refuses("model", folder.path("nosuch"), 1, &["model", "nosuch"]);
    folder.refuses("model", sample_model(), 1, &["model"]);
    let path = folder.path("float.safetensors");
    QuantizedModel::from_float(float_model()).unwrap().save(&path).unwrap();
    folder.refuses("model", path, 1, &["float.safetensors", "quantizes nothing", "quant: off"]);
    let other = of_another_network(&folder);
    folder.refuses("model", other, 1, &["other.safetensors", "calibrated from `float`"]);
}

#[test]
fn data_that_does_not_fit() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    folder.refuses("data.path", folder.path("nosuch"), 1, &["nosuch"]);
    folder.refuses("data.val_path", folder.path("nosuch"), 1, &["nosuch"]);
    let other = folder.path("data");
    std::fs::create_dir(&other).unwrap();
    for split in ["train", "val"] {
        let [zip, map] = [format!("{split}.zip"), format!("{split}_map.txt")];
        std::fs::copy(sample_data().join(&zip), other.join(&zip)).unwrap();
        let text = std::fs::read_to_string(sample_data().join(&map)).unwrap();
        std::fs::write(other.join(&map), text.replace("\t9", "\t99")).unwrap();
    }
    folder.refuses("data.path", &other, 1, &["100 classes", "has 10"]);
    folder.refuses("data.val_path", &other, 1, &["100 classes", "has 10"]);
    // Fewer classes than the model has, with one folder for each.
    let image = crate::common::root().join("tests/data/airplane.jpg");
    for (split, class) in [("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")] {
        std::fs::create_dir_all(folder.path("few").join(split).join(class)).unwrap();
        std::fs::copy(&image, folder.path("few").join(split).join(class).join("1.jpg")).unwrap();
    }
    folder.refuses("data.path", folder.path("few"), 1, &["2 classes", "10"]);
}

#[test]
fn outputs_that_cannot_be() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    std::fs::write(folder.path("file"), "mine").unwrap();
    folder.refuses("output", folder.path("file"), 1, &["file"]);
    folder.refuses("output", folder.path("file/below"), 1, &["file/below"]);
    assert_eq!(std::fs::read_to_string(folder.path("file")).unwrap(), "mine");
    if cfg!(target_os = "linux") {
        folder.refuses("output", "/proc/swinq", 1, &["/proc/swinq"]);
    }
    let other = folder.out().join("checkpoints/step-000000003.safetensors");
    std::fs::create_dir_all(other.parent().unwrap()).unwrap();
    std::fs::write(&other, "a checkpoint").unwrap();
    refused(folder.run(&[]), 1, &["checkpoints", "--resume", "another output"]);
    assert_eq!(files(&folder.out()), ["checkpoints", "run.lock"]);
    // Nor is it replaced by a run that was to continue from it. The warning is on standard error.
    let resumed = folder.run(&["--resume"]);
    let said = crate::common::stdout(&resumed);
    refused(resumed, 1, &["step-000000003.safetensors: is damaged", "no intact checkpoint", "--restart"]);
    assert!(!said.contains("damaged"), "{said}");
    assert_eq!(files(&folder.out()), ["checkpoints", "run.lock"]);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "a checkpoint");
}

/// A job's number of threads, which the pool would not start.
#[test]
fn too_many_threads() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    folder.refuses("threads", "20000", 1, &["threads", "20000", "at most 1024"]);
}

/// A training does not replace its own inputs: here the float checkpoint is a file, and a folder, where the
/// output goes.
#[test]
fn the_inputs_are_kept() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    let float = folder.out().join("model.safetensors");
    std::fs::create_dir(folder.out()).unwrap();
    std::fs::copy(crate::common::sample_model(), &float).unwrap();
    let before = std::fs::read(&float).unwrap();
    folder.refuses("float", &float, 1, &["model.safetensors", "would replace the input"]);
    refused(
        folder.run(&["--dry-run", "--opts", "float", float.to_str().unwrap()]),
        1,
        &["would replace the input"],
    );
    assert_eq!(files(&folder.out()), ["model.safetensors"]);
    assert_eq!(std::fs::read(&float).unwrap(), before);
}

/// A job with the name that the training gives to the job of all keys is not replaced.
#[test]
fn a_job_in_the_output_folder_is_kept() {
    let folder = Folder::of_job(&format!("# mine\n{}steps: 1\n", data()));
    std::fs::create_dir(folder.out()).unwrap();
    let job = folder.out().join("job.yaml");
    std::fs::copy(folder.path("job.yaml"), &job).unwrap();
    let mut command = swinq(["qat"]);
    refused(command.arg(&job).assert(), 1, &["job.yaml", "would replace this job", "rename"]);
    assert!(std::fs::read_to_string(&job).unwrap().contains("# mine"));
    assert_eq!(files(&folder.out()), ["job.yaml"]);
}

/// A small file system that only this process's children see. No checkpoint fits into it.
#[cfg(target_os = "linux")]
#[test]
fn no_space_left_for_a_checkpoint() {
    let folder = Folder::of_job(&format!("{}steps: 1\n", data()));
    std::fs::create_dir(folder.out()).unwrap();
    let script = "mount -t tmpfs -o size=2m none \"$1\" || exit 77; \"$2\" qat \"$3\"; code=$?; \
                  ls -A \"$1/checkpoints\" >&2; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(folder.out());
    command.arg(env!("CARGO_BIN_EXE_swinq")).arg(folder.path("job.yaml"));
    let Ok(output) = command.output() else {
        return eprintln!("SKIPPED no_space_left_for_a_checkpoint: there is no unshare");
    };
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || message.contains("unshare failed") {
        return eprintln!("SKIPPED no_space_left_for_a_checkpoint: no file system of one's own: {message}");
    }
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("step-000000001") && message.contains("No space left"), "{message}");
    assert!(!message.contains(".part"), "a half file stayed: {message}");
}
