//! Replays recorded work on new inputs. Copies from and to pinned memory surround a graph, and the copy of
//! the next input overlaps the computation of the current one. What reads an input and writes outputs is not recorded, because
//! their memory differs from call to call.

use std::collections::BTreeMap;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{CudaError, Device, DeviceBuf, DeviceSlice, Event, Graph, PinnedBuf, Stream};

/// Number of inputs in flight.
const SLOTS: usize = 2;

/// Minimum bytes per copying thread; for fewer bytes, waking a thread costs more than it saves.
const BYTES_PER_THREAD: usize = 2 << 20;
/// Bytes that a copying thread takes at a time. A thread that wakes late leaves its part to the others.
const COPIED_AT_ONCE: usize = 256 << 10;
/// Maximum number of threads that copy one input; more threads are not faster.
const COPYING_THREADS: usize = 8;

/// The threads that copy inputs of up to `bytes` bytes, because one thread copies more slowly than a GPU computes; `None` if one
/// is enough. They are kept between inputs: to start and to end threads locks the address space of the process, on which all of
/// its pipelines would wait.
fn copying_threads(bytes: usize) -> Result<Option<ThreadPool>, CudaError> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = (bytes / BYTES_PER_THREAD).min(cores).min(COPYING_THREADS);
    if threads < 2 {
        return Ok(None);
    }
    let name = |index| format!("swinq-copy-{index}");
    let threads = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
    threads.map(Some).map_err(|source| CudaError::CopyingThreads(source.to_string()))
}

/// Copies `from` to `to`, which is as long, on `threads` if it is long enough for two. A caller that is itself a thread of rayon
/// copies alone: waiting for `threads`, it would take up other work of its pool, which may wait for this very pipeline.
fn copy_on(threads: Option<&ThreadPool>, to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy between two lengths");
    let alone = from.len() < 2 * BYTES_PER_THREAD || rayon::current_thread_index().is_some();
    match threads.filter(|_| !alone) {
        None => to.copy_from_slice(from),
        Some(threads) => threads.install(|| {
            let parts = to.par_chunks_mut(COPIED_AT_ONCE).zip(from.par_chunks(COPIED_AT_ONCE));
            parts.for_each(|(to, from)| to.copy_from_slice(from));
        }),
    }
}

/// An input of a pipeline, and its outputs.
pub struct Part<'a> {
    /// The key of the recorded work.
    pub key: usize,
    /// It may be shorter than the recorded work expects; the rest of the buffer keeps bytes of earlier inputs.
    pub input: &'a [u8],
    /// Where bytes of the output begin, and the memory to which they go.
    pub outputs: Vec<(usize, &'a mut [u8])>,
}

impl Part<'_> {
    /// Where the last of the outputs ends.
    fn end(&self) -> usize {
        self.outputs.iter().map(|(begin, to)| begin + to.len()).max().unwrap_or(0)
    }
}

/// A queue of inputs for one computation, which is recorded once for each size of input.
pub struct Pipeline {
    compute: Stream,
    copies: Stream,
    slots: [Slot; SLOTS],
    /// The recorded work, by key.
    graphs: BTreeMap<usize, Graph>,
    copying: Option<ThreadPool>,
    /// The number of flags at the beginning of the output.
    flags: usize,
}

/// Buffers for one input and its output.
struct Slot {
    input: DeviceSlice,
    host_input: PinnedBuf,
    host_output: PinnedBuf,
    copied: Event,
    done: Event,
    busy: bool,
}

impl Pipeline {
    /// Allocates buffers for inputs and outputs of up to `input_bytes` and `output_bytes`. Each output begins with `flags` u32
    /// flags, which the work sets and nothing resets.
    ///
    /// # Errors
    /// The device or the host has too little memory, or the driver fails.
    pub fn new(
        device: &Device,
        input_bytes: usize,
        output_bytes: usize,
        flags: usize,
    ) -> Result<Pipeline, CudaError> {
        let slot = || -> Result<Slot, CudaError> {
            Ok(Slot {
                input: DeviceBuf::zeroed(device, input_bytes)?.all(),
                host_input: PinnedBuf::new(device, input_bytes)?,
                host_output: PinnedBuf::new(device, output_bytes.max(4 * flags))?,
                copied: Event::new(device)?,
                done: Event::new(device)?,
                busy: false,
            })
        };
        Ok(Pipeline {
            compute: Stream::new(device)?,
            copies: Stream::new(device)?,
            slots: [slot()?, slot()?],
            graphs: BTreeMap::new(),
            copying: copying_threads(input_bytes.max(output_bytes))?,
            flags,
        })
    }

