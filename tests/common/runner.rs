//! [`Runner`]: one batch on every executor, allocated by the engine and into poisoned memory of the
//! caller's, compared with the oracle byte by byte.

use std::sync::{Arc, OnceLock};

use windrow::batch::Fields;
use windrow::plan::Target;
use windrow::tensor::Element;
use windrow::{
    Batch, Collate, DType, Device, Engine, Layout, Plan, SampleList, SampleView, Tensor,
};

use super::ask::{Ask, Form};
use super::oracle::{oracle, Expected};
use super::sample::{compact, ordered, views, Sample};
#[cfg(feature = "cuda")]
use super::{device, placed};

/// The bytes of outputs before they are written.
pub const POISON: u8 = 0xA5;

/// Bytes around an output that must stay as they are.
const MARGIN: usize = 192;

/// The number of elements from which on the naive executor and the strided outputs are left out: they take their time.
const LARGE: i64 = 300_000;

/// Every executor there is.
pub struct Runner {
    engines: Vec<(&'static str, Engine)>,
}

/// The engines that a test program runs, by `WINDROW_TEST_ENGINES`: three runs divide them (docs/testing.md).
#[derive(Clone, Copy, PartialEq)]
enum Engines {
    /// Every engine, in every way.
    All,
    /// `device`: the device in every way.
    Device,
    /// `kernels`: the device from its own memory, and bytes from the host's, to its own memory: for a driver that emulates machine
    /// code, which executes the same instructions for most copies from and to the host.
    #[cfg(feature = "cuda")]
    Kernels,
}

fn engines() -> Engines {
    match std::env::var("WINDROW_TEST_ENGINES").as_deref() {
        Err(_) => Engines::All,
        Ok("device") => Engines::Device,
        #[cfg(feature = "cuda")]
        Ok("kernels") => Engines::Kernels,
        Ok(other) => panic!("WINDROW_TEST_ENGINES={other}"),
    }
}

/// Whether the device executes machine code by an emulator, some hundred times as slowly as a host.
pub fn is_emulated() -> bool {
    matches!(std::env::var("WINDROW_TEST_ENGINES").as_deref(), Ok("kernels"))
}

/// All cases of a sweep, and for a device alone each `step`-th of them: the lengths between the others are those of a host's
/// vectors, and a device executes the same instructions for them.
pub fn swept<I: Iterator>(step: usize, cases: I) -> std::iter::StepBy<I> {
    cases.step_by(if engines() == Engines::All { 1 } else { step })
}

/// The one runner of a test binary.
pub fn runner() -> &'static Runner {
    static RUNNER: OnceLock<Runner> = OnceLock::new();
    RUNNER.get_or_init(|| {
        let one = Engine::builder().threads(1).build().expect("an engine on the host");
        let mut engines = vec![("one thread", one)];
        if self::engines() != Engines::All {
            return Runner { engines };
        }
        engines.push(("reference", Engine::reference()));
        if !cfg!(miri) {
            let pool =
                rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("three threads");
            let stores = "copies=0,padded=0,computed=0".parse().expect("all outputs");
            let around = Engine::builder().streaming_stores(stores).build();
            engines.push(("around the caches", around.expect("an engine on the host")));
            engines.push(("given pool", Engine::host_with(Arc::new(pool))));
        }
        Runner { engines }
    })
}

