//! Repeats work from host memory to host memory. Copies from and to pinned memory surround it, and the copy
//! of the next input overlaps the computation of the current one.

use std::sync::Arc;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{CudaError, Device, DeviceBuf, DeviceSlice, Event, PinnedBuf, Stream};

/// Number of inputs in flight.
const SLOTS: usize = 2;

/// Minimum bytes per copying thread; for fewer bytes, waking a thread costs more than it saves.
const BYTES_PER_THREAD: usize = 2 << 20;
/// Bytes that a copying thread takes at a time. A thread that wakes late leaves its part to the others.
const COPIED_AT_ONCE: usize = 256 << 10;
/// Maximum number of threads that copy one input; more threads are not faster.
const COPYING_THREADS: usize = 8;

/// The threads that copy inputs of up to `bytes` bytes, because one thread copies more slowly than a GPU
/// computes; `None` if one is enough. They are kept between inputs: to start and to end threads locks the
/// address space of the process, on which all of its pipelines would wait.
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

/// Copies `from` to `to`, which is as long, on `threads` if it is long enough for two. A caller that is
/// itself a thread of rayon copies alone: waiting for `threads`, it would take up other work of its pool,
/// which may wait for this very pipeline.
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
pub struct Transfer<'a> {
    /// At most as long as the buffers.
    pub input: &'a [u8],
    /// Where bytes of the output begin, and the memory to which they go.
    pub outputs: Vec<(usize, &'a mut [u8])>,
}

impl Transfer<'_> {
    /// Where the last of the outputs ends.
    fn end(&self) -> usize {
        self.outputs.iter().map(|(begin, to)| begin + to.len()).max().unwrap_or(0)
    }
}

/// A queue of inputs for work on one stream.
pub struct Pipeline {
    compute: Arc<Stream>,
    copies: Stream,
    slots: [Slot; SLOTS],
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
    /// Allocates buffers for inputs and outputs of up to `input_bytes` and `output_bytes` of work on
    /// `compute`. Each output begins with `flags` u32 flags, which the work sets and nothing resets.
    ///
    /// # Errors
    /// The device or the host has too little memory, or the driver fails.
    pub fn new(
        device: &Device,
        compute: &Arc<Stream>,
        (input_bytes, output_bytes): (usize, usize),
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
            compute: Arc::clone(compute),
            copies: Stream::new(device)?,
            slots: [slot()?, slot()?],
            copying: copying_threads(input_bytes.max(output_bytes))?,
            flags,
        })
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
        let bytes = (input_bytes.max(input), output_bytes.max(output));
        *self = Pipeline::new(device, &self.compute, bytes, self.flags)?;
        Ok(())
    }

    /// Runs `parts` one after the other, from host memory to host memory. `work` puts the work of the part
    /// with this index on the stream; it reads the input, which is on the device then. Flags and outputs are
    /// in `output` on the device at the end. Returns the index of the first flag that is set after any of the
    /// parts.
    ///
    /// # Errors
    /// The driver or the work fails.
    ///
    /// # Panics
    /// If a length exceeds the buffers.
    pub fn run<'a>(
        &mut self,
        output: &DeviceSlice,
        parts: impl ExactSizeIterator<Item = Transfer<'a>>,
        work: impl Fn(usize, &Stream, &DeviceSlice) -> Result<(), CudaError>,
    ) -> Result<Option<usize>, CudaError> {
        let (alone, mut raised) = (parts.len() == 1, None);
        let mut waiting: [Option<Transfer<'a>>; SLOTS] = [const { None }; SLOTS];
        let mut outcome = Ok(());
        for (index, part) in parts.enumerate() {
            let slot = index % SLOTS;
            outcome = self
                .finish(slot, waiting[slot].take(), &mut raised)
                .and_then(|()| self.start(slot, &part, alone, |stream, input| work(index, stream, input)))
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

    /// Starts the `work` of `part` in a free slot.
    fn start(
        &mut self,
        slot: usize,
        part: &Transfer<'_>,
        alone: bool,
        work: impl FnOnce(&Stream, &DeviceSlice) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let slot = &mut self.slots[slot];
        let bytes = part.input.len();
        copy_on(self.copying.as_ref(), &mut slot.host_input.as_mut_slice::<u8>()[..bytes], part.input);
        let copies = if alone { &self.compute } else { &self.copies };
        slot.busy = true;
        // SAFETY: the slot is busy until `finish` has waited for `done`, which is recorded after this copy.
        // Until then nothing accesses its pinned memory, which the slot owns. `drop` waits too.
        unsafe { slot.input.slice(0, bytes).copy_from_pinned(copies, &slot.host_input, 0..bytes)? };
        if !alone {
            slot.copied.record(copies)?;
            self.compute.wait(&slot.copied)?;
        }
        work(&self.compute, &slot.input)
    }

    /// Starts the copy of the outputs of `part`, whose work is on the stream.
    fn read_back(&mut self, slot: usize, part: &Transfer<'_>, output: &DeviceSlice) -> Result<(), CudaError> {
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
        part: Option<Transfer<'_>>,
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
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let _bound = self.copies.context().bound();
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
