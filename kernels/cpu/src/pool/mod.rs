//! One pool of threads for all ops of an engine. Running a job allocates nothing.
//!
//! Each thread starts with its own contiguous share of a job's tasks and then takes tasks from the shares of
//! the others. Ops number their tasks by rows, so that a thread finds the rows that it wrote in the previous
//! op in its own second-level cache.

mod parts;
mod simulation;

use std::any::Any;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

pub(crate) use parts::Parts;
pub use simulation::Simulation;

use crate::buffer::AlignedBuf;

/// Spins of an idle worker before it sleeps: tens of microseconds, longer than the gap between two ops.
const SPINS: usize = 2_000;

/// Memory of one thread, kept between jobs.
pub struct Scratch {
    /// Working memory of an op.
    pub op: AlignedBuf,
    /// Results that one op of a fused block leaves for the next.
    pub intermediate: AlignedBuf,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { op: AlignedBuf::new(0), intermediate: AlignedBuf::new(0) }
    }
}

type Task<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

/// The tasks that each of `threads` threads starts with.
fn shares(tasks: usize, threads: usize) -> impl Iterator<Item = Range<usize>> {
    let (each, more) = (tasks / threads, tasks % threads);
    let start = move |thread: usize| thread * each + thread.min(more);
    (0..threads).map(move |thread| start(thread)..start(thread + 1))
}

/// The job being run: its task function with the lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
}

/// The unstarted tasks of one thread, on a separate cache line.
#[repr(align(64))]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
}

struct Shared {
    /// Written by the caller of `run` while no worker is active, read by workers after they see a new epoch.
    job: UnsafeCell<Option<Job>>,
    epoch: AtomicUsize,
    /// One for each thread, the caller of `run` first.
    shares: Vec<Share>,
    active: AtomicUsize,
    sleeping: AtomicUsize,
    stop: AtomicBool,
    /// The most memory that any thread has needed for each part of its [`Scratch`]. Scheduling is
    /// nondeterministic, so every thread reserves this much before it takes tasks; without this, a thread
    /// could allocate for the first time after many jobs.
    scratch: [AtomicUsize; 2],
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is the only field that is not Sync by itself. It is written only in `Pool::run`, which holds
// `&mut Pool` and has waited for `active == 0`; workers read it only after the epoch store that follows the
// write.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is dereferenced only while `Pool::run` keeps the task alive (see
// `Shared::work`).
unsafe impl Send for Shared {}

impl Shared {
    /// Runs tasks until none is left: first the share of `thread`, then the shares of the threads after it.
    fn work(&self, thread: usize, job: Job, scratch: &mut Scratch) {
        let [op, intermediate] = &self.scratch;
        scratch.op.reserve(op.load(Ordering::Relaxed));
        scratch.intermediate.reserve(intermediate.load(Ordering::Relaxed));
        let (before, from) = self.shares.split_at(thread);
        for share in from.iter().chain(before) {
            let end = share.end.load(Ordering::Relaxed);
            // The comparison before `fetch_add` keeps `next` from growing with every thread that looks at the
            // share.
            while share.next.load(Ordering::Relaxed) < end {
                let index = share.next.fetch_add(1, Ordering::Relaxed);
                if index < end {
                    self.perform(job, index, scratch);
                }
            }
        }
        op.fetch_max(scratch.op.len(), Ordering::Relaxed);
        intermediate.fetch_max(scratch.intermediate.len(), Ordering::Relaxed);
    }

    fn perform(&self, job: Job, index: usize, scratch: &mut Scratch) {
        // SAFETY: `Pool::run` does not return before every worker has left `work`, so the task that the
        // pointer was made from is alive.
        let task = unsafe { &*job.task };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(index, scratch))) {
            let mut first = self.panic.lock().unwrap_or_else(|e| e.into_inner());
            if let Some(surplus) = first.replace(payload) {
                // Keep the first payload. A payload may panic when dropped, which must not happen before all
                // tasks have ended.
                std::mem::forget(first.replace(surplus));
            }
        }
    }

    /// Divides `tasks` tasks into one share for each thread.
    fn divide(&self, tasks: usize) {
        for (share, tasks) in self.shares.iter().zip(shares(tasks, self.shares.len())) {
            share.next.store(tasks.start, Ordering::Relaxed);
            share.end.store(tasks.end, Ordering::Relaxed);
        }
    }

    fn worker(&self, thread: usize) {
        let mut scratch = Scratch::new();
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: the epoch changed, so `run` has written the job before it and will not write again
            // before this worker has decremented `active`.
            let job = unsafe { *self.job.get() }.expect("an epoch has a job");
            self.work(thread, job, &mut scratch);
            self.active.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an epoch other than `seen`: spins, then sleeps.
    fn next_epoch(&self, seen: usize) -> usize {
        for _ in 0..SPINS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(|e| e.into_inner());
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        while self.epoch.load(Ordering::SeqCst) == seen {
            guard = self.wake.wait(guard).unwrap_or_else(|e| e.into_inner());
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        self.epoch.load(Ordering::Acquire)
    }
}

/// A fixed set of threads; the caller of [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    scratch: Scratch,
    /// What a simulated pool has found; `None` for a real one.
    simulation: Option<Simulation>,
}

