//! The threads of all operations in host memory.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use swinq_kernels::Pool;

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(|| Mutex::new(Pool::new(default_threads())));

/// The most threads of operations where no number is stated. An operation on 64 threads is slower than on 16:
/// it takes new memory for its result, and the system gives pages to one thread at a time.
const MOST_DEFAULT_THREADS: usize = 16;

/// Threads of operations where no number is stated: one per core, at most 16.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST_DEFAULT_THREADS)
}

thread_local! {
    /// Between two operations, the pool of a thread that runs operations alone. It keeps the thread's working
    /// memory.
    static ALONE: Cell<Option<Pool>> = const { Cell::new(None) };
}

/// The threads of an operation, which holds them while it runs, and runs no other operation.
pub(crate) enum Threads {
    /// All, [`default_threads`] unless [`use_threads`] chose another number. One pool serves the process, so
    /// that a thread that waits for the next operation finds it, whichever operation it is.
    All(MutexGuard<'static, Pool>),
    /// The thread of the caller; `None` only while it is dropped.
    Alone(Option<Pool>),
}

impl Deref for Threads {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        match self {
            Threads::All(pool) => pool,
            Threads::Alone(pool) => pool.as_ref().expect("it is not dropped"),
        }
    }
}

impl DerefMut for Threads {
    fn deref_mut(&mut self) -> &mut Pool {
        match self {
            Threads::All(pool) => pool,
            Threads::Alone(pool) => pool.as_mut().expect("it is not dropped"),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Threads::Alone(pool) = self {
            ALONE.set(pool.take());
        }
    }
}

/// The threads of an operation that starts now: all, or on a thread of rayon's that thread alone. Who divides
/// work among rayon's threads divides whole images or layers, whose operations then never wait for each
/// other.
pub(crate) fn pool() -> Threads {
    if rayon::current_thread_index().is_some() {
        return Threads::Alone(Some(ALONE.take().unwrap_or_else(|| Pool::new(1))));
    }
    // A panic of a task leaves the pool ready for the next job.
    Threads::All(POOL.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Number of threads that an operation of the caller uses: one on a thread of rayon's.
pub fn threads() -> usize {
    pool().threads()
}

/// Runs all later operations of this process on `threads` threads; 0 means [`default_threads`]. Results do
/// not depend on it.
///
/// # Errors
/// The system refuses to start a thread.
pub fn use_threads(threads: usize) -> std::io::Result<()> {
    let threads = match threads {
        0 => default_threads(),
        n => n,
    };
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.threads() != threads {
        *pool = Pool::try_new(threads)?;
    }
    Ok(())
}

/// Runs `task(i)` for every `i` in `0..tasks` on the threads of the operations. A task must not run
/// operations.
///
/// # Panics
/// Resumes the first panic of a task.
pub fn on_every_core(tasks: usize, task: impl Fn(usize) + Sync) {
    pool().run(tasks, &|i, _| task(i));
}

/// Calls `f` with every item, on the threads of the operations, and returns the results in the items' order.
/// `f` must not run operations.
///
/// # Panics
/// Resumes the first panic of `f`.
pub fn map_each<T: Send, R: Send + Sync>(
    items: impl IntoIterator<Item = T>,
    f: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let results: Vec<OnceLock<R>> = items.iter().map(|_| OnceLock::new()).collect();
    on_every_core(items.len(), |i| {
        let item = items[i].lock().unwrap_or_else(PoisonError::into_inner).take();
        // Every task runs once, so there is an item, and no result yet.
        let _ = results[i].set(f(item.expect("a task runs once")));
    });
    results.into_iter().map(|result| result.into_inner().expect("every task has run")).collect()
}

/// `len` zeros. Several threads clear them.
pub(crate) fn zeros(len: usize) -> Vec<f32> {
    pool().zeros(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_results_keep_their_order() {
        let mut values = [1, 2, 3, 4, 5];
        let sums = map_each(values.chunks_mut(2).zip([10, 20, 30]), |(chunk, add)| {
            chunk.iter_mut().for_each(|x| *x += add);
            chunk.iter().sum::<i32>()
        });
        assert_eq!((values, sums), ([11, 12, 23, 24, 35], vec![23, 47, 35]));
    }

    #[test]
    fn operations_of_several_threads_run_at_the_same_time() {
        // Each waits for the other inside its operation.
        let both = std::sync::Barrier::new(2);
        let operation = || {
            assert_eq!(threads(), 1);
            map_each([1, 2], |i| if i == 1 { both.wait().is_leader() } else { false })
        };
        let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let (a, b) = two.install(|| rayon::join(operation, operation));
        assert_eq!([a[0], b[0]].into_iter().filter(|leader| *leader).count(), 1);
    }

    #[test]
    fn the_number_of_threads_is_the_one_asked_for() {
        for threads in [3, 1] {
            use_threads(threads).unwrap();
            assert_eq!(pool().threads(), threads);
        }
        use_threads(0).unwrap();
        assert_eq!(pool().threads(), default_threads());
    }
}
