//! A batch of windrow's as the input of an ONNX Runtime session, without a copy.
//!
//! `cargo run --example ort --features ort -- path/to/libonnxruntime.so`; the PyPI package onnxruntime has
//! one in its folder `capi`. With the feature `cuda` too, and `--cuda`, the batch is assembled on a GPU and
//! read there.

use std::error::Error;

use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::tensor::Shape;
use ort::value::TensorRefMut;
use windrow::{Batch, Collate, DType, Device, Engine, SampleView, Transform};

/// Height and width of the images.
const SIDE: i64 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let on_gpu = arguments.iter().any(|argument| argument == "--cuda");
    let library = arguments.iter().find(|argument| !argument.starts_with("--"));
    let library = library.ok_or("usage: [--cuda] path/to/libonnxruntime.so")?;

    // Images in host memory, to one batch of floats in the order that models want.
    let size = (SIDE * SIDE * 3) as usize;
    let images: Vec<Vec<u8>> =
        (0..4).map(|i| (0..size).map(|j| (i * 40 + j % 3) as u8).collect()).collect();
    let shape = [SIDE, SIDE, 3];
    let samples = images.iter().map(|image| SampleView::from_slice(image, &shape));
    let samples = samples.collect::<windrow::Result<Vec<_>>>()?;
    let transform = Transform::new().scale(0.5).permute([2, 0, 1]);
    let mut collate = Collate::stack().cast(DType::F32).transform(transform);
    if on_gpu {
        collate = collate.device(Device::Cuda(0));
    }
    let batch = Engine::host().assemble(&samples, &collate)?;
    // The session has a stream of its own, which knows nothing of ours.
    batch.data().synchronize()?;

    ort::init_from(library).commit()?;
    let builder = Session::builder()?;
    #[cfg(feature = "cuda")]
    let builder = match on_gpu {
        true => builder.with_execution_providers([
            ort::execution_providers::CUDAExecutionProvider::default().build().error_on_failure(),
        ])?,
        false => builder,
    };
    let mut session = builder.commit_from_memory(&mean_of_planes())?;
    let outputs = session.run(ort::inputs!["x" => input(&batch)?])?;
    let (shape, means) = outputs["y"].try_extract_tensor::<f32>()?;
    println!("batch {:?} on {}, output {shape:?}", batch.data().shape(), batch.data().device());
    for (image, means) in means.chunks(3).enumerate() {
        println!("image {image}: mean of each plane {means:?}");
        let want: Vec<f32> = (0..3).map(|channel| 0.5 * (image * 40 + channel) as f32).collect();
        assert_eq!(means, want);
    }
    Ok(())
}

/// The memory of the batch as a tensor of ONNX Runtime's.
fn input(batch: &Batch) -> Result<TensorRefMut<'_, f32>, Box<dyn Error>> {
    let data = batch.data();
    assert!(data.dtype() == DType::F32 && data.layout().is_compact());
    let (device, ordinal) = match data.device() {
        Device::Cuda(ordinal) => (AllocationDevice::CUDA, ordinal as i32),
        _ => (AllocationDevice::CPU, 0),
    };
    let info = MemoryInfo::new(device, ordinal, AllocatorType::Device, MemoryType::Default)?;
    // SAFETY: row-major floats that the batch, which the result borrows, keeps alive. An input is only
    // read.
    Ok(unsafe {
        TensorRefMut::from_raw(
            info,
            data.data_ptr().cast(),
            Shape::new(data.shape().iter().copied()),
        )
    }?)
}

/// A model of one node, GlobalAveragePool from `x` to `y`, in ONNX's protobuf.
fn mean_of_planes() -> Vec<u8> {
    let message = |number: u8, parts: &[Vec<u8>]| {
        let body = parts.concat();
        [vec![number << 3 | 2, body.len() as u8], body].concat()
    };
    let text = |number, text: &str| message(number, &[text.into()]);
    let number = |field: u8, value: u8| vec![field << 3, value];
    // A value named so, of float tensors of any shape.
    let floats =
        |field, name| message(field, &[text(1, name), message(2, &[message(1, &[number(1, 1)])])]);
    let node = message(1, &[text(1, "x"), text(2, "y"), text(4, "GlobalAveragePool")]);
    let graph = message(7, &[node, text(2, "g"), floats(11, "x"), floats(12, "y")]);
    [number(1, 8), graph, message(8, &[text(1, ""), number(2, 13)])].concat()
}
