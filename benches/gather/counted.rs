//! Workloads whose machine code is counted: each is run once, and its launches are named for scripts/sim/device_counts.py.

use windrow::collate::Granularity;
use windrow::{Collate, DType, Engine, Quantize, Ragged, Transform};

use super::catalogue::{
    clips, detection, environments, graphs, images, normalised, part, rows, tokens, Entry,
};
use super::gpu::{describe, Gpu, Outcome};
use super::options::Options;
use super::workloads::{Lie, Part, Random};
use super::{contenders, moves, trials, verify};

/// The divisor of the numbers of samples.
#[derive(Clone, Copy)]
pub struct Scale(pub usize);

impl Scale {
    pub fn scaled_count(self, count: usize) -> usize {
        count.div_ceil(self.0)
    }
}

/// The policy of tables that have to have addresses, however near the samples are: a list of
/// that many has ids otherwise.
const ADDRESSES: &str = "min_ids=4294967295";

/// The workload that is counted.
struct Counted {
    /// The row of benches/device-instructions.json, which has the dearest of those with one name.
    name: &'static str,
    /// The name of the case among those of one workload.
    case: String,
    by_address: bool,
    entry: Entry,
}

impl Counted {
    fn new(name: &'static str, lie: Lie, parts: impl Fn() -> Vec<Part> + 'static) -> Counted {
        let entry = Entry::new(name, name, lie, parts);
        Counted { name, case: String::new(), by_address: false, entry }
    }
}

/// One cast of adjacent elements, in rows of some 16,000.
fn casts(count: usize, from: DType, to: DType) -> Vec<Part> {
    vec![part("", from, vec![vec![16_384]; count], Collate::stack().cast(to))]
}

/// The same to float8, whose largest number larger ones become.
fn saturated(count: usize, from: DType, to: DType) -> Vec<Part> {
    let collate = Collate::stack().cast(to).saturate();
    vec![part("", from, vec![vec![16_384]; count], collate)]
}

/// Samples to float8_e4m3fn, with float32 scales.
fn quantised(count: usize, from: DType, shape: &[i64], scale: Granularity) -> Vec<Part> {
    let quantize = Quantize::new(DType::F8E4M3FN).scale(scale);
    vec![part("", from, vec![shape.to_vec(); count], Collate::stack().transform(quantize))]
}

/// Rows of 128 numbers.
fn lookups(count: usize) -> Vec<Part> {
    vec![part("", DType::F32, vec![vec![128]; count], Collate::stack())]
}

