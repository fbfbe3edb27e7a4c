//! Bad input is refused with exit code 1 or 2 and a message that names the file, key or site and the remedy.
//! No output file remains.

mod common;

use std::path::{Path, PathBuf};

use common::{calibrate, files, refused, sample_cfg, sample_data, sample_model, swinq};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Asserts that the folder holds only the files that the test put there.
    #[track_caller]
    fn holds_only(&self, names: &[&str]) {
        assert_eq!(files(self.0.path()), names);
    }
}

/// A tensor taken out of a safetensors file, to be changed.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// Rewrites a safetensors file with `change` applied to its tensors and metadata. A quantized checkpoint becomes one of
/// version 1, which has no hash, so that what is changed is found by itself.
fn rewrite(from: &Path, to: &Path, change: impl FnOnce(&mut Vec<Entry>, &mut serde_json::Value)) {
    let bytes = std::fs::read(from).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata = header.metadata().clone().unwrap_or_default();
    let text = metadata.get("swinq").cloned();
    let mut json = text.map_or(serde_json::Value::Null, |t| serde_json::from_str(&t).unwrap());
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut entries: Vec<Entry> = tensors
        .iter()
        .map(|(name, view)| Entry {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        })
        .collect();
    if let Some(document) = json.as_object_mut() {
        document.insert("format_version".to_owned(), 1.into());
        document.remove("hash");
    }
    change(&mut entries, &mut json);
    if !json.is_null() {
        metadata.insert("swinq".to_owned(), json.to_string());
    }
    let views =
        entries.iter().map(|e| (e.name.clone(), TensorView::new(e.dtype, e.shape.clone(), &e.data).unwrap()));
    std::fs::write(to, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
}

fn entry<'a>(entries: &'a mut [Entry], name: &str) -> &'a mut Entry {
    entries.iter_mut().find(|e| e.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
}

/// A quantized checkpoint of the sample.
fn quantized(folder: &Folder) -> PathBuf {
    let path = folder.path("q.safetensors");
    calibrate(&path, &["--batches", "1"]).success();
    path
}

fn predict(model: &Path) -> assert_cmd::assert::Assert {
    let image = common::root().join("tests/data/airplane.jpg");
    swinq(["predict"]).arg(model).arg(image).assert()
}

const SITE: &str = "layers.0.blocks.0.mlp.fc1.input";

#[test]
fn an_uncalibrated_checkpoint() {
    let message = ["--cfg"];
    refused(predict(&sample_model()), 1, &message);
}

#[test]
fn damage_that_leaves_a_consistent_file() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    let mut bytes = std::fs::read(&good).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&bad, bytes).unwrap();
    refused(predict(&bad), 1, &["bad.safetensors", "is damaged", "hash xxh3-128:", "calibrate again"]);
    // Version 1 has no hash, and says so.
    rewrite(&good, &bad, |_, _| ());
    let warning = common::stderr(&predict(&bad).success());
    assert!(warning.contains("bad.safetensors has format version 1, which has no hash"), "{warning}");
    let good = common::stderr(&predict(&good).success());
    assert!(!good.contains("warning"), "{good}");
}

#[test]
fn a_half_calibrated_checkpoint() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    rewrite(&good, &bad, |entries, _| entries.retain(|e| e.name != format!("{SITE}.scale")));
    refused(predict(&bad), 1, &["bad.safetensors", SITE, "calibrate"]);
}

#[test]
fn a_bad_scale() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    for value in [-1.0f32, 0.0, f32::NAN, f32::INFINITY, 1e-45] {
        rewrite(&good, &bad, |entries, _| {
            entry(entries, &format!("{SITE}.scale")).data = value.to_le_bytes().to_vec();
        });
        refused(predict(&bad), 1, &["bad.safetensors", SITE]);
    }
}

#[test]
fn tensors_missing_extra_misshapen_or_not_finite() {
    let folder = Folder::new();
    let (good, bad) = (quantized(&folder), folder.path("bad.safetensors"));
    let name = "layers.1.blocks.2.norm1.weight";
    rewrite(&good, &bad, |entries, _| entries.retain(|e| e.name != name));
    refused(predict(&bad), 1, &["bad.safetensors", name]);
    rewrite(&good, &bad, |entries, _| {
        let data = vec![0; 4];
        entries.push(Entry { name: "stray".to_owned(), dtype: Dtype::F32, shape: vec![1], data });
    });
    refused(predict(&bad), 1, &["bad.safetensors", "stray"]);
    rewrite(&good, &bad, |entries, _| entry(entries, name).shape = vec![64, 2]);
    refused(predict(&bad), 1, &["bad.safetensors", name, "shape"]);
    rewrite(&good, &bad, |entries, _| {
        entry(entries, name).data[..4].copy_from_slice(&f32::NAN.to_le_bytes())
    });
    refused(predict(&bad), 1, &["bad.safetensors", name, "NaN"]);
}

