//! The fuzz targets: each gives the bytes of one input to one reader, and checks what the reader promises
//! about what it accepts. A target returns whether the input was accepted. Tests of the workspace replay the
//! corpora.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use swinq_data::{Dataset, Split, decode_image, decode_oriented, oriented_size};
use swinq_model::checkpoint::{LoadOptions, import_ft_amax, load_float};
use swinq_model::part::PartSet;
use swinq_model::quantized::FloatModel;
use swinq_model::{LoadedConfig, Orientation, QuantizedModel, Recipe, load_config};
use zip::write::SimpleFileOptions;

/// The configuration of the checkpoints among the seeds, as small as a Swin can be.
const TINY: &str = include_str!("../tiny.yaml");

/// Calls `f` with a folder that holds a file of this name and content.
fn with_file<R>(name: &str, content: &[u8], f: impl FnOnce(&Path) -> R) -> R {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join(name);
    fs::write(&path, content).expect("a temporary file can be written");
    f(&path)
}

/// The configuration [`TINY`].
fn tiny() -> LoadedConfig {
    static LOADED: OnceLock<LoadedConfig> = OnceLock::new();
    let load =
        || with_file("tiny.yaml", TINY.as_bytes(), |path| load_config(path.to_str().expect("UTF-8"), &[]));
    LOADED.get_or_init(|| load().expect("the configuration of the seeds is valid")).clone()
}

/// A float checkpoint in any format: what is accepted is whole, finite, and has the configuration's shapes.
fn float_checkpoint(name: &str, data: &[u8]) -> bool {
    with_file(name, data, |path| {
        // Ranges of FasterTransformer come in the same format.
        let _ = import_ft_amax(path, &tiny().config);
        float_model(path).is_some()
    })
}

/// The float model of the configuration [`TINY`] in the file or index at `path`, if it is accepted.
fn float_model(path: &Path) -> Option<FloatModel> {
    let options = LoadOptions { cfg: Some(tiny()), ..LoadOptions::default() };
    let model = load_float(path, &options).ok()?;
    for (name, tensor) in &model.tensors {
        assert_eq!(tensor.data.len(), tensor.shape.iter().product::<usize>(), "{name}");
        assert!(tensor.data.iter().all(|value| value.is_finite()), "{name}");
    }
    Some(model)
}

/// A float checkpoint in safetensors.
pub fn safetensors(data: &[u8]) -> bool {
    float_checkpoint("model.safetensors", data)
}

/// An index of shards, beside one shard with every tensor, `model-1.safetensors`. The folder above holds
/// other values as `outside.safetensors`, which no index may name.
pub fn index(data: &[u8]) -> bool {
    let outside = include_bytes!("../corpus/safetensors/f16");
    with_file("outside.safetensors", outside, |outside| {
        let folder = outside.with_file_name("model");
        fs::create_dir(&folder).expect("a folder can be made");
        let write = |name: &str, content: &[u8]| {
            let path = folder.join(name);
            fs::write(&path, content).expect("a temporary file can be written");
            path
        };
        let shard = write("model-1.safetensors", include_bytes!("../corpus/safetensors/f32"));
        let index = write("model.safetensors.index.json", data);
        let Some(model) = float_model(&index) else { return false };
        let whole = float_model(&shard).expect("the shard is a checkpoint");
        assert!(model.tensors == whole.tensors, "an index leads out of its folder");
        true
    })
}

/// A quantized checkpoint: its header, document and tensors. An accepted model is written and read again
/// unchanged. The seeds have format version 1, whose files need no hash; otherwise no mutation would pass. A
/// stack of blocks needs version 3, which has one.
pub fn quantized(data: &[u8]) -> bool {
    with_file("q.safetensors", data, |path| {
        let Ok(model) = QuantizedModel::load(path) else { return false };
        let again = path.with_file_name("again.safetensors");
        model.save(&again).expect("an accepted model can be written");
        assert_eq!(QuantizedModel::load(&again).expect("a written model can be read"), model);
        true
    })
}

/// The file of a part: its header, document and hash. The tensors of an accepted part can be read as any
/// type.
pub fn part(data: &[u8]) -> bool {
    with_file("1.part", data, |path| {
        let Ok(set) = PartSet::open(&[path.to_owned()]) else { return false };
        set.files().all(|file| {
            let Ok(file) = file else { return false };
            let tensors = file.tensors();
            for name in tensors.names() {
                let _ = (tensors.f32(name, 2), tensors.u64(name), tensors.u8(name, 4), tensors.ids(name));
            }
            true
        })
    })
}

/// A file of `torch.save`, of either format, or a pickle of arrays.
pub fn torch(data: &[u8]) -> bool {
    float_checkpoint("model.pth", data)
}

/// The pickle of a file of `torch.save`, whose storages are `0` to `3`, with 4,096 bytes each.
pub fn pickle(data: &[u8]) -> bool {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut add = |name: String, content: &[u8]| {
        archive.start_file(name, stored).expect("an entry can be added");
        archive.write_all(content).expect("an entry can be written");
    };
    add("archive/data.pkl".to_owned(), data);
    (0..4).for_each(|storage| add(format!("archive/data/{storage}"), &[0; 4096]));
    let file = archive.finish().expect("the archive can be finished").into_inner();
    float_checkpoint("model.pth", &file)
}

