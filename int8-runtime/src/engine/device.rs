//! Inference on a GPU's stream of the caller, from and to memory of the GPU.

use swinq_cuda::ops::output::{OutputForm, OutputType};
use swinq_cuda::ops::patch::{InputForm, InputType};
use swinq_cuda::{Device, DeviceSlice, KeepContext, Relaxed, Stream};
use swinq_model::Size;
use swinq_numerics::ImageLayout;

use super::{BackendRunner, Engine, MOST_OUTPUTS, OutputLayout};
use crate::cuda::{self, Given, Pool, Targets};
use crate::error::RuntimeError;

/// Images of one size in memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct DeviceImages<'a> {
    /// Height and width of each image.
    pub size: Size,
    /// The values of whole images, in the order of `layout`.
    pub values: &'a DeviceSlice,
    /// u8 are pixels, which [`Engine::transform`] normalises; other types are normalised already.
    pub element: InputType,
    /// The order of the values of an image.
    pub layout: ImageLayout,
}

/// Memory of a GPU for an output.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOutput<'a> {
    /// The name of the output ([`Engine::outputs`]).
    pub name: &'a str,
    /// `[images, rows, columns]` ([`Engine::output_shape`]), or in the order of `layout`.
    pub values: &'a DeviceSlice,
    /// Values are rounded to the nearest of this type, ties to even.
    pub element: OutputType,
    /// The order of the values of an image.
    pub layout: OutputLayout,
}

