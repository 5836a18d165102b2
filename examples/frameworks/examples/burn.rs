//! A `Batcher` for burn's data loader: images as they were decoded, u8 in rows of pixels, to one
//! normalised batch of float planes, in one pass.
//!
//! `cargo run --example burn --features burn`

use burn::backend::ndarray::{NdArray, NdArrayDevice};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use windrow::{Collate, Engine, SampleView, Transform};
use windrow_framework_examples::{assemble, Outcome};

const SHAPE: [i64; 3] = [24, 32, 3];
const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STD: [f64; 3] = [0.229, 0.224, 0.225];

/// An image and its label.
#[derive(Clone, Debug)]
struct Item {
    pixels: Vec<u8>,
    label: i64,
}

/// The input of a model.
#[derive(Clone, Debug)]
struct ImageBatch<B: Backend> {
    pixels: Tensor<B, 4>,
    labels: Tensor<B, 1, Int>,
}

#[derive(Clone)]
struct ImageBatcher {
    engine: Engine,
    collate: Collate,
}

impl ImageBatcher {
    fn new() -> ImageBatcher {
        let normal = Transform::new().scale(1.0 / 255.0).mean(MEAN).std(STD).permute([2, 0, 1]);
        ImageBatcher { engine: Engine::host(), collate: Collate::stack().transform(normal) }
    }
}

impl<B: Backend> Batcher<B, Item, ImageBatch<B>> for ImageBatcher {
    fn batch(&self, items: Vec<Item>, device: &B::Device) -> ImageBatch<B> {
        let samples: windrow::Result<Vec<_>> =
            items.iter().map(|item| SampleView::from_slice(&item.pixels, &SHAPE)).collect();
        let batch = samples.and_then(|samples| assemble(&self.engine, &samples, &self.collate));
        // burn's trait has no errors: images of another size end the loader's thread.
        let (pixels, shape, _): (Vec<f32>, _, _) = batch.unwrap_or_else(|error| panic!("{error}"));
        let labels: Vec<i64> = items.iter().map(|item| item.label).collect();
        ImageBatch {
            pixels: Tensor::from_data(TensorData::new(pixels, shape), device),
            labels: Tensor::from_data(TensorData::new(labels, [items.len()]), device),
        }
    }
}

fn main() -> Outcome<()> {
    let size = SHAPE.iter().product::<i64>() as usize;
    let pixel = |item: usize, at: usize| (item * 7 + at * 31 % 251) as u8;
    let items: Vec<Item> = (0..10)
        .map(|i| Item { pixels: (0..size).map(|at| pixel(i, at)).collect(), label: i as i64 })
        .collect();
    let loader = DataLoaderBuilder::<NdArray, _, _>::new(ImageBatcher::new())
        .batch_size(4)
        .set_device(NdArrayDevice::Cpu)
        .build(InMemDataset::new(items));
    let mut seen = 0;
    for batch in loader.iter() {
        let [count, channels, height, width] = batch.pixels.dims();
        println!("{count} images as {channels} planes of {height} x {width}");
        let values = batch.pixels.to_data().to_vec::<f32>().map_err(|error| format!("{error:?}"))?;
        for (at, value) in values.iter().enumerate() {
            let (plane, place) = (at / (height * width), at % (height * width));
            let (item, channel) = (seen + plane / 3, plane % 3);
            let x = f64::from(pixel(item, place * 3 + channel)) / 255.0;
            assert!((f64::from(*value) - (x - MEAN[channel]) / STD[channel]).abs() < 1e-5);
        }
        assert_eq!(batch.labels.dims(), [count]);
        seen += count;
    }
    assert_eq!(seen, 10);
    Ok(())
}
