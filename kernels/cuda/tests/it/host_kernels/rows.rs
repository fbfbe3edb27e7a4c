//! Outputs of ops that store full rows.

use half::f16;
use swinq_cuda::ops::{DeviceStore, row_stride};
use swinq_numerics::{Quantizer, reference};
use swinq_testing::{assert_same, assert_varied};

use super::launch::{Launch, floats, halves};

/// The fill byte of an output before a launch; it must stay unchanged between rows.
const UNTOUCHED: u8 = 77;

/// The quantizer of a store.
pub fn quantizer(store: DeviceStore) -> Option<Quantizer> {
    match store {
        DeviceStore::Codes(q) | DeviceStore::FakeHalf(q) | DeviceStore::FakeFloat(q) => Some(q),
        DeviceStore::Half | DeviceStore::Float => None,
    }
}

/// Adds the output of `rows` rows to `launch`.
pub fn output(launch: Launch, rows: usize, columns: usize, store: DeviceStore) -> Launch {
    let stride = row_stride(columns, store.element_bytes());
    launch.activation(&vec![UNTOUCHED; rows * stride * store.element_bytes()])
}

/// Adds the reciprocal and the scale of `store` to `launch`.
pub fn step_of(launch: Launch, store: DeviceStore) -> Launch {
    let q = quantizer(store);
    launch.float(q.map_or(1.0, Quantizer::recip)).float(q.map_or(1.0, Quantizer::scale))
}

/// Panics unless `got` holds `values`, `[rows, columns]`, stored as `store`, and nothing else was written.
pub fn check(got: &[u8], values: &[f32], columns: usize, store: DeviceStore, what: &str) {
    let stride = row_stride(columns, store.element_bytes());
    assert_eq!(got.len(), values.len() / columns * stride * store.element_bytes(), "{what}");
    if let DeviceStore::Codes(q) = store {
        let mut want = vec![UNTOUCHED; got.len()];
        for (i, &value) in values.iter().enumerate() {
            want[i / columns * stride + i % columns] = reference::code(value * q.recip()).cast_unsigned();
        }
        assert_eq!(got, want, "{what}");
        return assert_varied(&want, what);
    }
    let faked: Vec<f32> = values.iter().map(|&x| quantizer(store).map_or(x, |q| q.fake(x))).collect();
    let (got, want) = match store.element_bytes() {
        2 => (half_floats(got), faked.iter().map(|&x| f16::from_f32(x).to_f32()).collect()),
        _ => (floats(got), faked),
    };
    let rows = got.chunks_exact(stride).flat_map(|row| &row[..columns]).copied();
    assert_same(&rows.collect::<Vec<f32>>(), &want, what);
}

/// Reads a buffer of halves as f32.
pub fn half_floats(bytes: &[u8]) -> Vec<f32> {
    halves(bytes).into_iter().map(|h| f16::from_bits(h).to_f32()).collect()
}

/// The bits of the halves nearest to `x`.
pub fn to_halves(x: &[f32]) -> Vec<u16> {
    x.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
}

/// Panics unless `got` holds numbers that differ from `values` by at most `error` plus the rounding of the
/// store.
pub fn check_near(got: &[u8], values: &[f64], error: f64, columns: usize, store: DeviceStore, what: &str) {
    let stride = row_stride(columns, store.element_bytes());
    let (got, unit): (Vec<f64>, f64) = match store {
        DeviceStore::Codes(q) => {
            (got.iter().map(|b| f64::from(b.cast_signed())).collect(), f64::from(q.scale()))
        }
        DeviceStore::Float => (floats(got).into_iter().map(f64::from).collect(), 1.0),
        DeviceStore::Half => (half_floats(got).into_iter().map(f64::from).collect(), 1.0),
        _ => panic!("{store:?} has no error of its own"),
    };
    let rows: Vec<f64> = got.chunks_exact(stride).flat_map(|row| &row[..columns]).copied().collect();
    assert_eq!(rows.len(), values.len(), "{what}");
    for (i, (&got, &value)) in rows.iter().zip(values).enumerate() {
        let rounding = match store {
            DeviceStore::Codes(_) => 0.5,
            DeviceStore::Half => value.abs() / 2048.0 + 3e-8,
            _ => 0.0,
        };
        let value =
            if matches!(store, DeviceStore::Codes(_)) { (value / unit).clamp(-128.0, 127.0) } else { value };
        let allowed = error / unit + rounding * (1.0 + 1e-6);
        assert!((got - value).abs() <= allowed, "{what}, element {i}: {got}, not {value} ({allowed:e})");
    }
    assert_varied(&rows, what);
}
