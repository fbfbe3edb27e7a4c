//! `swinq qat` on the bundled sample: its results, which the other commands accept, killed and interrupted
//! runs, and refusals.

mod backbones;
mod invalid_jobs;
mod ranks;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::{
    Folder, calibrate, files, refused, sample_cfg, sample_data, sample_model, stderr, stdout, swinq,
};
use assert_cmd::assert::Assert;
use swinq_model::QuantizedModel;

/// Folders that contain a job, `job.yaml`. The job's output folder is `out`.
impl Folder {
    /// A short quantized job; `more` holds additional lines of it.
    fn of_job(more: &str) -> Folder {
        Folder::with_job(&format!("model: {}\n{more}", calibrated().display()))
    }

    /// A job without a calibrated checkpoint.
    fn with_job(lines: &str) -> Folder {
        let folder = Folder::new();
        let text = format!(
            "float: {}\ncfg: {}\noutput: {}\nbatch_size: 2\nthreads: 2\nlog: {{every: 1}}\n{lines}",
            sample_model().display(),
            sample_cfg().display(),
            folder.out().display()
        );
        std::fs::write(folder.path("job.yaml"), text).unwrap();
        folder
    }

    fn out(&self) -> PathBuf {
        self.path("out")
    }

    fn run(&self, more: &[&str]) -> Assert {
        swinq(["qat"]).arg(self.path("job.yaml")).args(more).assert()
    }

    /// Starts the job as a process that the test can kill.
    fn start(&self, more: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swinq"));
        command.arg("qat").arg(self.path("job.yaml")).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Asserts that a run with `--opts KEY VALUE` is refused with `code` and `words`, and writes nothing.
    #[track_caller]
    fn refuses(&self, key: &str, value: impl AsRef<Path>, code: i32, words: &[&str]) {
        let before = files(self.as_path());
        refused(self.run(&["--opts", key, value.as_ref().to_str().unwrap()]), code, words);
        assert_eq!(files(self.as_path()), before, "{key} left files");
    }
}

/// The lines of a job for the bundled images, with few validation images.
fn data() -> String {
    format!("data: {{path: {}, val_limit: 20}}\n", sample_data().display())
}

/// The sample, calibrated once for all tests.
fn calibrated() -> &'static Path {
    static PLACE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PLACE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("q.safetensors");
        calibrate(&path, &["--batches", "1"]).success();
        (folder, path)
    });
    path
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn eval(model: &Path) -> String {
    let mut command = swinq(["eval"]);
    command.arg(model).arg("--data-path").arg(sample_data()).args(["--limit", "20", "--no-latency"]);
    stdout(&command.assert().success())
}

#[test]
fn a_quantized_training_ends_in_a_model_that_eval_takes() {
    let folder = Folder::of_job(&format!("{}steps: 3\n", data()));
    let assert = folder.run(&[]).success();
    let (out, err) = (stdout(&assert), stderr(&assert));
    for word in
        ["learning rates", "3 iterations of 2 images", "top-1", "agreement with the teacher", "peak memory"]
    {
        assert!(out.contains(word), "`{word}` is not in: {out}");
    }
    for word in ["qat: 3/3 iterations, loss ", " images/s", "ETA"] {
        assert!(err.contains(word), "`{word}` is not in: {err}");
    }
    assert_eq!(
        files(&folder.out()),
        [
            "best.safetensors",
            "checkpoints",
            "job.yaml",
            "log.jsonl",
            "model.safetensors",
            "run.lock",
            "tensorboard"
        ]
    );
    let log = std::fs::read_to_string(folder.out().join("log.jsonl")).unwrap();
    let mut records = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let last = records.rfind(|record| record["kind"] == "step").unwrap();
    assert!(last["loader_images_per_second"].as_f64().unwrap() > 0.0, "{last}");
    assert!((0.0..=1.0).contains(&last["loader_wait"].as_f64().unwrap()), "{last}");
    let model = folder.out().join("model.safetensors");
    assert!(std::fs::read(&model).unwrap() != std::fs::read(calibrated()).unwrap());
    assert!(eval(&model).contains(" * Acc@1 "));
    let text = stdout(&swinq(["inspect"]).arg(&model).assert().success());
    let [teacher, start] = [sample_model(), calibrated().to_owned()].map(|path| {
        let sha256 = sha256(&std::fs::read(&path).unwrap());
        format!("{} (SHA-256 {sha256})", path.display())
    });
    let images = format!("3 iterations on 256 images of {}", sample_data().display());
    for word in ["made by       QAT: job qat, ", &images, "loss 1 kl + 1 labels", &teacher, &start] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    let page = folder.path("report.html");
    let mut command = swinq(["eval", "--limit", "20", "--no-latency", "--data-path"]);
    command.arg(sample_data()).arg(calibrated()).arg(&model).arg("--report").arg(&page);
    command.assert().success();
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("QAT: job qat, 3 iterations") && page.contains(">PTQ<"),
        "the report names the methods"
    );
    refused(folder.run(&[]), 1, &["checkpoints", "--resume"]);
}