/// Token rows of 64 to 256.
fn short_tokens(count: usize) -> Vec<Part> {
    let mut random = Random(17);
    let shapes = (0..count).map(|_| vec![64 + random.below(193) as i64]).collect();
    vec![part("", DType::I32, shapes, Collate::ragged(Ragged::new()).cast(DType::I64))]
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

/// The same with a number for each.
fn labelled(count: usize) -> Vec<Part> {
    let labels = part("label", DType::I64, vec![vec![]; count], Collate::stack());
    let images = games(count, false).into_iter().map(|images| Part { path: "image", ..images });
    images.chain([labels]).collect()
}

/// Numbers alone.
fn scalars(count: usize, from: DType, to: DType) -> Vec<Part> {
    vec![part("", from, vec![vec![]; count], Collate::stack().cast(to))]
}

/// The rows of the file.
fn rows_of_file(scale: Scale) -> Vec<Counted> {
    use Lie::{Contiguous, Misaligned, Rows, Scattered};
    let mut all = Vec::new();
    let mut add = |name, lie, parts: fn(Scale) -> Vec<Part>| {
        all.push(Counted::new(name, lie, move || parts(scale)));
    };
    add("W1 f16", Scattered, |scale| images(scale.scaled_count(256), 224, DType::F16));
    add("W1 f32", Scattered, |scale| images(scale.scaled_count(256), 224, DType::F32));
    add("W2", Scattered, |scale| tokens(scale.scaled_count(4096), DType::I64));
    add("W2b", Scattered, |scale| tokens(scale.scaled_count(4096), DType::I32));
    add("W3 id", Rows, |scale| lookups(scale.scaled_count(100_000)));
    add("W4a", Scattered, |scale| {
        clips(scale.scaled_count(512), DType::F32, Collate::ragged(Ragged::new()))
    });
    add("W4b", Scattered, |scale| {
        clips(scale.scaled_count(512), DType::I16, Collate::ragged(Ragged::new()).cast(DType::F32))
    });
    add("W4c", Scattered, |scale| {
        let padded = Collate::pad(windrow::Pad::new().size(240_000));
        clips(scale.scaled_count(512), DType::I16, padded.cast(DType::F32))
    });
    add("W5", Scattered, |scale| environments(scale.scaled_count(4096)));
    add("W5b", Scattered, |scale| games(scale.scaled_count(256), false));
    add("W5b affine", Scattered, |scale| games(scale.scaled_count(256), true));
    add("images and labels", Scattered, |scale| labelled(scale.scaled_count(256)));
    add("W6", Scattered, |scale| rows(scale.scaled_count(4096), 32 << 10));
    add("W7", Scattered, |scale| detection(scale.scaled_count(32)));
    add("W9", Scattered, |scale| graphs(scale.scaled_count(256)));
    add("W10a", Misaligned, |scale| rows(scale.scaled_count(100_000), 77));
    add("W10b", Misaligned, |scale| images(scale.scaled_count(256), 225, DType::F16));
    add("one tensor", Contiguous, |scale| rows(1, scale.scaled_count(64 << 20)));
    add("512 B misaligned", Misaligned, |scale| rows(scale.scaled_count(131_072), 512));
    add("32 KiB misaligned", Misaligned, |scale| rows(scale.scaled_count(2048), 32 << 10));
    add("short ragged i32 to i64", Scattered, |scale| short_tokens(scale.scaled_count(8192)));
    add("i64 to i32", Scattered, |scale| casts(scale.scaled_count(256), DType::I64, DType::I32));
    add("f32 to f16", Scattered, |scale| casts(scale.scaled_count(256), DType::F32, DType::F16));
    add("f16 to f32", Scattered, |scale| casts(scale.scaled_count(256), DType::F16, DType::F32));
    let mut add = |name, case: &str, parts: fn(Scale) -> Vec<Part>| {
        let counted = Counted::new(name, Scattered, move || parts(scale));
        all.push(Counted { case: case.to_owned(), ..counted });
    };
    add("f64", "to f32", |scale| casts(scale.scaled_count(256), DType::F64, DType::F32));
    add("f64", "from f32", |scale| casts(scale.scaled_count(256), DType::F32, DType::F64));
    add("scalars", "i64", |scale| scalars(scale.scaled_count(16_384), DType::I64, DType::I64));
    add("scalars", "i32 to i64", |scale| {
        scalars(scale.scaled_count(16_384), DType::I32, DType::I64)
    });
    add("scalars", "f64 to f32", |scale| {
        scalars(scale.scaled_count(16_384), DType::F64, DType::F32)
    });
    for (name, case, parts) in FLOAT8.into_iter().chain(QUANTISED) {
        add(name, case, parts);
    }
    for (case, parts) in STRIDED {
        add("strided worst", case, parts);
    }
    // At the end: the engine that they need is another.
    for (name, lie, parts) in BY_ADDRESS {
        let counted = Counted::new(name, lie, move || parts(scale));
        all.push(Counted { by_address: true, ..counted });
    }
    all
}

type Parts = fn(Scale) -> Vec<Part>;

/// Tables of addresses: samples of torch in several segments, for one.
const BY_ADDRESS: [(&str, Lie, Parts); 3] = [
    ("W3 address", Lie::Scattered, |scale| lookups(scale.scaled_count(100_000))),
    ("W10a address", Lie::Misaligned, |scale| rows(scale.scaled_count(100_000), 77)),
    ("512 B misaligned address", Lie::Misaligned, |scale| rows(scale.scaled_count(131_072), 512)),
];

/// Elements divided by scales that are found on the way: tokens by row and by blocks of 128, and pages of a store of float32.
const QUANTISED: [(&str, &str, Parts); 3] = [
    ("Q1", "by row", |scale| {
        quantised(scale.scaled_count(4096), DType::BF16, &[4096], Granularity::Row)
    }),
    ("Q2", "by 128", |scale| {
        quantised(scale.scaled_count(4096), DType::BF16, &[4096], Granularity::Block(128))
    }),
    ("Q3", "pages", |scale| {
        quantised(scale.scaled_count(1024), DType::F32, &[16, 8, 64], Granularity::Row)
    }),
];

/// Casts of adjacent elements to float8 and back.
const FLOAT8: [(&str, &str, Parts); 12] = {
    use DType::{BF16, F32, F8E4M3FN as E4M3, F8E5M2 as E5M2};
    [
        ("bf16 to f8", "e4m3fn", |scale| casts(scale.scaled_count(1024), BF16, E4M3)),
        ("bf16 to f8", "e5m2", |scale| casts(scale.scaled_count(1024), BF16, E5M2)),
        ("bf16 to f8 saturated", "e4m3fn", |scale| saturated(scale.scaled_count(1024), BF16, E4M3)),
        ("bf16 to f8 saturated", "e5m2", |scale| saturated(scale.scaled_count(1024), BF16, E5M2)),
        ("f32 to f8", "e4m3fn", |scale| casts(scale.scaled_count(1024), F32, E4M3)),
        ("f32 to f8", "e5m2", |scale| casts(scale.scaled_count(1024), F32, E5M2)),
        ("f32 to f8 saturated", "e4m3fn", |scale| saturated(scale.scaled_count(1024), F32, E4M3)),
        ("f32 to f8 saturated", "e5m2", |scale| saturated(scale.scaled_count(1024), F32, E5M2)),
        ("f8 to bf16", "e4m3fn", |scale| casts(scale.scaled_count(1024), E4M3, BF16)),
        ("f8 to bf16", "e5m2", |scale| casts(scale.scaled_count(1024), E5M2, BF16)),
        ("f8 to f32", "e4m3fn", |scale| casts(scale.scaled_count(1024), E4M3, F32)),
        ("f8 to f32", "e5m2", |scale| casts(scale.scaled_count(1024), E5M2, F32)),
    ]
};

/// Elements that are apart on one side.
const STRIDED: [(&str, Parts); 7] = [
    ("f32 transposed", |scale| {
        permuted(scale.scaled_count(64), (DType::F32, DType::F32), &[256, 256], &[1, 0])
    }),
    ("u8 transposed", |scale| {
        permuted(scale.scaled_count(64), (DType::U8, DType::U8), &[256, 256], &[1, 0])
    }),
    ("u8 to f16 transposed", |scale| {
        permuted(scale.scaled_count(64), (DType::U8, DType::F16), &[256, 256], &[1, 0])
    }),
    ("f64 to i16 transposed", |scale| {
        permuted(scale.scaled_count(64), (DType::F64, DType::I16), &[200, 100], &[1, 0])
    }),
    ("u8 planes to pixels", |scale| {
        permuted(scale.scaled_count(64), (DType::U8, DType::U8), &[3, 224, 224], &[1, 2, 0])
    }),
    ("i64 to f32, dims rotated", |scale| {
        permuted(scale.scaled_count(64), (DType::I64, DType::F32), &[64, 8, 80], &[1, 2, 0])
    }),
    ("f32 pixels to bf16 planes, normalised", |scale| {
        let collate = Collate::stack().cast(DType::BF16).transform(normalised());
        vec![part("", DType::F32, vec![vec![112, 112, 3]; scale.scaled_count(64)], collate)]
    }),
];

/// Casts that stand for those without a row of the file.
const PAIRS: [(DType, DType); 16] = {
    use DType::{Bool, BF16, F16, F32, F64, I32, I64, I8, U32, U64, U8};
    [
        (BF16, F32),
        (F32, BF16),
        (F16, BF16),
        (I32, F32),
        (I64, F16),
        (U32, F16),
        (Bool, F32),
        (U64, F64),
        (F64, F16),
        (F64, I64),
        (F32, I32),
        (F32, I8),
        (BF16, U8),
        (I64, U8),
        (I64, Bool),
        (F32, Bool),
    ]
};

/// The pairs of dtypes, each in three layouts: adjacent on both sides, transposed, and, where the result is a float, with a
/// coefficient for each of three channels along a row.
fn pairs(scale: Scale) -> Vec<Counted> {
    let mut all = Vec::new();
    for (from, to) in PAIRS {
        let mut add = |name, parts: fn(DType, DType, usize) -> Vec<Part>| {
            let counted =
                Counted::new(name, Lie::Scattered, move || parts(from, to, scale.scaled_count(64)));
            all.push(Counted { case: format!("{from} to {to}"), ..counted });
        };
        add("adjacent", |from, to, count| casts(count, from, to));
        add("transposed", |from, to, count| permuted(count, (from, to), &[200, 100], &[1, 0]));
        if matches!(to, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            add("channels", |from, to, count| {
                let map = normalised().permute([0, 1, 2]);
                let collate = Collate::stack().cast(to).transform(map);
                vec![part("", from, vec![vec![112, 112, 3]; count], collate)]
            });
        }
    }
    all
}

/// Assembles each once and compares everything; prints what it was, one line of JSON each.
pub fn run(engine: &Engine, options: &Options) -> Outcome {
    let scale = Scale(options.scale.unwrap_or(1).max(1));
    let gpu = Gpu::new()?;
    let (_, _, multiprocessors, _) = describe();
    let all = if options.pairs { pairs(scale) } else { rows_of_file(scale) };
    let mut by_address_engine = None;
    for Counted { name, case, by_address, entry } in all {
        if !options.is_wanted(&format!("{name}, {case}")) {
            continue;
        }
        let engine = match by_address {
            false => engine,
            true => match by_address_engine {
                Some(ref by_address_engine) => by_address_engine,
                None => by_address_engine.insert(trials::engine(ADDRESSES, None)?),
            },
        };
        let workload = entry.make();
        let set = workload.set(false)?;
        verify::poison(&gpu, &set)?;
        let before = engine.stats();
        let fields = contenders::windrow(&gpu, engine, &workload, &set, &set.samples)?;
        gpu.synchronize()?;
        let after = engine.stats();
        let launches = after.launches - before.launches;
        let uploaded = after.bytes_to_device - before.bytes_to_device;
        verify::same_data(&workload, &set, name)?;
        verify::same_fields(&workload, name, &fields)?;
        let num_samples = workload.num_samples();
        if by_address && (1..8 * num_samples as u64).contains(&uploaded) {
            return Err(format!(
                "{name}: {uploaded} bytes are too few for {num_samples} addresses"
            ));
        }
        println!(
            "{{\"workload\": \"{name}\", \"case\": \"{case}\", \"launches\": {launches}, \
             \"uploaded\": {uploaded}, \"multiprocessors\": {multiprocessors}, \
             \"samples\": {num_samples}, \"read\": {}, \"written\": {}}}",
            workload.bytes_read, workload.bytes_written
        );
    }
    if options.pairs {
        return Ok(());
    }
    moves::run(engine, &gpu, options, scale, multiprocessors)
}
