//! Values that imports accept or refuse, and the error texts.

use std::ptr;

use super::*;

/// Imports both forms, expects a refusal of this text and nothing leaked.
fn refused(edit: impl Fn(&mut DLTensor), is: impl Fn(&Error) -> bool, text: &str) {
    both(edit, |result| {
        let error = result.unwrap_err();
        assert!(is(&error) && error.to_string() == text, "{error:?}: {error}");
    });
}

#[test]
fn null_strides_offsets_and_odd_strides_are_taken() {
    both(
        |tensor| tensor.strides = ptr::null_mut(),
        |tensor| {
            let tensor = tensor.unwrap();
            assert_eq!(tensor.strides(), [3, 1]);
            assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        },
    );
    both(
        |tensor| {
            (tensor.ndim, tensor.byte_offset) = (1, 16);
            tensor.strides = ptr::null_mut();
        },
        |tensor| assert_eq!(tensor.unwrap().as_slice::<f32>().unwrap(), [4.0, 5.0]),
    );
    both(
        // An address that is not a multiple of the element size; the consumer copies bytes.
        |tensor| (tensor.ndim, tensor.byte_offset) = (1, 3),
        |tensor| assert!(matches!(tensor.unwrap().as_slice::<f32>(), Err(Error::Layout(_)))),
    );
    let strides = [-3i64, 0];
    both(
        |tensor| {
            (tensor.strides, tensor.byte_offset) = (strides.as_ptr().cast_mut(), 12);
        },
        |tensor| assert_eq!(tensor.unwrap().strides(), [-3, 0]),
    );
}

#[test]
fn no_dims_need_no_arrays() {
    for junk in [ptr::null_mut(), ptr::without_provenance_mut(3)] {
        both(
            |tensor| (tensor.ndim, tensor.shape, tensor.strides) = (0, junk, junk),
            |tensor| {
                let tensor = tensor.unwrap();
                assert_eq!((tensor.shape(), tensor.strides()), (&[][..], &[][..]));
                assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.0]);
            },
        );
    }
}

#[test]
fn an_empty_tensor_may_have_any_address_and_strides() {
    let (shape, strides) = ([3i64, 0], [i64::MAX, i64::MIN]);
    for data in [ptr::null_mut(), ptr::without_provenance_mut(usize::MAX)] {
        both(
            |tensor| {
                (tensor.data, tensor.byte_offset) = (data, u64::MAX);
                tensor.shape = shape.as_ptr().cast_mut();
                tensor.strides = strides.as_ptr().cast_mut();
            },
            |tensor| {
                let tensor = tensor.unwrap();
                assert_eq!(tensor.shape(), [3, 0]);
                assert!(tensor.as_slice::<f32>().unwrap().is_empty());
            },
        );
    }
}

#[test]
fn every_dtype_goes_both_ways_and_no_other_comes_in() {
    let known: Vec<DLDataType> = DType::ALL.iter().map(|&dtype| dtype_to_dl(dtype)).collect();
    // A tensor of four bits is packed without its flag.
    let known: Vec<DLDataType> =
        known.iter().copied().filter(|dl| dl.bits > 4 || dl.lanes > 1).collect();
    for &dtype in DType::ALL.iter().filter(|dtype| !dtype.is_padded()) {
        let dl = dtype_to_dl(dtype);
        assert_eq!(dtype_from_dl(dl), Ok(dtype));
        assert_eq!(usize::from(dl.bits) * usize::from(dl.lanes), dtype.size() * 8);
    }
    for (dtype, code, bits) in [
        (DType::Bool, 6, 8),
        (DType::I8, 0, 8),
        (DType::U64, 1, 64),
        (DType::F16, 2, 16),
        (DType::BF16, 4, 16),
        (DType::C64, 5, 64),
        (DType::C128, 5, 128),
        (DType::F8E3M4, 7, 8),
        (DType::F8E4M3, 8, 8),
        (DType::F8E4M3B11FNUZ, 9, 8),
        (DType::F8E4M3FN, 10, 8),
        (DType::F8E4M3FNUZ, 11, 8),
        (DType::F8E5M2, 12, 8),
        (DType::F8E5M2FNUZ, 13, 8),
        (DType::F8E8M0FNU, 14, 8),
        (DType::I4, 0, 4),
        (DType::U4, 1, 4),
    ] {
        assert_eq!(dtype_to_dl(dtype), DLDataType { code: DLDataTypeCode(code), bits, lanes: 1 });
    }
    let pair = DLDataType { code: DLDataTypeCode(17), bits: 4, lanes: 2 };
    assert_eq!(dtype_to_dl(DType::F4E2M1FNX2), pair);
    // Miri takes minutes for all of them.
    let codes = if cfg!(miri) { 0..=20 } else { 0..=255 };
    for code in codes.map(DLDataTypeCode) {
        for bits in [0, 1, 4, 6, 8, 16, 32, 64, 80, 128, 255] {
            for lanes in [0, 1, 2, 4] {
                let dl = DLDataType { code, bits, lanes };
                assert_eq!(dtype_from_dl(dl).is_ok(), known.contains(&dl), "{dl}");
            }
        }
    }
}

