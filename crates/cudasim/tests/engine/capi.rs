//! The C interface on a device: work on the caller's stream, tensors by DLPack, texts of what fails.

use std::ffi::{c_void, CStr};
use std::ptr::null_mut;

use windrow::dlpack::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLTensor,
};
use windrow::{DType, Device};
use windrow_capi::*;

use crate::calls::{count, traced};
use crate::rig::{self, *};

const INT32: DLDataType = DLDataType { code: DLDataTypeCode::INT, bits: 32, lanes: 1 };
const UINT8: DLDataType = DLDataType { code: DLDataTypeCode::UINT, bits: 8, lanes: 1 };
const GPU: DLDevice = DLDevice { device_type: DLDeviceType::CUDA, device_id: 0 };
const CPU: DLDevice = DLDevice { device_type: DLDeviceType::CPU, device_id: 0 };

fn row(data: *mut c_void, device: DLDevice, length: &mut i64) -> DLTensor {
    DLTensor {
        data,
        device,
        ndim: 1,
        dtype: INT32,
        shape: length,
        strides: null_mut(),
        byte_offset: 0,
    }
}

fn text() -> String {
    // SAFETY: a string of the library, which no call changes meanwhile.
    unsafe { CStr::from_ptr(windrow_error()) }.to_str().unwrap().to_owned()
}

/// The contents of a field, read on a stream and by nothing that waits for the engine.
fn read(gpu: &Gpu, lane: &ForeignStream<'_>, batch: *const Batch, field: Field) -> Vec<u8> {
    let mut tensor: *mut DLManagedTensorVersioned = null_mut();
    // SAFETY: a batch, and a place for a pointer.
    unsafe {
        assert_eq!(windrow_batch_tensor(batch, field as i32, &mut tensor), Status::Ok);
        let of = &(*tensor).dl_tensor;
        assert_eq!((of.device.device_type, of.device.device_id), (DLDeviceType::CUDA, 0));
        let shape = std::slice::from_raw_parts(of.shape, of.ndim as usize);
        let len = shape.iter().product::<i64>() as usize * usize::from(of.dtype.bits) / 8;
        let copy = Buffer::poisoned(gpu, len);
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(copy.address, of.data as u64, len, lane.handle), 0);
        ((*tensor).deleter.unwrap())(tensor);
        copy.read()
    }
}

