//! The threads that pools borrow.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::{Builder, JoinHandle, Thread};

use super::team::Team;
use super::{SPINS, Scratch};

/// Threads that several callers share. A caller asks for a [`Turn`], which states how many threads it may
/// use, its own included; its [`Pool`](super::Pool)s then borrow them.
pub struct Crew {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

pub(super) struct Shared {
    workers: Vec<Worker>,
    stop: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// One thread, on cache lines of its own.
#[repr(align(128))]
struct Worker {
    /// The team that the thread watches, and its number in the team.
    post: Mutex<Option<(Arc<Team>, usize)>>,
    /// Counts the changes of `post`.
    changes: AtomicUsize,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

struct State {
    /// The workers that no pool has.
    free: Vec<bool>,
    /// Threads that callers may use, of all turns.
    granted: usize,
    /// Callers that have a turn or wait for one.
    callers: usize,
    /// The number of the next caller, and of the caller whose turn is next.
    tickets: [u64; 2],
}

impl Crew {
    /// A crew for `threads` threads, a caller's included; 0 means one per available core.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub fn new(threads: usize) -> std::io::Result<Crew> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let workers = (1..threads).map(|_| Worker::new()).collect();
        let state = State { free: vec![true; threads - 1], granted: 0, callers: 0, tickets: [0, 0] };
        let shared = Shared {
            workers,
            stop: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        // If a thread cannot be started, dropping the crew stops the threads that were started.
        let mut crew = Crew { shared: Arc::new(shared), handles: Vec::with_capacity(threads - 1) };
        for index in 0..threads - 1 {
            let shared = Arc::clone(&crew.shared);
            let builder = Builder::new().name(format!("swinq-{}", index + 1));
            crew.handles.push(builder.spawn(move || shared.serve(index))?);
        }
        Ok(crew)
    }

    /// Number of threads, a caller's included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Waits until this caller may use a thread, callers in the order in which they came, and grants it up to
    /// `most` threads: its part of the threads if other callers use some or wait.
    pub fn turn(&self, most: usize) -> Turn<'_> {
        let (threads, shared) = (self.threads(), &*self.shared);
        let mut state = shared.state();
        state.callers += 1;
        let ticket = state.tickets[0];
        state.tickets[0] += 1;
        while state.tickets[1] != ticket || state.granted == threads {
            state = shared.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        let part = (threads / state.callers).max(1);
        let granted = most.clamp(1, part).min(threads - state.granted);
        state.granted += granted;
        state.tickets[1] += 1;
        let waiting = state.tickets[0] != state.tickets[1];
        drop(state);
        if waiting {
            shared.changed.notify_all();
        }
        Turn { shared, threads: granted }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.workers.iter().for_each(Worker::change);
        for handle in self.handles.drain(..) {
            // A worker catches the panics of its tasks, so joining cannot fail.
            let _ = handle.join();
        }
    }
}

/// The right of one caller to use threads of a [`Crew`]. Dropped, it leaves them to others.
pub struct Turn<'a> {
    shared: &'a Shared,
    threads: usize,
}

impl Turn<'_> {
    /// Number of threads that the caller may use, its own included.
    pub fn threads(&self) -> usize {
        self.threads
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.granted -= self.threads;
        state.callers -= 1;
        let waiting = state.tickets[0] != state.tickets[1];
        drop(state);
        if waiting {
            self.shared.changed.notify_all();
        }
    }
}

impl Worker {
    fn new() -> Worker {
        Worker {
            post: Mutex::new(None),
            changes: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Makes the thread look at its post.
    fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Posts the thread to `team` as its thread `number`.
    fn post(&self, team: &Arc<Team>, number: usize) {
        let mut post = self.post.lock().unwrap_or_else(|e| e.into_inner());
        let same = post.as_ref().is_some_and(|(other, at)| Arc::ptr_eq(other, team) && *at == number);
        if !same {
            *post = Some((Arc::clone(team), number));
            drop(post);
            self.change();
        }
    }

    /// Takes the thread away from `team`, if it is there.
    fn recall(&self, team: &Arc<Team>) {
        let mut post = self.post.lock().unwrap_or_else(|e| e.into_inner());
        if post.as_ref().is_some_and(|(other, _)| Arc::ptr_eq(other, team)) {
            *post = None;
            drop(post);
            self.change();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lends `team` `count` workers, or as many as are free, and returns how many: the first of `members`. It
    /// has the workers that the team had last; one that keeps its place is not disturbed.
    pub(super) fn lend(&self, team: &Arc<Team>, count: usize, members: &mut Vec<usize>) -> usize {
        let mut lent = 0;
        let mut state = self.state();
        for at in 0..members.len() {
            if lent < count && std::mem::take(&mut state.free[members[at]]) {
                members.swap(lent, at);
                lent += 1;
            }
        }
        for worker in 0..state.free.len() {
            if lent < count && std::mem::take(&mut state.free[worker]) {
                members.push(worker);
                let last = members.len() - 1;
                members.swap(lent, last);
                lent += 1;
            }
        }
        drop(state);
        members.drain(lent..).for_each(|worker| self.workers[worker].recall(team));
        for (at, &worker) in members.iter().enumerate() {
            team.set_worker(at + 1, worker);
            self.workers[worker].post(team, at + 1);
        }
        lent
    }

    /// Takes workers back. They watch their team until they are lent to another.
    pub(super) fn take_back(&self, members: &[usize]) {
        let mut state = self.state();
        members.iter().for_each(|&worker| state.free[worker] = true);
    }

    /// Wakes the workers that thread `number` of `team` wakes for a job, if they sleep.
    pub(super) fn wake(&self, team: &Team, number: usize) {
        team.wakes(number).for_each(|worker| self.workers[worker].wake());
    }

    /// The life of worker `index`: it performs tasks of the team that it is posted to, spins while there are
    /// none, and then sleeps.
    fn serve(&self, index: usize) {
        let worker = &self.workers[index];
        let _ = worker.thread.set(std::thread::current());
        let mut scratch = Scratch::new(index + 1);
        let (mut changes, mut post, mut seen, mut spins) = (0, None::<(Arc<Team>, usize)>, 0, 0);
        while !self.stop.load(Ordering::Acquire) {
            let now = worker.changes.load(Ordering::SeqCst);
            if now != changes {
                changes = now;
                post.clone_from(&worker.post.lock().unwrap_or_else(|e| e.into_inner()));
                (seen, spins) = (0, 0);
            }
            if let Some((team, number)) = &post
                && team.job() != seen
            {
                seen = team.job();
                self.wake(team, *number);
                if team.work(*number, seen, &mut scratch) {
                    spins = 0;
                    continue;
                }
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            worker.asleep.store(true, Ordering::SeqCst);
            let idle = post.as_ref().is_none_or(|(team, _)| team.job() == seen);
            if idle && worker.changes.load(Ordering::SeqCst) == changes {
                std::thread::park();
            }
            worker.asleep.store(false, Ordering::SeqCst);
            spins = 0;
        }
    }
}