#[test]
fn fewer_bits_than_a_byte_are_padded_by_a_flag() {
    for (dtype, code, lanes, padded) in [
        (Some(DType::I4), 0, 1, true),
        (Some(DType::U4), 1, 1, true),
        (Some(DType::F4E2M1FNX2), 17, 2, false),
        (None, 0, 1, false),
        (None, 0, 2, true),
        (None, 17, 2, true),
    ] {
        let frees = Frees::default();
        let managed = versioned(&frees, |tensor| {
            tensor.dtype = DLDataType { code: DLDataTypeCode(code), bits: 4, lanes };
        });
        // SAFETY: ours until it is taken.
        unsafe { (*managed).flags = if padded { FLAG_IS_SUBBYTE_TYPE_PADDED } else { 0 } };
        let tensor = take(managed);
        assert_eq!(tensor.as_ref().ok().map(Tensor::dtype), dtype, "{tensor:?}");
        if let (Ok(tensor), Some(dtype)) = (tensor, dtype) {
            assert_eq!(take(tensor.to_dlpack().as_ptr()).unwrap().dtype(), dtype);
        }
        assert_eq!(count(&frees), 1);
    }
}

#[test]
fn foreign_dtypes_are_refused_by_name() {
    for (code, bits, lanes, text) in [
        (6, 1, 1, "code 6 (Bool), bits 1, lanes 1"),
        (2, 32, 4, "code 2 (Float), bits 32, lanes 4"),
        (3, 64, 1, "code 3 (OpaqueHandle), bits 64, lanes 1"),
        (5, 32, 1, "code 5 (Complex), bits 32, lanes 1"),
        (17, 4, 1, "code 17 (Float4_e2m1fn), bits 4, lanes 1"),
        (0, 4, 1, "code 0 (Int), bits 4, lanes 1"),
        (99, 8, 1, "code 99, bits 8, lanes 1"),
    ] {
        refused(
            |tensor| tensor.dtype = DLDataType { code: DLDataTypeCode(code), bits, lanes },
            |error| matches!(error, Error::DType(_)),
            &format!(
                "tensor: expected a dtype of whole bytes and one lane, got DLPack dtype {text}"
            ),
        );
    }
}

#[test]
fn devices_are_mapped_or_refused_by_name() {
    let device = |kind, device_id| DLDevice { device_type: DLDeviceType(kind), device_id };
    for (kind, id, expected) in [
        (1, 0, Device::Cpu),
        (3, 1, Device::Cpu),
        (11, -1, Device::Cpu),
        (2, 0, Device::Cuda(0)),
        (2, i32::MAX, Device::Cuda(0x7fff_ffff)),
        (13, 2, Device::Cuda(2)),
    ] {
        assert_eq!(device_from_dl(device(kind, id)), Ok(expected));
    }
    assert_eq!(device_to_dl(Device::Pinned), device(1, 0));
    assert_eq!(device_to_dl(Device::Cuda(5)), device(2, 5));
    for (kind, id, text) in [
        (2, -1, "a CUDA ordinal of at least 0, got -1"),
        (10, 0, "memory of the host or of a CUDA device, got DLPack device type 10 (ROCM), id 0"),
        (99, 4, "memory of the host or of a CUDA device, got DLPack device type 99, id 4"),
    ] {
        refused(
            |tensor| tensor.device = device(kind, id),
            |error| matches!(error, Error::Device(_)),
            &format!("tensor: expected {text}"),
        );
    }
}

#[test]
fn broken_shapes_and_addresses_are_refused() {
    let layout = |error: &Error| matches!(error, Error::Layout(_));
    let large = |error: &Error| matches!(error, Error::TooLarge(_));
    refused(|t| t.ndim = -1, layout, "tensor: expected 0 to 64 dims, got ndim -1");
    refused(|t| t.ndim = 65, layout, "tensor: expected 0 to 64 dims, got ndim 65");
    refused(|t| t.shape = ptr::null_mut(), layout, "tensor: expected a shape, got NULL for 2 dims");
    // A negative extent is refused beside an empty one too.
    let (shape, huge, far) = ([0i64, -1], [i64::MAX, 2], [i64::MAX, 1]);
    refused(
        |t| t.shape = shape.as_ptr().cast_mut(),
        layout,
        "tensor: expected extents of at least 0, got shape (0, -1)",
    );
    refused(
        |t| t.data = ptr::null_mut(),
        layout,
        "tensor: expected memory, got a NULL data pointer for shape (2, 3); fake and meta tensors \
         look like this: they have no memory to read",
    );
    refused(
        |t| t.byte_offset = u64::MAX,
        large,
        "byte offset 18446744073709551615 leads beyond the address space",
    );
    refused(
        |t| t.shape = huge.as_ptr().cast_mut(),
        large,
        "shape (9223372036854775807, 2) of float32 is beyond 64 bits",
    );
    refused(
        |t| t.strides = far.as_ptr().cast_mut(),
        large,
        "strides (9223372036854775807, 1) of float32 reach beyond 64 bits",
    );
}

#[test]
fn the_walk_over_exchange_tables_ends() {
    let find = |api: *const DLPackExchangeAPI| {
        // SAFETY: NULL, or tables that live until the end of this test; so does the result.
        unsafe { DLPackExchangeAPI::find(api) }.map(|api| api.header.version.minor)
    };
    let header = |major, prev_api| DLPackExchangeAPIHeader {
        version: DLPackVersion { major, minor: 3 },
        prev_api,
    };
    let mut old = DLPackExchangeAPI {
        header: header(1, ptr::null_mut()),
        managed_tensor_allocator: None,
        managed_tensor_from_py_object_no_sync: None,
        managed_tensor_to_py_object_no_sync: None,
        dltensor_from_py_object_no_sync: None,
        current_work_stream: None,
    };
    let old = &raw mut old;
    let mut new = header(2, old.cast());
    let new = &raw mut new;
    assert_eq!(find(ptr::null()), None);
    assert_eq!(find(old), Some(3));
    assert_eq!(find(new.cast()), Some(3));
    // SAFETY: alive, and nothing borrows it.
    unsafe { (*new).prev_api = new };
    assert_eq!(find(new.cast()), None);
}
