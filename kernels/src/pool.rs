//! One pool of threads for all ops of an engine. Running a job allocates nothing.
//!
//! Each thread starts with its own contiguous share of a job's tasks and then takes tasks from the shares of the
//! others. Ops number their tasks by rows, so that a thread finds the rows that it wrote in the previous op in its own
//! second-level cache.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

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

/// The job being run: its task function with the lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
}

/// The unstarted tasks of one thread, on a cache line of its own.
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
    /// The most memory that any thread has needed for each part of its [`Scratch`]. Scheduling is nondeterministic, so
    /// every thread reserves this much before it takes tasks; otherwise a thread could allocate for the first time
    /// after many jobs.
    scratch: [AtomicUsize; 2],
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is the only field that is not Sync by itself. It is written only in `Pool::run`, which holds `&mut
// Pool` and has waited for `active == 0`; workers read it only after the epoch store that follows the write.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is dereferenced only while `Pool::run` keeps the task alive (see `Shared::work`).
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
            // The comparison before `fetch_add` keeps `next` from growing with every thread that looks at the share.
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
        // SAFETY: `Pool::run` does not return before every worker has left `work`, so the task that the pointer was
        // made from is alive.
        let task = unsafe { &*job.task };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(index, scratch))) {
            let mut first = self.panic.lock().unwrap_or_else(|e| e.into_inner());
            if let Some(surplus) = first.replace(payload) {
                // Keep the first payload. A payload may panic when dropped, which must not happen before all tasks have
                // ended.
                std::mem::forget(first.replace(surplus));
            }
        }
    }

    /// Divides `tasks` tasks into one share for each thread.
    fn divide(&self, tasks: usize) {
        let threads = self.shares.len();
        let mut start = 0;
        for (thread, share) in self.shares.iter().enumerate() {
            let end = start + tasks / threads + usize::from(thread < tasks % threads);
            share.next.store(start, Ordering::Relaxed);
            share.end.store(end, Ordering::Relaxed);
            start = end;
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
            // SAFETY: the epoch changed, so `run` has written the job before it and will not write again before
            // this worker has decremented `active`.
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
        // If a thread cannot be started, dropping the pool stops those that were.
        let mut pool = Pool { shared, workers: Vec::with_capacity(threads - 1), scratch: Scratch::new() };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("swinq-{index}"));
            pool.workers.push(builder.spawn(move || shared.worker(index))?);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller of [`Pool::run`].
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i, scratch)` for every `i` in `0..tasks`, on all threads, and returns when all are done. A thread
    /// starts the tasks of its share in order. `scratch` belongs to the thread and is kept between jobs; grow it with
    /// [`AlignedBuf::reserve`].
    ///
    /// # Panics
    /// Resumes the first panic of a task after all tasks have ended; immediately if there is one thread or one task.
    pub fn run(&mut self, tasks: usize, task: &Task<'_>) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|index| task(index, &mut self.scratch));
            return;
        }
        // SAFETY: only the lifetime changes. The pointer is used by workers only until `active` is 0, which is
        // awaited below before this function returns, while `task` is borrowed.
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

/// A mutable slice whose disjoint parts are written by the tasks of one job. A copy refers to the same slice.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Parts` only hands out memory through `get` and `read`, whose callers promise that a part that may be written
// overlaps no other in use; `T: Send + Sync` lets parts be used, and read together, on other threads.
unsafe impl<T: Send + Sync> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { data: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// The address of element `index`, which may lie outside of the slice.
    pub(crate) fn address(&self, index: usize) -> *const T {
        self.data.wrapping_add(index)
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// No two parts alive at the same time may overlap.
    ///
    /// # Panics
    /// Outside the slice.
    #[allow(clippy::mut_from_ref)] // The point of the type; see the safety section.
    pub(crate) unsafe fn get(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: in bounds by `start_of`; the slice that `new` borrowed is alive for `'a`; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start_of(start, len), len) }
    }

    /// The elements `start..start + len`, for reading.
    ///
    /// # Safety
    /// Nobody writes any of them while the result is alive.
    ///
    /// # Panics
    /// Outside the slice.
    pub(crate) unsafe fn read(&self, start: usize, len: usize) -> &'a [T] {
        // SAFETY: in bounds by `start_of`; the slice that `new` borrowed is alive for `'a`; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start_of(start, len), len) }
    }

    /// The address of the elements `start..start + len`.
    #[inline(always)]
    fn start_of(&self, start: usize, len: usize) -> *mut T {
        if start > self.len || len > self.len - start {
            outside(start, len, self.len);
        }
        self.data.wrapping_add(start)
    }
}

/// Not inlined, so that loops over parts keep no arguments of the message in registers.
#[cold]
#[inline(never)]
fn outside(start: usize, len: usize, total: usize) -> ! {
    panic!("part {start}+{len} of {total}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_task_runs_once_in_every_job() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                pool.run(tasks, &|i, _| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn sleepers_wake_and_scratch_is_kept() {
        let mut pool = Pool::new(3);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let sum = AtomicU32::new(0);
            pool.run(64, &|i, scratch| {
                scratch.op.reserve(256);
                scratch.op.as_u8_mut()[0] = i as u8;
                sum.fetch_add(u32::from(scratch.op.as_u8()[0]), Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 63 * 64 / 2);
        }
    }

    #[test]
    fn every_thread_has_the_scratch_that_one_needed() {
        let mut pool = Pool::new(3);
        pool.run(2, &|i, scratch| {
            scratch.op.reserve(if i == 0 { 4096 } else { 0 });
            scratch.intermediate.reserve(if i == 1 { 8192 } else { 0 });
        });
        for _ in 0..20 {
            pool.run(64, &|_, scratch| {
                assert!(scratch.op.len() >= 4096 && scratch.intermediate.len() >= 8192)
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(2);
        let run = |pool: &mut Pool| pool.run(8, &|i, _| assert_ne!(i, 5, "task five"));
        let payload = catch_unwind(AssertUnwindSafe(|| run(&mut pool))).unwrap_err();
        assert!(payload.downcast_ref::<String>().unwrap().contains("task five"));
        let done = AtomicU32::new(0);
        pool.run(8, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 8);
    }
}
