//! Samples of more than 2^32 bytes and 2^31 elements: tables as the engine makes them, kernels as the driver runs them. Only
//! the memory around a few items exists; the addresses of samples and outputs are computed back from there.

#![allow(unsafe_code)] // Samples at made-up addresses.

use std::ops::Range;
use std::panic::catch_unwind;
use std::process::Command;
use std::ptr::null_mut;

use cust::sys::{cuMemHostRegister_v2, cuMemHostUnregister, CUresult};

use super::driver::tests::context;
use super::driver::{image, Kernel, StreamRef};
use super::launch::argument_pool::ArgumentPool;
use super::launch::family::Family;
use super::launch::kernel_abi::Header;
use super::launch::output_desc::{Nest, OutputDesc, Work};
use super::launch::policy::Policy;
use super::launch::table::{segments, Table, TableKernel};
use crate::collate::{Collate, Ragged, Transform};
use crate::plan::Plan;
use crate::samples::{SampleList, SampleView};
use crate::tensor::{DType, Device, Layout};

const HERE: Device = Device::Cuda(0);
/// The bytes of outputs before the launch.
const POISON: u8 = 0xA5;
/// Bytes of memory on both sides of what items read and write: a page.
const MARGIN: u64 = 4096;

/// Addresses for bytes of a sample or an output, of which only those around some ranges are memory. The kernels may use it.
struct Sparse {
    start: *mut u8,
    len: usize,
    /// The address of byte 0, which need not be one of these.
    origin: u64,
    /// The parts that are backed by memory, from `start` on, in whole pages.
    windows: Vec<Range<usize>>,
}

