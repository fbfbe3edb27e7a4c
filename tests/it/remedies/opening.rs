//! Messages about checkpoints that are opened.

use std::collections::BTreeMap;
use std::path::Path;

use half::f16;
use safetensors::tensor::{Dtype, TensorView};
use swinq::model::params::parameters;
use swinq::model::quantized::FloatModel;
use swinq::model::{SwinConfig, Task};
use swinq::{LoadOptions, Model, OpenOptions};

use super::Book;
use crate::common::root;

/// The configuration of the small checkpoints in `model/tests/checkpoints`.
const SMALL: &str = "DATA: {IMG_SIZE: 24}\nMODEL:\n  NUM_CLASSES: 5\n  SWIN: {EMBED_DIM: 6, DEPTHS: [1, 2], NUM_HEADS: \
                     [2, 3], WINDOW_SIZE: 3, MLP_RATIO: 1.5}\n";
/// The same as overrides, without the size of images.
const SMALL_OPTS: &str = "MODEL.SWIN.EMBED_DIM 6 MODEL.SWIN.DEPTHS [1,2] MODEL.SWIN.NUM_HEADS [2,3] \
                          MODEL.SWIN.WINDOW_SIZE 3 MODEL.SWIN.MLP_RATIO 1.5";

/// A tensor's shape and values.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Writes the files that the cases open.
pub fn prepare(book: &Book) {
    book.write("small.yaml", SMALL);
    book.write("windows.yaml", SMALL.replace("WINDOW_SIZE: 3", "WINDOW_SIZE: [[2, 2], [3, 3]]"));
    book.write("stage1.yaml", SMALL.replace("EMBED_DIM", "OUT_FEATURES: [stage1], EMBED_DIM"));
    let from = root().join("model/tests/checkpoints");
    let mut files = vec![
        "ms.pth",
        "timm/model.safetensors",
        "timm/config.json",
        "weights/teacher.pth",
        "weights/both.pth",
    ];
    files.extend(["hf/model.safetensors", "hf/config.json", "hf/preprocessor_config.json", "ft_calib.pth"]);
    files.extend(["v2/hf/model.safetensors", "v2/hf/config.json", "v2/hf/preprocessor_config.json"]);
    for file in files {
        book.write(file, std::fs::read(from.join(file)).unwrap());
    }
    variants(book, &small(book).tensors.into_iter().map(|(name, t)| (name, (t.shape, t.data))).collect());
    folders(book);
    own_files(book);
    official(book);
}

/// The small model.
pub fn small(book: &Book) -> FloatModel {
    book.open("eval ms.pth --cfg small.yaml").unwrap().into_quantized().into_float().unwrap()
}

/// Files with more or other tensors than the small model's `tensors`.
fn variants(book: &Book, tensors: &Tensors) {
    let under = |prefix: &str| -> Tensors {
        tensors.iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor.clone())).collect()
    };
    let stray = |name: &str| (name.to_owned(), (vec![1], vec![0.0]));
    let backbone = |prefix: &str| -> Tensors {
        under(prefix)
            .into_iter()
            .filter(|(name, _)| !name.contains("norm.") || name.contains("layers"))
            .collect()
    };
    let headless: Tensors =
        tensors.clone().into_iter().filter(|(name, _)| !name.starts_with("head.")).collect();
    let detector = headless.clone().into_iter().filter(|(name, _)| !name.starts_with("norm."));
    let detector =
        detector.chain(["norm0.weight", "norm0.bias"].map(|name| (name.to_owned(), (vec![6], vec![1.0; 6]))));
    write(
        &book.path("inner.safetensors"),
        &under("model.").into_iter().chain([stray("loss.weight")]).collect(),
    );
    write(&book.path("two.safetensors"), &backbone("a.").into_iter().chain(backbone("b.")).collect());
    write(&book.path("root.safetensors"), &backbone("").into_iter().chain(backbone("b.")).collect());
    let renamed = |name: &str| {
        let name =
            name.replace("patch_embed.proj.", "patch_embed.projection.").replace(".attn.", ".attn.w_msa.");
        let name = name.replace(".mlp.fc1.", ".ffn.layers.0.0.").replace(".mlp.fc2.", ".ffn.layers.1.");
        name.replace("backbone.layers.", "backbone.stages.")
    };
    let microsoft = backbone("backbone.").into_iter().filter(|(name, _)| !name.contains(".head."));
    let microsoft = microsoft.collect::<Tensors>();
    let openmmlab =
        microsoft.iter().map(|(name, tensor)| (renamed(name), tensor.clone())).collect::<Tensors>();
    write(&book.path("namings.safetensors"), &microsoft.into_iter().chain(openmmlab).collect());
    // The first stage has windows of 2 x 2 tokens.
    let mut windows = tensors.clone();
    windows.insert(
        "layers.0.blocks.0.attn.relative_position_bias_table".to_owned(),
        (vec![9, 2], vec![0.1; 18]),
    );
    write(&book.path("windows.safetensors"), &windows);
    write(&book.path("headless.safetensors"), &headless);
    write(&book.path("detector.safetensors"), &detector.collect());
    write(&book.path("simmim.safetensors"), &headless.into_iter().chain([stray("mask_token")]).collect());
}

