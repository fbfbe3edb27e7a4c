//! Messages of the program about its arguments: what they advise is accepted.

use super::{Book, says};
use crate::common::{stderr, swinq};

/// A command line that is refused, a part of the message, and the line that it advises.
type Advice = (&'static str, &'static str, &'static str);

const ADVICE: [Advice; 16] = [
    (
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic --pad-to 8 -o @a.safetensors",
        "(for a backbone, add --task features)",
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic --pad-to 8 -o @a.safetensors --task features",
    ),
    (
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic --size 24x24 -o @a.safetensors",
        "(for a backbone, add --task features)",
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic --size 24x24 -o @a.safetensors --task features",
    ),
    (
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic -o @b.pth",
        "b.safetensors",
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic -o @b.safetensors",
    ),
    (
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic --limit 4 -o @b.safetensors",
        "--batches N and --batch-size N",
        "calibrate @ms.pth --cfg @small.yaml --data-path @pictures --ptq basic --batches 2 --batch-size 2 -o @b.safetensors",
    ),
    (
        "calibrate @ms.pth --cfg @small.yaml --data-path @broken --ptq basic -o @b.safetensors",
        "--skip-corrupt N leaves out up to N",
        "calibrate @ms.pth --cfg @small.yaml --data-path @broken --ptq basic --skip-corrupt 3 -o @b.safetensors",
    ),
    (
        "calibrate @ms.pth --cfg @small.yaml --data-path @folders --ptq basic -o @b.safetensors",
        "pass --split val to use it",
        "calibrate @ms.pth --cfg @small.yaml --data-path @folders --ptq basic --split val -o @b.safetensors",
    ),
    (
        "eval @ms.pth --cfg @small.yaml --data-path @classes --split test --no-latency",
        "pass --split val to use it",
        "eval @ms.pth --cfg @small.yaml --data-path @classes --split val --no-latency",
    ),
    (
        "eval --simulate exact @q.safetensors --data-path @classes --no-latency",
        "write --simulate=exact",
        "eval --simulate=exact @q.safetensors --data-path @classes --no-latency",
    ),
    (
        "eval --cfg @small.yaml --opts MODEL.NUM_CLASSES 5 @ms.pth --data-path @classes --no-latency",
        "put models and images before --opts",
        "eval @ms.pth --cfg @small.yaml --opts MODEL.NUM_CLASSES 5 --data-path @classes --no-latency",
    ),
    (
        "eval @own/backbone.safetensors @q_backbone.safetensors --data-path @pictures --no-latency --predictions @p.csv",
        "`swinq features` writes their outputs",
        "features @q_backbone.safetensors @pictures --features @maps.safetensors",
    ),
    (
        "features @ms.pth --cfg @small.yaml --task classification @pictures --features @maps.safetensors",
        "`swinq predict` computes classes",
        "predict @ms.pth --cfg @small.yaml @pictures",
    ),
    (
        "features @timm/model.safetensors @odd.png --cfg @small.yaml --task features -o @maps.safetensors",
        "pad or resize the images to multiples of it (--pad-to 4, --size)",
        "features @timm/model.safetensors @odd.png --cfg @small.yaml --task features -o @maps.safetensors --pad-to 4",
    ),
    (
        "features @timm/model.safetensors @odd.png --cfg @small.yaml --task features -o @maps.safetensors",
        "pad or resize the images to multiples of it (--pad-to 4, --size)",
        "features @timm/model.safetensors @odd.png --cfg @small.yaml --task features -o @maps.safetensors --size 24x24",
    ),
    (
        "features @timm/model.safetensors @thin.png --cfg @small.yaml --task features -o @maps.safetensors",
        "pad or resize the images to 24x24 or more (--pad-to 24, --size)",
        "features @timm/model.safetensors @thin.png --cfg @small.yaml --task features -o @maps.safetensors --pad-to 24",
    ),
    ("inspect @q.safetensors --transform timm", "leave these options out", "inspect @q.safetensors"),
    (
        "predict @simmim.safetensors --cfg @small.yaml @pictures",
        "compute its feature maps with `swinq features`",
        "features @simmim.safetensors @pictures --features @maps.safetensors",
    ),
];

/// Carries out all of [`ADVICE`]; a word that begins with `@` is a file of the folder.
pub fn cases(book: &Book) {
    let run = |line: &str| {
        let word = |word: &str| word.strip_prefix('@').map_or(word.to_owned(), |name| book.text(name));
        swinq(line.split_whitespace().map(word)).assert()
    };
    for (line, part, remedy) in ADVICE {
        says(stderr(&run(line).failure()), part);
        run(remedy).success();
    }
}