    /// The stream that the work runs on.
    pub fn stream(&self) -> &Stream {
        &self.compute
    }

    /// The input of slot 0.
    pub fn input(&self) -> &DeviceSlice {
        &self.slots[0].input
    }

    /// Makes room for inputs and outputs of so many bytes.
    ///
    /// # Errors
    /// The device or the host has too little memory; the buffers are as before then.
    pub fn reserve(
        &mut self,
        device: &Device,
        input_bytes: usize,
        output_bytes: usize,
    ) -> Result<(), CudaError> {
        let (input, output) = (self.input().bytes(), self.slots[0].host_output.len_bytes());
        if input_bytes <= input && output_bytes <= output {
            return Ok(());
        }
        let mut larger = Pipeline::new(device, input_bytes.max(input), output_bytes.max(output), self.flags)?;
        std::mem::swap(&mut self.graphs, &mut larger.graphs);
        *self = larger;
        Ok(())
    }

    /// Removes the work recorded under `key`.
    pub fn forget(&mut self, key: usize) {
        self.graphs.remove(&key);
    }

    /// Removes all recorded work.
    pub fn clear(&mut self) {
        self.graphs.clear();
    }

    /// Records the work that `work` puts on the stream under `key`.
    ///
    /// # Errors
    /// `work` or the driver fails.
    pub fn record<E: From<CudaError>>(
        &mut self,
        key: usize,
        work: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut failed = None;
        let graph = self.compute.capture(|| {
            work(&self.compute).map_err(|error| {
                failed = Some(error);
                CudaError::Unsupported("the work was not recorded".to_owned())
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let graph = graph?;
        graph.upload(&self.compute)?;
        self.graphs.insert(key, graph);
        Ok(())
    }

    /// Runs `parts` one after the other, from host memory to host memory. `before` and `after` put work on the stream before and
    /// after the recorded work of the part with this index; `before` reads the input, which is on the device then. Flags and
    /// outputs are in `output` on the device at the end. Returns the index of the first flag that is set after any of the parts.
    ///
    /// # Errors
    /// The driver or the work fails.
    ///
    /// # Panics
    /// If a key was not recorded, or a length exceeds the buffers.
    pub fn run<'a>(
        &mut self,
        output: &DeviceSlice,
        parts: impl ExactSizeIterator<Item = Part<'a>>,
        before: impl Fn(usize, &Stream, &DeviceSlice) -> Result<(), CudaError>,
        after: impl Fn(usize, &Stream) -> Result<(), CudaError>,
    ) -> Result<Option<usize>, CudaError> {
        let (alone, mut raised) = (parts.len() == 1, None);
        let mut waiting: [Option<Part<'a>>; SLOTS] = [const { None }; SLOTS];
        let mut outcome = Ok(());
        for (index, part) in parts.enumerate() {
            let slot = index % SLOTS;
            outcome = self
                .finish(slot, waiting[slot].take(), &mut raised)
                .and_then(|()| self.start(slot, &part, alone, |on, input| before(index, on, input)))
                .and_then(|()| after(index, &self.compute))
                .and_then(|()| self.read_back(slot, &part, output));
            if outcome.is_err() {
                break;
            }
            waiting[slot] = Some(part);
        }
        for (slot, part) in waiting.into_iter().enumerate() {
            let finished = self.finish(slot, part, &mut raised);
            outcome = outcome.and(finished);
        }
        outcome.map(|()| raised)
    }

    /// Starts `before` and the work of `part` in a free slot.
    fn start(
        &mut self,
        slot: usize,
        part: &Part<'_>,
        alone: bool,
        before: impl FnOnce(&Stream, &DeviceSlice) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let slot = &mut self.slots[slot];
        let bytes = part.input.len();
        copy_on(self.copying.as_ref(), &mut slot.host_input.as_mut_slice::<u8>()[..bytes], part.input);
        let graph = self.graphs.get(&part.key).expect("work was recorded under the key");
        let copies = if alone { &self.compute } else { &self.copies };
        slot.busy = true;
        // SAFETY: the slot is busy until `finish` has waited for `done`, which is recorded after this copy.
        // Until then nothing accesses its pinned memory, which the slot owns. `drop` waits too.
        unsafe { slot.input.slice(0, bytes).copy_from_pinned(copies, &slot.host_input, 0..bytes)? };
        if !alone {
            slot.copied.record(copies)?;
            self.compute.wait(&slot.copied)?;
        }
        before(&self.compute, &slot.input)?;
        graph.launch(&self.compute)
    }

    /// Starts the copy of the outputs of `part`, whose work is on the stream.
    fn read_back(&mut self, slot: usize, part: &Part<'_>, output: &DeviceSlice) -> Result<(), CudaError> {
        let slot = &mut self.slots[slot];
        let bytes = part.end().max(4 * self.flags);
        // SAFETY: as in `start`.
        unsafe { output.slice(0, bytes).copy_to_pinned(&self.compute, &slot.host_output, 0..bytes)? };
        slot.done.record(&self.compute)
    }

    /// Waits for a slot's work and reads its outputs; sets `raised` to the first flag that is set.
    fn finish(
        &mut self,
        slot: usize,
        part: Option<Part<'_>>,
        raised: &mut Option<usize>,
    ) -> Result<(), CudaError> {
        let slot = &mut self.slots[slot];
        if !slot.busy {
            return Ok(());
        }
        // After an error the event may not have been recorded, so everything is waited for.
        let waited = match &part {
            Some(_) => slot.done.synchronize(),
            None => self.copies.synchronize().and(self.compute.synchronize()),
        };
        slot.busy = false;
        waited?;
        for (begin, to) in part.map(|part| part.outputs).unwrap_or_default() {
            let from = &slot.host_output.as_slice::<u8>()[begin..begin + to.len()];
            copy_on(self.copying.as_ref(), to, from);
        }
        let flags = &slot.host_output.as_slice::<u32>()[..self.flags];
        let first = flags.iter().position(|&flag| flag != 0);
        *raised = (*raised).into_iter().chain(first).min();
        Ok(())
    }

    /// Returns the milliseconds of each of `runs` replays of the work of `key`, between the work that `before` and `after` put on
    /// the stream, without copies, on the current content of the input of slot 0.
    ///
    /// # Errors
    /// The driver or the work fails.
    ///
    /// # Panics
    /// If the key was not recorded.
    pub fn time(
        &self,
        device: &Device,
        key: usize,
        runs: usize,
        before: impl Fn(&Stream, &DeviceSlice) -> Result<(), CudaError>,
        after: impl Fn(&Stream) -> Result<(), CudaError>,
    ) -> Result<Vec<f32>, CudaError> {
        let graph = self.graphs.get(&key).expect("work was recorded under the key");
        let marks: Vec<Event> = (0..=runs).map(|_| Event::new(device)).collect::<Result<_, _>>()?;
        marks[0].record(&self.compute)?;
        for mark in &marks[1..] {
            before(&self.compute, self.input())?;
            graph.launch(&self.compute)?;
            after(&self.compute)?;
            mark.record(&self.compute)?;
        }
        self.compute.synchronize()?;
        marks.windows(2).map(|pair| Event::elapsed_ms(&pair[0], &pair[1])).collect()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Pinned memory must outlive the copies that use it.
        let _ = self.copies.synchronize().and(self.compute.synchronize());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_whatever_the_length() {
        assert!(copying_threads(2 * BYTES_PER_THREAD - 1).unwrap().is_none());
        let several = ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for bytes in [0, 1, 2 * BYTES_PER_THREAD - 1, 2 * BYTES_PER_THREAD, 19_267_584, 19_267_585] {
            let from: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            for threads in [None, Some(&several)] {
                let mut to = vec![255; bytes];
                copy_on(threads, &mut to, &from);
                assert!(to == from, "{bytes} bytes");
            }
        }
    }
}
