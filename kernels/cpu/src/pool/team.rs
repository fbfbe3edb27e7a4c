//! One job at a time for the threads of a team: tasks that are taken one by one, and counted when they are
//! done.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{SPINS, Scratch, Task};

/// The task function of a job.
struct Job<'a> {
    task: &'a Task<'a>,
}

/// The unstarted tasks of one thread, on a separate cache line.
#[repr(align(64))]
struct Share {
    /// The job's number in the upper half, the next task in the lower half.
    next: AtomicU64,
    end: AtomicU32,
}

impl Share {
    fn new() -> Share {
        Share { next: AtomicU64::new(0), end: AtomicU32::new(0) }
    }

    /// Offers the tasks of `tasks` of job `job`. All tasks of the job before have been taken. The order of
    /// the two stores keeps a thread that is late by a job from the new tasks: if it sees the new end, its
    /// exchange fails.
    fn offer(&self, job: u32, tasks: Range<usize>) {
        let [start, end] =
            [tasks.start, tasks.end].map(|task| u32::try_from(task).expect("a job of 2^32 tasks"));
        self.next.store(u64::from(job) << 32 | u64::from(start), Ordering::Release);
        self.end.store(end, Ordering::Release);
    }

    /// Takes the next task of job `job`; `None` if no task is left, or if this is not the job any more.
    fn take(&self, job: u32) -> Option<usize> {
        let mut next = self.next.load(Ordering::Acquire);
        loop {
            let task = next as u32;
            if (next >> 32) as u32 != job || task >= self.end.load(Ordering::Acquire) {
                return None;
            }
            match self.next.compare_exchange_weak(next, next + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(task as usize),
                Err(now) => next = now,
            }
        }
    }
}

