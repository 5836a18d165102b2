//! Workloads whose machine code is counted: each is run once, and its launches are named for scripts/device_counts.

use windrow::{Collate, DType, Engine, Transform};

use super::catalogue::{clips, detection, images, normalised, part, rows, tokens, Entry};
use super::contenders;
use super::gpu::{Gpu, Outcome};
use super::workloads::{Lie, Part, Random};

/// One row of benches/device-instructions.json: a workload at a part of its size.
struct Counted {
    name: &'static str,
    /// What the number of samples was divided by.
    scale: usize,
    entry: Entry,
}

/// One cast of adjacent elements, in rows of some 16,000.
fn casts(from: DType, to: DType) -> Vec<Part> {
    vec![part("", from, vec![vec![16_384]; 256], Collate::stack().cast(to))]
}

/// Token rows of 64 to 256.
fn short_tokens() -> Vec<Part> {
    let mut random = Random(17);
    let shapes = (0..8192).map(|_| vec![64 + random.below(193) as i64]).collect();
    vec![part("", DType::I32, shapes, Collate::ragged().cast(DType::I64))]
}

fn permuted(from: DType, to: DType, shape: &[i64], order: &[i64]) -> Vec<Part> {
    let transform = Transform::new().permute(order);
    let collate = Collate::stack().cast(to).transform(transform);
    vec![part("", from, vec![shape.to_vec(); 64], collate)]
}

fn games(affine: bool) -> Vec<Part> {
    let map = Transform::new().scale(1.0 / 255.0).mean([0.45]).std([0.225]);
    let collate = Collate::stack().cast(DType::F16);
    let collate = if affine { collate.transform(map) } else { collate };
    vec![part("", DType::U8, vec![vec![4, 84, 84]; 256], collate)]
}

fn all() -> Vec<Counted> {
    use Lie::{Contiguous, Misaligned, Rows, Scattered};
    let mut all = Vec::new();
    let mut add = |name, scale, lie, parts: fn() -> Vec<Part>| {
        all.push(Counted { name, scale, entry: Entry::new(name, name, lie, parts) });
    };
    add("W1 f16", 4, Scattered, || images(64, 224, DType::F16));
    add("W1 f32", 4, Scattered, || images(64, 224, DType::F32));
    add("W2", 4, Scattered, || tokens(1024, DType::I64));
    add("W2b", 4, Scattered, || tokens(1024, DType::I32));
    let lookups = || vec![part("", DType::F32, vec![vec![128]; 25_000], Collate::stack())];
    add("W3 address", 4, Scattered, lookups);
    add("W3 id", 4, Rows, lookups);
    add("W4a", 4, Scattered, || clips(128, DType::F32, Collate::ragged()));
    add("W4b", 4, Scattered, || clips(128, DType::I16, Collate::ragged().cast(DType::F32)));
    add("W4c", 4, Scattered, || {
        let padded = Collate::pad(windrow::Pad::new().size(240_000));
        clips(128, DType::I16, padded.cast(DType::F32))
    });
    add("W5b", 1, Scattered, || games(false));
    add("W5b affine", 1, Scattered, || games(true));
    add("W6", 4, Scattered, || rows(1024, 32 << 10));
    add("W7", 4, Scattered, || detection(8));
    add("W10a", 1, Misaligned, || rows(100_000, 77));
    add("W10b", 4, Misaligned, || images(64, 225, DType::F16));
    add("one tensor", 4, Contiguous, || rows(1, 16 << 20));
    add("512 B misaligned", 4, Misaligned, || rows(32_768, 512));
    add("32 KiB misaligned", 4, Misaligned, || rows(512, 32 << 10));
    add("short ragged i32 to i64", 1, Scattered, short_tokens);
    add("i64 to i32", 1, Scattered, || casts(DType::I64, DType::I32));
    add("f32 to f16", 1, Scattered, || casts(DType::F32, DType::F16));
    add("f16 to f32", 1, Scattered, || casts(DType::F16, DType::F32));
    add("f64", 1, Scattered, || casts(DType::F64, DType::F32));
    add("f64", 1, Scattered, || casts(DType::F32, DType::F64));
    // Several under one name: the dearest of them is the row.
    for parts in STRIDED {
        add("strided worst", 1, Scattered, parts);
    }
    all
}

/// Elements that lie apart on one side.
const STRIDED: [fn() -> Vec<Part>; 7] = [
    || permuted(DType::F32, DType::F32, &[256, 256], &[1, 0]),
    || permuted(DType::U8, DType::U8, &[256, 256], &[1, 0]),
    || permuted(DType::U8, DType::F16, &[256, 256], &[1, 0]),
    || permuted(DType::F64, DType::I16, &[200, 100], &[1, 0]),
    || permuted(DType::U8, DType::U8, &[3, 224, 224], &[1, 2, 0]),
    || permuted(DType::I64, DType::F32, &[64, 8, 80], &[1, 2, 0]),
    // f32 pixels to planes, normalised.
    || {
        let collate = Collate::stack().cast(DType::BF16).transform(normalised());
        vec![part("", DType::F32, vec![vec![112, 112, 3]; 64], collate)]
    },
];

/// Assembles each once and compares everything; prints what it was, one line of JSON each.
pub fn run(engine: &Engine, only: Option<&str>) -> Outcome {
    let gpu = Gpu::new()?;
    for Counted { name, scale, entry } in all() {
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let workload = entry.make();
        let set = workload.set(false)?;
        super::poison(&gpu, &set)?;
        let before = engine.stats().launches;
        let fields = contenders::windrow(&gpu, engine, &workload, &set, &set.samples)?;
        gpu.synchronize()?;
        let launches = engine.stats().launches - before;
        super::same_data(&workload, &set, name)?;
        super::same_fields(&workload, &fields)?;
        println!(
            "{{\"workload\": \"{name}\", \"scale\": {scale}, \"launches\": {launches}, \"read\": {}, \"written\": {}}}",
            workload.bytes_read, workload.bytes_written
        );
    }
    Ok(())
}
