//! Workloads whose machine code is counted: each is run once, and its launches are named for scripts/device_counts.

use windrow::{Collate, DType, Engine, Transform};

use super::catalogue::{
    clips, detection, environments, graphs, images, normalised, part, rows, tokens, Entry,
};
use super::contenders;
use super::gpu::{Gpu, Outcome};
use super::workloads::{Lie, Part, Random};

/// What numbers of samples are divided by.
#[derive(Clone, Copy)]
pub struct Scale(pub usize);

impl Scale {
    fn of(self, count: usize) -> usize {
        count.div_ceil(self.0)
    }
}

/// One row of benches/device-instructions.json.
struct Counted {
    name: &'static str,
    entry: Entry,
}

/// One cast of adjacent elements, in rows of some 16,000.
fn casts(count: usize, from: DType, to: DType) -> Vec<Part> {
    vec![part("", from, vec![vec![16_384]; count], Collate::stack().cast(to))]
}

/// Rows of 128 numbers.
fn lookups(count: usize) -> Vec<Part> {
    vec![part("", DType::F32, vec![vec![128]; count], Collate::stack())]
}

/// Token rows of 64 to 256.
fn short_tokens(count: usize) -> Vec<Part> {
    let mut random = Random(17);
    let shapes = (0..count).map(|_| vec![64 + random.below(193) as i64]).collect();
    vec![part("", DType::I32, shapes, Collate::ragged().cast(DType::I64))]
}

fn permuted(count: usize, (from, to): (DType, DType), shape: &[i64], order: &[i64]) -> Vec<Part> {
    let transform = Transform::new().permute(order);
    let collate = Collate::stack().cast(to).transform(transform);
    vec![part("", from, vec![shape.to_vec(); count], collate)]
}

fn games(count: usize, affine: bool) -> Vec<Part> {
    let map = Transform::new().scale(1.0 / 255.0).mean([0.45]).std([0.225]);
    let collate = Collate::stack().cast(DType::F16);
    let collate = if affine { collate.transform(map) } else { collate };
    vec![part("", DType::U8, vec![vec![4, 84, 84]; count], collate)]
}

fn all(scale: Scale) -> Vec<Counted> {
    use Lie::{Contiguous, Misaligned, Rows, Scattered};
    let mut all = Vec::new();
    let mut add = |name, lie, parts: fn(Scale) -> Vec<Part>| {
        all.push(Counted { name, entry: Entry::new(name, name, lie, move || parts(scale)) });
    };
    add("W1 f16", Scattered, |scale| images(scale.of(256), 224, DType::F16));
    add("W1 f32", Scattered, |scale| images(scale.of(256), 224, DType::F32));
    add("W2", Scattered, |scale| tokens(scale.of(4096), DType::I64));
    add("W2b", Scattered, |scale| tokens(scale.of(4096), DType::I32));
    add("W3 address", Scattered, |scale| lookups(scale.of(100_000)));
    add("W3 id", Rows, |scale| lookups(scale.of(100_000)));
    add("W4a", Scattered, |scale| clips(scale.of(512), DType::F32, Collate::ragged()));
    add("W4b", Scattered, |scale| {
        clips(scale.of(512), DType::I16, Collate::ragged().cast(DType::F32))
    });
    add("W4c", Scattered, |scale| {
        let padded = Collate::pad(windrow::Pad::new().size(240_000));
        clips(scale.of(512), DType::I16, padded.cast(DType::F32))
    });
    add("W5", Scattered, |scale| environments(scale.of(4096)));
    add("W5b", Scattered, |scale| games(scale.of(256), false));
    add("W5b affine", Scattered, |scale| games(scale.of(256), true));
    add("W6", Scattered, |scale| rows(scale.of(4096), 32 << 10));
    add("W7", Scattered, |scale| detection(scale.of(32)));
    add("W9", Scattered, |scale| graphs(scale.of(256)));
    add("W10a", Misaligned, |scale| rows(scale.of(100_000), 77));
    add("W10b", Misaligned, |scale| images(scale.of(256), 225, DType::F16));
    add("one tensor", Contiguous, |scale| rows(1, scale.of(64 << 20)));
    add("512 B misaligned", Misaligned, |scale| rows(scale.of(131_072), 512));
    add("32 KiB misaligned", Misaligned, |scale| rows(scale.of(2048), 32 << 10));
    add("short ragged i32 to i64", Scattered, |scale| short_tokens(scale.of(8192)));
    add("i64 to i32", Scattered, |scale| casts(scale.of(256), DType::I64, DType::I32));
    add("f32 to f16", Scattered, |scale| casts(scale.of(256), DType::F32, DType::F16));
    add("f16 to f32", Scattered, |scale| casts(scale.of(256), DType::F16, DType::F32));
    // Several under one name: the dearest of them is the row.
    add("f64", Scattered, |scale| casts(scale.of(256), DType::F64, DType::F32));
    add("f64", Scattered, |scale| casts(scale.of(256), DType::F32, DType::F64));
    for parts in STRIDED {
        add("strided worst", Scattered, parts);
    }
    all
}

/// Elements that are apart on one side.
const STRIDED: [fn(Scale) -> Vec<Part>; 7] = [
    |scale| permuted(scale.of(64), (DType::F32, DType::F32), &[256, 256], &[1, 0]),
    |scale| permuted(scale.of(64), (DType::U8, DType::U8), &[256, 256], &[1, 0]),
    |scale| permuted(scale.of(64), (DType::U8, DType::F16), &[256, 256], &[1, 0]),
    |scale| permuted(scale.of(64), (DType::F64, DType::I16), &[200, 100], &[1, 0]),
    |scale| permuted(scale.of(64), (DType::U8, DType::U8), &[3, 224, 224], &[1, 2, 0]),
    |scale| permuted(scale.of(64), (DType::I64, DType::F32), &[64, 8, 80], &[1, 2, 0]),
    // f32 pixels to planes, normalised.
    |scale| {
        let collate = Collate::stack().cast(DType::BF16).transform(normalised());
        vec![part("", DType::F32, vec![vec![112, 112, 3]; scale.of(64)], collate)]
    },
];

/// Assembles each once and compares everything; prints what it was, one line of JSON each.
pub fn run(engine: &Engine, only: Option<&str>, scale: Scale) -> Outcome {
    let gpu = Gpu::new()?;
    for Counted { name, entry } in all(scale) {
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let workload = entry.make();
        let set = workload.set(false)?;
        super::poison(&gpu, &set)?;
        let before = engine.stats();
        let fields = contenders::windrow(&gpu, engine, &workload, &set, &set.samples)?;
        gpu.synchronize()?;
        let after = engine.stats();
        let launches = after.launches - before.launches;
        let uploaded = after.bytes_to_device - before.bytes_to_device;
        super::same_data(&workload, &set, name)?;
        super::same_fields(&workload, &fields)?;
        println!(
            "{{\"workload\": \"{name}\", \"launches\": {launches}, \"uploaded\": {uploaded}, \
             \"samples\": {}, \"read\": {}, \"written\": {}}}",
            workload.num_samples(),
            workload.bytes_read,
            workload.bytes_written
        );
    }
    Ok(())
}