impl Engine {
    /// As [`Engine::run`] on `stream`, from and to memory of the engine's GPU. The work comes after what is
    /// on the stream, and the call returns without waiting for it. The memory must live, and the images must
    /// stay as they are, until it is done.
    ///
    /// Streams run at the same time, as many as [`CudaOptions::max_streams`](crate::CudaOptions); each has
    /// memory of its own for tensors. The first call on a stream allocates that, and the first call for a
    /// size and a number of images prepares for them; both may wait for the GPU.
    ///
    /// If the caller records a graph on the stream ([CUDA's stream capture]), the launches become a part of
    /// the graph. The size and the number of images must be prepared ([`Engine::prepare_on`], or a call on
    /// any stream). The graph keeps the memory of the stream on which they were prepared as long as it lives.
    ///
    /// A value that is not finite cannot be an error of this call. All outputs are NaN then, and the next
    /// call on this engine fails, or [`Engine::check`].
    ///
    /// [CUDA's stream capture]: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
    ///
    /// # Errors
    /// The engine runs on a CPU; the stream or memory are of another GPU; memory has another length than its
    /// values, overlaps, or is not aligned to its elements; the errors of [`Engine::run`] that need no value
    /// of an image; [`RuntimeError::EarlierRun`]; [`RuntimeError::NotPrepared`] and
    /// [`RuntimeError::Streams`].
    pub fn run_on(
        &self,
        stream: &Stream,
        images: DeviceImages<'_>,
        outputs: &[DeviceOutput<'_>],
    ) -> Result<(), RuntimeError> {
        let (pool, device) = self.gpu(stream)?;
        let given = self.given(device, images)?;
        let targets = self.targets(device, outputs, given)?;
        self.check()?;
        if given.images == 0 {
            return Ok(());
        }
        let _context = KeepContext::new(device)?;
        if let Some(capture) = stream.capture_of_caller()? {
            let _allowed = Relaxed::new()?;
            let shared = pool.for_graph(&capture, given.images, given.size)?;
            return shared.lock().run_on(stream, given, &targets, pool.report(), true);
        }
        let shared = pool.for_stream(stream.id())?;
        let run =
            |runner: &mut cuda::CudaRunner| runner.run_on(stream, given, &targets, pool.report(), false);
        self.with_room(&shared, given.size, run)
    }

    /// Prepares for `images` images of `size` on `stream`, and allocates its memory; otherwise the first call
    /// on the stream does so.
    ///
    /// # Errors
    /// As [`Engine::prepare`] and [`Engine::run_on`], and a stream on which the caller records a graph.
    pub fn prepare_on(&self, stream: &Stream, size: Size, images: usize) -> Result<(), RuntimeError> {
        let (pool, device) = self.gpu(stream)?;
        self.check_size(size)?;
        let _context = KeepContext::new(device)?;
        if stream.capture_of_caller()?.is_some() {
            return Err(RuntimeError::NotPrepared { size, images });
        }
        let shared = pool.for_stream(stream.id())?;
        self.with_room(&shared, size, |runner| runner.prepare_on(images, size))
    }

    /// Fails if an earlier [`Engine::run_on`], or a graph that holds one, met a value that is not finite. It
    /// does not wait: work that is not done yet may fail later. An error is told once.
    ///
    /// # Errors
    /// [`RuntimeError::EarlierRun`].
    pub fn check(&self) -> Result<(), RuntimeError> {
        match &self.runner {
            BackendRunner::Cpu(_) => Ok(()),
            BackendRunner::Cuda(pool) => pool.check(),
        }
    }

    /// The runners and the GPU of an engine that can use `stream`.
    fn gpu(&self, stream: &Stream) -> Result<(&Pool, &Device), RuntimeError> {
        let (BackendRunner::Cuda(pool), Some(device)) = (&self.runner, self.device()) else {
            return Err(tensor(
                "stream",
                "the engine runs on a CPU, and takes no stream and no memory of a GPU",
            ));
        };
        match stream.is_on(device) {
            true => Ok((pool, device)),
            false => Err(tensor("stream", "it belongs to another GPU than the engine")),
        }
    }

    fn given<'a>(&self, device: &Device, images: DeviceImages<'a>) -> Result<Given<'a>, RuntimeError> {
        let DeviceImages { size, values, element, layout } = images;
        check_place("images", device, values, element.bytes())?;
        self.check_size(size)?;
        let images = self.count(values.bytes() / element.bytes(), size)?;
        let form = InputForm { element, channels_first: layout == ImageLayout::ChannelsFirst };
        Ok(Given { images, size, values, form })
    }

    fn targets<'a>(
        &self,
        device: &Device,
        outputs: &[DeviceOutput<'a>],
        given: Given<'_>,
    ) -> Result<Targets<'a>, RuntimeError> {
        let mut targets: Targets<'a> = [None; MOST_OUTPUTS];
        for &DeviceOutput { name, values, element, layout } in outputs {
            check_place(name, device, values, element.bytes())?;
            let taken = |index: usize| targets[index].is_some();
            let length = values.bytes() / element.bytes();
            let index = self.index_of(name, taken, length, (given.size, given.images))?;
            let others = targets.iter().flatten().map(|(other, _)| *other);
            if others.chain([given.values]).any(|other| other.overlaps(values)) {
                return Err(tensor(name, "its memory overlaps that of the images or of another output"));
            }
            let form = OutputForm { element, channels_first: layout == OutputLayout::ChannelsFirst };
            targets[index] = Some((values, form));
        }
        Ok(targets)
    }
}

/// Refuses memory of another GPU than `device`, and memory that is not aligned to elements of `bytes` bytes,
/// or does not end with one.
fn check_place(name: &str, device: &Device, values: &DeviceSlice, bytes: usize) -> Result<(), RuntimeError> {
    if !values.is_on(device) {
        return Err(tensor(name, "its memory is on another GPU than the engine"));
    }
    if !values.bytes().is_multiple_of(bytes) {
        return Err(tensor(name, &format!("its {} bytes are not whole elements of {bytes}", values.bytes())));
    }
    match values.ptr().is_multiple_of(bytes as u64) {
        true => Ok(()),
        false => {
            Err(tensor(name, &format!("its address is not a multiple of {bytes}, the bytes of an element")))
        }
    }
}

fn tensor(name: &str, problem: &str) -> RuntimeError {
    RuntimeError::Tensor { name: name.to_owned(), problem: problem.to_owned() }
}