/// The state that the threads of a [`Pool`](super::Pool) share.
///
/// A job ends when its tasks are done. Nobody waits for a thread that took no task: one that wakes up late,
/// or that the system runs late, finds the tasks taken.
pub(super) struct Team {
    /// The number of the current job. It returns to a number after 2^32 jobs; a thread that is late by
    /// exactly that many would take a task of the current job as one of its own job, which has the same
    /// effect.
    job: AtomicU32,
    /// A [`Job`] on the stack of the leader, which is valid while a task of the job is not done.
    task: AtomicPtr<Job<'static>>,
    /// The threads of the current job, the leader included.
    threads: AtomicUsize,
    /// The worker that is each thread of the team; the leader's entry is not used.
    workers: Box<[AtomicUsize]>,
    /// One for each thread that the team may have.
    shares: Box<[Share]>,
    /// Tasks that are not done.
    left: AtomicUsize,
    /// The most memory that any thread has needed for each part of its [`Scratch`]. Scheduling is
    /// nondeterministic, so every thread reserves this much before it takes tasks; without this, a thread
    /// could allocate for the first time after many jobs.
    scratch: [AtomicUsize; 2],
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Team {
    /// A team of at most `most` threads.
    pub(super) fn new(most: usize) -> Team {
        Team {
            job: AtomicU32::new(0),
            task: AtomicPtr::new(ptr::null_mut()),
            threads: AtomicUsize::new(0),
            workers: (0..most).map(|_| AtomicUsize::new(0)).collect(),
            shares: (0..most).map(|_| Share::new()).collect(),
            left: AtomicUsize::new(0),
            scratch: [AtomicUsize::new(0), AtomicUsize::new(0)],
            panic: Mutex::new(None),
        }
    }

    /// Makes `worker` thread `number` of the team.
    pub(super) fn set_worker(&self, number: usize, worker: usize) {
        self.workers[number].store(worker, Ordering::Relaxed);
    }

    /// The workers that thread `number` wakes for the current job: all threads together wake all, each two.
    pub(super) fn wakes(&self, number: usize) -> impl Iterator<Item = usize> {
        let threads = self.threads.load(Ordering::Relaxed);
        (2 * number + 1..threads.min(2 * number + 3))
            .map(|thread| self.workers[thread].load(Ordering::Relaxed))
    }

    /// The number of the current job, 0 before the first.
    pub(super) fn job(&self) -> u32 {
        self.job.load(Ordering::SeqCst)
    }

    /// Runs a job of `tasks` tasks on `threads` threads: this one, and those that see the new job after
    /// `wake`. A job needs no more threads than it has tasks.
    ///
    /// # Panics
    /// Resumes the first panic of a task after all tasks are done.
    pub(super) fn lead(
        &self,
        (threads, tasks): (usize, usize),
        task: &Task<'_>,
        scratch: &mut Scratch,
        wake: impl Fn(),
    ) {
        // Nothing may unwind between here and the end of the job, on whose tasks other threads work.
        self.reserve(scratch);
        let job = Job { task };
        // Only the lifetime changes. `Team::perform` says why the pointer is valid where it is read.
        self.task.store(ptr::from_ref(&job).cast_mut().cast(), Ordering::Release);
        self.left.store(tasks, Ordering::Relaxed);
        self.threads.store(threads, Ordering::Relaxed);
        let number = self.job.load(Ordering::Relaxed).wrapping_add(1);
        for (share, tasks) in self.shares.iter().zip(shares(tasks, threads)) {
            share.offer(number, tasks);
        }
        // Sequentially consistent, as the loads of a thread that is about to sleep: either it sees the job,
        // or `wake` sees that it sleeps.
        self.job.store(number, Ordering::SeqCst);
        wake();
        self.work(0, number, scratch);
        let mut spins = 0;
        while self.left.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let panic = self.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Gives `scratch` as much memory as any thread has needed.
    fn reserve(&self, scratch: &mut Scratch) {
        let [op, intermediate] = &self.scratch;
        scratch.op.reserve(op.load(Ordering::Relaxed));
        scratch.intermediate.reserve(intermediate.load(Ordering::Relaxed));
    }

    /// Performs tasks of job `job` until none is left: first those of the share of `thread`, then those of
    /// the threads after it. Returns whether the job has that many threads; one that has ended has no task
    /// left.
    pub(super) fn work(&self, thread: usize, job: u32, scratch: &mut Scratch) -> bool {
        let threads = self.threads.load(Ordering::Relaxed);
        if thread >= threads {
            return false;
        }
        self.reserve(scratch);
        let (before, from) = self.shares[..threads].split_at(thread);
        for share in from.iter().chain(before) {
            while let Some(index) = share.take(job) {
                self.perform(index, scratch);
            }
        }
        true
    }

    /// Performs a task that this thread has taken.
    fn perform(&self, index: usize, scratch: &mut Scratch) {
        // SAFETY: `take` returned a task of the current job, which is not done before the subtraction below.
        // `Team::lead` waits for it, so the job on its stack and the task function that it borrows are alive;
        // and it stores no other job before.
        let task = unsafe { (*self.task.load(Ordering::Acquire)).task };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(index, scratch))) {
            let mut first = self.panic.lock().unwrap_or_else(|e| e.into_inner());
            if let Some(surplus) = first.replace(payload) {
                // Keep the first payload. A payload may panic when dropped, which must not happen before all
                // tasks have ended.
                std::mem::forget(first.replace(surplus));
            }
        }
        let [op, intermediate] = &self.scratch;
        op.fetch_max(scratch.op.len(), Ordering::Relaxed);
        intermediate.fetch_max(scratch.intermediate.len(), Ordering::Relaxed);
        self.left.fetch_sub(1, Ordering::Release);
    }
}

/// The tasks that each of `threads` threads starts with.
fn shares(tasks: usize, threads: usize) -> impl Iterator<Item = Range<usize>> {
    let (each, more) = (tasks / threads, tasks % threads);
    let start = move |thread: usize| thread * each + thread.min(more);
    (0..threads).map(move |thread| start(thread)..start(thread + 1))
}