#[test]
fn a_training_goes_on_when_its_files_have_moved_but_not_when_they_have_changed() {
    let folder = Folder::of_job(&format!("{}steps: 2\n", data()));
    folder.run(&[]).success();
    let (cfg, float) = (folder.path("moved.yaml"), folder.path("moved.safetensors"));
    std::fs::copy(sample_cfg(), &cfg).unwrap();
    std::fs::copy(sample_model(), &float).unwrap();
    let moved =
        ["--resume", "--opts", "cfg", cfg.to_str().unwrap(), "--opts", "float", float.to_str().unwrap()];
    folder.run(&moved).success();
    let text = std::fs::read_to_string(&cfg).unwrap();
    std::fs::write(&cfg, text.replace("NAME: swin_micro_cifar10", "NAME: another")).unwrap();
    refused(folder.run(&moved), 1, &["cfg is"]);
}

#[test]
fn a_float_training_ends_in_a_model_that_calibrate_and_eval_take() {
    let folder = Folder::with_job(&format!("quant: off\n{}steps: 2\nloss: {{kl: 0}}\n", data()));
    folder.run(&[]).success();
    let (float, int8) = (folder.out().join("float.safetensors"), folder.path("q.safetensors"));
    assert!(eval(&float).contains(" * Acc@1 "));
    let mut command = swinq(["calibrate"]);
    command.arg(&float).arg("--data-path").arg(sample_data()).args(["--batches", "1", "-o"]).arg(&int8);
    command.assert().success();
    assert!(eval(&int8).contains(" * Acc@1 "));
    // A quantized training run also accepts it as its float checkpoint.
    let train = |float: &Path| {
        let next = Folder::with_job(&format!("model: {}\n{}steps: 1\n", int8.display(), data()));
        stderr(&next.run(&["--opts", "float", float.to_str().unwrap(), "--opts", "cfg", "null"]).success())
    };
    assert!(!train(&float).contains("was made from"));
    // The result of another training run is another file. The ranges were not calibrated on its weights.
    let other = Folder::with_job(&format!("quant: off\n{}steps: 1\nloss: {{kl: 0}}\n", data()));
    other.run(&[]).success();
    assert!(train(&other.out().join("float.safetensors")).contains("was made from"));
}

/// A job with all kinds of state: learned scales, a moving average, DropPath, accumulation, augmentation.
const FULL: &str = "steps: 12\naccumulate: 2\ndrop_path: 0.2\noptimizer: {lr: 1e-3, lr_scales: 1e-3, ema: 0.9}\n\
                    quantization: {activation_scales: learned, weight_scales: learned}\naugment: {flip: 0.5}\n\
                    checkpoint: {every: 1, keep: 2}\n";

/// Kills the training run `moment` after some iterations, unless it ends before that.
fn kill_after(mut child: Child, iterations: usize, moment: Duration) -> ExitStatus {
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    lines.filter(|line| line.contains(" iterations, loss ")).take(iterations).for_each(drop);
    std::thread::sleep(moment);
    child.kill().unwrap();
    child.wait().unwrap()
}

#[test]
fn killed_again_and_again_it_gives_the_same_bytes() {
    let [whole, killed] = [(), ()].map(|()| Folder::of_job(&(data() + FULL)));
    whole.run(&[]).success();
    let (mut random, mut kills) = (0x2545_f491_4f6c_dd1du64, 0);
    loop {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The number of threads changes from run to run. The first run has no checkpoint to continue from.
        let child = killed.start(&["--resume", "--opts", "threads", ["1", "2"][kills % 2]]);
        let iterations = 1 + (random % 3) as usize;
        let status = kill_after(child, iterations, Duration::from_millis(random / 3 % 80));
        match status.code() {
            Some(code) => break assert_eq!(code, 0, "after {kills} kills"),
            None => kills += 1,
        }
    }
    eprintln!("killed {kills} times");
    assert!(kills >= 4, "killed {kills} times");
    for file in ["model.safetensors", "checkpoints/step-000000012.safetensors"] {
        let [a, b] = [&whole, &killed].map(|folder| std::fs::read(folder.out().join(file)).unwrap());
        assert!(a == b, "{file} differs after {kills} kills");
    }
    // A kill after a checkpoint is written and before the one it replaces is removed leaves one more.
    let kept = files(&killed.out().join("checkpoints")).len();
    assert!((2..=3).contains(&kept), "{kept} checkpoints");
}

