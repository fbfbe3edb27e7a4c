//! The input, and its patches.

use swinq_numerics::ImageEdge;
use swinq_plan::{Element, Patches};

use super::grid::Sides;
use super::integer::Integer;
use super::{Lowering, Sizing};
use crate::graph::{Attribute, Dim};
use crate::options::InputForm;
use crate::proto::data_type;

impl Lowering<'_> {
    /// The input, and its patches `[batch, patches, channels patch^2]`.
    pub(super) fn patches(&mut self, op: &Patches, normalisation: (&[f32], &[f32])) -> String {
        debug_assert_eq!(self.plan.tensor(self.plan.image()).element, Element::Pixel);
        let (channels, side) = (op.lookup.len(), op.patch as i64);
        let rows = match self.options.input {
            InputForm::Normalized => {
                let x = self.images(channels);
                let x = self.whole_patches(op, x, 2);
                let grid = self.grid(0);
                // `[batch, channels, height, side, width * side]`, then the rows of pixels of each row of
                // patches together.
                let shape =
                    [Integer::Known(0), channels.into(), grid.height, side.into(), Integer::Known(-1)];
                let shape = self.sizes("patch_embed.grid.shape", &shape);
                let x = self.graph.node("Reshape", "patch_embed.grid", &[&x, &shape], &[]);
                let x = self.transpose("patch_embed.lines", &x, &[0, 2, 1, 3, 4]);
                let x = self.reshaped("patch_embed.columns", &x, &[0, 0, channels as i64 * side, -1, side]);
                self.transpose("patch_embed.patches", &x, &[0, 1, 3, 2, 4])
            }
            InputForm::Pixels => {
                let x = self.pixels(channels, normalisation);
                let x = self.whole_patches(op, x, 1);
                let grid = self.grid(0);
                let pixels = side * channels as i64;
                let shape = [Integer::Known(0), Integer::Known(-1), side.into(), grid.width, pixels.into()];
                let shape = self.sizes("patch_embed.grid.shape", &shape);
                let x = self.graph.node("Reshape", "patch_embed.grid", &[&x, &shape], &[]);
                let x = self.transpose("patch_embed.lines", &x, &[0, 1, 3, 2, 4]);
                let x = self.reshaped("patch_embed.pixels", &x, &[0, -1, side * side, channels as i64]);
                self.transpose("patch_embed.patches", &x, &[0, 1, 3, 2])
            }
        };
        let patches = match self.grid(0) {
            Sides { height: Integer::Known(height), width: Integer::Known(width) } => height * width,
            _ => -1,
        };
        let shape = self.graph.list(&[0, patches, channels as i64 * side * side]);
        self.graph.node("Reshape", "patch_embed.rows", &[&rows, &shape], &[])
    }

    /// The sizes of an input's height and width.
    fn image_dims(&self) -> [Dim; 2] {
        match self.sizing {
            Sizing::Fixed(geometry) => {
                let image = geometry.image();
                [image.height, image.width].map(Dim::Fixed)
            }
            Sizing::Free(_) => ["height", "width"].map(|side| Dim::Free(side.to_owned())),
        }
    }

    /// The input of normalised images.
    fn images(&mut self, channels: usize) -> String {
        let [height, width] = self.image_dims();
        let shape = [self.batch(), Dim::Fixed(channels), height, width];
        let x = self.graph.input("images", data_type::FLOAT, &shape);
        if !self.graph.is_half() {
            return x;
        }
        let to = Attribute::Int("to", i64::from(data_type::FLOAT16));
        self.graph.node("Cast", "images.f16", &[&x], &[to])
    }

    /// The input of bytes, normalised as docs/inference.md states: `(p / 255 - mean) / std`.
    fn pixels(&mut self, channels: usize, (mean, std): (&[f32], &[f32])) -> String {
        let [height, width] = self.image_dims();
        let shape = [self.batch(), height, width, Dim::Fixed(channels)];
        let x = self.graph.input("pixels", data_type::UINT8, &shape);
        let to = Attribute::Int("to", i64::from(data_type::FLOAT));
        let mut x = self.graph.node("Cast", "pixels.f32", &[&x], &[to]);
        for (op, what, values) in [("Div", "scale", &[255.0][..]), ("Sub", "mean", mean), ("Div", "std", std)]
        {
            let constant = self.graph.floats32(&format!("transform.{what}"), &[values.len()], values);
            x = self.graph.node(op, &format!("pixels.{what}"), &[&x, &constant], &[]);
        }
        if self.graph.is_half() {
            let to = Attribute::Int("to", i64::from(data_type::FLOAT16));
            x = self.graph.node("Cast", "pixels.f16", &[&x], &[to]);
        }
        x
    }

    /// The images `x`, whose height is axis `first`, with whole patches: zeros are added, or pixels are left
    /// out. Where the size is free, this makes the grids.
    fn whole_patches(&mut self, op: &Patches, x: String, first: usize) -> String {
        let side = Integer::from(op.patch);
        let image = match self.sizing {
            Sizing::Fixed(geometry) => Sides::from(geometry.image()),
            Sizing::Free(rules) => {
                let input = if first == 2 { "images" } else { "pixels" };
                let image = self.image_sides(input, first as i64, rules);
                self.grids = self.free_grids(&image, rules);
                if rules.takes_whole_patches_only() {
                    return x;
                }
                image
            }
        };
        let grid = self.grid(0);
        let [height, width] = [("height", &grid.height), ("width", &grid.width)]
            .map(|(name, grid)| self.arithmetic("Mul", &format!("patch_embed.{name}"), grid, &side));
        match op.edge {
            ImageEdge::Padded => self.padded_images(x, first, &image, &Sides { height, width }),
            ImageEdge::Cut => self.cut_images(x, first, &image, &Sides { height, width }),
        }
    }

    fn padded_images(&mut self, x: String, first: usize, image: &Sides, whole: &Sides) -> String {
        let below = self.arithmetic("Sub", "patch_embed.below", &whole.height, &image.height);
        let right = self.arithmetic("Sub", "patch_embed.right", &whole.width, &image.width);
        if (&below, &right) == (&Integer::Known(0), &Integer::Known(0)) {
            return x;
        }
        let mut pads = vec![Integer::Known(0); 8];
        (pads[4 + first], pads[5 + first]) = (below, right);
        let pads = self.sizes("patch_embed.pads", &pads);
        self.graph.node("Pad", "patch_embed.padded", &[&x, &pads], &[])
    }

    fn cut_images(&mut self, x: String, first: usize, image: &Sides, whole: &Sides) -> String {
        if (&image.height, &image.width) == (&whole.height, &whole.width) {
            return x;
        }
        let starts = self.graph.list(&[0, 0]);
        let ends = self.sizes("patch_embed.ends", &[whole.height.clone(), whole.width.clone()]);
        let axes = self.graph.list(&[first as i64, first as i64 + 1]);
        self.graph.node("Slice", "patch_embed.cut", &[&x, &starts, &ends, &axes], &[])
    }
}
