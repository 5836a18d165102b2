//! Scales that are found and given, from C.
#![allow(unsafe_code)] // A C interface.

use std::ffi::{c_void, CStr};
use std::ptr::null_mut;

use windrow::dlpack::{
    dtype_to_dl, DLDataType, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLTensor,
};
use windrow::DType;
use windrow_capi::*;

/// A DLPack tensor of `data`, whose shape stays until the process ends.
fn tensor<T>(data: &mut [T], dtype: DType, shape: &[i64]) -> DLTensor {
    let shape = shape.to_vec().leak();
    DLTensor {
        data: data.as_mut_ptr().cast::<c_void>(),
        device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
        ndim: shape.len() as i32,
        dtype: code(dtype),
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

fn code(dtype: DType) -> DLDataType {
    dtype_to_dl(dtype)
}

fn text() -> String {
    // SAFETY: a string of the library, which no call changes meanwhile.
    unsafe { CStr::from_ptr(windrow_error()) }.to_str().unwrap().to_owned()
}

/// The elements of a field of a batch, and its shape.
fn field<T: Copy>(batch: *const Batch, field: Field) -> (Vec<T>, Vec<i64>) {
    let mut tensor: *mut DLManagedTensorVersioned = null_mut();
    // SAFETY: a batch; a live place for a pointer; a managed tensor on the host, freed once.
    unsafe {
        assert_eq!(windrow_batch_tensor(batch, field as i32, &mut tensor), Status::Ok);
        let inner = &(*tensor).dl_tensor;
        let shape = std::slice::from_raw_parts(inner.shape, inner.ndim as usize).to_vec();
        let numel = shape.iter().product::<i64>() as usize;
        let data = std::slice::from_raw_parts(inner.data.cast::<T>(), numel).to_vec();
        ((*tensor).deleter.unwrap())(tensor);
        (data, shape)
    }
}

#[test]
fn there_and_back() {
    let mut rows = [[1f32, -254.0, 3.0], [0.0, 0.5, -127.0]];
    // SAFETY: handles of the library, memory of the sizes given, and options that were initialised.
    unsafe {
        let (mut engine, mut samples) = (null_mut(), null_mut());
        assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
        assert_eq!(windrow_samples_new(&mut samples), Status::Ok);
        for row in &mut rows {
            let row = tensor(row, DType::F32, &[3]);
            assert_eq!(windrow_samples_push(samples, &row), Status::Ok);
        }
        let mut options = std::mem::zeroed::<Options>();
        assert_eq!(windrow_options_init_sized(&mut options, size_of::<Options>()), Status::Ok);
        (options.has_quantize, options.quantize) = (1, code(DType::I8));
        let mut batch = null_mut();
        assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Ok);
        assert_eq!(field::<i8>(batch, Field::Data), (vec![0, -127, 2, 0, 0, -127], vec![2, 3]));
        assert_eq!(field::<f32>(batch, Field::Scales), (vec![2.0, 1.0], vec![2]));
        windrow_batch_free(batch);
        // Blocks, into memory of the caller.
        options.quantize = code(DType::F8E4M3FN);
        (options.scale_of, options.scale_block) = (Granularity::Block as i32, 2);
        (options.has_scale_dtype, options.scale_dtype) = (1, code(DType::F8E8M0FNU));
        options.eps = 1e-6;
        let (mut data, mut found) = ([0u8; 6], [0u8; 4]);
        let out = tensor(&mut data, DType::F8E4M3FN, &[2, 3]);
        let scales = tensor(&mut found, DType::F8E8M0FNU, &[2, 2]);
        options.scales_out = &scales;
        let status = windrow_assemble_into(engine, samples, &options, &out, null_mut());
        assert_eq!(status, Status::Ok, "{}", text());
        assert_eq!(found, [126, 120, 118, 125]);
        let wrong = tensor(&mut found, DType::F8E8M0FNU, &[2, 3]);
        options.scales_out = &wrong;
        let status = windrow_assemble_into(engine, samples, &options, &out, null_mut());
        assert_eq!(status, Status::Shape);
        assert_eq!(text(), "out of the scales: expected shape (2, 2), got (2, 3)");
        // The result is converted back.
        let codes = data;
        windrow_samples_clear(samples);
        let mut codes: Vec<[u8; 3]> = codes.chunks(3).map(|row| row.try_into().unwrap()).collect();
        for row in &mut codes {
            let row = tensor(row, DType::F8E4M3FN, &[3]);
            assert_eq!(windrow_samples_push(samples, &row), Status::Ok);
        }
        assert_eq!(windrow_options_init_sized(&mut options, size_of::<Options>()), Status::Ok);
        options.scales = &scales;
        (options.has_scales_block, options.scales_block) = (1, 2);
        let status = windrow_assemble(engine, samples, &options, &mut batch);
        assert_eq!(status, Status::Dtype);
        assert!(text().ends_with("got none; set dtype to float32"), "{}", text());
        (options.has_dtype, options.dtype) = (1, code(DType::F32));
        assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Ok);
        let (back, _) = field::<f32>(batch, Field::Data);
        assert_eq!(back, [1.0, -224.0, 3.0, 0.0, 0.5, -112.0]);
        windrow_batch_free(batch);
        // Options are refused that exclude each other.
        for (set, words) in [
            (
                (|options| (options.mean, options.num_mean) = (&0.5, 1)) as fn(&mut Options),
                "exclude scale, mean, std and permute",
            ),
            (
                |options| {
                    options.has_dtype = 0;
                    options.dtype = Options::default().dtype;
                    (options.has_quantize, options.quantize) = (1, code(DType::I8));
                },
                "quantize excludes scales",
            ),
            (|options| options.scales_block = -1, "block must be at least 1 element, got -1"),
        ] {
            let mut wrong = options;
            set(&mut wrong);
            let status = windrow_assemble(engine, samples, &wrong, &mut batch);
            assert!(status == Status::Argument && text().contains(words), "{}", text());
        }
        windrow_samples_free(samples);
        windrow_engine_free(engine);
    }
}

