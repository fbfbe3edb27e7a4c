//! Distance of a backbone's feature maps from those of another on the same images.

use swinq_model::Size;

use crate::collected::same_length;
use crate::distortion::Distortion;
use crate::error::EvalError;
use crate::results::{ImageResult, ModelResult, OutputResult};

/// Number of images that are listed, from the worst.
const LISTED: usize = 12;

/// The distances of the maps of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageErrors {
    /// Position of the image in the data set's full list.
    pub id: usize,
    /// Height and width before the network, in pixels.
    pub size: [usize; 2],
    /// The distance of each output.
    pub outputs: Vec<Distortion>,
}

/// The distances of the maps of all images. They are kept by image, so that sums over images are made in one
/// order, whatever the batches were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapErrors {
    /// Names of the outputs.
    outputs: Vec<String>,
    /// By ascending id, once they are complete.
    images: Vec<ImageErrors>,
}

impl MapErrors {
    /// No images yet, of a backbone with outputs of these names.
    pub fn of_outputs(outputs: Vec<String>) -> MapErrors {
        MapErrors { outputs, images: Vec::new() }
    }

    /// Adds the images `ids`, which have the size `size`. Both `reference` and `other` hold the maps of each
    /// output, of one image behind the other.
    ///
    /// # Errors
    /// [`EvalError::Length`] for maps that do not belong to these images and outputs;
    /// [`EvalError::NonFiniteMap`].
    pub fn add(
        &mut self,
        ids: &[usize],
        size: Size,
        reference: &[Vec<f32>],
        other: &[Vec<f32>],
    ) -> Result<(), EvalError> {
        for maps in [reference, other] {
            same_length("maps against outputs", maps.len(), self.outputs.len())?;
        }
        for (index, &id) in ids.iter().enumerate() {
            let mut errors = ImageErrors { id, size: [size.height, size.width], outputs: Vec::new() };
            for ((name, reference), other) in self.outputs.iter().zip(reference).zip(other) {
                same_length("maps of two models", reference.len(), other.len())?;
                let each = reference.len() / ids.len();
                let own = index * each..(index + 1) * each;
                let mut error = Distortion::default();
                error
                    .update(&reference[own.clone()], &other[own])
                    .map_err(|_| EvalError::NonFiniteMap { image: id, output: name.clone() })?;
                errors.outputs.push(error);
            }
            self.images.push(errors);
        }
        Ok(())
    }

    /// Adds images; each has a distance for every output.
    pub(crate) fn append(&mut self, images: Vec<ImageErrors>) {
        self.images.extend(images);
    }

    /// Puts the images into the order of their ids.
    pub fn sort(&mut self) {
        self.images.sort_by_key(|image| image.id);
    }

    /// Names of the outputs.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The images.
    pub fn images(&self) -> &[ImageErrors] {
        &self.images
    }

    /// The distance of each output over all images, the sums being made in the order of the images.
    pub fn totals(&self) -> Vec<Distortion> {
        let mut totals = vec![Distortion::default(); self.outputs.len()];
        for image in &self.images {
            totals.iter_mut().zip(&image.outputs).for_each(|(total, error)| total.merge(error));
        }
        totals
    }

    /// The figures of each output for these distances.
    fn figures(&self, errors: &[Distortion]) -> Vec<OutputResult> {
        self.outputs.iter().zip(errors).map(|(name, error)| OutputResult::new(name, error)).collect()
    }

    /// The images with the lowest SQNR at any output, worst first. Images whose maps are equal are left out.
    fn worst(&self, name_of: &dyn Fn(usize) -> String) -> Vec<ImageResult> {
        let lowest =
            |image: &ImageErrors| image.outputs.iter().map(Distortion::sqnr_db).fold(f64::INFINITY, f64::min);
        let mut images: Vec<(f64, &ImageErrors)> =
            self.images.iter().map(|image| (lowest(image), image)).collect();
        images.retain(|(db, _)| *db < f64::INFINITY);
        images.sort_by(|(a, x), (b, y)| a.total_cmp(b).then(x.id.cmp(&y.id)));
        let of_image = |(_, image): (f64, &ImageErrors)| ImageResult {
            id: image.id,
            image: Some(name_of(image.id)),
            size: image.size,
            outputs: self.figures(&image.outputs),
        };
        images.into_iter().take(LISTED).map(of_image).collect()
    }
}