/// Folders of transformers and timm with other descriptions.
fn folders(book: &Book) {
    let weights = std::fs::read(book.path("hf/model.safetensors")).unwrap();
    let [config, processor] =
        ["hf/config.json", "hf/preprocessor_config.json"].map(|file| read(&book.path(file)));
    let folder = |name: &str, config: Option<&str>, processor: Option<&str>| {
        book.write(&format!("{name}/model.safetensors"), &weights);
        config.map(|text| book.write(&format!("{name}/config.json"), text));
        processor.map(|text| book.write(&format!("{name}/preprocessor_config.json"), text));
    };
    folder("bare", None, None);
    folder("vit", Some(&config.replace("\"swin\"", "\"vit\"")), None);
    folder("upernet", Some(&format!("{{\"model_type\": \"upernet\", \"backbone_config\": {config}}}")), None);
    folder("silent", Some("{\"depths\": [1, 2]}"), None);
    folder("unprocessed", Some(&config), None);
    folder("unknown", Some(&config), Some("{\"image_processor_type\": \"MyImageProcessor\", \"size\": 24}"));
    for (name, field) in [
        ("unresized", "\"do_resize\": false"),
        ("unscaled", "\"do_rescale\": false"),
        ("donut", "\"image_processor_type\": \"DonutImageProcessor\", \"do_center_crop\": false"),
    ] {
        let mut fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&processor).unwrap();
        let more: serde_json::Map<_, _> = serde_json::from_str(&format!("{{{field}}}")).unwrap();
        fields.extend(more);
        folder(name, Some(&config), Some(&serde_json::to_string(&fields).unwrap()));
    }
    folder("larger", Some(&config), Some(&processor.replace("24", "32")));
    folder("uncropped", Some(&config), Some(&processor.replace("24", "{\"shortest_edge\": 24}")));
    folder(
        "seven",
        Some(&config.replace("\"4\": \"eel\"", "\"4\": \"eel\", \"5\": \"fox\"")),
        Some(&processor),
    );
    let timm = read(&book.path("timm/config.json"));
    let weights = std::fs::read(book.path("timm/model.safetensors")).unwrap();
    book.write("names/model.safetensors", &weights);
    book.write("names/config.json", timm.replace("\"eel\"", "\"eel\", \"fox\""));
    book.write("more/model.safetensors", weights);
    book.write(
        "more/config.json",
        timm.replace("\"num_classes\": 5", "\"num_classes\": 6").replace("label_names", "no"),
    );
}

/// Files in swinq's own format, which are not quantized.
fn own_files(book: &Book) {
    let save = |line: &str, name: &str| {
        std::fs::create_dir_all(book.path(name).parent().unwrap()).unwrap();
        book.open(line).unwrap().save(book.path(name)).unwrap();
    };
    save("eval ms.pth --cfg small.yaml", "own/float.safetensors");
    save("features ms.pth --cfg small.yaml", "own/backbone.safetensors");
    for (folder, difference) in [("built", "MODEL.SWIN.QK_SCALE 0.3"), ("seen", "TEST.CROP False")] {
        book.write(&format!("{folder}/ms.pth"), std::fs::read(book.path("ms.pth")).unwrap());
        save("eval ms.pth --cfg small.yaml", &format!("{folder}/a.safetensors"));
        let other = format!("eval ms.pth --cfg small.yaml --opts {difference}");
        save(&other, &format!("{folder}/b.safetensors"));
    }
}

