//! The host executor beside plain copies of the same bytes.
//!
//! Sizes are those of a training step: many short rows, one set of images, one set of token rows.
//! Throughput counts the bytes written. Every output is compared with a plain loop once before it is
//! timed, and sources are in shuffled order unless a name says `contiguous`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use half::f16;
use windrow::{Collate, DType, Engine, Mask, Pad, Plan, Ragged, SampleList, SampleView, Transform};

/// Sources that together are larger than the caches, cut into samples.
struct Store<T> {
    elements: Vec<T>,
    starts: Vec<usize>,
    length: usize,
}

impl<T: windrow::tensor::Element> Store<T> {
    /// `count` samples of `length`, in shuffled order if asked for, `gap` elements apart.
    fn new(
        count: usize,
        length: usize,
        gap: usize,
        shuffled: bool,
        element: impl Fn(usize) -> T,
    ) -> Store<T> {
        let elements = (0..count * (length + gap)).map(element).collect();
        let mut starts: Vec<usize> = (0..count).map(|i| i * (length + gap)).collect();
        if shuffled {
            let mut state = 0x2545_F491_4F6C_DD1D_u64;
            for i in (1..count).rev() {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                starts.swap(i, (state >> 33) as usize % (i + 1));
            }
        }
        Store { elements, starts, length }
    }

    fn sample(&self, index: usize) -> &[T] {
        &self.elements[self.starts[index]..self.starts[index] + self.length]
    }

    fn samples(&self) -> impl Iterator<Item = &[T]> {
        (0..self.starts.len()).map(|index| self.sample(index))
    }

    fn list(&self, shape: &[i64]) -> SampleList<'_> {
        self.samples()
            .map(|sample| SampleView::from_slice(sample, shape).expect("a sound shape"))
            .collect()
    }
}

fn byte(i: usize) -> u8 {
    (i % 251) as u8
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    let store = Store::new(100_000, 512, 64, true, byte);
    let list = store.list(&[512]);
    let stack = Collate::stack();
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("uniform, 100 000 rows", |b| {
        b.iter(|| Plan::new(black_box(&list), &stack).expect("a plan"));
    });
    group.bench_function("list and plan, 100 000 rows", |b| {
        b.iter(|| {
            let list = store.list(&[512]);
            black_box(Plan::new(&list, &stack).expect("a plan"));
        });
    });
    let tokens = rows_of_tokens();
    let list = token_list(&tokens);
    let ragged = Collate::ragged(Ragged::new());
    group.throughput(Throughput::Elements(tokens.len() as u64));
    group.bench_function("ragged, 4096 rows", |b| {
        b.iter(|| Plan::new(black_box(&list), &ragged).expect("a plan"));
    });
    group.finish();
}

/// One batch, beside a copy of each sample and one copy of all, on one thread.
fn moves(c: &mut Criterion, name: &str, store: &Store<u8>, shape: &[i64]) {
    let count = store.starts.len();
    let total = count * store.length;
    let engine = Engine::host();
    let list = store.list(shape);
    let stack = Collate::stack();
    let mut plain = vec![0u8; total];
    let copy_each = |plain: &mut [u8]| {
        for (to, from) in plain.chunks_exact_mut(store.length).zip(store.samples()) {
            to.copy_from_slice(from);
        }
    };
    copy_each(&mut plain);
    let mut out = engine.assemble(&list, &stack).expect("a batch");
    assert_eq!(out.data().as_slice::<u8>().expect("bytes"), plain, "{name}");
    let whole = vec![1u8; total];

    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(total as u64));
    group.bench_function("stack", |b| {
        b.iter(|| black_box(engine.assemble(&list, &stack).expect("a batch")))
    });
    group.bench_function("stack into", |b| {
        b.iter(|| black_box(engine.assemble_into(&list, &stack, &mut out).expect("a batch")));
    });
    group.bench_function("memcpy for each sample", |b| b.iter(|| copy_each(black_box(&mut plain))));
    group.bench_function("one memcpy", |b| {
        b.iter(|| black_box(&mut plain).copy_from_slice(black_box(&whole)))
    });
    group.finish();
}

