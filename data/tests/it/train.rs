//! The training loader: its batches depend on the documented inputs and on nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use swinq_data::augment::CropKind;
use swinq_data::{Augment, DataError, Dataset, LoaderOptions, Split, TrainLoader, TrainOptions, preprocess};
use swinq_model::{Batch, BatchSource, Resize, Size, Transform};
use tempfile::TempDir;

const SIZE: usize = 16;

/// 256 images of 32 x 32 pixels in ten classes.
fn cifar() -> Dataset {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/cifar10");
    Dataset::open(&root, Split::Train).unwrap()
}

fn transform() -> Transform {
    Transform { resize: Resize::Direct, ..Transform::microsoft(Size::square(SIZE), 3, true) }
}

fn augment() -> Augment {
    Augment { brightness: 0.4, hue: 0.1, ..Augment::default() }
}

/// Batches of 24: 256 images make ten batches and an incomplete one.
fn options() -> TrainOptions {
    let loader = LoaderOptions { batch_size: 24, threads: 2, prefetch: 2, skip_corrupt: 0 };
    TrainOptions { loader, augment: augment(), seed: 5, ..TrainOptions::default() }
}

fn loader(options: TrainOptions) -> TrainLoader {
    let dataset = cifar();
    let ids = dataset.sample(None, 0);
    TrainLoader::new(dataset, ids, transform(), options).unwrap()
}

/// The batches of the first `epochs` epochs, in order.
fn epochs(options: TrainOptions, epochs: u64) -> Vec<Vec<Batch>> {
    let mut loader = loader(options);
    let mut epoch = |epoch| (0..loader.batches()).map(|index| loader.batch(epoch, index).unwrap()).collect();
    (0..epochs).map(&mut epoch).collect()
}

fn ids(epoch: &[Batch]) -> Vec<usize> {
    epoch.iter().flat_map(|batch| batch.ids.clone()).collect()
}

#[test]
fn threads_seeks_and_the_cache_change_nothing() {
    let reference = epochs(options(), 3);
    let mut cached = BTreeSet::new();
    for (threads, prefetch, cache_bytes) in
        [(1, 0, 0), (2, 3, u64::MAX), (4, 25, 100_000), (4, 1, u64::MAX), (1, 12, 3071)]
    {
        let reads = LoaderOptions { threads, prefetch, ..options().loader };
        let mut loader = loader(TrainOptions { loader: reads, cache_bytes, ..options() });
        for (epoch, index) in
            [(2, 9), (0, 0), (0, 1), (0, 9), (1, 0), (1, 1), (0, 3), (0, 3), (2, 7), (1, 9), (2, 0)]
        {
            let batch = loader.batch(epoch, index).unwrap();
            assert!(batch == reference[epoch as usize][index], "{threads} threads, batch {index} of {epoch}");
        }
        assert!(loader.cached_bytes() <= cache_bytes);
        cached.insert(loader.cached_bytes() / 3072);
    }
    // Without a cache none, with 100,000 bytes 32 images of 3072 bytes, and without a limit all that were
    // read.
    assert!(cached.contains(&0) && cached.contains(&32) && cached.last() > Some(&100), "{cached:?}");
}

#[test]
fn an_epoch_has_every_image_once() {
    let all = epochs(TrainOptions { drop_last: false, ..options() }, 2);
    assert_eq!((all[0].len(), all[0][10].len()), (11, 16));
    for epoch in &all {
        let mut seen = ids(epoch);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..256));
    }
    let complete = epochs(options(), 2);
    assert_eq!(loader(options()).images(), 240);
    for (epoch, all) in complete.iter().zip(&all) {
        assert_eq!((epoch.len(), ids(epoch).len()), (10, 240));
        // Leaving out the last batch does not change the others.
        assert_eq!(epoch[..], all[..10]);
    }
    let left_out = |epoch: &[Batch]| {
        let seen: BTreeSet<usize> = ids(epoch).into_iter().collect();
        (0..256).filter(|id| !seen.contains(id)).collect::<Vec<_>>()
    };
    assert_ne!(left_out(&complete[0]), left_out(&complete[1]));
}

#[test]
fn pixels_and_labels_belong_to_their_ids() {
    let dataset = cifar();
    for batch in epochs(TrainOptions { augment: Augment::none(), ..options() }, 1).concat() {
        assert_eq!((batch.size, batch.pixels.len()), (Size::square(SIZE), batch.len() * SIZE * SIZE * 3));
        for ((&id, &label), pixels) in
            batch.ids.iter().zip(&batch.labels).zip(batch.pixels.chunks_exact(SIZE * SIZE * 3))
        {
            assert_eq!(Some(label), dataset.label(id));
            assert_eq!(pixels, preprocess(&dataset.decode(id).unwrap(), &transform()));
        }
    }
}

