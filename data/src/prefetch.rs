//! Prefetching of batches on background threads, which every loader of this crate uses.
//!
//! A [`Source`] defines which images a batch has, which batch follows it and how an image is loaded. This
//! module manages the threads, the order of work, seeks and corrupt images.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use swinq_model::{Batch, LoaderWork};

use crate::error::DataError;
use crate::loader::LoaderOptions;

/// Identifies a batch. Batches are ordered as they are read: by epoch, then by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchId {
    pub(crate) epoch: u64,
    /// Index of the batch in its epoch.
    pub(crate) index: usize,
}

/// Defines the batches and loads their images. Results depend on the arguments only; many threads call the
/// methods.
pub(crate) trait Source: Send + Sync + 'static {
    /// The size, the channels and the format of the images of a batch, as one without images.
    fn without_images(&self, batch: BatchId) -> Batch;

    /// The images of a batch in order, as positions in the data set.
    fn image_ids(&self, batch: BatchId) -> Vec<usize>;

    /// The batch to prefetch after `batch`, if any.
    fn following(&self, batch: BatchId) -> Option<BatchId>;

    /// Class of image `id`, if the data set has labels.
    fn label(&self, id: usize) -> Option<u32>;

    /// Loads image `id`, which is at position `slot` of its batch: the bytes of its pixels in the format of
    /// the batch.
    fn load(&self, batch: BatchId, slot: usize, id: usize) -> Result<Vec<u8>, DataError>;
}

/// Loads the batches of a source before they are requested. Dropping it stops and joins its threads.
pub(crate) struct Prefetcher<S: Source> {
    shared: Arc<Shared<S>>,
    workers: Vec<JoinHandle<()>>,
    skipped: Skipped,
}

/// Corrupt images left out so far.
struct Skipped {
    limit: usize,
    ids: Vec<usize>,
    messages: Vec<String>,
}

/// The state that the reader shares with the worker threads.
struct Shared<S> {
    source: S,
    /// Number of batches to prefetch after the requested one.
    prefetch: usize,
    state: Mutex<State>,
    /// Signalled when a task is added or the threads must stop.
    tasks_changed: Condvar,
    /// Signalled when a batch is complete or a thread has panicked.
    batch_done: Condvar,
}

#[derive(Default)]
struct State {
    /// Images to load, in the order in which they will be needed.
    tasks: VecDeque<Task>,
    /// Batches that are requested or prefetched and not yet returned.
    pending: Vec<Pending>,
    stop: bool,
    /// The image at which a thread panicked. Its batch would never be complete, so the reader must not wait
    /// for it.
    panicked: Option<usize>,
    /// The work done so far; its number of threads is set when they are started.
    work: LoaderWork,
}

/// One image of one batch.
#[derive(Clone, Copy)]
struct Task {
    batch: BatchId,
    /// Position in the batch.
    slot: usize,
    id: usize,
}

/// A batch whose images are being loaded.
struct Pending {
    batch: BatchId,
    ids: Vec<usize>,
    /// The result for each image, once it is there.
    images: Vec<Option<Result<Vec<u8>, DataError>>>,
    /// Number of images without a result.
    missing: usize,
}

impl<S: Source> Prefetcher<S> {
    /// Starts the threads. They load nothing before the first batch is requested.
    ///
    /// # Errors
    /// [`DataError::Setting`] if the system cannot start so many threads.
    pub(crate) fn new(source: S, options: &LoaderOptions) -> Result<Prefetcher<S>, DataError> {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let shared = Arc::new(Shared {
            source,
            prefetch: options.prefetch,
            state: Mutex::default(),
            tasks_changed: Condvar::new(),
            batch_done: Condvar::new(),
        });
        let skipped = Skipped { limit: options.skip_corrupt, ids: Vec::new(), messages: Vec::new() };
        let mut prefetcher = Prefetcher { shared, workers: Vec::new(), skipped };
        for index in 0..threads {
            let shared = Arc::clone(&prefetcher.shared);
            let builder = std::thread::Builder::new().name(format!("swinq-load-{index}"));
            let worker = builder.spawn(move || shared.run_worker()).map_err(|error| {
                DataError::setting("threads", format!("the system cannot start {threads} threads: {error}"))
            })?;
            prefetcher.workers.push(worker);
        }
        prefetcher.shared.lock().work.threads = threads;
        Ok(prefetcher)
    }

    pub(crate) fn source(&self) -> &S {
        &self.shared.source
    }

    /// The work of the threads so far.
    pub(crate) fn work(&self) -> LoaderWork {
        self.shared.lock().work
    }

    /// The error messages of the corrupt images left out so far, in the order in which their batches were
    /// requested.
    pub(crate) fn skipped(&self) -> &[String] {
        &self.skipped.messages
    }