/// Waits for the progress line of the first iteration, and returns the output until then.
fn wait_for_an_iteration(child: &mut Child) -> String {
    let mut said = String::new();
    for line in BufReader::new(child.stderr.as_mut().unwrap()).lines() {
        said += &(line.unwrap() + "\n");
        if said.contains(" iterations, loss ") {
            return said;
        }
    }
    panic!("no iteration was done: {said}")
}

#[cfg(unix)]
#[test]
fn signals_save_and_end() {
    let folder = Folder::of_job(&format!("{}steps: 10000\ncheckpoint: {{every: 0}}\n", data()));
    for (signal, more) in [("-TERM", &[][..]), ("-INT", &["--resume"])] {
        let mut child = folder.start(more);
        wait_for_an_iteration(&mut child);
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let code = if signal == "-INT" { 130 } else { 143 };
        assert_eq!(output.status.code(), Some(code), "{signal}: {said}");
        assert!(
            said.contains("job.yaml --resume` continues from ") && said.contains("step-0"),
            "{signal}: {said}"
        );
        assert_eq!(said.contains("continues after iteration "), !more.is_empty(), "{said}");
    }
    assert_eq!(files(&folder.out().join("checkpoints")).len(), 2);
    assert!(folder.out().join("job.yaml").exists(), "the job continues the training");
    assert!(!folder.out().join("model.safetensors").exists(), "half a training is no model");
}

/// Two trainings in one folder would remove each other's checkpoints.
#[cfg(unix)]
#[test]
fn a_folder_in_use_is_refused_by_the_name_of_its_user() {
    let folder = Folder::of_job(&format!("{}steps: 10000\ncheckpoint: {{every: 1}}\n", data()));
    let mut child = folder.start(&[]);
    wait_for_an_iteration(&mut child);
    let holder = format!("(process {} on ", child.id());
    for more in [&[][..], &["--resume"], &["--restart"]] {
        refused(
            folder.run(more),
            1,
            &["another training runs in this folder", &holder, "since 20", "another output"],
        );
    }
    assert!(child.try_wait().unwrap().is_none(), "the first training goes on");
    child.kill().unwrap();
    child.wait().unwrap();
    let steps = ["--opts", "steps", "3"];
    folder.run(&[&["--restart"][..], &steps].concat()).success();
    assert_eq!(files(&folder.out().join("checkpoints")).len(), 2);
}

/// The rows of a table, with the lines of each joined: cells that are too wide go on in the next line.
fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('|')) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        match rows.last_mut().filter(|_| cells[0].is_empty()) {
            Some(row) => row.iter_mut().zip(&cells).for_each(|(whole, more)| *whole += more),
            None => rows.push(cells),
        }
    }
    rows
}

#[test]
fn the_models_of_a_training_are_shown_side_by_side() {
    let folder = Folder::of_job(&format!("{}steps: 2\nvalidate: {{every: 1, limit: 10}}\n", data()));
    let out = folder.path("a-folder-with-a-name-that-is-much-longer-than-usual/and-another-one-in-it/out");
    std::fs::create_dir_all(out.parent().unwrap()).unwrap();
    let text = stdout(&folder.run(&["--opts", "output", out.to_str().unwrap()]).success());
    let table = text.split("on 20 validation images:").nth(1).unwrap_or_else(|| panic!("{text}"));
    let table = rows(table);
    let row = |kind: &str, file: &Path, note: &str| {
        let file = format!("{}{note}", file.display()).replace(' ', "");
        let found = table.iter().find(|row| row[0] == kind && row[4].replace(' ', "") == file);
        found.unwrap_or_else(|| panic!("{kind} {file} is not in: {text}"))
    };
    // The float model is the teacher.
    assert_eq!(row("FP32", &sample_model(), "")[3], "100.00", "{text}");
    row("PTQ", calibrated(), "");
    // The start is validated, and the models are compared on the images of every validation.
    assert!(text.contains("iteration 0: top-1 ") && text.contains(" of 10 images"), "{text}");
    let best = QuantizedModel::load(&out.join("best.safetensors")).unwrap();
    let training = best.provenance.training.unwrap();
    assert_eq!(training.chosen_by.unwrap().images, 10);
    let last = out.join("model.safetensors");
    if training.iterations < 2 {
        row("QAT", &last, "(the last)");
        let note = format!("(iteration {}, the best validated: these images chose it)", training.iterations);
        row("QAT", &out.join("best.safetensors"), &note);
    } else {
        row("QAT", &last, "(the last, and the best validated)");
    }
}

#[test]
fn a_dry_run_shows_everything_and_writes_nothing() {
    let folder = Folder::of_job(&format!("{}steps: 7\nschedule: {{warmup_steps: 2}}\n", data()));
    let text = stdout(&folder.run(&["--dry-run", "--opts", "optimizer.lr", "1.5e-4"]).success());
    for word in ["7 iterations of 2 images", "warmup ends", "1.5000e-4", "temperature: 2", "drop path   0"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    folder.holds_only(&["job.yaml"]);
}
