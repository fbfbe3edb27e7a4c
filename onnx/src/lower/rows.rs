//! Norms, and the order of rows: windows, their reverse, and merging.

use swinq_numerics::RowMap;
use swinq_plan::{Merge, Norm, Order};

use super::grid::{Axis, FreeGrid};
use super::integer::Integer;
use super::{Lowering, Sizing};
use crate::graph::Attribute;

/// The rows of a tensor that another one has, by number.
enum Index {
    /// Numbers; `tokens` is a row of zeros behind the last one. The constant has this name.
    Known { name: String, rows: Vec<i64>, tokens: usize },
    /// A value of the graph, whose number of the last row and one more may stand for a row of zeros.
    Value { name: String, padded: bool },
}

impl Lowering<'_> {
    /// LayerNorm of each row of `x`. The result is named after the norm.
    pub(super) fn layer_norm(&mut self, name: &str, norm: &Norm<'_>, x: &str) -> String {
        let columns = norm.gamma.len();
        let gamma = self.graph.floats(&format!("{name}.weight"), &[columns], &norm.gamma.read());
        let beta = self.graph.floats(&format!("{name}.bias"), &[columns], &norm.beta.read());
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", norm.eps)];
        self.graph.node("LayerNormalization", name, &[x, &gamma, &beta], &attributes)
    }

    /// The rows of `x` in the order of the windows: cyclic shift, padding with zeros and window partition in
    /// one Gather.
    pub(super) fn gather_windows(&mut self, name: &str, order: Order, x: String) -> String {
        let Order::Windows { stage: of, shifted } = order else { return x };
        let index = match self.sizing {
            Sizing::Fixed(geometry) => {
                let shift = geometry.grid(of).shift_of(shifted).short();
                known(format!("layers.{of}.windows.shift{shift}"), geometry.map(order))
            }
            Sizing::Free(_) => self.windows_of_free(of, shifted),
        };
        self.gather(&format!("{name}.windows"), index, &x)
    }

    /// The rows of windows back in the order of the tokens: window reverse, crop and reverse shift.
    pub(super) fn scatter_windows(&mut self, name: &str, order: Order, x: String) -> String {
        let Order::Windows { stage: of, shifted } = order else { return x };
        let index = match self.sizing {
            Sizing::Fixed(geometry) => {
                let map = geometry.map(order);
                let mut inverse = vec![0; map.tokens()];
                for (row, token) in sources(map).into_iter().enumerate() {
                    if token < map.tokens() as i64 {
                        inverse[token as usize] = row as i64;
                    }
                }
                let shift = geometry.grid(of).shift_of(shifted).short();
                let name = format!("layers.{of}.tokens.shift{shift}");
                Index::Known { name, tokens: map.rows().len(), rows: inverse }
            }
            Sizing::Free(_) => self.tokens_of_free(of, shifted),
        };
        self.gather(&format!("{name}.tokens"), index, &x)
    }

    /// 2 x 2 tokens side by side, `columns` in all, and their norm if there is one.
    pub(super) fn merge(&mut self, name: &str, merge: &Merge<'_>, x: &str, columns: usize) -> String {
        let (index, rows) = match self.sizing {
            Sizing::Fixed(geometry) => {
                let map = geometry.merge(merge.stage);
                (known(format!("layers.{}.merge", merge.stage), map), (map.rows().len() / 4) as i64)
            }
            Sizing::Free(_) => (self.merge_of_free(merge.stage), -1),
        };
        let x = self.gather(&format!("{name}.tokens"), index, x);
        let shape = self.graph.list(&[0, rows, columns as i64]);
        let x = self.graph.node("Reshape", &format!("{name}.merged"), &[&x, &shape], &[]);
        match &merge.norm {
            Some(norm) => self.layer_norm(name, norm, &x),
            None => x,
        }
    }

    /// The rows `index` of `x`.
    fn gather(&mut self, name: &str, index: Index, x: &str) -> String {
        let padded = match &index {
            Index::Known { rows, tokens, .. } => rows.contains(&(*tokens as i64)),
            Index::Value { padded, .. } => *padded,
        };
        let x = if padded {
            // One row of zeros behind the last token.
            let pads = self.graph.list(&[0, 0, 0, 0, 1, 0]);
            self.graph.node("Pad", &format!("{name}.padded"), &[x, &pads], &[])
        } else {
            x.to_owned()
        };
        let index = match index {
            Index::Known { name, rows, .. } => self.graph.ints(&name, &[rows.len()], &rows),
            Index::Value { name, .. } => name,
        };
        self.graph.node("Gather", name, &[&x, &index], &[Attribute::Int("axis", 1)])
    }

    /// For each row in the order of windows the number of its token.
    fn windows_of_free(&mut self, stage: usize, shifted: bool) -> Index {
        let (grid, shifted) = self.free_grid_of(stage, shifted);
        let name = format!("layers.{stage}.windows.{}", word(shifted));
        let [height, width] = &grid.axes;
        let padded = !grid.rule.is_never_padded();
        let none = padded.then_some(&grid.tokens);
        let first = grid.rule.shifts_first;
        let rows = self.sources_along(&format!("{name}.rows"), height, (shifted, first), &width.side, none);
        let columns =
            self.sources_along(&format!("{name}.columns"), width, (shifted, first), &Integer::Known(1), none);
        let rows = self.reshaped(&format!("{name}.rows.apart"), &rows, &[-1, 1, height.window, 1]);
        let columns = self.reshaped(&format!("{name}.columns.apart"), &columns, &[1, -1, 1, width.window]);
        self.summed(&name, [&rows, &columns], none)
    }

    /// For each place of an axis of the padded and shifted grid the place of its token, times `stride`;
    /// `none` for padding.
    fn sources_along(
        &mut self,
        name: &str,
        axis: &Axis,
        (shifted, shifts_first): (bool, bool),
        stride: &Integer,
        none: Option<&Integer>,
    ) -> String {
        let places = self.range(&format!("{name}.places"), 0, &axis.padded);
        let period = if shifts_first { &axis.side } else { &axis.padded };
        let sources = match shifted {
            true => self.turned(&format!("{name}.sources"), &places, &axis.shift, period),
            false => places.clone(),
        };
        let inner = if shifts_first { &places } else { &sources };
        self.strided(name, &sources, (inner, &axis.side), stride, none)
    }

    /// For each token the number of its row in the order of windows.
    fn tokens_of_free(&mut self, stage: usize, shifted: bool) -> Index {
        let (grid, shifted) = self.free_grid_of(stage, shifted);
        let name = format!("layers.{stage}.tokens.{}", word(shifted));
        let [height, width] = &grid.axes;
        let tokens = height.window * width.window;
        let row_of_windows =
            self.arithmetic("Mul", &format!("layers.{stage}.row_of_windows"), &width.windows, &tokens.into());
        let first = grid.rule.shifts_first;
        let rows = (&row_of_windows, &Integer::Known(width.window));
        let rows = self.places_along(&format!("{name}.rows"), height, (shifted, first), rows);
        let columns = (&Integer::Known(tokens), &Integer::Known(1));
        let columns = self.places_along(&format!("{name}.columns"), width, (shifted, first), columns);
        let rows = self.reshaped(&format!("{name}.rows.apart"), &rows, &[-1, 1]);
        self.summed(&name, [&rows, &columns], None)
    }

    /// For each token of an axis the number of its window times one stride, and its place in the window times
    /// another.
    fn places_along(
        &mut self,
        name: &str,
        axis: &Axis,
        (shifted, shifts_first): (bool, bool),
        (of_window, inside): (&Integer, &Integer),
    ) -> String {
        let part = |part: &str| format!("{name}.{part}");
        let mut places = self.range(&part("tokens"), 0, &axis.side);
        if shifted {
            let period = if shifts_first { &axis.side } else { &axis.padded };
            // Runtimes differ in remainders of negative numbers: a grid that is shifted first may be shorter
            // than the shift.
            let shift = match shifts_first {
                true => self.arithmetic("Mod", &part("shift"), &axis.shift, period),
                false => axis.shift.clone(),
            };
            let back = self.arithmetic("Sub", &part("back"), period, &shift);
            places = self.turned(&part("places"), &places, &back, period);
        }
        let window = self.scalar(&Integer::Known(axis.window));
        let number = self.graph.shared("Div", &part("window"), &[&places, &window], &[]);
        let number = self.times(&part("windows"), number, of_window);
        let place = self.graph.shared("Mod", &part("place"), &[&places, &window], &[]);
        let place = self.times(&part("inside"), place, inside);
        self.graph.shared("Add", name, &[&number, &place], &[])
    }

    /// For each merged token the numbers of its four tokens: top left, bottom left, top right, bottom right.
    fn merge_of_free(&mut self, stage: usize) -> Index {
        let grid = self.free(stage).clone();
        let name = format!("layers.{stage}.merge");
        let none = (!grid.rule.is_always_even()).then_some(&grid.tokens);
        let [height, width] = &grid.axes;
        let axes = [
            ("rows", height, &width.side, [-1, 1, 1, 2]),
            ("columns", width, &Integer::Known(1), [1, -1, 2, 1]),
        ];
        let parts = axes.map(|(which, axis, stride, apart)| {
            let name = format!("{name}.{which}");
            let merged = self.divided_up(&format!("{name}.merged"), &axis.side, 2);
            let even = self.arithmetic("Mul", &format!("{name}.even"), &merged, &Integer::Known(2));
            let places = self.range(&format!("{name}.places"), 0, &even);
            let sources = self.strided(&name, &places, (&places, &axis.side), stride, none);
            self.reshaped(&format!("{name}.apart"), &sources, &apart)
        });
        self.summed(&name, [&parts[0], &parts[1]], none)
    }

    /// The number of the mask of each window of odd blocks.
    pub(super) fn masks_of_free(&mut self, stage: usize) -> String {
        let grid = self.free(stage).clone();
        let name = format!("layers.{stage}.masks");
        let axes = [("rows", &grid.axes[0], 2, [-1, 1]), ("columns", &grid.axes[1], 1, [1, -1])];
        let parts = axes.map(|(which, axis, factor, apart)| {
            let part = |part: &str| format!("{name}.{which}.{part}");
            let end = self.arithmetic("Add", &part("end"), &axis.windows, &Integer::Known(1));
            let numbers = self.range(&part("numbers"), 1, &end);
            // 1 for the last window, where the axis is shifted.
            let windows = self.scalar(&axis.windows);
            let last = self.graph.shared("Div", &part("last"), &[&numbers, &windows], &[]);
            let divided = self.arithmetic("Min", &part("divided"), &axis.shift, &Integer::Known(1));
            let factor = self.arithmetic("Mul", &part("factor"), &divided, &Integer::Known(factor));
            let masks = self.times(&format!("{name}.{which}"), last, &factor);
            self.reshaped(&part("apart"), &masks, &apart)
        });
        match self.summed(&name, [&parts[0], &parts[1]], None) {
            Index::Value { name, .. } | Index::Known { name, .. } => name,
        }
    }

    /// `(places + by) mod period`.
    fn turned(&mut self, name: &str, places: &str, by: &Integer, period: &Integer) -> String {
        let (by, period) = (self.scalar(by), self.scalar(period));
        let sum = self.graph.shared("Add", &format!("{name}.sum"), &[places, &by], &[]);
        self.graph.shared("Mod", name, &[&sum, &period], &[])
    }

    /// `sources * stride`, and `none` where `inner` is not below `side`.
    fn strided(
        &mut self,
        name: &str,
        sources: &str,
        (inner, side): (&str, &Integer),
        stride: &Integer,
        none: Option<&Integer>,
    ) -> String {
        let strided = self.times(&format!("{name}.strided"), sources.to_owned(), stride);
        let Some(none) = none else { return strided };
        let (side, none) = (self.scalar(side), self.scalar(none));
        let inside = self.graph.shared("Less", &format!("{name}.is_inside"), &[inner, &side], &[]);
        self.graph.shared("Where", name, &[&inside, &strided, &none], &[])
    }

    fn times(&mut self, name: &str, x: String, factor: &Integer) -> String {
        if *factor == Integer::Known(1) {
            return x;
        }
        let factor = self.scalar(factor);
        self.graph.shared("Mul", name, &[&x, &factor], &[])
    }

    /// The sums of the numbers of rows and columns, as a list. A sum with a part `none` is `none`.
    fn summed(&mut self, name: &str, [rows, columns]: [&str; 2], none: Option<&Integer>) -> Index {
        let mut sum = self.graph.shared("Add", &format!("{name}.sum"), &[rows, columns], &[]);
        if let Some(none) = none {
            let none = self.scalar(none);
            sum = self.graph.shared("Min", &format!("{name}.inside"), &[&sum, &none], &[]);
        }
        let name = self.reshaped(name, &sum, &[-1]);
        Index::Value { name, padded: none.is_some() }
    }

    /// The grid of a stage, and whether its blocks are shifted, for some size at least.
    fn free_grid_of(&self, stage: usize, shifted: bool) -> (FreeGrid, bool) {
        let grid = self.free(stage).clone();
        let shifted = shifted && grid.rule.is_shifted();
        (grid, shifted)
    }
}

fn word(shifted: bool) -> &'static str {
    if shifted { "shifted" } else { "plain" }
}

fn known(name: String, map: &RowMap) -> Index {
    Index::Known { name, rows: sources(map), tokens: map.tokens() }
}

/// The token of each row; the number behind the last one is padding.
fn sources(map: &RowMap) -> Vec<i64> {
    map.rows().iter().map(|&row| (row as usize).min(map.tokens()) as i64).collect()
}
