//! Images made on background threads ahead of the reader, for every loader of this crate.
//!
//! A [`Source`] says which images a batch has, which batch follows it and how an image is made; the rest (threads, order
//! of work, seeks, corrupt images) is here.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use swinq_model::Batch;

use crate::error::DataError;
use crate::loader::LoaderOptions;

/// A batch's place in the order of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    /// Index in the epoch.
    pub(crate) batch: usize,
}

/// What is loaded: functions of their arguments alone, called from many threads.
pub(crate) trait Source: Send + Sync + 'static {
    /// Side of the images made.
    fn size(&self) -> usize;

    /// Positions in the data set of the images of a batch, in order.
    fn ids(&self, place: Place) -> Vec<usize>;

    /// The batch read after this one, if any.
    fn after(&self, place: Place) -> Option<Place>;

    /// Class of image `id`, where there are labels.
    fn label(&self, id: usize) -> Option<u32>;

    /// Pixels of image `id`, number `slot` of its batch: `u8` `[size, size, 3]`.
    fn image(&self, place: Place, slot: usize, id: usize) -> Result<Vec<u8>, DataError>;
}

/// The batches of a source, made ahead of the reader. Dropping it stops and joins its threads.
pub(crate) struct Prefetch<S: Source> {
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

/// What the reader and the threads have in common.
struct Shared<S> {
    source: S,
    /// Batches made ahead of the one asked for.
    ahead: usize,
    state: Mutex<State>,
    /// Signalled when a task is added or the loader stops.
    work: Condvar,
    /// Signalled when the last image of a batch is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Images to make, in the order they will be wanted.
    tasks: VecDeque<Task>,
    /// Batches in flight.
    pending: Vec<Pending>,
    stop: bool,
    /// Image that a thread panicked over, if one did: the thread is gone, so waiting could be for ever.
    panicked: Option<usize>,
}

/// One image of one batch.
#[derive(Clone, Copy)]
struct Task {
    place: Place,
    /// Position in the batch.
    slot: usize,
    id: usize,
}

/// A batch in flight, one entry per image.
struct Pending {
    place: Place,
    ids: Vec<usize>,
    images: Vec<Option<Result<Vec<u8>, DataError>>>,
    missing: usize,
}

impl<S: Source> Prefetch<S> {
    /// Threads over `source`. Nothing is read before the first batch is asked for.
    ///
    /// # Panics
    /// Where the system refuses a thread.
    pub(crate) fn new(source: S, options: &LoaderOptions) -> Prefetch<S> {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let shared = Arc::new(Shared {
            source,
            ahead: options.prefetch,
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
        let skipped = Skipped { limit: options.skip_corrupt, ids: Vec::new(), messages: Vec::new() };
        Prefetch { shared, workers, skipped }
    }

    pub(crate) fn source(&self) -> &S {
        &self.shared.source
    }

    /// Messages of the corrupt images left out so far, in the order their batches were asked for.
    pub(crate) fn skipped(&self) -> &[String] {
        &self.skipped.messages
    }

    /// The batch at `place`, its images in order and the corrupt ones left out or turned into the error; work goes on
    /// with the batches after it.
    pub(crate) fn batch(&mut self, place: Place) -> Result<Batch, DataError> {
        let Pending { ids, images, .. } = self.shared.take(place)?;
        let size = self.shared.source.size();
        let pixels = Vec::with_capacity(ids.len() * size * size * 3);
        let mut batch = Batch { pixels, size, labels: Vec::new(), ids: Vec::new() };
        for (id, image) in ids.into_iter().zip(images.into_iter().flatten()) {
            match image {
                Ok(pixels) => {
                    batch.pixels.extend_from_slice(&pixels);
                    batch.labels.extend(self.shared.source.label(id));
                    batch.ids.push(id);
                }
                Err(error) => self.skipped.add(id, error)?,
            }
        }
        Ok(batch)
    }
}

impl Skipped {
    /// Records a corrupt image, or returns its error where no more are tolerated.
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

impl<S: Source> Drop for Prefetch<S> {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A panicked thread has reported itself; its images are errors already.
            let _ = worker.join();
        }
    }
}

impl<S> Shared<S> {
    /// The state, whether or not a thread panicked while it held the lock: every change to it is complete.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Source> Shared<S> {
    /// Waits for the batch at `place`, with the batches after it under way, and removes it from flight.
    fn take(&self, place: Place) -> Result<Pending, DataError> {
        let mut state = self.lock();
        self.schedule(&mut state, place);
        loop {
            if let Some(id) = state.panicked {
                return Err(DataError::Worker { id });
            }
            let ready = state.pending.iter().position(|p| p.place == place && p.missing == 0);
            if let Some(position) = ready {
                return Ok(state.pending.swap_remove(position));
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Puts the batch at `place` and the ones to prefetch in flight, and forgets the others.
    fn schedule(&self, state: &mut State, place: Place) {
        let following = std::iter::successors(Some(place), |&place| self.source.after(place));
        let wanted: Vec<Place> = following.take(self.ahead.saturating_add(1)).collect();
        state.tasks.retain(|task| wanted.contains(&task.place));
        state.pending.retain(|pending| wanted.contains(&pending.place));
        for place in wanted {
            if state.pending.iter().any(|pending| pending.place == place) {
                continue;
            }
            let ids = self.source.ids(place);
            state.tasks.extend(ids.iter().enumerate().map(|(slot, &id)| Task { place, slot, id }));
            let images = ids.iter().map(|_| None).collect();
            state.pending.push(Pending { place, missing: ids.len(), ids, images });
        }
        // A seek back leaves later batches queued first; the one waited for goes before them.
        state.tasks.make_contiguous().sort_by_key(|task| (task.place, task.slot));
        self.work.notify_all();
    }

    /// A thread's life: takes tasks until the loader stops.
    fn work(&self) {
        while let Some(task) = self.next_task() {
            let alarm = Alarm { shared: self, id: task.id };
            let result = self.source.image(task.place, task.slot, task.id);
            drop(alarm);
            self.deliver(task, result);
        }
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

    fn deliver(&self, Task { place, slot, .. }: Task, result: Result<Vec<u8>, DataError>) {
        let mut state = self.lock();
        // A seek may have given the batch up, or given it up and put it in flight anew.
        let Some(pending) = state.pending.iter_mut().find(|pending| pending.place == place) else { return };
        if pending.images[slot].is_none() {
            pending.images[slot] = Some(result);
            pending.missing -= 1;
            if pending.missing == 0 {
                self.done.notify_all();
            }
        }
    }
}

/// Tells the reader when the thread that holds it panics: a reader never waits for a dead thread.
struct Alarm<'a, S> {
    shared: &'a Shared<S>,
    id: usize,
}

impl<S> Drop for Alarm<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.lock().panicked.get_or_insert(self.id);
            self.shared.done.notify_all();
        }
    }
}
