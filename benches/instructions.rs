//! Fixed inputs for counting instructions: `scripts/ci/bench_check.py` runs this under callgrind.
//!
//! `instructions CASE TIMES` does one thing so many times, on one thread; `rounds` has valgrind count these alone, not what
//! comes before. `instructions --list` names the cases, `--sweep` the forms of batches of any size (`sweep`). Without arguments, as under `cargo bench` and `cargo test`, each runs once. Those of a device need the feature `cuda` and
//! a driver, which may be the simulated one.

#[path = "instructions/rounds.rs"]
mod rounds;
#[path = "instructions/rows.rs"]
mod rows;
#[path = "instructions/sweep.rs"]
mod sweep;

use std::hint::black_box;

use rounds::rounds;
use rows::{byte, bytes_for, rows, shuffled};
use windrow::plan::{Leaf, Target};
use windrow::{
    Collate, DType, Device, Engine, Mask, Pad, Plan, Ragged, SampleList, SampleView, Transform,
};

/// A name and what is done so many times.
type Case = (&'static str, fn(&Engine, usize));

const HOST_CASES: [Case; 17] = [
    ("list and plan 4096 rows of 64 B", plan_rows),
    ("stack 4096 rows of 64 B", stack_rows),
    ("collate 8 leaves of 512 samples", collate_leaves),
    ("take 4096 of 8192 rows of a table", take_rows),
    ("pad 512 rows of int32 to int64, mask", pad_rows),
    ("ragged 1024 rows of int32", ragged_rows),
    ("normalise 2 images of 64 x 64 to float16 planes", normalise_images),
    ("transform 2 images of 64 x 64, planes to float32 pixels", planes_to_pixels),
    ("small: views and pad of 8 rows of int32 to int64, mask", pad_few_rows),
    ("small: views and pad of 32 rows of int32 up to 500, mask", |engine, times| {
        pad_views(engine, 32, 500, times)
    }),
    ("small: views and pad of 2000 rows of int32 up to 97, mask", |engine, times| {
        pad_views(engine, 2000, 97, times)
    }),
    ("small: views and pad of 2000 rows of int32 up to 1000, mask", |engine, times| {
        pad_views(engine, 2000, 1000, times)
    }),
    ("small: slices and pad of 8 rows of int32 to int64, mask", pad_few_slices),
    ("small: slices and pad of 2000 rows of int32 up to 97, mask", pad_slices),
    ("small: views and ragged batch of 32 rows of int32", ragged_few_rows),
    ("small: 256 of 20 000 rows of 68 B by indices", take_few_rows),
    ("small: stack of 64 rows of 256 B into memory that is there", stack_into),
];

#[cfg(feature = "cuda")]
use device::CASES as DEVICE_CASES;
#[cfg(not(feature = "cuda"))]
const DEVICE_CASES: [Case; 0] = [];

/// 4-byte tokens, of lengths from 1 to 64.
fn tokens(count: usize) -> Vec<Vec<i32>> {
    (0..count).map(|i| (0..i * 37 % 64 + 1).map(|x| (x * i) as i32).collect()).collect()
}

fn token_list(rows: &[Vec<i32>]) -> SampleList<'_> {
    rows.iter()
        .map(|row| SampleView::from_slice(row, &[row.len() as i64]).expect("a row"))
        .collect()
}

fn plan_rows(_: &Engine, times: usize) {
    let bytes = bytes_for(4096, 64);
    let collate = Collate::stack();
    for _ in rounds(times) {
        let list = rows(&bytes, 4096, 64);
        black_box(Plan::new(&list, &collate).expect("a plan"));
    }
}

fn assemble(engine: &Engine, list: &SampleList<'_>, collate: &Collate, times: usize) {
    for _ in rounds(times) {
        black_box(engine.assemble(list, collate).expect("a batch"));
    }
}

fn stack_rows(engine: &Engine, times: usize) {
    let bytes = bytes_for(4096, 64);
    assemble(engine, &rows(&bytes, 4096, 64), &Collate::stack(), times);
}

fn collate_leaves(engine: &Engine, times: usize) {
    let bytes = bytes_for(512, 256);
    let paths = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let lists: Vec<_> = (1..=8).map(|i| rows(&bytes, 512, 32 * i)).collect();
    let collate = Collate::stack();
    let leaf = |(samples, path)| Leaf { samples, collate: &collate, path, out: None };
    for _ in rounds(times) {
        let leaves: Vec<_> = lists.iter().zip(paths).map(leaf).collect();
        let plan = Plan::for_leaves(&leaves).expect("a plan");
        black_box(engine.run(plan).expect("batches"));
    }
}

