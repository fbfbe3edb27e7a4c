//! Feature maps of image files by a backbone, image by image or in a file.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use swinq_data::{Dataset, LoaderOptions, OfOneSize, Padding, SizedLoader, Sizing, image_files};
use swinq_int8_runtime::{
    Engine, ImageLayout, Images, Output, OutputLayout, OutputMut, Pixels, RuntimeError,
};
use swinq_model::tensor_file::{Planned, TensorFile};
use swinq_model::{Batch, Size, StageOutput, SwinConfig};

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
    /// How they are padded afterwards. The maps are those of the padded images.
    pub padding: Padding,
    /// The most images of a batch, at least 1. Images of one size run together; images that are padded to a
    /// common size make batches of so many, in their order.
    pub batch_size: usize,
    /// Decoding threads; 0 is one per core.
    pub threads: usize,
}

impl Default for FeatureOptions {
    /// The images' own sizes without padding, batches of 8, one decoding thread per core.
    fn default() -> FeatureOptions {
        let (sizing, padding) = (Sizing::Keep, Padding::default());
        FeatureOptions { sizing, padding, batch_size: DEFAULT_BATCH, threads: 0 }
    }
}

/// The feature maps of image files, which a backbone computes batch by batch. Images of one size run
/// together, wherever they stand; no value depends on the other images, on their order or on the batch size,
/// unless [`FeatureOptions::padding`] pads the images of a batch to a common size. Memory holds a few images
/// and the maps of one batch.
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
    dataset: Dataset,
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
    /// The part of the map, from the top left corner on, that the image covers; the rest is that of its
    /// padding.
    pub valid: Size,
    /// f32 `[channels, height, width]`.
    pub values: &'a [f32],
}

/// The feature maps of the images of a batch.
pub struct FeatureBatch<'a> {
    engine: &'a Engine,
    size: Size,
    /// The images: number, and height and width before the padding.
    images: Vec<(usize, Size)>,
    values: &'a [Vec<f32>],
}