#[test]
fn the_same_in_a_float_checkpoint() {
    let folder = Folder::new();
    let (bad, out) = (folder.path("bad.safetensors"), folder.path("out.safetensors"));
    let run = || {
        let mut command = swinq(["calibrate"]);
        command.arg(&bad).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(sample_data());
        command.arg("-o").arg(&out).assert()
    };
    let name = "layers.0.blocks.1.mlp.fc2.weight";
    rewrite(&sample_model(), &bad, |entries, _| entries.retain(|e| e.name != name));
    refused(run(), 1, &["bad.safetensors", name]);
    rewrite(&sample_model(), &bad, |entries, _| {
        entries.push(Entry { name: "stray".to_owned(), dtype: Dtype::F16, shape: vec![1], data: vec![0; 2] });
    });
    refused(run(), 1, &["bad.safetensors", "stray"]);
    rewrite(&sample_model(), &bad, |entries, _| entry(entries, name).shape.reverse());
    refused(run(), 1, &["bad.safetensors", name, "shape"]);
    rewrite(&sample_model(), &bad, |entries, _| {
        entry(entries, name).data[..2].copy_from_slice(&[0x00, 0x7e])
    });
    refused(run(), 1, &["bad.safetensors", name, "NaN"]);
    folder.holds_only(&["bad.safetensors"]);
}

#[test]
fn truncated_files() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let bytes = std::fs::read(&good).unwrap();
    for len in [0, 4, 8, 1000, bytes.len() / 2, bytes.len() - 1] {
        let bad = folder.write("cut.safetensors", &bytes[..len]);
        refused(predict(&bad), 1, &["cut.safetensors"]);
    }
    let zip = std::fs::read(sample_data().join("val.zip")).unwrap();
    folder.write("data/val.zip", &zip[..zip.len() / 2]);
    folder.write("data/val_map.txt", std::fs::read(sample_data().join("val_map.txt")).unwrap());
    let mut command = swinq(["eval"]);
    command.arg(&good).arg("--data-path").arg(folder.path("data"));
    refused(command.assert(), 1, &["val.zip"]);
}

#[test]
fn a_pickle_that_tries_to_execute_something() {
    let folder = Folder::new();
    // A pickle that calls `os.system("touch owned")`, without the frames of newer protocols.
    let bad = folder.write("evil.pth", b"\x80\x02cos\nsystem\nX\x0b\x00\x00\x00touch owned\x85R.");
    let mut command = swinq(["calibrate"]);
    command.current_dir(folder.0.path()).arg(&bad).arg("--cfg").arg(sample_cfg());
    command.arg("--data-path").arg(sample_data()).args(["-o", "out.safetensors"]);
    refused(command.assert(), 1, &["evil.pth", "os", "system"]);
    folder.holds_only(&["evil.pth"]);
}

#[test]
fn recipes_that_match_nothing_or_say_nothing() {
    let folder = Folder::new();
    let out = folder.path("out.safetensors");
    refused(
        calibrate(&out, &["--disable", "layers.9.**"]),
        1,
        &["layers.9.**", "matches no site", "layers.0"],
    );
    let bad = folder.write("r.yaml", "name: r\nrules:\n  - {match: '**', enabel: true}\n");
    refused(calibrate(&out, &["--recipe", bad.to_str().unwrap()]), 1, &["r.yaml", "enabel"]);
    refused(calibrate(&out, &["--recipe", "nosuch"]), 1, &["nosuch", "default, mode1, mode2"]);
    folder.holds_only(&["r.yaml"]);
}