#[test]
fn epochs_and_seeds_differ() {
    let of_seed = |seed| epochs(TrainOptions { seed, ..options() }, 2);
    let (first, second) = (of_seed(1), of_seed(2));
    let orders: BTreeSet<Vec<usize>> =
        [&first[0], &first[1], &second[0], &second[1]].map(|epoch| ids(epoch)).into();
    assert_eq!(orders.len(), 4);
    // Positions do not depend on ids: the mean of the 240 differences is about 0 with a standard deviation of
    // 6.8, and the bound is five of them.
    let sum: i64 = ids(&first[0]).iter().enumerate().map(|(at, &id)| at as i64 - id as i64).sum();
    assert!((sum / 240).abs() < 34, "{sum}");
    let pixels = |epoch: &[Batch], id: usize| {
        let batch = epoch.iter().find(|batch| batch.ids.contains(&id)).unwrap();
        let slot = batch.ids.iter().position(|&other| other == id).unwrap();
        batch.pixels[slot * SIZE * SIZE * 3..][..SIZE * SIZE * 3].to_vec()
    };
    let both = ids(&first[0]).into_iter().filter(|id| ids(&first[1]).contains(id));
    let same = both.clone().filter(|&id| pixels(&first[0], id) == pixels(&first[1], id)).count();
    assert!(both.count() > 200 && same == 0, "{same} images have the same variation in two epochs");
}

#[test]
fn a_loader_over_some_images_reads_only_those() {
    let dataset = cifar();
    let part = dataset.sample(Some(50), 3);
    let mut loader = TrainLoader::new(dataset, part.clone(), transform(), options()).unwrap();
    assert_eq!((loader.batches(), loader.images()), (2, 48));
    let seen: BTreeSet<usize> = (0..2).flat_map(|index| loader.batch(u64::MAX, index).unwrap().ids).collect();
    assert!(seen.len() == 48 && seen.iter().all(|&id| part.iter().any(|one| one == id)));
    assert!(loader.batch(0, 2).unwrap_err().to_string().contains("beyond the epoch"));
}

#[test]
fn wrong_settings_are_refused_by_name() {
    let refused = |options: TrainOptions, ids: Vec<usize>, side| {
        let size = Size::square(side);
        let result = TrainLoader::new(cifar(), ids, Transform { size, ..transform() }, options);
        result.err().expect("this must be refused").to_string()
    };
    let batches = |batch_size| {
        let loader = LoaderOptions { batch_size, ..options().loader };
        TrainOptions { loader, ..options() }
    };
    assert!(refused(batches(0), vec![1], SIZE).contains("`batch_size`"));
    let text = refused(batches(4), vec![1, 2, 3], SIZE);
    assert!(text.contains("`batch_size`") && text.contains("4 is more than the 3 images"), "{text}");
    assert!(refused(batches(1), vec![], SIZE).contains("`ids`"));
    assert!(refused(batches(1), vec![1], 0).contains("`size`"));
    let hue = Augment { hue: 0.7, ..Augment::default() };
    let text = refused(TrainOptions { augment: hue, ..options() }, vec![1], SIZE);
    assert!(text.contains("`hue`: 0.7 must be between 0 and 0.5"), "{text}");
}

/// 23 images in one folder, without labels; images 5 and 11 are damaged.
fn damaged_folder() -> TempDir {
    common::damaged_folder(|i| format!("{i:02}.png"))
}

fn without_labels(root: &TempDir, skip_corrupt: usize, threads: usize) -> TrainLoader {
    let dataset = Dataset::open(root.path(), Split::Train).unwrap();
    let ids = dataset.sample(None, 0);
    let loader = LoaderOptions { batch_size: 4, threads, prefetch: 3, skip_corrupt };
    let options =
        TrainOptions { loader, require_labels: false, drop_last: false, cache_bytes: u64::MAX, ..options() };
    TrainLoader::new(dataset, ids, transform(), options).unwrap()
}

#[test]
fn missing_labels_are_refused_if_required() {
    let root = damaged_folder();
    let dataset = Dataset::open(root.path(), Split::Train).unwrap();
    let error = TrainLoader::new(dataset, vec![0; 30], transform(), options()).err().unwrap();
    assert!(matches!(error, DataError::NoLabels { .. }), "{error}");
    assert!(error.to_string().contains(&root.path().display().to_string()), "{error}");
    assert!(without_labels(&root, 2, 1).batch(0, 0).unwrap().labels.is_empty());
}

#[test]
fn corrupt_images_are_left_out_of_their_batches() {
    let root = damaged_folder();
    let mut reference = without_labels(&root, 2, 1);
    let batches: Vec<Batch> = (0..12).map(|i| reference.batch(i / 6, i as usize % 6).unwrap()).collect();
    for epoch in batches.chunks(6) {
        let mut seen = ids(epoch);
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..23).filter(|id| ![5, 11].contains(id))));
    }
    assert_eq!(reference.skipped().len(), 2);
    for threads in [2, 4] {
        let mut loader = without_labels(&root, 2, threads);
        for i in [7, 11, 0, 3, 10, 2, 2, 5] {
            assert_eq!(loader.batch(i / 6, i as usize % 6).unwrap(), batches[i as usize], "{i}");
        }
    }
    let mut strict = without_labels(&root, 0, 2);
    let error = (0..6).find_map(|index| strict.batch(0, index).err()).unwrap().to_string();
    assert!((error.contains("05.png") || error.contains("11.png")) && error.contains("truncated"), "{error}");
    let mut one = without_labels(&root, 1, 2);
    let error = (0..6).find_map(|index| one.batch(0, index).err()).unwrap().to_string();
    assert!(error.contains("the limit of corrupt images to leave out (1) was reached"), "{error}");
}

