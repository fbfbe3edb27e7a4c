//! Rows gathered from the residual stream without a norm (Swin V2), and what they share with the norms.

use super::{Call, DeviceStore, ResidualType, RowOrder, int, row_stride};
use crate::params::rows::Params;
use crate::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

impl Params {
    /// Parameters without a norm and without codes of the residual.
    pub(super) fn new(
        call: &Call<'_>,
        rows: &ImageRows<'_>,
        columns: usize,
        store: DeviceStore,
        [input, out, overflow]: [u64; 3],
    ) -> Params {
        let (recip, scale) = store.recip_and_scale();
        Params {
            input,
            map: call.own(rows.map),
            out,
            overflow,
            total_rows: int(rows.total()),
            rows: int(rows.rows),
            tokens: int(rows.tokens),
            columns: int(columns),
            stride: int(row_stride(columns, store.element_bytes())),
            recip,
            scale,
            ..Params::default()
        }
    }
}

/// A program of `rows.cuh` with the defines that it needs: `(file, entry)`, the source tokens of a row, the
/// type of the input, and how rows are stored.
pub(super) fn row_program(
    (file, entry): (&'static str, &'static str),
    pieces: usize,
    residual: ResidualType,
    store: DeviceStore,
) -> Program {
    let program = Program::new(file, entry)
        .define("THREADS", THREADS.into())
        .define("PIECES", pieces as i64)
        .define("STORE", store.define())
        .define("FAKE", store.is_fake().into());
    if residual == ResidualType::F32 { program.define("EXACT", 1) } else { program }
}

/// The rows of a launch.
pub(super) struct ImageRows<'a> {
    pub(super) images: usize,
    /// Rows and tokens of an image.
    pub(super) rows: usize,
    pub(super) tokens: usize,
    /// The tokens of each row; without it, row i is token i.
    pub(super) map: Option<&'a DeviceSlice>,
}

impl<'a> ImageRows<'a> {
    /// The rows of `images` images, each of `pieces` tokens.
    ///
    /// # Panics
    /// If `order` is not that of whole rows; the message begins with `what`.
    pub(super) fn new(what: &str, pieces: usize, (images, order): (usize, RowOrder<'a>)) -> ImageRows<'a> {
        match order {
            RowOrder::Tokens(tokens) => {
                assert_eq!(pieces, 1, "{what}: rows of {pieces} tokens need a map");
                ImageRows { images, rows: tokens, tokens, map: None }
            }
            RowOrder::Map(map) => {
                assert!(map.rows.is_multiple_of(pieces), "{what}: {} tokens in rows of {pieces}", map.rows);
                ImageRows { images, rows: map.rows / pieces, tokens: map.tokens, map: Some(&map.slice) }
            }
        }
    }

    /// Rows of all images.
    pub(super) fn total(&self) -> usize {
        self.images * self.rows
    }
}

/// Constants for which the kernel that gathers rows is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowsConfig {
    /// Number of columns of a row.
    pub columns: usize,
    /// Number of source tokens per row: 1 or 4.
    pub pieces: usize,
    /// Element type of the input.
    pub residual: ResidualType,
}

impl RowsConfig {
    /// The program that stores results as `store`.
    pub fn program(&self, store: DeviceStore) -> Program {
        row_program(("rows.cu", "rows"), self.pieces, self.residual, store)
    }

    /// Launch configuration for `rows` rows.
    pub fn launch(&self, rows: usize) -> LaunchConfig {
        let blocks = (rows * self.columns / self.residual.columns_at_once()).div_ceil(THREADS as usize);
        LaunchConfig { pdl: true, ..LaunchConfig::linear(blocks as u32, THREADS) }
    }
}

/// Gathers rows of the residual stream for a linear layer, without a norm.
pub struct DeviceRows {
    kernel: Kernel,
    config: RowsConfig,
    store: DeviceStore,
}

impl DeviceRows {
    /// Rows of `columns` columns, which are tokens of the residual; rows of padding are zeros.
    ///
    /// # Errors
    /// The kernel does not compile.
    ///
    /// # Panics
    /// If the number of columns is not a multiple of [`ResidualType::columns_at_once`].
    pub fn rows(
        device: &Device,
        columns: usize,
        residual: ResidualType,
        store: DeviceStore,
    ) -> Result<DeviceRows, CudaError> {
        DeviceRows::new(device, RowsConfig { columns, pieces: 1, residual }, store)
    }

    /// Rows of four tokens side by side, of `columns` columns together; padding tokens are zeros.
    ///
    /// # Errors
    /// The kernel does not compile.
    ///
    /// # Panics
    /// If the number of columns of a token is not a multiple of [`ResidualType::columns_at_once`].
    pub fn merged(
        device: &Device,
        columns: usize,
        residual: ResidualType,
        store: DeviceStore,
    ) -> Result<DeviceRows, CudaError> {
        DeviceRows::new(device, RowsConfig { columns, pieces: 4, residual }, store)
    }

    fn new(device: &Device, config: RowsConfig, store: DeviceStore) -> Result<DeviceRows, CudaError> {
        let RowsConfig { columns, pieces, residual } = config;
        let whole = columns.is_multiple_of(pieces * residual.columns_at_once());
        assert!(whole, "rows: {columns} columns of {pieces} tokens");
        Ok(DeviceRows { kernel: device.kernel(&config.program(store))?, config, store })
    }

    /// Reads the residual of `images` images and writes their rows in this order. Sets the u32 at `overflow`
    /// to 1 if an f16 residual holds a value that is not finite; nothing resets it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or the order is not that of whole rows.
    pub fn run(
        &self,
        stream: &Stream,
        (images, order): (usize, RowOrder<'_>),
        residual: &DeviceSlice,
        out: &DeviceSlice,
        overflow: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let RowsConfig { columns, pieces, residual: element } = self.config;
        let rows = ImageRows::new("rows", pieces, (images, order));
        let bytes = self.store.element_bytes();
        let call = Call(stream);
        let memory = [
            call.array(
                "rows: the residual",
                residual,
                &[images, rows.tokens, columns / pieces, element.bytes()],
            ),
            call.array("rows: the output", out, &[images, rows.rows, row_stride(columns, bytes), bytes]),
            call.word("rows: the overflow flag", overflow),
        ];
        // The kernel counts threads in 32 bits.
        int(rows.total() * columns / 8);
        let params = Params::new(&call, &rows, columns, self.store, memory);
        // SAFETY: `Params` is the kernel's parameter. The maps were constructed so that every row and token
        // that the kernel accesses is within the lengths checked above; the slices are held.
        unsafe { launch(&self.kernel, self.config.launch(rows.total()), stream, &params) }
    }
}
