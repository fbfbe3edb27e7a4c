//! Inference on streams of the caller, from and to memory of a GPU. Without a GPU the tests print that they
//! are skipped, or fail if `REQUIRE_IMPL` names `cuda`.

use half::{bf16, f16};
use swinq_cuda::ops::output::OutputType;
use swinq_cuda::ops::patch::InputType;
use swinq_cuda::{DeviceBuf, DeviceSlice, Stream};
use swinq_int8_runtime::cuda::{CudaOptions, Gemm, ResidualType};
use swinq_int8_runtime::{
    Backend, DeviceImages, DeviceOutput, Engine, ImageLayout, Images, OutputLayout, OutputMut, Pixels,
    RuntimeError,
};
use swinq_model::quantized::Param;
use swinq_model::{QuantizedModel, Size, SwinConfig};

use crate::common::gpu;
use crate::cuda::{float, images_of, options, quantized, small};
use crate::cuda_backbones::{first, second};

const SIZE: Size = Size::new(65, 97);

fn engine(model: &QuantizedModel, residual: ResidualType) -> Engine {
    Engine::new(model, Backend::Cuda(options(residual, Gemm::Own))).unwrap()
}

/// Memory of every output of `images` images, and how the values are written.
struct Written {
    memory: Vec<DeviceBuf>,
    slices: Vec<DeviceSlice>,
    names: Vec<String>,
    element: OutputType,
    layout: OutputLayout,
}

impl Written {
    fn new(engine: &Engine, size: Size, images: usize, element: OutputType, layout: OutputLayout) -> Written {
        let bytes = |output| images * engine.output_shape(output, size).values() * element.bytes();
        let device = engine.device().unwrap();
        // Bytes that are numbers in no type.
        let memory =
            engine.outputs().iter().map(|o| DeviceBuf::from_slice(device, &vec![0xff_u8; bytes(o)]).unwrap());
        let memory: Vec<DeviceBuf> = memory.collect();
        let slices = memory.iter().map(DeviceBuf::all).collect();
        let names = engine.outputs().iter().map(|output| output.name.clone()).collect();
        Written { memory, slices, names, element, layout }
    }

    fn outputs(&self) -> Vec<DeviceOutput<'_>> {
        let (element, layout) = (self.element, self.layout);
        let named = self.names.iter().zip(&self.slices);
        named.map(|(name, values)| DeviceOutput { name, values, element, layout }).collect()
    }

    /// The values, after the work on `stream`.
    fn read(&self, stream: &Stream) -> Vec<Vec<f32>> {
        let values = |buf: &DeviceBuf| {
            let mut bytes = vec![0_u8; buf.len_bytes()];
            buf.all().copy_to(stream, &mut bytes).unwrap();
            let pair = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
            match self.element {
                OutputType::F32 => {
                    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
                }
                OutputType::F16 => bytes.chunks_exact(2).map(|b| f16::from_bits(pair(b)).to_f32()).collect(),
                OutputType::Bf16 => {
                    bytes.chunks_exact(2).map(|b| bf16::from_bits(pair(b)).to_f32()).collect()
                }
            }
        };
        self.memory.iter().map(values).collect()
    }
}

/// The outputs of `images` from host memory, rounded to `element`.
fn expected(engine: &Engine, images: Images<'_>, count: usize, written: &Written) -> Vec<Vec<f32>> {
    let length = |output| count * engine.output_shape(output, images.size).values();
    let mut values: Vec<Vec<f32>> = engine.outputs().iter().map(|o| vec![0.0; length(o)]).collect();
    let named = engine.outputs().iter().zip(&mut values);
    let mut memory: Vec<OutputMut<'_>> = named
        .map(|(output, values)| OutputMut::new(&output.name, values).in_layout(written.layout))
        .collect();
    engine.run(images, &mut memory).unwrap();
    let round = |x: &f32| match written.element {
        OutputType::F32 => *x,
        OutputType::F16 => f16::from_f32(*x).to_f32(),
        OutputType::Bf16 => bf16::from_f32(*x).to_f32(),
    };
    values.iter().map(|values| values.iter().map(round).collect()).collect()
}

