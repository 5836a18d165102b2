//! Foreign DLPack structs with every field hostile. A model says which of them are sound; memory is
//! real, and exactly as large as the struct claims, wherever windrow may look at it: AddressSanitizer
//! sees a read past it, or after the deleter.
#![allow(unsafe_code, reason = "DLPack structs at raw addresses")]

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use arbitrary::Arbitrary;
use windrow::dlpack::*;
use windrow::tensor::Element;
use windrow::{Collate, DType, Device, Engine, Error, SampleList, SampleView, Tensor};

/// Small numbers, mostly, and the edges of 64 bits.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Negative(u8),
    Power(u8, i8),
    Any(i64),
}

impl Number {
    fn get(self) -> i64 {
        match self {
            Number::Small(n) => i64::from(n % 8),
            Number::Negative(n) => -i64::from(n % 8),
            Number::Power(shift, add) => (1i64 << (shift % 64)).wrapping_add(add.into()),
            Number::Any(n) => n,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Type {
    Known(u8),
    Any { code: u8, bits: u8, lanes: u16 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    Host,
    Any { kind: i32, id: i32 },
    Near { kind: u8, id: i8 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Clone,
    Export,
    ExportLegacy,
    Select(u8),
    Bits,
    DropFirst,
    DropLast,
    DropElsewhere,
}

#[derive(Arbitrary, Debug)]
pub struct Case {
    legacy: bool,
    version: Option<(u32, u32)>,
    flags: u64,
    deleter: bool,
    dims: Vec<(Number, Number)>,
    ndim: Option<i32>,
    null_shape: bool,
    null_strides: bool,
    null_data: bool,
    byte_offset: Option<u64>,
    misalign: u8,
    dtype: Type,
    device: Place,
    steps: Vec<Step>,
}

/// The memory that the producer keeps until its deleter is called.
struct Context {
    frees: Arc<AtomicUsize>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Vec<u8>,
    /// The struct itself: its address and size.
    block: (*mut u8, std::alloc::Layout),
}

unsafe fn free(context: *mut c_void) {
    // SAFETY: `Foreign::new` made it; a second call is what AddressSanitizer is here for.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    context.frees.fetch_add(1, Ordering::SeqCst);
    // SAFETY: allocated with this layout.
    unsafe { std::alloc::dealloc(context.block.0, context.block.1) };
}

unsafe extern "C" fn free_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: alive until here.
    unsafe { free((*managed).manager_ctx) }
}

unsafe extern "C" fn free_legacy(managed: *mut DLManagedTensor) {
    // SAFETY: alive until here.
    unsafe { free((*managed).manager_ctx) }
}

/// A layout as the header means it, in 128 bits: dtype, device, shape, strides, bytes below and above
/// the first element. `None` for what cannot be expressed.
struct Sound {
    dtype: DType,
    device: Device,
    shape: Vec<i64>,
    strides: Vec<i64>,
    below: i128,
    above: i128,
}

fn compact(shape: &[i64]) -> Option<Vec<i64>> {
    let mut strides = vec![1i128; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * i128::from(shape[i].max(1));
        i64::try_from(strides[i - 1]).ok()?;
    }
    Some(strides.into_iter().map(|stride| stride as i64).collect())
}

impl Case {
    fn ndim(&self) -> i32 {
        self.ndim.unwrap_or(self.dims.len() as i32)
    }

    /// The number of dims that the struct claims, where that many are looked at.
    fn told(&self) -> Option<usize> {
        usize::try_from(self.ndim()).ok().filter(|&ndim| ndim <= 64)
    }

    fn shape(&self) -> Vec<i64> {
        let dim = |i: usize| self.dims.get(i).map_or(1, |dim| dim.0.get());
        (0..self.told().unwrap_or(0)).map(dim).collect()
    }

    fn strides(&self) -> Vec<i64> {
        let dim = |i: usize| self.dims.get(i).map_or(1, |dim| dim.1.get());
        (0..self.told().unwrap_or(0)).map(dim).collect()
    }

    fn dtype(&self) -> DLDataType {
        match self.dtype {
            Type::Known(n) => dtype_to_dl(DType::ALL[usize::from(n) % DType::ALL.len()]),
            Type::Any { code, bits, lanes } => {
                DLDataType { code: DLDataTypeCode(code), bits, lanes }
            }
        }
    }

    fn device(&self) -> DLDevice {
        let (kind, id) = match self.device {
            Place::Host => (1, 0),
            Place::Any { kind, id } => (kind, id),
            Place::Near { kind, id } => (i32::from(kind % 24), i32::from(id)),
        };
        DLDevice { device_type: DLDeviceType(kind), device_id: id }
    }

    /// The tensor that the struct describes, if it is sound. Does not look at `data` and `byte_offset`.
    fn model(&self) -> Option<Sound> {
        let told = self.dtype();
        let dtype = *DType::ALL.iter().find(|&&dtype| dtype_to_dl(dtype) == told)?;
        let has_flag = !self.legacy && self.flags & FLAG_IS_SUBBYTE_TYPE_PADDED != 0;
        if told.bits < 8 && has_flag != dtype.is_padded() {
            return None;
        }
        let device = match (self.device().device_type.0, self.device().device_id) {
            (1 | 3 | 11, _) => Device::Cpu,
            (2 | 13, id) if id >= 0 => Device::Cuda(id as u32),
            _ => return None,
        };
        let ndim = self.told()?;
        let shape = self.shape();
        if (ndim > 0 && self.null_shape) || shape.iter().any(|&extent| extent < 0) {
            return None;
        }
        let fits = |bytes: i128| i64::try_from(bytes).ok().map(i128::from);
        let size = dtype.size() as i128;
        let empty = shape.contains(&0);
        if !empty {
            let mut bytes = size;
            for &extent in &shape {
                bytes = fits(bytes * i128::from(extent))?;
            }
        }
        let (mut below, mut above) = (0i128, if empty { 0 } else { size });
        let strides =
            if self.null_strides || ndim == 0 || empty { compact(&shape)? } else { self.strides() };
        for (&extent, &stride) in shape.iter().zip(&strides).filter(|_| !empty) {
            let steps = i128::from(extent) - 1;
            let reach = steps.checked_mul(i128::from(stride))?.checked_mul(size)?;
            if reach < 0 {
                below = Some(below - reach).filter(|&below| below <= 1 << 63)?;
            } else {
                above = fits(above + reach)?;
            }
        }
        Some(Sound { dtype, device, shape, strides, below, above })
    }
}

/// Memory of up to so many bytes is really there.
const REAL: i128 = 1 << 20;

/// An address that nothing may look at.
const WILD: usize = 0x7000_0000_1000;

/// A struct, and what is known of it.
struct Foreign {
    managed: *mut u8,
    context: *mut c_void,
    frees: Arc<AtomicUsize>,
    sound: Option<Sound>,
    /// Whether every element may be read.
    real: bool,
    major: u32,
}

/// The addresses that a struct claims for its elements.
struct Elements {
    /// The address in the struct.
    data: usize,
    /// The memory behind it: empty unless `real`.
    memory: Vec<u8>,
    real: bool,
    /// Whether the address of every element exists, of a struct that has some.
    reachable: bool,
}

impl Elements {
    fn new(case: &Case, sound: Option<&Sound>) -> Elements {
        let offset = case.byte_offset.unwrap_or(0);
        let data = if case.null_data { 0 } else { WILD + usize::from(case.misalign) };
        let wild = Elements { data, memory: Vec::new(), real: false, reachable: true };
        let Some(sound) = sound.filter(|sound| !sound.shape.contains(&0)) else { return wild };
        let reachable = data != 0 && (data as u64).checked_add(offset).is_some();
        let span = sound.below + sound.above;
        if data == 0 || sound.device != Device::Cpu || span > REAL {
            return Elements { reachable, ..wild };
        }
        let lead = usize::from(case.misalign % 16);
        let memory: Vec<u8> = (0..lead + span as usize).map(|i| (i % 251) as u8).collect();
        let first = memory.as_ptr().addr() + lead + sound.below as usize;
        match (first as u64).checked_sub(offset).filter(|&base| base > 0) {
            Some(base) => Elements { data: base as usize, memory, real: true, reachable: true },
            None => Elements { reachable, ..wild },
        }
    }
}

/// Memory for the struct of a case, zeroed, as large as its major version says.
fn block_for(legacy: bool, major: u32) -> (*mut u8, std::alloc::Layout) {
    let layout = match (legacy, major) {
        (true, _) => std::alloc::Layout::new::<DLManagedTensor>(),
        (false, 1) => std::alloc::Layout::new::<DLManagedTensorVersioned>(),
        // All that another major version promises.
        (false, _) => {
            std::alloc::Layout::from_size_align(offset_of!(DLManagedTensorVersioned, dl_tensor), 8)
                .expect("32 bytes")
        }
    };
    // SAFETY: not empty.
    (unsafe { std::alloc::alloc_zeroed(layout) }, layout)
}

impl Foreign {
    fn new(case: &Case) -> Foreign {
        let version = case.version.unwrap_or((1, 3));
        let major = if case.legacy { 1 } else { version.0 };
        let (managed, layout) = block_for(case.legacy, major);
        let frees = Arc::new(AtomicUsize::new(0));
        let sound = case.model();
        let Elements { data, memory, real, reachable } = Elements::new(case, sound.as_ref());
        let context = Box::into_raw(Box::new(Context {
            frees: frees.clone(),
            shape: case.shape(),
            strides: case.strides(),
            _memory: memory,
            block: (managed, layout),
        }));
        // SAFETY: made just now.
        let (shape, strides) =
            unsafe { ((*context).shape.as_mut_ptr(), (*context).strides.as_mut_ptr()) };
        let dl_tensor = DLTensor {
            data: ptr::without_provenance_mut(data),
            device: case.device(),
            ndim: case.ndim(),
            dtype: case.dtype(),
            shape: if case.null_shape { ptr::null_mut() } else { shape },
            strides: if case.null_strides { ptr::null_mut() } else { strides },
            byte_offset: case.byte_offset.unwrap_or(0),
        };
        let manager_ctx = context.cast::<c_void>();
        // SAFETY: a block of `block_for` this case.
        unsafe { fill(managed, case, (major, version.1), dl_tensor, manager_ctx) };
        let sound = sound.filter(|_| reachable && major == 1);
        Foreign { managed, context: manager_ctx, frees, sound, real, major }
    }
}

/// Writes the struct of a case.
///
/// # Safety
/// `managed` is the block for its version.
unsafe fn fill(
    managed: *mut u8,
    case: &Case,
    (major, minor): (u32, u32),
    dl_tensor: DLTensor,
    manager_ctx: *mut c_void,
) {
    // SAFETY: as large as its layout says; every field that is written is within it.
    unsafe {
        if case.legacy {
            let deleter = case.deleter.then_some(free_legacy as Deleter<_>);
            managed.cast::<DLManagedTensor>().write(DLManagedTensor {
                dl_tensor,
                manager_ctx,
                deleter,
            });
        } else {
            let to = managed.cast::<DLManagedTensorVersioned>();
            (*to).version = DLPackVersion { major, minor };
            (*to).manager_ctx = manager_ctx;
            (*to).deleter = case.deleter.then_some(free_versioned as Deleter<_>);
            (*to).flags = case.flags;
            if major == 1 {
                (*to).dl_tensor = dl_tensor;
            }
        }
    }
}

/// The elements in row-major order, by plain loops.
fn elements(sound: &Sound, data: *const u8) -> Vec<u8> {
    let size = sound.dtype.size();
    let numel: i64 = sound.shape.iter().product();
    let mut bytes = Vec::new();
    for at in 0..numel {
        let (mut rest, mut step) = (at, 0);
        for (&extent, &stride) in sound.shape.iter().zip(&sound.strides).rev() {
            step += rest % extent * if extent == 1 { 0 } else { stride };
            rest /= extent;
        }
        let from = data.wrapping_offset(step as isize * size as isize);
        // SAFETY: the memory is as large as the model says.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, size) });
    }
    bytes
}

fn slice<T: Element>(tensor: &Tensor, want: Option<&[u8]>) {
    let aligned = tensor.data_ptr().addr() % align_of::<T>() == 0;
    match tensor.as_slice::<T>() {
        Ok(slice) => {
            assert_eq!(T::DTYPE, tensor.dtype());
            // SAFETY: any element is readable as bytes.
            let got = unsafe {
                std::slice::from_raw_parts(
                    slice.as_ptr().cast::<u8>(),
                    std::mem::size_of_val(slice),
                )
            };
            assert_eq!(Some(got), want);
        }
        Err(Error::DType(_)) => assert_ne!(T::DTYPE, tensor.dtype()),
        Err(Error::Device(_)) => assert!(matches!(tensor.device(), Device::Cuda(_))),
        Err(Error::Layout(_)) => {
            let odd =
                T::DTYPE == DType::Bool && want.is_some_and(|want| want.iter().any(|&b| b > 1));
            assert!(!aligned || !tensor.layout().is_compact() || odd);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Every operation on a tensor whose elements may be read.
fn read(tensor: &Tensor, want: &[u8], engines: &[Engine]) {
    slice::<u8>(tensor, Some(want));
    slice::<i16>(tensor, Some(want));
    slice::<f32>(tensor, Some(want));
    slice::<u64>(tensor, Some(want));
    slice::<bool>(tensor, Some(want));
    let twice = [SampleView::from(tensor), SampleView::from(tensor)];
    for engine in engines {
        let batch = match engine.assemble(&twice, &Collate::stack()) {
            Ok(batch) => batch,
            // Strides of an empty batch may be beyond 64 bits.
            Err(Error::TooLarge(_)) if want.is_empty() => return,
            Err(Error::Argument(_)) if tensor.shape().len() == 64 => return,
            Err(error) => panic!("two equal samples: {error}"),
        };
        // SAFETY: a batch is compact.
        let got =
            unsafe { std::slice::from_raw_parts(batch.data().data_ptr(), batch.data().nbytes()) };
        assert_eq!(&got[..want.len()], want);
        assert_eq!(&got[want.len()..], want);
        if !tensor.shape().is_empty() {
            let rows = match SampleList::rows(tensor) {
                Ok(rows) => rows,
                // An empty table's rows may be too large too.
                Err(Error::TooLarge(_)) if want.is_empty() => return,
                Err(error) => panic!("a table: {error}"),
            };
            if (1..100_000).contains(&rows.len()) {
                let batch = engine.assemble(&rows, &Collate::stack()).expect("the rows of a table");
                // SAFETY: as above.
                let got = unsafe {
                    std::slice::from_raw_parts(batch.data().data_ptr(), batch.data().nbytes())
                };
                assert_eq!(got, want);
            }
        }
    }
}

fn engines() -> &'static [Engine] {
    static ENGINES: std::sync::OnceLock<Vec<Engine>> = std::sync::OnceLock::new();
    ENGINES.get_or_init(|| {
        let one = Engine::builder().threads(1).build().expect("an engine on the host");
        vec![one, Engine::reference()]
    })
}

/// Imports the struct of a case and takes its steps.
pub fn check(case: &Case) {
    if case.dims.len() > 70 || case.steps.len() > 12 {
        return;
    }
    let foreign = Foreign::new(case);
    let count = || foreign.frees.load(Ordering::SeqCst);
    let expected_frees = usize::from(case.deleter);
    // SAFETY: a struct of ours, as the safety texts demand: arrays of `ndim` or NULL, memory that is
    // there where it is read below.
    let tensor = unsafe {
        if case.legacy {
            Tensor::from_dlpack_legacy(foreign.managed.cast())
        } else {
            let managed = foreign.managed.cast::<DLManagedTensorVersioned>();
            let looked =
                read_versioned(managed).map(|found| (found.dtype, found.device, found.read_only));
            assert_eq!(count(), 0);
            if let (Ok((dtype, device, read_only)), Some(sound)) = (&looked, &foreign.sound) {
                assert_eq!(
                    (*dtype, *device, *read_only),
                    (sound.dtype, sound.device, case.flags & 1 == 1)
                );
            }
            assert!(looked.is_err() || foreign.major == 1);
            Tensor::from_dlpack(managed)
        }
    };
    match (tensor, &foreign.sound) {
        (Err(error), None) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(count(), expected_frees, "a refused tensor is freed at once: {error}");
        }
        (Ok(tensor), None) => panic!("taken though unsound: {tensor:?}"),
        (Err(error), Some(_)) => panic!("refused though sound: {error}"),
        (Ok(tensor), Some(sound)) => {
            assert_eq!(count(), 0);
            assert_eq!((tensor.shape(), tensor.strides()), (&sound.shape[..], &sound.strides[..]));
            assert_eq!((tensor.dtype(), tensor.device()), (sound.dtype, sound.device));
            assert_eq!(tensor.is_read_only(), !case.legacy && case.flags & 1 == 1);
            let empty = sound.shape.contains(&0);
            let small =
                foreign.real && sound.shape.iter().map(|&e| e as i128).product::<i128>() <= 4096;
            if small || (empty && sound.device == Device::Cpu) {
                let want = if empty { vec![] } else { elements(sound, tensor.data_ptr()) };
                read(&tensor, &want, engines());
            } else if matches!(sound.device, Device::Cuda(_)) {
                slice::<f32>(&tensor, None);
                // A device would take the address, where there is no memory.
                if Engine::cuda(0).is_err() {
                    let view = [SampleView::from(&tensor)];
                    assert!(engines()[0].assemble(&view, &Collate::stack()).is_err());
                }
            }
            let mut tensors = vec![tensor];
            for step in &case.steps {
                let Some(last) = tensors.last() else { break };
                let next = match step {
                    Step::Clone => Some(last.clone()),
                    // SAFETY: an export of ours, taken once.
                    Step::Export => Some(
                        unsafe { Tensor::from_dlpack(last.to_dlpack().as_ptr()) }.expect("ours"),
                    ),
                    // Nothing would tell a value from two.
                    Step::ExportLegacy if last.dtype().is_padded() => None,
                    // SAFETY: as above.
                    Step::ExportLegacy => Some(
                        unsafe { Tensor::from_dlpack_legacy(last.to_dlpack_legacy().as_ptr()) }
                            .expect("ours"),
                    ),
                    Step::Select(row) => last.select((*row).into()).ok(),
                    Step::Bits => Some(last.as_bits()),
                    Step::DropFirst => {
                        drop(tensors.remove(0));
                        None
                    }
                    Step::DropLast => {
                        tensors.pop();
                        None
                    }
                    Step::DropElsewhere => {
                        let last = tensors.pop();
                        std::thread::spawn(move || drop(last)).join().expect("a drop");
                        None
                    }
                };
                tensors.extend(next);
                assert_eq!(count(), if tensors.is_empty() { expected_frees } else { 0 });
                if let (Some(last), true) = (tensors.last(), small) {
                    let part = Sound {
                        dtype: last.dtype(),
                        device: Device::Cpu,
                        shape: last.shape().to_vec(),
                        strides: last.strides().to_vec(),
                        below: 0,
                        above: 0,
                    };
                    let want = elements(&part, last.data_ptr());
                    read(last, &want, &engines()[..1]);
                }
            }
            drop(tensors);
            assert_eq!(count(), expected_frees);
        }
    }
    if !case.deleter {
        // SAFETY: nothing has freed it.
        unsafe { free(foreign.context) };
    }
}