#[test]
fn configurations() {
    let folder = Folder::new();
    let out = folder.path("out.safetensors");
    let opts = |more: &[&str]| calibrate(&out, more);
    refused(opts(&["--opts", "MODEL.SWIN.EMBED_DMI", "64"]), 1, &["EMBED_DMI", "EMBED_DIM"]);
    refused(opts(&["--opts", "MODEL.SWIN.EMBED_DIM", "1000000000000"]), 1, &["EMBED_DIM"]);
    refused(opts(&["--opts", "MODEL.NUM_CLASSES", "7"]), 1, &["model.safetensors", "10", "7", "NUM_CLASSES"]);
    folder.holds_only(&[]);
}

#[test]
fn a_class_count_mismatch_between_data_and_model() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let map = std::fs::read_to_string(sample_data().join("val_map.txt")).unwrap();
    folder.write("data/val.zip", std::fs::read(sample_data().join("val.zip")).unwrap());
    folder.write("data/val_map.txt", map.replace("\t9", "\t99"));
    let mut command = swinq(["eval"]);
    command.arg(&good).arg("--data-path").arg(folder.path("data"));
    refused(command.assert(), 1, &["100 classes", "has 10", "MODEL.NUM_CLASSES 100"]);
}

#[test]
fn images() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let image = std::fs::read(common::root().join("tests/data/airplane.jpg")).unwrap();
    let run = |path: &Path| swinq(["predict"]).arg(&good).arg(path).assert();
    refused(run(&folder.write("cut.jpg", &image[..image.len() / 2])), 1, &["cut.jpg"]);
    refused(run(&folder.write("text.jpg", b"not an image")), 1, &["text.jpg"]);
    // A PNG header that claims 100,000 x 100,000 pixels.
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\x01\x86\xa0\0\x01\x86\xa0\x08\x02\0\0\0".to_vec();
    png.extend(crc32(&png[12..]).to_be_bytes());
    png.extend(b"\0\0\0\0IDAT");
    refused(run(&folder.write("huge.png", png)), 1, &["huge.png", "100000"]);
    refused(run(&folder.path("absent.jpg")), 1, &["absent.jpg"]);
    std::fs::create_dir(folder.path("empty")).unwrap();
    let mut command = swinq(["eval"]);
    refused(command.arg(&good).arg("--data-path").arg(folder.path("empty")).assert(), 1, &["empty"]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let folder = Folder::new();
    refused(calibrate(&folder.path("no/such/folder/q"), &[]), 1, &["no/such/folder", "does not exist"]);
    refused(calibrate(folder.0.path(), &[]), 1, &["folder"]);
    refused(calibrate(Path::new("/proc/q.safetensors"), &[]), 1, &["/proc/q.safetensors"]);
    folder.holds_only(&[]);
}

