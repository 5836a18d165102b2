//! Batches of any size, in forms that differ in how many samples they have for it: what a byte costs must not
//! depend on the size. `instructions FORM BYTES TIMES` makes one of about so many bytes.

use windrow::{Collate, DType, Engine, Pad, Ragged, SampleList, SampleView, Tensor, Transform};

use super::assemble;
use super::rows::{byte, bytes_for, rows, shuffled};

/// A form and what makes a batch of it of so many bytes, so many times.
pub type Form = (&'static str, fn(&Engine, usize, usize));

pub const FORMS: [Form; 7] = [
    ("sweep: stack rows of 64 B", stack_rows),
    ("sweep: cast rows of 64 B", |engine, bytes, times| {
        sweep_tokens(engine, bytes, times, 16, &Collate::stack().cast(DType::F32));
    }),
    ("sweep: pad rows of up to 64 B", |engine, bytes, times| {
        sweep_tokens(engine, bytes, times, 1, &Collate::pad(Pad::new()));
    }),
    ("sweep: ragged rows of up to 64 B", |engine, bytes, times| {
        sweep_tokens(engine, 2 * bytes, times, 1, &Collate::ragged(Ragged::new()));
    }),
    ("sweep: cast a column of numbers", column),
    ("sweep: stack 8 samples", stack_few),
    ("sweep: turn samples of 4 KiB", turned),
];

fn stack_rows(engine: &Engine, bytes: usize, times: usize) {
    let count = bytes / 64;
    let source = bytes_for(count, 64);
    assemble(engine, &rows(&source, count, 64), &Collate::stack(), times);
}

/// Rows of int32, the shortest of `least`, the longest of 16, in an order without any pattern.
fn sweep_tokens(engine: &Engine, bytes: usize, times: usize, least: usize, collate: &Collate) {
    let count = bytes / 64;
    let source: Vec<i32> = (0..16 * count as i32).collect();
    let view = |i: usize| {
        let length = least + i * 7919 % (17 - least);
        SampleView::from_slice(&source[16 * i..16 * i + length], &[length as i64]).expect("a row")
    };
    let list: SampleList<'_> = shuffled(count).map(view).collect();
    assemble(engine, &list, collate, times);
}

fn column(engine: &Engine, bytes: usize, times: usize) {
    let count = bytes / 4;
    let table = Tensor::from_vec(vec![0.5f64; count], &[count as i64]).expect("a column");
    let list = SampleList::rows(&table).expect("its numbers");
    assemble(engine, &list, &Collate::stack().cast(DType::F32), times);
}

fn stack_few(engine: &Engine, bytes: usize, times: usize) {
    let source: Vec<u8> = (0..bytes / 8 + 8).map(byte).collect();
    let view = |i: usize| {
        SampleView::from_slice(&source[i..i + bytes / 8], &[bytes as i64 / 8]).expect("a sample")
    };
    let list: SampleList<'_> = (0..8).map(view).collect();
    assemble(engine, &list, &Collate::stack(), times);
}

fn turned(engine: &Engine, bytes: usize, times: usize) {
    let count = bytes.div_ceil(4096);
    let source: Vec<f32> = (0..count * 1024).map(|i| i as f32).collect();
    let view = |sample| SampleView::from_slice(sample, &[32, 32]).expect("a sample");
    let list: SampleList<'_> = source.chunks(1024).rev().map(view).collect();
    let collate = Collate::stack().transform(Transform::new().permute([1, 0]));
    assemble(engine, &list, &collate, times);
}
