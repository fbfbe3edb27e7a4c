//! Batches of preprocessed images, decoded on background threads ahead of the reader.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use swinq_model::{Batch, BatchSource, BoxError, Transform};

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::preprocess::preprocess;

/// How a [`Loader`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Images per batch; not zero.
    pub batch_size: usize,
    /// Decoding threads; 0 means one per core.
    pub threads: usize,
    /// Batches decoded ahead of the one asked for; memory holds at most this many and one more.
    pub prefetch: usize,
    /// Corrupt images that are left out before one is an error.
    pub skip_corrupt: usize,
}

impl Default for LoaderOptions {
    /// Batches of 8, a thread per core, two batches ahead, no corrupt image tolerated.
    fn default() -> LoaderOptions {
        LoaderOptions { batch_size: 8, threads: 0, prefetch: 2, skip_corrupt: 0 }
    }
}

/// A [`BatchSource`] over part of a data set: batch `i` of every epoch is the images
/// `ids[i * batch_size..(i + 1) * batch_size]` in that order, whatever was read before.
///
/// A corrupt image within the tolerance is left out of its batch (pixels, label and id) and recorded; such a batch
/// is shorter, even empty. Dropping the loader stops and joins its threads.
pub struct Loader {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    skipped: Vec<String>,
    skipped_ids: Vec<usize>,
}

/// What the reader and the decoding threads have in common.
struct Shared {
    dataset: Dataset,
    ids: Vec<usize>,
    transform: Transform,
    options: LoaderOptions,
    state: Mutex<State>,
    /// Signalled when a task is added or the loader stops.
    work: Condvar,
    /// Signalled when the last image of a batch is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Images to decode, in the order they will be wanted.
    tasks: VecDeque<Task>,
    /// Batches in flight.
    pending: Vec<Pending>,
    stop: bool,
    /// Image whose decoding panicked, if one did: its thread is gone, so waiting could be for ever.
    panicked: Option<usize>,
}

/// One image of one batch.
#[derive(Clone, Copy)]
struct Task {
    batch: usize,
    /// Position in the batch.
    slot: usize,
}

/// A batch in flight, one entry per image.
struct Pending {
    batch: usize,
    images: Vec<Option<Result<Vec<u8>, DataError>>>,
    missing: usize,
}

impl Loader {
    /// A loader over the images `ids` of `dataset`. Nothing is read before the first batch is asked for.
    ///
    /// # Panics
    /// Where `options.batch_size` is zero, an id is beyond the data set, the transform has a zero size, or the
    /// system refuses a thread.
    pub fn new(dataset: Dataset, ids: Vec<usize>, transform: Transform, options: LoaderOptions) -> Loader {
        assert!(options.batch_size > 0, "the batch size must not be zero");
        assert!(transform.size > 0, "the input size must not be zero");
        assert!(ids.iter().all(|&id| id < dataset.len()), "an id is beyond the data set's {}", dataset.len());
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let shared = Arc::new(Shared {
            dataset,
            ids,
            transform,
            options,
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("swinq-load-{index}"));
            builder.spawn(move || shared.work()).expect("the system refused a decoding thread")
        };
        let workers = (0..threads).map(spawn).collect();
        Loader { shared, workers, skipped: Vec::new(), skipped_ids: Vec::new() }
    }

    /// Messages of the corrupt images left out so far, in the order their batches were asked for.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// The batch's images in order, with the corrupt ones left out or turned into the error.
    fn assemble(
        &mut self,
        index: usize,
        images: Vec<Result<Vec<u8>, DataError>>,
    ) -> Result<Batch, DataError> {
        let shared = Arc::clone(&self.shared);
        let size = shared.transform.size;
        let mut batch = Batch {
            pixels: Vec::with_capacity(images.len() * size * size * 3),
            size,
            labels: Vec::new(),
            ids: Vec::new(),
        };
        let ids = &shared.ids[shared.range(index)];
        for (&id, image) in ids.iter().zip(images) {
            match image {
                Ok(pixels) => {
                    batch.pixels.extend_from_slice(&pixels);
                    batch.labels.extend(shared.dataset.label(id));
                    batch.ids.push(id);
                }
                Err(error) => self.skip(id, error)?,
            }
        }
        Ok(batch)
    }

