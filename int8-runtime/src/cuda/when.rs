//! When a step runs: it may need many rows, or windows with padding.

use std::ops::Range;

use swinq_plan::{Geometry, Grids, Rows};

/// The batches for which a step runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct When {
    /// The rows of a batch that count, and how many of them it has.
    rows: Rows,
    range: Range<usize>,
    /// A stage whose windows must have padding.
    padded: Option<usize>,
}

impl When {
    /// For every batch.
    pub(crate) const ANY: When = When { rows: Rows::One, range: 0..usize::MAX, padded: None };

    /// For batches with at least `least` of `rows`: for every batch, if one image of the size `own` has so
    /// many.
    pub(crate) fn from_rows(rows: Rows, least: usize, own: &Geometry) -> When {
        if own.rows(rows) >= least {
            When::ANY
        } else {
            When { rows, range: least..usize::MAX, padded: None }
        }
    }

    /// For the batches that have too few rows; `None` if no batch has.
    pub(crate) fn few(&self) -> Option<When> {
        let least = self.range.start;
        (least > 0).then(|| When { range: 0..least, ..self.clone() })
    }

    /// For the same batches, if the windows of `stage` have padding.
    pub(crate) fn with_padding(&self, stage: usize) -> When {
        When { padded: Some(stage), ..self.clone() }
    }

    /// Whether the step runs for `images` images with these grids.
    pub(crate) fn holds(&self, images: usize, grids: &Grids) -> bool {
        self.range.contains(&(images * grids.rows(self.rows))) && self.suits(grids)
    }

    /// The most images with these grids, up to `most`, of a batch for which the step runs. Any number of
    /// images counts as enough rows.
    pub(crate) fn most(&self, most: usize, grids: &Grids) -> usize {
        if self.suits(grids) { most.min((self.range.end - 1) / grids.rows(self.rows)) } else { 0 }
    }

    fn suits(&self, grids: &Grids) -> bool {
        self.padded.is_none_or(|stage| grids.grid(stage).is_padded())
    }
}

#[cfg(test)]
mod tests {
    use swinq_model::{Size, SwinConfig, WindowPolicy};

    use super::*;

    /// Stages of 8 x 8 and 4 x 4 tokens at 32 pixels, in windows of 4 x 4.
    fn config() -> SwinConfig {
        SwinConfig {
            image_size: Size::square(32),
            window_size: Size::square(4).into(),
            embed_dim: 32,
            depths: vec![2, 2],
            num_heads: vec![1, 2],
            window_policy: WindowPolicy::Detection,
            ..SwinConfig::default()
        }
    }

    fn geometry(size: Size) -> Geometry {
        Geometry::new(&config(), size).unwrap()
    }

    #[test]
    fn a_launch_for_many_rows_and_the_steps_that_it_replaces_share_the_batches_of_every_size() {
        let (own, stage) = (geometry(Size::square(32)), Rows::Tokens(0));
        let many = When::from_rows(stage, 150, &own);
        let few = many.few().expect("an image has 64 tokens");
        for (size, least) in [(Size::square(32), 3), (Size::new(16, 32), 5), (Size::new(64, 48), 1)] {
            let geometry = geometry(size);
            for images in 1..8 {
                assert_eq!(many.holds(images, geometry.grids()), images >= least, "{images} of {size}");
                assert_eq!(few.holds(images, geometry.grids()), images < least, "{images} of {size}");
            }
            assert_eq!(few.most(2, geometry.grids()), 2.min(least - 1), "{size}");
            assert_eq!(many.most(2, geometry.grids()), 2, "{size}");
        }
    }

    #[test]
    fn a_launch_that_one_image_of_the_own_size_fills_replaces_its_steps_for_every_size() {
        let own = geometry(Size::square(32));
        let when = When::from_rows(Rows::Tokens(0), 64, &own);
        assert_eq!((when.few(), &when), (None, &When::ANY));
        assert!(when.holds(1, geometry(Size::square(16)).grids()));
    }

    #[test]
    fn padding_is_that_of_the_stage_and_the_size() {
        let when = When::from_rows(Rows::Windows(1), 40, &geometry(Size::square(32))).with_padding(1);
        let (whole, padded) = (geometry(Size::square(32)), geometry(Size::new(32, 40)));
        assert!(!when.holds(9, whole.grids()) && when.most(9, whole.grids()) == 0);
        assert!(!when.holds(1, padded.grids()) && when.holds(2, padded.grids()));
        assert_eq!(when.most(9, padded.grids()), 9);
        assert!(When::ANY.with_padding(0).holds(1, padded.grids()), "8 x 10 tokens in windows of 4 x 4");
    }
}
