//! The search: from the start recipe, changes are added until the accuracy is kept, and what is not needed is
//! taken back.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Instant;

use swinq_eval::results::tune::{SearchEnd, TuneCandidate};
use swinq_model::Site;

use super::bench::{Bench, Probe, Trial};
use super::changes::{Aspect, Change, Space, State};
use super::judge::Judge;
use super::{TuneOptions, TuneProgress};
use crate::Error;
use crate::sensitivity::elements::ElementId;

/// Parts with the greatest gain whose repairs are tried in a round.
const REPAIRED: usize = 3;
/// Parts whose gain is measured again in a round.
const RANKED: usize = 10;
/// The share of the latency at which the gain of a change that costs no time is valued.
const FREE: f64 = 0.005;
/// The least share of the noise that a change must remove.
const LEAST_GAIN: f64 = 0.01;
/// The share of the gain of leaving a layer in float that makes a change almost as good.
const ALMOST: f64 = 0.8;
/// The least share of the latency that a change must save to be worth a trial.
const LEAST_SAVING: f64 = 0.002;

/// The candidates of a search.
pub(super) struct Search<'a, 'j> {
    bench: &'a mut Bench,
    space: Space,
    judge: Judge<'j>,
    options: &'a TuneOptions,
    begin: Instant,
    progress: &'a mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    /// Every recipe that was tried on all search images.
    trials: Vec<(State, Trial)>,
    /// Changes that made the result worse.
    banned: Vec<(usize, Change)>,
}

/// The end of a search.
pub(super) struct Outcome {
    pub(super) candidates: Vec<TuneCandidate>,
    pub(super) chosen: usize,
    /// Whether the chosen candidate keeps the accuracy.
    pub(super) kept: bool,
    pub(super) end: SearchEnd,
}

impl<'a, 'j> Search<'a, 'j> {
    pub(super) fn new(
        bench: &'a mut Bench,
        space: Space,
        judge: Judge<'j>,
        options: &'a TuneOptions,
        progress: &'a mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    ) -> Search<'a, 'j> {
        let (trials, banned) = (Vec::new(), Vec::new());
        Search { bench, space, judge, options, begin: Instant::now(), progress, trials, banned }
    }

    /// Runs the search.
    pub(super) fn run(mut self) -> Result<Outcome, Error> {
        let mut end = SearchEnd::Reached;
        let mut state = State::new();
        let mut trial = self.trial(&state)?;
        let mut ranking = None;
        while !self.judge.keeps(&trial) {
            if self.out_of_time() {
                return Ok(self.outcome(SearchEnd::OutOfTime));
            }
            let Some((index, change)) = self.best_change(&state, &mut ranking)? else {
                end = SearchEnd::DropImpossible;
                break;
            };
            let next = self.space.with(&state, index, change);
            let found = self.trial(&next)?;
            if found.sums.effect().sqnr_db > trial.sums.effect().sqnr_db {
                (state, trial) = (next, found);
            } else {
                self.banned.push((index, change));
            }
        }
        if end == SearchEnd::Reached && !self.speed_up(state)? {
            end = SearchEnd::OutOfTime;
        }
        Ok(self.outcome(end))
    }

    /// Takes back changes that cost time and are not needed, quantizes layers that the start recipe leaves in float, and
    /// replaces scales of input channels by one scale, as long as the accuracy is kept. Returns whether there was enough time.
    fn speed_up(&mut self, mut state: State) -> Result<bool, Error> {
        let undo = state.keys().map(|&key| Step::Undo(key));
        let savings = self.space.savings(&state).map(|(index, change)| Step::Add(index, change));
        let steps: Vec<Step> = undo.chain(savings).collect();
        let mut savings = Vec::new();
        for step in steps {
            if let Some(saving) = self.saving(&state, step)? {
                savings.push((saving, step));
            }
        }
        savings.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        for (_, step) in savings {
            if self.out_of_time() {
                return Ok(false);
            }
            // Earlier steps may have changed what this one saves.
            if self.saving(&state, step)?.is_none_or(|saving| saving < LEAST_SAVING) {
                continue;
            }
            let next = step.apply(&self.space, &state);
            let trial = self.trial(&next)?;
            if self.judge.keeps(&trial) {
                state = next;
            }
        }
        Ok(true)
    }