    /// Records a corrupt image, or returns its error where no more are tolerated.
    fn skip(&mut self, id: usize, error: DataError) -> Result<(), DataError> {
        if self.skipped_ids.contains(&id) {
            return Ok(());
        }
        let limit = self.shared.options.skip_corrupt;
        if !error.is_corrupt_image() || limit == 0 {
            return Err(error);
        }
        if self.skipped_ids.len() == limit {
            return Err(DataError::TooManyCorrupt { skipped: limit, source: Box::new(error) });
        }
        self.skipped_ids.push(id);
        self.skipped.push(error.to_string());
        Ok(())
    }
}

impl BatchSource for Loader {
    fn batches(&self) -> usize {
        self.shared.batches()
    }

    fn images(&self) -> usize {
        self.shared.ids.len()
    }

    /// Batch `index`, the same in every epoch; decoding goes on with the batches after it.
    ///
    /// # Errors
    /// An unreadable image, a corrupt one beyond the tolerance, or an index beyond the epoch.
    fn batch(&mut self, _epoch: u64, index: usize) -> Result<Batch, BoxError> {
        if index >= self.batches() {
            return Err(format!("batch {index} of {}: beyond the epoch", self.batches()).into());
        }
        let images = self.shared.take(index)?;
        Ok(self.assemble(index, images)?)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A panicked thread has reported itself; its images are errors already.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The state, whether or not a thread panicked while it held the lock: every change to it is complete.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batches(&self) -> usize {
        self.ids.len().div_ceil(self.options.batch_size)
    }

    /// Positions in `ids` of batch `index`.
    fn range(&self, index: usize) -> Range<usize> {
        let start = index * self.options.batch_size;
        start..(start + self.options.batch_size).min(self.ids.len())
    }

    /// Waits for batch `index`, with the batches after it under way, and removes it from flight.
    fn take(&self, index: usize) -> Result<Vec<Result<Vec<u8>, DataError>>, DataError> {
        let mut state = self.lock();
        self.schedule(&mut state, index);
        loop {
            if let Some(id) = state.panicked {
                return Err(DataError::Worker { id });
            }
            let ready = state.pending.iter().position(|p| p.batch == index && p.missing == 0);
            if let Some(position) = ready {
                return Ok(state.pending.swap_remove(position).images.into_iter().flatten().collect());
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Puts batch `index` and the ones to prefetch in flight, and forgets the others.
    fn schedule(&self, state: &mut State, index: usize) {
        let end = index.saturating_add(self.options.prefetch).saturating_add(1).min(self.batches());
        let wanted = index..end;
        state.tasks.retain(|task| wanted.contains(&task.batch));
        state.pending.retain(|pending| wanted.contains(&pending.batch));
        for batch in wanted {
            if state.pending.iter().any(|pending| pending.batch == batch) {
                continue;
            }
            let count = self.range(batch).len();
            let images = (0..count).map(|_| None).collect();
            state.pending.push(Pending { batch, images, missing: count });
            state.tasks.extend((0..count).map(|slot| Task { batch, slot }));
        }
        // A seek back leaves later batches queued first; the one waited for goes before them.
        state.tasks.make_contiguous().sort_by_key(|task| (task.batch, task.slot));
        self.work.notify_all();
    }

    /// A decoding thread: takes tasks until the loader stops.
    fn work(&self) {
        while let Some(task) = self.next_task() {
            let id = self.ids[task.batch * self.options.batch_size + task.slot];
            let alarm = Alarm { shared: self, id };
            let result = self.load(id);
            drop(alarm);
            self.deliver(task, result);
        }
    }

    fn deliver(&self, Task { batch, slot }: Task, result: Result<Vec<u8>, DataError>) {
        let mut state = self.lock();
        // A seek may have given the batch up, or given it up and put it in flight anew.
        let Some(pending) = state.pending.iter_mut().find(|pending| pending.batch == batch) else { return };
        if pending.images[slot].is_none() {
            pending.images[slot] = Some(result);
            pending.missing -= 1;
            if pending.missing == 0 {
                self.done.notify_all();
            }
        }
    }

    fn load(&self, id: usize) -> Result<Vec<u8>, DataError> {
        Ok(preprocess(&self.dataset.decode(id)?, &self.transform))
    }

    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        while !state.stop {
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// Tells the reader when the thread that holds it panics: a reader never waits for a dead thread.
struct Alarm<'a> {
    shared: &'a Shared,
    id: usize,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.lock().panicked.get_or_insert(self.id);
            self.shared.done.notify_all();
        }
    }
}