impl Pool {
    /// A pool of `threads` threads, including the caller; 0 means one per available core.
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
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            epoch: AtomicUsize::new(0),
            shares: (0..threads)
                .map(|_| Share { next: AtomicUsize::new(0), end: AtomicUsize::new(0) })
                .collect(),
            active: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            scratch: [AtomicUsize::new(0), AtomicUsize::new(0)],
            panic: Mutex::new(None),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        // If a thread cannot be started, dropping the pool stops the threads that were started.
        let workers = Vec::with_capacity(threads - 1);
        let mut pool = Pool { shared, workers, scratch: Scratch::new(), simulation: None };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("swinq-{index}"));
            pool.workers.push(builder.spawn(move || shared.worker(index))?);
        }
        Ok(pool)
    }

    /// A pool that divides jobs as `threads` threads would (at least one), runs all tasks on the caller's thread, and computes
    /// how long that many threads would take.
    ///
    /// # Panics
    /// If `threads` is 0.
    pub fn simulated(threads: usize) -> Pool {
        assert!(threads > 0, "a pool has at least one thread");
        let mut pool = Pool::new(1);
        pool.simulation = Some(Simulation::new(threads));
        pool
    }

    /// What a simulated pool has found so far.
    pub fn simulation(&self) -> Option<Simulation> {
        self.simulation
    }

    /// Number of threads, including the caller of [`Pool::run`].
    pub fn threads(&self) -> usize {
        self.simulation.map_or(self.workers.len() + 1, |simulation| simulation.threads)
    }

    /// Runs `task(i, scratch)` for every `i` in `0..tasks`, on all threads, and returns when all are done. A
    /// thread starts the tasks of its share in order. `scratch` belongs to the thread and is kept between
    /// jobs; grow it with [`AlignedBuf::reserve`].
    ///
    /// # Panics
    /// Resumes the first panic of a task after all tasks have ended; immediately if there is one thread or
    /// one task.
    pub fn run(&mut self, tasks: usize, task: &Task<'_>) {
        if let Some(simulation) = &mut self.simulation {
            return simulation.run(tasks, task, &mut self.scratch);
        }
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|index| task(index, &mut self.scratch));
            return;
        }
        // SAFETY: only the lifetime changes. The pointer is used by workers only until `active` is 0, which
        // is awaited below before this function returns, while `task` is borrowed.
        let task = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        let job = Job { task };
        // SAFETY: `&mut self`, and the previous `run` waited for `active == 0`: nobody reads the cell now.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.divide(tasks);
        self.shared.active.store(self.workers.len(), Ordering::Relaxed);
        self.publish();
        self.shared.work(0, job, &mut self.scratch);
        let mut spins = 0;
        while self.shared.active.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let panic = self.shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Divides `out` into parts of `size` values, of which the last may be shorter, and runs `task(i, part)` for every
    /// part, as [`Pool::run`] does.
    ///
    /// # Panics
    /// If `size` is 0, and as [`Pool::run`].
    pub fn run_parts(&mut self, out: &mut [f32], size: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let (len, parts) = (out.len(), Parts::new(out));
        self.run(len.div_ceil(size), &|i, _| {
            let from = i * size;
            // SAFETY: the parts of different tasks do not overlap, and every task runs once.
            task(i, unsafe { parts.get(from, size.min(len - from)) });
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

    /// Starts a new epoch and wakes the sleepers.
    fn publish(&self) {
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::SeqCst) > 0 {
            let _guard = self.shared.lock.lock().unwrap_or_else(|e| e.into_inner());
            self.shared.wake.notify_all();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.publish();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so joining cannot fail.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests;
