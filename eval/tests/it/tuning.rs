//! The words about a search, which the command, reports and Python show.

use crate::common;
use swinq_eval::results::tune::{SearchEnd, Tuning, Verdict};
use swinq_eval::{DataInfo, Load};

/// A search whose predicted and measured times agree.
fn tuning() -> Tuning {
    let mut tuning = common::tuning();
    tuning.environment.cores = Some(2);
    tuning.candidates[tuning.chosen].latency_ms = Some(common::latency(13.0).stats());
    tuning
}

#[test]
fn predicted_and_measured_times_that_differ_are_said() {
    assert_eq!(tuning().warnings(), Vec::<String>::new());
    let mut far = tuning();
    (far.candidates[far.chosen].predicted_ms, far.float_ms) = (31.2, 100.0);
    far.candidates[far.chosen].latency_ms = Some(common::latency(97.3).stats());
    let [warning] = &far.warnings()[..] else { panic!("{:?}", far.warnings()) };
    assert!(warning.starts_with("Predicted and measured latency differ by 3."), "{warning}");
    assert!(warning.contains("the chosen recipe has 31.200 and ") && warning.contains("with predicted ones"));
    // Of both models, the one whose times differ most is named.
    far.float_ms = 2082.0;
    assert!(far.warnings()[0].contains("float has 2082.000 and "), "{:?}", far.warnings());
    // A ratio of less than 1.5 is said nowhere.
    far.float_ms = 40.0;
    far.candidates[far.chosen].predicted_ms = 70.0;
    assert!(far.warnings().is_empty(), "{:?}", far.warnings());
}

#[test]
fn disturbed_times_are_said_as_eval_says_them() {
    let load = |other| Load { average: None, other_cores: Some(other) };
    for (launches, models, what) in [
        (0.9, 0.1, Some("0.9 of 2 cores while launches were measured")),
        (0.1, 0.9, Some("0.9 of 2 cores while the chosen model was measured")),
        (1.1, 0.9, Some("1.1 of 2 cores while launches and the chosen model were measured")),
        (0.2, 0.1, None),
    ] {
        let mut found = tuning();
        (found.launch_load, found.latency_load) = (load(launches), load(models));
        let expected = what.map(|what| format!("Latency is disturbed: other processes used up to {what}."));
        assert_eq!(found.warnings(), expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn the_end_of_a_search_has_its_reason() {
    let mut found = tuning();
    assert!(found.ending().contains("after 4 recipes: no further change"), "{}", found.ending());
    assert!(found.ending().ends_with("saves more than the spread of the latency (1.2 %)."));
    found.cost.spread = 0.555;
    assert!(
        found.ending().ends_with("run it again while nothing else uses the processor."),
        "{}",
        found.ending()
    );
    found.candidates.truncate(1);
    assert!(found.ending().starts_with("The search ended at its first recipe, and nothing else was tried"));
    (found.end, found.goal.budget_minutes) = (SearchEnd::OutOfTime, Some(1.0));
    assert!(found.ending().starts_with("The budget of 1 minute ended the search after 1 recipe;"));
    for end in [SearchEnd::DropImpossible, SearchEnd::SpeedupImpossible] {
        found.end = end;
        assert!(found.ending().starts_with("The search ended after 1 recipe: none "));
    }
}

#[test]
fn more_images_than_the_data_set_has_do_not_decide() {
    let mut found = tuning();
    let mut words = |needed, total| {
        let verdict = Verdict::NotConcluded { images_needed: needed };
        found.verification.as_mut().unwrap().verdict = verdict;
        found.data = Some(DataInfo { total, ..DataInfo::default() });
        found.deciding_images()
    };
    assert_eq!(
        words(Some(1_962), Some(3_925)).unwrap(),
        "about 1,962 verification images would decide (--images 3924)"
    );
    let more = "about 5,719 verification images would decide, which is more than this data set has: 3,925, one half of which verifies";
    assert_eq!(words(Some(5_719), Some(3_925)).unwrap(), more);
    assert_eq!(
        words(Some(5_719), None).unwrap(),
        "about 5,719 verification images would decide (--images 11438)"
    );
    assert_eq!(words(None, Some(3_925)), None);
}