    /// `batch` with the images that can be read, in order, and the ids of the others with the reasons. The
    /// batches after it are then prefetched.
    pub(crate) fn readable(&self, batch: BatchId) -> Result<(Batch, Vec<(usize, DataError)>), DataError> {
        let (empty, mut unread) = (self.shared.source.without_images(batch), Vec::new());
        let Pending { ids, images, .. } = self.shared.take(batch)?;
        let mut batch = empty;
        batch.pixels.reserve_exact(ids.len() * batch.image_bytes());
        for (id, image) in ids.into_iter().zip(images.into_iter().flatten()) {
            match image {
                Ok(pixels) => {
                    batch.pixels.extend_from_slice(&pixels);
                    batch.labels.extend(self.shared.source.label(id));
                    batch.ids.push(id);
                }
                Err(error) => unread.push((id, error)),
            }
        }
        Ok((batch, unread))
    }

    /// Returns `batch` with its images in order. Corrupt images are left out up to the limit; the next one is
    /// the error. The batches after `batch` are then prefetched.
    pub(crate) fn batch(&mut self, batch: BatchId) -> Result<Batch, DataError> {
        let (batch, unread) = self.readable(batch)?;
        unread.into_iter().try_for_each(|(id, error)| self.skipped.add(id, error))?;
        Ok(batch)
    }
}

impl Skipped {
    /// Records a corrupt image, or returns its error if the limit is reached.
    fn add(&mut self, id: usize, error: DataError) -> Result<(), DataError> {
        if self.ids.contains(&id) {
            return Ok(());
        }
        if !error.is_corrupt_image() || self.limit == 0 {
            return Err(error);
        }
        if self.ids.len() == self.limit {
            return Err(DataError::TooManyCorrupt { skipped: self.limit, source: Box::new(error) });
        }
        self.ids.push(id);
        self.messages.push(error.to_string());
        Ok(())
    }
}

impl<S: Source> Drop for Prefetcher<S> {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.tasks_changed.notify_all();
        for worker in self.workers.drain(..) {
            // A panic has already been reported to the reader.
            let _ = worker.join();
        }
    }
}

impl<S> Shared<S> {
    /// Locks the state. A panic of another thread cannot leave it inconsistent, so a poisoned lock is used as
    /// it is.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Source> Shared<S> {
    /// Schedules `batch` and the batches to prefetch, waits for `batch`, and removes it from the state.
    fn take(&self, batch: BatchId) -> Result<Pending, DataError> {
        let mut state = self.lock();
        self.schedule(&mut state, batch);
        let asked = Instant::now();
        loop {
            if let Some(id) = state.panicked {
                return Err(DataError::Worker { id });
            }
            let ready = state.pending.iter().position(|p| p.batch == batch && p.missing == 0);
            if let Some(position) = ready {
                state.work.waited += asked.elapsed();
                return Ok(state.pending.swap_remove(position));
            }
            state = self.batch_done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds tasks for `batch` and the batches to prefetch, and drops those of all other batches.
    fn schedule(&self, state: &mut State, batch: BatchId) {
        let following = std::iter::successors(Some(batch), |&batch| self.source.following(batch));
        let needed: Vec<BatchId> = following.take(self.prefetch.saturating_add(1)).collect();
        state.tasks.retain(|task| needed.contains(&task.batch));
        state.pending.retain(|pending| needed.contains(&pending.batch));
        for batch in needed {
            if state.pending.iter().any(|pending| pending.batch == batch) {
                continue;
            }
            let ids = self.source.image_ids(batch);
            state.tasks.extend(ids.iter().enumerate().map(|(slot, &id)| Task { batch, slot, id }));
            let images = ids.iter().map(|_| None).collect();
            state.pending.push(Pending { batch, missing: ids.len(), ids, images });
        }
        // After a seek backwards, tasks of later batches come first in the queue. The requested batch must
        // precede them.
        state.tasks.make_contiguous().sort_by_key(|task| (task.batch, task.slot));
        self.tasks_changed.notify_all();
    }

    /// The body of a worker thread: runs tasks until the threads must stop.
    fn run_worker(&self) {
        while let Some(task) = self.next_task() {
            let guard = PanicGuard { shared: self, id: task.id };
            let began = Instant::now();
            let result = self.source.load(task.batch, task.slot, task.id);
            let duration = began.elapsed();
            drop(guard);
            self.deliver(task, result, duration);
        }
    }

    /// Waits for a task; `None` if the threads must stop.
    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        while !state.stop {
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            state = self.tasks_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Stores the result of a task in its batch, and counts the `duration` of the task.
    fn deliver(
        &self,
        Task { batch, slot, .. }: Task,
        result: Result<Vec<u8>, DataError>,
        duration: Duration,
    ) {
        let mut state = self.lock();
        state.work.images += 1;
        state.work.busy += duration;
        // After a seek, the batch may be gone, or it may be scheduled again and already have this image.
        let Some(pending) = state.pending.iter_mut().find(|pending| pending.batch == batch) else { return };
        if pending.images[slot].is_none() {
            pending.images[slot] = Some(result);
            pending.missing -= 1;
            if pending.missing == 0 {
                self.batch_done.notify_all();
            }
        }
    }
}

/// Reports a panic of the thread that holds it, so that the reader does not wait for a result that never
/// comes.
struct PanicGuard<'a, S> {
    shared: &'a Shared<S>,
    id: usize,
}

impl<S> Drop for PanicGuard<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.lock().panicked.get_or_insert(self.id);
            self.shared.batch_done.notify_all();
        }
    }
}