fn gathers(c: &mut Criterion) {
    let rows = Store::new(100_000, 512, 64, true, byte);
    moves(c, "100 000 x 512 B", &rows, &[512]);
    drop(rows);
    let images = Store::new(256, 150_528, 4096, true, byte);
    moves(c, "256 x 150 528 B", &images, &[224, 224, 3]);
    drop(images);
    let images = Store::new(256, 150_528, 0, false, byte);
    moves(c, "256 x 150 528 B contiguous", &images, &[224, 224, 3]);
}

fn images(c: &mut Criterion) {
    const PIXELS: usize = 224 * 224;
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let store = Store::new(256, PIXELS * 3, 4096, true, byte);
    let list = store.list(&[224, 224, 3]);
    let transform =
        Transform::new().scale(1.0 / 255.0).mean(mean).std(std).channel_dim(2).permute([2, 0, 1]);
    let pair = |c: usize| ((1.0 / 255.0 / std[c]) as f32, (-mean[c] / std[c]) as f32);
    let mut want = Vec::with_capacity(256 * 3 * PIXELS);
    for image in store.samples() {
        for c in 0..3 {
            let (a, b) = pair(c);
            want.extend(image.iter().skip(c).step_by(3).map(|&x| f32::from(x).mul_add(a, b)));
        }
    }
    let engine = Engine::host();
    for (name, dtype) in [("float32", DType::F32), ("float16", DType::F16)] {
        let collate = Collate::stack().cast(dtype).transform(transform.clone());
        let mut out = engine.assemble(&list, &collate).expect("a batch");
        match dtype {
            DType::F32 => assert_eq!(out.data().as_slice::<f32>().expect("float32"), want),
            _ => {
                let halves = out.data().as_slice::<f16>().expect("float16");
                assert!(halves.iter().zip(&want).all(|(&half, &x)| half == f16::from_f32(x)));
            }
        }
        let total = want.len() * dtype.size();
        let (mut plain, whole) = (vec![0u8; total], vec![1u8; total]);
        let mut group = c.benchmark_group(format!("256 images to planes of {name}"));
        group.throughput(Throughput::Bytes(total as u64));
        group.bench_function("stack", |b| {
            b.iter(|| black_box(engine.assemble(&list, &collate).expect("a batch")))
        });
        group.bench_function("stack into", |b| {
            b.iter(|| black_box(engine.assemble_into(&list, &collate, &mut out).expect("a batch")));
        });
        group.bench_function("one memcpy of the output", |b| {
            b.iter(|| black_box(&mut plain).copy_from_slice(black_box(&whole)));
        });
        group.finish();
    }
    let planes = Collate::stack().transform(Transform::new().permute([2, 0, 1]));
    let out = engine.assemble(&list, &planes).expect("a batch");
    let bytes = out.data().as_slice::<u8>().expect("bytes");
    for (planes, image) in bytes.chunks_exact(3 * PIXELS).zip(store.samples()) {
        assert!((0..3 * PIXELS).all(|i| planes[i] == image[i % PIXELS * 3 + i / PIXELS]));
    }
    let mut group = c.benchmark_group("256 images to planes of uint8");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("stack", |b| {
        b.iter(|| black_box(engine.assemble(&list, &planes).expect("a batch")))
    });
    group.finish();
}

/// 4096 rows of 1 to 512 tokens, most of them short.
fn rows_of_tokens() -> Vec<Vec<i32>> {
    let row = |i: usize| {
        let spread = (i * 7919 % 512) as i32 + 1;
        let length = spread * spread / 512 + 1;
        (0..length).map(|x| x + i as i32).collect()
    };
    (0..4096).map(row).collect()
}

fn token_list(rows: &[Vec<i32>]) -> SampleList<'_> {
    rows.iter()
        .map(|row| SampleView::from_slice(row, &[row.len() as i64]).expect("a row"))
        .collect()
}

