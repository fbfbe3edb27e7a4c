//! Going on after a stop gives what an uninterrupted training gives.

use super::*;

const STEPS: u64 = 6;

#[test]
fn from_every_step_to_the_same_bytes() {
    let whole = Setup::new(Some("mode1"), STEPS, FULL).finish(false);
    for step in 1..STEPS {
        let setup = Setup::new(Some("mode1"), STEPS, FULL);
        assert_eq!(setup.stop_at(step, false), setup.checkpoint(step));
        let resumed = setup.finish(true);
        assert_eq!(resumed.said[0], format!("goes on after step {step}"));
        resumed.equals(&whole, &format!("stopped at {step}"));
    }
}

#[test]
fn stopped_at_every_step() {
    for recipe in [None, Some("default")] {
        let keys = "optimizer: {lr: 3.1e-3, ema: 0.9}\nschedule: {warmup_steps: 2}\n";
        let whole = Setup::new(recipe, STEPS, keys).finish(false);
        let setup = Setup::new(recipe, STEPS, keys);
        for step in 1..STEPS {
            setup.stop_at(step, true);
        }
        setup.finish(true).equals(&whole, "stopped at every step");
    }
}

/// Killed between checkpoints, a training does its last steps again; its log then has each step once.
#[test]
fn from_an_earlier_checkpoint() {
    let keys = format!("{FULL}checkpoint: {{every: 2}}\nlog: {{every: 1}}\n");
    let whole = Setup::new(Some("mode1"), STEPS, &keys).finish(false);
    let setup = Setup::new(Some("mode1"), STEPS, &keys);
    let newest = setup.stop_at(5, false);
    std::fs::remove_file(newest).unwrap();
    setup.finish(true).equals(&whole, "from step 4");
    let log = std::fs::read_to_string(setup.folder.path().join("log.jsonl")).unwrap();
    for step in 1..=STEPS {
        let text = format!("\"kind\":\"step\",\"step\":{step},");
        assert_eq!(log.matches(&text).count(), 1, "step {step}: {log}");
    }
}

#[test]
fn trained_scales_are_taken_up_and_not_made_anew() {
    let setup = Setup::new(Some("mode1"), STEPS, FULL);
    setup.stop_at(3, false);
    let mut trainer = setup.trainer();
    let fresh = parameters(&mut trainer);
    let (_, mut state) = trainer.state();
    let found =
        swinq_qat::snapshot::resume(&setup.checkpoints(), &setup.identity(), &mut state, &mut |text| {
            panic!("{text}")
        });
    assert_eq!(found.unwrap().unwrap().step, 3);
    let resumed = parameters(&mut trainer);
    let scales: Vec<&String> = fresh.keys().filter(|name| name.starts_with("scale.")).collect();
    assert!(scales.len() > 40, "{} scales", scales.len());
    for name in scales {
        assert!(fresh[name].iter().all(|&ratio| ratio == 1.0), "{name}");
        assert!(resumed[name].iter().all(|&ratio| ratio != 1.0), "{name} is as it was before the training");
    }
}

#[test]
fn a_training_that_is_complete_is_validated_again_and_unchanged() {
    let setup = Setup::new(Some("default"), 3, FULL);
    let first = setup.finish(false);
    let again = setup.finish(true);
    again.equals(&first, "complete");
    assert!(again.said.iter().any(|text| text.contains("top-1")), "{:?}", again.said);
}

#[test]
fn resuming_without_a_checkpoint_begins() {
    let setup = Setup::new(Some("default"), 3, FULL);
    let resumed = setup.finish(true);
    assert!(resumed.said[0].contains("no checkpoint"), "{:?}", resumed.said);
    resumed.equals(&Setup::new(Some("default"), 3, FULL).finish(false), "from the beginning");
}

#[test]
fn a_folder_with_checkpoints_is_refused_without_resume() {
    let setup = Setup::new(Some("default"), 3, FULL);
    setup.stop_at(1, false);
    let before = std::fs::read(setup.checkpoint(1)).unwrap();
    let message = setup.run(&mut setup.trainer(), &mut Watch::default(), false).unwrap_err().to_string();
    assert!(message.contains("checkpoints") && message.contains("--resume"), "{message}");
    assert_eq!(names(&setup.checkpoints()), ["step-000000001.safetensors"]);
    assert!(before == std::fs::read(setup.checkpoint(1)).unwrap());
}

#[test]
fn another_job_is_refused_by_the_keys_that_differ() {
    let mut setup = Setup::new(Some("default"), 3, FULL);
    setup.stop_at(1, false);
    let before = std::fs::read(setup.checkpoint(1)).unwrap();
    setup.job.seed = 9;
    setup.job.optimizer.lr = 2e-3;
    setup.job.log.every = 1; // which changes nothing
    let error = setup.run(&mut setup.trainer(), &mut Watch::default(), true).unwrap_err();
    let message = error.to_string();
    for word in ["seed is 9 and was 0", "optimizer.lr is 0.002 and was 0.001", "another `output`"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(!message.contains("log.every"), "{message}");
    assert!(before == std::fs::read(setup.checkpoint(1)).unwrap());
}

/// Numbers of a job come back from its checkpoint as they were, whichever they are.
#[test]
fn a_job_is_itself_whatever_its_numbers() {
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
