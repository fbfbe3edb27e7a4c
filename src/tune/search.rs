//! The search: from the start recipe, changes are added until the accuracy is kept, and what is not needed is
//! taken back.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use swinq_eval::results::tune::{SearchEnd, TuneCandidate};
use swinq_model::Site;

use super::bench::{Bench, Probe, Trial};
use super::budget::Budget;
use super::changes::{Aspect, Change, Space, State};
use super::choice::{self, Standing};
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

/// The candidates of a search.
pub(super) struct Search<'a, 'j> {
    bench: &'a mut Bench,
    space: Space,
    judge: Judge<'j>,
    options: &'a TuneOptions,
    budget: Budget,
    /// Whether the budget ended a measurement.
    expired: bool,
    /// The time of the longest trial.
    longest: Duration,
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
        (options, budget): (&'a TuneOptions, Budget),
        progress: &'a mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    ) -> Search<'a, 'j> {
        let (trials, banned, longest) = (Vec::new(), Vec::new(), Duration::ZERO);
        Search { bench, space, judge, options, budget, expired: false, longest, progress, trials, banned }
    }

    /// Runs the search. The start recipe is always tried, so that there is a result.
    pub(super) fn run(mut self) -> Result<Outcome, Error> {
        let start = self.trial(&State::new())?;
        let end = match self.improve(start) {
            Err(Error::Interrupted) if self.expired => SearchEnd::OutOfTime,
            end => end?,
        };
        Ok(self.outcome(end))
    }

    /// Adds changes to the start recipe, whose trial is `trial`, until the accuracy is kept, and then makes
    /// it faster.
    fn improve(&mut self, mut trial: Trial) -> Result<SearchEnd, Error> {
        let mut state = State::new();
        let mut ranking = None;
        while !self.judge.keeps(&trial) {
            if self.out_of_time() {
                return Ok(SearchEnd::OutOfTime);
            }
            let Some((index, change)) = self.best_change(&state, &mut ranking)? else {
                return Ok(SearchEnd::DropImpossible);
            };
            let next = self.space.with(&state, index, change);
            let found = self.trial(&next)?;
            if found.sums.effect().sqnr_db > trial.sums.effect().sqnr_db {
                (state, trial) = (next, found);
            } else {
                self.banned.push((index, change));
            }
        }
        Ok(if self.speed_up(state)? { SearchEnd::Reached } else { SearchEnd::OutOfTime })
    }

    /// Takes back changes that cost time and are not needed, quantizes layers that the start recipe leaves in
    /// float, and replaces scales of input channels by one scale, as long as the accuracy is kept and each
    /// saves more than the spread of the latency. Those that save less are tried together. Returns whether
    /// there was enough time.
    fn speed_up(&mut self, mut state: State) -> Result<bool, Error> {
        let undo = state.keys().map(|&key| Step::Undo(key));
        let savings = self.space.savings(&state).map(|(index, change)| Step::Add(index, change));
        let steps: Vec<Step> = undo.chain(savings).collect();
        let mut savings = Vec::new();
        for step in steps {
            if let Some(saving) = self.saving(&state, &step.apply(&self.space, &state))? {
                savings.push((saving, step));
            }
        }
        savings.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut small = Vec::new();
        for (saving, step) in savings {
            let next = step.apply(&self.space, &state);
            // Earlier steps may have changed what this one saves.
            if !self.saves(&state, &next)? {
                small.extend((saving > 0.0).then_some(step));
                continue;
            }
            if self.out_of_time() {
                return Ok(false);
            }
            let trial = self.trial(&next)?;
            if self.judge.keeps(&trial) {
                state = next;
            }
        }
        let together = small.iter().fold(state.clone(), |state, step| step.apply(&self.space, &state));
        if small.len() > 1 && self.saves(&state, &together)? {
            if self.out_of_time() {
                return Ok(false);
            }
            self.trial(&together)?;
        }
        Ok(true)
    }

