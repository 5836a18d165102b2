//! Wrong arguments from C: each gives a status and a text, and nothing is written.
#![allow(unsafe_code)] // A C interface.

use std::ffi::{c_void, CStr};
use std::ptr::{null, null_mut};

use windrow::dlpack::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};
use windrow_capi::*;

fn text() -> String {
    // SAFETY: a string of the library, which no call changes meanwhile.
    unsafe { CStr::from_ptr(windrow_error()) }.to_str().unwrap().to_owned()
}

const UINT8: DLDataType = DLDataType { code: DLDataTypeCode::UINT, bits: 8, lanes: 1 };
const INT8: DLDataType = DLDataType { code: DLDataTypeCode::INT, bits: 8, lanes: 1 };
const CPU: DLDevice = DLDevice { device_type: DLDeviceType::CPU, device_id: 0 };
const COMPLEX: DLDataType = DLDataType { code: DLDataTypeCode::COMPLEX, bits: 64, lanes: 1 };

fn row(data: &mut [u8], shape: &mut [i64]) -> DLTensor {
    DLTensor {
        data: data.as_mut_ptr().cast::<c_void>(),
        device: CPU,
        ndim: shape.len() as i32,
        dtype: UINT8,
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

/// An engine of one thread, and an empty list.
struct Handles {
    engine: *mut Engine,
    samples: *mut Samples,
}

impl Handles {
    fn new() -> Handles {
        let (mut engine, mut samples) = (null_mut(), null_mut());
        // SAFETY: two live places for handles.
        unsafe {
            assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
            assert_eq!(windrow_samples_new(&mut samples), Status::Ok);
        }
        Handles { engine, samples }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: handles of the library, freed once.
        unsafe {
            windrow_samples_clear(self.samples);
            assert_eq!(windrow_samples_len(self.samples), 0);
            windrow_samples_free(self.samples);
            windrow_engine_free(self.engine);
        }
    }
}

#[test]
fn impossible_samples_are_a_status() {
    let handles = Handles::new();
    let samples = handles.samples;
    let (mut data, mut shape) = ([1u8, 2, 3, 4], [4i64]);
    // SAFETY: handles of the library, arrays of the sizes given, and NULL.
    unsafe {
        assert_eq!(windrow_samples_push(samples, null()), Status::Argument);
        assert_eq!(windrow_samples_push(null_mut(), &row(&mut data, &mut shape)), Status::Argument);
        assert_eq!(windrow_samples_push(samples, &row(&mut data, &mut shape)), Status::Ok);
        for broken in [
            DLTensor { ndim: -1, ..row(&mut data, &mut shape) },
            DLTensor { ndim: 65, ..row(&mut data, &mut shape) },
            DLTensor { shape: null_mut(), ..row(&mut data, &mut shape) },
            DLTensor { data: null_mut(), ..row(&mut data, &mut shape) },
            row(&mut data, &mut [-4]),
        ] {
            assert_eq!(windrow_samples_push(samples, &broken), Status::Layout, "{}", text());
            assert!(text().starts_with("sample 1: "), "{}", text());
            assert_eq!(windrow_error_sample(), 1);
        }
        let odd = DLTensor {
            dtype: DLDataType { code: DLDataTypeCode::UINT, bits: 3, lanes: 1 },
            ..row(&mut data, &mut shape)
        };
        assert_eq!(windrow_samples_push(samples, &odd), Status::Dtype);
        let device = DLDevice { device_type: DLDeviceType(99), device_id: 0 };
        let far = DLTensor { device, ..row(&mut data, &mut shape) };
        assert_eq!(windrow_samples_push(samples, &far), Status::Device);
        assert_eq!(windrow_samples_len(samples), 1);
    }
}

#[test]
fn impossible_options_are_a_status() {
    let handles = Handles::new();
    let (engine, samples) = (handles.engine, handles.samples);
    let (mut options, mut batch) = (Options::default(), null_mut());
    let (mut data, mut shape) = ([1u8, 2, 3, 4], [4i64]);
    // SAFETY: handles of the library, arrays of the sizes given, and NULL.
    unsafe {
        assert_eq!(windrow_engine_new(1, null_mut()), Status::Argument);
        assert_eq!(text(), "engine is NULL");
        assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Argument);
        assert_eq!(
            (text().as_str(), windrow_error_sample()),
            ("cannot assemble an empty list of samples", -1)
        );
        assert_eq!(windrow_samples_push(samples, &row(&mut data, &mut shape)), Status::Ok);
        for (options, wanted) in [
            (Options { size: 8, ..options }, "windrow_options_init"),
            (Options { form: 9, dim: 1, ..options }, "form must be a windrow_form, got 9"),
            (Options { form: 2, side: 7, ..options }, "side must be a windrow_side, got 7"),
            (Options { form: 2, side: -1, ..options }, "side must be a windrow_side, got -1"),
            (
                Options { form: 2, value: Number { kind: 4, ..windrow_int64(0) }, ..options },
                "value.kind must be a windrow_number_kind, got 4",
            ),
            (
                Options { form: 2, value: windrow_int64(256), ..options },
                "value=256 is not representable in uint8",
            ),
            (
                Options { form: 2, value: windrow_complex128(0.0, 1.0), ..options },
                "is not representable in uint8",
            ),
            (Options { form: 2, mask: -1, ..options }, "mask must be a windrow_mask, got -1"),
            (Options { offsets_i32: 1, ..options }, "offsets_i32"),
            (
                Options { form: 2, mask: 1, has_mask_dtype: 1, mask_dtype: COMPLEX, ..options },
                "mask_dtype must be",
            ),
            (
                Options { form: 2, has_mask_dtype: 1, mask_dtype: UINT8, ..options },
                "mask is not set",
            ),
            (
                Options { has_quantize: 1, quantize: INT8, scale_of: 3, ..options },
                "scale_of must be a windrow_granularity, got 3",
            ),
            (
                Options { has_quantize: 1, quantize: INT8, scale_of: 2, ..options },
                "at least 1 element, got 0",
            ),
            (Options { has_quantize: 1, quantize: INT8, eps: 0.0, ..options }, "eps must be"),
        ] {
            assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Argument);
            assert!(text().contains(wanted), "{}", text());
        }
        // Options are refused that belong to another option, which is absent.
        let quantised = Options { has_quantize: 1, quantize: INT8, ..options };
        let (number, tensor) = ([1i64], row(&mut [], &mut []));
        for (options, wanted) in [
            (Options { dim: 1, ..options }, "dim is an option of WINDROW_FORM_CONCAT"),
            (
                Options { value: windrow_int64(1), ..options },
                "value is an option of WINDROW_FORM_PAD",
            ),
            (Options { value: windrow_float64(0.0), ..options }, "value is an option of"),
            (Options { form: 3, side: 1, ..options }, "side is an option of WINDROW_FORM_PAD"),
            (Options { truncate: 1, ..options }, "truncate is an option of"),
            (Options { mask: 1, ..options }, "mask is an option of"),
            (
                Options { has_mask_dtype: 1, mask_dtype: UINT8, ..options },
                "mask_dtype is an option of",
            ),
            (Options { dims: number.as_ptr(), ..options }, "dims is an option of"),
            (Options { sizes: number.as_ptr(), ..options }, "sizes is an option of"),
            (Options { multiples: number.as_ptr(), ..options }, "multiples is an option of"),
            (Options { form: 2, num_dims: 1, ..options }, "num_dims is 1 and dims is NULL"),
            (Options { form: 2, num_sizes: 1, ..options }, "num_sizes is 1 and sizes is NULL"),
            (Options { form: 2, num_multiples: 1, ..options }, "num_multiples is 1 and multiples"),
            (Options { num_mean: 3, ..options }, "num_mean is 3 and mean is NULL"),
            (Options { num_std: 3, ..options }, "num_std is 3 and std is NULL"),
            (Options { num_permute: 3, ..options }, "num_permute is 3 and permute is NULL"),
            (
                Options { batch_index: 1, ..options },
                "batch_index is an option of WINDROW_FORM_RAGGED",
            ),
            (Options { scale_of: 1, ..options }, "scale_of is an option of quantize"),
            (
                Options { has_scale_dtype: 1, scale_dtype: UINT8, ..options },
                "scale_dtype is an option",
            ),
            (Options { eps: 1.0, ..options }, "eps is an option of quantize"),
            (Options { scales_out: &tensor, ..options }, "scales_out is an option of quantize"),
            (
                Options { scale_block: 2, ..quantised },
                "scale_block is an option of WINDROW_GRANULARITY_BLOCK",
            ),
            (Options { has_scales_block: 1, ..options }, "scales_block is an option of scales"),
            (
                Options { scales_out: &tensor, ..quantised },
                "scales_out is an option of windrow_assemble_into",
            ),
            (Options { num_dims: 1, ..options }, "dims is an option of WINDROW_FORM_PAD"),
        ] {
            assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Argument);
            assert!(text().starts_with(wanted), "{}", text());
        }
        // A value without its flag is refused, and a flag without its value.
        for (options, name) in [
            (Options { dtype: UINT8, ..options }, "dtype"),
            (Options { device: CPU, ..options }, "device"),
            (Options { form: 2, mask: 1, mask_dtype: UINT8, ..options }, "mask_dtype"),
            (Options { mask_dtype: UINT8, ..options }, "mask_dtype"),
            (Options { channel_dim: 1, ..options }, "channel_dim"),
            (Options { quantize: INT8, ..options }, "quantize"),
            (
                Options { has_quantize: 1, quantize: INT8, scale_dtype: UINT8, ..options },
                "scale_dtype",
            ),
            (Options { scales_block: 2, ..options }, "scales_block"),
        ] {
            assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Argument);
            let wanted = format!("{name} is set and has_{name} is 0; ");
            assert!(text().starts_with(&wanted), "{}", text());
        }
        for (options, name, status) in [
            (Options { has_dtype: 1, ..options }, "dtype", Status::Dtype),
            (Options { has_device: 1, ..options }, "device", Status::Device),
            (Options { has_quantize: 1, ..options }, "quantize", Status::Dtype),
        ] {
            assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), status);
            assert!(text().starts_with(name), "{}", text());
        }
        for (device_type, device_id) in
            [(DLDeviceType::CPU, 7), (DLDeviceType::ROCM_HOST, 0), (DLDeviceType::CUDA_MANAGED, 0)]
        {
            let device = DLDevice { device_type, device_id };
            let elsewhere = Options { has_device: 1, device, ..options };
            assert_eq!(windrow_assemble(engine, samples, &elsewhere, &mut batch), Status::Argument);
            assert!(text().starts_with("device: expected kDLCPU or kDLCUDAHost"), "{}", text());
        }
        options.scale = 0.5;
        assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Dtype);
        assert!(text().contains("set dtype to float32"), "{}", text());
        assert!(batch.is_null());
    }
}

