//! Threads for ops. Running a job allocates nothing.
//!
//! A [`Crew`] has the threads; a [`Pool`] borrows some of them and runs jobs on them. Each thread starts with
//! its own contiguous share of a job's tasks and then takes tasks from the shares of the others. Ops number
//! their tasks by rows, so that a thread finds the rows that it wrote in the previous op in its own
//! second-level cache.

mod crew;
mod parts;
mod team;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

pub use crew::{Crew, Turn};
pub(crate) use parts::Parts;
use team::Team;

use crate::buffer::AlignedBuf;

/// Spins of an idle worker before it sleeps: tens of microseconds, longer than the gap between two ops.
const SPINS: usize = 2_000;

/// Memory of one thread, kept between jobs.
pub struct Scratch {
    /// Number of the thread: 0 for a caller, then the workers of its [`Crew`].
    pub thread: usize,
    /// Working memory of an op.
    pub op: AlignedBuf,
    /// Results that one op of a fused block leaves for the next.
    pub intermediate: AlignedBuf,
}

impl Scratch {
    /// No memory yet, for the thread with this number.
    pub fn new(thread: usize) -> Scratch {
        Scratch { thread, op: AlignedBuf::new(0), intermediate: AlignedBuf::new(0) }
    }
}

type Task<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

/// The work of a thread on a group of items: their range, and their part of every output.
type GroupTask<'a, T, const N: usize> = dyn Fn(Range<usize>, [Option<&mut [T]>; N], &mut Scratch) + Sync + 'a;

/// Runs jobs on the thread of the caller and on the threads that it borrows from a [`Crew`].
pub struct Pool {
    crew: Arc<Crew>,
    team: Arc<Team>,
    /// Workers of the crew: the first `lent` are lent to this pool.
    members: Vec<usize>,
    lent: usize,
    scratch: Scratch,
}

impl Pool {
    /// A pool of `threads` threads of its own, including the caller; 0 means one per available core.
    ///
    /// # Panics
    /// If the system refuses to start a thread.
    pub fn new(threads: usize) -> Pool {
        Pool::try_new(threads).expect("the system can start a thread")
    }

