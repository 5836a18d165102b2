//! Lists of samples, and the views in them.

use std::sync::Arc;

use super::sealed::Read;
use super::{SampleList, SampleView, TensorMeta};
use crate::tensor::{DType, Error, Owner, Tensor};

#[test]
fn metas_are_stored_once() {
    let data = [0u16; 12];
    let mut list = SampleList::new();
    for rows in [3, 3, 2, 3, 2, 1] {
        list.push_view(&SampleView::from_slice(&data[..rows * 4], &[rows as i64, 4]).unwrap())
            .unwrap();
    }
    assert_eq!(list.metas().len(), 3);
    assert_eq!(list.meta_ids().unwrap(), [0, 0, 1, 0, 1, 2]);
    let taken = list.take([-1, 0, 5]).unwrap();
    assert_eq!(taken.meta(0).layout.shape(), [1, 4]);
    assert_eq!(taken.meta(1).layout.shape(), [3, 4]);
    assert!(list.take([6]).is_err() && list.take([-7]).is_err());
    assert!(matches!(list.take(0..i64::MAX), Err(Error::OutOfMemory { .. })));
}

#[test]
fn slices_are_samples_of_one_dim() {
    let rows: [&[i32]; 3] = [&[1, 2, 3], &[], &[5]];
    let views: SampleList =
        rows.iter().map(|row| SampleView::from_slice(row, &[row.len() as i64]).unwrap()).collect();
    for list in [rows.to_list(), rows.to_vec().to_list(), rows[..].to_list()] {
        assert_eq!((list.metas(), list.data()), (views.metas(), views.data()));
    }
}

#[test]
fn owners_do_not_multiply() {
    let held = |_| Arc::new(0u8) as Owner;
    let mut list = SampleList { owners: (0..3).map(held).collect(), ..SampleList::new() };
    for added in 1..50 {
        let mut taken = list.clone();
        taken.owners.push(held(0));
        list.extend(&taken).unwrap();
        list.extend(&taken).unwrap();
        list.extend(&list.clone()).unwrap();
        assert_eq!(list.owners.len(), 3 + added);
    }
}

#[test]
fn a_taken_list_can_grow() {
    let data = [0u8; 4];
    let mut list: SampleList =
        [2, 4].iter().map(|&n| SampleView::from_slice(&data[..n], &[n as i64]).unwrap()).collect();
    list = list.take([1]).unwrap();
    list.push_view(&SampleView::from_slice(&data[..2], &[2]).unwrap()).unwrap();
    list.push_view(&SampleView::from_slice(&data[..3], &[3]).unwrap()).unwrap();
    let lengths = [0, 1, 2].map(|index| list.meta(index).layout.shape()[0]);
    assert_eq!((lengths, list.metas().len()), ([4, 2, 3], 3));
}

#[test]
fn layouts_that_left_the_list_do_not_stay() {
    let data = [0u8; 12];
    let mut queue: SampleList =
        [2, 4, 3].map(|n| SampleView::from(&data[..n])).into_iter().collect();
    let mut ring = queue.clone();
    for turn in 1..1000 {
        let view = SampleView::from_slice(&data[..0], &[0, turn]).unwrap();
        queue.push_view(&view).unwrap();
        queue = queue.take([-3, -2, -1]).unwrap();
        ring.replace(1 + turn as usize % 2, &[view].into_iter().collect(), 0).unwrap();
        let kept = [&queue, &ring].map(|list| list.layouts.metas.all().len());
        assert!(kept.iter().all(|&count| count <= 65), "{kept:?} in turn {turn}");
        assert_eq!(ring.meta(0).layout.shape(), [2]);
        let shapes = |list: &SampleList<'_>, at: [usize; 3]| {
            at.map(|index| list.meta(index).layout.shape().iter().sum::<i64>())
        };
        if turn > 2 {
            assert_eq!(shapes(&queue, [0, 1, 2]), [turn - 2, turn - 1, turn]);
            let newest = 1 + turn as usize % 2;
            assert_eq!(shapes(&ring, [0, 3 - newest, newest]), [2, turn - 1, turn]);
        }
    }
}

