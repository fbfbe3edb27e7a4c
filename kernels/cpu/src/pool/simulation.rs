//! What a pool of many threads would do, computed from the times of its tasks on one thread.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Scratch, Task, shares};

/// The jobs of a simulated pool so far. The times leave out what threads cost each other: waking, waiting for the last
/// one, and sharing memory and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulation {
    /// Number of threads.
    pub threads: usize,
    /// Number of jobs.
    pub jobs: usize,
    /// Time of all tasks.
    pub busy: Duration,
    /// Time of all jobs, if every thread takes its tasks as [`Pool::run`](super::Pool::run) does.
    pub elapsed: Duration,
}

impl Simulation {
    pub(super) fn new(threads: usize) -> Simulation {
        Simulation { threads, jobs: 0, busy: Duration::ZERO, elapsed: Duration::ZERO }
    }

    /// The share of the threads' time in which they have no task, from 0 to 1.
    pub fn idle(&self) -> f64 {
        let all = self.elapsed.as_secs_f64() * self.threads as f64;
        if all > 0.0 { 1.0 - self.busy.as_secs_f64() / all } else { 0.0 }
    }

    /// Runs all tasks on this thread.
    pub(super) fn run(&mut self, tasks: usize, task: &Task<'_>, scratch: &mut Scratch) {
        let time = |index| {
            let start = Instant::now();
            task(index, scratch);
            start.elapsed()
        };
        let times: Vec<Duration> = (0..tasks).map(time).collect();
        self.jobs += 1;
        self.busy += times.iter().sum::<Duration>();
        self.elapsed += elapsed(&times, self.threads);
    }
}

/// The time until the last of `threads` threads is done with the tasks. A thread takes the tasks of its own share in order,
/// then those of the shares after it.
fn elapsed(times: &[Duration], threads: usize) -> Duration {
    let mut shares: Vec<Range<usize>> = shares(times.len(), threads).collect();
    let mut clocks = vec![Duration::ZERO; threads];
    for _ in times {
        let thread = (0..threads).min_by_key(|&thread| clocks[thread]).expect("there is a thread");
        let share = (thread..threads).chain(0..thread).find(|&share| !shares[share].is_empty());
        let task = share.and_then(|share| shares[share].next()).expect("a task is left");
        clocks[thread] += times[task];
    }
    clocks.into_iter().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn threads_take_their_own_tasks_first_and_then_those_of_others() {
        let times = [4, 1, 1, 1, 9].map(Duration::from_secs);
        // Two threads: 0 to 2 and 3 to 4.
        assert_eq!(elapsed(&times[..4], 1), Duration::from_secs(7));
        assert_eq!(elapsed(&times[..4], 2), Duration::from_secs(4));
        assert_eq!(elapsed(&times, 2), Duration::from_secs(10));
        assert_eq!(elapsed(&times, 8), Duration::from_secs(9));
        assert_eq!(elapsed(&[], 3), Duration::ZERO);
    }

    #[test]
    fn a_simulated_pool_runs_every_task_on_this_thread() {
        let mut pool = Pool::simulated(5);
        let caller = std::thread::current().id();
        for tasks in [0, 3, 20] {
            let done = std::sync::atomic::AtomicUsize::new(0);
            pool.run(tasks, &|_, _| {
                assert_eq!(std::thread::current().id(), caller);
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), tasks);
        }
        let simulation = pool.simulation().unwrap();
        assert_eq!((pool.threads(), simulation.threads, simulation.jobs), (5, 5, 3));
        assert!(simulation.elapsed <= simulation.busy && (0.0..1.0).contains(&simulation.idle()));
        assert!(Pool::new(2).simulation().is_none());
    }
}
