//! The learning rates, as a pure function of the iteration.
//!
//! ```text
//! i < warmup:      lr = warmup_lr + (peak - warmup_lr) * i / warmup
//! else, cosine:    lr = min_lr + (peak - min_lr) * (1 + cos(pi * (i - warmup) / (iterations - warmup))) / 2
//! else, constant:  lr = peak
//! ```
//!
//! Rates are absolute: the optimizer uses the job's rates, whatever the batch size and the number of devices.
//! The cosine covers the iterations after the warmup, as in timm's scheduler with `warmup_prefix` and in
//! PyTorch's `LinearLR` followed by `CosineAnnealingLR`. It would reach `min_lr` one iteration after the
//! last.

use std::fmt;

use crate::job::{Job, JobError, ScheduleKind};

/// Parameters that share a learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Weights, biases, norms and tables: peak `optimizer.lr`.
    Weights,
    /// Learned scales: peak `optimizer.lr_scales`. `warmup_lr` and `min_lr` keep their ratio to the peak of
    /// the weights.
    Scales,
}

/// The learning rates of a run.
///
/// ```
/// use swinq_qat::schedule::{Group, Schedule};
/// use swinq_qat::job::ScheduleKind;
///
/// let kind = ScheduleKind::Cosine;
/// let schedule = Schedule { iterations: 100, warmup: 10, kind, peak: [1e-4, 1e-5], start: 0.5, end: 0.0 };
/// assert_eq!(schedule.lr(Group::Weights, 10), 1e-4);
/// assert_eq!(schedule.lr(Group::Scales, 0), 5e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Iterations of the run.
    pub iterations: u64,
    /// Iterations of the warmup; fewer than the iterations of the run.
    pub warmup: u64,
    /// The learning rate's curve after the warmup.
    pub kind: ScheduleKind,
    /// Highest learning rates: of weights, then of scales.
    pub peak: [f64; 2],
    /// Rate at the start of the warmup, as a fraction of the peak.
    pub start: f64,
    /// Rate at the end of the cosine, as a fraction of the peak.
    pub end: f64,
}

impl Schedule {
    /// The schedule of a job whose run has `iterations` iterations.
    ///
    /// # Errors
    /// [`JobError::Key`] if the warmup is not shorter than the run.
    pub fn of(job: &Job, iterations: u64) -> Result<Schedule, JobError> {
        let keys = &job.schedule;
        if keys.warmup_steps >= iterations {
            let problem = format!(
                "is {}, but the run has {iterations} iterations; shorten the warmup or lengthen the run",
                keys.warmup_steps
            );
            return Err(JobError::key(&job.name, "schedule.warmup_steps", problem));
        }
        let peak = [job.optimizer.lr, job.optimizer.lr_scales];
        let fraction = |lr: f64| if peak[0] > 0.0 { lr / peak[0] } else { 0.0 };
        let (start, end) = (fraction(keys.warmup_lr), fraction(keys.min_lr));
        Ok(Schedule { iterations, warmup: keys.warmup_steps, kind: keys.kind, peak, start, end })
    }

    /// The learning rate of `group` at `iteration`, counted from 0.
    pub fn lr(&self, group: Group, iteration: u64) -> f64 {
        self.peak[group as usize] * self.fraction(iteration)
    }

    /// The fraction of the peak at `iteration`.
    fn fraction(&self, iteration: u64) -> f64 {
        if iteration < self.warmup {
            return self.start + (1.0 - self.start) * (iteration as f64 / self.warmup as f64);
        }
        match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Cosine => {
                let passed = (iteration - self.warmup) as f64 / (self.iterations - self.warmup).max(1) as f64;
                let height = 0.5 * (1.0 + libm::cos(std::f64::consts::PI * passed.min(1.0)));
                self.end + (1.0 - self.end) * height
            }
        }
    }

    /// The iterations that show the curve: the first, the end of the warmup, the quarters and the last.
    fn landmarks(&self) -> Vec<(&'static str, u64)> {
        let last = self.iterations.saturating_sub(1);
        let mut marks = vec![("first", 0)];
        if self.warmup > 0 {
            marks.push(("warmup ends", self.warmup));
        }
        let quarters = [("25 %", 1), ("50 %", 2), ("75 %", 3)];
        marks.extend(quarters.map(|(name, quarter)| {
            (name, self.iterations / 4 * quarter + self.iterations % 4 * quarter / 4)
        }));
        marks.push(("last", last));
        marks.sort_by_key(|(_, iteration)| *iteration);
        marks
    }
}

