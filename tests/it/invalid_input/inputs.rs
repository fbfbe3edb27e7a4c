//! Recipes, configurations and images.

use std::path::Path;

use super::{Folder, quantized};
use crate::common::{self, calibrate, refused, sample_cfg, sample_data, sample_model, swinq};

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
    let eval = |data: &str| {
        let mut command = swinq(["eval", "--no-latency"]);
        command.arg(&good).arg("--data-path").arg(folder.path(data)).assert()
    };
    let line = map.lines().position(|line| line.ends_with("\t9")).unwrap();
    let image = map.lines().nth(line).unwrap().split('\t').next().unwrap();
    let place = format!("val_map.txt, line {}: val.zip@/{image} has class 99", line + 1);
    refused(
        eval("data"),
        1,
        &["100 classes", "has 10, from 0 to 9", &place, "the data the model was trained on?"],
    );
    let image = std::fs::read(common::root().join("tests/data/airplane.jpg")).unwrap();
    folder.write("list/a.jpg", image);
    folder.write("list/list.txt", "\na.jpg\t10\n");
    refused(eval("list/list.txt"), 1, &["list.txt, line 2: a.jpg has class 10", "has 10, from 0 to 9"]);
}

/// Commands that can leave out corrupt images say how.
/// The name of the output of a command.
fn output_of(command: &str) -> &'static str {
    if command == "sensitivity" { "out.json" } else { "out.safetensors" }
}

