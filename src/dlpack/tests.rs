//! Tests of both directions, with a foreign producer that counts how often it is released.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::*;
use crate::{DType, Device, Error, Layout, Result, Tensor};

mod values;

/// How often something was freed.
type Frees = Arc<AtomicUsize>;

fn count(frees: &Frees) -> usize {
    frees.load(Ordering::SeqCst)
}

/// State that a foreign producer keeps alive through `manager_ctx`.
struct Context {
    frees: Frees,
    dims: Vec<i64>,
    values: Vec<f32>,
}

/// Six values in two rows, as a foreign producer would describe them.
fn foreign(frees: &Frees, edit: impl FnOnce(&mut DLTensor)) -> (DLTensor, *mut c_void) {
    let context = Context {
        frees: frees.clone(),
        dims: vec![2, 3, 3, 1],
        values: vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    };
    let context = Box::into_raw(Box::new(context));
    // SAFETY: made just now, and freed by the deleters below only.
    let (dims, values) = unsafe {
        let context = &mut *context;
        (context.dims.as_mut_ptr(), context.values.as_mut_ptr())
    };
    let mut tensor = DLTensor {
        data: values.cast(),
        device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
        ndim: 2,
        dtype: dtype_to_dl(DType::F32),
        shape: dims,
        strides: dims.wrapping_add(2),
        byte_offset: 0,
    };
    edit(&mut tensor);
    (tensor, context.cast())
}

unsafe extern "C" fn free_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: `versioned` made both boxes, and a deleter is called once.
    let context = unsafe { Box::from_raw(Box::from_raw(managed).manager_ctx.cast::<Context>()) };
    context.frees.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn free_legacy(managed: *mut DLManagedTensor) {
    // SAFETY: `legacy` made both boxes, and a deleter is called once.
    let context = unsafe { Box::from_raw(Box::from_raw(managed).manager_ctx.cast::<Context>()) };
    context.frees.fetch_add(1, Ordering::SeqCst);
}

fn versioned(frees: &Frees, edit: impl FnOnce(&mut DLTensor)) -> *mut DLManagedTensorVersioned {
    let (dl_tensor, manager_ctx) = foreign(frees, edit);
    Box::into_raw(Box::new(DLManagedTensorVersioned {
        version: DLPackVersion { major: 1, minor: 9 },
        manager_ctx,
        deleter: Some(free_versioned),
        flags: 0,
        dl_tensor,
    }))
}

fn legacy(frees: &Frees, edit: impl FnOnce(&mut DLTensor)) -> *mut DLManagedTensor {
    let (dl_tensor, manager_ctx) = foreign(frees, edit);
    Box::into_raw(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(free_legacy) }))
}

fn take(managed: *mut DLManagedTensorVersioned) -> Result<Tensor> {
    // SAFETY: every test passes a tensor of its own, valid until its deleter, and gives it up.
    unsafe { Tensor::from_dlpack(managed) }
}

fn take_legacy(managed: *mut DLManagedTensor) -> Result<Tensor> {
    // SAFETY: as for `take`.
    unsafe { Tensor::from_dlpack_legacy(managed) }
}

/// Imports the foreign tensor in both forms, expects the same outcome and one free of each.
fn both(edit: impl Fn(&mut DLTensor), check: impl Fn(Result<Tensor>)) {
    let frees = Frees::default();
    check(take(versioned(&frees, &edit)));
    assert_eq!(count(&frees), 1, "versioned");
    check(take_legacy(legacy(&frees, &edit)));
    assert_eq!(count(&frees), 2, "legacy");
}

/// Own memory, which counts its release.
struct Memory {
    frees: Frees,
    _words: Vec<u64>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.frees.fetch_add(1, Ordering::SeqCst);
    }
}