#[test]
fn rows_get_metas_when_asked_for_or_when_a_sample_is_no_row() {
    let data = [0u16; 30];
    let row = |len: usize| SampleView::from_slice(&data[..2 * len], &[len as i64, 2]).unwrap();
    let shapes = |list: &SampleList<'_>| -> Vec<Vec<i64>> {
        (0..list.len()).map(|index| list.meta(index).layout.shape().to_vec()).collect()
    };
    let lens = [3, 3, 0, 5, 3, 1];
    let expected: Vec<Vec<i64>> = lens.iter().map(|&len| vec![len as i64, 2]).collect();
    for asked_after in 0..=lens.len() {
        let mut list = SampleList::new();
        for (count, &len) in lens.iter().enumerate() {
            if count == asked_after {
                list.metas();
            }
            list.push_view(&row(len)).unwrap();
        }
        assert_eq!(shapes(&list), expected, "asked after {asked_after}");
        assert_eq!((list.metas().len(), list.is_uniform()), (4, false));
        let taken = list.take([5, -1, 2]).unwrap();
        assert_eq!(shapes(&taken), [[1, 2], [1, 2], [0, 2]]);
        let turned = SampleView::with_strides(&data, &[4, 2], &[1, 4]).unwrap();
        let others = SampleView::from_slice(&data[..6], &[2, 3]).unwrap();
        let mut all = expected.clone();
        for (view, shape) in [(turned, vec![4, 2]), (others, vec![2, 3]), (row(3), vec![3, 2])] {
            list.push_view(&view).unwrap();
            all.push(shape);
            assert_eq!(shapes(&list), all);
        }
        assert_eq!(list.metas().len(), 6);
        let mut joined = list.take([0]).unwrap();
        joined.extend(&list).unwrap();
        assert_eq!(shapes(&joined)[1..], all);
    }
}

/// One that gives more behind its end, as that of a list whose objects are read until one is of another class.
#[test]
#[allow(unsafe_code)]
fn rows_end_where_their_iterator_first_ends() {
    let data = [0u8; 8];
    let view = |len: usize| SampleView::from_slice(&data[..len], &[len as i64]).unwrap();
    for firsts in [vec![3], vec![3, 2]] {
        for before in 0..3 {
            let mut list: SampleList = firsts.iter().map(|&len| view(len)).collect();
            let mut rows = (0..before)
                .map(|n| Some((data.as_ptr(), n)))
                .chain([None])
                .chain((4..8).map(|n| Some((data.as_ptr(), n))));
            // SAFETY: `data` has as many bytes.
            unsafe { list.extend_rows(std::iter::from_fn(|| rows.next().flatten())) };
            assert_eq!(list.len(), firsts.len() + before as usize);
        }
    }
}