/// An image file: an accepted one has the pixels of its size, and as many when it is turned as it states.
fn image(data: &[u8]) -> bool {
    let Ok(image) = decode_image(data) else { return false };
    assert!(image.width > 0 && image.height > 0);
    assert_eq!(image.pixels.len(), image.width * image.height * 3);
    let turned = decode_oriented(data, Orientation::Exif).expect("an orientation is no error");
    assert_eq!(turned.pixels.len(), image.pixels.len());
    let size = oriented_size(data, Orientation::Exif).expect("the header was read");
    assert_eq!((size.width, size.height), (turned.width, turned.height));
    true
}

/// An image file that begins with `magic`; other inputs would repeat the other targets.
fn image_of(data: &[u8], magic: &[&[u8]]) -> bool {
    magic.iter().any(|magic| data.starts_with(magic)) && image(data)
}

/// A PNG file.
pub fn png(data: &[u8]) -> bool {
    image_of(data, &[b"\x89PNG"])
}

/// A JPEG file.
pub fn jpeg(data: &[u8]) -> bool {
    image_of(data, &[b"\xff\xd8"])
}

/// A WebP file.
pub fn webp(data: &[u8]) -> bool {
    image_of(data, &[b"RIFF"])
}

/// A BMP file.
pub fn bmp(data: &[u8]) -> bool {
    image_of(data, &[b"BM"])
}

/// A TIFF file.
pub fn tiff(data: &[u8]) -> bool {
    image_of(data, &[b"II", b"MM"])
}

/// A PGM or PPM file.
pub fn netpbm(data: &[u8]) -> bool {
    image_of(data, &[b"P"])
}

/// Opens a data set and uses every function that depends on its text: what is accepted is consistent.
fn dataset(path: &Path) -> bool {
    let Ok(data) = Dataset::open(path, Split::Val) else { return false };
    assert!(!data.is_empty());
    for id in 0..data.len() {
        assert!(!data.name(id).is_empty());
        assert_eq!(data.label(id).is_some(), data.has_labels());
        if let (Some(label), Some(names)) = (data.label(id), data.class_names()) {
            assert!((label as usize) < names.len(), "class {label} of {}", names.len());
        }
        // Most members and files are missing or no images; the error is the answer.
        let _ = data.decode(id);
    }
    assert!(data.sample(Some(1), 0).len() == 1 && !data.describe().is_empty());
    true
}

/// A list of images beside three of them, `a.png`, `b.png` and `c d.png`.
pub fn list(data: &[u8]) -> bool {
    with_file("list.txt", data, |path| {
        for name in ["a.png", "b.png", "c d.png"] {
            fs::write(path.with_file_name(name), PIXEL).expect("an image can be written");
        }
        dataset(path)
    })
}

/// The map of an archive with the members `a.png`, `b.png` and `c/d.png`.
pub fn map(data: &[u8]) -> bool {
    static ARCHIVE: OnceLock<Vec<u8>> = OnceLock::new();
    with_file("val_map.txt", data, |path| {
        fs::write(path.with_file_name("val.zip"), ARCHIVE.get_or_init(archive_of_pixels)).expect("written");
        dataset(path.parent().expect("the file is in a folder"))
    })
}

/// An archive of images, whose map names the member `cat/a.png`.
pub fn archive(data: &[u8]) -> bool {
    with_file("images.zip", data, |path| {
        fs::write(path.with_file_name("images_map.txt"), "cat/a.png\t0\n").expect("a map can be written");
        dataset(path)
    })
}

fn archive_of_pixels() -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for name in ["a.png", "b.png", "c/d.png"] {
        archive.start_file(name, SimpleFileOptions::default()).expect("an entry can be added");
        archive.write_all(PIXEL).expect("an entry can be written");
    }
    archive.finish().expect("the archive can be finished").into_inner()
}

/// An image of one pixel.
const PIXEL: &[u8] = include_bytes!("../../data/tests/fixtures/one_pixel.png");

/// A configuration in YAML. An accepted one describes a network of bounded size.
pub fn config(data: &[u8]) -> bool {
    with_file("cfg.yaml", data, |path: &Path| {
        let Ok(loaded) = load_config(path.to_str().expect("UTF-8"), &[]) else { return false };
        let _ = loaded.config.validate();
        true
    })
}

/// A recipe in YAML. An accepted one is written and read again unchanged, and resolves or is refused.
pub fn recipe(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(recipe) = Recipe::from_yaml("fuzz.yaml", text) else { return false };
    assert_eq!(
        Recipe::from_yaml("again.yaml", &recipe.to_yaml()).expect("a written recipe can be read"),
        recipe
    );
    let _ = recipe.resolve(&tiny().config);
    true
}

/// The folder of the seeds of a target, in this repository.
pub fn corpus(root: &Path, target: &str) -> PathBuf {
    root.join("fuzz/corpus").join(target)
}
