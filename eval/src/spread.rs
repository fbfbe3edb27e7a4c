//! The noise of single images, and the spread of an effect that follows from it.

use serde::{Deserialize, Serialize};

use crate::collected::same_length;
use crate::error::EvalError;
use crate::interval::Z;

/// The signal and the noise of each image at each output that counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageNoise {
    /// Of each output and each image the sums of `r^2` and of `(y - r)^2`.
    outputs: Vec<Vec<[f64; 2]>>,
}

impl ImageNoise {
    /// The noise of `images` images. Each of `outputs` has the values of a reference and of another model, of
    /// one image behind the other.
    ///
    /// # Errors
    /// [`EvalError::Length`] for values of different lengths, and for a length that is no multiple of the
    /// number of images.
    pub fn of<'a>(
        images: usize,
        outputs: impl IntoIterator<Item = (&'a [f32], &'a [f32])>,
    ) -> Result<ImageNoise, EvalError> {
        let mut found = ImageNoise::default();
        for (reference, other) in outputs {
            same_length("reference against other", reference.len(), other.len())?;
            let each = reference.len() / images.max(1);
            same_length("values against images", each * images, reference.len())?;
            let rows = reference.chunks(each.max(1)).zip(other.chunks(each.max(1)));
            found.outputs.push(rows.map(|(r, y)| sums(r, y)).collect());
        }
        Ok(found)
    }

    /// Adds the noise of other images at the same outputs.
    pub fn merge(&mut self, other: &ImageNoise) {
        self.outputs.resize(self.outputs.len().max(other.outputs.len()), Vec::new());
        self.outputs.iter_mut().zip(&other.outputs).for_each(|(all, own)| all.extend(own));
    }

    /// Half of the 95 % interval of the SQNR in dB, of the worst output; `None` for fewer than two images,
    /// and for an infinite SQNR.
    ///
    /// The interval is that of Student's distribution with the standard error of a ratio of sums over images,
    /// by linearisation (W. G. Cochran, "Sampling Techniques", 3rd edition, section 6.4).
    pub fn sqnr_spread_db(&self) -> Option<f64> {
        spread(&influences(self.worst()?)?)
    }

    /// Half of the 95 % interval in dB of the SQNR's gain over `whole`, another model on the same images.
    /// Noise that both have on an image cancels. `None` as for [`ImageNoise::sqnr_spread_db`].
    pub fn gain_spread_db(&self, whole: &ImageNoise) -> Option<f64> {
        let (own, base) = (influences(self.worst()?)?, influences(whole.worst()?)?);
        let paired = own.len() == base.len();
        spread(&own.iter().zip(&base).map(|(own, base)| own - base).collect::<Vec<_>>()).filter(|_| paired)
    }

    /// The output with the lowest SQNR.
    fn worst(&self) -> Option<&[[f64; 2]]> {
        let ratio = |images: &[[f64; 2]]| {
            let [signal, noise] = totals(images);
            signal / noise
        };
        self.outputs.iter().map(|images| &images[..]).min_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    }
}

/// The sums of `r^2` and of `(y - r)^2`.
fn sums(reference: &[f32], other: &[f32]) -> [f64; 2] {
    reference.iter().zip(other).fold([0.0; 2], |[signal, noise], (&r, &y)| {
        let (r, y) = (f64::from(r), f64::from(y));
        [signal + r * r, noise + (y - r) * (y - r)]
    })
}

fn totals(images: &[[f64; 2]]) -> [f64; 2] {
    images.iter().fold([0.0; 2], |[signal, noise], own| [signal + own[0], noise + own[1]])
}

/// The influence of each image on the logarithm of signal to noise; `None` if one of them is 0.
fn influences(images: &[[f64; 2]]) -> Option<Vec<f64>> {
    let [signal, noise] = totals(images);
    let share = |own: &[f64; 2]| own[0] / signal - own[1] / noise;
    (signal > 0.0 && noise > 0.0).then(|| images.iter().map(share).collect())
}