/// Pixels on the GPU.
fn uploaded(engine: &Engine, pixels: &[u8]) -> DeviceSlice {
    DeviceBuf::from_slice(engine.device().unwrap(), pixels).unwrap().all()
}

fn pixels_of(values: &DeviceSlice, size: Size) -> DeviceImages<'_> {
    DeviceImages { size, values, element: InputType::U8, layout: ImageLayout::ChannelsLast }
}

#[test]
fn a_stream_of_the_caller_computes_what_a_run_from_the_host_does() {
    if !gpu("a_stream_of_the_caller_computes_what_a_run_from_the_host_does") {
        return;
    }
    for config in [first(), second(), small()] {
        let model = quantized(&float(config.clone()), "default");
        let engine = engine(&model, ResidualType::F32);
        let stream = Stream::new(engine.device().unwrap()).unwrap();
        // Batches that are padded, and that run in two parts; images of the own size and of another.
        for (size, count) in [(SIZE, 3), (SIZE, 7), (Size::square(56), 4), (Size::square(56), 1)] {
            if config.grids(size).is_err() {
                continue;
            }
            let bytes = images_of(&model, size, count);
            let floats: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 61.7 - 2.1).collect();
            let halves: Vec<f16> = floats.iter().map(|&value| f16::from_f32(value)).collect();
            let device = engine.device().unwrap();
            let bits: Vec<u16> = halves.iter().map(|value| value.to_bits()).collect();
            let forms = [
                (Pixels::U8(&bytes), InputType::U8, DeviceBuf::from_slice(device, &bytes)),
                (Pixels::F32(&floats), InputType::F32, DeviceBuf::from_slice(device, &floats)),
                (Pixels::F16(&halves), InputType::F16, DeviceBuf::from_slice(device, &bits)),
            ];
            for (pixels, element, memory) in forms {
                let memory = memory.unwrap();
                for (layout, out, out_layout) in [
                    (ImageLayout::ChannelsLast, OutputType::F32, OutputLayout::Rows),
                    (ImageLayout::ChannelsFirst, OutputType::F16, OutputLayout::ChannelsFirst),
                    (ImageLayout::ChannelsFirst, OutputType::Bf16, OutputLayout::ChannelsFirst),
                ] {
                    let written = Written::new(&engine, size, count, out, out_layout);
                    let images = DeviceImages { size, values: &memory.all(), element, layout };
                    engine.run_on(&stream, images, &written.outputs()).unwrap();
                    let found = written.read(&stream);
                    let expected = expected(&engine, Images { size, pixels, layout }, count, &written);
                    assert!(found == expected, "{}, {size}, {count}, {element:?}, {out:?}", config.name);
                }
            }
        }
        engine.check().unwrap();
    }
}

#[test]
fn streams_run_at_the_same_time_more_of_them_than_have_memory() {
    if !gpu("streams_run_at_the_same_time_more_of_them_than_have_memory") {
        return;
    }
    let model = quantized(&float(first()), "default");
    let options = CudaOptions { max_streams: 2, ..options(ResidualType::F16, Gemm::Own) };
    let engine = Engine::new(&model, Backend::Cuda(options)).unwrap();
    let sizes = [SIZE, Size::square(56), Size::new(130, 61), Size::new(20, 24)];
    std::thread::scope(|scope| {
        for (index, size) in sizes.into_iter().enumerate() {
            let (engine, model) = (&engine, &model);
            scope.spawn(move || {
                let pixels = images_of(model, size, 2 + index % 2);
                let count = 2 + index % 2;
                let stream = Stream::new(engine.device().unwrap()).unwrap();
                let memory = uploaded(engine, &pixels);
                let all: Vec<Written> = (0..20)
                    .map(|_| Written::new(engine, size, count, OutputType::F32, OutputLayout::ChannelsFirst))
                    .collect();
                for written in &all {
                    engine.run_on(&stream, pixels_of(&memory, size), &written.outputs()).unwrap();
                }
                let expected = expected(engine, Images::new(size, &pixels[..]), count, &all[0]);
                for written in &all {
                    assert!(written.read(&stream) == expected, "{size}");
                }
            });
        }
    });
    engine.check().unwrap();
}