fn take_rows(engine: &Engine, times: usize) {
    let bytes = bytes_for(8192, 120);
    let table = rows(&bytes, 8192, 120);
    let indices: Vec<i64> = shuffled(8192).take(4096).map(|i| i as i64).collect();
    for _ in rounds(times) {
        let list = table.take(indices.iter().copied()).expect("rows of the table");
        black_box(engine.assemble(&list, &Collate::stack()).expect("a batch"));
    }
}

fn pad_rows(engine: &Engine, times: usize) {
    let rows = tokens(512);
    assemble(engine, &token_list(&rows), &to_int64_with_mask(), times);
}

fn ragged_rows(engine: &Engine, times: usize) {
    let rows = tokens(1024);
    assemble(engine, &token_list(&rows), &Collate::ragged(Ragged::new().batch_index()), times);
}

/// Assembles from the rows themselves, as a caller has them.
fn assemble_views(engine: &Engine, rows: &[Vec<i32>], collate: &Collate, times: usize) {
    for _ in rounds(times) {
        let views = rows.iter().map(|row| SampleView::from_slice(row, &[row.len() as i64]));
        let views: Vec<_> = views.map(|view| view.expect("a row")).collect();
        black_box(engine.assemble(&views, collate).expect("a batch"));
    }
}

/// Assembles slices as [`assemble_views`] assembles views.
fn assemble_slices(engine: &Engine, rows: &[Vec<i32>], collate: &Collate, times: usize) {
    for _ in rounds(times) {
        let slices: Vec<&[i32]> = rows.iter().map(Vec::as_slice).collect();
        black_box(engine.assemble(&slices, collate).expect("a batch"));
    }
}

fn to_int64_with_mask() -> Collate {
    Collate::pad(Pad::new().value(-1).mask(Mask::Real)).cast(DType::I64)
}

fn pad_few_rows(engine: &Engine, times: usize) {
    assemble_views(engine, &tokens(8), &to_int64_with_mask(), times);
}

fn pad_few_slices(engine: &Engine, times: usize) {
    assemble_slices(engine, &tokens(8), &to_int64_with_mask(), times);
}

/// The rows of `benches/host.rs`, of 1 to `most` tokens.
fn rows_up_to(count: usize, most: usize) -> Vec<Vec<i32>> {
    (0..count).map(|i| vec![i as i32; i * 7919 % most + 1]).collect()
}

fn pad_views(engine: &Engine, count: usize, most: usize, times: usize) {
    assemble_views(engine, &rows_up_to(count, most), &to_int64_with_mask(), times);
}

fn pad_slices(engine: &Engine, times: usize) {
    assemble_slices(engine, &rows_up_to(2000, 97), &to_int64_with_mask(), times);
}

fn stack_into(engine: &Engine, times: usize) {
    let bytes = bytes_for(64, 256);
    let list = rows(&bytes, 64, 256);
    let mut out = vec![0u8; 64 * 256];
    for _ in rounds(times) {
        let mut target = Target::from_slice(&mut out, &[64, 256]).expect("a target");
        black_box(engine.assemble_into(&list, &Collate::stack(), &mut target).expect("a batch"));
    }
}

fn ragged_few_rows(engine: &Engine, times: usize) {
    assemble_views(engine, &tokens(32), &Collate::ragged(Ragged::new()), times);
}

/// Rows of a table without a list of them, as a replay buffer gives them.
fn take_few_rows(engine: &Engine, times: usize) {
    let table = engine.empty(DType::F32, &[20_000, 17], Device::Cpu).expect("memory");
    let list = SampleList::rows(&table).expect("rows");
    let indices: Vec<i64> = shuffled(20_000).take(256).map(|i| i as i64).collect();
    let collate = Collate::stack();
    for _ in rounds(times) {
        let batch = engine.assemble_taken(&list, &indices, &collate, None, engine.now());
        black_box(batch.expect("a small batch"));
    }
}

fn normalise_images(engine: &Engine, times: usize) {
    let images = [0, 1].map(|i| (i..i + 64 * 64 * 3).map(byte).collect::<Vec<_>>());
    let view = |image| SampleView::from_slice(image, &[64, 64, 3]).expect("an image");
    let list: SampleList<'_> = images.iter().map(|image| view(image.as_slice())).collect();
    let transform = Transform::new()
        .scale(1.0 / 255.0)
        .mean([0.485, 0.456, 0.406])
        .std([0.229, 0.224, 0.225])
        .channel_dim(2)
        .permute([2, 0, 1]);
    assemble(engine, &list, &Collate::stack().cast(DType::F16).transform(transform), times);
}

