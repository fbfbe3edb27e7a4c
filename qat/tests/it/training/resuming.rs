//! A resumed training gives the same files as an uninterrupted one.

use super::*;

const ITERATIONS: u64 = 6;

#[test]
fn resuming_after_any_iteration_gives_the_same_bytes() {
    let whole = Setup::new(Some("mode1"), ITERATIONS, FULL).finish(Begin::New);
    for iteration in 1..ITERATIONS {
        let setup = Setup::new(Some("mode1"), ITERATIONS, FULL);
        assert_eq!(setup.stop_at(iteration, Begin::New), setup.checkpoint(iteration));
        let resumed = setup.finish(Begin::Resume);
        assert_eq!(resumed.said[0], format!("continues after iteration {iteration}"));
        resumed.equals(&whole, &format!("stopped after {iteration}"));
    }
}

#[test]
fn a_training_may_stop_after_every_iteration() {
    for recipe in [None, Some("default")] {
        let keys = "optimizer: {lr: 3.1e-3, ema: 0.9}\nschedule: {warmup_steps: 2}\n";
        let whole = Setup::new(recipe, ITERATIONS, keys).finish(Begin::New);
        let setup = Setup::new(recipe, ITERATIONS, keys);
        for iteration in 1..ITERATIONS {
            setup.stop_at(iteration, Begin::Resume);
        }
        setup.finish(Begin::Resume).equals(&whole, "stopped after every iteration");
    }
}

/// A training that is killed between two checkpoints repeats its last iterations; its log then has each
/// iteration once.
#[test]
fn from_an_earlier_checkpoint() {
    let keys = format!("{FULL}checkpoint: {{every: 2}}\nlog: {{every: 1}}\n");
    let whole = Setup::new(Some("mode1"), ITERATIONS, &keys).finish(Begin::New);
    let setup = Setup::new(Some("mode1"), ITERATIONS, &keys);
    let newest = setup.stop_at(5, Begin::New);
    std::fs::remove_file(newest).unwrap();
    setup.finish(Begin::Resume).equals(&whole, "from iteration 4");
    let log = std::fs::read_to_string(setup.folder.path().join("log.jsonl")).unwrap();
    for iteration in 1..=ITERATIONS {
        let text = format!("\"kind\":\"step\",\"step\":{iteration},");
        assert_eq!(log.matches(&text).count(), 1, "iteration {iteration}: {log}");
    }
}

#[test]
fn learned_scales_are_restored() {
    let setup = Setup::new(Some("mode1"), ITERATIONS, FULL);
    setup.stop_at(3, Begin::New);
    let mut trainer = setup.trainer();
    let fresh = parameters(&mut trainer);
    let (_, mut state) = trainer.state();
    let found =
        swinq_qat::snapshot::resume(&setup.checkpoints(), &setup.identity(), &mut state, &mut |text| {
            panic!("{text}")
        });
    assert_eq!(found.unwrap().unwrap().iteration, 3);
    let resumed = parameters(&mut trainer);
    let scales: Vec<&String> = fresh.keys().filter(|name| name.starts_with("scale.")).collect();
    assert!(scales.len() > 40, "{} scales", scales.len());
    for name in scales {
        assert!(fresh[name].iter().all(|&ratio| ratio == 1.0), "{name}");
        assert!(resumed[name].iter().all(|&ratio| ratio != 1.0), "{name} is as it was before the training");
    }
}

#[test]
fn a_complete_training_is_validated_again_and_unchanged() {
    let setup = Setup::new(Some("default"), 3, FULL);
    let first = setup.finish(Begin::New);
    let again = setup.finish(Begin::Resume);
    again.equals(&first, "complete");
    assert!(again.said.iter().any(|text| text.contains("top-1")), "{:?}", again.said);
}

#[test]
fn resuming_without_a_checkpoint_starts_from_the_beginning() {
    let setup = Setup::new(Some("default"), 3, FULL);
    let resumed = setup.finish(Begin::Resume);
    assert!(resumed.said[0].contains("no checkpoint"), "{:?}", resumed.said);
    resumed.equals(&Setup::new(Some("default"), 3, FULL).finish(Begin::New), "from the beginning");
}

#[test]
fn a_folder_with_checkpoints_is_refused_without_resume() {
    let setup = Setup::new(Some("default"), 3, FULL);
    setup.stop_at(1, Begin::New);
    let before = std::fs::read(setup.checkpoint(1)).unwrap();
    let message = setup.run(&mut setup.trainer(), &mut Watch::default(), Begin::New).unwrap_err().to_string();
    assert!(message.contains("checkpoints") && message.contains("--resume"), "{message}");
    assert_eq!(files(&setup.checkpoints()), ["step-000000001.safetensors"]);
    assert!(before == std::fs::read(setup.checkpoint(1)).unwrap());
}

#[test]
fn another_job_is_refused_by_the_keys_that_differ() {
    let mut setup = Setup::new(Some("default"), 3, FULL);
    setup.stop_at(1, Begin::New);
    let before = std::fs::read(setup.checkpoint(1)).unwrap();
    setup.job.seed = 9;
    setup.job.optimizer.lr = 2e-3;
    setup.job.log.every = 1; // It has no effect on the result.
    let error = setup.run(&mut setup.trainer(), &mut Watch::default(), Begin::Resume).unwrap_err();
    let message = error.to_string();
    for word in ["seed is 9 and was 0", "optimizer.lr is 0.002 and was 0.001", "another `output`"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(!message.contains("log.every"), "{message}");
    assert!(before == std::fs::read(setup.checkpoint(1)).unwrap());
}

/// A job's numbers keep their bits in a checkpoint.
#[test]
fn numbers_of_a_job_keep_their_bits_in_a_checkpoint() {
    let mut random = 0x1234_5678_9abc_def1u64;
    for _ in 0..300 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let rate = (random >> 11) as f64 / (1u64 << 53) as f64;
        let text = format!(
            "model: q\nfloat: f\ndata: {{path: d}}\noutput: o\noptimizer: {{lr: {rate}, eps: {}}}\n",
            rate * 1e-7
        );
        let identity = Job::from_yaml("test", &text, &[]).unwrap().identity(&[]);
        let stored = serde_json::to_string(&identity).unwrap();
        let read: Identity = serde_json::from_str(&stored).unwrap();
        identity.check_resumes(&read).unwrap();
    }
}
