//! Arrays of `ndarray` as samples, and tensors as such arrays.

use std::sync::Arc;

use ndarray::{arr0, array, s, Array1, Array2, Array3, ArrayD, IxDyn};
use windrow::{assemble, Collate, DType, Device, Error, Layout, Pad, Ragged, SampleView, Tensor};

fn views<'a, D: ndarray::Dimension>(
    arrays: &'a [ndarray::ArrayView<'a, i32, D>],
) -> Vec<SampleView<'a>> {
    arrays.iter().map(|array| SampleView::try_from(array.clone()).unwrap()).collect()
}

#[test]
fn strides_of_every_kind_are_read() {
    let base = Array3::from_shape_fn((3, 4, 5), |(i, j, k)| (i * 100 + j * 10 + k) as i32);
    let cuts = [
        base.slice(s![..2, ..2, ..2]),
        base.slice(s![1.., 2.., ..;3]),
        base.slice(s![..;-2, ..;-3, 3..]),
        base.slice(s![0..2, 1..3, ..2;-1]),
    ];
    let batch = assemble(&views(&cuts), &Collate::stack()).unwrap();
    let all = batch.data().as_array::<i32>().unwrap();
    for (row, cut) in all.outer_iter().zip(&cuts) {
        assert_eq!(row, cut.view().into_dyn());
    }
    // Dims in another order, and one element that stands for many.
    let turned = base.view().permuted_axes([2, 0, 1]);
    let one = arr0(7);
    let spread = one.broadcast((5, 3, 4)).unwrap();
    let batch = assemble(&views(&[turned, spread]), &Collate::stack()).unwrap();
    assert_eq!(batch.sample(0).unwrap().as_array::<i32>().unwrap(), turned.into_dyn());
    assert_eq!(batch.sample(1).unwrap().as_array::<i32>().unwrap(), spread.into_dyn());
}

#[test]
fn padded_and_ragged_batches_come_out_as_arrays() {
    let rows = [array![[1, 2], [3, 4]], array![[5, 6]]];
    let samples: Vec<_> = rows.iter().map(|row| SampleView::try_from(row).unwrap()).collect();
    for collate in [Collate::pad(Pad::new()), Collate::ragged(Ragged::new())] {
        let batch = assemble(&samples, &collate).unwrap();
        for (index, row) in rows.iter().enumerate() {
            let sample = batch.sample(index).unwrap();
            assert_eq!(sample.as_array::<i32>().unwrap(), row.view().into_dyn());
        }
    }
    let padded = assemble(&samples, &Collate::pad(Pad::new())).unwrap();
    let lengths = padded.lengths().unwrap().as_array::<i64>().unwrap();
    assert_eq!(lengths, array![2, 1].into_dyn());
}

#[test]
fn every_type_of_elements_and_none() {
    fn round<T: windrow::tensor::Element + PartialEq + std::fmt::Debug>(element: T) {
        let array = Array1::from_elem(3, element);
        let batch = assemble(&[SampleView::try_from(&array).unwrap()], &Collate::stack()).unwrap();
        assert_eq!(batch.data().dtype(), T::DTYPE);
        let row = batch.sample(0).unwrap();
        assert_eq!(row.as_array::<T>().unwrap(), array.into_dyn());
    }
    round(true);
    round(-1i8);
    round(2u16);
    round(i64::MIN);
    round(half::f16::from_f32(0.5));
    round(0.25f64);
    round([1f32, -2.0]);

    let empty = Array2::<f32>::zeros((0, 3));
    let batch = assemble(&[SampleView::try_from(&empty).unwrap()], &Collate::stack()).unwrap();
    assert_eq!(batch.data().as_array::<f32>().unwrap().shape(), [1, 0, 3]);
}

#[test]
fn tensors_that_are_no_arrays_are_refused() {
    let tensor = Tensor::from_vec(vec![1i32, 2, 3, 4, 5, 6], &[6]).unwrap();
    assert!(matches!(tensor.as_array::<f32>(), Err(Error::DType(_))));
    let bytes = Tensor::from_vec(vec![0u8, 1, 2], &[3]).unwrap();
    let bools = bytes.part(0, DType::Bool, &[3]).unwrap();
    assert!(matches!(bools.as_array::<bool>(), Err(Error::Layout(_))));
    assert!(bytes.part(0, DType::Bool, &[2]).unwrap().as_array::<bool>().is_ok());

    for (skipped, device) in [(1, Device::Cpu), (0, Device::Cuda(0))] {
        let memory = vec![0i32; 3];
        let data = memory.as_ptr().cast_mut().cast::<u8>().wrapping_add(skipped);
        let layout = Layout::compact(DType::I32, &[2]).unwrap();
        // SAFETY: the elements are in the vector, which is the owner; nothing is said of their alignment.
        #[allow(unsafe_code)]
        let tensor = unsafe {
            Tensor::new_unchecked(Arc::new(memory), data, DType::I32, device, layout, true)
        };
        let refused = tensor.as_array::<i32>().unwrap_err();
        match device {
            Device::Cpu => assert!(refused.to_string().contains("aligned memory"), "{refused}"),
            _ => assert!(matches!(refused, Error::Device(_)), "{refused}"),
        }
    }

    let layout = Layout::try_new(DType::I32, &[2, 1, 3], Some(&[-3, -9, -1])).unwrap();
    let reversed = tensor.view(5, layout).unwrap();
    let expected = ArrayD::from_shape_vec(IxDyn(&[2, 1, 3]), vec![6, 5, 4, 3, 2, 1]).unwrap();
    assert_eq!(reversed.as_array::<i32>().unwrap(), expected);
}
