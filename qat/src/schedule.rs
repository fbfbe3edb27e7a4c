//! The learning rates, as a pure function of the step.
//!
//! ```text
//! step < warmup:   lr = warmup_lr + (peak - warmup_lr) * step / warmup
//! else, cosine:    lr = min_lr + (peak - min_lr) * (1 + cos(pi * (step - warmup) / (steps - warmup))) / 2
//! else, constant:  lr = peak
//! ```
//!
//! Rates are absolute: what the job says is what the optimizer gets, whatever the batch and the number of devices. The
//! warmup comes first and the cosine has the rest, as in timm's scheduler with `warmup_prefix` and in PyTorch's
//! `LinearLR` followed by `CosineAnnealingLR`. The last step, `steps - 1`, is one step short of `min_lr`.

use std::fmt;

use crate::job::{Job, JobError, ScheduleKind};

/// Parameters that share a learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Weights, biases, norms and tables: peak `optimizer.lr`.
    Weights,
    /// Learned scales: peak `optimizer.lr_scales`. `warmup_lr` and `min_lr` keep their ratio to the peak of the weights.
    Scales,
}

/// The learning rates of a run.
///
/// ```
/// use swinq_qat::schedule::{Group, Schedule};
/// use swinq_qat::job::ScheduleKind;
///
/// let kind = ScheduleKind::Cosine;
/// let schedule = Schedule { steps: 100, warmup_steps: 10, kind, peak: [1e-4, 1e-5], start: 0.5, end: 0.0 };
/// assert_eq!(schedule.lr(Group::Weights, 10), 1e-4);
/// assert_eq!(schedule.lr(Group::Scales, 0), 5e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Steps of the run.
    pub steps: u64,
    /// Steps of the warmup, fewer.
    pub warmup_steps: u64,
    /// The course after the warmup.
    pub kind: ScheduleKind,
    /// Highest rates, of weights and of scales.
    pub peak: [f64; 2],
    /// Where the warmup begins, as a part of the peak.
    pub start: f64,
    /// Where the cosine ends, as a part of the peak.
    pub end: f64,
}

impl Schedule {
    /// The schedule of a job whose run has this many steps.
    ///
    /// # Errors
    /// [`JobError::Key`] where the warmup is as long as the run.
    pub fn of(job: &Job, steps: u64) -> Result<Schedule, JobError> {
        let keys = &job.schedule;
        if keys.warmup_steps >= steps {
            let problem = format!(
                "is {}, but the run has {steps} steps; give fewer, or a longer run",
                keys.warmup_steps
            );
            return Err(JobError::key(&job.name, "schedule.warmup_steps", problem));
        }
        let peak = [job.optimizer.lr, job.optimizer.lr_scales];
        let part = |lr: f64| if peak[0] > 0.0 { lr / peak[0] } else { 0.0 };
        let (start, end) = (part(keys.warmup_lr), part(keys.min_lr));
        Ok(Schedule { steps, warmup_steps: keys.warmup_steps, kind: keys.kind, peak, start, end })
    }

    /// The learning rate of `group` at `step`, counted from 0.
    pub fn lr(&self, group: Group, step: u64) -> f64 {
        self.peak[group as usize] * self.part(step)
    }

    /// The part of the peak that holds at `step`.
    fn part(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.start + (1.0 - self.start) * (step as f64 / self.warmup_steps as f64);
        }
        match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Cosine => {
                let passed =
                    (step - self.warmup_steps) as f64 / (self.steps - self.warmup_steps).max(1) as f64;
                let height = 0.5 * (1.0 + libm::cos(std::f64::consts::PI * passed.min(1.0)));
                self.end + (1.0 - self.end) * height
            }
        }
    }

    /// The steps that tell the course: the first, the warmup's end, the quarters and the last.
    fn landmarks(&self) -> Vec<(&'static str, u64)> {
        let last = self.steps.saturating_sub(1);
        let mut marks = vec![("first", 0)];
        if self.warmup_steps > 0 {
            marks.push(("warmup ends", self.warmup_steps));
        }
        let quarters = [("25 %", 1), ("50 %", 2), ("75 %", 3)];
        marks.extend(
            quarters.map(|(name, quarter)| (name, self.steps / 4 * quarter + self.steps % 4 * quarter / 4)),
        );
        marks.push(("last", last));
        marks.sort_by_key(|(_, step)| *step);
        marks
    }
}

