//! Feature maps of image files by a backbone, image by image or in a file.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use swinq_data::{Dataset, LoaderOptions, OfOneSize, SizedLoader, Sizing, image_files};
use swinq_int8_runtime::{Engine, Images, OutputLayout, OutputMut, RuntimeError};
use swinq_model::Size;
use swinq_model::tensor_file::{Planned, TensorFile};

use crate::limits::{check_batch_size, check_threads};
use crate::{DEFAULT_BATCH, Error};

/// Number of batches that are decoded before the network needs them.
const PREFETCH: usize = 2;

/// The most bytes that the pixels and the feature maps of a batch take, unless one image takes more.
const BATCH_BYTES: usize = 256 << 20;

/// How feature maps are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureOptions {
    /// The size to which images are resized.
    pub sizing: Sizing,
    /// The most images of a batch, at least 1. Images of one size run together.
    pub batch_size: usize,
    /// Decoding threads; 0 is one per core.
    pub threads: usize,
}

impl Default for FeatureOptions {
    /// The images' own sizes, batches of 8, one decoding thread per core.
    fn default() -> FeatureOptions {
        FeatureOptions { sizing: Sizing::Keep, batch_size: DEFAULT_BATCH, threads: 0 }
    }
}

/// The feature maps of image files, which a backbone computes batch by batch. Images of one size run together, wherever they
/// stand; no value depends on the other images, on their order or on the batch size. Memory holds a few images and the maps of
/// one batch.
///
/// ```no_run
/// use swinq::{EngineOptions, FeatureOptions, Features, Model};
///
/// let engine = Model::open("backbone.int8.safetensors")?.engine(&EngineOptions::default())?;
/// let mut features = Features::new(&engine, &["street.jpg", "photos/"], FeatureOptions::default())?;
/// while let Some(batch) = features.next_batch()? {
///     for map in batch.maps() {
///         println!("image {}, {}: {:?}, {} values", map.image, map.name, map.shape, map.values.len());
///     }
/// }
/// for left_out in features.left_out() {
///     println!("{}", left_out.problem);
/// }
/// # Ok::<(), swinq::Error>(())
/// ```
pub struct Features<'e> {
    engine: &'e Engine,
    /// The images that can be read, as their headers tell; `None` if there is none.
    source: Option<ImageSource>,
    count: usize,
    left_out: Vec<LeftOut>,
    /// The next batch.
    next: usize,
    /// The maps of the last batch, of each output f32 `[images, channels, height, width]`.
    values: Vec<Vec<f32>>,
}

/// Images that are read in batches.
struct ImageSource {
    loader: SizedLoader,
    files: Files,
}

/// Image files, and the number of each among the images as given.
#[derive(Default)]
struct Files {
    paths: Vec<PathBuf>,
    numbers: Vec<usize>,
}

/// An image without feature maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its number among the images as given.
    pub image: usize,
    /// The reason, which names the file.
    pub problem: String,
}

/// A feature map of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeatureMap<'a> {
    /// The number of the image among the images as given, from 0.
    pub image: usize,
    /// The name of the output: `stage1` for the first stage.
    pub name: &'a str,
    /// Channels, height and width.
    pub shape: [usize; 3],
    /// f32 `[channels, height, width]`.
    pub values: &'a [f32],
}

/// The feature maps of the images of a batch.
pub struct FeatureBatch<'a> {
    engine: &'a Engine,
    size: Size,
    /// The numbers of the images.
    images: Vec<usize>,
    values: &'a [Vec<f32>],
}

