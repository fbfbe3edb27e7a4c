//! The grids of images of any size, computed in the graph by the rules of the network.

use swinq_model::{GridRule, Lengths, Limit, Shifted, Side, Size, SizeRules, StageOutput};
use swinq_numerics::ImageEdge;

use super::Lowering;
use super::integer::Integer;
use crate::graph::Attribute;

/// Height and width of an image or of a grid.
#[derive(Clone, Debug)]
pub(super) struct Sides {
    pub height: Integer,
    pub width: Integer,
}

impl From<Size> for Sides {
    fn from(size: Size) -> Sides {
        Sides { height: Integer::from(size.height), width: Integer::from(size.width) }
    }
}

/// An axis of a grid, with all that the order of rows depends on.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// Tokens.
    pub side: Integer,
    /// Tokens of a window.
    pub window: i64,
    /// Windows.
    pub windows: Integer,
    /// Tokens with the padding of whole windows.
    pub padded: Integer,
    /// The cyclic shift of odd blocks.
    pub shift: Integer,
}

/// The grid of a stage for images of any size.
#[derive(Clone, Debug)]
pub(super) struct FreeGrid {
    pub rule: GridRule,
    pub axes: [Axis; 2],
    pub tokens: Integer,
}

impl FreeGrid {
    /// Height and width.
    pub fn sides(&self) -> Sides {
        let [height, width] = [&self.axes[0], &self.axes[1]].map(|axis| axis.side.clone());
        Sides { height, width }
    }
}