fn planes_to_pixels(engine: &Engine, times: usize) {
    let images = [0, 1].map(|i| (i..i + 3 * 64 * 64).map(byte).collect::<Vec<_>>());
    let view = |image| SampleView::from_slice(image, &[3, 64, 64]).expect("an image");
    let list: SampleList<'_> = images.iter().map(|image| view(image.as_slice())).collect();
    let transform = Transform::new().scale(1.0 / 255.0).mean([0.4, 0.5, 0.6]).channel_dim(0);
    let transform = transform.permute([1, 2, 0]);
    assemble(engine, &list, &Collate::stack().cast(DType::F32).transform(transform), times);
}

/// Calls whose samples and batches are on a device: what the host does for them beside the driver.
#[cfg(feature = "cuda")]
mod device {
    use std::hint::black_box;

    use windrow::{Collate, DType, Device, Engine, SampleList};

    use super::{rounds, shuffled, Case};

    pub const CASES: [Case; 4] = [
        ("device: stack 256 views of one tensor", stack_views),
        ("device: take and stack 256 samples by indices of the host", take_by_the_host),
        ("device: take and stack 256 samples by its indices", |engine, times| {
            take(engine, 256, times)
        }),
        ("device: take and stack 65 536 samples by its indices", |engine, times| {
            take(engine, 65_536, times)
        }),
    ];

    const HERE: Device = Device::Cuda(0);

    fn stack_views(engine: &Engine, times: usize) {
        let table = engine.empty(DType::F32, &[4096, 16], HERE).expect("memory");
        let rows = SampleList::rows(&table).expect("rows");
        let list = rows.take(shuffled(4096).take(256).map(|i| i as i64)).expect("views");
        let stream = engine.stream(0).expect("a device");
        for _ in rounds(times) {
            black_box(engine.assemble_on(&list, &Collate::stack(), &stream).expect("a batch"));
        }
    }

    fn take_by_the_host(engine: &Engine, times: usize) {
        let table = engine.empty(DType::F32, &[4096, 16], HERE).expect("memory");
        let rows = SampleList::rows(&table).expect("rows");
        let stream = engine.stream(0).expect("a device");
        let all: Vec<i64> = shuffled(4096).map(|i| i as i64).collect();
        for round in rounds(times) {
            let indices = black_box(&all[round..][..256]);
            let list = rows.take(indices.iter().copied()).expect("samples");
            black_box(engine.assemble_on(&list, &Collate::stack(), &stream).expect("a batch"));
        }
    }

    fn take(engine: &Engine, count: i64, times: usize) {
        let table = engine.empty(DType::F32, &[4096, 16], HERE).expect("memory");
        let indices = engine.empty(DType::I64, &[count], HERE).expect("memory");
        let rows = SampleList::rows(&table).expect("rows");
        let resident = engine.resident(rows, HERE).expect("a table of the list");
        let stream = engine.stream(0).expect("a device");
        for _ in rounds(times) {
            let list = resident.take(&indices).expect("samples");
            let batch = engine.assemble_on(&list, &Collate::stack(), &stream).expect("a batch");
            // The device does not lag behind, or events would be made for each batch.
            black_box(batch).check().expect("indices in range");
        }
    }
}

/// All cases that there is what they need for.
fn cases() -> impl Iterator<Item = Case> {
    let has_device = std::env::var_os("WINDROW_CUDA_DRIVER").is_some();
    HOST_CASES.into_iter().chain(DEVICE_CASES.into_iter().filter(move |_| has_device))
}

fn main() {
    // Cargo's own arguments, such as --bench, are skipped.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|x| !x.starts_with("--") || x == "--list" || x == "--sweep")
        .collect();
    let engine = Engine::builder().threads(1).build().expect("an engine on the host");
    match arguments.as_slice() {
        [list] if list == "--list" => cases().for_each(|(name, _)| println!("{name}")),
        [sweep] if sweep == "--sweep" => {
            sweep::FORMS.iter().for_each(|(name, _)| println!("{name}"))
        }
        [name, bytes, times] => {
            let (_, form) = sweep::FORMS.iter().find(|(known, _)| known == name).expect("a form");
            let [bytes, times] = [bytes, times].map(|number| number.parse().expect("a number"));
            form(&engine, bytes, times);
        }
        [name, times] => {
            let (_, case) = cases().find(|(known, _)| known == name).expect("a known case");
            case(&engine, times.parse().expect("a number of times"));
        }
        _ => {
            cases().for_each(|(_, case)| case(&engine, 1));
            sweep::FORMS.iter().for_each(|(_, form)| form(&engine, 10_000, 1));
        }
    }
}