#[test]
fn corrupt_images_and_the_option_that_leaves_them_out() {
    let folder = Folder::new();
    let good = quantized(&folder);
    let image = std::fs::read(common::root().join("tests/data/airplane.jpg")).unwrap();
    for name in ["a", "b"] {
        folder.write(&format!("data/{name}.jpg"), &image[..image.len() / 2]);
    }
    folder.write("data/c.jpg", &image);
    folder.write("data/list.txt", "a.jpg\t0\nb.jpg\t0\nc.jpg\t0\n");
    let list = folder.path("data/list.txt");
    let option = "--skip-corrupt N leaves out";
    let float = |name: &str, more: &[&str]| {
        let mut command = swinq([name]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("--data-path").arg(&list).args(more);
        command.arg("-o").arg(folder.path(output_of(name))).assert()
    };
    refused(float("calibrate", &[]), 1, &["a.jpg", option]);
    refused(float("sensitivity", &["--calibration-images", "1"]), 1, &[".jpg", option]);
    refused(float("tune", &["--calibration-images", "1"]), 1, &[".jpg", option]);
    let eval = |skip: &str| {
        let mut command = swinq(["eval", "--no-latency", "--skip-corrupt", skip]);
        command.arg(&good).arg("--data-path").arg(&list).assert()
    };
    refused(eval("0"), 1, &["a.jpg", option]);
    refused(eval("1"), 1, &["b.jpg", "the limit of corrupt images to leave out (1) was reached", option]);
    eval("2").success();
    #[cfg(unix)]
    {
        folder.write("links/c.jpg", &image);
        std::os::unix::fs::symlink("nothing.jpg", folder.path("links/b.jpg")).unwrap();
        let out = folder.path("link.safetensors");
        let calibrate = |skip: &str| {
            let mut command = swinq(["calibrate", "--ptq", "basic", "--skip-corrupt", skip]);
            command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg("-o").arg(&out);
            command.arg("--data-path").arg(folder.path("links")).assert()
        };
        refused(calibrate("0"), 1, &["b.jpg: a symbolic link to nothing.jpg", "remove the link", option]);
        calibrate("1").success();
        let found = swinq(["predict"]).arg(&good).arg(folder.path("links")).assert().code(1);
        assert!(common::stdout(&found).contains("c.jpg"));
        assert!(common::stderr(&found).contains("b.jpg: a symbolic link to nothing.jpg"));
    }
    let predict = swinq(["predict"]).arg(&good).arg(folder.path("data/a.jpg")).assert();
    assert!(!common::stderr(&predict.code(1)).contains("--skip-corrupt"));
}

/// All images are corrupt, so that an option is refused before an image is read if its message comes.
#[test]
fn options_that_no_run_can_have_are_refused_before_an_image_is_read() {
    let folder = Folder::new();
    let good = quantized(&folder);
    folder.write("data/a.jpg", b"no image");
    folder.write("data/b.jpg", b"no image");
    let list = folder.write("data/list.txt", "a.jpg\t0\nb.jpg\t0\n");
    let recipe = folder.write("recipe.yaml", "name: x\nrules: [{match: 'layers.9.**', enable: false}]\n");
    let all_off = folder.write("off.yaml", "name: off\nrules: [{match: '**', enable: false}]\n");
    let times =
        "\"ms\": {}, \"reference_ms\": null, \"spread\": 0.0, \"settled\": false, \"disturbed\": null";
    let machine = "\"machine\": \"kernels of another, 9 threads\", \"batch_size\": 1";
    let table = folder.write("table.json", format!("{{\"schema\": 3, {machine}, {times}}}"));
    let [recipe, all_off, table] = [&recipe, &all_off, &table].map(|path| path.to_str().unwrap());
    let nowhere = folder.path("none/file");
    let nowhere = nowhere.to_str().unwrap();
    let run = |command: &str, more: &[&str]| {
        let mut swinq = swinq([command]);
        swinq.args(["--data-path"]).arg(&list).args(more);
        match command {
            "eval" => swinq.arg(&good),
            _ => swinq
                .arg(sample_model())
                .arg("--cfg")
                .arg(sample_cfg())
                .arg("-o")
                .arg(folder.path(output_of(command))),
        };
        swinq.assert()
    };
    for command in ["calibrate", "sensitivity", "tune", "eval"] {
        refused(run(command, &[]), 1, &[".jpg"]);
    }
    let of_recipes: [(&[&str], &str); 4] = [
        (&["--recipe", "mode9"], "mode9"),
        (&["--recipe", recipe], "layers.9"),
        (&["--recipe", all_off], "off"),
        (&["--ptq", "fancy"], "fancy"),
    ];
    let both = ["calibrate", "sensitivity", "tune"]
        .into_iter()
        .flat_map(|command| of_recipes.map(|(options, word)| (command, options, word)));
    let own: [(&str, &[&str], &str); 11] = [
        ("calibrate", &["--disable", "layers.9.**"], "layers.9"),
        ("sensitivity", &["--only", "layers.7.**"], "one of them is"),
        ("sensitivity", &["--only", "re:("], "re:("),
        ("sensitivity", &["--ptq", "reconstruct"], "reconstruct"),
        ("tune", &["--ptq", "reconstruct"], "reconstruct"),
        ("tune", &["--latencies", table], "holds times of kernels of another, 9 threads at batch 1"),
        ("tune", &["--latencies", nowhere], "none"),
        ("tune", &["--max-drop=-1"], "max-drop"),
        ("tune", &["--batch-size", "0"], "batch-size"),
        ("eval", &["--latency", "0"], "latency"),
        ("eval", &["--json", nowhere], "none"),
    ];
    for (command, options, word) in both.chain(own) {
        let assert = run(command, options);
        let message = common::stderr(&assert);
        assert_ne!(assert.get_output().status.code(), Some(0), "{command} {options:?}");
        assert!(message.contains(word) && !message.contains(".jpg"), "{command} {options:?}: {message}");
    }
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
    let mut command = swinq(["predict"]);
    command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg(&pipe);
    let run = command.timeout(std::time::Duration::from_secs(60)).assert().code(1);
    assert!(common::stderr(&run).contains("pipe: not a regular file"), "{}", common::stderr(&run));
}

/// CRC-32 of PNG (ISO 3309), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (0u32.wrapping_sub(crc & 1))))
    })
}