fn bytes(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

#[test]
fn batches_of_c_are_enqueued_on_the_stream_of_the_caller() {
    on_gpu(|gpu| {
        let (lane, other) = (ForeignStream::new(gpu), ForeignStream::new(gpu));
        let memory = [Buffer::poisoned(gpu, 12), Buffer::poisoned(gpu, 4)];
        let (mut lengths, mut host) = ([3i64, 1], [[1i32, 2, 3], [4, 0, 0]]);
        let (mut engine, mut samples, mut batch) = (null_mut(), null_mut(), null_mut());
        // SAFETY: handles of the library and live memory, which is written on the stream of the call.
        unsafe {
            assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
            for on_device in [true, false] {
                assert_eq!(windrow_samples_new(&mut samples), Status::Ok);
                for index in 0..2 {
                    let (data, device) = match on_device {
                        true => (memory[index].address as *mut c_void, GPU),
                        false => (host[index].as_mut_ptr().cast(), CPU),
                    };
                    let tensor = row(data, device, &mut lengths[index]);
                    assert_eq!(windrow_samples_push(samples, &tensor), Status::Ok, "{}", text());
                }
                let pad = Options {
                    form: Form::Pad as i32,
                    value: windrow_float64(-1.0),
                    has_device: 1,
                    device: GPU,
                    ..Options::default()
                };
                let pad = Options {
                    mask: Mask::Real as i32,
                    has_mask_dtype: 1,
                    mask_dtype: UINT8,
                    ..pad
                };
                let stream = lane.handle as *mut c_void;
                let paused = lane.pause();
                lane.write(memory[0].address, &bytes(&[1, 2, 3]));
                lane.write(memory[1].address, &bytes(&[4]));
                let status = windrow_assemble_on(engine, samples, &pad, stream, &mut batch);
                assert_eq!(status, Status::Ok, "{}", text());
                assert_eq!(windrow_batch_ready_on(batch, other.handle as *mut c_void), Status::Ok);
                drop(paused);
                for lane in [&lane, &other] {
                    assert_eq!(read(gpu, lane, batch, Field::Data), bytes(&[1, 2, 3, 4, -1, -1]));
                    assert_eq!(read(gpu, lane, batch, Field::Mask), [1, 1, 1, 1, 0, 0]);
                }
                windrow_batch_free(batch);
                let ragged = Options {
                    form: Form::Ragged as i32,
                    has_device: 1,
                    device: GPU,
                    ..Options::default()
                };
                let status = windrow_assemble_on(engine, samples, &ragged, stream, &mut batch);
                assert_eq!(status, Status::Ok, "{}", text());
                assert_eq!(windrow_batch_max_length(batch), 3);
                assert_eq!(read(gpu, &lane, batch, Field::Data), bytes(&[1, 2, 3, 4]));
                windrow_batch_free(batch);
                windrow_samples_free(samples);
            }
            windrow_engine_free(engine);
        }
    });
}

#[test]
fn a_stream_of_the_caller_waits_for_a_batch_in_its_memory() {
    on_gpu(|gpu| {
        let (lane, out) = (ForeignStream::new(gpu), Buffer::poisoned(gpu, 16));
        let (mut length, mut host, mut shape) = (2i64, [[1i32, 2], [3, 4]], [2i64, 2]);
        let (mut engine, mut samples, mut batch) = (null_mut(), null_mut(), null_mut());
        // SAFETY: handles of the library and live memory, which is read on the stream that waits.
        unsafe {
            assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
            assert_eq!(windrow_samples_new(&mut samples), Status::Ok);
            for numbers in &mut host {
                let tensor = row(numbers.as_mut_ptr().cast(), CPU, &mut length);
                assert_eq!(windrow_samples_push(samples, &tensor), Status::Ok, "{}", text());
            }
            let target = row(out.address as *mut c_void, GPU, &mut shape[0]);
            let target = DLTensor { ndim: 2, ..target };
            let options = Options { has_device: 1, device: GPU, ..Options::default() };
            let status = windrow_assemble_into(engine, samples, &options, &target, &mut batch);
            assert_eq!(status, Status::Ok, "{}", text());
            let (calls, status) =
                traced(gpu, || windrow_batch_ready_on(batch, lane.handle as *mut c_void));
            assert_eq!((status, count(&calls, "cuStreamWaitEvent")), (Status::Ok, 1), "{calls:#?}");
            let copy = Buffer::poisoned(gpu, 16);
            assert_eq!(gpu.cuMemcpyDtoDAsync_v2(copy.address, out.address, 16, lane.handle), 0);
            assert_eq!(copy.read(), bytes(&[1, 2, 3, 4]));
            windrow_batch_free(batch);
            windrow_samples_free(samples);
            windrow_engine_free(engine);
        }
    });
}

#[test]
fn failures_of_the_driver_have_its_words_in_c() {
    on_gpu(|gpu| {
        let lane = ForeignStream::new(gpu);
        let (mut length, mut host) = (2i64, [1i32, 2]);
        let (mut engine, mut samples, mut batch) = (null_mut(), null_mut(), null_mut());
        // SAFETY: as above.
        unsafe {
            assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
            assert_eq!(windrow_samples_new(&mut samples), Status::Ok);
            let tensor = row(host.as_mut_ptr().cast(), CPU, &mut length);
            assert_eq!(windrow_samples_push(samples, &tensor), Status::Ok);
            let far = DLDevice { device_id: 7, ..GPU };
            let options = Options { has_device: 1, device: far, ..Options::default() };
            let stream = lane.handle as *mut c_void;
            let status = windrow_assemble_on(engine, samples, &options, stream, &mut batch);
            assert_eq!(status, Status::Argument, "{}", text());
            assert!(text().contains("cuda:7"), "{}", text());
            let options = Options { has_device: 1, device: GPU, ..Options::default() };
            gpu.sim.fail_function("cuLaunchKernel", 1, 1);
            let status = windrow_assemble_on(engine, samples, &options, stream, &mut batch);
            gpu.sim.clear_faults();
            assert_eq!(status == Status::Cuda, text().contains("cuLaunchKernel"), "{}", text());
            assert!(batch.is_null() == (status != Status::Ok));
            windrow_batch_free(batch);
            windrow_samples_free(samples);
            windrow_engine_free(engine);
        }
    });
}

#[test]
fn page_locked_memory_of_c_is_known_as_such() {
    on_gpu(|_| {
        let held = rig::engine().empty(DType::I32, &[4], Device::Pinned).unwrap();
        let locked = DLDevice { device_type: DLDeviceType::CUDA_HOST, device_id: 0 };
        let (mut engine, mut samples, mut batch) = (null_mut(), null_mut(), null_mut());
        let mut tensor: *mut DLManagedTensorVersioned = null_mut();
        // SAFETY: handles of the library and live memory.
        unsafe {
            held.data_ptr().cast::<[i32; 4]>().write([1, 2, 3, 4]);
            assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
            assert_eq!(windrow_samples_new(&mut samples), Status::Ok);
            for index in 0..2 {
                let data = held.data_ptr().wrapping_add(8 * index).cast();
                let tensor = row(data, locked, &mut 2);
                assert_eq!(windrow_samples_push(samples, &tensor), Status::Ok, "{}", text());
            }
            let there = Options { has_device: 1, device: locked, ..Options::default() };
            let pageable = Options { has_device: 1, device: CPU, ..Options::default() };
            for (options, device) in [
                (Options::default(), Device::Pinned),
                (there, Device::Pinned),
                (pageable, Device::Cpu),
            ] {
                let status = windrow_assemble(engine, samples, &options, &mut batch);
                assert_eq!(status, Status::Ok, "{}", text());
                assert_eq!(
                    windrow_batch_tensor(batch, Field::Data as i32, &mut tensor),
                    Status::Ok
                );
                let of = &(*tensor).dl_tensor;
                assert_eq!(windrow::device::device_of(of.data.addr()), Ok(device));
                assert_eq!(*of.data.cast::<[i32; 4]>(), [1, 2, 3, 4]);
                ((*tensor).deleter.unwrap())(tensor);
                windrow_batch_free(batch);
            }
            // Without `device`, `out` says which memory of the host it is.
            let (out, mut pageable) =
                (rig::engine().empty(DType::I32, &[4], Device::Pinned).unwrap(), [0i32; 4]);
            for (data, device) in
                [(out.data_ptr().cast(), locked), (pageable.as_mut_ptr().cast(), CPU)]
            {
                let mut shape = [2i64, 2];
                let into = DLTensor { ndim: 2, ..row(data, device, &mut shape[0]) };
                let options = Options::default();
                let status = windrow_assemble_into(engine, samples, &options, &into, null_mut());
                assert_eq!(status, Status::Ok, "{}", text());
                assert_eq!(*data.cast::<[i32; 4]>(), [1, 2, 3, 4]);
            }
            windrow_samples_free(samples);
            windrow_engine_free(engine);
        }
    });
}
