//! Measures the time of launches on the device.

use crate::{CudaError, Device, DeviceBuf, DeviceSlice, Event, Stream};

/// Number of launches queued at a time.
const QUEUED: usize = 64;

/// Bytes to write, as a multiple of the L2 cache's size, that replace the whole content of the cache.
const FLUSH: usize = 2;

/// A stream, and a timer for the work on it.
pub struct Timer {
    device: Device,
    stream: Stream,
    flush: DeviceSlice,
}

impl Timer {
    /// Creates a timer on `device`.
    ///
    /// # Errors
    /// The device has too little memory, or the driver fails.
    pub fn new(device: &Device) -> Result<Timer, CudaError> {
        let bytes = (FLUSH * device.l2_bytes() as usize).max(1 << 20);
        let flush = DeviceBuf::new(device, bytes)?.all();
        Ok(Timer { device: device.clone(), stream: Stream::new(device)?, flush })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream that is timed.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the milliseconds, between two events, of each of `runs` runs of the work that `launch` puts on
    /// the stream. Before each run, and outside the events, the L2 cache is overwritten, so that operands
    /// come from memory.
    ///
    /// # Errors
    /// `launch` or the driver fails, or earlier work on the stream failed.
    pub fn samples(
        &self,
        runs: usize,
        launch: &dyn Fn(&Stream) -> Result<(), CudaError>,
    ) -> Result<Vec<f32>, CudaError> {
        let mut samples = Vec::with_capacity(runs);
        let pair = || Ok::<_, CudaError>((Event::new(&self.device)?, Event::new(&self.device)?));
        let pairs = (0..runs.min(QUEUED)).map(|_| pair()).collect::<Result<Vec<_>, _>>()?;
        while samples.len() < runs {
            let count = (runs - samples.len()).min(QUEUED);
            for (start, end) in &pairs[..count] {
                self.flush.fill_zero(&self.stream)?;
                start.record(&self.stream)?;
                launch(&self.stream)?;
                end.record(&self.stream)?;
            }
            self.stream.synchronize()?;
            for (start, end) in &pairs[..count] {
                samples.push(Event::elapsed_ms(start, end)?);
            }
        }
        Ok(samples)
    }
}