fn pads(c: &mut Criterion) {
    let rows = rows_of_tokens();
    let list = token_list(&rows);
    let longest = rows.iter().map(Vec::len).max().expect("a row");
    let engine = Engine::host();
    let collate = Collate::pad(Pad::new().value(-1).mask(Mask::Real)).cast(DType::I64);
    let mut out = engine.assemble(&list, &collate).expect("a batch");
    let fill = |ids: &mut [i64], mask: &mut [bool]| {
        for ((ids, mask), row) in
            ids.chunks_exact_mut(longest).zip(mask.chunks_exact_mut(longest)).zip(&rows)
        {
            ids.fill(-1);
            mask.fill(false);
            mask[..row.len()].fill(true);
            for (id, &x) in ids.iter_mut().zip(row) {
                *id = x.into();
            }
        }
    };
    let (mut ids, mut mask) = (vec![0i64; 4096 * longest], vec![false; 4096 * longest]);
    fill(&mut ids, &mut mask);
    assert_eq!(out.data().as_slice::<i64>().expect("int64"), ids);
    assert_eq!(out.mask().expect("a mask").as_slice::<bool>().expect("bools"), mask);

    let mut group = c.benchmark_group("pad 4096 rows, int32 to int64 with mask");
    group.throughput(Throughput::Bytes(9 * ids.len() as u64));
    group.bench_function("pad", |b| {
        b.iter(|| black_box(engine.assemble(&list, &collate).expect("a batch")))
    });
    group.bench_function("pad into", |b| {
        b.iter(|| black_box(engine.assemble_into(&list, &collate, &mut out).expect("a batch")));
    });
    group.bench_function("plain loop", |b| {
        b.iter(|| fill(black_box(&mut ids), black_box(&mut mask)))
    });
    let whole = vec![1u8; 9 * ids.len()];
    let mut plain = whole.clone();
    group.bench_function("one memcpy of the output", |b| {
        b.iter(|| black_box(&mut plain).copy_from_slice(black_box(&whole)));
    });
    group.finish();

    let values: u64 = rows.iter().map(|row| 4 * row.len() as u64).sum();
    let collate = Collate::ragged(Ragged::new());
    let batch = engine.assemble(&list, &collate).expect("a batch");
    assert!(batch.data().as_slice::<i32>().expect("int32").iter().eq(rows.iter().flatten()));
    let mut group = c.benchmark_group("ragged 4096 rows of int32");
    group.throughput(Throughput::Bytes(values));
    for (name, collate) in [
        ("offsets", &collate),
        ("offsets and index", &Collate::ragged(Ragged::new().batch_index())),
    ] {
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| black_box(engine.assemble(&list, collate).expect("a batch")));
        });
    }
    group.bench_function("concat of slices", |b| b.iter(|| black_box(rows.concat())));
    group.finish();
}

/// Few rows, or many short ones: views of them, made in the call, beside a loop that a user would write.
fn small_pads(c: &mut Criterion) {
    let engine = Engine::host();
    let collate = Collate::pad(Pad::new().value(-1).mask(Mask::Real)).cast(DType::I64);
    for (count, most) in [(8, 100), (32, 500), (2000, 97), (2000, 1000)] {
        let row = |i: usize| vec![i as i32; i * 7919 % most + 1];
        let rows: Vec<Vec<i32>> = (0..count).map(row).collect();
        let pad = || {
            let views = rows.iter().map(|row| SampleView::from_slice(row, &[row.len() as i64]));
            let views: Vec<_> = views.collect::<Result<_, _>>().expect("rows");
            engine.assemble(&views, &collate).expect("a batch")
        };
        let pad_slices = || {
            let slices: Vec<&[i32]> = rows.iter().map(Vec::as_slice).collect();
            engine.assemble(&slices, &collate).expect("a batch")
        };
        let plain_loop = || {
            let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
            let mut ids = vec![-1i64; rows.len() * longest];
            let mut mask = vec![false; ids.len()];
            for (i, row) in rows.iter().enumerate() {
                for (j, &x) in row.iter().enumerate() {
                    ids[i * longest + j] = x.into();
                    mask[i * longest + j] = true;
                }
            }
            (ids, mask)
        };
        let (batch, (ids, mask)) = (pad(), plain_loop());
        assert_eq!(batch.data().as_slice::<i64>().expect("int64"), ids);
        assert_eq!(batch.mask().expect("a mask").as_slice::<bool>().expect("bools"), mask);

        let name = format!("pad {count} rows of 1 to {most} int32 to int64 with mask");
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes(9 * ids.len() as u64));
        group.bench_function("views and pad", |b| b.iter(|| black_box(pad())));
        group.bench_function("slices and pad", |b| b.iter(|| black_box(pad_slices())));
        group.bench_function("plain double loop", |b| b.iter(|| black_box(plain_loop())));
        group.finish();
    }
}

criterion_group! {
    name = host;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = plans, gathers, images, pads, small_pads
}
criterion_main!(host);