impl Runner {
    pub fn engines(&self) -> &[(&'static str, Engine)] {
        &self.engines
    }

    /// Checks one batch.
    ///
    /// # Panics
    /// With the name of the case, if an executor differs from the oracle or refuses.
    pub fn check(&self, name: &str, samples: &[Sample], ask: &Ask) {
        let expected = oracle(samples, ask);
        if engines() == Engines::All {
            self.check_against(name, samples, ask, &expected);
        }
        #[cfg(feature = "cuda")]
        self.check_on_device(name, samples, ask, &expected);
        #[cfg(not(feature = "cuda"))]
        assert!(engines() == Engines::All, "WINDROW_TEST_ENGINES, and there is no device");
    }

    /// The same by the host's engines alone, for sizes at which they change their ways and a device does not.
    pub fn check_on_host(&self, name: &str, samples: &[Sample], ask: &Ask) {
        if engines() == Engines::All {
            self.check_against(name, samples, ask, &oracle(samples, ask));
        }
    }

    fn check_against(&self, name: &str, samples: &[Sample], ask: &Ask, expected: &Expected) {
        let views = views(samples);
        let collate = ask.collate();
        let explain =
            Plan::new(&views, &collate).unwrap_or_else(|e| panic!("{name}: {e}")).explain();
        let own_bytes = expected.data.len()
            + expected.mask.as_ref().map_or(0, |(.., mask)| mask.len())
            + expected.batch_index.as_ref().map_or(0, |index| 8 * index.len());
        assert_eq!(explain.bytes_written, own_bytes as u64, "{name}: {explain:?}");
        assert_eq!(explain.bytes_read, expected.bytes_read, "{name}: {explain:?}");
        let padding = expected.padding as u64 * expected.dtype.size() as u64;
        assert_eq!(explain.padding_bytes, padding, "{name}: {explain:?}");
        assert_eq!(explain.outputs, [(expected.shape.clone(), expected.dtype)], "{name}");

        if is_short(samples, ask, expected) {
            check_short(name, &views, &collate, expected);
        }
        let large = expected.numel() >= LARGE;
        for (engine_name, engine) in &self.engines {
            let name = format!("{name} on {engine_name}");
            let batch = engine.assemble(&views, &collate).unwrap_or_else(|e| panic!("{name}: {e}"));
            check_batch(&name, &batch, expected);
            let list: SampleList<'_> = views.iter().cloned().collect();
            let batch = engine.assemble(&list, &collate).unwrap_or_else(|e| panic!("{name}: {e}"));
            check_batch(&format!("{name}, of a list"), &batch, expected);
            if large && *engine_name == "reference" {
                continue;
            }
            let variants = if large { 1 } else { 3 };
            for (variant, strides) in
                out_strides(&expected.shape).into_iter().enumerate().take(variants)
            {
                let name = format!("{name} into variant {variant}");
                let mut frame =
                    Frame::new(expected.dtype, &expected.shape, &strides, 1 + 5 * variant);
                let fields = engine
                    .assemble_into(&views, &collate, &mut frame.target())
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
                check_fields(&name, &fields, expected, &ask.form);
                frame.check(&name, &expected.data);
            }
        }
    }

    /// Checks a batch that only a device makes: one whose samples are raised.
    pub fn check_raised(&self, name: &str, samples: &[Sample], ask: &Ask) {
        assert!(!ask.increments.is_empty(), "{name}");
        for (engine_name, engine) in &self.engines {
            let error = engine.assemble(&views(samples), &ask.collate()).expect_err(engine_name);
            assert_eq!(error.to_string(), "sample 0: expected a device, got cpu", "{name}");
        }
        #[cfg(feature = "cuda")]
        self.check_on_device(name, samples, ask, &oracle(samples, ask));
    }

    /// The same on a device: from the host, from the device, from page-locked memory; to the device,
    /// to memory of the caller's there, back to the host.
    #[cfg(feature = "cuda")]
    fn check_on_device(&self, name: &str, samples: &[Sample], ask: &Ask, expected: &Expected) {
        let Some(engine) = device::engine() else {
            assert!(engines() == Engines::All, "WINDROW_TEST_ENGINES, and there is no device");
            return;
        };
        let collate = ask.collate();
        let run = |place: &str, views: &[SampleView<'_>], collate: &Collate| {
            let batch = engine.assemble(views, collate);
            let batch = batch.unwrap_or_else(|e| panic!("{name}, {place}: {e}"));
            check_batch(&format!("{name}, {place}"), &batch, expected);
        };
        let frame = |(strides, misalign): (Vec<i64>, usize)| {
            Frame::new(expected.dtype, &expected.shape, &strides, misalign)
        };
        let frames: Vec<Frame> =
            out_strides(&expected.shape).into_iter().zip([4, 0, 11]).map(frame).collect();
        let placed = placed::Placed::new(samples, &frames);
        // SAFETY: it lives until the results have been read.
        let views = unsafe { placed.views() };
        run("on the device", &views, &collate);
        for (variant, frame) in frames.into_iter().enumerate() {
            let name = format!("{name}, into variant {variant} on the device");
            frame.check_on_device(&name, &expected.data, placed.frame(variant), |target| {
                let fields = engine.assemble_into(&views, &collate, target);
                let fields = fields.unwrap_or_else(|e| panic!("{name}: {e}"));
                check_fields(&name, &fields, expected, &ask.form);
            });
        }
        // What is uploaded lies as it does on the host, one sample behind the other: bytes begin anywhere in a vector.
        let is_of_bytes = samples.iter().any(|sample| sample.dtype.size() == 1);
        if engines() != Engines::Kernels || is_of_bytes {
            run("host to device", &self::views(samples), &collate);
        }
        if engines() == Engines::Kernels {
            return placed.check(name);
        }
        run("device to host", &views, &collate.clone().device(Device::Cpu));
        run("device to pinned", &views, &collate.clone().device(Device::Pinned));

        let pinned = placed::Copies::<device::PinnedBytes>::new(samples.iter().map(Sample::bytes));
        let at = |(index, sample): (usize, &Sample)| {
            // SAFETY: a copy of the sample, which lives as long.
            unsafe { sample.view_at(pinned.address(index), Device::Pinned) }
        };
        let pinned_views: Vec<_> = samples.iter().enumerate().map(at).collect();
        run("pinned to device", &pinned_views, &collate);
        if ask.increments.is_empty() {
            run("pinned to pinned", &pinned_views, &collate.clone().device(Device::Pinned));
        }

        let to_host = collate.clone().device(Device::Cpu);
        for (variant, strides) in out_strides(&expected.shape).into_iter().enumerate() {
            let name = format!("{name}, from the device into variant {variant}");
            let mut frame = Frame::new(expected.dtype, &expected.shape, &strides, 1 + 5 * variant);
            let fields = engine.assemble_into(&views, &to_host, &mut frame.target());
            check_fields(
                &name,
                &fields.unwrap_or_else(|e| panic!("{name}: {e}")),
                expected,
                &ask.form,
            );
            frame.check(&name, &expected.data);
        }
        placed.check(name);
        pinned.check(name, samples.len());
    }
}

/// Whether a batch is one of those that need no plan: row-major rows that differ in dim 0 at most, moved or cast, perhaps
/// padded there, fewer bytes than 1 MiB in all. Some of the padded ones that do are left out.
fn is_short(samples: &[Sample], ask: &Ask, expected: &Expected) -> bool {
    let [first, ..] = samples else { return false };
    let rank = first.shape.len();
    let rest = |sample: &Sample| sample.shape.get(1..).unwrap_or_default().to_vec();
    let are_rows = samples.iter().all(|sample| {
        sample.dtype == first.dtype
            && sample.shape.len() == rank
            && rest(sample) == rest(first)
            && sample.strides == compact(&sample.shape)
    });
    let is_moved = expected.dtype == first.dtype
        || first.dtype.is_arithmetic() && expected.dtype.is_arithmetic();
    let Ask { scale, mean, std, channel_dim, permute, .. } = ask;
    let is_as_it_is = *scale == 1.0
        && mean.is_empty()
        && std.is_empty()
        && channel_dim.is_none()
        && permute.is_none();
    let is_along_rows = match &ask.form {
        Form::Stack => samples.iter().all(|sample| sample.shape == first.shape),
        Form::Concat(dim) => rank > 0 && (*dim == 0 || *dim == -(rank as i64)),
        Form::Ragged { .. } => rank > 0,
        Form::Pad(_) => rank == 1,
    };
    let mask = expected.mask.as_ref().map_or(0, |(.., mask)| mask.len());
    let index = 8 * expected.batch_index.as_ref().map_or(0, Vec::len);
    let bytes = expected.bytes_read as usize + expected.data.len() + mask + index;
    let is_small = (1..(1 << 20) - 16 * samples.len().min(1 << 15)).contains(&bytes);
    are_rows && is_moved && is_as_it_is && is_along_rows && is_small && expected.numel() > 0
}

/// Checks a batch by an engine that has made nothing else: a plan would have taken time.
fn check_short(name: &str, views: &[SampleView<'_>], collate: &Collate, expected: &Expected) {
    let engine = Engine::builder().threads(1).build().expect("an engine on the host");
    engine.reset_stats();
    let list: SampleList<'_> = views.iter().cloned().collect();
    let of_views = engine.assemble(views, collate).unwrap_or_else(|e| panic!("{name}: {e}"));
    let of_list = engine.assemble(&list, collate).unwrap_or_else(|e| panic!("{name}: {e}"));
    check_batch(&format!("{name}, short"), &of_views, expected);
    check_batch(&format!("{name}, short, of a list"), &of_list, expected);
    let stats = engine.stats();
    assert!(stats.plan_time.is_zero() && stats.batches == 2, "{name} has a plan: {stats:?}");
}

/// Layouts of an output: row-major, row-major with gaps, column-major with dim 0 backwards.
fn out_strides(shape: &[i64]) -> [Vec<i64>; 3] {
    let order: Vec<usize> = (0..shape.len()).collect();
    let backwards: Vec<usize> = order.iter().rev().copied().collect();
    let mut columns = ordered(shape, &backwards, 0);
    if let Some(stride) = columns.first_mut() {
        *stride = -*stride;
    }
    [compact(shape), ordered(shape, &order, 2), columns]
}

/// Poisoned memory with an output in the middle.
pub struct Frame {
    bytes: Vec<u8>,
    first: usize,
    dtype: DType,
    layout: Layout,
}

impl Frame {
    pub fn new(dtype: DType, shape: &[i64], strides: &[i64], misalign: usize) -> Frame {
        let layout = Layout::try_new(dtype, shape, Some(strides)).expect("a sound layout");
        let span = layout.byte_span(dtype);
        let bytes = vec![POISON; 2 * MARGIN + 64 + misalign + (span.end - span.start) as usize];
        let aligned = bytes.as_ptr().addr().next_multiple_of(64) - bytes.as_ptr().addr();
        let first = MARGIN + aligned + misalign + (-span.start) as usize;
        Frame { bytes, first, dtype, layout }
    }

    pub fn target(&mut self) -> Target<'_> {
        // SAFETY: the buffer was made as large as the layout's span, from `first` on, and is borrowed.
        unsafe {
            let data = self.bytes.as_mut_ptr().add(self.first);
            Target::from_raw_parts(data, self.dtype, Device::Cpu, self.layout.clone())
        }
    }

    /// Adds the buffer's elements to a list, which does not keep it, as a destination.
    pub fn add_to(&mut self, list: &mut SampleList<'static>) {
        let (shape, strides) = (self.layout.shape(), Some(self.layout.strides()));
        // SAFETY: the buffer was made as large as the layout's span; the list is used while the frame lives.
        unsafe {
            let data = self.bytes.as_mut_ptr().add(self.first);
            list.push(data, self.dtype, Device::Cpu, shape, strides).expect("a sound layout");
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Has a copy of the buffer at an address of the device written to, and checks it.
    #[cfg(feature = "cuda")]
    pub fn check_on_device(
        mut self,
        name: &str,
        data: &[u8],
        address: u64,
        write: impl FnOnce(&mut Target<'_>),
    ) {
        let first = (address as *mut u8).wrapping_add(self.first);
        let (dtype, layout) = (self.dtype, self.layout.clone());
        // SAFETY: a copy of the buffer, large enough for the layout, alive until it has been read.
        write(&mut unsafe { Target::from_raw_parts(first, dtype, Device::Cuda(0), layout) });
        self.bytes = device::read(address, self.bytes.len());
        self.check(name, data);
    }

    /// The buffer as it must be: `data` in place of the elements, poison elsewhere.
    pub fn check(&self, name: &str, data: &[u8]) {
        let size = self.dtype.size();
        let mut want = vec![POISON; self.bytes.len()];
        if self.layout.is_compact() {
            want[self.first..self.first + data.len()].copy_from_slice(data);
        } else {
            let mut elements = data.chunks(size);
            super::coordinates(self.layout.shape(), |coords| {
                let steps = coords.iter().zip(self.layout.strides());
                let step: i64 = steps.map(|(coord, stride)| coord * stride).sum();
                let at = self.first.wrapping_add_signed(step as isize * size as isize);
                want[at..at + size].copy_from_slice(elements.next().expect("one for each"));
            });
        }
        same_bytes(name, size, &want, &self.bytes);
    }

    pub fn is_untouched(&self) -> bool {
        self.bytes.iter().all(|&byte| byte == POISON)
    }
}

/// Compares bytes; says where they differ first.
pub fn same_bytes(name: &str, size: usize, want: &[u8], got: &[u8]) {
    assert_eq!(want.len(), got.len(), "{name}: lengths");
    if want != got {
        let at = want.iter().zip(got).position(|(a, b)| a != b).expect("a difference");
        let count = want.iter().zip(got).filter(|(a, b)| a != b).count();
        let begin = at - at % size;
        let end = (begin + size).min(want.len());
        panic!(
            "{name}: {count} of {} bytes differ, the first at {at}: element bytes {:x?}, got {:x?}",
            want.len(),
            &want[begin..end],
            &got[begin..end]
        );
    }
}

/// The bytes of a tensor, row-major.
pub fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let size = tensor.dtype().size();
    #[cfg(feature = "cuda")]
    if matches!(tensor.device(), Device::Cuda(_)) {
        tensor.synchronize().expect("work that ends well");
        if tensor.layout().is_compact() {
            return device::read(tensor.data_ptr().addr() as u64, tensor.nbytes());
        }
        let span = tensor.layout().byte_span(tensor.dtype());
        let low = tensor.data_ptr().wrapping_offset(span.start as isize);
        let memory = device::read(low.addr() as u64, (span.end - span.start) as usize);
        let mut bytes = Vec::with_capacity(tensor.nbytes());
        super::coordinates(tensor.shape(), |coords| {
            let step: i64 =
                coords.iter().zip(tensor.strides()).map(|(coord, stride)| coord * stride).sum();
            let at = (step * size as i64 - span.start) as usize;
            bytes.extend_from_slice(&memory[at..at + size]);
        });
        return bytes;
    }
    let mut bytes = Vec::with_capacity(tensor.nbytes());
    if tensor.layout().is_compact() && tensor.nbytes() > 0 {
        // SAFETY: a tensor is good for all elements of its layout, which are `nbytes` in a row.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(tensor.data_ptr(), tensor.nbytes())
        });
        return bytes;
    }
    super::coordinates(tensor.shape(), |coords| {
        let step: i64 =
            coords.iter().zip(tensor.strides()).map(|(coord, stride)| coord * stride).sum();
        let at = tensor.data_ptr().wrapping_offset(step as isize * size as isize);
        // SAFETY: a tensor is good for all elements of its layout.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, size) });
    });
    bytes
}

/// Everything of a batch.
pub fn check_batch(name: &str, batch: &Batch, expected: &Expected) {
    let data = batch.data();
    assert_eq!((data.shape(), data.dtype()), (&expected.shape[..], expected.dtype), "{name}");
    assert!(data.layout().is_compact() && !data.is_read_only(), "{name}");
    same_bytes(name, expected.dtype.size(), &expected.data, &bytes_of(data));
    assert_eq!(batch.len(), expected.parts.len(), "{name}");
    assert_eq!(batch.max_length(), expected.max_length, "{name}");
    check_extras(name, batch.fields(), expected);
    // Views of samples: all of a few, some of many.
    let step = (batch.len() / 20).max(1);
    for index in (0..batch.len()).step_by(step) {
        let view = batch.sample(index).unwrap_or_else(|e| panic!("{name}: sample {index}: {e}"));
        let (shape, bytes) = &expected.parts[index];
        assert_eq!(view.shape(), shape, "{name}: sample {index}");
        if let Some(bytes) = bytes {
            same_bytes(
                &format!("{name}: sample {index}"),
                expected.dtype.size(),
                bytes,
                &bytes_of(&view),
            );
        }
    }
    assert!(batch.sample(batch.len()).is_err(), "{name}");
}

fn check_fields(name: &str, fields: &Fields, expected: &Expected, form: &Form) {
    assert_eq!(fields.num_samples, expected.parts.len(), "{name}");
    assert_eq!(fields.max_length.is_some(), matches!(form, Form::Ragged { .. }), "{name}");
    assert_eq!(fields.max_length, expected.max_length, "{name}");
    check_extras(name, fields, expected);
}

fn check_extras(name: &str, fields: &Fields, expected: &Expected) {
    let lengths = expected.lengths.as_ref();
    check_tensor(
        name,
        fields.lengths.as_deref(),
        lengths.map(|(shape, all)| (&shape[..], &all[..])),
    );
    match fields.offsets.as_deref().map(Tensor::dtype) {
        Some(DType::I32) => {
            let offsets: Vec<i32> = expected.offsets.iter().flatten().map(|&x| x as i32).collect();
            check_tensor(
                name,
                fields.offsets.as_deref(),
                Some((&[offsets.len() as i64], &offsets)),
            );
        }
        _ => {
            let shape = [expected.offsets.as_ref().map_or(0, Vec::len) as i64];
            let offsets = expected.offsets.as_ref().map(|all| (&shape[..], &all[..]));
            check_tensor(name, fields.offsets.as_deref(), offsets);
        }
    }
    assert_eq!(fields.mask.is_some(), expected.mask.is_some(), "{name}");
    if let (Some(got), Some((shape, dtype, bytes))) = (fields.mask.as_deref(), &expected.mask) {
        assert_eq!((got.shape(), got.dtype()), (&shape[..], *dtype), "{name}");
        same_bytes(name, dtype.size(), bytes, &bytes_of(got));
    }
    let shape = [expected.batch_index.as_ref().map_or(0, Vec::len) as i64];
    let index = expected.batch_index.as_ref().map(|all| (&shape[..], &all[..]));
    check_tensor(name, fields.batch_index.as_deref(), index);
}

fn check_tensor<T: Element + std::fmt::Debug>(
    name: &str,
    got: Option<&Tensor>,
    want: Option<(&[i64], &[T])>,
) {
    match (got, want) {
        (None, None) => {}
        (Some(got), Some((shape, elements))) => {
            assert_eq!((got.shape(), got.dtype()), (shape, T::DTYPE), "{name}");
            // SAFETY: plain numbers, seen as their bytes.
            let elements = unsafe {
                std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements))
            };
            same_bytes(name, size_of::<T>(), elements, &bytes_of(got));
        }
        (got, want) => panic!("{name}: expected {want:?}, got {got:?}"),
    }
}