    /// As [`Pool::new`], without a panic.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub fn try_new(threads: usize) -> std::io::Result<Pool> {
        let crew = Crew::new(threads)?;
        let threads = crew.threads();
        let mut pool = Pool::of(&Arc::new(crew));
        pool.borrow(threads);
        Ok(pool)
    }

    /// A pool of the caller alone, which can [`borrow`](Pool::borrow) threads of `crew`.
    pub fn of(crew: &Arc<Crew>) -> Pool {
        let team = Arc::new(Team::new(crew.threads()));
        let members = Vec::with_capacity(crew.threads());
        Pool { crew: Arc::clone(crew), team, members, lent: 0, scratch: Scratch::new(0) }
    }

    /// Borrows threads until the pool has `threads`, the caller included, or fewer if the crew has no more
    /// free ones. It keeps them until it gives them back or is dropped.
    pub fn borrow(&mut self, threads: usize) {
        self.give_back();
        if threads > 1 || !self.members.is_empty() {
            self.lent = self.crew.shared().lend(&self.team, threads.saturating_sub(1), &mut self.members);
        }
    }

    /// Gives all threads back.
    pub fn give_back(&mut self) {
        if self.lent > 0 {
            self.crew.shared().take_back(&self.members[..self.lent]);
            self.lent = 0;
        }
    }

    /// Number of threads, including the caller of [`Pool::run`].
    pub fn threads(&self) -> usize {
        self.lent + 1
    }

    /// The numbers of the threads, as [`Scratch::thread`] states them; the caller first.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        std::iter::once(0).chain(self.members[..self.lent].iter().map(|&worker| worker + 1))
    }

    /// Calls `f` with this pool, in which the caller's thread has the memory of `scratch`.
    pub fn with_scratch<R>(&mut self, scratch: &mut Scratch, f: impl FnOnce(&mut Pool) -> R) -> R {
        let mut swap = |own: &mut Scratch| {
            std::mem::swap(&mut own.op, &mut scratch.op);
            std::mem::swap(&mut own.intermediate, &mut scratch.intermediate);
        };
        swap(&mut self.scratch);
        let result = f(self);
        swap(&mut self.scratch);
        result
    }

    /// Runs `task(i, scratch)` for every `i` in `0..tasks`, on all threads, and returns when all are done. A
    /// thread starts the tasks of its share in order. `scratch` belongs to the thread and is kept between
    /// jobs; grow it with [`AlignedBuf::reserve`].
    ///
    /// # Panics
    /// Resumes the first panic of a task after all tasks have ended; immediately if there is one thread or
    /// one task.
    pub fn run(&mut self, tasks: usize, task: &Task<'_>) {
        if self.lent == 0 || tasks <= 1 {
            (0..tasks).for_each(|index| task(index, &mut self.scratch));
            return;
        }
        let (shared, team, threads) = (self.crew.shared(), &self.team, self.threads().min(tasks));
        team.lead((threads, tasks), task, &mut self.scratch, || shared.wake(team, 0));
    }

    /// Divides `out` into parts of `size` values, the last may be shorter, and runs `task(i, part)` for every
    /// part, as [`Pool::run`] does.
    ///
    /// # Panics
    /// If `size` is 0, and as [`Pool::run`].
    pub fn run_parts<T: Send + Sync>(
        &mut self,
        out: &mut [T],
        size: usize,
        task: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let (len, parts) = (out.len(), Parts::new(out));
        self.run(len.div_ceil(size), &|i, _| {
            let from = i * size;
            // SAFETY: the parts of different tasks do not overlap, and every task runs once.
            task(i, unsafe { parts.get(from, size.min(len - from)) });
        });
    }

    /// Divides `items` items into groups of `each`, the last may be smaller, and runs
    /// `task(group, outputs, scratch)` for every group, as [`Pool::run`] does. `group` is the range of its
    /// items, and `outputs` has the group's part of each of `outs`, the same number of values for each item.
    ///
    /// # Panics
    /// If `each` is 0, or an output's values are not a multiple of `items`, and as [`Pool::run`].
    pub fn run_groups<T: Send + Sync, const N: usize>(
        &mut self,
        (items, each): (usize, usize),
        outs: &mut [Option<&mut [T]>; N],
        task: &GroupTask<'_, T, N>,
    ) {
        let values = outs.each_ref().map(|out| out.as_ref().map_or(0, |out| out.len()));
        assert!(
            values.iter().all(|values| items == 0 || values.is_multiple_of(items)),
            "{values:?} of {items}"
        );
        let parts = outs.each_mut().map(|out| out.as_deref_mut().map(Parts::new));
        self.run(items.div_ceil(each), &|i, scratch| {
            let group = i * each..items.min((i + 1) * each);
            let of_group = std::array::from_fn(|output| {
                let size = values[output] / items;
                // SAFETY: the parts of different tasks do not overlap, and every task runs once.
                parts[output]
                    .as_ref()
                    .map(|parts| unsafe { parts.get(group.start * size, group.len() * size) })
            });
            task(group, of_group, scratch);
        });
    }

    /// `len` zeros. The threads clear new memory together, because its first use costs more than later ones.
    pub fn zeros(&mut self, len: usize) -> Vec<f32> {
        const PART: usize = 1 << 15;
        if len <= 2 * PART {
            return vec![0.0; len];
        }
        let mut values = Vec::with_capacity(len);
        let parts = Parts::new(&mut values.spare_capacity_mut()[..len]);
        self.run(len.div_ceil(PART), &|i, _| {
            let from = i * PART;
            // SAFETY: the parts of different tasks do not overlap, and every task runs once.
            unsafe { parts.get(from, PART.min(len - from)) }.fill(MaybeUninit::new(0.0));
        });
        // SAFETY: the tasks have written all of the `len` values, for which there is capacity.
        unsafe { values.set_len(len) };
        values
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.borrow(1);
    }
}

#[cfg(test)]
mod tests;