/// Prints the learning rates at the landmarks, one line each.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<11} {:>10} {:>12} {:>12}", "", "iteration", "lr", "lr scales")?;
        for (name, iteration) in self.landmarks() {
            let [weights, scales] = [Group::Weights, Group::Scales].map(|group| self.lr(group, iteration));
            writeln!(f, "{name:<11} {iteration:>10} {weights:>12.4e} {scales:>12.4e}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(iterations: u64, warmup: u64, start: f64, end: f64) -> Schedule {
        Schedule { iterations, warmup, kind: ScheduleKind::Cosine, peak: [1e-3, 1e-5], start, end }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-15 + 1e-12 * b.abs()
    }

    #[test]
    fn exact_values_at_the_landmarks() {
        let schedule = cosine(110, 10, 0.0, 0.0);
        for (iteration, lr) in [(0, 0.0), (5, 5e-4), (10, 1e-3), (60, 5e-4), (110, 0.0)] {
            assert!(near(schedule.lr(Group::Weights, iteration), lr), "{iteration}");
            assert!(near(schedule.lr(Group::Scales, iteration), lr / 100.0), "{iteration}");
        }
        let quarter = 5e-4 * (1.0 + std::f64::consts::FRAC_1_SQRT_2);
        assert!(near(schedule.lr(Group::Weights, 35), quarter));
        let floor = cosine(100, 0, 0.0, 0.1);
        assert!(near(floor.lr(Group::Weights, 0), 1e-3) && near(floor.lr(Group::Weights, 100), 1e-4));
        assert!(near(floor.lr(Group::Weights, 5000), 1e-4));
        let constant = Schedule { kind: ScheduleKind::Constant, ..cosine(100, 4, 0.5, 0.0) };
        assert_eq!(
            [0, 2, 4, 99].map(|iteration| constant.lr(Group::Weights, iteration)),
            [5e-4, 7.5e-4, 1e-3, 1e-3]
        );
    }

    /// Values of timm's
    /// `CosineLRScheduler(t_initial=90, lr_min=1e-5, warmup_t=10, warmup_lr_init=1e-6, warmup_prefix=True)`
    /// over a base rate of 1e-3, and of PyTorch's `CosineAnnealingLR(T_max=90, eta_min=1e-5)` from its step
    /// 10 on.
    #[test]
    fn equals_timm_and_pytorch() {
        let schedule = cosine(100, 10, 1e-3, 1e-2);
        for (iteration, lr) in TIMM {
            assert!((schedule.lr(Group::Weights, iteration) - lr).abs() < 1e-15, "{iteration}: {lr}");
        }
    }

    const TIMM: [(u64, f64); 9] = [
        (0, 1e-06),
        (1, 0.00010090000000000001),
        (9, 0.0009001000000000001),
        (10, 0.001),
        (11, 0.0009996984593744526),
        (33, 0.0008488558933772036),
        (55, 0.000505),
        (77, 0.00016114410662279648),
        (99, 1.0301540625547598e-05),
    ];

    #[test]
    fn is_continuous_and_falls_after_the_warmup() {
        for (warmup, start, end) in [(0, 0.0, 0.0), (100, 0.0, 0.0), (37, 0.3, 0.2), (999, 0.0, 0.5)] {
            let schedule = cosine(1000, warmup, start, end);
            // No jump is longer than the steepest slope of the two pieces.
            let rise = if warmup > 0 { (1.0 - start) / warmup as f64 } else { 0.0 };
            let fall = (1.0 - end) * std::f64::consts::FRAC_PI_2 / (1000 - warmup) as f64;
            for iteration in 0..1000 {
                let change = (schedule.lr(Group::Weights, iteration + 1)
                    - schedule.lr(Group::Weights, iteration))
                    / 1e-3;
                let slope = if iteration < warmup { rise } else { fall };
                assert!(change.abs() <= slope.min(1.0) * (1.0 + 1e-9), "{iteration}: {change}");
                assert_eq!(change > 0.0, iteration < warmup, "{iteration}");
            }
        }
    }

    #[test]
    fn a_job_gives_absolute_rates_and_a_warmup_that_ends() {
        let text = "model: q\nfloat: f\ndata: {path: d}\noutput: o\noptimizer: {lr: 2e-4, lr_scales: 1e-3}\n\
                    schedule: {warmup_steps: 20, warmup_lr: 2e-5, min_lr: 1e-4}\nbatch_size: 512\naccumulate: 4\n";
        let mut job = Job::from_yaml("test", text, &[]).unwrap();
        let schedule = Schedule::of(&job, 40).unwrap();
        assert_eq!(schedule.lr(Group::Weights, 20), 2e-4);
        assert!(near(schedule.lr(Group::Weights, 0), 2e-5) && near(schedule.lr(Group::Scales, 0), 1e-4));
        assert!(near(schedule.lr(Group::Weights, 40), 1e-4) && near(schedule.lr(Group::Scales, 40), 5e-4));
        let message = Schedule::of(&job, 20).unwrap_err().to_string();
        assert!(message.contains("schedule.warmup_steps") && message.contains("20 iterations"), "{message}");
        (job.optimizer.lr, job.schedule.warmup_lr, job.schedule.min_lr) = (0.0, 0.0, 0.0);
        let still = Schedule::of(&job, 40).unwrap();
        assert_eq!([0, 10, 39].map(|iteration| still.lr(Group::Weights, iteration)), [0.0; 3]);
    }

    #[test]
    fn prints_its_landmarks() {
        let text = cosine(400, 40, 0.0, 0.0).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["first", "0", "0.0000e0", "0.0000e0"]);
        assert_eq!(lines[2], ["warmup", "ends", "40", "1.0000e-3", "1.0000e-5"]);
        let iterations: Vec<&str> = lines[3..].iter().map(|line| line[line.len() - 3]).collect();
        assert_eq!(iterations, ["100", "200", "300", "399"]);
        assert_eq!(cosine(1, 0, 0.0, 0.0).to_string().lines().count(), 6);
    }
}
