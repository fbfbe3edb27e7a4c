//! Tests memory, streams, graphs and cuBLASLt on a GPU. Without a GPU they are skipped; with
//! `REQUIRE_IMPL=cuda` they fail.

use swinq_cuda::ops::norm::DeviceNorm;
use swinq_cuda::ops::{DeviceStore, ResidualType, RowOrder};
use swinq_cuda::{CudaError, Device, DeviceBuf, Event, FloatKind, Lt, LtPlan, Output, PinnedBuf, Stream};

/// The first GPU. Without one, says that the test is skipped, or fails if `REQUIRE_IMPL` contains `cuda`.
pub fn device() -> Option<Device> {
    match Device::open(0) {
        Ok(device) => {
            println!("{} {} {}", device.name(), device.arch(), device.uuid());
            Some(device)
        }
        Err(error) => {
            let required =
                std::env::var("REQUIRE_IMPL").is_ok_and(|names| names.split(',').any(|n| n == "cuda"));
            assert!(!required, "{error}");
            println!("SKIPPED: {error}");
            None
        }
    }
}

#[test]
fn the_facts_of_the_device_are_plausible() {
    let Some(device) = device() else { return };
    assert!(Device::count().unwrap() > 0);
    assert!(device.multiprocessors() > 0 && device.shared_per_block() >= 48 << 10 && device.l2_bytes() > 0);
    assert!(device.clock_khz() > 0 && device.memory_clock_khz() > 0 && device.bus_width_bits() > 0);
    let (free, total) = device.memory().unwrap();
    assert!(free <= total && total > 1 << 30);
    assert!(matches!(Device::open(usize::MAX), Err(CudaError::NoDevice(_))));
}

