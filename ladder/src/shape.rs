//! The matrix products to run.

use swinq_model::SwinConfig;
use swinq_numerics::reference::MAX_INT8_K;

use crate::LadderError;
use crate::args::{SwinSize, check_memory};

/// A product `[m, k] x [n, k]^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of the activations and of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Columns of the activations.
    pub k: usize,
}

impl Shape {
    /// Multiply-accumulates.
    pub fn macs(self) -> f64 {
        self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Operations. A multiply-accumulate counts as two.
    pub fn operations(self) -> f64 {
        2.0 * self.macs()
    }

    /// Bytes of the operands and the output, counted once. Elements have `operand` and `result` bytes.
    pub fn bytes(self, operand: usize, result: usize) -> f64 {
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        (m * k + n * k) * operand as f64 + m * n * result as f64
    }

    /// Refuses sizes that exceed a limit of the kernels or of the memory.
    pub fn check(self) -> Result<(), LadderError> {
        if self.k > MAX_INT8_K {
            return Err(LadderError::Size(format!(
                "k = {}: sums of INT8 products have at most {MAX_INT8_K} terms",
                self.k
            )));
        }
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        // Operands in f32 and INT8 and their packed copies; references in f32; outputs of the rungs and their
        // copies.
        let bytes = (m * k) * 7.0 + (n * k) * 12.0 + m * n * 16.0;
        check_memory(&format!("products of {} x {} x {}", self.m, self.n, self.k), bytes)
    }

    /// The sizes with their names.
    pub fn fields(self) -> Vec<(&'static str, usize)> {
        vec![("m", self.m), ("n", self.n), ("k", self.k)]
    }
}

/// A product and its place in a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedShape {
    /// Stage and layer; empty if the product belongs to no model.
    pub name: String,
    /// How often a forward runs it.
    pub count: usize,
    /// Its sizes.
    pub shape: Shape,
}

impl NamedShape {
    /// A product that belongs to no model.
    pub fn plain(shape: Shape) -> NamedShape {
        NamedShape { name: String::new(), count: 1, shape }
    }
}

/// Every distinct product in the blocks and merges of a Swin, for `batch` images of 224 x 224.
pub fn of_swin(size: SwinSize, batch: usize) -> Vec<NamedShape> {
    let name = match size {
        SwinSize::Tiny => "tiny",
        SwinSize::Small => "small",
        SwinSize::Base => "base",
        SwinSize::Large => "large",
    };
    let config = SwinConfig::official(&format!("swin_{name}_patch4_window7_224"));
    let config = config.expect("a shipped configuration");
    let mut products = Vec::new();
    for (stage, grid) in config.stages().into_iter().zip(config.own_grids()) {
        let mut push = |layer: &str, count, rows, n, k| {
            let name = format!("stage {} {layer}", stage.index + 1);
            products.push(NamedShape { name, count, shape: Shape { m: batch * rows, n, k } });
        };
        let (dim, windowed) = (stage.dim, grid.window_rows());
        push("qkv", stage.depth, windowed, 3 * dim, dim);
        push("proj", stage.depth, windowed, dim, dim);
        push("fc1", stage.depth, grid.tokens(), stage.hidden, dim);
        push("fc2", stage.depth, grid.tokens(), dim, stage.hidden);
        if stage.merge {
            push("reduction", 1, grid.merged().area(), 2 * dim, 4 * dim);
        }
    }
    products
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_swin_tiny() {
        let all = of_swin(SwinSize::Tiny, 2);
        assert_eq!(all.len(), 4 * 4 + 3);
        let first =
            NamedShape { name: "stage 1 qkv".into(), count: 2, shape: Shape { m: 6272, n: 288, k: 96 } };
        assert_eq!(all[0], first);
        assert_eq!(all[4].shape, Shape { m: 1568, n: 192, k: 384 });
        assert_eq!((all[18].name.as_str(), all[18].shape), ("stage 4 fc2", Shape { m: 98, n: 768, k: 3072 }));
        let distinct = all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| a.shape != b.shape));
        assert!(distinct);
    }

    #[test]
    fn sizes_are_bounded() {
        assert!(Shape { m: 16_384, n: 16_384, k: 16_384 }.check().is_ok());
        let huge = Shape { m: 1 << 20, n: 1 << 20, k: 16 }.check().unwrap_err();
        assert!(huge.to_string().contains("GiB"), "{huge}");
        assert!(Shape { m: 1, n: 1, k: 65_794 }.check().unwrap_err().to_string().contains("65793"));
    }
}