impl<'e> Features<'e> {
    /// Finds the images that `paths` name, files and folders for the images directly in them, in sorted
    /// order, and reads their headers. Images are numbered in this order, from 0; a path that names no image
    /// has a number too.
    ///
    /// # Errors
    /// [`Error::Argument`] for the engine of a classifier, a batch size of 0 or too many threads;
    /// [`Error::Data`] for a padding that is not possible; [`Error::Runtime`] if the GPU fails.
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
        options.padding.check()?;
        let (files, count, mut left_out) = Files::find(paths);
        let source = ImageSource::new(engine, files, &options, &mut left_out)?;
        Ok(Features { engine, source, count, left_out, next: 0, values: Vec::new() })
    }

    /// The number of images as given, with those that are left out.
    pub fn images(&self) -> usize {
        self.count
    }

    /// The image files that are read; `None` if there is none. [`turned`](crate::turned) says which of them
    /// were turned.
    pub fn dataset(&self) -> Option<&Dataset> {
        self.source.as_ref().map(|source| &source.dataset)
    }

    /// The images that were left out so far: those that cannot be read, and those that, with their padding,
    /// have a size that the network cannot process or need more memory than allowed
    /// ([`EngineOptions::max_pixels`](crate::EngineOptions)).
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
            match compute(self.engine, &batch, &mut self.values) {
                Ok(()) => {
                    let images = source.images(self.next - 1, |id| batch.ids.contains(&id));
                    let (engine, size, values) = (self.engine, batch.size, &self.values);
                    return Ok(Some(FeatureBatch { engine, size, images, values }));
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
        let of_batch = |index: usize| {
            let (size, images) = (source.loader.batches()[index].size, source.images(index, |_| true));
            FeatureBatch { engine: self.engine, size, images, values: &[] }.planned()
        };
        (self.next..source.loader.batches().len()).flat_map(of_batch).collect()
    }

    /// Writes the maps of all images to the safetensors file `path`: a tensor f32 `[channels, height, width]`
    /// with the name `I.stageK` for each output `stageK` of image number I, and nothing else. They are
    /// written as they are computed. The file is written completely or not at all, and not if no image has
    /// maps. `progress` is called before the first batch and after every batch with the number of images done
    /// and the number of all images; `Break` stops the run.
    ///
    /// Returns the images without maps, in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `progress` stops the run; [`Error::Model`] if the file cannot be written;
    /// the errors of [`Features::next_batch`].
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

    /// Height and width of the images before the network, with their padding, in pixels.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Height and width of each image without its padding, in pixels.
    pub fn valid(&self) -> impl Iterator<Item = Size> {
        self.images.iter().map(|&(_, valid)| valid)
    }

    /// The maps: of each image, those of all outputs in the order of the stages.
    pub fn maps(&self) -> impl Iterator<Item = FeatureMap<'_>> {
        self.places().map(|(slot, output, shape)| {
            let FeatureBatch { engine, images, values, .. } = self;
            let (output, values) = (&engine.outputs()[output], &values[output][part(shape, slot)]);
            let (image, valid) = images[slot];
            FeatureMap { image, name: &output.name, shape, valid: grid(engine, output, valid), values }
        })
    }

    /// Names and shapes of the maps.
    fn planned(&self) -> Vec<Planned> {
        let of_place = |(slot, output, shape): (usize, usize, [usize; 3])| {
            let outputs = self.engine.outputs();
            Planned { name: tensor_name(self.images[slot].0, &outputs[output].name), shape: shape.to_vec() }
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

/// The shape of every output for an image of `size`: channels, height and width. Logits have height and width
/// 1.
fn shapes(engine: &Engine, size: Size) -> Vec<[usize; 3]> {
    let of_output = |output: &Output| {
        let grid = grid(engine, output, size);
        [engine.output_shape(output, size).columns, grid.height, grid.width]
    };
    engine.outputs().iter().map(of_output).collect()
}

/// Height and width of an output for an image of `size`; 1 for logits.
fn grid(engine: &Engine, output: &Output, size: Size) -> Size {
    engine.output_shape(output, size).grid.unwrap_or(Size::square(1))
}

/// Computes every output of `batch` into `values`, f32 with the channels first.
pub(crate) fn compute(
    engine: &Engine,
    batch: &Batch,
    values: &mut Vec<Vec<f32>>,
) -> Result<(), RuntimeError> {
    let (size, count) = (batch.size, batch.len());
    match batch.values() {
        None => compute_images(engine, Images::new(size, &batch.pixels[..]), count, values),
        Some(pixels) => {
            let (pixels, layout) = (Pixels::F32(&pixels), ImageLayout::ChannelsFirst);
            compute_images(engine, Images { size, pixels, layout }, count, values)
        }
    }
}

/// Computes every output of `count` images of one size into `values`, f32 with the channels first.
pub(crate) fn compute_images(
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
    use RuntimeError::{ImageTooLarge, Model, OutOfMemory};
    matches!(error, Model(_) | ImageTooLarge { .. } | OutOfMemory { .. })
}

impl Files {
    /// The image files that `paths` name, the number of images, and the paths that name none.
    fn find(paths: &[impl AsRef<Path>]) -> (Files, usize, Vec<LeftOut>) {
        let (mut files, mut left_out, mut count) = (Files::default(), Vec::new(), 0);
        for path in paths {
            for found in image_files(path.as_ref()) {
                match found {
                    Ok(file) => {
                        files.numbers.push(count);
                        files.paths.push(file);
                    }
                    Err(error) => left_out.push(LeftOut { image: count, problem: error.to_string() }),
                }
                count += 1;
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
    /// Reads the headers of `files`. Images that cannot be read, or that the network cannot process, are put
    /// into `left_out`.
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
        for (id, own) in dataset.image_sizes(engine.transform().orientation).into_iter().enumerate() {
            match own.map(|own| options.sizing.apply(own, engine.transform().size_divisor)) {
                Err(error) => left_out.push(LeftOut { image: files.numbers[id], problem: error.to_string() }),
                // An image that is too large is not decoded.
                Ok(size) => match engine.check_image(options.padding.size_of([size])) {
                    Ok(()) => sizes.push((id, size)),
                    Err(error) if is_of_image(&error) => left_out.push(files.left_out(id, &error)),
                    Err(error) => return Err(error.into()),
                },
            }
        }
        let most = |size| match options.padding.to_common {
            true => options.batch_size,
            false => most_images(engine.config(), size, options.batch_size),
        };
        let mut batches = OfOneSize::batches(sizes, options.padding, most);
        if options.padding.to_common {
            // The common size may be too large although no image is.
            let refused = batches.extract_if(.., |batch| engine.check_image(batch.size).is_err());
            for OfOneSize { size, ids, .. } in refused.collect::<Vec<_>>() {
                let problem = |id: usize| {
                    let path = files.paths[id].display();
                    format!(
                        "{path}: {} images padded to {size} are too large; use smaller batches",
                        ids.len()
                    )
                };
                left_out
                    .extend(ids.iter().map(|&id| LeftOut { image: files.numbers[id], problem: problem(id) }));
            }
        }
        let loading =
            LoaderOptions { batch_size: options.batch_size, threads, prefetch: PREFETCH, skip_corrupt: 0 };
        let loader =
            SizedLoader::new(dataset.clone(), options.sizing, batches, engine.transform(), &loading)?;
        Ok(Some(ImageSource { loader, files, dataset }))
    }

    /// The images of batch `index` that `taken` takes by their ids: number, and size before the padding.
    fn images(&self, index: usize, taken: impl Fn(usize) -> bool) -> Vec<(usize, Size)> {
        let OfOneSize { ids, valid, .. } = &self.loader.batches()[index];
        let images = ids.iter().zip(valid).filter(|(id, _)| taken(**id));
        images.map(|(&id, &valid)| (self.files.numbers[id], valid)).collect()
    }
}

/// The most images of `size` in a batch for a network of the architecture `config`: `batch_size`, or as many
/// as [`BATCH_BYTES`] hold. At least 1, and `batch_size` for a size that the network cannot process.
pub(crate) fn most_images(config: &SwinConfig, size: Size, batch_size: usize) -> usize {
    let (Ok(grids), stages) = (config.grids(size), config.stages()) else { return batch_size };
    let of_output = |output: &StageOutput| stages[output.stage].dim * grids[output.stage].tokens();
    let values: usize = config.outputs.iter().map(of_output).sum();
    let bytes = values * size_of::<f32>() + size.area() * config.in_chans;
    batch_size.min(BATCH_BYTES / bytes).max(1)
}
