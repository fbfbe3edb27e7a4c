//! Layouts of data sets on disk, and their errors.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::common::{fixture, put};
use swinq_data::{DataError, Dataset, Layout, Split};
use tempfile::TempDir;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// A folder with these files, each with the same image as content.
fn folder(names: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in names {
        put(root.path(), name, &fixture("rgb.png"));
    }
    root
}

fn open(root: &Path, split: Split) -> Result<Dataset, DataError> {
    Dataset::open(root, split)
}

fn names(dataset: &Dataset) -> Vec<String> {
    (0..dataset.len()).map(|i| dataset.name(i)).collect()
}

fn labels(dataset: &Dataset) -> Vec<Option<u32>> {
    (0..dataset.len()).map(|i| dataset.label(i)).collect()
}

/// The official layout: `val.zip` with these members, every second one deflated, and its map.
fn zip_layout(members: &[(&str, Vec<u8>)], map: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let mut zip = zip::ZipWriter::new(fs::File::create(root.path().join("val.zip")).unwrap());
    for (index, (name, bytes)) in members.iter().enumerate() {
        let method = if index % 2 == 0 { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    put(root.path(), "val_map.txt", map.as_bytes());
    root
}

fn message(result: Result<Dataset, DataError>) -> String {
    result.expect_err("this must be refused").to_string()
}

#[test]
fn a_folder_per_class() {
    let root =
        folder(&["val/b/2.png", "val/b/deep/1.PNG", "val/a/x.png", "val/.cache/y.png", "train/a/z.png"]);
    put(root.path(), "val/a/notes.txt", b"no image");
    let dataset = open(root.path(), Split::Val).unwrap();
    assert_eq!(dataset.layout(), Layout::ImageFolder);
    assert_eq!(names(&dataset), ["val/a/x.png", "val/b/2.png", "val/b/deep/1.PNG"]);
    assert_eq!(labels(&dataset), [Some(0), Some(1), Some(1)]);
    assert_eq!((dataset.num_classes(), dataset.class_names().unwrap().len()), (Some(2), 2));
    assert_eq!(dataset.decode(2).unwrap().width, 31);
    assert!(dataset.describe().contains("3 images, 2 classes"), "{}", dataset.describe());
    let direct = open(&root.path().join("val"), Split::Train).unwrap();
    assert_eq!(names(&direct), ["a/x.png", "b/2.png", "b/deep/1.PNG"]);
}

#[test]
fn folders_and_files_without_labels() {
    let root = folder(&["2.png", "1.png", "readme.md"]);
    let dataset = open(root.path(), Split::Val).unwrap();
    assert_eq!(
        (dataset.layout(), names(&dataset)),
        (Layout::Flat, vec!["1.png".to_owned(), "2.png".to_owned()])
    );
    assert_eq!((dataset.has_labels(), dataset.num_classes(), dataset.label(0)), (false, None, None));
    let file = root.path().join("readme.md");
    let single = open(&file, Split::Val).unwrap();
    assert_eq!((single.layout(), single.len()), (Layout::Files, 1));
    assert_eq!(single.decode(0).unwrap().height, 17);
    assert!(message(Dataset::from_files(&[])).contains("no image file"));
    put(root.path(), "notes", b"\x00\x01text");
    assert!(message(open(&root.path().join("notes"), Split::Val)).contains("neither an image"));
    put(root.path(), "list.csv", b"1.png\n2.png\n");
    assert_eq!(open(&root.path().join("list.csv"), Split::Val).unwrap().layout(), Layout::List);
}

#[test]
fn lists_with_and_without_classes() {
    let root = folder(&["images/a b.png", "images/c.png"]);
    put(root.path(), "list.txt", b"images/c.png\t1\nimages/a b.png 0\n");
    put(root.path(), "classes.txt", b"cat\ndog\nfox\n");
    let dataset = open(&root.path().join("list.txt"), Split::Val).unwrap();
    assert_eq!((dataset.layout(), labels(&dataset)), (Layout::List, vec![Some(1), Some(0)]));
    assert_eq!((dataset.num_classes(), &dataset.class_names().unwrap()[2][..]), (Some(3), "fox"));
    assert_eq!(dataset.decode(1).unwrap().width, 31);
    put(root.path(), "classes.txt", b"cat\n");
    let text = message(open(&root.path().join("list.txt"), Split::Val));
    assert!(
        text.contains("list.txt, line 1: images/c.png has class 1") && text.contains("has 1 names"),
        "{text}"
    );
    put(root.path(), "plain.txt", b"images/c.png\nimages/gone.png\n");
    let text = message(open(&root.path().join("plain.txt"), Split::Val));
    assert!(text.contains("1 of 2") && text.contains("images/gone.png"), "{text}");
}

#[test]
fn backslashes_are_explained_where_they_separate_no_folders() {
    let zip = zip_layout(&[("cat/1.png", fixture("rgb.png"))], "cat\\1.png\t0\n");
    let text = message(open(zip.path(), Split::Val));
    assert!(text.contains("val_map.txt, line 1: folders are separated by `/`"), "{text}");
    assert!(text.contains("write cat/1.png"), "{text}");
    let root = folder(&["images/c.png"]);
    put(root.path(), "list.txt", b"images\\c.png\t1\n");
    let list = open(&root.path().join("list.txt"), Split::Val);
    if cfg!(windows) {
        assert_eq!(list.unwrap().len(), 1);
    } else {
        let text = message(list);
        assert!(text.contains("list.txt, line 1: folders are separated by `/`"), "{text}");
    }
}

#[test]
fn columns_that_no_tab_separates_are_explained() {
    let root = folder(&["images/a b.png", "images/c.png"]);
    let refusal = |list: &str| {
        put(root.path(), "list.txt", list.as_bytes());
        message(open(&root.path().join("list.txt"), Split::Val))
    };
    for (line, words) in [
        ("images/c.png,1", "a comma behind the image `images/c.png`"),
        ("images/c.png, 1", "a comma behind the image `images/c.png`"),
        ("images/c.png;cat", "a semicolon behind the image `images/c.png`"),
        ("images/c.png cat", "a blank behind the image `images/c.png`"),
        ("images/a b.png big cat", "a blank behind the image `images/a b.png`"),
        ("images/c.png cat 1", "a blank behind the image `images/c.png`"),
    ] {
        let text = refusal(&format!("\n{line}\n"));
        assert!(text.contains("list.txt, line 2: columns are separated by tabs"), "{text}");
        assert!(text.contains(words) && text.contains("path<TAB>class"), "{text}");
    }
    // A file that is missing for another reason.
    let text = refusal("images/a c.png\t1\n");
    assert!(text.contains("1 of 1 listed images are missing") && !text.contains("tabs"), "{text}");
    assert!(refusal("images/c.png cat\nimages/c.png 1\n").contains("columns are separated by tabs"));
    let zip = zip_layout(&[("1.png", fixture("rgb.png"))], "1.png cat\n");
    let text = message(open(zip.path(), Split::Val));
    assert!(text.contains("val_map.txt, line 1: columns are separated by tabs"), "{text}");
}

/// A pipe without a writer would make the reader wait for ever.
#[cfg(unix)]
#[test]
fn a_pipe_is_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("a.jpg");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = "a.jpg: not a regular file";
    assert!(swinq_data::image_files(&pipe)[0].as_ref().unwrap_err().to_string().ends_with(refused));
    assert!(message(Dataset::from_files(&[pipe])).ends_with(refused));
}

#[test]
fn missing_parts_of_a_layout_are_named() {
    let empty = tempfile::tempdir().unwrap();
    assert!(message(open(empty.path(), Split::Val)).contains("looked for"));
    let only_train = folder(&["train/a/1.png"]);
    let text = message(open(only_train.path(), Split::Val));
    assert!(text.contains("split `val` is missing") && text.contains("val_map.txt"), "{text}");
    assert!(text.ends_with("the data set has `train`"), "{text}");
    // Folders of other splits are not taken for classes.
    let others = folder(&["valid/a/1.png", "test/a/1.png", "test/b/1.png"]);
    let text = message(open(others.path(), Split::Val));
    assert!(text.ends_with("the data set has `test`, `valid`"), "{text}");
    let test: Split = "test".parse().unwrap();
    assert_eq!(open(others.path(), test.clone()).unwrap().len(), 2);
    let classes = folder(&["a/1.png", "b/1.png"]);
    assert!(message(open(classes.path(), test)).ends_with("the data set has no splits; leave the split out"));
    // Images for training are not named before others.
    let both = folder(&["train/a/1.png", "valid/a/1.png"]);
    assert!(message(open(both.path(), Split::Val)).ends_with("the data set has `valid`, `train`"));
    // An archive is a split too, beside a folder.
    fs::write(only_train.path().join("val.zip"), "").unwrap();
    let test: Split = "test".parse().unwrap();
    assert!(message(open(only_train.path(), test)).ends_with("the data set has `val`, `train`"));
    for name in ["", "..", "a/b", "a\\b"] {
        assert!(name.parse::<Split>().unwrap_err().to_string().contains("is not a split"), "{name}");
    }
    let with_empty_class = folder(&["val/a/1.png"]);
    fs::create_dir(with_empty_class.path().join("val/b")).unwrap();
    let text = message(open(with_empty_class.path(), Split::Val));
    assert!(text.contains("1 of 2 class folders") && text.contains(": b"), "{text}");
    let mixed = folder(&["1.png", "a/2.png"]);
    assert!(message(open(mixed.path(), Split::Val)).contains("1 images lie beside 1 folders"));
    let unmapped = zip_layout(&[("a.png", fixture("rgb.png"))], "");
    fs::remove_file(unmapped.path().join("val_map.txt")).unwrap();
    assert!(message(open(unmapped.path(), Split::Val)).contains("val_map.txt"));
    assert!(matches!(open(Path::new("/no/such/place"), Split::Val), Err(DataError::Io { .. })));
}

#[test]
fn zip_archives_are_read_by_many_threads() {
    let files = ["rgb.png", "grey.jpg", "rgba.png", "rgb420.jpg"];
    let members: Vec<(&str, Vec<u8>)> = files.iter().map(|&name| (name, fixture(name))).collect();
    let root = zip_layout(&members, "rgba.png\t2\nrgb.png\t0\nrgb420.jpg\t1\ngrey.jpg\t0\n");
    for path in [root.path().to_owned(), root.path().join("val.zip"), root.path().join("val_map.txt")] {
        let dataset = open(&path, Split::Val).unwrap();
        assert_eq!(dataset.layout(), Layout::Zip);
        assert_eq!(dataset.name(0), "val.zip@/rgba.png");
        assert_eq!(labels(&dataset), [Some(2), Some(0), Some(1), Some(0)]);
        assert_eq!(dataset.num_classes(), Some(3));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let dataset = &dataset;
                scope.spawn(move || {
                    for i in (0..40).map(|k| (k + thread) % 4) {
                        let file = ["rgba.png", "rgb.png", "rgb420.jpg", "grey.jpg"][i];
                        assert_eq!(dataset.read(i).unwrap(), fixture(file));
                    }
                });
            }
        });
    }
}

