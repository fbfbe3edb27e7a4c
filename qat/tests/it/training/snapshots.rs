//! Checkpoints on disk: damage and rotation.

use swinq_qat::snapshot;
use swinq_qat::snapshot::Progress;

use super::*;

const KEYS: &str = "checkpoint: {every: 1, keep: 3}\noptimizer: {lr: 1e-3}\n";

/// Resumes from the latest intact checkpoint; returns its progress, its parameters and the warnings.
fn resume_latest(setup: &Setup) -> (Option<Progress>, BTreeMap<String, Vec<f32>>, Vec<String>) {
    let mut trainer = setup.trainer();
    let mut warnings = Vec::new();
    let (_, mut state) = trainer.state();
    let found = snapshot::resume(&setup.checkpoints(), &setup.identity(), &mut state, &mut |text| {
        warnings.push(text.to_owned());
    });
    let found = found.unwrap();
    (found, parameters(&mut trainer), warnings)
}

#[test]
fn the_latest_are_kept() {
    let setup = Setup::new(None, 5, KEYS);
    setup.finish(Begin::New);
    let kept = ["step-000000003.safetensors", "step-000000004.safetensors", "step-000000005.safetensors"];
    assert_eq!(files(&setup.checkpoints()), kept);
}

#[test]
fn a_truncated_checkpoint_is_skipped_for_the_previous_one() {
    let setup = Setup::new(Some("default"), 5, KEYS);
    setup.stop_at(4, Begin::New);
    let (newest, whole) = (setup.checkpoint(4), std::fs::read(setup.checkpoint(4)).unwrap());
    for length in [0, 7, 8, 100, whole.len() / 3, whole.len() - 4, whole.len() - 1] {
        std::fs::write(&newest, &whole[..length]).unwrap();
        let (found, _, warnings) = resume_latest(&setup);
        assert_eq!(found.unwrap().iteration, 3, "{length} bytes");
        assert!(warnings.len() == 1 && warnings[0].contains("step-000000004"), "{warnings:?}");
    }
    let resumed = setup.finish(Begin::Resume);
    assert!(resumed.said[0].starts_with("warning: "), "{:?}", resumed.said);
    resumed.equals(&Setup::new(Some("default"), 5, KEYS).finish(Begin::New), "after a truncated checkpoint");
}

/// A file with a flipped bit is skipped, or the bit has no meaning and the file has the same content as
/// before.
#[test]
fn a_flipped_bit_is_noticed() {
    let setup = Setup::new(None, 3, KEYS);
    setup.stop_at(2, Begin::New);
    let (newest, whole) = (setup.checkpoint(2), std::fs::read(setup.checkpoint(2)).unwrap());
    let (progress, values, warnings) = resume_latest(&setup);
    assert!(warnings.is_empty());
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let job = whole.windows(14).position(|part| part == b"swinq_training").unwrap();
    let document = job..(job + 1800).min(header);
    let elsewhere = (0..header).step_by(487).chain((header..whole.len()).step_by(whole.len() / 40));
    let mut noticed = 0;
    for (count, at) in document.clone().step_by(7).chain(elsewhere).enumerate() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (count % 7);
        std::fs::write(&newest, &damaged).unwrap();
        let (found, other, warnings) = resume_latest(&setup);
        if warnings.is_empty() {
            assert!(found == progress && other == values, "byte {at} of {}", whole.len());
        } else {
            assert_eq!(found.unwrap().iteration, 1, "byte {at}");
            noticed += 1;
        }
    }
    assert!(noticed > 200, "{noticed} flips noticed");
}

#[test]
fn a_damaged_later_checkpoint_does_not_displace_an_intact_one() {
    let setup = Setup::new(None, 6, "checkpoint: {every: 0, keep: 1}\n");
    setup.stop_at(1, Begin::New);
    let first = std::fs::read(setup.checkpoint(1)).unwrap();
    setup.stop_at(5, Begin::Resume);
    std::fs::write(setup.checkpoint(1), first).unwrap();
    std::fs::write(setup.checkpoint(5), b"torn").unwrap();
    setup.stop_at(2, Begin::Resume);
    assert!(setup.checkpoint(2).exists(), "{:?}", files(&setup.checkpoints()));
    let (found, ..) = resume_latest(&setup);
    assert_eq!(found.unwrap().iteration, 2);
    setup.finish(Begin::Resume);
    assert_eq!(files(&setup.checkpoints()), ["step-000000006.safetensors"]);
}

/// The temporary file of a killed process is not a checkpoint and is removed later.
#[test]
fn temporary_files_of_killed_processes_are_removed() {
    let setup = Setup::new(None, 3, KEYS);
    setup.stop_at(2, Begin::New);
    let part = setup.checkpoints().join(".swinq-abc123.part");
    std::fs::write(&part, b"half").unwrap();
    let (found, _, warnings) = resume_latest(&setup);
    assert_eq!(found.unwrap().iteration, 2);
    assert!(warnings.is_empty());
    setup.finish(Begin::Resume);
    assert!(!part.exists());
}

#[test]
fn another_network_is_refused_by_the_tensor() {
    let setup = Setup::new(None, 3, KEYS);
    setup.stop_at(2, Begin::New);
    let mut other = Setup::new(None, 3, KEYS);
    other.float = random(SwinConfig { num_classes: 6, ..setup.float.config.clone() }, 5);
    let mut trainer = other.trainer();
    let (_, mut state) = trainer.state();
    let found = snapshot::resume(&setup.checkpoints(), &setup.identity(), &mut state, &mut |_| ());
    let message = found.unwrap_err().to_string();
    assert!(message.contains("head.bias") && message.contains("step-000000002"), "{message}");
}

/// Only damaged checkpoints: the iterations that they stand for are not repeated without being asked for.
#[test]
fn a_folder_with_only_damaged_checkpoints_is_refused_unless_the_training_starts_anew() {
    let setup = Setup::new(Some("default"), 3, KEYS);
    setup.stop_at(2, Begin::New);
    for iteration in 1..=2 {
        std::fs::write(setup.checkpoint(iteration), b"torn").unwrap();
    }
    let mut watch = Watch::default();
    let error = setup.run(&mut setup.trainer(), &mut watch, Begin::Resume).unwrap_err().to_string();
    assert!(error.contains("no intact checkpoint") && error.contains("--restart"), "{error}");
    assert!(
        watch.said.len() == 2 && watch.said.iter().all(|text| text.starts_with("warning: ")),
        "{:?}",
        watch.said
    );
    assert_eq!(files(&setup.checkpoints()).len(), 2);
    assert_eq!(watch.done, 0);
    let again = setup.finish(Begin::Restart);
    again.equals(&Setup::new(Some("default"), 3, KEYS).finish(Begin::New), "started anew");
}