/// `/dev/full` refuses every write; a small tmpfs would need privileges.
#[cfg(target_os = "linux")]
#[test]
fn no_space_left_is_named() {
    let error = std::fs::write("/dev/full", b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let folder = Folder::new();
    let target = folder.path("out");
    let result = swinq_model::atomic::write_atomic(&target, |_| {
        std::fs::write("/dev/full", b"x")?;
        Ok(())
    });
    let message = result.unwrap_err().to_string();
    assert!(message.contains("out") && message.to_lowercase().contains("space"), "{message}");
    folder.holds_only(&[]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_no_file() {
    let folder = Folder::new();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
    child.arg("calibrate").arg(sample_model()).arg("--cfg").arg(sample_cfg());
    child.arg("--data-path").arg(sample_data()).args(["--batches", "250", "--batch-size", "1", "-o"]);
    child
        .arg(folder.path("q.safetensors"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = child.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted"), "{message}");
    folder.holds_only(&[]);
}

#[test]
fn wrong_usage_has_exit_code_2() {
    for args in [&["frobnicate"][..], &["calibrate"], &["eval"], &["bench", "--batch-size", "0", "x"]] {
        assert_eq!(swinq(args).assert().get_output().status.code(), Some(2), "{args:?}");
    }
}

/// CRC-32 of PNG (ISO 3309), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (0u32.wrapping_sub(crc & 1))))
    })
}

#[test]
fn outputs_that_would_replace_an_input() {
    let folder = Folder::new();
    let model = folder.write("m.safetensors", std::fs::read(sample_model()).unwrap());
    let (cfg, good) = (folder.write("c.yaml", std::fs::read(sample_cfg()).unwrap()), quantized(&folder));
    let before = [&model, &cfg, &good].map(|path| std::fs::read(path).unwrap());
    let calibrate_to = |output: &Path| {
        let mut command = swinq(["calibrate"]);
        command
            .arg(&model)
            .arg("--cfg")
            .arg(&cfg)
            .arg("--data-path")
            .arg(sample_data())
            .arg("-o")
            .arg(output);
        command.assert()
    };
    refused(calibrate_to(&model), 1, &["replace the input"]);
    refused(calibrate_to(&cfg), 1, &["replace the input"]);
    let image = common::root().join("tests/data/airplane.jpg");
    let mut command = swinq(["predict"]);
    refused(command.arg(&good).arg(&image).arg("--logits").arg(&good).assert(), 1, &["replace the input"]);
    let mut command = swinq(["eval"]);
    command.arg(&good).arg("--data-path").arg(sample_data()).arg("--json").arg(&good);
    refused(command.assert(), 1, &["replace the input"]);
    let both = folder.path("both");
    let mut command = swinq(["eval"]);
    command
        .arg(&good)
        .arg("--data-path")
        .arg(sample_data())
        .arg("--json")
        .arg(&both)
        .arg("--report")
        .arg(&both);
    refused(command.assert(), 1, &["two outputs"]);
    assert!(before == [&model, &cfg, &good].map(|path| std::fs::read(path).unwrap()));
}

#[test]
fn arguments_that_would_have_no_effect() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let mut command = swinq(["inspect"]);
    refused(
        command.arg(&good).args(["--transform", "timm"]).assert(),
        2,
        &["--transform", "every model given is quantized"],
    );
    refused(calibrate(&folder.path("out"), &["--disable", "**"]), 1, &["quantizes no site"]);
    folder.holds_only(&["q.ranges.json", "q.safetensors"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_goes_away_and_a_full_output() {
    let folder = Folder::new();
    let (good, json) = (quantized(&folder), folder.path("r.json"));
    let run = |stdout: std::process::Stdio| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
        command.arg("eval").arg(&good).arg("--data-path").arg(sample_data());
        command.args(["--limit", "10", "--no-latency", "--json"]).arg(&json).stdout(stdout);
        command.stderr(std::process::Stdio::piped()).output().unwrap()
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(writer.into());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(json.exists());
    let output = run(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("standard output") && !message.contains("panicked"), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn devices_oversized_files_and_own_inputs() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let zero = &["/dev/zero", "not a regular file"];
    refused(calibrate(&folder.path("out"), &["--recipe", "/dev/zero"]), 1, zero);
    refused(swinq(["qat", "/dev/zero"]).assert(), 1, zero);
    refused(calibrate(Path::new("/dev/null"), &[]), 1, &["/dev/null", "not a regular file"]);
    let rules = "  - {match: \"**\", enable: true}\n".repeat(4097);
    let long = folder.write("long.yaml", format!("name: long\nrules:\n{rules}"));
    let long = long.to_str().unwrap();
    refused(calibrate(&folder.path("out"), &["--recipe", long]), 1, &["4097 rules", "at most 4096"]);
    let big = folder.write("big.yaml", vec![b' '; (1 << 20) + 1]);
    refused(
        calibrate(&folder.path("out"), &["--recipe", big.to_str().unwrap()]),
        1,
        &["more than 1048576 bytes"],
    );
    let cfg = folder.path("cfg.yaml");
    std::fs::copy(sample_cfg(), &cfg).unwrap();
    let list = folder.write("list.txt", "");
    for (output, path) in [("--report", &cfg), ("--json", &list)] {
        let mut command = swinq(["eval", "--no-latency"]);
        command.arg(sample_model()).arg(&good).arg("--cfg").arg(&cfg).arg("--data-path").arg(&list);
        refused(command.arg(output).arg(path).assert(), 1, &["would replace the input"]);
    }
    assert_eq!(std::fs::read(&cfg).unwrap(), std::fs::read(sample_cfg()).unwrap());
}

/// A pipe without a writer would make the command wait for ever.
#[cfg(unix)]
#[test]
fn a_pipe_is_neither_a_model_nor_data() {
    let folder = Folder::new();
    let pipe = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for words in [&["inspect"][..], &["predict", "cat.jpg"]] {
        let mut command = swinq([words[0]]);
        command.arg(&pipe).args(&words[1..]).timeout(std::time::Duration::from_secs(60));
        refused(command.assert(), 1, &["pipe", "not a regular file"]);
    }
    let mut command = swinq(["eval"]);
    command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(&pipe);
    command.timeout(std::time::Duration::from_secs(60));
    refused(command.assert(), 1, &["pipe", "neither a regular file nor a folder"]);
}

/// Folders are numbered by their sorted names; a model that has the same names in another order would be wrong.
#[test]
fn class_folders_in_another_order_than_the_models_names() {
    let names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];
    let folder = Folder::new();
    let image = common::root().join("tests/data/airplane.jpg");
    for name in names {
        let class = folder.path("data/val").join(name);
        std::fs::create_dir_all(&class).unwrap();
        std::fs::copy(&image, class.join("1.jpg")).unwrap();
    }
    let eval = |labels: &[&str]| {
        let labels = folder.write("labels.txt", labels.join("\n"));
        let mut command = swinq(["eval", "--no-latency", "--labels"]);
        command.arg(labels).arg(sample_model()).arg("--cfg").arg(sample_cfg());
        command.arg("--data-path").arg(folder.path("data")).assert()
    };
    eval(&names).success();
    let mut reversed = names;
    reversed.reverse();
    refused(eval(&reversed), 1, &["in another order", "class 0 is airplane here and truck there"]);
    let mut typo = names;
    typo[3] = "kat";
    refused(eval(&typo), 1, &["1 of 10 class names", "cat"]);
}

#[test]
fn a_message_does_not_repeat_a_long_value() {
    let folder = Folder::new();
    let cfg = folder.write("long.yaml", format!("x: {}", "9".repeat(100_000)));
    let assert = swinq(["bench", "--random-weights", "0", "--cfg"]).arg(cfg).assert();
    let length = assert.get_output().stderr.len();
    assert!(length < 4096, "{length} bytes");
    refused(assert, 1, &["long.yaml", "bytes left out"]);
}

#[test]
fn absurd_numbers_are_refused_before_any_work() {
    let sample = |command: &str, words: &[&str]| {
        let mut command = swinq([command]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(words);
        command
    };
    let data = sample_data();
    let data = data.to_str().unwrap();
    let threads = ["--threads", "20000"];
    let message = ["--threads", "1024"];
    refused(sample("bench", &threads).assert(), 2, &message);
    refused(sample("eval", &[&["--data-path", data][..], &threads].concat()).assert(), 2, &message);
    refused(
        sample("sensitivity", &[&["--data-path", data, "-o", "s"][..], &threads].concat()).assert(),
        2,
        &message,
    );
    refused(swinq(["bench", "softmax", "--threads", "20000"]).assert(), 2, &message);
    let huge = ["--data-path", data, "--latency", "1000000000"];
    refused(sample("eval", &huge).assert(), 2, &["--latency", "65536"]);
    refused(sample("bench", &["--batch-size", "70000"]).assert(), 2, &["--batch-size", "65536"]);
    refused(sample("bench", &["--seconds", "1e9"]).assert(), 2, &["--seconds", "3600"]);
    refused(sample("bench", &["--decode-memory", "0"]).assert(), 2, &["--decode-memory", "500M"]);
}

#[test]
fn messages_name_the_option_and_the_next_step() {
    let sample = |command: &str, words: &[&str]| {
        let mut command = swinq([command]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(words).assert()
    };
    refused(sample("eval", &["--data-path", "absent"]), 1, &["--data-path absent", "No such file"]);
    let data = sample_data();
    let data = data.to_str().unwrap();
    refused(sample("eval", &["--data-path", data, "--tuning", "absent.json"]), 1, &["--tuning absent.json"]);
    refused(sample("calibrate", &["--ft-amax", "absent.pth", "-o", "q"]), 1, &["--ft-amax absent.pth"]);
    refused(sample("sensitivity", &["--data-path", "absent", "-o", "s"]), 1, &["--data-path absent"]);
    refused(sample("tune", &["--data-path", "absent", "-o", "t"]), 1, &["--data-path absent"]);
    let shipped = ["`default`", "mode1_kl", "finetune"];
    refused(swinq(["qat", "defalt"]).assert(), 1, &shipped);
    let disabled = ["--data-path", data, "--disable", "head", "-o", "q"];
    refused(sample("calibrate", &disabled), 1, &["did you mean `head.**`"]);
    refused(
        sample("calibrate", &["--data-path", data, "--recipe", "absent.yaml", "-o", "q"]),
        1,
        &["--recipe", "absent.yaml"],
    );
}