impl Sparse {
    fn around(ranges: &[Range<u64>]) -> Sparse {
        let first = ranges.iter().map(|range| range.start).min().unwrap() / MARGIN * MARGIN;
        let end = ranges.iter().map(|range| range.end).max().unwrap();
        let len = (end - first).next_multiple_of(MARGIN) as usize + 4 * MARGIN as usize;
        let (private, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_NONE);
        // SAFETY: a mapping of its own, where the system has room for it.
        let start =
            unsafe { libc::mmap(null_mut(), len, none, private | libc::MAP_NORESERVE, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{len} addresses");
        let at = |byte: u64| byte - first + 2 * MARGIN;
        let page = |byte: u64| (byte / MARGIN * MARGIN) as usize;
        let windows: Vec<Range<usize>> = ranges
            .iter()
            .map(|range| page(at(range.start) - MARGIN)..page(at(range.end) + 2 * MARGIN - 1))
            .collect();
        for window in &windows {
            // SAFETY: pages of that mapping; no two windows share one.
            unsafe {
                let begin = start.byte_add(window.start);
                let both = libc::PROT_READ | libc::PROT_WRITE;
                assert_eq!(libc::mprotect(begin, window.len(), both), 0);
                assert_eq!(cuMemHostRegister_v2(begin, window.len(), 0), CUresult::CUDA_SUCCESS);
            }
        }
        let origin = (start as u64 + 2 * MARGIN).wrapping_sub(first);
        Sparse { start: start.cast(), len, origin, windows }
    }

    /// All memory, a slice for each range; no work uses it.
    fn memory(&mut self) -> impl Iterator<Item = &mut [u8]> + '_ {
        self.windows.iter().map(|window| {
            // SAFETY: mapped and writable until the value is dropped, and disjoint from the others.
            unsafe { std::slice::from_raw_parts_mut(self.start.add(window.start), window.len()) }
        })
    }

    /// A range among its window's bytes.
    fn place(&self, window: usize, range: &Range<u64>) -> Range<usize> {
        let begin = self.origin.wrapping_add(range.start) - self.start as u64;
        let begin = begin as usize - self.windows[window].start;
        begin..begin + (range.end - range.start) as usize
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        for window in &self.windows {
            // SAFETY: registered as such; no work is left that uses it.
            unsafe { cuMemHostUnregister(self.start.add(window.start).cast()) };
        }
        // SAFETY: the whole mapping, which nothing else knows.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Items of a batch of one descriptor, what they write, and what they read for it.
struct Near {
    items: Range<u64>,
    /// Bytes of the output, in the order in which they are expected.
    written: Vec<Range<u64>>,
    /// The sample that is read, and bytes of it.
    sample: usize,
    read: Range<u64>,
}

struct Gpu<'c> {
    stream: StreamRef<'c>,
    /// The kernel of the common families, and the kernel of all but the quantised family.
    kernels: [Kernel; 2],
}

/// Set in a process that runs one of these tests.
const ALONE: &str = "WINDROW_TEST_ALONE";

/// Calls `run` if there is a driver. On a GPU a stray access leaves the context of its process unusable, and
/// the next tests would fail too: there each of these tests, named by `name`, has a process of its own.
fn on_a_gpu(name: &str, run: impl FnOnce(&Gpu<'_>)) {
    let Some(context) = context() else { return };
    let is_simulated = context.info().name.starts_with("cudasim");
    if !is_simulated && std::env::var_os(ALONE).is_none() {
        return run_alone(name);
    }
    let current = context.enter().unwrap();
    let stream = current.stream(0).unwrap();
    let module = current.load(image().unwrap()).unwrap();
    let kernels = ["windrow_assemble_small", "windrow_assemble_any_small"];
    let kernels = kernels.map(|name| module.kernel(name).unwrap());
    run(&Gpu { stream: stream.on(&current), kernels });
}

fn run_alone(name: &str) {
    let path = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let mut program = Command::new(std::env::current_exe().unwrap());
    let ran = program.args(["--exact", &path, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(ran.status.success() && said.contains("1 passed"), "{path}: {}\n{said}", ran.status);
}

/// The test runs on the simulated driver too: a test that passes, and a name of no test.
#[test]
fn a_test_has_a_process_of_its_own() {
    let Some(_) = context() else { return };
    run_alone("aligned_copies_beyond_32_bits");
    assert!(catch_unwind(|| run_alone("aligned_copies")).is_err());
}

fn table(
    (dtype, shapes): (DType, &[&[i64]]),
    collate: &Collate,
    data: &[u64],
    out: u64,
    policy: &Policy,
) -> Table {
    let views = shapes.iter().zip(data).map(|(shape, &data)| {
        let layout = Layout::compact(dtype, shape).unwrap();
        // SAFETY: a plan does not read its samples; the items that run read what exists of them.
        unsafe { SampleView::from_raw_parts(data as *const u8, dtype, HERE, layout) }
    });
    let list: SampleList<'_> = views.collect();
    let plan = Plan::new(&list, &collate.clone().device(HERE)).unwrap();
    let outputs = plan.outputs().iter().take(1).map(|output| (output, out));
    let segments = segments(&plan, outputs);
    Table::new(&segments, &[], 132, policy).unwrap()
}

impl Gpu<'_> {
    /// Runs the items of a batch of these shapes that `near` picks by its descriptor. `expected` says what becomes of the bytes
    /// that are read, of which it is given the first one's position.
    fn check(
        &self,
        samples: (DType, &[&[i64]]),
        collate: &Collate,
        family: Family,
        near: impl Fn(&OutputDesc) -> Near,
        expected: impl Fn(&Near, &[u8]) -> Vec<u8>,
    ) {
        let policy = Policy::from_env().unwrap();
        // Alignments as of samples and outputs of the driver's; those of the memory below are the same.
        let mut data: Vec<u64> = (1..).map(|i| i << 40).take(samples.1.len()).collect();
        let desc = table(samples, collate, &data, 1 << 50, &policy).descs().next().unwrap();
        assert_eq!(desc.family(), family);
        let near = near(&desc);
        let mut source = Sparse::around(std::slice::from_ref(&near.read));
        let mut output = Sparse::around(&near.written);
        for all in source.memory() {
            all.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + i / 251) as u8);
        }
        output.memory().for_each(|all| all.fill(POISON));
        data[near.sample] = source.origin;
        let table = table(samples, collate, &data, output.origin, &policy);
        self.launch(&table, &near.items, &policy);

        let place = source.place(0, &near.read);
        let expected = expected(&near, &source.memory().next().unwrap()[place]);
        let mut expected = &expected[..];
        let places = near.written.iter().enumerate().map(|(i, range)| output.place(i, range));
        let places: Vec<Range<usize>> = places.collect();
        for (all, place) in output.memory().zip(places) {
            let (wanted, rest) = expected.split_at(place.len());
            expected = rest;
            assert!(all[place.clone()] == *wanted, "{family:?}: wrong bytes");
            let outside = all[..place.start].iter().chain(&all[place.end..]);
            assert!(
                outside.clone().all(|&byte| byte == POISON),
                "{family:?}: bytes beside its own"
            );
        }
        assert!(expected.is_empty());
    }

    /// Runs these items alone: their numbers begin at the first one's.
    fn launch(&self, table: &Table, items: &Range<u64>, policy: &Policy) {
        let arguments = ArgumentPool::default();
        let mut words = table.arguments(None, &arguments, policy).words().to_vec();
        let count = (items.end - items.start) as u32;
        words[1] = words[1] >> 32 << 32 | u64::from(count);
        let first_item = size_of::<Header>() / 8 + 1;
        let begin = (items.start as u32).wrapping_neg();
        words[first_item] = words[first_item] >> 32 << 32 | u64::from(begin);
        let grid = count.div_ceil(policy.threads / 32);
        let values = [words.as_ptr().cast()];
        let kernel = &self.kernels[usize::from(table.kernels() != [TableKernel::Common])];
        // SAFETY: the kernel has one parameter, of this size; its items read and write what exists.
        unsafe { self.stream.launch(kernel, grid, policy.threads, &values) }.unwrap();
        self.stream.synchronize().unwrap();
    }
}

fn nest_of(desc: &OutputDesc) -> &Nest {
    desc.nest().expect("a family that goes row by row")
}

/// The items that share the stretch in which column `col` is, of row `row` of sample `sample`, and their columns.
fn stretch(
    desc: &OutputDesc,
    sample: u64,
    first: u64,
    col: u64,
    cols: u64,
) -> (Range<u64>, Range<u64>) {
    let (piece, size) = (u64::from(nest_of(desc).piece), u64::from(desc.head.to_size));
    let phase = sample * nest_of(desc).step as u64 % 16 / size;
    let stretch = 8 * piece;
    let number = (col + phase) / stretch;
    let begin = (number * stretch).saturating_sub(phase);
    let end = ((number + 1) * stretch - phase).min(cols);
    let pieces = (cols + phase).div_ceil(piece);
    (first + 8 * number..first + pieces.min(8 * number + 8), begin..end)
}

fn scaled(range: &Range<u64>, by: u64) -> Range<u64> {
    range.start * by..range.end * by
}

fn moved(_: &Near, read: &[u8]) -> Vec<u8> {
    read.to_vec()
}

/// Near the end of each kind of number of 32 bits, and of a sample.
fn edges(end: u64) -> [u64; 5] {
    [(1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, end - 1]
}

/// Bytes that are moved, at addresses that differ in their last bits.
#[test]
fn bytes_beyond_32_bits() {
    on_a_gpu("bytes_beyond_32_bits", |gpu| {
        let cols = 5_000_000_005u64;
        for (sample, col) in
            [0, 1].into_iter().flat_map(|sample| edges(cols).map(|col| (sample, col)))
        {
            let near = |desc: &OutputDesc| {
                let first = sample as u64 * u64::from(nest_of(desc).items);
                let (items, read) = stretch(desc, sample as u64, first, col, cols);
                let start = sample as u64 * cols;
                let written = start + read.start..start + read.end;
                Near { items, written: vec![written], sample, read }
            };
            let shape = [cols as i64];
            gpu.check(
                (DType::U8, &[&shape[..]; 2]),
                &Collate::stack(),
                Family::ContiguousCast,
                near,
                moved,
            );
        }
    });
}

/// Ragged rows: the offsets are beyond 32 bits, no sample is.
#[test]
fn offsets_beyond_32_bits() {
    on_a_gpu("offsets_beyond_32_bits", |gpu| {
        let lengths = [3_000_000_001u64, 3_000_000_000, 7];
        for sample in 0..3 {
            let offset: u64 = lengths[..sample].iter().sum();
            let near = |desc: &OutputDesc| {
                let slack = 15 + u64::from(nest_of(desc).piece);
                let pieces = |length: &u64| (length + slack - 1) / u64::from(nest_of(desc).piece);
                let first: u64 = lengths[..sample].iter().map(pieces).sum();
                let (piece, cols) = (u64::from(nest_of(desc).piece), lengths[sample]);
                let phase = offset % 16;
                let last = (cols - 1 + phase) / (8 * piece);
                let begin = (last * 8 * piece).saturating_sub(phase);
                let items = first + 8 * last..first + pieces(&cols);
                let written = offset + begin..offset + cols;
                Near { items, written: vec![written], sample, read: begin..cols }
            };
            let shapes = lengths.map(|length| [length as i64]);
            let shapes: Vec<&[i64]> = shapes.iter().map(|shape| &shape[..]).collect();
            gpu.check(
                (DType::U8, &shapes),
                &Collate::ragged(Ragged::new()),
                Family::ContiguousCast,
                near,
                moved,
            );
        }
    });
}

/// Elements that are cast.
#[test]
fn casts_beyond_32_bits() {
    on_a_gpu("casts_beyond_32_bits", |gpu| {
        let cols = 3_000_000_000u64;
        let shape: &[&[i64]] = &[&[cols as i64]];
        let near = |col: u64, from: u64, to: u64| {
            move |desc: &OutputDesc| {
                let (items, cols) = stretch(desc, 0, 0, col, cols);
                Near {
                    items,
                    written: vec![scaled(&cols, to)],
                    sample: 0,
                    read: scaled(&cols, from),
                }
            }
        };
        for col in [1 << 30, (1 << 31) - 1, 1 << 31, cols - 1] {
            let cast = |_: &Near, read: &[u8]| -> Vec<u8> {
                let numbers =
                    read.chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap()));
                numbers.flat_map(|number| i64::from(number).to_ne_bytes()).collect()
            };
            let collate = Collate::stack().cast(DType::I64);
            gpu.check((DType::I32, shape), &collate, Family::ContiguousCast, near(col, 4, 8), cast);
            let extend = |_: &Near, read: &[u8]| -> Vec<u8> {
                read.iter().flat_map(|&byte| u16::from(byte).to_ne_bytes()).collect()
            };
            let collate = Collate::stack().cast(DType::U16);
            gpu.check(
                (DType::U8, shape),
                &collate,
                Family::ContiguousGeneric,
                near(col, 1, 2),
                extend,
            );
        }
    });
}

/// Whole pages, in samples of 3 GiB.
#[test]
fn aligned_copies_beyond_32_bits() {
    on_a_gpu("aligned_copies_beyond_32_bits", |gpu| {
        let page = 2048u64;
        let pages = (3u64 << 30) / page;
        for (sample, index) in [(0, (1 << 31) / page), (1, (1 << 30) / page), (2, pages - 3)] {
            let near = |_: &OutputDesc| {
                let read = index * page..(index + 3) * page;
                let first = sample as u64 * pages + index;
                Near {
                    items: first..first + 3,
                    written: vec![scaled(&(first..first + 3), page)],
                    sample,
                    read,
                }
            };
            let shape = [3i64 << 30];
            gpu.check(
                (DType::U8, &[&shape[..]; 3]),
                &Collate::stack(),
                Family::AlignedCopy,
                near,
                moved,
            );
        }
    });
}

/// Pixels whose planes are apart by more than 2^30 bytes, and by more than 2^31: all at once, or one after the other.
#[test]
fn planes_beyond_32_bits() {
    on_a_gpu("planes_beyond_32_bits", |gpu| {
        let cases = [
            (1_431_655_776, 1 << 30),
            (1_431_655_781, (1 << 32) / 3),
            (1 << 31, 1 << 31),
            ((1 << 31) + 5, 1 << 31),
        ];
        let last = cases.map(|(pixels, _)| (pixels, pixels - 1));
        for (sample, (pixels, col)) in [0, 1]
            .into_iter()
            .flat_map(|sample| cases.into_iter().chain(last).map(move |case| (sample, case)))
        {
            let near = |desc: &OutputDesc| {
                let Work::Planar(planar) = desc.work else { panic!("{desc:?}") };
                assert_eq!((planar.plane as u64, planar.planes), (pixels, 3));
                let first = sample as u64 * u64::from(nest_of(desc).items);
                let (items, cols) = stretch(desc, sample as u64, first, col, pixels);
                let plane = |c: u64| (3 * sample as u64 + c) * pixels;
                let written = (0..3).map(|c| plane(c) + cols.start..plane(c) + cols.end);
                Near { items, written: written.collect(), sample, read: scaled(&cols, 3) }
            };
            let planes = |_: &Near, read: &[u8]| -> Vec<u8> {
                (0..3).flat_map(|c| read.iter().skip(c).step_by(3).copied()).collect()
            };
            let collate = Collate::stack().transform(Transform::new().permute([1, 0]));
            let shape = [pixels as i64, 3];
            gpu.check((DType::U8, &[&shape[..]; 2]), &collate, Family::Planar, near, planes);
        }
    });
}

/// The innermost loops are exchanged; there are 2.4 million of them.
#[test]
fn transposes_beyond_32_bits() {
    on_a_gpu("transposes_beyond_32_bits", |gpu| {
        let (outer, rows, cols) = (2_400_000u64, 32u64, 40u64);
        for at in [0, (1 << 31) / (rows * cols), (1 << 32) / (rows * cols) / 2, outer - 1] {
            let near = |desc: &OutputDesc| {
                let Work::Strided(strided) = desc.work else { panic!("{desc:?}") };
                let items = u64::from(nest_of(desc).items) * u64::from(strided.rounds) / outer;
                let elements = at * rows * cols..(at + 1) * rows * cols;
                Near {
                    items: at * items..(at + 1) * items,
                    written: vec![scaled(&elements, 4)],
                    sample: 0,
                    read: scaled(&elements, 2),
                }
            };
            let transposed = |_: &Near, read: &[u8]| -> Vec<u8> {
                let number = |i: u64| {
                    let at = 2 * ((i % rows) * cols + i / rows) as usize;
                    f32::from(i16::from_ne_bytes([read[at], read[at + 1]]))
                };
                (0..rows * cols).flat_map(|i| number(i).to_ne_bytes()).collect()
            };
            let collate =
                Collate::stack().cast(DType::F32).transform(Transform::new().permute([0, 2, 1]));
            let shape = [outer as i64, rows as i64, cols as i64];
            gpu.check((DType::I16, &[&shape]), &collate, Family::Strided, near, transposed);
        }
    });
}