impl<'e> Features<'e> {
    /// Finds the images that `paths` name, files and folders for the images directly in them, in sorted order, and reads their
    /// headers. Images are numbered in this order, from 0; a path that names no image has a number too.
    ///
    /// # Errors
    /// [`Error::Argument`] for the engine of a classifier, a batch size of 0 or too many threads.
    pub fn new(
        engine: &'e Engine,
        paths: &[impl AsRef<Path>],
        options: FeatureOptions,
    ) -> Result<Features<'e>, Error> {
        if !engine.config().is_backbone() {
            let problem = format!("{} is a classifier; feature maps need a backbone", engine.config().name);
            return Err(Error::argument("engine", problem));
        }
        check_batch_size(options.batch_size)?;
        let (files, count, mut left_out) = Files::find(paths);
        let source = ImageSource::new(engine, files, &options, &mut left_out)?;
        Ok(Features { engine, source, count, left_out, next: 0, values: Vec::new() })
    }

    /// The number of images as given, with those that are left out.
    pub fn images(&self) -> usize {
        self.count
    }

    /// The images that were left out so far: those that cannot be read, those of a size that the network cannot process, and
    /// those that need more memory than allowed ([`EngineOptions::max_pixels`](crate::EngineOptions)).
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// The maps of the next batch; `None` after the last one.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the engine fails, or for a value that is not finite.
    pub fn next_batch(&mut self) -> Result<Option<FeatureBatch<'_>>, Error> {
        let Some(source) = &self.source else { return Ok(None) };
        while self.next < source.loader.batches().len() {
            let (batch, unread) = source.loader.batch(self.next)?;
            self.next += 1;
            for (id, error) in unread {
                let image = source.files.numbers[id];
                self.left_out.push(LeftOut { image, problem: error.to_string() });
            }
            if batch.is_empty() {
                continue;
            }
            let images = Images::new(batch.size, &batch.pixels[..]);
            match compute(self.engine, images, batch.len(), &mut self.values) {
                Ok(()) => {
                    let numbers = batch.ids.iter().map(|&id| source.files.numbers[id]).collect();
                    let (engine, size, values) = (self.engine, batch.size, &self.values);
                    return Ok(Some(FeatureBatch { engine, size, images: numbers, values }));
                }
                Err(error) if is_of_image(&error) => {
                    self.left_out.extend(batch.ids.iter().map(|&id| source.files.left_out(id, &error)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// The maps of all images that are still to come, as far as their headers tell.
    fn planned(&self) -> Vec<Planned> {
        let Some(source) = &self.source else { return Vec::new() };
        let of_batch = |OfOneSize { size, ids }: &OfOneSize| {
            let images = ids.iter().map(|&id| source.files.numbers[id]).collect();
            FeatureBatch { engine: self.engine, size: *size, images, values: &[] }.planned()
        };
        source.loader.batches()[self.next..].iter().flat_map(of_batch).collect()
    }

    /// Writes the maps of all images to the safetensors file `path`: a tensor f32 `[channels, height, width]` with the name
    /// `I.stageK` for each output `stageK` of image number I, and nothing else. They are written as they are computed. The file
    /// is written completely or not at all, and not if no image has maps. `progress` is called before the first batch and after
    /// every batch with the number of images done and the number of all images; `Break` stops the run.
    ///
    /// Returns the images without maps, in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `progress` stops the run; [`Error::Model`] if the file cannot be written; the errors of
    /// [`Features::next_batch`].
    pub fn write(
        mut self,
        path: &Path,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<LeftOut>, Error> {
        let mut file = TensorFile::create(path, self.planned())?;
        let (count, mut written) = (self.count, 0);
        loop {
            if progress(written + self.left_out.len(), count).is_break() {
                return Err(Error::Interrupted);
            }
            let Some(batch) = self.next_batch()? else { break };
            for map in batch.maps() {
                file.write(&tensor_name(map.image, map.name), map.values)?;
            }
            written += batch.len();
        }
        if written > 0 {
            file.finish()?;
        }
        self.left_out.sort_by_key(|left_out| left_out.image);
        Ok(self.left_out)
    }
}

impl FeatureBatch<'_> {
    /// The number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Whether there is no image; never true.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Height and width of the images before the network, in pixels.
    pub fn size(&self) -> Size {
        self.size
    }

    /// The maps: of each image, those of all outputs in the order of the stages.
    pub fn maps(&self) -> impl Iterator<Item = FeatureMap<'_>> {
        self.places().map(|(slot, output, shape)| {
            let FeatureBatch { engine, images, values, .. } = self;
            let name = &engine.outputs()[output].name;
            FeatureMap { image: images[slot], name, shape, values: &values[output][part(shape, slot)] }
        })
    }

    /// Names and shapes of the maps.
    fn planned(&self) -> Vec<Planned> {
        let of_place = |(slot, output, shape): (usize, usize, [usize; 3])| {
            let outputs = self.engine.outputs();
            Planned { name: tensor_name(self.images[slot], &outputs[output].name), shape: shape.to_vec() }
        };
        self.places().map(of_place).collect()
    }

    /// The position of the image, the index of the output and the shape of each map.
    fn places(&self) -> impl Iterator<Item = (usize, usize, [usize; 3])> {
        let shapes = shapes(self.engine, self.size);
        (0..self.images.len()).flat_map(move |slot| {
            let of_output = move |(output, shape)| (slot, output, shape);
            shapes.clone().into_iter().enumerate().map(of_output)
        })
    }
}

/// The name of a map in a file.
fn tensor_name(image: usize, output: &str) -> String {
    format!("{image}.{output}")
}

/// The values of the image at position `slot` of a batch, in maps of `shape`.
fn part(shape: [usize; 3], slot: usize) -> Range<usize> {
    let values = shape.iter().product::<usize>();
    slot * values..(slot + 1) * values
}

/// The shape of every output for an image of `size`: channels, height and width.
fn shapes(engine: &Engine, size: Size) -> Vec<[usize; 3]> {
    let of_output = |output| {
        let shape = engine.output_shape(output, size);
        let grid = shape.grid.expect("the outputs of a backbone are feature maps");
        [shape.columns, grid.height, grid.width]
    };
    engine.outputs().iter().map(of_output).collect()
}

/// Computes the maps of `count` images of one size into `values`.
fn compute(
    engine: &Engine,
    images: Images<'_>,
    count: usize,
    values: &mut Vec<Vec<f32>>,
) -> Result<(), RuntimeError> {
    let lengths = shapes(engine, images.size).into_iter().map(|shape| part(shape, count).start);
    values.resize_with(engine.outputs().len(), Vec::new);
    for (values, length) in values.iter_mut().zip(lengths) {
        if values.len() != length {
            // Zeros of the system take no memory before they are written to, so that a size is refused first.
            *values = Vec::new();
            *values = vec![0.0; length];
        }
    }
    run_all(engine, images, OutputLayout::ChannelsFirst, values)
}

/// Computes every output of `images` into `values`, one vector for each, in `layout`.
pub(crate) fn run_all(
    engine: &Engine,
    images: Images<'_>,
    layout: OutputLayout,
    values: &mut [Vec<f32>],
) -> Result<(), RuntimeError> {
    let memory = engine.outputs().iter().zip(values);
    let mut outputs: Vec<OutputMut<'_>> =
        memory.map(|(output, values)| OutputMut::new(&output.name, values).in_layout(layout)).collect();
    engine.run(images, &mut outputs)
}

/// Whether an error of the engine is due to the size of an image, so that others may run.
fn is_of_image(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::ImageTooLarge { .. } | RuntimeError::OutOfMemory { .. })
}

impl Files {
    /// The image files that `paths` name, the number of images, and the paths that name none.
    fn find(paths: &[impl AsRef<Path>]) -> (Files, usize, Vec<LeftOut>) {
        let (mut files, mut left_out, mut count) = (Files::default(), Vec::new(), 0);
        for path in paths {
            match image_files(path.as_ref()) {
                Ok(found) => {
                    files.numbers.extend(count..count + found.len());
                    count += found.len();
                    files.paths.extend(found);
                }
                Err(error) => {
                    left_out.push(LeftOut { image: count, problem: error.to_string() });
                    count += 1;
                }
            }
        }
        (files, count, left_out)
    }

    /// The image `id`, which the engine refuses.
    fn left_out(&self, id: usize, error: &RuntimeError) -> LeftOut {
        let problem = format!("{}: {error}", self.paths[id].display());
        LeftOut { image: self.numbers[id], problem }
    }
}

impl ImageSource {
    /// Reads the headers of `files`. Images that cannot be read, or that the network cannot process, are put into `left_out`.
    fn new(
        engine: &Engine,
        files: Files,
        options: &FeatureOptions,
        left_out: &mut Vec<LeftOut>,
    ) -> Result<Option<ImageSource>, Error> {
        let threads = check_threads(options.threads)?;
        if files.paths.is_empty() {
            return Ok(None);
        }
        let dataset = Dataset::from_files(&files.paths)?;
        let mut sizes = Vec::with_capacity(files.paths.len());
        for (id, own) in dataset.image_sizes().into_iter().enumerate() {
            match own.map(|own| options.sizing.apply(own)) {
                Err(error) => left_out.push(LeftOut { image: files.numbers[id], problem: error.to_string() }),
                Ok(size) => match engine.check_size(size) {
                    Ok(()) => sizes.push((id, size)),
                    Err(error) => left_out.push(files.left_out(id, &error)),
                },
            }
        }
        let batches = OfOneSize::batches(sizes, |size| most_images(engine, size, options.batch_size));
        let loading =
            LoaderOptions { batch_size: options.batch_size, threads, prefetch: PREFETCH, skip_corrupt: 0 };
        let loader = SizedLoader::new(dataset, options.sizing, batches, engine.transform(), &loading)?;
        Ok(Some(ImageSource { loader, files }))
    }
}

/// The most images of `size` in a batch: `batch_size`, or as many as [`BATCH_BYTES`] hold.
fn most_images(engine: &Engine, size: Size, batch_size: usize) -> usize {
    let values: usize = shapes(engine, size).iter().map(|shape| shape.iter().product::<usize>()).sum();
    let bytes = values * size_of::<f32>() + size.area() * engine.channels();
    batch_size.min(BATCH_BYTES / bytes).max(1)
}
