//! The geometry of an image size: the rows of tensors, and the order of rows for each op.

use std::sync::Arc;

use swinq_model::{Grid, ModelError, Size, SwinConfig};
use swinq_numerics::{RowMap, Windows};

/// The rows of a tensor, for one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// The pixels of the image.
    Pixels,
    /// The tokens of a stage.
    Tokens(usize),
    /// The windows of a stage, token by token, with their padding.
    Windows(usize),
    /// One row.
    One,
}

/// The order of an op's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The tokens of a stage, row by row of the grid.
    Tokens(usize),
    /// Windows of the padded grid of a stage.
    Windows {
        /// The stage.
        stage: usize,
        /// Whether the grid is shifted: true for odd blocks. Whether that changes anything depends on the
        /// image.
        shifted: bool,
    },
}

/// The token grids of an image: how many rows its tensors have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grids {
    image: Size,
    grids: Vec<Grid>,
}

impl Grids {
    /// The grids of `config` for an image of `image` pixels.
    ///
    /// # Errors
    /// Those of [`SwinConfig::grids`].
    pub fn new(config: &SwinConfig, image: Size) -> Result<Grids, ModelError> {
        Ok(Grids { image, grids: config.grids(image)? })
    }

    /// Height and width of the image in pixels.
    pub fn image(&self) -> Size {
        self.image
    }

    /// The token grid of stage `stage`.
    pub fn grid(&self, stage: usize) -> &Grid {
        &self.grids[stage]
    }

    /// The number of `rows` of one image.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Pixels => self.image.area(),
            Rows::Tokens(stage) => self.grid(stage).tokens(),
            Rows::Windows(stage) => self.grid(stage).window_rows(),
            Rows::One => 1,
        }
    }
}

/// The geometry of a network for an image size: its grids, and the order of their rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    grids: Grids,
    stages: Vec<StageGeometry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StageGeometry {
    tokens: Arc<RowMap>,
    /// The windows of even blocks and of odd blocks.
    windows: [Arc<Windows>; 2],
    merge: Option<Arc<RowMap>>,
}

impl Geometry {
    /// The geometry of `config` for an image of `image` pixels.
    ///
    /// # Errors
    /// Those of [`SwinConfig::grids`].
    pub fn new(config: &SwinConfig, image: Size) -> Result<Geometry, ModelError> {
        Ok(Geometry::of(Grids::new(config, image)?))
    }

    /// The geometry of an image with these grids.
    pub fn of(grids: Grids) -> Geometry {
        let last = grids.grids.len() - 1;
        let stages =
            grids.grids.iter().enumerate().map(|(i, grid)| StageGeometry::new(grid, i < last)).collect();
        Geometry { grids, stages }
    }

    /// Height and width of the image in pixels.
    pub fn image(&self) -> Size {
        self.grids.image
    }

    /// The grids.
    pub fn grids(&self) -> &Grids {
        &self.grids
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// The token grid of stage `stage`.
    pub fn grid(&self, stage: usize) -> &Grid {
        self.grids.grid(stage)
    }

    /// The number of `rows` of one image.
    pub fn rows(&self, rows: Rows) -> usize {
        self.grids.rows(rows)
    }

    /// The token of each row in `order`.
    pub fn map(&self, order: Order) -> &RowMap {
        match order {
            Order::Tokens(stage) => &self.stages[stage].tokens,
            Order::Windows { stage, shifted } => self.windows(stage, shifted).map(),
        }
    }

    /// The number of the mask of each window in `order`; empty for the order of tokens.
    pub fn masks(&self, order: Order) -> &[u8] {
        match order {
            Order::Tokens(_) => &[],
            Order::Windows { stage, shifted } => self.windows(stage, shifted).masks(),
        }
    }

    /// The windows of the even blocks of `stage`, or of its odd blocks, which are `shifted`. They are one
    /// object if nothing is shifted.
    pub fn windows(&self, stage: usize, shifted: bool) -> &Arc<Windows> {
        &self.stages[stage].windows[usize::from(shifted)]
    }

    /// The sources of the patch merging after `stage`: four rows for each merged token.
    ///
    /// # Panics
    /// For the last stage, which no merging follows.
    pub fn merge(&self, stage: usize) -> &Arc<RowMap> {
        self.stages[stage].merge.as_ref().expect("patch merging follows the stage")
    }
}

impl StageGeometry {
    fn new(grid: &Grid, merge: bool) -> StageGeometry {
        let map = |rows: Vec<u32>| {
            RowMap::from_rows(rows, grid.tokens())
                .expect("a window partition or a merge covers every token once")
        };
        let windows =
            |shifted: bool| Arc::new(Windows::new(map(grid.partition_rows(shifted)), grid.masks(shifted)));
        let even = windows(false);
        let odd = if grid.shift == Size::square(0) { Arc::clone(&even) } else { windows(true) };
        StageGeometry {
            tokens: Arc::new(RowMap::identity(grid.tokens())),
            windows: [even, odd],
            merge: merge.then(|| Arc::new(map(grid.merge_rows()))),
        }
    }
}