/// The row of two elements, padded from `[1]`, as each dtype has the number.
#[test]
fn numbers_pad_exactly() {
    let handles = Handles::new();
    let (engine, samples) = (handles.engine, handles.samples);
    let (mut one, mut lengths, sizes) = ([1u8], [1i64], [2i64]);
    let code = |code, bits| DLDataType { code, bits, lanes: 1 };
    let int64 = code(DLDataTypeCode::INT, 64);
    let uint64 = code(DLDataTypeCode::UINT, 64);
    let float64 = code(DLDataTypeCode::FLOAT, 64);
    for (value, dtype, wanted) in [
        (windrow_int64(i64::MAX), int64, i64::MAX as u64),
        (windrow_uint64(u64::MAX), uint64, u64::MAX),
        (windrow_float64(-0.1), float64, (-0.1f64).to_bits()),
        (Options::default().value, int64, 0),
        (windrow_float64(3.0), uint64, 3),
    ] {
        let (sample, mut out, mut shape) = (row(&mut one, &mut lengths), [9u64; 2], [1i64, 2]);
        let mut into = row(&mut [], &mut shape);
        (into.data, into.dtype) = (out.as_mut_ptr().cast(), dtype);
        let options = Options {
            form: Form::Pad as i32,
            value,
            has_dtype: 1,
            dtype,
            sizes: sizes.as_ptr(),
            num_sizes: 1,
            ..Options::default()
        };
        // SAFETY: handles of the library, arrays of the sizes given, and NULL.
        unsafe {
            windrow_samples_clear(samples);
            assert_eq!(windrow_samples_push(samples, &sample), Status::Ok);
            let status = windrow_assemble_into(engine, samples, &options, &into, null_mut());
            assert_eq!(status, Status::Ok, "{}", text());
        }
        assert_eq!(out[1], wanted, "{value:?}");
    }
}