    /// Whether `next` saves more than the spread of the predicted latency of `state`.
    fn saves(&mut self, state: &State, next: &State) -> Result<bool, Error> {
        let (Some(ms), Some(next)) = (self.predict(state)?, self.predict(next)?) else { return Ok(false) };
        Ok(choice::saves(ms, next, self.bench.spread()))
    }

    /// The share of the predicted latency of `state` that `next` saves; `None` if the backend cannot run it.
    fn saving(&mut self, state: &State, next: &State) -> Result<Option<f64>, Error> {
        let (Some(time), Some(next)) = (self.predict(state)?, self.predict(next)?) else { return Ok(None) };
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

    /// Whether `gain` leaves a layer in float although a change that keeps its product in INT8 is almost as
    /// good. Times of small layers are not exact enough to decide between the two.
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
        let (recipe, begin) = (self.space.recipe(state), Instant::now());
        let budget = if self.trials.is_empty() { Budget::start(None) } else { self.budget };
        let mut tick = ticker(self.progress, budget, &mut self.expired);
        let trial = self.bench.trial(&recipe, &mut self.judge, &mut tick)?;
        drop(tick);
        self.longest = self.longest.max(begin.elapsed());
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
        let tick = &mut ticker(self.progress, self.budget, &mut self.expired);
        self.bench.probe(&self.space, state, states, tick)
    }

    /// The predicted latency; `None` if the backend cannot run the recipe. Its launches may have to be timed.
    fn predict(&mut self, state: &State) -> Result<Option<f64>, Error> {
        if self.budget.is_over() {
            self.expired = true;
            return Err(Error::Interrupted);
        }
        self.bench.predict(&self.space.recipe(state))
    }

    /// Whether a further trial would not end within the budget.
    fn out_of_time(&self) -> bool {
        !self.budget.allows(self.longest)
    }

    /// The best of the candidates that keep the accuracy, by the rule of [`choice::best`]: of those that are
    /// fast enough, if any is.
    fn best_kept(&self) -> Option<usize> {
        let kept = self.trials.iter().enumerate().filter(|(_, (_, trial))| self.judge.keeps(trial));
        let kept: Vec<Standing> = kept
            .map(|(index, (_, trial))| Standing {
                index,
                ms: trial.predicted_ms,
                accuracy: self.judge.accuracy(trial),
            })
            .collect();
        let fast: Vec<Standing> = kept.iter().copied().filter(|standing| self.is_fast(standing.ms)).collect();
        choice::best(if fast.is_empty() { kept } else { fast }, self.bench.spread())
    }

    /// Whether a model with this latency reaches the least speedup.
    fn is_fast(&self, ms: f64) -> bool {
        self.options.min_speedup.is_none_or(|least| self.bench.float_ms() / ms >= least)
    }

    /// The best candidate that keeps the accuracy; if there is none, the closest to the float model.
    fn outcome(self, mut end: SearchEnd) -> Outcome {
        let float_ms = self.bench.float_ms();
        let closer = |a: &usize, b: &usize| {
            let [a, b] = [a, b].map(|&index| &self.trials[index].1);
            let by_drop = self.judge.closeness(a).total_cmp(&self.judge.closeness(b));
            by_drop.then(a.sums.effect().sqnr_db.total_cmp(&b.sums.effect().sqnr_db))
        };
        let best = self.best_kept();
        let chosen = best.or_else(|| (0..self.trials.len()).max_by(closer)).unwrap_or(0);
        if end == SearchEnd::Reached && !self.is_fast(self.trials[chosen].1.predicted_ms) {
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
        Outcome { candidates: self.trials.iter().map(candidate).collect(), chosen, kept: best.is_some(), end }
    }
}

/// Reports that a measurement goes on. The caller may stop it, and the end of `budget` does, which `expired`
/// then says.
fn ticker<'t>(
    progress: &'t mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    budget: Budget,
    expired: &'t mut bool,
) -> impl FnMut() -> Result<(), Error> + 't {
    move || {
        *expired = budget.is_over();
        match progress(TuneProgress::Probe) {
            ControlFlow::Continue(()) if !*expired => Ok(()),
            _ => Err(Error::Interrupted),
        }
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
