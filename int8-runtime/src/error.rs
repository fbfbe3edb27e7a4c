//! The error type of the engine.

use swinq_cuda::CudaError;
use swinq_kernels::CpuError;
use swinq_model::quantized::F16Residual;
use swinq_model::{ModelError, Size};

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The engine cannot run this model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The requested instruction set is unknown or not available.
    #[error(transparent)]
    Isa(#[from] CpuError),
    /// More threads than an engine may have.
    #[error("{threads} threads: an engine has at most {max} (0 means one per core)", max = crate::MAX_THREADS)]
    Threads {
        /// Requested number of threads.
        threads: usize,
    },
    /// A `max_batch` outside the permitted range.
    #[error("max_batch {max_batch} is outside 1..={max}; larger batches are split", max = crate::MAX_BATCH)]
    MaxBatch {
        /// Requested number of images.
        max_batch: usize,
    },
    /// The system refused to start a thread.
    #[error("the system refuses to start {threads} threads ({source}); choose fewer threads")]
    StartThreads {
        /// Requested number of threads; 0 means one per core.
        threads: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system has too little memory for the engine's buffers.
    #[error(
        "the system refuses {bytes} bytes for the buffers of batches of {images} images of {size} pixels; choose a smaller \
         max_batch"
    )]
    OutOfMemory {
        /// Bytes of the buffer that was refused.
        bytes: usize,
        /// Number of images that it has to hold.
        images: usize,
        /// Height and width of an image.
        size: Size,
    },
    /// A number of images that the engine cannot run at once.
    #[error("{images} images: this engine runs 1 to {max_batch} at a time (max_batch)")]
    Images {
        /// Images given.
        images: usize,
        /// The most images at a time.
        max_batch: usize,
    },
    /// Weights packed for another backend.
    #[error(
        "the weights are packed for {packed}, and the engine is for {asked}; pack the model for that backend"
    )]
    OtherPacking {
        /// The target for which the weights are packed.
        packed: String,
        /// The target of the engine.
        asked: String,
    },
    /// A variant of another architecture.
    #[error("a variant of {name} in a runner of variants of {expected}; make a runner for {name}")]
    OtherArchitecture {
        /// Architecture of the variant.
        name: String,
        /// Architecture of the runner.
        expected: String,
    },
    /// Images with another number of channels than the network takes.
    #[error("images of {got} channels given to a model for {expected}")]
    Channels {
        /// Channels of the images.
        got: usize,
        /// Channels that the network takes.
        expected: usize,
    },
    /// The number of pixels does not match the number of images.
    #[error("{values} values for {images} images of {} x {} x {channels}", size.height, size.width)]
    PixelCount {
        /// Values given.
        values: usize,
        /// Number of images that the caller stated.
        images: usize,
        /// Height and width of an image.
        size: Size,
        /// Channels of an image.
        channels: usize,
    },
    /// A value of an image that is not finite.
    #[error(
        "image {image} of the batch: the pixel at row {row}, column {column} is {value} in channel {channel}; the values of images \
         are finite numbers"
    )]
    InputNotFinite {
        /// Position in the batch.
        image: usize,
        /// Row of the pixel.
        row: usize,
        /// Column of the pixel.
        column: usize,
        /// Channel of the value.
        channel: usize,
        /// The value.
        value: f32,
    },
    /// An image that needs more memory than allowed.
    #[error(
        "an image of {size} pixels needs {needed} bytes of buffers, and {allowed} are allowed; use smaller images, or allow \
         {} pixels (max_pixels; --max-pixels on the command line)",
        size.area()
    )]
    ImageTooLarge {
        /// Height and width of the image.
        size: Size,
        /// Bytes of the tensors of one image.
        needed: usize,
        /// Bytes that they may take.
        allowed: usize,
    },
    /// An output that the network does not have, or that is asked for twice.
    #[error("output `{name}`: the network has the outputs {names}, each of which may be asked for once")]
    Output {
        /// The name.
        name: String,
        /// The names of all outputs.
        names: String,
    },
    /// Memory that does not hold an output.
    #[error("room for {values} values of output `{name}`, whose shape is {shape:?}")]
    OutputLength {
        /// The name of the output.
        name: String,
        /// Number of values that the memory holds.
        values: usize,
        /// Images, rows and columns.
        shape: [usize; 3],
    },
    /// The memory for scores does not hold a whole number of images.
    #[error("room for {values} scores is not a whole number of images of {classes} classes")]
    LogitCount {
        /// Number of scores that the memory holds.
        values: usize,
        /// Classes of the model.
        classes: usize,
    },
    /// A score that is not finite.
    #[error(
        "image {image} of the batch: the score of class {class} is {value}; a weight or a scale of this model is \
         damaged (`swinq inspect` lists the scales)"
    )]
    NotFinite {
        /// Position in the batch.
        image: usize,
        /// Class index.
        class: usize,
        /// The score.
        value: f32,
    },
    /// A value of an output in f16 that f16 does not hold.
    #[error(
        "image {image} of the batch: a value of the output `{name}` is beyond the range of f16, which ends at 65504; ask for the \
         output in f32"
    )]
    OutputOverflow {
        /// The name of the output.
        name: String,
        /// Position in the batch.
        image: usize,
    },
    /// A value of a feature map that is not finite.
    #[error(
        "image {image} of the batch: a value of the output `{name}` is {value}; a weight or a scale of this model is damaged \
         (`swinq inspect` lists the scales)"
    )]
    MapNotFinite {
        /// The name of the output.
        name: String,
        /// Position in the batch.
        image: usize,
        /// The value.
        value: f32,
    },
    /// An f16 residual stream is asked for, and the model's does not fit.
    #[error("--residual f16: {fit}; use --residual f32")]
    F16Residual {
        /// The magnitude of the residual stream.
        fit: F16Residual,
    },
    /// The f16 residual stream holds a value that is not finite.
    #[error(
        "launch {launch}: a value of the f16 residual stream is not finite (f16 ends at 65504); run with --residual f32, \
         and if that fails too, a weight or a scale of this model is damaged (`swinq inspect` lists the scales)"
    )]
    ResidualOverflow {
        /// The launch that wrote the value.
        launch: String,
    },
    /// An earlier run on a stream of the caller met a value that is not finite, and wrote NaN to all its
    /// outputs.
    #[error("an earlier run on the GPU has written values that are not finite: {problem}")]
    EarlierRun {
        /// Which value.
        problem: String,
    },
    /// The caller records a graph with a batch that is not prepared.
    #[error(
        "{images} images of {size} pixels are not prepared, and cannot be while a graph is recorded: run them once, or call \
         `prepare`, before the recording, for each graph that lives at the same time"
    )]
    NotPrepared {
        /// Their size.
        size: Size,
        /// Their number.
        images: usize,
    },
    /// All memory for streams belongs to graphs that the caller has recorded.
    #[error(
        "recorded graphs hold the engine's memory for {most} streams; raise max_streams, or destroy a graph"
    )]
    Streams {
        /// The most streams.
        most: usize,
    },
    /// Memory of a GPU that cannot be used.
    #[error("{name}: {problem}")]
    Tensor {
        /// The tensor: `images`, the name of an output, or `stream`.
        name: String,
        /// The reason.
        problem: String,
    },
    /// A GPU or its driver failed, or there is none.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A launch that the GPU cannot run, or at which it failed.
    #[error("{launch}: {source}")]
    OnDevice {
        /// Module path of the launch.
        launch: String,
        /// The error of the GPU or its driver.
        source: CudaError,
    },
}

impl RuntimeError {
    /// For an error of [`Engine::run`](crate::Engine::run) or
    /// [`Engine::check_size`](crate::Engine::check_size): whether the caller's images or outputs are the
    /// cause, and not the engine.
    pub fn is_of_arguments(&self) -> bool {
        use RuntimeError as E;
        matches!(
            self,
            E::Model(_)
                | E::Channels { .. }
                | E::PixelCount { .. }
                | E::InputNotFinite { .. }
                | E::ImageTooLarge { .. }
                | E::Output { .. }
                | E::OutputLength { .. }
                | E::Tensor { .. }
                | E::NotPrepared { .. }
        )
    }

    pub(crate) fn on_device(launch: &str, source: CudaError) -> RuntimeError {
        RuntimeError::OnDevice { launch: launch.to_owned(), source }
    }
}
