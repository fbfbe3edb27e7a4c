//! Groups of threads that run images of their own.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use swinq_kernels::pool::Scratch;
use swinq_kernels::{Crew, Pool};
use swinq_model::Size;

use super::division::Division;
use super::place::{Arena, Memory};
use crate::arena::Layout;
use crate::error::RuntimeError;
use crate::memory::available_memory;

/// A group of threads: the thread that has taken images, and those that it borrows.
#[derive(Default)]
struct Lane {
    /// Made with the first memory.
    pool: Option<Pool>,
    memory: Memory,
}

/// A pool that gives its threads back at the end, also of a panic.
struct Borrowed<'a>(&'a mut Pool);

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// The memory that a lane needs.
#[derive(Clone, Copy)]
pub(super) struct Room<'a> {
    pub(super) layout: &'a Layout,
    /// The most images, for messages.
    pub(super) images: usize,
    pub(super) size: Size,
    /// The number of lanes that have memory.
    pub(super) lanes: usize,
}

/// The work of a lane on some of the images: their range, and memory for their outputs.
pub(super) type Task<'a, T, const N: usize> =
    dyn Fn(&mut Pool, &mut Arena<'_>, Range<usize>, &mut [Option<&mut [T]>; N]) + Sync + 'a;

/// Threads, and memory for as many groups of them as there can be.
pub(crate) struct Lanes {
    crew: Arc<Crew>,
    /// As many as threads. Those that are in use are locked.
    lanes: Box<[Mutex<Lane>]>,
    /// Pools that divide images among lanes, and that no call uses.
    fronts: Mutex<Vec<Pool>>,
    /// The most bytes of a lane so far.
    held: AtomicUsize,
}

impl Lanes {
    /// `threads` threads; 0 is one per core.
    ///
    /// # Errors
    /// [`RuntimeError::StartThreads`].
    pub(super) fn new(threads: usize) -> Result<Lanes, RuntimeError> {
        let crew = Crew::new(threads).map_err(|source| RuntimeError::StartThreads { threads, source })?;
        let threads = crew.threads();
        Ok(Lanes {
            crew: Arc::new(crew),
            lanes: (0..threads).map(|_| Mutex::default()).collect(),
            fronts: Mutex::new(Vec::with_capacity(threads)),
            held: AtomicUsize::new(0),
        })
    }

    pub(super) fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    /// The most bytes of a lane so far.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Makes room in lane `number`, if nobody uses it.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`].
    pub(super) fn reserve(&self, number: usize, room: Room<'_>) -> Result<(), RuntimeError> {
        self.lane(number, room).map(drop)
    }

    /// Runs a division: every lane takes images from the front until none are left, and calls `task` with
    /// them.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`].
    pub(super) fn run<T: Send + Sync, const N: usize>(
        &self,
        division: Division,
        room: Room<'_>,
        outputs: &mut [Option<&mut [T]>; N],
        task: &Task<'_, T, N>,
    ) -> Result<(), RuntimeError> {
        let Division { images, lanes, threads, each } = division;
        if images == 0 {
            return Ok(());
        }
        let mut front = lock(&self.fronts).pop().unwrap_or_else(|| Pool::of(&self.crew));
        front.borrow(lanes);
        // Which threads will take images is not known, so all have their memory now.
        for lane in front.numbers().chain(0..lanes) {
            self.reserve(lane, room)?;
        }
        let failed = Mutex::new(None);
        front.run_groups((images, each), outputs, &|group, mut outputs, scratch| {
            let done =
                self.on_lane(threads, room, scratch, |pool, arena| task(pool, arena, group, &mut outputs));
            if let Err(error) = done {
                *lock(&failed) = Some(error);
            }
        });
        front.give_back();
        lock(&self.fronts).push(front);
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Calls `f` with a lane of up to `threads` threads.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`].
    pub(super) fn with_one<R>(
        &self,
        threads: usize,
        room: Room<'_>,
        f: impl FnOnce(&mut Pool, &mut Arena<'_>) -> R,
    ) -> Result<R, RuntimeError> {
        self.on_lane(threads, room, &mut Scratch::new(0), f)
    }

    /// Calls `f` with a lane of this thread, whose working memory is `scratch`, and `threads - 1` more.
    fn on_lane<R>(
        &self,
        threads: usize,
        room: Room<'_>,
        scratch: &mut Scratch,
        f: impl FnOnce(&mut Pool, &mut Arena<'_>) -> R,
    ) -> Result<R, RuntimeError> {
        let mut lane = self.lane(scratch.thread, room)?;
        let Lane { pool, memory } = &mut *lane;
        let (pool, mut arena) =
            (pool.as_mut().expect("a lane with memory has a pool"), memory.arena(room.layout));
        pool.borrow(threads);
        let pool = Borrowed(pool);
        Ok(pool.0.with_scratch(scratch, |pool| f(pool, &mut arena)))
    }

    /// A free lane, number `first` if it is free, with memory.
    fn lane(&self, first: usize, room: Room<'_>) -> Result<MutexGuard<'_, Lane>, RuntimeError> {
        let lanes = room.lanes.clamp(1, self.lanes.len());
        let first = first % lanes;
        let mut order = self.lanes[first..lanes].iter().chain(&self.lanes[..first]);
        let mut lane = order.find_map(try_lock).unwrap_or_else(|| lock(&self.lanes[first]));
        lane.memory.reserve(room.layout, room.images, room.size)?;
        lane.pool.get_or_insert_with(|| Pool::of(&self.crew));
        self.held.fetch_max(lane.memory.bytes(), Ordering::Relaxed);
        Ok(lane)
    }
}

/// The number of lanes of `lane` bytes each, at most `threads` and at least one, that `most` bytes and half
/// of the memory that is free hold.
pub(super) fn lanes_in(most: usize, lane: usize, threads: usize) -> usize {
    let free = available_memory().map_or(usize::MAX, |bytes| bytes / 2);
    (most.min(free) / lane.max(1)).clamp(1, threads)
}

/// Locks a mutex. A panic in an earlier call does no harm: every tensor is written before it is read.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex that nobody holds.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