/// Half of the 95 % interval in dB of a sum of influences.
fn spread(influences: &[f64]) -> Option<f64> {
    let n = influences.len() as f64;
    if influences.len() < 2 {
        return None;
    }
    let squares: f64 = influences.iter().map(|influence| influence * influence).sum();
    let to_db = 10.0 / std::f64::consts::LN_10;
    Some(to_db * student(n - 1.0) * (n / (n - 1.0) * squares).sqrt())
}

/// The quantile 0.975 of Student's distribution with `degrees` degrees of freedom, by its expansion
/// (Abramowitz and Stegun, 26.7.5).
fn student(degrees: f64) -> f64 {
    let terms = [
        Z,
        (Z.powi(3) + Z) / 4.0,
        (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0,
        (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0,
    ];
    terms.iter().rev().fold(0.0, |sum, term| sum / degrees + term)
}

#[cfg(test)]
mod tests {
    use swinq_testing::Rng;

    use super::*;

    #[test]
    fn the_quantile_is_that_of_the_tables() {
        for (degrees, expected) in [(7.0, 2.3646), (15.0, 2.1314), (63.0, 1.9983)] {
            assert!((student(degrees) - expected).abs() < 1e-3, "{degrees}: {}", student(degrees));
        }
    }

    /// Images with the signal 1 and this noise.
    fn of(noise: &[f64]) -> ImageNoise {
        ImageNoise { outputs: vec![noise.iter().map(|&noise| [1.0, noise]).collect()] }
    }

    #[test]
    fn the_noise_is_that_of_each_image() {
        let pair = (&[3.0f32, 4.0, 1.0, 0.0][..], &[3.0f32, 5.0, 1.0, 2.0][..]);
        let mut found = ImageNoise::of(2, [pair]).unwrap();
        assert_eq!(found.outputs, [[[25.0, 1.0], [1.0, 4.0]]]);
        found.merge(&of(&[0.5]));
        assert_eq!(found.outputs[0].len(), 3);
        assert!(ImageNoise::of(3, [pair]).is_err() && ImageNoise::of(2, [(pair.0, &pair.1[1..])]).is_err());
    }

    #[test]
    fn a_gain_that_one_image_makes_has_a_wide_spread() {
        // One of eight images has most of the noise, and leaving the part in float removes it: 3 dB.
        let whole = of(&[9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let without = of(&[1.0; 8]);
        assert!(without.gain_spread_db(&whole).unwrap() > 3.0);
        // The same gain on every image has none, although the images differ.
        let halved = of(&[4.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]);
        assert!(halved.gain_spread_db(&whole).unwrap() < 1e-9 && halved.sqnr_spread_db().unwrap() > 3.0);
    }

    #[test]
    fn the_interval_has_its_coverage() {
        let mut rng = Rng(11);
        let mut covered = 0;
        for _ in 0..2000 {
            let image = |_| {
                let whole = 1.0 + 2.0 * rng.unit();
                [whole, whole * (0.45 + 0.6 * rng.unit())]
            };
            let pairs: Vec<[f64; 2]> = (0..32).map(image).collect();
            let [whole, without] =
                [0, 1].map(|which| pairs.iter().map(|pair| pair[which]).collect::<Vec<_>>());
            let gain = 10.0 * (whole.iter().sum::<f64>() / without.iter().sum::<f64>()).log10();
            let spread = of(&without).gain_spread_db(&of(&whole)).unwrap();
            covered += usize::from((gain - 10.0 * (1.0f64 / 0.75).log10()).abs() < spread);
        }
        assert!((1850..=1960).contains(&covered), "{covered}");
    }

    #[test]
    fn the_worst_output_counts_and_equal_outputs_have_no_spread() {
        let both = |a: ImageNoise, b: ImageNoise| ImageNoise { outputs: [a.outputs, b.outputs].concat() };
        let (bad, good) = (of(&[2.0, 1.0]), of(&[0.1, 0.3]));
        assert_eq!(both(good, bad.clone()).sqnr_spread_db(), bad.sqnr_spread_db());
        assert_eq!(of(&[0.0, 0.0]).sqnr_spread_db(), None);
        assert_eq!((of(&[1.0]).sqnr_spread_db(), ImageNoise::default().sqnr_spread_db()), (None, None));
        assert_eq!(of(&[1.0, 2.0]).gain_spread_db(&of(&[1.0, 2.0, 3.0])), None, "of other images");
    }
}
