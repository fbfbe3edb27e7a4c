//! Inference on a stream of the caller, from and to memory of the device. The host waits for nothing.

use std::sync::Arc;

use swinq_cuda::ops::output::OutputForm;
use swinq_cuda::ops::patch::InputForm;
use swinq_cuda::ops::report::DeviceReport;
use swinq_cuda::{DeviceSlice, Stream};
use swinq_model::Size;

use super::engine::{CudaRunner, embed_in, run_all};
use super::memory::{Images, OfSize};
use crate::engine::MOST_OUTPUTS;
use crate::error::RuntimeError;

/// Images in memory of the device.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) images: usize,
    pub(crate) size: Size,
    pub(crate) values: &'a DeviceSlice,
    pub(crate) form: InputForm,
}

/// The memory and the form of each output that is asked for.
pub(crate) type Targets<'a> = [Option<(&'a DeviceSlice, OutputForm)>; MOST_OUTPUTS];

/// A part of a batch: its first image, the number of its images, and that of the prepared batch in which they
/// run.
#[derive(Clone, Copy)]
struct StreamPart {
    first: usize,
    count: usize,
    number: usize,
}

impl CudaRunner {
    /// Puts the computation of `targets` from `given` on `stream`, a stream of the caller. A batch runs in
    /// parts of as many images as run at a time. If a value is not finite, the outputs are NaN, and `report`
    /// tells the flag. Work of other streams that uses the arena comes first. `recorded` is whether the
    /// caller records a graph; then nothing is prepared, and the launches are recorded one by one, because a
    /// graph cannot launch a graph that exists.
    ///
    /// # Errors
    /// The image is none that the network can process, `recorded` and the batch is not prepared, or the
    /// driver fails.
    pub(crate) fn run_on(
        &mut self,
        stream: &Stream,
        given: Given<'_>,
        targets: &Targets<'_>,
        report: &DeviceReport,
        recorded: bool,
    ) -> Result<(), RuntimeError> {
        let (images, size) = (given.images, given.size);
        let (of, numbers) = match recorded {
            true => self.prepared_parts(images, size).ok_or(RuntimeError::NotPrepared { size, images })?,
            false => {
                let of = self.of_size(size, images)?;
                let numbers = self.prepare_parts((images, of.most), &of)?;
                (of, numbers)
            }
        };
        let part = |(part, &number): (usize, &usize)| {
            let first = part * of.most;
            StreamPart { first, count: of.most.min(images - first), number }
        };
        let mut parts = numbers.iter().enumerate().map(part);
        if recorded {
            return parts.try_for_each(|part| self.put(stream, given, targets, (&of, part), report, true));
        }
        stream.wait(&self.last)?;
        let done = parts.try_for_each(|part| self.put(stream, given, targets, (&of, part), report, false));
        // Also after an error, because some of the work is on the stream.
        self.last.record(stream)?;
        done
    }

    /// Chooses kernels for `images` images of `size`, and records the graphs of their parts, unless they are
    /// prepared.
    pub(crate) fn prepare_on(&mut self, images: usize, size: Size) -> Result<(), RuntimeError> {
        let of = self.of_size(size, images)?;
        self.prepare_parts((images, of.most), &of).map(drop)
    }

    /// The number of images of the prepared batch in which each part of `images` images of `size` runs, if
    /// all are prepared.
    pub(super) fn prepared_parts(&self, images: usize, size: Size) -> Option<(Arc<OfSize>, Vec<usize>)> {
        let of = Arc::clone(&self.sizes.of_size(size)?.of);
        let firsts = (0..images).step_by(of.most);
        let numbers = firsts.map(|first| self.sizes.holding((size, of.most.min(images - first))));
        let numbers = numbers.collect::<Option<Vec<usize>>>()?;
        Some((of, numbers))
    }

    /// Puts a part of a batch on `stream`.
    fn put(
        &self,
        stream: &Stream,
        given: Given<'_>,
        targets: &Targets<'_>,
        (of, part): (&OfSize, StreamPart),
        report: &DeviceReport,
        recorded: bool,
    ) -> Result<(), RuntimeError> {
        let StreamPart { first, count, number } = part;
        let some = |values: &DeviceSlice| {
            let image = values.bytes() / given.images;
            values.slice(first * image, count * image)
        };
        let prepared = self.sizes.get((given.size, number)).expect("the batch is prepared");
        let (packed, memory, pixels) = (&self.packed, &self.memory, some(given.values));
        let images = Images { count, of, input: Some((&pixels, given.form)) };
        embed_in(number, packed, &prepared.launches, memory, stream, images)?;
        if recorded {
            let all = Images { count: number, ..images };
            run_all(&packed.steps, &prepared.launches[1..], memory, stream, all, None)?;
        } else {
            prepared.graph.launch(stream)?;
        }
        let asked = targets.iter().enumerate().filter_map(|(index, target)| Some((index, (*target)?)));
        let written: Vec<_> = asked.map(|(index, (values, form))| (index, some(values), form)).collect();
        memory.write_outputs(packed, stream, images, &written)?;
        Ok(report.run(stream, &memory.flags())?)
    }
}
