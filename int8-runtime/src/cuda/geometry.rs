//! The geometry of an image size on a GPU: the order of the rows, and the masks of the windows.

use swinq_cuda::ops::{DeviceMap, DeviceWindows, RowOrder, TokenRows};
use swinq_cuda::{CudaError, Device, Stream, Upload};
use swinq_plan::{Geometry, Grids, Order, Rows};

/// The geometry of an image size, on a device.
pub(crate) struct DeviceGeometry {
    grids: Grids,
    stages: Vec<StageGeometry>,
}

struct StageGeometry {
    /// The windows of even blocks and of odd blocks.
    windows: [DeviceWindows; 2],
    /// The row of each token in these windows, if codes are stored in this order and no row is padding.
    rows: Option<[TokenRows; 2]>,
    /// The sources of the patch merging after the stage.
    merge: Option<DeviceMap>,
}

/// A gather or a scatter of the residual's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gather {
    /// Tokens in an order.
    Rows(Order),
    /// Four tokens for each row, at the end of a stage.
    Merge(usize),
}

impl DeviceGeometry {
    /// Copies `geometry` to the device. With `codes`, launches that add to the residual store its codes in
    /// the order of windows. The host waits for `stream`.
    pub(crate) fn new(
        device: &Device,
        stream: &Stream,
        geometry: &Geometry,
        codes: bool,
    ) -> Result<DeviceGeometry, CudaError> {
        let stages = geometry.stages();
        let mut upload = Upload::new(device, (0..stages).map(|stage| most_bytes(geometry, stage)).sum())?;
        let stage = |stage| {
            let codes = codes && !geometry.grid(stage).is_padded();
            StageGeometry::new(&mut upload, geometry, stage, (codes, stage + 1 < stages))
        };
        let stages = (0..stages).map(stage).collect();
        upload.finish(stream)?;
        Ok(DeviceGeometry { grids: geometry.grids().clone(), stages })
    }

    pub(crate) fn grids(&self) -> &Grids {
        &self.grids
    }

    /// The number of `rows` of one image.
    pub(crate) fn rows(&self, rows: Rows) -> usize {
        self.grids.rows(rows)
    }

    /// The windows of the even blocks of a stage, or of its odd blocks.
    ///
    /// # Panics
    /// For the order of tokens.
    pub(crate) fn windows(&self, order: Order) -> &DeviceWindows {
        let Order::Windows { stage, shifted } = order else { panic!("{order:?} has no windows") };
        &self.stages[stage].windows[usize::from(shifted)]
    }

    /// The map of an order; none for the order of tokens.
    pub(crate) fn map(&self, order: Order) -> Option<&DeviceMap> {
        match order {
            Order::Tokens(_) => None,
            Order::Windows { .. } => Some(self.windows(order).map()),
        }
    }

    /// The tokens of the rows of `gather`.
    ///
    /// # Panics
    /// For the merging after the last stage.
    pub(crate) fn tokens(&self, gather: Gather) -> RowOrder<'_> {
        match gather {
            Gather::Rows(Order::Tokens(stage)) => RowOrder::Tokens(self.rows(Rows::Tokens(stage))),
            Gather::Rows(order) => RowOrder::Map(self.windows(order).map()),
            Gather::Merge(stage) => {
                RowOrder::Map(self.stages[stage].merge.as_ref().expect("patch merging follows the stage"))
            }
        }
    }

    /// Whether a launch that adds to the residual stores its codes in `order`: if no row is padding.
    pub(crate) fn stores_codes(&self, order: Order) -> bool {
        match order {
            Order::Tokens(_) => true,
            Order::Windows { stage, .. } => !self.grids.grid(stage).is_padded(),
        }
    }

    /// The row of each token in the order of windows; `None` if they have padding.
    ///
    /// # Panics
    /// For the order of tokens.
    pub(crate) fn token_rows(&self, order: Order) -> Option<&TokenRows> {
        let Order::Windows { stage, shifted } = order else { panic!("{order:?} has no windows") };
        self.stages[stage].rows.as_ref().map(|rows| &rows[usize::from(shifted)])
    }
}

impl StageGeometry {
    /// With `codes`, the rows of tokens too; with `merge`, patch merging follows the stage.
    fn new(
        upload: &mut Upload,
        geometry: &Geometry,
        stage: usize,
        (codes, merge): (bool, bool),
    ) -> StageGeometry {
        let [even, odd] = [false, true].map(|shifted| geometry.windows(stage, shifted));
        let windows = DeviceWindows::sent(upload, even);
        let rows = codes.then(|| TokenRows::sent(upload, even.map()));
        let shifts = even != odd;
        let shifted = if shifts { DeviceWindows::sent(upload, odd) } else { windows.clone() };
        let rows = rows.map(|rows| {
            let shifted = if shifts { TokenRows::sent(upload, odd.map()) } else { rows.clone() };
            [rows, shifted]
        });
        let merge = merge.then(|| DeviceMap::sent(upload, geometry.merge(stage)));
        StageGeometry { windows: [windows, shifted], rows, merge }
    }
}

/// The most bytes that a stage takes on the device.
fn most_bytes(geometry: &Geometry, stage: usize) -> usize {
    let grid = geometry.grid(stage);
    let windows = 4 * grid.window_rows() + grid.windows() + 4 * grid.tokens();
    2 * windows + 16 * grid.merged().area() + 7 * Upload::ALIGN
}