impl Lowering<'_> {
    /// Height and width of the images `input`, whose height is axis `first`; a graph fails for images beyond
    /// the limits of the network.
    pub(super) fn image_sides(&mut self, input: &str, first: i64, rules: &SizeRules) -> Sides {
        let range = [Attribute::Int("start", first), Attribute::Int("end", first + 2)];
        let shape = self.graph.shared("Shape", "image.shape", &[input], &range);
        let [height, width] = [("height", 0), ("width", 1)].map(|(side, at)| {
            let at = self.scalar(&Integer::Known(at));
            let axis = [Attribute::Int("axis", 0)];
            Integer::Value(self.graph.shared("Gather", &format!("image.{side}"), &[&shape, &at], &axis))
        });
        self.limited("image", "pixels", Sides { height, width }, &rules.limits)
    }

    /// The grids of all stages for images of `image` pixels.
    pub(super) fn free_grids(&mut self, image: &Sides, rules: &SizeRules) -> Vec<FreeGrid> {
        let patch = rules.patch as i64;
        let mut sides = [("height", &image.height), ("width", &image.width)].map(|(side, pixels)| {
            let name = format!("layers.0.grid.{side}");
            match rules.edge {
                ImageEdge::Padded => self.divided_up(&name, pixels, patch),
                ImageEdge::Cut => self.arithmetic("Div", &name, pixels, &Integer::Known(patch)),
            }
        });
        let mut grids = Vec::new();
        for (stage, rule) in rules.stages.iter().enumerate() {
            let [height, width] = sides;
            let stage_name = StageOutput::usual_name(stage);
            let found = self.limited(&stage_name, "tokens", Sides { height, width }, &rule.limits);
            sides = [("height", &found.height), ("width", &found.width)].map(|(side, tokens)| {
                self.divided_up(&format!("layers.{}.grid.{side}", stage + 1), tokens, 2)
            });
            grids.push(self.free_grid(stage, rule, found));
        }
        grids
    }

    fn free_grid(&mut self, stage: usize, rule: &GridRule, sides: Sides) -> FreeGrid {
        let name = format!("layers.{stage}.grid");
        let tokens = self.arithmetic("Mul", &format!("{name}.tokens"), &sides.height, &sides.width);
        let shorter = match rule.shifted {
            Shifted::ShorterSideLongerThan(_) if rule.is_shifted() => Some(self.shorter(&name, &sides)),
            _ => None,
        };
        let axes = [(Side::Height, sides.height), (Side::Width, sides.width)].map(|(of, side)| {
            let (name, window) = (format!("{name}.{of}"), of.of(rule.window) as i64);
            let windows = self.divided_up(&format!("{name}.windows"), &side, window);
            let padded = match rule.is_never_padded() {
                true => side.clone(),
                false => self.arithmetic("Mul", &format!("{name}.padded"), &windows, &Integer::Known(window)),
            };
            let shift = of.of(rule.shift);
            let shift = match (rule.shifted, &shorter) {
                (_, _) if shift == 0 => Integer::Known(0),
                (Shifted::ShorterSideLongerThan(least), Some(shorter)) => {
                    self.shift_beyond(&name, least, shorter, shift)
                }
                (Shifted::AxesLongerThan(window), _) => self.shift_beyond(&name, of.of(window), &side, shift),
                _ => Integer::from(shift),
            };
            Axis { side, window, windows, padded, shift }
        });
        FreeGrid { rule: rule.clone(), axes, tokens }
    }

    /// `shift` if `side` has more than `least` tokens, else 0.
    fn shift_beyond(&mut self, name: &str, least: usize, side: &Integer, shift: usize) -> Integer {
        let [least, side, shift, none] =
            [least.into(), side.clone(), shift.into(), Integer::Known(0)].map(|x| self.scalar(&x));
        let longer = self.graph.shared("Less", &format!("{name}.is_shifted"), &[&least, &side], &[]);
        Integer::Value(self.graph.shared("Where", &format!("{name}.shift"), &[&longer, &shift, &none], &[]))
    }

    fn shorter(&mut self, name: &str, sides: &Sides) -> Integer {
        self.arithmetic("Min", &format!("{name}.shorter_side"), &sides.height, &sides.width)
    }

    /// `sides` of `of`, in `unit`, behind an operator for each limit that fails where the limit does not
    /// hold.
    fn limited(&mut self, of: &str, unit: &str, mut sides: Sides, limits: &[Limit]) -> Sides {
        for &Limit { side, lengths } in limits {
            let rule = match lengths {
                Lengths::MultiplesOf(1) | Lengths::AtLeast(0 | 1) => continue,
                Lengths::MultiplesOf(number) => format!("multiple_of_{number}"),
                Lengths::AtLeast(least) => format!("at_least_{least}"),
                Lengths::Exactly(only) => format!("exactly_{only}"),
            };
            let name = format!("{of}.{side}.must_be.{rule}_{unit}");
            let length = match side {
                Side::Height => sides.height.clone(),
                Side::Width => sides.width.clone(),
                Side::Shorter => self.shorter(&format!("{name}.found"), &sides),
            };
            let excess = self.excess(&name, &length, lengths);
            let checked = if side == Side::Width { &mut sides.width } else { &mut sides.height };
            let passed = checked.clone();
            *checked = self.passed_unless(&name, &excess, &passed);
        }
        sides
    }

    /// 0 if `length` is one of `lengths`, else a larger number.
    fn excess(&mut self, name: &str, length: &Integer, lengths: Lengths) -> Integer {
        let name = |part: &str| format!("{name}.{part}");
        match lengths {
            Lengths::MultiplesOf(number) => {
                self.arithmetic("Mod", &name("rest"), length, &Integer::from(number))
            }
            Lengths::AtLeast(least) => {
                let missing = self.arithmetic("Sub", &name("missing"), &Integer::from(least), length);
                self.arithmetic("Max", &name("rest"), &missing, &Integer::Known(0))
            }
            Lengths::Exactly(only) => {
                let difference = self.arithmetic("Sub", &name("difference"), length, &Integer::from(only));
                self.arithmetic("Mul", &name("rest"), &difference, &difference)
            }
        }
    }

    /// `x`, of a node named `name` that fails unless `excess` is 0: one element cannot be split into a part
    /// of more. Runtimes remove a Reshape that fails, and OpenVINO reads zeros where Gather leaves its
    /// operand.
    fn passed_unless(&mut self, name: &str, excess: &Integer, x: &Integer) -> Integer {
        let (excess, x) = (self.scalar(excess), self.scalar(x));
        let size = self.reshaped(&format!("{name}.rest.list"), &excess, &[1]);
        let one = self.graph.list(&[1]);
        let size = self.graph.shared("Add", &format!("{name}.size"), &[&size, &one], &[]);
        let list = self.reshaped(&format!("{name}.list"), &x, &[1]);
        let axis = [Attribute::Int("axis", 0)];
        let part = self.graph.shared("Split", name, &[&list, &size], &axis);
        let first = self.scalar(&Integer::Known(0));
        Integer::Value(self.graph.shared("Gather", &format!("{name}.passed"), &[&part, &first], &axis))
    }
}