impl ModelResult {
    /// Stores how far the maps of the model are from the baseline's. `name_of` names an image by its position
    /// in the data set.
    ///
    /// # Errors
    /// [`EvalError::NoImages`].
    pub fn set_maps_against(
        &mut self,
        errors: &MapErrors,
        name_of: &dyn Fn(usize) -> String,
    ) -> Result<(), EvalError> {
        if errors.images.is_empty() {
            return Err(EvalError::NoImages);
        }
        self.images = Some(errors.images.len());
        self.outputs = errors.figures(&errors.totals());
        let lowest = |figure: &dyn Fn(&OutputResult) -> f64| self.outputs.iter().map(figure).reduce(f64::min);
        (self.sqnr_db, self.cosine) = (lowest(&|o| o.sqnr_db), lowest(&|o| o.cosine));
        self.worst_images = errors.worst(name_of);
        Ok(())
    }

    /// The output with the lowest SQNR; `None` for a classifier, and for a model that was not compared.
    pub fn lowest_output(&self) -> Option<&OutputResult> {
        self.outputs.iter().min_by(|a, b| a.sqnr_db.total_cmp(&b.sqnr_db))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Precision;

    /// Two outputs of one and two values: the reference is 1, the noise as given by image and output.
    fn add(errors: &mut MapErrors, ids: &[usize], noise: &[[f32; 2]]) {
        let reference = vec![vec![1.0; ids.len()], vec![1.0; 2 * ids.len()]];
        let first = noise.iter().map(|[a, _]| 1.0 + a).collect();
        let second = noise.iter().flat_map(|[_, b]| [1.0 + b, 1.0 - b]).collect();
        errors.add(ids, Size::new(3, 4), &reference, &[first, second]).unwrap();
    }

    fn errors() -> MapErrors {
        MapErrors::of_outputs(vec!["stage1".to_owned(), "stage2".to_owned()])
    }

    #[test]
    fn figures_are_those_of_all_images_and_the_worst_come_first() {
        let mut found = errors();
        add(&mut found, &[5, 1], &[[0.0, 0.25], [0.5, 0.0]]);
        add(&mut found, &[3], &[[0.0, 0.0]]);
        found.sort();
        let mut model = ModelResult::new("q", Precision::Int8, "cpu");
        model.set_maps_against(&found, &|id| format!("{id}.png")).unwrap();
        // The noise energies are 1/4 of 3 values of 1, and 2/16 of 6.
        let [first, second] = &model.outputs[..] else { panic!("{:?}", model.outputs) };
        assert!((first.sqnr_db - 10.0 * 12f64.log10()).abs() < 1e-12);
        assert!((first.relative_error.unwrap() - (1.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert!((second.sqnr_db - 10.0 * 48f64.log10()).abs() < 1e-12);
        assert_eq!((model.images, model.sqnr_db), (Some(3), Some(first.sqnr_db)));
        assert_eq!(model.lowest_output().unwrap().name, "stage1");
        let worst: Vec<&str> = model.worst_images.iter().flat_map(|image| image.image.as_deref()).collect();
        assert_eq!(worst, ["1.png", "5.png"], "image 3 has equal maps");
        assert_eq!(model.worst_images[0].size, [3, 4]);
    }

    #[test]
    fn parts_in_any_order_have_the_sums_of_the_whole() {
        let noise: Vec<[f32; 2]> = (0..9).map(|i| [0.1 / (i + 1) as f32, 0.07 * i as f32]).collect();
        let ids: Vec<usize> = (0..9).collect();
        let (mut whole, mut first, mut rest) = (errors(), errors(), errors());
        add(&mut whole, &ids, &noise);
        add(&mut rest, &ids[..4], &noise[..4]);
        add(&mut first, &ids[4..], &noise[4..]);
        first.append(rest.images);
        first.sort();
        assert_eq!(first, whole);
        assert_eq!(first.totals(), whole.totals());
        let words = first.images[3].outputs[1].words();
        assert_eq!(Distortion::from_words(words), Some(first.images[3].outputs[1]));
        assert_eq!(Distortion::from_words([u64::MAX; Distortion::WORDS]), None);
    }

    #[test]
    fn impossible_maps_are_refused() {
        let maps = |value: f32| vec![vec![value], vec![0.0, 0.0]];
        let mut found = errors();
        let error = found.add(&[7], Size::square(1), &maps(1.0), &maps(f32::NAN)).unwrap_err().to_string();
        assert!(error.contains("stage1") && error.contains("image 7"), "{error}");
        assert!(found.add(&[7], Size::square(1), &maps(1.0), &[vec![1.0]]).is_err());
        let mut model = ModelResult::new("q", Precision::Int8, "cpu");
        assert!(matches!(model.set_maps_against(&errors(), &|_| String::new()), Err(EvalError::NoImages)));
    }
}