#[test]
fn a_recorded_graph_computes_new_images_whatever_the_engine_does_meanwhile() {
    if !gpu("a_recorded_graph_computes_new_images_whatever_the_engine_does_meanwhile") {
        return;
    }
    let model = quantized(&float(first()), "default");
    let options = CudaOptions { max_streams: 2, ..options(ResidualType::F16, Gemm::Own) };
    let engine = Engine::new(&model, Backend::Cuda(options)).unwrap();
    let stream = Stream::new(engine.device().unwrap()).unwrap();
    let written = Written::new(&engine, SIZE, 3, OutputType::F16, OutputLayout::ChannelsFirst);
    let (one, other) = (images_of(&model, SIZE, 6), images_of(&model, SIZE, 7));
    let (one, other) = (&one[..one.len() / 2], &other[other.len() / 7..other.len() / 7 * 4]);
    let memory = uploaded(&engine, one);
    let record = || stream.capture(|| engine.run_on(&stream, pixels_of(&memory, SIZE), &written.outputs()));

    let error = record().map(drop).unwrap_err();
    assert!(matches!(error, RuntimeError::NotPrepared { images: 3, size: SIZE }), "{error}");
    engine.prepare_on(&stream, SIZE, 3).unwrap();
    let graph = record().unwrap();
    // The runner of the stream belongs to the graph now.
    let error = record().map(drop).unwrap_err();
    assert!(matches!(error, RuntimeError::NotPrepared { .. }), "{error}");
    for pixels in [one, other] {
        memory.copy_from(&stream, pixels).unwrap();
        graph.launch(&stream).unwrap();
        let found = written.read(&stream);
        // Larger images than the graph's, which would move its memory.
        let large = Size::new(256, 704);
        let pixels_of_large = images_of(&model, large, 1);
        let map = Written::new(&engine, large, 1, OutputType::F32, OutputLayout::Rows);
        engine
            .run_on(&stream, pixels_of(&uploaded(&engine, &pixels_of_large), large), &map.outputs())
            .unwrap();
        assert!(found == expected(&engine, Images::new(SIZE, pixels), 3, &written));
    }
    // A second graph takes the last runner, and no stream has one then.
    engine.prepare_on(&stream, SIZE, 3).unwrap();
    let second = record().unwrap();
    let error = engine.prepare_on(&stream, SIZE, 3).unwrap_err();
    assert!(matches!(error, RuntimeError::Streams { most: 2 }), "{error}");
    drop(second);
    stream.synchronize().unwrap();
    engine.prepare_on(&stream, SIZE, 3).unwrap();
    // The graph outlives its engine.
    let last = expected(&engine, Images::new(SIZE, one), 3, &written);
    drop(engine);
    memory.copy_from(&stream, one).unwrap();
    graph.launch(&stream).unwrap();
    assert!(written.read(&stream) == last);
}

#[test]
fn a_value_that_is_not_finite_makes_every_output_nan_and_the_next_call_an_error() {
    if !gpu("a_value_that_is_not_finite_makes_every_output_nan_and_the_next_call_an_error") {
        return;
    }
    let model = quantized(&float(first()), "default");
    let engine = engine(&model, ResidualType::F16);
    let stream = Stream::new(engine.device().unwrap()).unwrap();
    let written = Written::new(&engine, SIZE, 1, OutputType::F16, OutputLayout::ChannelsFirst);
    let values: Vec<f32> =
        images_of(&model, SIZE, 1).iter().map(|&byte| f32::from(byte) / 99.0 - 1.0).collect();
    let memory = DeviceBuf::from_slice(engine.device().unwrap(), &values).unwrap().all();
    let (element, layout) = (InputType::F32, ImageLayout::ChannelsFirst);
    let images = DeviceImages { size: SIZE, values: &memory, element, layout };
    engine.run_on(&stream, images, &written.outputs()).unwrap();
    let sound = written.read(&stream);
    assert!(sound.iter().flatten().all(|value| value.is_finite()));
    for bad in [f32::NAN, f32::INFINITY] {
        memory.slice(4 * 777, 4).copy_from(&stream, &[bad]).unwrap();
        engine.run_on(&stream, images, &written.outputs()).unwrap();
        assert!(written.read(&stream).iter().flatten().all(|value| value.is_nan()));
        let error = engine.run_on(&stream, images, &written.outputs()).unwrap_err().to_string();
        assert!(error.contains("a value of the images is NaN or infinite"), "{error}");
        memory.slice(4 * 777, 4).copy_from(&stream, &[values[777]]).unwrap();
        engine.run_on(&stream, images, &written.outputs()).unwrap();
        assert!(written.read(&stream) == sound, "an error is told once, and spoils no later call");
        engine.check().unwrap();
    }
}