/// A file in timm's names with the shapes of Swin-T, but for narrow MLPs, of zeros.
fn official(book: &Book) {
    let opts = [("MODEL.SWIN.MLP_RATIO", "0.02"), ("MODEL.NUM_CLASSES", "2")];
    let opts = opts.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let options = OpenOptions {
        cfg: Some("swin_tiny_patch4_window7_224".to_owned()),
        reading: LoadOptions { opts: opts.to_vec(), ..LoadOptions::default() },
        ..OpenOptions::default()
    };
    let config = options.configuration().unwrap().unwrap().config;
    let name = |name: &str| {
        let next = |stage: usize| format!("layers.{}.downsample.", stage + 1);
        let moved = (0..3)
            .find_map(|stage| Some(next(stage) + name.strip_prefix(&format!("layers.{stage}.downsample."))?));
        moved.unwrap_or_else(|| {
            name.strip_prefix("head.").map_or(name.to_owned(), |head| format!("head.fc.{head}"))
        })
    };
    let zeros: Vec<(String, Vec<usize>, Vec<u8>)> = parameters(&config)
        .into_iter()
        .map(|(ours, shape)| {
            let bytes = vec![0; shape.iter().product::<usize>() * size_of::<f16>()];
            (name(&ours), shape, bytes)
        })
        .collect();
    let views = zeros
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F16, shape.clone(), bytes).unwrap()));
    std::fs::write(book.path("official.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn write(path: &Path, tensors: &Tensors) {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<(&String, &Vec<usize>, Vec<u8>)> =
        tensors.iter().map(|(name, (shape, values))| (name, shape, bytes(values))).collect();
    let views = stored
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Every message of opening.
pub fn cases(book: &Book) {
    configurations(book);
    networks(book);
    descriptions(book);
    directories(book);
    own_format(book);
    preprocessing(book);
}

fn configurations(book: &Book) {
    let ms = "eval ms.pth --cfg small.yaml";
    book.opening(&format!("{ms} --opts BASE small.yaml"), "pass the file as --cfg", &[ms]);
    book.opening(
        "features hf --opts MODEL.SWIN.OUT_FEATURES [stage1]",
        "belongs to a configuration in --cfg; without one, pass --outputs",
        &["features hf --outputs stage1", "features hf --cfg stage1.yaml"],
    );
    book.opening(
        "eval hf --opts TEST.CROP False",
        "overrides Microsoft's preprocessing, but that of hf is used; pass --cfg",
        &["eval hf --cfg small.yaml --opts TEST.CROP False"],
    );
    let names = "is not a list of names such as [stage1]";
    let one = "features hf --cfg small.yaml --opts MODEL.SWIN.OUT_FEATURES";
    book.opening(&format!("{one} stage1"), names, &[&format!("{one} [stage1]")]);
    let classes = "pass --opts MODEL.NUM_CLASSES 5";
    book.opening(
        &format!("{ms} --opts MODEL.NUM_CLASSES 7"),
        classes,
        &[&format!("{ms} --opts MODEL.NUM_CLASSES 5")],
    );
    for folder in ["seven", "more"] {
        let right = format!("eval {folder} --opts MODEL.NUM_CLASSES 5");
        book.opening(&format!("eval {folder}"), classes, &[&right]);
    }
    // Keys of the other version have no effect.
    book.opening(
        "eval v2/hf --opts MODEL.SWIN.NUM_HEADS [2,3]",
        "has no effect, because the keys of this model are those of MODEL.SWINV2; override MODEL.SWINV2.NUM_HEADS",
        &["eval v2/hf --opts MODEL.SWINV2.NUM_HEADS [2,3]"],
    );
    book.opening(
        "eval v2/hf --opts MODEL.SWIN.QK_SCALE 0.3",
        "those of MODEL.SWINV2; leave it out",
        &["eval v2/hf"],
    );
}

fn networks(book: &Book) {
    let cfg = "--cfg small.yaml";
    book.opening(
        &format!("eval timm/model.safetensors {cfg} --dialect hf"),
        "not as by hf; pass --dialect timm, or leave --dialect out",
        &[
            &format!("eval timm/model.safetensors {cfg} --dialect timm"),
            &format!("eval timm/model.safetensors {cfg}"),
        ],
    );
    book.opening(
        "features two.safetensors",
        "has 2 backbones, under `a.` and `b.`; pass --prefix a.",
        &["features two.safetensors --prefix a.", "features two.safetensors --prefix b."],
    );
    book.opening(
        "features namings.safetensors",
        "under `backbone.`, in the names of microsoft and openmmlab; pass --dialect microsoft or another of them",
        &["features namings.safetensors --dialect microsoft", "features namings.safetensors --dialect openmmlab"],
    );
    book.opening(
        "features root.safetensors",
        "pass --prefix b. or another of them (--prefix '' for",
        &["features root.safetensors --prefix b.", "features root.safetensors --prefix ''"],
    );
    book.opening(
        &format!("eval inner.safetensors {cfg}"),
        "pass --prefix model. to read it alone; `swinq features`",
        &[
            &format!("eval inner.safetensors {cfg} --prefix model."),
            "features inner.safetensors",
            "eval inner.safetensors --task features",
        ],
    );
    book.opening(
        &format!("eval windows.safetensors {cfg}"),
        "the windows of the stages are [2, 3]: each has its own, as in a Swin-S3",
        &["eval windows.safetensors --cfg windows.yaml"],
    );
    let keys = "has no keys above its tensors; leave --weights out, or name the beginning";
    book.opening(
        &format!("eval headless.safetensors {cfg} --task features --weights model"),
        keys,
        &[&format!("eval headless.safetensors {cfg} --task features")],
    );
    book.opening(
        &format!("eval inner.safetensors {cfg} --weights model"),
        keys,
        &[&format!("eval inner.safetensors {cfg} --prefix model.")],
    );
    book.opening(
        &format!("eval weights/teacher.pth {cfg}"),
        "its dictionaries of tensors: student, teacher; choose one as in --weights student",
        &[&format!("eval weights/teacher.pth {cfg} --weights teacher")],
    );
    let both = format!("eval weights/both.pth {cfg}");
    let remark = super::says(book.said(&both), "the file also has state_dict (--weights state_dict)");
    let other = format!("{both} --weights state_dict");
    assert!(book.open(&other).is_ok_and(|model| model.warnings() != [remark.clone()]));
    book.advised(remark, &other);
    book.opening(
        &format!("eval simmim.safetensors {cfg}"),
        "is a pretraining by masked images (SimMIM)",
        &["features simmim.safetensors", "eval simmim.safetensors --task features"],
    );
    let headless = "the classifier is missing: the checkpoint is a backbone without a head";
    for file in ["headless", "detector"] {
        let remedies =
            [format!("features {file}.safetensors"), format!("eval {file}.safetensors --task features")];
        for more in ["", cfg] {
            let line = format!("eval {file}.safetensors {more}");
            book.opening(&line, headless, &[&remedies[0], &remedies[1]]);
        }
    }
    book.opening(
        &format!("eval ms.pth {cfg} --outputs stage1"),
        "for feature maps of stages, `swinq features`, or add --task features",
        &["features ms.pth --outputs stage1", &format!("eval ms.pth {cfg} --task features --outputs stage1")],
    );
}

fn descriptions(book: &Book) {
    book.opening(
        "features ms.pth",
        "no --cfg; the architecture follows from the shapes",
        &["features ms.pth --cfg small.yaml"],
    );
    book.opening(
        &format!("eval ms.pth --opts {SMALL_OPTS} DATA.IMG_SIZE 24 TEST.CROP True"),
        "no --cfg; its tensors are those of",
        &["eval ms.pth --cfg small.yaml"],
    );
    book.opening(
        "eval ms.pth",
        "pass --cfg FILE.yaml with all of these, or --cfg NAME and --opts for the values in which it differs",
        &[
            "eval ms.pth --cfg small.yaml",
            &format!(
                "eval ms.pth --cfg swin_tiny_patch4_window7_224 --opts {SMALL_OPTS} DATA.IMG_SIZE 24 MODEL.NUM_CLASSES 5"
            ),
        ],
    );
    let timm = "eval timm/model.safetensors";
    book.opening(
        &format!("{timm} --opts {SMALL_OPTS}"),
        "which differ in the input size or the preprocessing: pass one of them as --cfg",
        &[&format!("{timm} --cfg swin_tiny_patch4_window7_224 --opts {SMALL_OPTS} MODEL.NUM_CLASSES 5")],
    );
    book.opening(
        "eval built/ms.pth",
        "with different architectures; pass --cfg NAME or --cfg FILE.yaml to decide",
        &["eval built/ms.pth --cfg small.yaml"],
    );
    book.opening(
        "eval seen/ms.pth",
        "pass --transform ms, timm, torchvision or hf, or --cfg NAME or --cfg FILE.yaml to decide",
        &[
            "eval seen/ms.pth --transform ms",
            "eval seen/ms.pth --transform timm",
            "eval seen/ms.pth --transform hf",
            "eval seen/ms.pth --cfg small.yaml",
        ],
    );
}

fn directories(book: &Book) {
    let cfg = "--cfg small.yaml --transform hf";
    book.opening("eval bare", "has no config.json; pass --cfg", &["eval bare --cfg small.yaml"]);
    book.opening(
        "eval silent",
        "so is timm's `architecture`; pass --cfg NAME or --cfg FILE.yaml",
        &[&format!("eval silent {cfg}"), &format!("features silent {cfg}")],
    );
    book.opening(
        "features vit",
        "a `vit` is not known to contain a Swin; if it does, pass --cfg",
        &[&format!("features vit {cfg}")],
    );
    book.opening(
        "eval upernet --task classification",
        "is no classifier, but has a backbone; use it with --task features",
        &["eval upernet --task features", "features upernet"],
    );
    book.opening(
        "eval unprocessed",
        "add it, or pass --transform hf for that of the published Swins",
        &["eval unprocessed --transform hf", "eval unprocessed --cfg small.yaml"],
    );
    for (folder, part) in [
        ("unknown", "does not know the default of its class; state the field, or pass --transform hf"),
        ("larger", "correct one of them, or pass --transform hf"),
        ("unresized", "images would keep their own sizes; pass --transform hf"),
        ("unscaled", "only pixels rescaled by 1/255 are supported; pass --transform hf for such"),
        ("donut", "as ViTImageProcessor does; compare an image with transformers, or pass --transform"),
        ("uncropped", "state do_center_crop, or pass --transform hf"),
    ] {
        book.opening(&format!("eval {folder}"), part, &[&format!("eval {folder} --transform hf")]);
    }
    book.opening(
        "eval names",
        "6 names for 5 classes; correct the file, or pass --cfg",
        &["eval names --cfg small.yaml"],
    );
}

fn own_format(book: &Book) {
    let own = "calibrate own/float.safetensors";
    book.opening(
        &format!("{own} --weights model"),
        "without keys above its tensors; leave --weights out",
        &[own],
    );
    book.opening(
        &format!("{own} --opts MODEL.NUM_CLASSES 5"),
        "which overrides do not change; leave --opts out",
        &[own],
    );
    let backbone = "calibrate own/backbone.safetensors";
    book.opening(
        &format!("{backbone} --task classification"),
        "is a backbone, not a classifier; use it as one (--task features)",
        &[&format!("{backbone} --task features"), backbone],
    );
}

fn preprocessing(book: &Book) {
    let official = "eval official.safetensors --cfg swin_tiny_patch4_window7_224 --opts MODEL.SWIN.MLP_RATIO 0.02 \
                    MODEL.NUM_CLASSES 2";
    book.opening(
        official,
        "State --transform timm or --transform ms to decide",
        &[&format!("{official} --transform timm"), &format!("{official} --transform ms")],
    );
    book.opening(
        "eval hf --cfg small.yaml",
        "leave --cfg away to use the directory's own, or state --transform",
        &["eval hf", "eval hf --cfg small.yaml --transform ms"],
    );
    let ms = "eval ms.pth --cfg small.yaml";
    book.opening(
        &format!("{ms} --transform torchvision"),
        "--transform torchvision: torchvision has transforms for",
        &[ms],
    );
    let gray = SwinConfig { in_chans: 1, task: Task::Classification, ..small(book).config };
    let model = Model::from_float(swinq_testing::model::random(gray, 1)).unwrap();
    model.save(book.path("gray.safetensors")).unwrap();
    book.opening(
        "calibrate gray.safetensors --transform timm",
        "--transform: it is for RGB images",
        &["calibrate gray.safetensors", "calibrate gray.safetensors --transform ms"],
    );
}
