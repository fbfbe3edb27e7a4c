//! The threads of all operations in host memory.

use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use swinq_kernels::Pool;

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(|| Mutex::new(Pool::new(default_threads())));

/// The most threads of operations where no number is stated. A calibration on 64 cores is slower with more: each operation takes
/// new memory for its result, and the system gives pages to one thread at a time.
const MOST_DEFAULT_THREADS: usize = 16;

/// Threads of operations where no number is stated: one per core, at most 16.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST_DEFAULT_THREADS)
}

/// The threads, [`default_threads`] unless [`use_threads`] chose another number. One pool serves the process, so that a thread
/// that waits for the next operation finds it, whichever operation it is. An operation holds it while it runs, and runs no
/// other operation.
pub(crate) fn pool() -> MutexGuard<'static, Pool> {
    // A panic of a task leaves the pool ready for the next job.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all later operations of this process on `threads` threads; 0 means [`default_threads`]. Results do not depend on it.
///
/// # Errors
/// The system refuses to start a thread.
pub fn use_threads(threads: usize) -> std::io::Result<()> {
    let threads = match threads {
        0 => default_threads(),
        n => n,
    };
    let mut pool = pool();
    if pool.threads() != threads {
        *pool = Pool::try_new(threads)?;
    }
    Ok(())
}

/// Runs `task(i)` for every `i` in `0..tasks` on the threads of the operations. A task must not run operations.
///
/// # Panics
/// Resumes the first panic of a task.
pub fn on_every_core(tasks: usize, task: impl Fn(usize) + Sync) {
    pool().run(tasks, &|i, _| task(i));
}

/// Calls `f` with every item, on the threads of the operations, and returns the results in the items' order. `f` must not
/// run operations.
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
    fn the_number_of_threads_is_the_one_asked_for() {
        for threads in [3, 1] {
            use_threads(threads).unwrap();
            assert_eq!(pool().threads(), threads);
        }
        use_threads(0).unwrap();
        assert_eq!(pool().threads(), default_threads());
    }
}
