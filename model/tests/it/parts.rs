//! The files of parts: what is written is read back, and everything else is refused by name.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use swinq_model::part::{
    PartDocument, PartFile, PartKind, PartSet, PartTensor, PartTensors, Shard, is_part_file,
};
use tempfile::{TempDir, tempdir};

fn tensors(index: usize) -> PartTensors {
    let ids = [2 * index as u64, 2 * index as u64 + 1];
    let mut tensors = PartTensors::new();
    tensors.insert("ids".to_owned(), PartTensor::u64([2], ids));
    tensors.insert("values".to_owned(), PartTensor::f32([2, 3], &[1.5, -0.0, 3e-40, f32::MAX, 5.0, 6.0]));
    tensors.insert("pixels".to_owned(), PartTensor::u8([1, 4], vec![0, 1, 2, 255]));
    tensors.insert("none".to_owned(), PartTensor::f32([0], &[]));
    tensors
}

/// Writes the part `name` into `folder`.
fn part(folder: &TempDir, name: &str, kind: PartKind, shard: &str, run: Value) -> PathBuf {
    let (path, shard) = (folder.path().join(name), shard.parse::<Shard>().unwrap());
    let document = PartDocument::new(kind, shard, run, json!({"names": ["a", "ü"], "db": 0.1 + 0.2}));
    document.write(&path, &tensors(shard.index)).unwrap();
    path
}

/// Writes the parts of an evaluation in `count` shards into `folder`.
fn parts(folder: &TempDir, count: usize) -> Vec<PathBuf> {
    let run = json!({"model": "m", "images": {"count": 14}});
    let shard = |index| {
        part(folder, &format!("{index}"), PartKind::Evaluation, &format!("{index}/{count}"), run.clone())
    };
    (1..=count).map(shard).collect()
}