#[test]
fn an_overflow_of_the_residual_or_of_an_output_is_told_with_its_launch_or_its_name() {
    if !gpu("an_overflow_of_the_residual_or_of_an_output_is_told_with_its_launch_or_its_name") {
        return;
    }
    let bias = "layers.1.blocks.0.mlp.fc2.bias";
    for (residual, told) in [(ResidualType::F16, "layers.1.blocks.0.mlp"), (ResidualType::F32, "stage2")] {
        let mut model = quantized(&float(SwinConfig { depths: vec![2, 1, 1], ..first() }), "float");
        let mut huge = model.params[bias].to_float();
        huge.data.fill(1e5);
        model.params.insert(bias.to_owned(), Param::Float(huge));
        let engine = engine(&model, residual);
        let stream = Stream::new(engine.device().unwrap()).unwrap();
        let written = Written::new(&engine, SIZE, 1, OutputType::F16, OutputLayout::Rows);
        let memory = uploaded(&engine, &images_of(&model, SIZE, 1));
        engine.run_on(&stream, pixels_of(&memory, SIZE), &written.outputs()).unwrap();
        let values = written.read(&stream);
        assert!(values[1].iter().any(|value| !value.is_finite()));
        let error = engine.check().unwrap_err();
        assert!(
            matches!(error, RuntimeError::EarlierRun { .. }) && error.to_string().contains(told),
            "{error}"
        );
        engine.check().unwrap();
    }
}

#[test]
fn memory_that_does_not_hold_the_values_is_refused() {
    if !gpu("memory_that_does_not_hold_the_values_is_refused") {
        return;
    }
    let model = quantized(&float(first()), "default");
    let engine = engine(&model, ResidualType::F16);
    let device = engine.device().unwrap();
    let stream = Stream::new(device).unwrap();
    let buf = DeviceBuf::new(device, 1 << 20).unwrap();
    let image = buf.slice(0, SIZE.area() * 3);
    let map = engine.output_shape(&engine.outputs()[0], SIZE).values();
    let run = |images: DeviceImages<'_>, name: &str, values: &DeviceSlice| {
        let output = DeviceOutput { name, values, element: OutputType::F16, layout: OutputLayout::Rows };
        engine.run_on(&stream, images, &[output]).unwrap_err().to_string()
    };
    let (sound, place) = (pixels_of(&image, SIZE), buf.slice(1 << 16, 2 * map));
    assert!(run(sound, "stage9", &place).contains("stage1"));
    assert!(run(sound, "stage1", &buf.slice(1 << 16, 2 * map - 2)).contains("room for"));
    assert!(run(sound, "stage1", &buf.slice((1 << 16) + 1, 2 * map)).contains("multiple of 2"));
    assert!(run(sound, "stage1", &buf.slice(1024, 2 * map)).contains("overlaps"));
    let short = buf.slice(0, SIZE.area() * 3 - 1);
    assert!(run(pixels_of(&short, SIZE), "stage1", &place).contains("images"));
    let two = [(); 2].map(|()| DeviceOutput {
        name: "stage1",
        values: &place,
        element: OutputType::F16,
        layout: OutputLayout::Rows,
    });
    assert!(matches!(engine.run_on(&stream, sound, &two), Err(RuntimeError::Output { .. })));
}