#[test]
fn a_map_must_match_its_archive() {
    let root = zip_layout(&[("val/a.png", fixture("rgb.png"))], "a.png\t0\nb.png\t1\n");
    let text = message(open(root.path(), Split::Val));
    for part in ["2 of 2", "a.png, b.png", "the archive has, for example, val/a.png"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn damaged_archives_and_members_are_located() {
    let members =
        [("a.png", fixture("rgb.png")), ("b.png", fixture("rgba.png")), ("c.jpg", b"junk".to_vec())];
    let root = zip_layout(&members, "a.png\t0\nb.png\t1\nc.jpg\t0\n");
    let path = root.path().join("val.zip");
    let whole = fs::read(&path).unwrap();
    let dataset = open(root.path(), Split::Val).unwrap();
    let text = dataset.decode(2).unwrap_err().to_string();
    assert!(
        text.contains("val.zip@/c.jpg (local header at byte ") && text.contains("not an image"),
        "{text}"
    );

    for length in [0, 10, whole.len() / 2, whole.len() - 5] {
        fs::write(&path, &whole[..length]).unwrap();
        let text = message(open(root.path(), Split::Val));
        assert!(
            text.contains("val.zip") && text.contains("is a truncated or damaged zip archive"),
            "{length}: {text}"
        );
    }
    // The checksum reveals a flipped bit inside the first member, which is stored.
    let mut flipped = whole.clone();
    flipped[200] ^= 1;
    fs::write(&path, &flipped).unwrap();
    let error = open(root.path(), Split::Val).unwrap().read(0).unwrap_err();
    assert!(matches!(&error, DataError::Member { offset: 0, member, .. } if member == "a.png"), "{error}");
}

/// Opening and reading an archive with any byte changed succeeds or is refused.
#[test]
fn mutated_archives_never_panic() {
    let root = zip_layout(
        &[("a.png", fixture("one_pixel.png")), ("b.png", fixture("grey.png"))],
        "a.png\t0\nb.png\t1\n",
    );
    let path = root.path().join("val.zip");
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in 0..whole.len() {
        for value in [0x00, 0x7f, 0xff, whole[at] ^ 0x10] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            fs::write(&path, &bytes).unwrap();
            match open(root.path(), Split::Val) {
                Ok(dataset) => refused += (0..2).filter(|&i| dataset.decode(i).is_err()).count(),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > whole.len(), "{refused} refusals of {} bytes", whole.len());
}
