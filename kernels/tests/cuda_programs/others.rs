use swinq_kernels::Quantizer;
use swinq_kernels::cuda::Program;
use swinq_kernels::cuda::ops::attention::{AttentionConfig, AttentionElements};
use swinq_kernels::cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_kernels::cuda::ops::norm::NormConfig;
use swinq_kernels::cuda::ops::patch::PatchConfig;
use swinq_kernels::cuda::ops::{DeviceStore, StreamType};

pub const STREAMS: [StreamType; 2] = [StreamType::F16, StreamType::F32];
pub fn quantizer() -> Quantizer { Quantizer::new(0.1).unwrap() }
pub fn stores() -> [DeviceStore; 3] { [DeviceStore::Codes(quantizer()), DeviceStore::Half, DeviceStore::FakeHalf(quantizer())] }

pub fn patches() -> Vec<Program> {
    let mut all = Vec::new();
    for stream in STREAMS { for patch in [4] { for columns in [96] {
        for bits in 0..16 {
            let on = |i: usize| bits >> i & 1 == 1;
            all.push(PatchConfig { patch, columns, integer: on(0), output: on(1), norm: on(2), position: on(3), stream }.program());
        }
    }}}
    all
}
pub fn norms() -> Vec<Program> {
    let mut all = Vec::new();
    for stream in STREAMS { for pieces in [1, 4] { for store in stores() { for columns in (64..=6144).step_by(64) {
        all.push(NormConfig { columns, pieces, stream }.program(store));
    }}}}
    all
}
pub fn attentions() -> Vec<Program> {
    let mut all = Vec::new();
    for tokens in [16, 49, 64, 144] { for store in stores() { for elements in [AttentionElements::Codes, AttentionElements::Half] { for probs_s8 in [false, true] {
        all.push(AttentionConfig { elements, tokens, heads: 3, probs_s8 }.program(store));
    }}}}
    all
}
pub fn heads() -> Vec<Program> {
    let mut all = vec![DeviceLinearF32::program(false), DeviceLinearF32::program(true)];
    for stream in STREAMS { for store in [DeviceStore::Codes(quantizer()), DeviceStore::Float, DeviceStore::FakeFloat(quantizer())] {
        all.push(DevicePool::program(stream, store));
    }}
    all
}
