//! The roofline of a GPU: a lower bound on the time of some work.

use swinq_cuda::{Arch, Device};

/// The arithmetic of an operation, and the units that run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// INT8 products with INT32 sums on the tensor cores.
    Int8,
    /// FP16 products with FP32 sums on the tensor cores.
    Fp16,
    /// TF32 products with FP32 sums on the tensor cores, or FP32 on GPUs without TF32.
    Tf32,
    /// FP32 fused multiply-adds.
    Fp32,
}

impl Arithmetic {
    /// Name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::Int8 => "int8",
            Arithmetic::Fp16 => "fp16",
            Arithmetic::Tf32 => "tf32",
            Arithmetic::Fp32 => "fp32",
        }
    }

    /// Dense operations per clock of a multiprocessor of `arch`, from NVIDIA's architecture papers. A
    /// multiply-accumulate counts as two.
    fn per_clock(self, arch: Arch) -> f64 {
        let [int8, fp16, tf32, fp32] = match (arch.major, arch.minor) {
            (7, _) => [2048.0, 1024.0, 128.0, 128.0],
            (8, 0) => [4096.0, 2048.0, 1024.0, 128.0],
            (8, _) | (12.., _) => [2048.0, 1024.0, 512.0, 256.0],
            (10 | 11, _) => [16384.0, 8192.0, 4096.0, 256.0],
            _ => [8192.0, 4096.0, 2048.0, 256.0],
        };
        match self {
            Arithmetic::Int8 => int8,
            Arithmetic::Fp16 => fp16,
            Arithmetic::Tf32 => tf32,
            Arithmetic::Fp32 => fp32,
        }
    }
}

/// The limits of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Roofline {
    /// Bandwidth of its memory.
    pub bytes_per_second: f64,
    arch: Arch,
    /// Clock rate times the number of multiprocessors.
    clocks_per_second: f64,
}

impl Roofline {
    /// The limits of `device` at its highest clock rates.
    pub fn of(device: &Device) -> Roofline {
        let transfers = 2.0 * f64::from(device.memory_clock_khz()) * 1e3;
        Roofline {
            bytes_per_second: transfers * f64::from(device.bus_width_bits()) / 8.0,
            arch: device.arch(),
            clocks_per_second: f64::from(device.multiprocessors()) * f64::from(device.clock_khz()) * 1e3,
        }
    }

    /// Operations per second.
    pub fn operations_per_second(&self, arithmetic: Arithmetic) -> f64 {
        self.clocks_per_second * arithmetic.per_clock(self.arch)
    }

    /// Lower bound on the seconds of `operations` operations and `bytes` bytes of memory traffic.
    pub fn seconds(&self, arithmetic: Arithmetic, operations: f64, bytes: f64) -> f64 {
        (operations / self.operations_per_second(arithmetic)).max(bytes / self.bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_arithmetic_decides() {
        let arch = Arch { major: 9, minor: 0 };
        let roofline = Roofline { bytes_per_second: 1e12, arch, clocks_per_second: 1e11 };
        assert_eq!(roofline.operations_per_second(Arithmetic::Int8), 8192e11);
        assert_eq!(roofline.seconds(Arithmetic::Fp32, 256e11, 1e11), 1.0);
        assert_eq!(roofline.seconds(Arithmetic::Int8, 256e11, 1e12), 1.0);
        let rates = [Arithmetic::Int8, Arithmetic::Fp16, Arithmetic::Tf32, Arithmetic::Fp32];
        for major in 7..=13 {
            let of = |a: &Arithmetic| a.per_clock(Arch { major, minor: 0 });
            assert!(rates.windows(2).all(|w| of(&w[0]) >= of(&w[1])), "sm_{major}0");
        }
    }
}
