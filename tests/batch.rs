//! The contents of an assembled batch: views of samples, slices, counters, memory that is used again.
#![allow(unsafe_code, reason = "a tensor over memory whose owner counts its drops")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::{runner, Ask, PadAsk, Sample};
use windrow::batch::Fields;
use windrow::collate::{Form, PerDim};
use windrow::observe::Stage;
use windrow::tensor::Offsets;
use windrow::{
    assemble, Batch, Collate, DType, Device, Engine, Error, Layout, Mask, Pad, Plan, Ragged,
    SampleList, SampleView, Side, Tensor, Transform,
};

fn rows(lengths: &[usize]) -> Vec<Vec<i32>> {
    let row = |(i, &n): (usize, &usize)| (0..n as i32).map(|x| 100 * i as i32 + x).collect();
    lengths.iter().enumerate().map(row).collect()
}

fn views(rows: &[Vec<i32>]) -> Vec<SampleView<'_>> {
    rows.iter().map(|row| SampleView::from_slice(row, &[row.len() as i64]).unwrap()).collect()
}

fn engine_of(threads: usize, pool_bytes: u64) -> Engine {
    Engine::builder().threads(threads).pool_bytes(pool_bytes).build().unwrap()
}

#[test]
fn kinds_of_samples() {
    let vecs = [vec![1i32, 2], vec![3, 4], vec![5, 6]];
    let arrays = [[1i32, 2], [3, 4], [5, 6]];
    let slices: [&[i32]; 3] = [&[1, 2], &[3, 4], &[5, 6]];
    let tensors = vecs.clone().map(|row| Tensor::from_vec(row, &[2]).unwrap());
    let views = slices.map(SampleView::from);
    // Samples may be in an array, a `Vec` or a slice, of any number of them.
    macro_rules! check {
        ($($samples:expr),*) => {$(
            for count in [1, 3] {
                let samples = &$samples[..count];
                for batch in [
                    assemble(samples, &Collate::stack()),
                    assemble(&samples.to_vec(), &Collate::stack()),
                    Engine::reference().assemble(samples, &Collate::stack()),
                ] {
                    let batch = batch.unwrap();
                    assert_eq!(batch.data().shape(), [count as i64, 2]);
                    assert_eq!(Vec::<i32>::try_from(batch.data()).unwrap(), [1, 2, 3, 4, 5, 6][..2 * count]);
                }
            }
            assert!(assemble(&$samples, &Collate::pad(Pad::new())).unwrap().lengths().is_some());
            assert_eq!(assemble(&$samples[..0], &Collate::stack()).unwrap_err(), Error::Empty);
        )*};
    }
    check!(
        vecs,
        arrays,
        slices,
        tensors,
        views,
        vecs.each_ref(),
        arrays.each_ref(),
        tensors.each_ref()
    );

    let longer = vecs.iter().filter(|row| row[0] > 1).map(|row| SampleView::from(&row[..]));
    let list: SampleList<'_> = longer.collect();
    assert_eq!(assemble(&list, &Collate::concat(0)).unwrap().data().shape(), [4]);

    // Rows of a tensor with gaps.
    let table = Tensor::from_vec((0..12).collect::<Vec<i32>>(), &[3, 4]).unwrap();
    let column = table.view(1, Layout::try_new(DType::I32, &[3], Some(&[4])).unwrap()).unwrap();
    let batch = assemble(&[&column, &column], &Collate::concat(0)).unwrap();
    assert_eq!(batch.data().as_slice::<i32>().unwrap(), [1, 5, 9, 1, 5, 9]);
}

#[test]
fn parts_of_a_batch() {
    let made = assemble(&[vec![1u8, 2], vec![3]], &Collate::ragged(Ragged::new())).unwrap();
    assert_eq!(made.as_ref().shape(), [3]);
    let (data, fields) = made.clone().into_parts();
    let again = Batch::try_new(data, fields).unwrap();
    assert_eq!(again.sample(1).unwrap().as_slice::<u8>().unwrap(), [3]);
    // Parts of another batch do not fit: an error, and no panic when a sample is asked for.
    let (_, fields) = made.clone().into_parts();
    let other = Tensor::from_vec(vec![0u8; 2], &[2]).unwrap();
    assert!(matches!(Batch::try_new(other, fields), Err(Error::Argument(_))));
    let data = made.into_data();
    assert_eq!(Vec::<u8>::try_from(data.clone()).unwrap(), [1, 2, 3]);
    assert!(matches!(Vec::<i8>::try_from(data), Err(Error::DType(_))));
}