/// The effective rates at the steps that tell the course, a line each.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<11} {:>10} {:>12} {:>12}", "", "step", "lr", "lr scales")?;
        for (name, step) in self.landmarks() {
            let [weights, scales] = [Group::Weights, Group::Scales].map(|group| self.lr(group, step));
            writeln!(f, "{name:<11} {step:>10} {weights:>12.4e} {scales:>12.4e}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(steps: u64, warmup_steps: u64, start: f64, end: f64) -> Schedule {
        Schedule { steps, warmup_steps, kind: ScheduleKind::Cosine, peak: [1e-3, 1e-5], start, end }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-15 + 1e-12 * b.abs()
    }

    #[test]
    fn exact_values_at_the_landmarks() {
        let schedule = cosine(110, 10, 0.0, 0.0);
        for (step, lr) in [(0, 0.0), (5, 5e-4), (10, 1e-3), (60, 5e-4), (110, 0.0)] {
            assert!(near(schedule.lr(Group::Weights, step), lr), "{step}");
            assert!(near(schedule.lr(Group::Scales, step), lr / 100.0), "{step}");
        }
        let quarter = 5e-4 * (1.0 + std::f64::consts::FRAC_1_SQRT_2);
        assert!(near(schedule.lr(Group::Weights, 35), quarter));
        let floor = cosine(100, 0, 0.0, 0.1);
        assert!(near(floor.lr(Group::Weights, 0), 1e-3) && near(floor.lr(Group::Weights, 100), 1e-4));
        assert!(near(floor.lr(Group::Weights, 5000), 1e-4));
        let constant = Schedule { kind: ScheduleKind::Constant, ..cosine(100, 4, 0.5, 0.0) };
        assert_eq!([0, 2, 4, 99].map(|step| constant.lr(Group::Weights, step)), [5e-4, 7.5e-4, 1e-3, 1e-3]);
    }

    /// Values of timm's `CosineLRScheduler(t_initial=90, lr_min=1e-5, warmup_t=10, warmup_lr_init=1e-6,
    /// warmup_prefix=True)` over a base rate of 1e-3, and of PyTorch's `CosineAnnealingLR(T_max=90, eta_min=1e-5)` from
    /// its step 10 on.
    #[test]
    fn equals_timm_and_pytorch() {
        let schedule = cosine(100, 10, 1e-3, 1e-2);
        for (step, lr) in TIMM {
            assert!((schedule.lr(Group::Weights, step) - lr).abs() < 1e-15, "{step}: {lr}");
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
            for step in 0..1000 {
                let change =
                    (schedule.lr(Group::Weights, step + 1) - schedule.lr(Group::Weights, step)) / 1e-3;
                let slope = if step < warmup { rise } else { fall };
                assert!(change.abs() <= slope.min(1.0) * (1.0 + 1e-9), "{step}: {change}");
                assert_eq!(change > 0.0, step < warmup, "{step}");
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
        assert!(message.contains("schedule.warmup_steps") && message.contains("20 steps"), "{message}");
        (job.optimizer.lr, job.schedule.warmup_lr, job.schedule.min_lr) = (0.0, 0.0, 0.0);
        let still = Schedule::of(&job, 40).unwrap();
        assert_eq!([0, 10, 39].map(|step| still.lr(Group::Weights, step)), [0.0; 3]);
    }

    #[test]
    fn prints_its_landmarks() {
        let text = cosine(400, 40, 0.0, 0.0).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["first", "0", "0.0000e0", "0.0000e0"]);
        assert_eq!(lines[2], ["warmup", "ends", "40", "1.0000e-3", "1.0000e-5"]);
        let steps: Vec<&str> = lines[3..].iter().map(|line| line[line.len() - 3]).collect();
        assert_eq!(steps, ["100", "200", "300", "399"]);
        assert_eq!(cosine(1, 0, 0.0, 0.0).to_string().lines().count(), 6);
    }
}
