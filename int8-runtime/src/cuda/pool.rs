//! The runners of an engine. Each has an arena, in which one computation runs at a time: one runner serves
//! inference from host memory, one each stream of the caller, and one each graph that the caller records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use swinq_cuda::ops::report::DeviceReport;
use swinq_cuda::{Capture, KeepContext};
use swinq_model::{Size, SwinConfig};

use super::engine::CudaRunner;
use super::options::CudaOptions;
use super::packed::Packed;
use crate::error::RuntimeError;

/// Who uses a runner.
enum User {
    Nobody,
    Host,
    /// The stream with this identity.
    Stream(u64),
    /// A graph of the caller, with the identity of its recording. `released` is set when the graph is
    /// destroyed. Until then it may run at any time, so that nobody else uses the runner.
    Graph {
        capture: u64,
        released: Arc<AtomicBool>,
    },
}

impl User {
    fn same(&self, other: &User) -> bool {
        match (self, other) {
            (User::Host, User::Host) => true,
            (User::Stream(a), User::Stream(b)) => a == b,
            (User::Graph { capture: a, .. }, User::Graph { capture: b, .. }) => a == b,
            _ => false,
        }
    }

    /// Whether a graph that lives uses the runner.
    fn is_graph(&self) -> bool {
        matches!(self, User::Graph { released, .. } if !released.load(Ordering::Acquire))
    }
}

/// A runner that threads share.
pub(crate) struct Shared {
    runner: Mutex<Box<CudaRunner>>,
    /// The word to which the runner's work reports lives as long as the runner.
    _report: Arc<DeviceReport>,
}

impl Shared {
    /// Locks the runner for one call. A panic in an earlier call does no harm: every tensor is written before
    /// it is read, so a later call reads nothing that the earlier call left.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Box<CudaRunner>> {
        self.runner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The runners of an engine.
pub(crate) struct Pool {
    packed: Arc<Packed>,
    config: SwinConfig,
    options: CudaOptions,
    report: Arc<DeviceReport>,
    /// The most recently used one is the last.
    runners: Mutex<Vec<(User, Arc<Shared>)>>,
}

impl Pool {
    /// Makes the first runner of `packed`, a network of the architecture `config`.
    pub(crate) fn new(
        packed: &Arc<Packed>,
        config: &SwinConfig,
        options: CudaOptions,
    ) -> Result<Pool, RuntimeError> {
        let _context = KeepContext::new(packed.device())?;
        let report = Arc::new(DeviceReport::new(packed.device())?);
        let (packed, config) = (Arc::clone(packed), config.clone());
        let pool = Pool { packed, config, options, report, runners: Mutex::default() };
        let first = pool.make()?;
        pool.runners().push((User::Nobody, first));
        Ok(pool)
    }

    fn runners(&self) -> MutexGuard<'_, Vec<(User, Arc<Shared>)>> {
        self.runners.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn make(&self) -> Result<Arc<Shared>, RuntimeError> {
        let runner = CudaRunner::new(&self.packed, &self.config, self.options)?;
        Ok(Arc::new(Shared { runner: Mutex::new(Box::new(runner)), _report: Arc::clone(&self.report) }))
    }

    /// The word to which work on streams of the caller reports.
    pub(crate) fn report(&self) -> &DeviceReport {
        &self.report
    }

    /// Fails if work on a stream of the caller has told that a value is not finite.
    ///
    /// # Errors
    /// [`RuntimeError::EarlierRun`] with the launch or the output.
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        match self.report.take() {
            None => Ok(()),
            Some(flag) => Err(RuntimeError::EarlierRun { problem: self.packed.meaning(flag).to_string() }),
        }
    }

    /// The runner of inference from host memory.
    pub(crate) fn for_host(&self) -> Result<Arc<Shared>, RuntimeError> {
        self.of(User::Host)
    }

    /// The runner of the caller's stream with this identity.
    pub(crate) fn for_stream(&self, id: u64) -> Result<Arc<Shared>, RuntimeError> {
        self.of(User::Stream(id))
    }

    /// The runner of `user`: its own, or an unused one, or a new one, or that of another user who has not
    /// used it for longest.
    ///
    /// # Errors
    /// There are as many runners as allowed, and all belong to graphs; the device has too little memory.
    fn of(&self, user: User) -> Result<Arc<Shared>, RuntimeError> {
        let mut runners = self.runners();
        let place = |wanted: &dyn Fn(&User) -> bool| runners.iter().position(|(user, _)| wanted(user));
        let unused = |found: &User| matches!(found, User::Nobody) || released(found);
        let mut at = place(&|found| found.same(&user)).or_else(|| place(&unused));
        if at.is_none() && runners.len() < self.options.max_streams.max(1) {
            let made = self.make()?;
            runners.push((User::Nobody, made));
            at = Some(runners.len() - 1);
        }
        let at = at.or_else(|| runners.iter().position(|(found, _)| !found.is_graph()));
        let at = at.ok_or(RuntimeError::Streams { most: self.options.max_streams.max(1) })?;
        let (_, shared) = runners.remove(at);
        runners.push((user, Arc::clone(&shared)));
        Ok(shared)
    }

    /// The runner of the graph that the caller records: one in which `images` images of `size` are prepared.
    /// It belongs to the graph as long as that lives.
    ///
    /// # Errors
    /// [`RuntimeError::NotPrepared`], or the driver fails.
    pub(crate) fn for_graph(
        &self,
        capture: &Capture,
        images: usize,
        size: Size,
    ) -> Result<Arc<Shared>, RuntimeError> {
        let mut runners = self.runners();
        let of_graph =
            |(user, _): &&(User, _)| matches!(user, User::Graph { capture: id, .. } if *id == capture.id());
        if let Some((_, shared)) = runners.iter().find(of_graph) {
            return Ok(Arc::clone(shared));
        }
        for (user, shared) in runners.iter_mut().rev().filter(|(user, _)| !user.is_graph()) {
            // A runner in the middle of a call is no candidate.
            let Ok(runner) = shared.runner.try_lock() else { continue };
            if runner.prepared_parts(images, size).is_some() {
                // The graph does not wait for earlier work of the runner.
                runner.last.synchronize()?;
                let released = Arc::new(AtomicBool::new(false));
                capture.tell_release(&released)?;
                *user = User::Graph { capture: capture.id(), released };
                return Ok(Arc::clone(shared));
            }
        }
        Err(RuntimeError::NotPrepared { size, images })
    }
}

/// Whether a graph that was destroyed used the runner.
fn released(user: &User) -> bool {
    matches!(user, User::Graph { .. }) && !user.is_graph()
}

/// Runners of engines that were dropped before a graph of the caller that uses them.
static KEPT: Mutex<Vec<(User, Arc<Shared>)>> = Mutex::new(Vec::new());

impl Drop for Pool {
    fn drop(&mut self) {
        let mut kept = KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        kept.retain(|(user, _)| user.is_graph());
        kept.extend(self.runners().drain(..).filter(|(user, _)| user.is_graph()));
    }
}