/// Each side, and with `truncate` the side that is cut off.
#[test]
fn sides_are_those_of_the_enum() {
    let handles = Handles::new();
    let (engine, samples) = (handles.engine, handles.samples);
    let (mut data, mut length) = ([1u8, 2], [2i64]);
    let sizes = [4i64];
    // SAFETY: handles of the library, arrays of the sizes given, and NULL.
    unsafe {
        assert_eq!(windrow_samples_push(samples, &row(&mut data, &mut length)), Status::Ok);
        for (side, wanted) in
            [(Side::Right, [1, 2, 0, 0]), (Side::Left, [0, 0, 1, 2]), (Side::Center, [0, 1, 2, 0])]
        {
            let (mut out, mut shape) = ([9u8; 4], [1i64, 4]);
            let into = row(&mut out, &mut shape);
            let options = Options {
                form: Form::Pad as i32,
                side: side as i32,
                sizes: sizes.as_ptr(),
                num_sizes: 1,
                ..Options::default()
            };
            let status = windrow_assemble_into(engine, samples, &options, &into, null_mut());
            assert_eq!((status, out), (Status::Ok, wanted), "{}", text());
        }
    }
}

#[test]
fn pairs_are_written_or_refused() {
    let (to, from) = (Handles::new(), Handles::new());
    let (engine, dsts, srcs) = (to.engine, to.samples, from.samples);
    let (mut a, mut b, mut x, mut y) = ([0u8; 3], [0u8; 2], [1u8, 2, 3], [4u8, 5]);
    let (mut three, mut two) = ([3i64], [2i64]);
    // SAFETY: handles of the library, arrays of the sizes given, and NULL.
    unsafe {
        assert_eq!(windrow_copy_many(engine, dsts, srcs), Status::Ok);
        for (list, tensor) in [
            (dsts, row(&mut a, &mut three)),
            (dsts, row(&mut b, &mut two)),
            (srcs, row(&mut x, &mut three)),
        ] {
            assert_eq!(windrow_samples_push(list, &tensor), Status::Ok);
        }
        assert_eq!(windrow_copy_many(engine, dsts, srcs), Status::Argument);
        assert_eq!((text().as_str(), windrow_error_sample()), ("2 destinations for 1 sources", -1));
        assert_eq!(windrow_samples_push(srcs, &row(&mut y, &mut two)), Status::Ok);
        for (handles, name) in [
            ([null(), dsts.cast_const(), srcs], "engine"),
            ([dsts.cast_const(), null(), srcs], "dsts"),
            ([dsts.cast_const(), dsts, null()], "srcs"),
        ] {
            let engine = if handles[0].is_null() { null() } else { engine.cast_const() };
            assert_eq!(windrow_copy_many(engine, handles[1], handles[2]), Status::Argument);
            assert_eq!(text(), format!("{name} is NULL"));
        }
        assert_eq!((a, b), ([0; 3], [0; 2]));
        assert_eq!(windrow_copy_many(engine, dsts, srcs), Status::Ok);
        assert_eq!((a, b), ([1, 2, 3], [4, 5]));
        x = [7; 3];
        assert_eq!(windrow_copy_many_on(engine, dsts, srcs, null_mut()), Status::Ok);
        assert_eq!(a, x);
        // Twice the same destination, and one of another shape.
        assert_eq!(windrow_samples_push(dsts, &row(&mut a, &mut three)), Status::Ok);
        assert_eq!(windrow_samples_push(srcs, &row(&mut x, &mut three)), Status::Ok);
        assert_eq!(windrow_copy_many(engine, dsts, srcs), Status::Argument);
        let wanted = "destination 2: expected memory apart from destination 0, got memory that overlaps destination 0";
        assert_eq!((text().as_str(), windrow_error_sample()), (wanted, 2));
        assert_eq!(windrow_copy_many(engine, srcs, dsts), Status::Argument);
        windrow_samples_clear(srcs);
        for _ in 0..3 {
            assert_eq!(windrow_samples_push(srcs, &row(&mut y, &mut two)), Status::Ok);
        }
        assert_eq!(windrow_copy_many(engine, dsts, srcs), Status::Shape);
        let wanted = "destination 0: expected shape (2,), got (3,); 2 destinations differ in all";
        assert_eq!((text().as_str(), windrow_error_sample()), (wanted, 0));
        assert_eq!(a, x);
    }
}