#[test]
fn options_of_an_engine() {
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    let engine = Engine::builder().thread_pool(pool).threads(7).build().unwrap();
    assert_eq!(engine.num_threads(), 2);
    assert_eq!(Engine::builder().threads(0).build().unwrap().num_threads(), 1);
    let on_host = Engine::builder().device(Device::Cpu).build().unwrap();
    let batch = on_host.assemble(&[[1u8]], &Collate::stack()).unwrap();
    assert_eq!(batch.data().device(), Device::Cpu);
    if windrow::device::devices().is_err() {
        let refused = Engine::builder().device(Device::Cuda(0)).build();
        assert!(matches!(refused, Err(Error::NoDriver(_))));
    }
    let refused = Engine::builder().device(Device::Cuda(u32::MAX)).build();
    assert!(matches!(refused, Err(Error::NoDriver(_) | Error::Argument(_))));
}

#[test]
fn views_of_samples() {
    let rows = rows(&[3, 0, 5]);
    let engine = Engine::host();
    for collate in [Collate::ragged(Ragged::new()), Collate::concat(0), Collate::pad(Pad::new())] {
        let batch = engine.assemble(&views(&rows), &collate).unwrap();
        for (i, row) in rows.iter().enumerate() {
            let view = batch.sample(i).unwrap();
            assert_eq!(view.as_slice::<i32>().unwrap(), row);
            assert!(Arc::ptr_eq(view.owner(), batch.data().owner()), "no copy");
        }
        assert_eq!(batch.sample(3).unwrap_err(), Error::argument("sample 3 of 3".to_owned()));
        assert!(batch.sample(usize::MAX).is_err());
        assert_eq!((batch.len(), batch.is_empty()), (3, false));
    }
    for (side, lead) in [(Side::Right, 0), (Side::Left, 5), (Side::Center, 2)] {
        let batch =
            engine.assemble(&views(&rows), &Collate::pad(Pad::new().side(side).size(8))).unwrap();
        let view = batch.sample(0).unwrap();
        assert_eq!(view.as_slice::<i32>().unwrap(), rows[0]);
        assert_eq!(view.data_ptr().addr() - batch.data().data_ptr().addr(), 4 * lead);
        assert_eq!(batch.sample(1).unwrap().shape(), [0]);
    }
    // A truncated sample is what is left of it.
    let collate = Collate::pad(Pad::new().side(Side::Left).size(2).truncate(true));
    let batch = engine.assemble(&views(&rows), &collate).unwrap();
    assert_eq!(batch.sample(2).unwrap().as_slice::<i32>().unwrap(), [203, 204]);
    assert_eq!(batch.lengths().unwrap().as_slice::<i64>().unwrap(), [2, 0, 2]);
}

#[test]
fn views_outlive_their_batch() {
    let rows = rows(&[3, 4]);
    let batch = Engine::host().assemble(&views(&rows), &Collate::ragged(Ragged::new())).unwrap();
    let view = batch.sample(1).unwrap();
    drop(batch);
    assert_eq!(view.as_slice::<i32>().unwrap(), rows[1]);
}

#[test]
fn fields_of_each_form() {
    let rows = rows(&[3, 3]);
    let engine = Engine::host();
    let stack = engine.assemble(&views(&rows), &Collate::stack()).unwrap();
    let present = |batch: &Batch| {
        let has = |tensor: Option<&Tensor>| tensor.is_some();
        let index = has(batch.batch_index());
        (has(batch.lengths()), has(batch.offsets()), has(batch.mask()), index, batch.max_length())
    };
    assert_eq!(present(&stack), (false, false, false, false, None));
    let concat = engine.assemble(&views(&rows), &Collate::concat(0)).unwrap();
    assert_eq!(present(&concat), (true, true, false, false, None));
    let pad = engine.assemble(&views(&rows), &Collate::pad(Pad::new().mask(Mask::Pad))).unwrap();
    assert_eq!(present(&pad), (true, false, true, false, None));
    let ragged =
        engine.assemble(&views(&rows), &Collate::ragged(Ragged::new().batch_index())).unwrap();
    assert_eq!(present(&ragged), (true, true, false, true, Some(3)));
    assert_eq!(ragged.offsets().unwrap().dtype(), DType::I64);
    let short = engine
        .assemble(&views(&rows), &Collate::ragged(Ragged::new().offsets(DType::I32)))
        .unwrap();
    assert_eq!(short.offsets().unwrap().as_slice::<i32>().unwrap(), [0, 3, 6]);
}