#[test]
fn what_is_copied_comes_back() {
    let Some(device) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let values: Vec<i32> = (0..100_003).collect();
    let buf = DeviceBuf::from_slice(&device, &values).unwrap();
    let mut found = vec![0; values.len()];
    buf.all().copy_to(&stream, &mut found).unwrap();
    assert_eq!(found, values);
    let part = buf.slice(40, 4 * 20).slice(8, 8);
    drop(buf);
    part.copy_from(&stream, &[[7_i16; 2]; 2]).unwrap();
    let mut pair = [0_u32; 2];
    part.copy_to(&stream, &mut pair).unwrap();
    assert_eq!(pair, [0x0007_0007; 2]);
    let zeros = DeviceBuf::zeroed(&device, 1000).unwrap();
    let mut bytes = vec![1_u8; 1000];
    zeros.all().copy_to(&stream, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    let empty = DeviceBuf::from_slice::<f32>(&device, &[]).unwrap();
    empty.all().copy_to::<f32>(&stream, &mut []).unwrap();
}

#[test]
fn too_much_memory_is_an_error_with_its_sizes() {
    let Some(device) = device() else { return };
    let (_, total) = device.memory().unwrap();
    match DeviceBuf::new(&device, 2 * total).map(|_| ()) {
        Err(CudaError::OutOfMemory { bytes, total: of, .. }) => assert!(bytes == 2 * total && of == total),
        other => panic!("{other:?}"),
    }
}

#[test]
#[should_panic(expected = "device slice")]
fn a_slice_outside_its_buffer_panics() {
    match device() {
        Some(device) => drop(DeviceBuf::new(&device, 16).unwrap().slice(8, 9)),
        None => panic!("no device slice without a device"),
    }
}

#[test]
fn a_graph_repeats_its_copies_and_keeps_its_memory() {
    let Some(device) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let mut input = PinnedBuf::new(&device, 400).unwrap();
    let output = PinnedBuf::new(&device, 400).unwrap();
    let buf = DeviceBuf::zeroed(&device, 400).unwrap();
    let record = || {
        // SAFETY: both pinned buffers outlive the graph, and are accessed only after `synchronize`.
        unsafe {
            buf.all().copy_from_pinned(&stream, &input, 0..400)?;
            buf.slice(0, 40).fill_zero(&stream)?;
            buf.all().copy_to_pinned(&stream, &output, 0..400)
        }
    };
    let graph = stream.capture(record).unwrap();
    drop(buf);
    assert!(output.as_slice::<f32>().iter().all(|x| *x == 0.0), "capturing does no work");
    graph.upload(&stream).unwrap();
    for run in 1..4 {
        input.as_mut_slice::<f32>().fill(run as f32);
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let (zeros, rest) = output.as_slice::<f32>().split_at(10);
        assert!(zeros.iter().all(|x| *x == 0.0) && rest.iter().all(|x| *x == run as f32));
    }
}

#[test]
fn a_capture_that_fails_leaves_the_stream_usable() {
    let Some(device) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let buf = DeviceBuf::zeroed(&device, 16).unwrap();
    let refused = stream.capture(|| buf.all().copy_from(&stream, &[1_u8; 16])).map(|_| ());
    assert!(matches!(refused, Err(CudaError::Unsupported(_))), "{refused:?}");
    assert!(stream.capture(|| Err::<(), _>(CudaError::NoDevice("mine".into()))).is_err());
    let record = || -> Result<(), CudaError> { panic!("while recording") };
    let panics = || stream.capture(record).map(|_| ());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    let mut found = [1_u8; 16];
    buf.all().copy_to(&stream, &mut found).unwrap();
    assert_eq!(found, [0; 16]);
    stream.capture(|| buf.all().fill_zero(&stream)).unwrap().launch(&stream).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn events_measure_and_order() {
    let Some(device) = device() else { return };
    let (first, second) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let (start, end) = (Event::new(&device).unwrap(), Event::new(&device).unwrap());
    let buf = DeviceBuf::new(&device, 64 << 20).unwrap();
    start.record(&first).unwrap();
    (0..10).for_each(|_| buf.all().fill_zero(&first).unwrap());
    end.record(&first).unwrap();
    second.wait(&end).unwrap();
    second.synchronize().unwrap();
    let ms = Event::elapsed_ms(&start, &end).unwrap();
    assert!(ms > 0.0 && ms < 1000.0, "{ms} ms");
}

#[test]
fn threads_share_a_device() {
    let Some(device) = device() else { return };
    std::thread::scope(|scope| {
        for i in 0..8_u8 {
            let device = &device;
            scope.spawn(move || {
                let stream = Stream::new(device).unwrap();
                let buf = DeviceBuf::zeroed(device, 4096).unwrap();
                for _ in 0..50 {
                    buf.all().copy_from(&stream, &[i; 4096]).unwrap();
                    let mut found = [0; 4096];
                    buf.all().copy_to(&stream, &mut found).unwrap();
                    assert_eq!(found, [i; 4096]);
                }
                let graph = stream.capture(|| buf.all().fill_zero(&stream)).unwrap();
                graph.launch(&stream).unwrap();
                stream.synchronize().unwrap();
            });
        }
    });
}

#[test]
fn cublaslt_computes_the_known_product_and_refuses_what_it_cannot() {
    let Some(device) = device() else { return };
    let lt = Lt::new(&device).unwrap();
    lt.verify().unwrap();
    let stream = Stream::new(&device).unwrap();
    assert!(LtPlan::new(&lt, 3, 24, 32, Output::S32).is_err(), "24 columns");
    let plan = LtPlan::new(&lt, 3, 32, 64, Output::S32).unwrap().remove(0);
    println!("{plan:?}");
    let [a, w, d] =
        [3 * 64, 32 * 64, 3 * 32 * 4].map(|bytes| DeviceBuf::zeroed(&device, bytes).unwrap().all());
    plan.run(&lt, &stream, &a, &w, None, &d).unwrap();
    plan.run(&lt, &stream, &a.slice(0, 100), &w, None, &d).unwrap_err();
    plan.run(&lt, &stream, &a, &w, Some(&d), &d).unwrap_err();
    let shifted = DeviceBuf::zeroed(&device, 200).unwrap().slice(8, 192);
    plan.run(&lt, &stream, &shifted, &w, None, &d).unwrap_err();
    stream.synchronize().unwrap();
}

#[test]
fn float_products_are_the_products() {
    let Some(device) = device() else { return };
    let lt = Lt::new(&device).unwrap();
    let stream = Stream::new(&device).unwrap();
    let a: Vec<f32> = (0..5 * 32).map(|i| (i % 7) as f32 - 3.0).collect();
    let w: Vec<f32> = (0..16 * 32).map(|i| (i % 5) as f32 - 2.0).collect();
    let dot = |i: usize| -> f32 {
        a[i / 16 * 32..][..32].iter().zip(&w[i % 16 * 32..][..32]).map(|(x, y)| x * y).sum()
    };
    let expected: Vec<f32> = (0..5 * 16).map(dot).collect();
    let [a, w] = [a, w].map(|values| DeviceBuf::from_slice(&device, &values).unwrap().all());
    for kind in [FloatKind::F32, FloatKind::Tf32] {
        for plan in LtPlan::float(&lt, 5, 16, 32, kind).unwrap() {
            let d = DeviceBuf::zeroed(&device, 5 * 16 * 4).unwrap().all();
            plan.run(&lt, &stream, &a, &w, None, &d).unwrap();
            let mut found = vec![0.0_f32; 5 * 16];
            d.copy_to(&stream, &mut found).unwrap();
            assert_eq!(found, expected, "{plan:?}");
        }
    }
    for kind in [FloatKind::F16, FloatKind::F16ToF32] {
        assert!(!LtPlan::float(&lt, 5, 16, 32, kind).unwrap().is_empty());
    }
}

#[test]
fn memory_is_filled_with_copies_of_a_pattern() {
    let Some(device) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let pattern = DeviceBuf::from_slice(&device, &[1_u8, 2, 3]).unwrap();
    let filled = DeviceBuf::zeroed(&device, 8).unwrap();
    filled.slice(0, 7).fill_with(&stream, &pattern.all()).unwrap();
    let mut bytes = [9_u8; 8];
    filled.all().copy_to(&stream, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 1, 2, 3, 1, 0]);
}

/// A stream must keep a kernel loaded until its work is done, even if the kernel has been dropped.
#[test]
fn kernels_are_unloaded_when_their_work_is_done() {
    let Some(device) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let model =
        DeviceNorm::rows(&device, (&[1.0; 96], &[0.0; 96]), 1e-5, ResidualType::F32, DeviceStore::Float);
    let norm = model.unwrap();
    let rows = 1 << 14;
    let input = DeviceBuf::from_slice(&device, &vec![1.0_f32; rows * 96]).unwrap();
    let out = DeviceBuf::zeroed(&device, rows * 96 * 4).unwrap();
    let flag = DeviceBuf::zeroed(&device, 4).unwrap();
    for _ in 0..50 {
        norm.run(&stream, (1, RowOrder::Tokens(rows)), &input.all(), &out.all(), &flag.all()).unwrap();
    }
    drop(norm);
    device.unload_unused();
    stream.synchronize().unwrap();
    let mut values = vec![1.0_f32; rows * 96];
    out.all().copy_to(&stream, &mut values).unwrap();
    assert!(values.iter().all(|&value| value == 0.0));
    device.unload_unused();
    stream.synchronize().unwrap();
}

/// Needs two GPUs.
#[test]
fn memory_and_kernels_of_another_gpu_are_refused() {
    let Some(first) = device() else { return };
    let Ok(second) = Device::open(1) else { return println!("SKIPPED: there is one GPU") };
    let stream = Stream::new(&second).unwrap();
    let here = DeviceBuf::zeroed(&second, 1 << 10).unwrap();
    let there = DeviceBuf::zeroed(&first, 1 << 10).unwrap();
    here.all().fill_with(&stream, &here.slice(0, 4)).unwrap();
    let refused = std::panic::catch_unwind(|| stream.hold(&there.all()));
    assert!(refused.is_err(), "memory of another GPU");
    let norm = DeviceNorm::rows(&first, (&[1.0; 8], &[0.0; 8]), 1e-5, ResidualType::F32, DeviceStore::Float);
    let (x, out, flag) = (here.slice(0, 64), here.slice(256, 64), here.slice(512, 4));
    let launched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        norm.unwrap().run(&stream, (1, RowOrder::Tokens(2)), &x, &out, &flag)
    }));
    assert!(!matches!(launched, Ok(Ok(()))), "a kernel of another GPU");
}