#[test]
fn a_file_that_vanishes_is_named() {
    let root = damaged_folder();
    let mut loader = without_labels(&root, 9, 2);
    fs::remove_file(root.path().join("22.png")).unwrap();
    let error = (0..6).find_map(|index| loader.batch(0, index).err()).unwrap().to_string();
    assert!(error.contains("22.png"), "{error}");
}

/// Images of the real training split: prefetching continues past the end of an epoch, and the cache holds
/// every image.
#[test]
fn cifar10_is_cached() {
    let Some(data) = std::env::var_os("SWINQ_DATA").map(PathBuf::from) else {
        eprintln!("SKIPPED: cifar10_is_cached; set SWINQ_DATA to the folder that holds data/cifar10");
        return;
    };
    let dataset = Dataset::open(&data.join("data/cifar10"), Split::Train).unwrap();
    let ids = dataset.sample(Some(2000), 1);
    let augment = Augment { crop: CropKind::Padded, ..augment() };
    let reads = LoaderOptions { batch_size: 100, threads: 4, prefetch: 4, skip_corrupt: 0 };
    let options = TrainOptions { loader: reads, augment, cache_bytes: 1 << 30, ..options() };
    let mut loader = TrainLoader::new(dataset, ids, transform(), options).unwrap();
    for (epoch, index) in (0..2).flat_map(|epoch| (0..20).map(move |index| (epoch, index))) {
        assert_eq!(loader.batch(epoch, index).unwrap().len(), 100);
    }
    assert_eq!(loader.cached_bytes(), 2000 * 32 * 32 * 3);
}

#[test]
fn the_work_of_the_threads_is_counted() {
    let reads = LoaderOptions { threads: 3, prefetch: 0, ..options().loader };
    let mut loader = loader(TrainOptions { loader: reads, ..options() });
    let start = loader.work().unwrap();
    assert_eq!((start.threads, start.images, start.images_per_second()), (3, 0, None));
    loader.batch(0, 0).unwrap();
    let first = loader.work().unwrap();
    // Without prefetching, every image is loaded while the reader waits.
    assert!(first.waited > start.waited && first.busy <= 3 * first.waited);
    loader.batch(0, 1).unwrap();
    let second = loader.work().unwrap().since(&first);
    assert_eq!((first.images, second.images), (24, 24));
    let rate = second.images_per_second().unwrap();
    assert!((rate * second.busy.as_secs_f64() / 72.0 - 1.0).abs() < 1e-9, "{rate}");
}

/// Batches of images of several sizes.
#[test]
fn each_iteration_has_one_size_and_whole_images_are_not_cropped() {
    let sizes = vec![Size::new(16, 24), Size::new(20, 12), Size::new(8, 8)];
    let augment = Augment { sizes: sizes.clone(), ..augment() };
    let options = TrainOptions { augment: augment.clone(), batches_of_one_size: 2, ..options() };
    let all: Vec<Batch> = epochs(options.clone(), 4).concat();
    for batch in &all {
        assert!(sizes.contains(&batch.size), "{}", batch.size);
        assert_eq!(batch.pixels.len(), batch.len() * batch.size.area() * 3);
    }
    // Ten batches in an epoch: pairs do not cross its end.
    assert!(all.chunks(2).all(|pair| pair[0].size == pair[1].size));
    for size in &sizes {
        let count = all.chunks(2).filter(|pair| pair[0].size == *size).count();
        assert!((2..=14).contains(&count), "{size}: {count} of 20");
    }
    let mut seeker = loader(options.clone());
    assert!(seeker.batch(2, 5).unwrap() == all[25] && seeker.batch(0, 3).unwrap() == all[3]);
    let other = epochs(TrainOptions { seed: 6, ..options.clone() }, 4).concat();
    assert!(all.iter().zip(&other).any(|(a, b)| a.size != b.size));

    // Without a crop, a whole image is resized, whatever the resize of the preprocessing.
    let augment = Augment { sizes: vec![Size::new(16, 24)], ..Augment::none() };
    let covering = Transform { resize: Resize::ShorterSide(20), ..transform() };
    let mut whole = TrainLoader::new(
        cifar(),
        vec![7],
        covering,
        TrainOptions { loader: LoaderOptions { batch_size: 1, ..options.loader }, augment, ..options },
    )
    .unwrap();
    let batch = whole.batch(0, 0).unwrap();
    let direct = Transform { size: Size::new(16, 24), ..transform() };
    assert!(batch.pixels == preprocess(&cifar().decode(7).unwrap(), &direct));
}