/// A tensor of ours whose first element has 64 words before it and 64 after.
fn tensor_of(
    frees: &Frees,
    dtype: DType,
    layout: Layout,
    device: Device,
    read_only: bool,
) -> Tensor {
    let mut words = vec![0u64; 128];
    let data = words.as_mut_ptr().wrapping_add(64).cast::<u8>();
    let owner = Arc::new(Memory { frees: frees.clone(), _words: words });
    let span = layout.byte_span(dtype);
    assert!(span.start >= -512 && span.end <= 512);
    // SAFETY: the span was checked against the memory, which the owner holds.
    unsafe { Tensor::new_unchecked(owner, data, dtype, device, layout, read_only) }
}

fn simple(frees: &Frees) -> Tensor {
    tensor_of(frees, DType::F32, Layout::compact(DType::F32, &[2, 3]).unwrap(), Device::Cpu, false)
}

fn delete(managed: NonNull<DLManagedTensorVersioned>) {
    let managed = managed.as_ptr();
    // SAFETY: exported by the caller, not deleted before.
    unsafe { ((*managed).deleter.unwrap())(managed) }
}

/// Shape and strides of a struct that is alive.
fn dims(tensor: &DLTensor) -> (Vec<i64>, Vec<i64>) {
    let ndim = usize::try_from(tensor.ndim).unwrap();
    // SAFETY: exports never have NULL here, and the caller keeps them alive.
    unsafe {
        let of = |dims: *mut i64| std::slice::from_raw_parts(dims.cast_const(), ndim).to_vec();
        (of(tensor.shape), of(tensor.strides))
    }
}

#[test]
fn round_trip_keeps_everything_and_frees_once() {
    let frees = Frees::default();
    let mut made = 0;
    // `values` covers the dtypes that the legacy form cannot express.
    for &dtype in DType::ALL.iter().filter(|dtype| !dtype.is_padded()) {
        for (shape, strides) in
            [(&[2, 3][..], &[3, 1][..]), (&[2, 2], &[-3, 0]), (&[], &[]), (&[1, 4], &[999, 1])]
        {
            let layout = Layout::try_new(dtype, shape, Some(strides)).unwrap();
            for (device, read_only) in
                [(Device::Cpu, false), (Device::Cpu, true), (Device::Cuda(3), false)]
            {
                let tensor = tensor_of(&frees, dtype, layout.clone(), device, read_only);
                let back = take(tensor.to_dlpack().as_ptr()).unwrap();
                let old = take_legacy(tensor.to_dlpack_legacy().as_ptr()).unwrap();
                let data = tensor.data_ptr();
                drop(tensor);
                assert_eq!(count(&frees), made);
                for (copy, read_only) in [(&back, read_only), (&old, false)] {
                    assert_eq!(copy.data_ptr(), data);
                    assert_eq!((copy.shape(), copy.strides()), (shape, strides));
                    assert_eq!((copy.dtype(), copy.device()), (dtype, device));
                    assert_eq!(copy.is_read_only(), read_only);
                }
                drop((back, old));
                made += 1;
                assert_eq!(count(&frees), made);
            }
        }
    }
}

