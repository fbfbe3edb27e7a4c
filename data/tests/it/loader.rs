//! The loader: batches, corrupt images and prefetching.

use std::fs;
use std::path::PathBuf;

use crate::common;
use swinq_data::{
    Dataset, Layout, Loader, LoaderOptions, OfOneSize, Padding, SizedLoader, Sizing, Split, pad, preprocess,
};
use swinq_model::{Batch, BatchSource, Orientation, Resize, Size, Transform};
use tempfile::TempDir;

fn small() -> Transform {
    Transform { resize: Resize::Direct, ..Transform::microsoft(Size::square(16), 3, true) }
}

/// 23 images of two classes; images 5 and 11 are damaged.
fn damaged_folder() -> TempDir {
    common::damaged_folder(|i| format!("val/{}/{i:02}.png", if i < 12 { "a" } else { "b" }))
}

fn options(skip_corrupt: usize) -> LoaderOptions {
    LoaderOptions { batch_size: 4, threads: 3, prefetch: 2, skip_corrupt }
}

fn loader(root: &TempDir, options: LoaderOptions) -> Loader {
    let dataset = Dataset::open(root.path(), Split::Val).unwrap();
    let ids = dataset.sample(None, 0);
    Loader::new(dataset, ids, small(), options).unwrap()
}

#[test]
fn batches_do_not_depend_on_order_or_threads() {
    let root = damaged_folder();
    let mut reference = loader(&root, LoaderOptions { threads: 1, prefetch: 0, ..options(2) });
    assert_eq!((reference.batches(), reference.images()), (6, 23));
    let batches: Vec<Batch> = (0..6).map(|i| reference.batch(0, i).unwrap()).collect();
    assert_eq!(batches.iter().flat_map(|b| b.ids.clone()).count(), 21);
    assert_eq!(batches[1].ids, [4, 6, 7]);
    assert_eq!(batches[1].labels, [0, 0, 0]);
    assert_eq!(batches[3].labels, [1, 1, 1, 1]);
    assert!(batches.iter().all(|b| b.pixels.len() == b.len() * 16 * 16 * 3));
    assert_ne!(batches[0].pixels[..768], batches[0].pixels[768..1536]);
    for threads in [0, 1, 2, 7] {
        let mut loader = loader(&root, LoaderOptions { threads, prefetch: 3, ..options(2) });
        for epoch in 0..2 {
            for index in [0, 1, 2, 5, 0, 3, 3, 1, 4, 2] {
                assert_eq!(loader.batch(epoch, index).unwrap(), batches[index], "{threads} {index}");
            }
        }
        assert_eq!(loader.skipped().len(), 2);
        assert!(loader.skipped()[0].contains("05.png"), "{:?}", loader.skipped());
    }
}

#[test]
fn corrupt_images_beyond_the_limit_are_errors() {
    let root = damaged_folder();
    let error = loader(&root, options(0)).batch(0, 1).unwrap_err().to_string();
    assert!(error.contains("05.png") && error.contains("truncated"), "{error}");
    let mut one = loader(&root, options(1));
    assert_eq!(one.batch(0, 1).unwrap().ids, [4, 6, 7]);
    assert_eq!(one.batch(1, 1).unwrap().ids, [4, 6, 7]);
    let error = one.batch(0, 2).unwrap_err().to_string();
    assert!(
        error.contains("11.png")
            && error.contains("the limit of corrupt images to leave out (1) was reached"),
        "{error}"
    );
    assert_eq!(one.batch(0, 3).unwrap().len(), 4);
    assert!(one.batch(0, 6).unwrap_err().to_string().contains("beyond the epoch"));
}

/// Even images have other sizes than odd ones.
#[test]
fn batches_have_sizes_of_their_own() {
    let root = damaged_folder();
    let dataset = Dataset::open(root.path(), Split::Val).unwrap();
    let own = [0, 1].map(|i| dataset.image_size(i, Orientation::Stored).unwrap());
    assert_eq!(dataset.image_size(22, Orientation::Stored).unwrap(), own[0]);
    // The header lies before the damage.
    assert_eq!(dataset.image_size(5, Orientation::Stored).unwrap(), own[1]);
    let of = |size, ids: &[usize]| OfOneSize { size, ids: ids.to_vec(), valid: vec![size; ids.len()] };
    let loader =
        |sizing, batches| SizedLoader::new(dataset.clone(), sizing, batches, &small(), &options(0)).unwrap();
    let keep = loader(Sizing::Keep, vec![of(own[1], &[1, 5, 3]), of(own[0], &[2]), of(own[0], &[1])]);
    let (batch, unread) = keep.batch(0).unwrap();
    assert_eq!((batch.size, &batch.ids[..]), (own[1], &[1, 3][..]));
    let pixels = [1, 3].map(|i| dataset.decode(i).unwrap().pixels);
    assert_eq!(batch.pixels, pixels.concat());
    assert!(
        unread.len() == 1 && unread[0].0 == 5 && unread[0].1.to_string().contains("05.png"),
        "{unread:?}"
    );
    assert_eq!(keep.batch(1).unwrap().0.pixels, dataset.decode(2).unwrap().pixels);
    let (batch, unread) = keep.batch(2).unwrap();
    assert!(batch.is_empty() && unread[0].1.to_string().contains("had another size"), "{unread:?}");

    let size = Size::new(9, 30);
    let resized = loader(Sizing::Exact(size), vec![of(size, &[4, 7])]).batch(0).unwrap().0;
    let transform = Transform { size, ..small() };
    let expected = [4, 7].map(|i| preprocess(&dataset.decode(i).unwrap(), &transform));
    assert_eq!(resized.pixels, expected.concat());
    fs::remove_file(root.path().join("val/b/22.png")).unwrap();
    let (batch, unread) = loader(Sizing::Keep, vec![of(own[0], &[22, 20])]).batch(0).unwrap();
    assert!(batch.ids == [20] && unread[0].1.to_string().contains("22.png"), "{unread:?}");
    let empty =
        SizedLoader::new(dataset, Sizing::Keep, vec![of(Size::new(0, 4), &[0])], &small(), &options(0));
    assert!(empty.err().unwrap().to_string().contains("size"));
}

