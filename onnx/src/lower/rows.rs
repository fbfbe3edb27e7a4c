//! Norms, and the order of rows: windows, their reverse, and merging.

use swinq_numerics::RowMap;
use swinq_plan::{Merge, Norm, Order};

use super::Lowering;
use crate::graph::Attribute;

impl Lowering<'_> {
    /// LayerNorm of each row of `x`. The result is named after the norm.
    pub(super) fn layer_norm(&mut self, name: &str, norm: &Norm<'_>, x: &str) -> String {
        let columns = norm.gamma.len();
        let gamma = self.graph.floats(&format!("{name}.weight"), &[columns], &norm.gamma.read());
        let beta = self.graph.floats(&format!("{name}.bias"), &[columns], &norm.beta.read());
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", norm.eps)];
        self.graph.node("LayerNormalization", name, &[x, &gamma, &beta], &attributes)
    }

    /// The rows of `x` in the order of the windows: cyclic shift, padding with zeros and window partition in one Gather.
    pub(super) fn gather_windows(&mut self, name: &str, order: Order, x: String) -> String {
        let Order::Windows { stage: of, shifted } = order else { return x };
        let map = self.geometry.map(order);
        let index = format!("{}.windows.shift{}", stage(name), self.shift(of, shifted));
        self.gather(&format!("{name}.windows"), &index, &sources(map), map.tokens(), x)
    }

    /// The rows of windows back in the order of the tokens: window reverse, crop and reverse shift.
    pub(super) fn scatter_windows(&mut self, name: &str, order: Order, x: String) -> String {
        let Order::Windows { stage: of, shifted } = order else { return x };
        let map = self.geometry.map(order);
        let mut inverse = vec![0; map.tokens()];
        for (row, token) in sources(map).into_iter().enumerate() {
            if let Some(token) = token {
                inverse[token] = row as i64;
            }
        }
        let index = format!("{}.tokens.shift{}", stage(name), self.shift(of, shifted));
        let index = self.graph.ints(&index, &[inverse.len()], &inverse);
        self.graph.node("Gather", &format!("{name}.tokens"), &[&x, &index], &[Attribute::Int("axis", 1)])
    }

    /// 2 x 2 tokens side by side, `columns` in all, and their norm if there is one.
    pub(super) fn merge(&mut self, name: &str, merge: &Merge<'_>, x: String, columns: usize) -> String {
        let index = format!("{}.merge", stage(name));
        let map = self.geometry.merge(merge.stage);
        let x = self.gather(&format!("{name}.tokens"), &index, &sources(map), map.tokens(), x);
        let shape = self.graph.list(&[0, (map.rows().len() / 4) as i64, columns as i64]);
        let x = self.graph.node("Reshape", &format!("{name}.merged"), &[&x, &shape], &[]);
        match &merge.norm {
            Some(norm) => self.layer_norm(name, norm, &x),
            None => x,
        }
    }

    /// The cyclic shift of a stage's blocks, as names have it.
    fn shift(&self, stage: usize, shifted: bool) -> String {
        self.geometry.grid(stage).shift_of(shifted).short()
    }

    /// The rows `sources` of `x`, which has `tokens` rows; `None` is a row of zeros. `index` names the constant.
    fn gather(
        &mut self,
        name: &str,
        index: &str,
        sources: &[Option<usize>],
        tokens: usize,
        x: String,
    ) -> String {
        let padded = sources.contains(&None);
        let x = if padded {
            // One row of zeros behind the last token.
            let pads = self.graph.list(&[0, 0, 0, 0, 1, 0]);
            self.graph.node("Pad", &format!("{name}.padded"), &[&x, &pads], &[])
        } else {
            x
        };
        let rows: Vec<i64> = sources.iter().map(|row| row.unwrap_or(tokens) as i64).collect();
        let index = self.graph.ints(index, &[rows.len()], &rows);
        self.graph.node("Gather", name, &[&x, &index], &[Attribute::Int("axis", 1)])
    }
}

/// The token of each row; `None` is padding.
fn sources(map: &RowMap) -> Vec<Option<usize>> {
    let token = |&row: &u32| ((row as usize) < map.tokens()).then_some(row as usize);
    map.rows().iter().map(token).collect()
}

/// The stage of a step inside it: `layers.S`.
fn stage(name: &str) -> String {
    name.split('.').take(2).collect::<Vec<_>>().join(".")
}
