//! Rows that are copied while later ones are still being found.
#![allow(unsafe_code)] // Rows are pushed by address.

use windrow::bindings::PipelinedCopy;
use windrow::engine::RunOptions;
use windrow::plan::Leaf;
use windrow::{Collate, DType, Engine, Plan, SampleList, SampleView, Tensor, Transform};

fn engine() -> Engine {
    Engine::builder().threads(3).build().unwrap()
}

fn rows(count: usize, len: usize) -> Vec<Vec<f32>> {
    (0..count).map(|i| (0..len).map(|j| ((i * len + j) % 251) as f32).collect()).collect()
}

fn list(rows: &[Vec<f32>]) -> SampleList<'_> {
    rows.iter().map(|row| SampleView::from_slice(row, &[row.len() as i64]).unwrap()).collect()
}

/// The rows handed out one by one, as an importer does it.
fn push_all(engine: &Engine, samples: &SampleList<'_>) -> Option<PipelinedCopy> {
    let mut ahead = engine.start_rows(&Collate::stack(), samples.meta(0), samples.len())?;
    for index in 0..samples.len() {
        // SAFETY: the samples outlive what is copied ahead, in every test here.
        unsafe { ahead.push(samples.address(index)) };
    }
    Some(ahead)
}

fn options(ahead: PipelinedCopy) -> RunOptions {
    let mut options = RunOptions::default();
    options.push_ahead(Some(ahead));
    options
}

fn plan<'s>(samples: &'s SampleList<'s>, collate: &'s Collate) -> Plan<'s> {
    Plan::for_leaves(&[Leaf { samples, collate, path: "", out: None }]).unwrap()
}

#[test]
fn the_batch_is_the_same_as_without() {
    let engine = engine();
    // Rows in one, in several and in odd numbers to a chunk; streamed and not.
    for (count, len) in [(2048, 128), (1025, 257), (4099, 64), (33, 16 << 10), (4100, 2048)] {
        let rows = rows(count, len);
        let samples = list(&rows);
        let mut ahead = push_all(&engine, &samples).expect("more than a megabyte");
        ahead.close();
        let filled = engine.run_with(plan(&samples, &Collate::stack()), options(ahead)).unwrap();
        let data = filled[0].data.as_ref().unwrap();
        assert_eq!(data.shape(), [count as i64, len as i64]);
        assert!(*data.as_slice::<f32>().unwrap() == *rows.concat(), "{count} rows of {len}");
    }
    let stats = engine.stats();
    assert_eq!(stats.batches, 5);
    assert_eq!(stats.pool.hits + stats.pool.misses, 5, "the rows copied ahead are the batch");
}

fn bytes(tensor: &Tensor) -> &[u8] {
    let len = tensor.shape().iter().product::<i64>() as usize * tensor.dtype().size();
    // SAFETY: batches are row-major without gaps.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr(), len) }
}

#[test]
fn rows_of_another_batch_are_let_go() {
    let engine = engine();
    let (rows, narrow) = (rows(4096, 128), rows(4096, 64));
    let samples = list(&rows);
    let half = samples.take(0..2048).unwrap();
    let square: SampleList<'_> =
        rows.iter().map(|row| SampleView::from_slice(&row[..], &[8, 16]).unwrap()).collect();
    let turned = Transform::new().permute([1, 0]);
    for (samples, collate) in [
        (&half, Collate::stack()),
        (&list(&narrow), Collate::stack()),
        (&samples, Collate::concat(0)),
        (&samples, Collate::stack().cast(DType::F64)),
        (&samples, Collate::stack().cast(DType::I32)),
        (&samples, Collate::stack().cast(DType::F32).transform(Transform::new().scale(2.0))),
        (&square, Collate::stack().transform(turned)),
    ] {
        let ahead = push_all(&engine, &list(&rows)).unwrap();
        let filled = engine.run_with(plan(samples, &collate), options(ahead)).unwrap();
        let expected = engine.assemble(samples, &collate).unwrap();
        let (got, expected) = (filled[0].data.as_ref().unwrap(), expected.data());
        assert_eq!((got.dtype(), got.shape()), (expected.dtype(), expected.shape()));
        assert!(bytes(got) == bytes(expected), "{collate:?}");
    }
}

#[test]
fn given_up_in_the_middle_nothing_is_read_later_and_the_memory_comes_back() {
    let engine = engine();
    for given in [0, 1, 63, 64, 65, 2000, 4096] {
        let rows = rows(4096, 128);
        let samples = list(&rows);
        let mut ahead = engine.start_rows(&Collate::stack(), samples.meta(0), 4096).unwrap();
        for index in 0..given {
            // SAFETY: the rows live until `ahead` is dropped.
            unsafe { ahead.push(samples.address(index)) };
        }
        assert!(engine.stats().pool.used_bytes > 0);
        drop(ahead);
        assert_eq!(engine.stats().pool.used_bytes, 0);
    }
}

#[test]
fn only_plain_stacks_of_some_size_start() {
    let engine = engine();
    let rows = rows(4096, 128);
    let samples = list(&rows);
    let starts = |engine: &Engine, collate: &Collate, count| {
        engine.start_rows(collate, samples.meta(0), count).is_some()
    };
    assert!(starts(&engine, &Collate::stack(), 4096));
    assert!(starts(&engine, &Collate::stack().cast(DType::F32), 4096));
    assert!(!starts(&engine, &Collate::stack(), 100));
    assert!(!starts(&engine, &Collate::concat(0), 4096));
    assert!(!starts(&engine, &Collate::stack().cast(DType::F16), 4096));
    assert!(!starts(
        &engine,
        &Collate::stack().cast(DType::F32).transform(Transform::new().scale(2.0)),
        4096
    ));
    assert!(!starts(&Engine::reference(), &Collate::stack(), 4096));
    let one = Engine::builder().threads(1).build().unwrap();
    assert!(!starts(&one, &Collate::stack(), 4096));
}