#[track_caller]
fn refused<T>(result: Result<T, swinq_model::ModelError>, path: &Path, words: &[&str]) {
    let message = result.err().expect("it is refused").to_string();
    for word in words.iter().chain([&path.to_str().unwrap()]) {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn parts_are_read_as_they_were_written() {
    let folder = tempdir().unwrap();
    let path = part(&folder, "p", PartKind::Calibration, "2/3", json!({"model": "m"}));
    assert!(is_part_file(&path));
    let file = PartFile::read(&path).unwrap();
    let document = file.document();
    assert_eq!((document.kind, document.shard.to_string()), (PartKind::Calibration, "2/3".to_owned()));
    assert_eq!(document.own["db"].as_f64().unwrap().to_bits(), (0.1f64 + 0.2).to_bits());
    let tensors = file.tensors();
    assert_eq!(tensors.ids("ids").unwrap(), [4, 5]);
    assert_eq!(tensors.u8("pixels", 2).unwrap(), (vec![1, 4], &[0, 1, 2, 255][..]));
    let (shape, values) = tensors.f32("values", 2).unwrap();
    let bits: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
    assert_eq!((shape, bits[1], bits[2]), (vec![2, 3], 0x8000_0000, 3e-40f32.to_bits()));
    assert_eq!(tensors.f32("none", 1).unwrap(), (vec![0], vec![]));
    refused(tensors.f32("other", 1), &path, &["`other`", "missing"]);
    refused(tensors.f32("values", 1), &path, &["`values`", "dimensions"]);
    refused(tensors.u64("values"), &path, &["U64"]);
    // The same part has the same bytes.
    let again = part(&folder, "again", PartKind::Calibration, "2/3", json!({"model": "m"}));
    assert!(std::fs::read(&path).unwrap() == std::fs::read(again).unwrap());
}

#[test]
fn sets_are_put_in_order() {
    let folder = tempdir().unwrap();
    for count in [1, 3, 7] {
        let mut paths = parts(&folder, count);
        paths.reverse();
        paths.swap(0, count / 2);
        let set = PartSet::open(&paths).unwrap();
        assert_eq!((set.kind(), set.count()), (PartKind::Evaluation, count));
        let indices: Vec<usize> = set.files().map(|file| file.unwrap().document().shard.index).collect();
        assert_eq!(indices, (1..=count).collect::<Vec<_>>());
    }
}

#[test]
fn incomplete_and_mixed_sets_are_refused() {
    let folder = tempdir().unwrap();
    let paths = parts(&folder, 7);
    refused(
        PartSet::open(&[paths[2].clone(), paths[5].clone()]),
        &paths[2],
        &["1/7, 2/7, 4/7, 5/7, 7/7 are missing"],
    );
    refused(PartSet::open(&paths[1..]), &paths[1], &["shard 1/7 is missing"]);
    let twice = [&paths[..], &paths[3..4]].concat();
    refused(PartSet::open(&twice), &paths[3], &["given twice"]);
    let copy = folder.path().join("copy");
    std::fs::copy(&paths[3], &copy).unwrap();
    refused(PartSet::open(&[&paths[..], &[copy]].concat()), &paths[3], &["shard 4/7", "leave one out"]);
    let run = json!({"model": "m", "images": {"count": 15}});
    let other = part(&folder, "other", PartKind::Evaluation, "2/7", run);
    let mixed = [paths[0].clone(), other.clone()];
    refused(PartSet::open(&mixed), &other, &["another run", "`images.count` is 15 here and 14 there"]);
    let kind = part(&folder, "kind", PartKind::Calibration, "2/7", json!({}));
    refused(PartSet::open(&[paths[0].clone(), kind.clone()]), &kind, &["a calibration", "an evaluation"]);
    let count = part(&folder, "count", PartKind::Evaluation, "2/8", json!({}));
    refused(PartSet::open(&[paths[0].clone(), count.clone()]), &count, &["2/8", "1/7", "same N"]);
}

#[test]
fn damage_is_found() {
    let folder = tempdir().unwrap();
    let good =
        std::fs::read(part(&folder, "p", PartKind::Calibration, "1/1", json!({"model": "m"}))).unwrap();
    let path = folder.path().join("bad");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        PartSet::open(std::slice::from_ref(&path))?.files().try_for_each(|file| file.map(|_| ()))
    };
    read(&good).unwrap();
    for length in (0..good.len()).step_by(7).chain([good.len() - 1]) {
        refused(read(&good[..length]), &path, &["part"]);
    }
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        refused(read(&bytes), &path, &[]);
    }
    refused(read(&[&good[..], b"x"].concat()), &path, &["damaged"]);
}

#[test]
fn other_files_are_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("other");
    let edit = |from: &str, to: &str| {
        let good = part(&folder, "p", PartKind::Calibration, "1/1", json!({"model": "m"}));
        // The length of the header stays, so that only the document changes.
        assert_eq!(from.len(), to.len());
        let mut bytes = std::fs::read(good).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("the text is there");
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, bytes).unwrap();
        PartSet::open(std::slice::from_ref(&path)).map(|_| ())
    };
    refused(edit(r#"part_version\":1"#, r#"part_version\":2"#), &path, &["version 2", "reads version 1"]);
    refused(edit(r#"\"index\":1"#, r#"\"index\":0"#), &path, &["shard 0/1", "impossible"]);
    refused(edit(r#"\"index\":1"#, r#"\"index\":9"#), &path, &["shard 9/1", "impossible"]);
    refused(edit(r#"\"own\""#, r#"\"won\""#), &path, &["metadata is damaged", "won"]);
    std::fs::write(&path, "text").unwrap();
    refused(PartSet::open(std::slice::from_ref(&path)), &path, &["is not a part"]);
    std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    refused(PartSet::open(std::slice::from_ref(&path)), &path, &["is not a part"]);
    refused(PartSet::open(&[folder.path().join("no")]), &folder.path().join("no"), &["os error 2"]);
    let device = cfg!(unix).then_some(Path::new("/dev/zero"));
    for odd in device.into_iter().chain([folder.path()]) {
        refused(PartSet::open(&[odd.to_owned()]), odd, &["is not a part"]);
    }
}
