//! Calls of the C interface after the first of a size allocate nothing on a CPU.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::path::Path;
use std::ptr::null;

use dhat::HeapStats;
use swinq_c::*;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

fn tensor(kind: (u32, u32), data: *mut std::ffi::c_void, extents: &[usize]) -> swinq_tensor {
    let mut shape = [0; 4];
    shape[..extents.len()].copy_from_slice(extents);
    swinq_tensor {
        size: size_of::<swinq_tensor>(),
        name: null(),
        data,
        r#type: kind.0,
        layout: kind.1,
        rank: extents.len(),
        shape,
        strides: [0; 4],
        device_type: SWINQ_DEVICE_HOST,
        device: 0,
    }
}

/// An engine with one thread on the sample in float.
fn engine() -> *mut swinq_engine {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/swin_micro_cifar10");
    let text = |name: &str| CString::new(sample.join(name).to_str().unwrap()).unwrap();
    let (path, cfg) = (text("model.safetensors"), text("cfg.yaml"));
    let open = swinq_open_options {
        size: size_of::<swinq_open_options>(),
        cfg: cfg.as_ptr(),
        labels: null(),
        orientation: null(),
        channels: null(),
        dialect: null(),
        prefix: null(),
        weights: null(),
    };
    let options = swinq_engine_options {
        size: size_of::<swinq_engine_options>(),
        backend: SWINQ_BACKEND_CPU,
        device: 0,
        threads: 1,
        max_batch: 2,
        residual_f32: 0,
        reserved: 0,
        max_pixels: 0,
        image_threads: 0,
        max_memory: 0,
        max_streams: 0,
    };
    let (mut model, mut engine) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers are those of the values above.
    unsafe {
        assert_eq!(swinq_model_open(path.as_ptr(), &open, &mut model), Status::Ok);
        assert_eq!(swinq_engine_new(model, &options, &mut engine), Status::Ok);
    }
    assert_eq!(swinq_model_free(model), Status::Ok);
    engine
}

#[test]
fn repeated_calls_allocate_nothing() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let engine = engine();
    let (mut pixels, mut logits) = (vec![9u8; 3 * 56 * 112 * 3], vec![0f32; 3 * 10]);
    let mut call = |number: usize| {
        let (images, width) = [(1, 56), (3, 56), (2, 112)][number % 3];
        let image = (SWINQ_TYPE_U8, SWINQ_LAYOUT_NHWC);
        let input = tensor(image, pixels.as_mut_ptr().cast(), &[images, 56, width, 3]);
        let mut output =
            tensor((SWINQ_TYPE_F32, SWINQ_LAYOUT_ROWS), logits.as_mut_ptr().cast(), &[images, 10]);
        output.name = c"logits".as_ptr();
        // SAFETY: the tensors have the memory that their shapes state.
        assert_eq!(unsafe { swinq_engine_run(engine, &input, 1, &output, 1, null()) }, Status::Ok);
    };
    (0..12).for_each(&mut call);
    // The harness's threads allocate now and then; a call that allocates does so in every round.
    let mut round = || {
        let before = HeapStats::get().total_blocks;
        (0..12).for_each(&mut call);
        HeapStats::get().total_blocks - before
    };
    assert_eq!((0..5).map(|_| round()).min(), Some(0));
    assert_eq!(swinq_engine_free(engine), Status::Ok);
}