#[test]
fn moves() {
    let (mut rows, mut codes, mut found) = ([[1f32, -254.0], [0.0, 0.5]], [[7i8; 2]; 2], [0f32; 2]);
    // SAFETY: as above.
    unsafe {
        let mut engine = null_mut();
        assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
        let mut lists = [null_mut(); 3];
        lists.iter_mut().for_each(|list| assert_eq!(windrow_samples_new(list), Status::Ok));
        let [srcs, dsts, scales] = lists;
        for index in 0..2 {
            let row = tensor(&mut rows[index], DType::F32, &[2]);
            assert_eq!(windrow_samples_push(srcs, &row), Status::Ok);
            let row = tensor(&mut codes[index], DType::I8, &[2]);
            assert_eq!(windrow_samples_push(dsts, &row), Status::Ok);
            let scale = tensor(&mut found[index..=index], DType::F32, &[]);
            assert_eq!(windrow_samples_push(scales, &scale), Status::Ok);
        }
        let mut options = std::mem::zeroed::<Options>();
        assert_eq!(windrow_options_init_sized(&mut options, size_of::<Options>()), Status::Ok);
        (options.has_quantize, options.quantize) = (1, code(DType::I8));
        let status = windrow_copy_many_with(engine, dsts, srcs, &options, std::ptr::null());
        assert_eq!((status, codes), (Status::Argument, [[7; 2]; 2]));
        assert!(text().contains("needs scales_out"), "{}", text());
        for wrong in [
            Options { form: 3, ..options },
            Options { saturate: 1, ..options },
            Options { has_dtype: 1, dtype: code(DType::I8), ..options },
            Options { dim: 1, ..options },
        ] {
            let status = windrow_copy_many_with(engine, dsts, srcs, &wrong, scales);
            assert_eq!((status, codes), (Status::Argument, [[7; 2]; 2]));
            assert!(text().contains(" is an option of "), "{}", text());
        }
        let wrong = Options { dtype: code(DType::I8), ..options };
        let status = windrow_copy_many_with(engine, dsts, srcs, &wrong, scales);
        assert_eq!((status, codes), (Status::Argument, [[7; 2]; 2]));
        assert!(text().starts_with("dtype is set and has_dtype is 0; "), "{}", text());
        let status = windrow_copy_many_with(engine, dsts, srcs, &options, scales);
        assert_eq!(status, Status::Ok, "{}", text());
        assert_eq!((codes, found), ([[0, -127], [0, 127]], [2.0, 0.5 / 127.0]));
        // The result is converted back.
        let given = tensor(&mut found, DType::F32, &[2]);
        assert_eq!(windrow_options_init_sized(&mut options, size_of::<Options>()), Status::Ok);
        options.scales = &given;
        let status = windrow_copy_many_with(engine, srcs, dsts, &options, std::ptr::null());
        assert_eq!(status, Status::Ok, "{}", text());
        assert_eq!(rows, [[0.0, -254.0], [0.0, 0.5]]);
        lists.into_iter().for_each(|list| windrow_samples_free(list));
        windrow_engine_free(engine);
    }
}