#[test]
fn masks_have_the_order_of_the_result() {
    let samples = [Sample::new(DType::U8, &[2, 4, 3], 0), Sample::new(DType::U8, &[3, 2, 3], 5)];
    let ask = Ask::pad(PadAsk { mask: Some(Mask::Real), ..PadAsk::default() }).permute(&[2, 1, 0]);
    runner().check("mask", &samples, &ask);
    let batch =
        Engine::host().assemble(&crate::common::sample::views(&samples), &ask.collate()).unwrap();
    assert_eq!(batch.data().shape(), [2, 3, 4, 3]);
    // The channels do not differ, so the mask does not have them.
    assert_eq!(batch.mask().unwrap().shape(), [2, 4, 3]);
    assert_eq!(batch.lengths().unwrap().as_slice::<i64>().unwrap(), [2, 4, 3, 2]);
    let named = PadAsk {
        dims: Some(vec![2]),
        size: PerDim::Each(vec![None, None, Some(4)]),
        ..PadAsk::default()
    };
    runner().check("named", &samples[..1], &Ask::pad(named));
}

#[test]
fn slices_that_are_refused() {
    let tensor = Tensor::from_vec(vec![1i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    let error = tensor.as_slice::<u32>().unwrap_err();
    assert_eq!(error.to_string(), "tensor: expected uint32, got int32");
    let column = tensor.view(1, Layout::try_new(DType::I32, &[2], Some(&[3])).unwrap()).unwrap();
    assert!(matches!(column.as_slice::<i32>(), Err(Error::Layout(_))));
    assert_eq!(column.select(1).unwrap().as_slice::<i32>().unwrap(), [5]);
    let bytes = Tensor::from_vec(vec![0u8, 1, 2, 1], &[4]).unwrap();
    // SAFETY: four bytes that the first tensor's owner keeps alive.
    let bools = unsafe {
        let layout = bytes.layout().clone();
        Tensor::new_unchecked(
            bytes.owner().clone(),
            bytes.data_ptr(),
            DType::Bool,
            Device::Cpu,
            layout,
            true,
        )
    };
    let error = bools.as_slice::<bool>().unwrap_err();
    assert_eq!(error.to_string(), "tensor: expected bools of 0 and 1, got a bool that is neither");
    let two = bools.view(0, Layout::compact(DType::Bool, &[2]).unwrap()).unwrap();
    assert_eq!(two.as_slice::<bool>().unwrap(), [false, true]);
    // SAFETY: the address is not read: the tensor is said to be on a device.
    let there = unsafe {
        let layout = Layout::compact(DType::U8, &[4]).unwrap();
        Tensor::new_unchecked(
            Arc::new(()),
            std::ptr::dangling_mut(),
            DType::U8,
            Device::Cuda(0),
            layout,
            false,
        )
    };
    assert!(matches!(there.as_slice::<u8>(), Err(Error::Device(_))));
    // SAFETY: three bytes from the second on; misaligned for the dtype, which is what is refused.
    let odd = unsafe {
        let layout = Layout::compact(DType::U16, &[1]).unwrap();
        let at = bytes.data_ptr();
        let at = if at.addr() % 2 == 0 { at.add(1) } else { at };
        Tensor::new_unchecked(bytes.owner().clone(), at, DType::U16, Device::Cpu, layout, true)
    };
    assert!(matches!(odd.as_slice::<u16>(), Err(Error::Layout(_))));
}

#[test]
fn bounds_of_views() {
    let tensor = Tensor::from_vec((0..12i16).collect(), &[3, 4]).unwrap();
    assert_eq!(tensor.select(2).unwrap().as_slice::<i16>().unwrap(), [8, 9, 10, 11]);
    for row in [3, -1, i64::MIN, i64::MAX] {
        assert_eq!(tensor.select(row).unwrap_err(), Error::argument(format!("row {row} of 3")));
    }
    let scalar = tensor.select(0).unwrap().select(1).unwrap();
    assert_eq!((scalar.shape(), scalar.nbytes()), (&[][..], 2));
    assert!(matches!(scalar.select(0), Err(Error::Argument(_))));
    let layout =
        |shape: &[i64], strides: &[i64]| Layout::try_new(DType::I16, shape, Some(strides)).unwrap();
    assert!(tensor.view(0, layout(&[12], &[1])).is_ok());
    assert!(tensor.view(11, layout(&[12], &[-1])).is_ok());
    assert!(tensor.view(0, layout(&[1 << 40], &[0])).is_ok());
    for (start, shape, strides) in
        [(1, 12, 1), (-1, 1, 1), (12, 1, 1), (10, 12, -1), (0, 2, 12), (i64::MAX, 1, 1)]
    {
        let view = tensor.view(start, layout(&[shape], &[strides]));
        assert!(matches!(view, Err(Error::Layout(_))), "{shape} from {start} by {strides}");
    }
    assert_eq!(tensor.view(i64::MAX, layout(&[0], &[1])).unwrap().nbytes(), 0);
    assert!(Tensor::from_vec(vec![1u8; 5], &[2, 3]).is_err());
}

#[test]
fn views_of_batches_made_elsewhere() {
    let rows = rows(&[2, 3]);
    let samples = views(&rows);
    let collate = Collate::ragged(Ragged::new());
    let plan = Plan::new(&samples, &collate).unwrap();
    let fields = Fields::new(&plan.batch_shapes()[0]).unwrap();
    let data = Tensor::from_vec(vec![1i32, 2, 3, 4, 5], &[5]).unwrap();
    let batch = Batch::try_new(data, fields).unwrap();
    assert_eq!(batch.sample(1).unwrap().as_slice::<i32>().unwrap(), [3, 4, 5]);
    let offsets = Offsets::from_lengths([2, 3]).unwrap();
    assert_eq!(batch.offsets().unwrap().as_slice::<i64>().unwrap(), offsets.as_slice());
}

#[test]
fn counters() {
    let engine = Engine::host();
    let rows = rows(&[3, 5]);
    let pad = Collate::pad(Pad::new().mask(Mask::Real));
    engine.assemble(&views(&rows), &pad).unwrap();
    let stats = engine.stats();
    assert_eq!((stats.batches, stats.run_time), (1, Duration::ZERO), "not measured yet");
    engine.reset_stats();
    engine.assemble(&views(&rows), &pad).unwrap();
    let stats = engine.stats();
    assert_eq!((stats.batches, stats.samples, stats.views), (1, 2, 0));
    assert_eq!((stats.bytes_in, stats.padding_bytes), (32, 8));
    // 40 of data, 10 of the mask, 16 of lengths.
    assert_eq!((stats.bytes_out, stats.data_bytes, stats.padding_waste()), (66, 40, 0.2));
    assert_eq!(stats.paths, [("strided", 1)].into());
    // A small batch needs no plan.
    assert!(stats.plan_time.as_nanos() == 0 && stats.run_time.as_nanos() > 0);
    assert_eq!((stats.import_time.as_nanos(), stats.wait_time.as_nanos()), (0, 0));
    assert!(engine.assemble(&views(&rows), &Collate::stack()).is_err());
    assert!(engine.stats().plan_time.as_nanos() > 0, "it is a plan that tells what is wrong");
    engine.count_view(7);
    let stats = engine.clone().stats();
    assert_eq!((stats.batches, stats.samples, stats.views, stats.bytes_out), (2, 9, 1, 66));
    assert_eq!(stats.paths, [("strided", 1), ("view", 1)].into());
    drop(engine.enter(Stage::Import));
    assert!(engine.stats().import_time.as_nanos() > 0);
    engine.reset_stats();
    let stats = engine.stats();
    assert_eq!(
        (stats.batches, stats.samples, stats.bytes_in, stats.bytes_out, stats.views),
        (0, 0, 0, 0, 0)
    );
    assert_eq!(stats.paths, [].into());
    let times = [stats.import_time, stats.plan_time, stats.run_time, stats.wait_time];
    assert_eq!(times, [Duration::ZERO; 4]);
    assert!(stats.pool.misses > 0, "figures of memory stay");
    assert_eq!(engine_of(3, 0).num_threads(), 3);
    assert_eq!(engine_of(0, 0).num_threads(), 1);
}

#[test]
fn memory_is_used_again() {
    let engine = engine_of(1, 1 << 20);
    let row = vec![3u8; 200_000];
    let sample = [SampleView::from_slice(&row, &[200_000]).unwrap()];
    let batch = engine.assemble(&sample, &Collate::stack()).unwrap();
    let address = batch.data().data_ptr();
    assert_eq!(engine.stats().pool.free_bytes, 0);
    assert!(engine.stats().pool.used_bytes >= 200_000);
    let view = batch.sample(0).unwrap();
    drop(batch);
    assert_eq!(engine.stats().pool.free_bytes, 0, "a view still holds it");
    drop(view);
    let free = engine.stats().pool.free_bytes;
    assert!((200_000..=250_000).contains(&free), "{free}");
    assert_eq!(engine.stats().pool.used_bytes, 0);
    let again = engine.assemble(&sample, &Collate::stack()).unwrap();
    assert_eq!((again.data().data_ptr(), engine.stats().pool.hits), (address, 1));
    drop(again);
    engine.empty_cache();
    assert_eq!(engine.stats().pool.free_bytes, 0);
    // No more is kept than was asked for, whatever the order of drops.
    let batches: Vec<_> =
        (0..9).map(|_| engine.assemble(&sample, &Collate::stack()).unwrap()).collect();
    assert!(engine.stats().pool.used_bytes >= 1_800_000);
    drop(batches);
    let pool = engine.stats().pool;
    assert!(pool.free_bytes <= 1 << 20 && pool.free_bytes > 1 << 19, "{pool:?}");
    assert_eq!(pool.used_bytes, 0);
    let none = engine_of(1, 0);
    drop(none.assemble(&sample, &Collate::stack()).unwrap());
    assert_eq!(none.stats().pool.free_bytes, 0);
}

#[test]
fn batches_outlive_their_engine() {
    let rows = rows(&[50_000, 1]);
    let engine = engine_of(2, 1 << 20);
    let batch = engine.assemble(&views(&rows), &Collate::ragged(Ragged::new())).unwrap();
    drop(engine);
    assert_eq!(batch.sample(0).unwrap().as_slice::<i32>().unwrap(), rows[0]);
    thread::spawn(move || drop(batch)).join().unwrap();
}

#[test]
fn lists_of_samples() {
    let rows = rows(&[2, 2, 3, 0]);
    let mut list: SampleList<'_> = views(&rows).into_iter().collect();
    assert_eq!((list.len(), list.is_empty(), list.metas().len()), (4, false, 3));
    let engine = Engine::host();
    let taken = list.take([2, -1, 0, 0]).unwrap();
    let batch = engine.assemble(&taken, &Collate::ragged(Ragged::new())).unwrap();
    assert_eq!(batch.data().as_slice::<i32>().unwrap(), [200, 201, 202, 0, 1, 0, 1]);
    assert_eq!(
        engine.assemble(&list.take([]).unwrap(), &Collate::stack()).unwrap_err(),
        Error::Empty
    );
    for index in [4, -5, i64::MAX, i64::MIN] {
        let error = list.take([0, index]).unwrap_err();
        assert_eq!(error, Error::index(format!("index {index} in a list of 4 samples")));
    }
    list.extend(&taken).unwrap();
    list.extend(&SampleList::new()).unwrap();
    assert_eq!(list.len(), 8);
    let batch = engine.assemble(&list, &Collate::ragged(Ragged::new())).unwrap();
    assert_eq!(batch.lengths().unwrap().as_slice::<i64>().unwrap(), [2, 2, 3, 0, 3, 0, 2, 2]);
    let mut grown = SampleList::new();
    grown.extend(&list.take([3]).unwrap()).unwrap();
    grown.extend(&list).unwrap();
    let batch =
        engine.assemble(&grown.take([0, 1, 3]).unwrap(), &Collate::ragged(Ragged::new())).unwrap();
    assert_eq!(batch.lengths().unwrap().as_slice::<i64>().unwrap(), [0, 2, 3]);
    assert!(!grown.is_read_only());
    grown.mark_read_only();
    assert!(grown.take([0]).unwrap().is_read_only());
    list.extend(&grown).unwrap();
    assert!(list.is_read_only());
    // Marked one by one.
    let mut marked = SampleList::new();
    for row in [[1], [2]].iter() {
        marked.push_view(&SampleView::from(&row[..])).unwrap();
        marked.mark_last_read_only();
    }
    let mut longer = marked.take([0, 1, 0]).unwrap();
    let mut shorter = marked.take([1]).unwrap();
    for (taken, len) in [(&mut longer, 3), (&mut shorter, 1)] {
        taken.push_view(&SampleView::from(&[3][..])).unwrap();
        let flags: Vec<bool> = (0..=len).map(|index| taken.is_read_only_at(index)).collect();
        assert_eq!(flags, (0..=len).map(|index| index < len).collect::<Vec<_>>());
    }
}

#[test]
#[cfg(not(miri))] // `small` has threads for Miri.
fn threads_share_one_engine() {
    let engine = engine_of(3, 8 << 20);
    let rows: Vec<Vec<f32>> =
        (0..6).map(|i| (0..50_000).map(|x| (x * (i + 1)) as f32).collect()).collect();
    let samples = rows.iter().map(|row| SampleView::from_slice(row, &[50_000]).unwrap());
    let samples: SampleList<'_> = samples.collect();
    let (workers, rounds) = (4, 10);
    thread::scope(|scope| {
        for worker in 0..workers {
            let (engine, samples, rows) = (&engine, &samples, &rows);
            scope.spawn(move || {
                for round in 0..rounds {
                    let pick = [(worker + round) % 6, round % 6];
                    let picked = samples.take(pick.map(|i| i as i64)).unwrap();
                    let collate =
                        Collate::concat(0).cast(DType::F64).transform(Transform::new().scale(2.0));
                    let batch = engine.assemble(&picked, &collate).unwrap();
                    let want =
                        pick.iter().flat_map(|&i| rows[i].iter().map(|&x| 2.0 * f64::from(x)));
                    assert!(batch.data().as_slice::<f64>().unwrap().iter().copied().eq(want));
                }
            });
        }
    });
    let stats = engine.stats();
    let expected = (workers * rounds) as u64;
    assert_eq!((stats.batches, stats.samples), (expected, 2 * expected));
    assert_eq!(stats.pool.used_bytes, 0);
}

#[test]
#[cfg(not(miri))] // `small` has threads for Miri.
fn an_engine_inside_its_own_threads() {
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    let engine = Engine::host_with(Arc::clone(&pool));
    assert_eq!(engine.num_threads(), 2);
    let row: Vec<u16> = (0..300_000).map(|x| (x % 65_521) as u16).collect();
    let assemble = || {
        let samples = [0, 1].map(|_| SampleView::from_slice(&row, &[300_000]).unwrap());
        let batch = engine.assemble(&samples, &Collate::stack().cast(DType::U32)).unwrap();
        let want = row.iter().chain(&row).map(|&x| u32::from(x));
        assert!(batch.data().as_slice::<u32>().unwrap().iter().copied().eq(want));
    };
    pool.install(|| rayon::join(assemble, assemble));
    pool.install(|| rayon::scope(|scope| (0..6).for_each(|_| scope.spawn(|_| assemble()))));
}

/// A stack is copied without a plan up to a limit, and by one beyond it: the results are the same.
#[test]
#[cfg(not(miri))]
fn small_and_large_stacks_agree() {
    let (engine, reference) = (Engine::host(), Engine::reference());
    let around_the_limit = [(1, 1), (3, 0), (8, 16), (255, 1024), (256, 1024), (257, 1024)];
    // Batches of rows below 64 KiB need no plan up to 32 MiB: they are written in ranges, by several threads.
    let short_rows = [(20_000, 33), (1100, 512), (40, 16_383), (40, 16_384), (40, 16_385)];
    let all_of_them = [(511, 16_383), (512, 16_383), (513, 16_383)];
    for (count, length) in around_the_limit.into_iter().chain(short_rows).chain(all_of_them) {
        let rows: Vec<Vec<u16>> =
            (0..count).map(|i| (0..length).map(|x| (31 * i + x) as u16).collect()).collect();
        let samples: Vec<_> =
            rows.iter().map(|row| SampleView::from_slice(row, &[length]).unwrap()).collect();
        engine.reset_stats();
        let batch = engine.assemble(&samples[..], &Collate::stack()).unwrap();
        let want = reference.assemble(&samples[..], &Collate::stack()).unwrap();
        assert_eq!(batch.data().shape(), [count, length]);
        assert!(batch.data().as_slice::<u16>() == want.data().as_slice::<u16>());
        let (stats, bytes) = (engine.stats(), (2 * count * length) as u64);
        assert_eq!((stats.batches, stats.samples), (1, count as u64));
        assert_eq!((stats.bytes_in, stats.bytes_out, stats.padding_bytes), (bytes, bytes, 0));
        let last = batch.sample(count as usize - 1).unwrap();
        assert_eq!(last.as_slice::<u16>().unwrap(), rows[count as usize - 1]);
    }
}

/// Two batches have the same tensors, of the same bytes, and the same last sample.
#[cfg(not(miri))]
fn assert_alike(batch: &Batch, want: &Batch, name: &str) {
    let bytes = |tensor: &Tensor| tensor.bytes().unwrap().as_slice::<u8>().unwrap().to_vec();
    let told = |t: Option<&Tensor>| t.map(|t| (t.dtype(), t.shape().to_vec(), bytes(t)));
    for (got, want) in [
        (Some(batch.data()), Some(want.data())),
        (batch.lengths(), want.lengths()),
        (batch.offsets(), want.offsets()),
        (batch.mask(), want.mask()),
        (batch.batch_index(), want.batch_index()),
    ] {
        assert!(told(got) == told(want), "{name}");
    }
    assert_eq!((batch.len(), batch.max_length()), (want.len(), want.max_length()), "{name}");
    let last = |batch: &Batch| batch.sample(batch.len() - 1).unwrap().shape().to_vec();
    assert_eq!(last(batch), last(want), "{name}");
}

/// The limit from both sides, for every form: 1 MiB of bytes read and written.
#[test]
#[cfg(not(miri))]
fn small_batches_of_every_form() {
    let (engine, reference) = (Engine::host(), Engine::reference());
    let pad = || Pad::new().value(-7).mask(Mask::Pad);
    let forms = [
        Collate::concat(0),
        Collate::concat(-2),
        Collate::ragged(Ragged::new().batch_index().offsets(DType::I32)),
        Collate::ragged(Ragged::new()),
        Collate::pad(pad()),
        Collate::pad(pad().side(Side::Left).dims([0]).multiple_of(8)),
        Collate::pad(pad().side(Side::Center).dims([0]).size(2).truncate(true)),
        Collate::pad(pad().dims([0, 1])),
        Collate::pad(Pad::new().sizes([Some(20), None])),
    ];
    // Elements of 4 bytes, 3 to a place: read, written, and a mask and numbers besides.
    for count in [1, 2, 9, 3000, 6000] {
        let rows: Vec<Vec<i32>> =
            (0..count).map(|i| (0..3 * (i * 5 % 13)).map(|x| 31 * i + x - 90).collect()).collect();
        let samples: Vec<_> = rows
            .iter()
            .map(|row| SampleView::from_slice(row, &[row.len() as i64 / 3, 3]).unwrap())
            .collect();
        let list: SampleList<'_> = samples.iter().cloned().collect();
        for form in &forms {
            for dtype in [DType::I32, DType::I64, DType::F32, DType::U8] {
                if let (DType::U8, Form::Pad(_)) = (dtype, form.form()) {
                    continue; // -7 is none.
                }
                let collate = form.clone().cast(dtype);
                let want = reference.assemble(&list, &collate).unwrap();
                let (of_views, of_list) = (
                    engine.assemble(&samples[..], &collate).unwrap(),
                    engine.assemble(&list, &collate).unwrap(),
                );
                for batch in [of_views, of_list] {
                    assert_alike(&batch, &want, &format!("{count} rows, {collate:?}"));
                }
            }
        }
        let stats = (engine.stats(), reference.stats());
        assert_eq!(2 * stats.1.bytes_in, stats.0.bytes_in);
        assert_eq!(2 * stats.1.bytes_out, stats.0.bytes_out);
        assert_eq!(2 * stats.1.padding_bytes, stats.0.padding_bytes);
    }
}

/// Counts its drops.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn owners_are_dropped_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    let mut memory = Counted(vec![1, 2, 3, 4, 5, 6], Arc::clone(&drops));
    let data = memory.0.as_mut_ptr();
    let layout = Layout::compact(DType::U8, &[2, 3]).unwrap();
    // SAFETY: the owner holds the six bytes.
    let tensor = unsafe {
        Tensor::new_unchecked(Arc::new(memory), data, DType::U8, Device::Cpu, layout, false)
    };
    let row = tensor.select(1).unwrap();
    let clone = row.clone();
    let batch = Engine::host().assemble(&[SampleView::from(&tensor)], &Collate::stack()).unwrap();
    drop(tensor);
    drop(row);
    assert_eq!(
        (drops.load(Ordering::SeqCst), clone.as_slice::<u8>().unwrap()),
        (0, &[4u8, 5, 6][..])
    );
    thread::spawn(move || drop(clone)).join().unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert_eq!(batch.data().as_slice::<u8>().unwrap(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn views_of_what_is_there_already() {
    let whole: Vec<u16> = (0..20).collect();
    let row = |i: usize| SampleView::from_slice(&whole[4 * i..4 * i + 4], &[4]).unwrap();
    let address = |i: usize| Some(whole[4 * i..].as_ptr().cast::<u8>());
    let view = |samples: &[SampleView<'_>], collate: &Collate| {
        Plan::new(samples, collate).unwrap().as_view(0)
    };
    assert_eq!(view(&[row(1), row(2), row(3)], &Collate::stack()), address(1));
    assert_eq!(view(&[row(1), row(2)], &Collate::ragged(Ragged::new())), address(1));
    assert_eq!(view(&[row(2)], &Collate::stack()), address(2));
    assert_eq!(view(&[row(2), row(1)], &Collate::stack()), None);
    assert_eq!(view(&[row(1), row(3)], &Collate::stack()), None);
    assert_eq!(view(&[row(1), row(1)], &Collate::stack()), None);
    assert_eq!(view(&[row(1), row(2)], &Collate::stack().cast(DType::F32)), None);
    assert_eq!(
        view(
            &[row(1), row(2)],
            &Collate::stack().cast(DType::U8).transform(Transform::new().scale(2.0))
        ),
        None
    );
    assert_eq!(view(&[row(1), row(2)], &Collate::pad(Pad::new().size(5))), None);
    let turned = SampleView::with_strides(&whole[..6], &[2, 3], &[1, 2]).unwrap();
    assert_eq!(view(std::slice::from_ref(&turned), &Collate::stack()), None);
    let back = Collate::stack().transform(Transform::new().permute([1, 0]));
    assert_eq!(view(&[turned], &back), address(0));
}

#[test]
fn a_taken_list_goes_on_after_its_own_last_sample() {
    let (bytes, floats) = ([1u8, 2, 3, 4], [1.0f32; 4]);
    let mut list = SampleList::new();
    list.push_view(&SampleView::from_slice(&bytes, &[4]).unwrap()).unwrap();
    list.push_view(&SampleView::from_slice(&floats, &[4]).unwrap()).unwrap();
    for (picks, dtype) in [(&[0i64][..], DType::U8), (&[0, 1], DType::F32), (&[1, 0], DType::U8)] {
        let mut taken = list.take(picks.iter().copied()).unwrap();
        // SAFETY: sixteen bytes, enough for a sample of either dtype.
        unsafe { taken.extend_same([floats.as_ptr().cast()]) };
        assert_eq!((taken.len(), taken.meta(picks.len()).dtype), (picks.len() + 1, dtype));
    }
    let mut none = list.take([]).unwrap();
    // SAFETY: as above; there is no last sample to be like.
    unsafe {
        none.extend_same([floats.as_ptr().cast()]);
        none.extend_rows([(floats.as_ptr().cast(), 4)]);
    }
    assert!(none.is_empty());
}

/// Rows of other lengths behind samples of every kind, some of which no list takes by their length alone.
#[test]
fn rows_are_told_by_their_addresses_and_lengths() {
    let (bytes, floats) = ([1u8, 2, 3, 4], [1.0f32; 4]);
    let row = |length: usize| SampleView::from_slice(&bytes[..length], &[length as i64]).unwrap();
    let strided = SampleView::with_strides(&bytes, &[2], &[2]).unwrap();
    let other = SampleView::from(&floats[..]);
    let starts = [
        (vec![row(3)], 2),
        (vec![row(0)], 2),
        (vec![row(3), row(1), other.clone(), row(2)], 2),
        (vec![row(3), other.clone(), row(2)], 0),
        (vec![row(3), other], 0),
        (vec![strided, row(2)], 0),
    ];
    for (start, taken) in starts {
        for is_asked in [false, true] {
            let mut list: SampleList = start.iter().cloned().collect();
            let lengths = |list: &SampleList<'_>| -> Vec<i64> {
                (0..list.len()).map(|index| list.meta(index).layout.shape()[0]).collect()
            };
            let mut want = lengths(&list);
            if !is_asked {
                // The layouts of a list that was just taken were not asked for.
                list = list.take(0..list.len() as i64).unwrap();
            }
            let rows = [2, 4, -1, 1].map(|length| (bytes.as_ptr(), length));
            // SAFETY: so many of the bytes, which the last sample is of where one is taken.
            unsafe { list.extend_rows(rows) };
            want.extend(&[2, 4][..taken]);
            assert_eq!(lengths(&list), want);
            assert!(list.metas().iter().all(|meta| list
                .metas()
                .iter()
                .filter(|m| *m == meta)
                .count()
                == 1));
        }
    }
}

#[test]
fn samples_like_the_last_one_are_told_by_their_addresses() {
    let (bytes, floats) = ([1u8, 2, 3, 4], [1.0f32; 4]);
    let view = |length: usize| SampleView::from_slice(&bytes[..length], &[length as i64]).unwrap();
    let other = SampleView::from_slice(&floats, &[2, 2]).unwrap();
    let start = bytes.as_ptr();
    for samples in
        [vec![view(3)], vec![view(3), view(2)], vec![view(3), other.clone()], vec![other]]
    {
        let (mut list, mut want) = (SampleList::new(), SampleList::new());
        // SAFETY: there is no last sample.
        unsafe { list.extend_same([start]) };
        assert!(list.is_empty());
        for sample in &samples {
            list.push_view(sample).unwrap();
            for count in 0..3 {
                let again = std::iter::repeat_n(list.address(list.len() - 1), count);
                // SAFETY: the sample itself, some more times.
                unsafe { list.extend_same(again) };
            }
            (0..4).for_each(|_| want.push_view(sample).unwrap());
        }
        assert_eq!(list.data(), want.data());
        assert_eq!(list.metas(), want.metas());
        for index in 0..want.len() {
            assert_eq!(list.meta(index), want.meta(index), "{index}");
        }
    }
}