/// Even images have other sizes than odd ones.
#[test]
fn batches_are_padded() {
    let root = damaged_folder();
    let dataset = Dataset::open(root.path(), Split::Val).unwrap();
    let sizes = [1, 3, 2, 7].map(|id| (id, dataset.image_size(id, Orientation::Stored).unwrap()));
    let own = [sizes[2].1, sizes[0].1];
    let padding = |multiple, to_common| Padding { multiple, to_common };
    let of = |padding| OfOneSize::batches(sizes, padding, |_| 2);
    let ids = |batches: &[OfOneSize]| batches.iter().map(|batch| batch.ids.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&of(padding(32, false))), [vec![1, 3], vec![7], vec![2]]);
    let common = of(padding(32, true));
    assert_eq!(ids(&common), [[1, 3], [2, 7]]);
    assert_eq!(common[1].valid, own);
    let size = own[0].zip(own[1], |a, b| a.max(b).div_ceil(32) * 32);
    assert_eq!((common[1].size, common[1].is_padded()), (size, true));
    assert!(!of(padding(1, false)).iter().any(OfOneSize::is_padded));

    let loader = SizedLoader::new(dataset.clone(), Sizing::Keep, common, &small(), &options(0)).unwrap();
    let (batch, _) = loader.batch(1).unwrap();
    let image = |id: usize, valid: Size| {
        let values = small().normalised(&dataset.decode(id).unwrap().pixels);
        pad(&values, valid, size)
    };
    assert_eq!((batch.size, &batch.ids[..]), (size, &[2, 7][..]));
    assert_eq!(batch.values(), Some([image(2, own[0]), image(7, own[1])].concat()));
    let alike = OfOneSize::batches([(1, own[1])], padding(1, true), |_| 2);
    let loader = SizedLoader::new(dataset.clone(), Sizing::Keep, alike, &small(), &options(0)).unwrap();
    let (batch, _) = loader.batch(0).unwrap();
    assert_eq!((batch.values(), batch.pixels), (None, dataset.decode(1).unwrap().pixels));
}

#[test]
fn a_file_that_vanishes_is_not_a_corrupt_image() {
    let root = damaged_folder();
    let mut loader = loader(&root, options(9));
    fs::remove_file(root.path().join("val/b/22.png")).unwrap();
    assert!(loader.batch(0, 5).unwrap_err().to_string().contains("22.png"));
}

/// A folder of links to files elsewhere.
#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_left_out_like_a_corrupt_image() {
    let root = tempfile::tempdir().unwrap();
    for name in ["a.png", "c.png"] {
        common::put(root.path(), name, &common::fixture("rgb.png"));
    }
    std::os::unix::fs::symlink("/no/such/image.png", root.path().join("b.png")).unwrap();
    let problem = loader(&root, options(0)).batch(0, 0).unwrap_err().to_string();
    assert!(
        problem.contains("b.png: a symbolic link to /no/such/image.png, which does not exist"),
        "{problem}"
    );
    let mut skipping = loader(&root, options(1));
    assert_eq!(skipping.batch(0, 0).unwrap().ids, [0, 2]);
    assert_eq!(skipping.skipped().len(), 1);
    let found = swinq_data::image_files(root.path());
    assert_eq!(found.iter().filter(|file| file.is_ok()).count(), 2);
    assert!(found[1].as_ref().unwrap_err().to_string().contains("b.png"));
}

#[test]
fn dropping_a_loader_that_prefetches_returns() {
    let root = damaged_folder();
    for reads in [0, 1, 3] {
        let mut loader = loader(&root, LoaderOptions { prefetch: 100, ..options(9) });
        for index in 0..reads {
            loader.batch(0, index).unwrap();
        }
    }
}

#[test]
fn cifar10_opens_and_samples_evenly() {
    let Some(data) = std::env::var_os("SWINQ_DATA").map(PathBuf::from) else {
        eprintln!(
            "SKIPPED: cifar10_opens_and_samples_evenly; set SWINQ_DATA to the folder that holds data/cifar10"
        );
        return;
    };
    let dataset = Dataset::open(&data.join("data/cifar10"), Split::Train).unwrap();
    assert_eq!((dataset.len(), dataset.num_classes(), dataset.layout()), (50_000, Some(10), Layout::Zip));
    assert_eq!(dataset.class_names().unwrap()[9], "truck");
    let ids = dataset.sample(Some(200), 1);
    let mut loader = Loader::new(
        dataset,
        ids.clone(),
        Transform::microsoft(Size::square(32), 3, true),
        LoaderOptions::default(),
    )
    .unwrap();
    let mut counts = [0; 10];
    for index in 0..loader.batches() {
        let batch = loader.batch(0, index).unwrap();
        assert_eq!(batch.ids, ids.slice(index * 8..index * 8 + 8));
        batch.labels.iter().for_each(|&label| counts[label as usize] += 1);
    }
    assert_eq!(counts, [20; 10]);
}
