//! Validations: before the first iteration, the best model, and validations that are interrupted.

use swinq_model::quantized::{Chosen, Score};

use super::*;

/// Six iterations with a validation after every second one.
const KEYS: &str = "optimizer: {lr: 1e-3}\nvalidate: {every: 2}\ncheckpoint: {every: 0}\n";

fn setup() -> Setup {
    Setup::new(Some("default"), 6, KEYS)
}

fn best(setup: &Setup) -> QuantizedModel {
    QuantizedModel::load(&setup.folder.path().join("best.safetensors")).unwrap()
}

/// Iterations of the validations in the log.
fn validations(setup: &Setup) -> Vec<u64> {
    let log = std::fs::read_to_string(setup.folder.path().join("log.jsonl")).unwrap();
    let lines = log.lines().filter(|line| line.contains("\"kind\":\"validation\""));
    lines
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap())
        .collect()
}

#[test]
fn the_best_validated_model_is_kept_with_the_validation_that_chose_it() {
    for (accuracies, iteration) in [
        ([0.5, 0.4, 0.3, 0.2], 0),
        ([0.1, 0.4, 0.4, 0.2], 2),
        ([0.1, 0.2, 0.9, 0.8], 4),
        ([0.1, 0.2, 0.3, 0.4], 6),
    ] {
        let setup = setup();
        let mut watch = Watch { accuracies: accuracies.to_vec(), ..Watch::default() };
        let mut trainer = setup.trainer();
        setup.run(&mut trainer, &mut watch, Begin::New).unwrap();
        assert_eq!(watch.validated, [false, false, false, true]);
        assert_eq!(validations(&setup), [0, 2, 4, 6]);
        let kept = best(&setup);
        let record = kept.provenance.training.clone().unwrap();
        assert_eq!(record.iterations, iteration, "{accuracies:?}");
        assert!(record.quantized);
        let score = Score::Top1(accuracies[iteration as usize / 2]);
        assert_eq!(record.chosen_by, Some(Chosen { data: "d".to_owned(), images: 1, score }));
        assert_eq!(kept.params == trainer.model().unwrap().params, iteration == 6);
        let worse = accuracies[3] < accuracies[0];
        let warned =
            watch.said.iter().any(|text| text.starts_with("warning: the training made the model worse"));
        assert_eq!(warned, worse, "{:?}", watch.said);
    }
}

#[test]
fn a_resumed_training_keeps_the_best_model_of_before() {
    let whole = setup();
    let accuracies = vec![0.1, 0.8, 0.3, 0.2];
    let mut watch = Watch { accuracies: accuracies.clone(), ..Watch::default() };
    whole.run(&mut whole.trainer(), &mut watch, Begin::New).unwrap();
    let resumed = setup();
    let mut first = Watch { stop_at: Some(3), accuracies: accuracies[..2].to_vec(), ..Watch::default() };
    resumed.run(&mut resumed.trainer(), &mut first, Begin::New).unwrap();
    let mut second = Watch { accuracies: accuracies[2..].to_vec(), ..Watch::default() };
    resumed.run(&mut resumed.trainer(), &mut second, Begin::Resume).unwrap();
    assert_eq!(second.validated, [false, true]);
    let [a, b] = [&whole, &resumed].map(|setup| (best(setup), std::fs::read(setup.checkpoint(6)).unwrap()));
    assert!(a == b && a.0.provenance.training.unwrap().iterations == 2);
}

/// A validation that is interrupted is made again before the training goes on, and no validation is lost.
#[test]
fn an_interrupted_validation_is_made_again() {
    let whole = setup().finish(Begin::New);
    for iteration in [0, 2, 4, 6] {
        let setup = setup();
        let mut watch = Watch { stop_in_validation: Some(iteration), ..Watch::default() };
        let outcome = setup.run(&mut setup.trainer(), &mut watch, Begin::New).unwrap();
        assert_eq!(outcome, Outcome::Stopped(setup.checkpoint(iteration)));
        let resumed = setup.finish(Begin::Resume);
        resumed.equals(&whole, &format!("the validation after {iteration} iterations was interrupted"));
        assert_eq!(validations(&setup), [0, 2, 4, 6]);
    }
}

/// A process that is killed after its validation and before its checkpoint repeats both; one that is killed
/// after its checkpoint has both.
#[test]
fn a_validation_is_recorded_before_its_checkpoint() {
    struct Order(Watch, PathBuf, Vec<bool>);
    impl Hooks for Order {
        fn validate(&mut self, model: &QuantizedModel, end: bool) -> Result<Option<Validation>, BoxError> {
            self.2.push(self.1.join(format!("step-{:09}.safetensors", self.0.done)).exists());
            self.0.validate(model, end)
        }
        fn progress(&mut self, done: u64, report: &IterationReport, record: Option<&IterationRecord>) {
            self.0.progress(done, report, record);
        }
        fn say(&mut self, text: &str) {
            self.0.say(text);
        }
        fn warn(&mut self, text: &str) {
            self.0.warn(text);
        }
        fn stop(&self) -> bool {
            false
        }
    }
    let setup = Setup::new(Some("default"), 4, "validate: {every: 1}\ncheckpoint: {every: 1, keep: 9}\n");
    let mut order = Order(Watch::default(), setup.checkpoints(), Vec::new());
    let (job, identity, length) = (&setup.job, setup.identity(), setup.length());
    run(job, &identity, &mut setup.trainer(), &length, &mut setup.images(), &mut order, Begin::New).unwrap();
    assert_eq!(order.2, [false; 5]);
    assert_eq!(files(&setup.checkpoints()).len(), 4);
}