#[test]
fn impossible_outputs_are_a_status() {
    let handles = Handles::new();
    let (engine, samples) = (handles.engine, handles.samples);
    let (options, mut batch) = (Options::default(), null_mut());
    let (mut data, mut shape) = ([1u8, 2, 3, 4], [4i64]);
    let (mut out, mut few, mut all) = ([9u8; 4], [1i64, 3], [1i64, 4]);
    // SAFETY: handles of the library, arrays of the sizes given, and NULL.
    unsafe {
        assert_eq!(windrow_samples_push(samples, &row(&mut data, &mut shape)), Status::Ok);
        let small = row(&mut out, &mut few);
        assert_eq!(
            windrow_assemble_into(engine, samples, &options, &small, &mut batch),
            Status::Shape
        );
        assert!(text().starts_with("out: "), "{}", text());
        assert_eq!(out, [9; 4]);
        let fits = row(&mut out, &mut all);
        assert_eq!(windrow_assemble_into(engine, samples, &options, &fits, null_mut()), Status::Ok);
        assert_eq!(out, data);

        assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Ok);
        let mut tensor = null_mut();
        assert_eq!(windrow_batch_tensor(batch, 6, &mut tensor), Status::Argument);
        assert_eq!(windrow_batch_tensor(batch, 3, &mut tensor), Status::Ok);
        assert!(tensor.is_null() && windrow_batch_len(batch) == 1);
        assert_eq!((windrow_batch_max_length(batch), windrow_batch_max_length(null())), (-1, -1));
        assert_eq!(windrow_batch_ready_on(null(), null_mut()), Status::Argument);
        assert_eq!(windrow_batch_ready_on(batch, null_mut()), Status::Ok);
        assert_eq!(windrow_batch_tensor(batch, 0, &mut tensor), Status::Ok);
        windrow_batch_free(batch);
        ((*tensor).deleter.unwrap())(tensor);
        windrow_engine_free(null_mut());
    }
}

#[test]
fn options_of_another_header_are_not_written() {
    let mut options = Options { size: 7, form: 9, ..Options::default() };
    for size in [0, 8, size_of::<Options>() - 1, size_of::<Options>() + 8] {
        // SAFETY: a place for options; nothing is written for another size.
        let status = unsafe { windrow_options_init_sized(&mut options, size) };
        assert_eq!((status, options.size, options.form), (Status::Argument, 7, 9), "{size}");
    }
    // SAFETY: as above.
    let status = unsafe { windrow_options_init_sized(&mut options, size_of::<Options>()) };
    assert_eq!(status, Status::Ok);
    assert_eq!((options.size, options.form), (size_of::<Options>(), 0));
}