#[test]
fn exported_fields_are_what_every_consumer_takes() {
    let frees = Frees::default();
    let scalar = tensor_of(
        &frees,
        DType::I64,
        Layout::compact(DType::I64, &[]).unwrap(),
        Device::Pinned,
        true,
    );
    let empty = tensor_of(
        &frees,
        DType::I64,
        Layout::compact(DType::I64, &[0, 3]).unwrap(),
        Device::Cpu,
        false,
    );
    for (tensor, flags) in [(&scalar, FLAG_READ_ONLY), (&empty, 0), (&simple(&frees), 0)] {
        let managed = tensor.to_dlpack_with(FLAG_IS_COPIED);
        // SAFETY: alive until `delete`.
        let DLManagedTensorVersioned { version, deleter, flags: got, dl_tensor, .. } =
            unsafe { managed.as_ptr().read() };
        assert_eq!(version, DLPackVersion { major: 1, minor: 3 });
        assert!(deleter.is_some());
        assert_eq!(got, flags | FLAG_IS_COPIED);
        assert_eq!(dl_tensor.device, DLDevice { device_type: DLDeviceType(1), device_id: 0 });
        assert_eq!((dl_tensor.dtype.lanes, dl_tensor.byte_offset), (1, 0));
        assert_eq!(dl_tensor.data.is_null(), tensor.shape().contains(&0));
        assert!(!dl_tensor.shape.is_null() && !dl_tensor.strides.is_null());
        assert_eq!(dims(&dl_tensor), (tensor.shape().to_vec(), tensor.strides().to_vec()));
        delete(managed);
    }
    // A flag that the tensor has anyway is not taken away by asking for it.
    let again = scalar.to_dlpack_with(FLAG_READ_ONLY);
    // SAFETY: alive until `delete`.
    assert_eq!(unsafe { (*again.as_ptr()).flags }, FLAG_READ_ONLY);
    delete(again);
    assert_eq!([FLAG_READ_ONLY, FLAG_IS_COPIED, FLAG_IS_SUBBYTE_TYPE_PADDED], [1, 2, 4]);
    let lent = empty.borrow_tensor();
    assert!(lent.data.is_null());
    assert_eq!(dims(&lent), (vec![0, 3], vec![3, 1]));
}

#[test]
fn exports_are_independent_and_outlive_the_tensor() {
    let frees = Frees::default();
    let tensor = simple(&frees);
    let (first, second, old) = (tensor.to_dlpack(), tensor.to_dlpack(), tensor.to_dlpack_legacy());
    // SAFETY: alive until their deleters.
    let shapes = unsafe {
        let (first, second, old) = (first.as_ref(), second.as_ref(), old.as_ref());
        [&first.dl_tensor, &second.dl_tensor, &old.dl_tensor, &tensor.borrow_tensor()]
            .map(|tensor| (tensor.shape, tensor.strides))
    };
    for (i, (shape, strides)) in shapes.iter().enumerate() {
        for (other, others) in &shapes[..i] {
            assert!(shape != other && strides != others, "exports share their dims");
        }
    }
    drop(tensor);
    // SAFETY: alive until its deleter; the consumer may write to its own struct.
    unsafe { (*first.as_ptr()).dl_tensor.ndim = 1 };
    delete(first);
    assert_eq!(count(&frees), 0);
    // SAFETY: alive until `delete`.
    assert_eq!(dims(unsafe { &(*second.as_ptr()).dl_tensor }), (vec![2, 3], vec![3, 1]));
    delete(second);
    assert_eq!(count(&frees), 0);
    // SAFETY: alive, and deleted by this call only.
    unsafe { ((*old.as_ptr()).deleter.unwrap())(old.as_ptr()) };
    assert_eq!(count(&frees), 1);
}

#[test]
fn a_clone_shares_one_free() {
    let frees = Frees::default();
    let tensor = take(versioned(&frees, |_| {})).unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let (clone, row) = (tensor.clone(), tensor.select(1).unwrap());
    let again = take(row.to_dlpack().as_ptr()).unwrap();
    drop((tensor, clone, row));
    assert_eq!(count(&frees), 0);
    assert_eq!(again.as_slice::<f32>().unwrap(), [3.0, 4.0, 5.0]);
    drop(again);
    assert_eq!(count(&frees), 1);
}

#[test]
fn frees_happen_on_any_thread() {
    let frees = Frees::default();
    let (imported, exported) = (take(versioned(&frees, |_| {})).unwrap(), simple(&frees));
    let back = take(exported.to_dlpack().as_ptr()).unwrap();
    drop(exported);
    std::thread::spawn(move || drop((imported, back))).join().unwrap();
    assert_eq!(count(&frees), 2);
}

#[test]
fn a_panic_in_an_owner_stays_behind_the_deleter() {
    struct Bomb(Frees);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("expected by this test");
        }
    }
    let frees = Frees::default();
    let layout = Layout::compact(DType::U8, &[0]).unwrap();
    let owner = Arc::new(Bomb(frees.clone()));
    // SAFETY: there are no elements.
    let tensor = unsafe {
        Tensor::new_unchecked(owner, ptr::null_mut(), DType::U8, Device::Cpu, layout, false)
    };
    let managed = tensor.to_dlpack();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(tensor)));
    assert!(unwound.is_ok() && count(&frees) == 0);
    delete(managed);
    assert_eq!(count(&frees), 1);
}