    /// The share of the predicted latency of `state` that `step` saves; `None` if the backend cannot run it.
    fn saving(&mut self, state: &State, step: Step) -> Result<Option<f64>, Error> {
        let next = step.apply(&self.space, state);
        let (Some(time), Some(next)) = (self.predict(state)?, self.predict(&next)?) else { return Ok(None) };
        Ok(Some((time - next) / time))
    }

    /// The change of `state` with the greatest gain for its cost; `None` if none removes noise.
    fn best_change(
        &mut self,
        state: &State,
        ranking: &mut Option<Vec<(usize, f64)>>,
    ) -> Result<Option<(usize, Change)>, Error> {
        let noise = self.probe(state, &[])?.base;
        let on = |index: &usize| self.space.is_on(state, *index);
        let ranked: Vec<usize> = match ranking {
            None => (0..self.space.len()).filter(on).collect(),
            Some(ranking) => ranking.iter().map(|(index, _)| *index).filter(on).take(RANKED).collect(),
        };
        let off: Vec<(usize, Change)> = ranked.into_iter().map(|index| (index, Change::Off)).collect();
        let mut gains = self.gains(state, noise, off)?;
        update(ranking, &gains);
        gains.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.index.cmp(&b.index)));
        let worst: BTreeSet<usize> = gains.iter().take(REPAIRED).map(|gain| gain.index).collect();
        let repairs = worst.into_iter().flat_map(|index| {
            self.space.repairs(state, index).map(move |change| (index, change)).collect::<Vec<_>>()
        });
        let repairs: Vec<(usize, Change)> = repairs.collect();
        gains.extend(self.gains(state, noise, repairs)?);
        let Some(time) = self.predict(state)? else { return Ok(None) };
        gains.retain(|gain| gain.gain >= LEAST_GAIN && !self.banned.contains(&(gain.index, gain.change)));
        let mut best: Option<(f64, usize, Change)> = None;
        for gain in &gains {
            if self.is_needless(gain, &gains) {
                continue;
            }
            let next = self.space.with(state, gain.index, gain.change);
            let Some(next_time) = self.predict(&next)? else { continue };
            let score = gain.gain / (((next_time - time) / time).max(0.0) + FREE);
            if best.is_none_or(|(most, ..)| score > most) {
                best = Some((score, gain.index, gain.change));
            }
        }
        Ok(best.map(|(_, index, change)| (index, change)))
    }

    /// Whether `gain` leaves a layer in float although a change that keeps its product in INT8 is almost as good. Times
    /// of small layers are not exact enough to decide between the two.
    fn is_needless(&self, gain: &Gain, gains: &[Gain]) -> bool {
        let layer = self.space.kind(gain.index);
        if gain.change != Change::Off || matches!(layer, ElementId::Site(_)) {
            return false;
        }
        let keeps_product = |other: &Gain| {
            let of_layer = match (self.space.kind(other.index), layer) {
                (ElementId::Site(Site::Output(output)), ElementId::Linear(linear)) => output == linear,
                (kind, layer) => kind == layer && other.change != Change::Off,
            };
            of_layer && other.gain >= ALMOST * gain.gain
        };
        gains.iter().any(keeps_product)
    }

    /// The share of the noise that each change of `state` removes, on the probe images.
    fn gains(
        &mut self,
        state: &State,
        noise: f64,
        changes: Vec<(usize, Change)>,
    ) -> Result<Vec<Gain>, Error> {
        let states: Vec<State> =
            changes.iter().map(|&(index, change)| self.space.with(state, index, change)).collect();
        let found = self.probe(state, &states)?;
        let gain = |((index, change), left): ((usize, Change), f64)| Gain {
            index,
            change,
            gain: if noise == 0.0 { 0.0 } else { 1.0 - left / noise },
        };
        Ok(changes.into_iter().zip(found.variants).map(gain).collect())
    }

    /// Measures a recipe on all search images, once.
    fn trial(&mut self, state: &State) -> Result<Trial, Error> {
        if let Some((_, trial)) = self.trials.iter().find(|(tried, _)| tried == state) {
            return Ok(trial.clone());
        }
        let recipe = self.space.recipe(state);
        let trial = self.bench.trial(&recipe, &mut self.judge, &mut ticker(self.progress))?;
        self.trials.push((state.clone(), trial.clone()));
        let effect = trial.sums.effect();
        let report = TuneProgress::Trial {
            number: self.trials.len(),
            speedup: self.bench.float_ms() / trial.predicted_ms,
            sqnr_db: effect.sqnr_db,
            difference: trial.difference,
            value: trial.value,
            changes: &self.space.describe(state),
        };
        match (self.progress)(report) {
            ControlFlow::Continue(()) => Ok(trial),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    fn probe(&mut self, state: &State, states: &[State]) -> Result<Probe, Error> {
        self.bench.probe(&self.space, state, states, &mut ticker(self.progress))
    }

    /// The predicted latency; `None` if the backend cannot run the recipe.
    fn predict(&mut self, state: &State) -> Result<Option<f64>, Error> {
        self.bench.predict(&self.space.recipe(state))
    }

    fn out_of_time(&self) -> bool {
        self.options.budget.is_some_and(|budget| self.begin.elapsed() >= budget)
    }

    /// The fastest candidate that keeps the accuracy; if there is none, the closest to the float model.
    fn outcome(self, mut end: SearchEnd) -> Outcome {
        let float_ms = self.bench.float_ms();
        let kept = |index: &usize| self.judge.keeps(&self.trials[*index].1);
        let faster = |a: &usize, b: &usize| {
            let (a, b) = (&self.trials[*a].1, &self.trials[*b].1);
            a.predicted_ms.total_cmp(&b.predicted_ms)
        };
        let closer = |a: &usize, b: &usize| {
            let [a, b] = [a, b].map(|&index| &self.trials[index].1);
            let by_drop = self.judge.closeness(a).total_cmp(&self.judge.closeness(b));
            by_drop.then(a.sums.effect().sqnr_db.total_cmp(&b.sums.effect().sqnr_db))
        };
        let all = 0..self.trials.len();
        let chosen = all.clone().filter(kept).min_by(faster).or_else(|| all.max_by(closer)).unwrap_or(0);
        let slow = self
            .options
            .min_speedup
            .is_some_and(|least| float_ms / self.trials[chosen].1.predicted_ms < least);
        if end == SearchEnd::Reached && slow {
            end = SearchEnd::SpeedupImpossible;
        }
        let candidate = |(state, trial): &(State, Trial)| TuneCandidate {
            recipe: self.space.recipe(state),
            changes: self.space.describe(state),
            predicted_ms: trial.predicted_ms,
            latency_ms: None,
            speedup: float_ms / trial.predicted_ms,
            int8_share: trial.int8_share,
            effect: trial.sums.effect(),
            top1_difference: trial.difference,
            value: trial.value,
        };
        let kept = kept(&chosen);
        Outcome { candidates: self.trials.iter().map(candidate).collect(), chosen, kept, end }
    }
}

/// Reports that a measurement goes on; the caller may stop it.
fn ticker(
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> impl FnMut() -> Result<(), Error> {
    move || match progress(TuneProgress::Probe) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Interrupted),
    }
}

/// A step of the last phase.
#[derive(Clone, Copy)]
enum Step {
    /// Takes a change back.
    Undo((usize, Aspect)),
    /// Adds a change that saves time.
    Add(usize, Change),
}

impl Step {
    fn apply(self, space: &Space, state: &State) -> State {
        match self {
            Step::Undo(key) => {
                let mut state = state.clone();
                state.remove(&key);
                state
            }
            Step::Add(index, change) => space.with(state, index, change),
        }
    }
}

/// The share of the noise that a change removes.
struct Gain {
    index: usize,
    change: Change,
    gain: f64,
}

/// Replaces the gains of parts that were measured again, and sorts by gain.
fn update(ranking: &mut Option<Vec<(usize, f64)>>, gains: &[Gain]) {
    let ranking = ranking.get_or_insert_default();
    ranking.retain(|(index, _)| !gains.iter().any(|gain| gain.index == *index));
    ranking.extend(gains.iter().map(|gain| (gain.index, gain.gain)));
    ranking.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
}
