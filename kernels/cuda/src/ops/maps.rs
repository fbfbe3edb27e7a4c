//! The geometry of an image size, on the device: orders of rows, and the masks of windows. Ops get it when
//! they run, and all ops of a stage can share it. Clones share the memory.

use swinq_numerics::{RowMap, Windows};

use crate::{CudaError, Device, DeviceSlice, Stream, Upload};

/// A [`RowMap`] on the device. It takes 4 bytes for each row.
#[derive(Clone)]
pub struct DeviceMap {
    pub(super) slice: DeviceSlice,
    pub(super) rows: usize,
    pub(super) tokens: usize,
}

impl DeviceMap {
    /// Copies `map` to the device.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn new(device: &Device, map: &RowMap) -> Result<DeviceMap, CudaError> {
        alone(device, size_of_val(map.rows()), |upload| DeviceMap::sent(upload, map))
    }

    /// `map`, sent with `upload`.
    pub fn sent(upload: &mut Upload, map: &RowMap) -> DeviceMap {
        DeviceMap { slice: upload.put(map.rows()), rows: map.rows().len(), tokens: map.tokens() }
    }

    /// Rows of an image.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens of an image.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.slice.bytes()
    }
}

/// The attention windows of an image on the device: the order of their tokens, and their masks. It takes the
/// bytes of the map, and if a window is masked 1 byte for each window.
#[derive(Clone)]
pub struct DeviceWindows {
    map: DeviceMap,
    /// The mask of each window; none if no window is masked.
    masks: Option<DeviceSlice>,
    count: usize,
}

impl DeviceWindows {
    /// Copies `windows` to the device.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn new(device: &Device, windows: &Windows) -> Result<DeviceWindows, CudaError> {
        let bytes = size_of_val(windows.map().rows()).next_multiple_of(Upload::ALIGN) + windows.count();
        alone(device, bytes, |upload| DeviceWindows::sent(upload, windows))
    }

    /// `windows`, sent with `upload`.
    pub fn sent(upload: &mut Upload, windows: &Windows) -> DeviceWindows {
        let masks = Some(windows.masks()).filter(|masks| masks.iter().any(|&mask| mask != 0));
        DeviceWindows {
            map: DeviceMap::sent(upload, windows.map()),
            masks: masks.map(|masks| upload.put(masks)),
            count: windows.count(),
        }
    }

    /// The order of the tokens, window by window.
    pub fn map(&self) -> &DeviceMap {
        &self.map
    }

    /// Windows of an image.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens of a window.
    pub fn tokens(&self) -> usize {
        self.map.rows / self.count
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.map.bytes() + self.masks.as_ref().map_or(0, DeviceSlice::bytes)
    }

    /// The masks, for an op whose windows have `tokens` tokens and which has `regions` or not.
    ///
    /// # Panics
    /// If windows have another number of tokens, or windows are masked and the op has no regions; the message
    /// begins with `what`.
    pub(super) fn masks_for(&self, what: &str, tokens: usize, regions: bool) -> Option<&DeviceSlice> {
        assert_eq!(self.tokens(), tokens, "{what}: tokens of a window");
        assert!(regions || self.masks.is_none(), "{what}: windows are masked, and the op has no regions");
        self.masks.as_ref()
    }
}

/// The row of each token of an image: the inverse of a [`RowMap`] without padding. It takes 4 bytes for each
/// token.
#[derive(Clone)]
pub struct TokenRows {
    pub(super) slice: DeviceSlice,
    pub(super) tokens: usize,
}

impl TokenRows {
    /// Copies the inverse of `map` to the device.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    ///
    /// # Panics
    /// If `map` has padding.
    pub fn new(device: &Device, map: &RowMap) -> Result<TokenRows, CudaError> {
        alone(device, 4 * map.tokens(), |upload| TokenRows::sent(upload, map))
    }

    /// The inverse of `map`, sent with `upload`.
    ///
    /// # Panics
    /// If `map` has padding.
    pub fn sent(upload: &mut Upload, map: &RowMap) -> TokenRows {
        let rows = rows_of_tokens(map).expect("the map has no padding");
        TokenRows { slice: upload.put(&rows), tokens: rows.len() }
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.slice.bytes()
    }
}

/// The data that `put` sends, at most `bytes` bytes, in an upload of its own.
fn alone<T>(device: &Device, bytes: usize, put: impl FnOnce(&mut Upload) -> T) -> Result<T, CudaError> {
    let mut upload = Upload::new(device, bytes)?;
    let sent = put(&mut upload);
    upload.finish(&Stream::new(device)?)?;
    Ok(sent)
}

/// The row of each token, if no row is padding.
pub fn rows_of_tokens(map: &RowMap) -> Option<Vec<u32>> {
    let mut rows = vec![0; map.tokens()];
    for (row, &token) in map.rows().iter().enumerate() {
        *rows.get_mut(token as usize)? = row as u32;
    }
    Some(rows)
}

/// The rows of an image that an op computes.
#[derive(Clone, Copy)]
pub enum RowOrder<'a> {
    /// Row i is token i, of this number of tokens.
    Tokens(usize),
    /// The rows of a map. An op whose rows consist of four tokens takes four rows of the map for each.
    Map(&'a DeviceMap),
}

/// Where an op that adds to the residual stores the codes of the sums.
#[derive(Clone, Copy)]
pub struct ResidualCodes<'a> {
    /// The codes.
    pub slice: &'a DeviceSlice,
    /// The row of each token; without it, token t is row t.
    pub rows: Option<&'a TokenRows>,
}