/// Rows of one length, of several, and what is none, replaced by each other in every order.
#[test]
fn replaced_samples_are_those_of_a_plain_list() {
    let data: Vec<u16> = (0..64).collect();
    let row = |first: usize, len: usize| {
        SampleView::from_slice(&data[first..first + 2 * len], &[len as i64, 2]).unwrap()
    };
    let turned = SampleView::with_strides(&data[40..48], &[4, 2], &[1, 4]).unwrap();
    let others: SampleList =
        [row(1, 3), row(2, 5), turned, row(3, 0), row(4, 3), row(5, 1)].into_iter().collect();
    let seen = |list: &SampleList<'_>| -> Vec<(*const u8, Vec<i64>, Vec<i64>)> {
        let of = |meta: &TensorMeta| (meta.layout.shape().to_vec(), meta.layout.strides().to_vec());
        let one =
            |index: usize| (list.address(index), of(list.meta(index)).0, of(list.meta(index)).1);
        (0..list.len()).map(one).collect()
    };
    let table = Tensor::from_vec((0..12u16).collect(), &[2, 3, 2]).unwrap();
    let starts: [SampleList; 4] = [
        [row(0, 3)].into_iter().cycle().take(4).collect(),
        [row(0, 3), row(9, 2), row(8, 3)].into_iter().collect(),
        SampleList::rows(&table).unwrap(),
        others.take([2, 2, 1]).unwrap(),
    ];
    let mut bits = 1u64;
    for start in &starts {
        let (mut list, mut wanted) = (start.clone(), seen(start));
        for step in 0..200 {
            bits = bits.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let index = (bits >> 33) as usize % list.len();
            let from = (bits >> 40) as usize % others.len().min(1 + step / 20);
            let (taken, before) = (list.take(0..list.len() as i64).unwrap(), wanted.clone());
            list.replace(index, &others, from).unwrap();
            wanted[index] = seen(&others)[from].clone();
            assert_eq!(seen(&taken), before);
            if step % 3 == 0 {
                assert_eq!(seen(&list), wanted);
            }
            if step % 50 == 7 {
                let added = step % others.len();
                list.extend(&others.take([added as i64]).unwrap()).unwrap();
                wanted.push(seen(&others)[added].clone());
            }
            assert_eq!(list.last_dtype(), Some(DType::U16));
        }
        assert_eq!(seen(&list), wanted);
        assert!(list.replace(list.len(), &others, 0).is_err());
        assert!(list.replace(0, &others, others.len()).is_err());
        assert_eq!(seen(&list), wanted);
    }
}

#[test]
fn rows_of_a_table_need_no_addresses_until_the_list_grows() {
    let table = Tensor::from_vec((0..12u8).collect(), &[4, 3]).unwrap();
    let mut list = SampleList::rows(&table).unwrap();
    assert_eq!(list.len(), 4);
    assert_eq!(list.address(3), table.data_ptr().wrapping_add(9).cast_const());
    assert_eq!(*list.data(), *list.take([0, 1, 2, 3]).unwrap().data());
    let other = [7u8; 3];
    list.push_view(&SampleView::from_slice(&other, &[3]).unwrap()).unwrap();
    assert_eq!((list.len(), list.address(4)), (5, other.as_ptr()));
    assert!(SampleList::rows(&table.select(0).unwrap().select(0).unwrap()).is_err());
    let vast = Tensor::from_vec(Vec::<f64>::new(), &[0, 1 << 61, 2])
        .map(|none| SampleList::rows(&none).map(|_| ()));
    assert!(matches!(vast, Ok(Err(Error::TooLarge(_)))), "{vast:?}");
}

#[test]
fn views_stay_inside_their_slice() {
    let data = [1i32, 2, 3, 4, 5, 6];
    assert!(SampleView::from_slice(&data, &[7]).is_err());
    assert!(SampleView::with_strides(&data, &[3, 2], &[2, 2]).is_err());
    for shape in [&[-3][..], &[1; 65], &[i64::MAX, 2]] {
        for view in [
            SampleView::from_slice(&data, shape),
            SampleView::with_strides(&data, shape, &vec![0; shape.len()]),
        ] {
            let error = view.unwrap_err();
            assert_eq!(error.sample(), Some(0), "{error}");
        }
    }
    let mut list = SampleList::from_iter([SampleView::from(&data[..])]);
    let error = list.replace(usize::MAX, &list.clone(), 0).unwrap_err();
    assert_eq!(error.to_string(), format!("index {} in a list of 1 samples", usize::MAX));
    let far = SampleView::with_strides(&[0u8], &[2, 2], &[i64::MIN + 1, i64::MAX - 1]);
    assert!(matches!(far, Err(Error::Layout(_))), "a span of more than 63 bits");
    let reversed = SampleView::with_strides(&data, &[6], &[-1]).unwrap();
    assert_eq!(reversed.data(), data[5..].as_ptr().cast());
}