#[test]
fn an_unused_managed_tensor_is_freed_and_one_without_deleter_is_left() {
    let frees = Frees::default();
    // SAFETY: as in `take`.
    drop(unsafe { ManagedTensor::from_versioned(versioned(&frees, |_| {})) }.unwrap());
    // SAFETY: as in `take`.
    drop(unsafe { ManagedTensor::from_legacy(legacy(&frees, |_| {})) });
    assert_eq!(count(&frees), 2);

    let (new, old) = (versioned(&frees, |_| {}), legacy(&frees, |_| {}));
    // SAFETY: ours until it is taken.
    unsafe { ((*new).deleter, (*old).deleter) = (None, None) };
    drop((take(new).unwrap(), take_legacy(old).unwrap()));
    assert_eq!(count(&frees), 2);
    // SAFETY: without a deleter nothing has freed them.
    unsafe { (free_versioned(new), free_legacy(old)) };
}

#[test]
fn flags_are_read() {
    for (flags, read_only, copied) in [(0, false, false), (1, true, false), (2, false, true)] {
        let frees = Frees::default();
        let managed = versioned(&frees, |_| {});
        // SAFETY: ours until it is taken, by the last call.
        let owned = unsafe {
            (*managed).flags = flags;
            assert_eq!(read_versioned(managed).unwrap().read_only, read_only);
            ManagedTensor::from_versioned(managed).unwrap()
        };
        assert_eq!((owned.flags(), owned.is_copied()), (flags, copied));
        assert_eq!(owned.tensor().unwrap().read_only, read_only);
        let tensor = owned.into_tensor().unwrap();
        assert_eq!(tensor.is_read_only(), read_only);
        let again = take(tensor.to_dlpack().as_ptr()).unwrap();
        assert_eq!(again.is_read_only(), read_only);
    }
    let frees = Frees::default();
    // SAFETY: as in `take`.
    let owned = unsafe { ManagedTensor::from_legacy(legacy(&frees, |_| {})) };
    assert_eq!((owned.flags(), owned.is_copied()), (0, false));
}

/// The prefix that every major version shares; Miri reports a read past it.
#[repr(C)]
struct Prefix {
    version: DLPackVersion,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    flags: u64,
}

unsafe extern "C" fn free_prefix(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the test below made both, and a deleter is called once.
    unsafe {
        let prefix = Box::from_raw(managed.cast::<Prefix>());
        Arc::from_raw(prefix.manager_ctx.cast::<AtomicUsize>()).fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_unknown_major_version_is_freed_unread() {
    for (major, deleter, freed) in [(0, true, 1), (2, true, 1), (2, false, 0)] {
        let frees = Frees::default();
        let managed = Box::into_raw(Box::new(Prefix {
            version: DLPackVersion { major, minor: 7 },
            manager_ctx: Arc::into_raw(frees.clone()).cast_mut().cast(),
            deleter: deleter.then_some(free_prefix),
            flags: u64::MAX,
        }))
        .cast::<DLManagedTensorVersioned>();
        // SAFETY: a struct of another major version, readable up to its flags.
        let looked = unsafe { read_versioned(managed) }.unwrap_err();
        assert_eq!(count(&frees), 0);
        let error = take(managed).unwrap_err();
        assert_eq!(looked, error);
        assert!(matches!(error, Error::Layout(_)));
        let text = format!("tensor: expected DLPack major version 1, got version {major}.7");
        assert_eq!(error.to_string(), text);
        assert_eq!(count(&frees), freed);
        if !deleter {
            // SAFETY: without a deleter nothing has freed it.
            unsafe { free_prefix(managed) };
        }
    }
}
