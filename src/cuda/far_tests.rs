//! Samples of more than 2^32 bytes and 2^31 elements: tables as the engine makes them, kernels as the driver runs them. Only
//! the memory around a few items exists; the addresses of samples and outputs are computed back from there.

#![allow(unsafe_code)] // Samples at made-up addresses.

use std::ops::Range;

use super::driver::tests::context;
use super::driver::{image, Current, Kernel, Pinned, StreamRef};
use super::params::{Family, Field, Header};
use super::policy::Policy;
use super::table::{parts, Table};
use crate::collate::{Collate, Transform};
use crate::plan::Plan;
use crate::samples::{SampleList, SampleView};
use crate::tensor::{DType, Device, Layout};

const HERE: Device = Device::Cuda(0);
/// What outputs hold before the launch.
const POISON: u8 = 0xA5;
/// Bytes of memory on both sides of what items read and write.
const MARGIN: u64 = 4096;

/// Items of a batch of one field, what they write, and what they read for it.
struct Near {
    items: Range<u64>,
    /// Bytes of the output.
    written: Range<u64>,
    /// The sample that is read, and bytes of it.
    sample: usize,
    read: Range<u64>,
}

struct Gpu<'c> {
    current: &'c Current<'c>,
    stream: StreamRef<'c>,
    kernel: Kernel,
}

impl Gpu<'_> {
    /// Runs the items of a batch of these shapes that `near` picks by its field. `expected` says what becomes of the bytes
    /// that are read, of which it is given the first one's position.
    fn check(
        &self,
        (dtype, shapes): (DType, &[&[i64]]),
        collate: &Collate,
        family: Family,
        near: impl Fn(&Field) -> Near,
        expected: impl Fn(&Near, &[u8]) -> Vec<u8>,
    ) {
        let policy = Policy::of((9, 0)).unwrap();
        let table = |data: &[u64], out: u64| {
            let views = shapes.iter().zip(data).map(|(shape, &data)| {
                let layout = Layout::compact(dtype, shape).unwrap();
                // SAFETY: a plan does not read its samples; the items below read what exists of them.
                unsafe { SampleView::from_raw_parts(data as *const u8, dtype, HERE, layout) }
            });
            let list: SampleList<'_> = views.collect();
            let plan = Plan::new(&list, &collate.clone().device(HERE)).unwrap();
            let outputs = plan.outputs.iter().take(1).map(|output| (output, out));
            Table::new(&parts(&plan, outputs), &[], 132, &policy).unwrap()
        };
        // Alignments as of samples and outputs of the driver's; those of the memory below are the same.
        let made_up: Vec<u64> = (1..).map(|i| i << 40).take(shapes.len()).collect();
        let field = table(&made_up, 1 << 50).fields().next().unwrap();
        assert_eq!(field.family, family as u8);
        let near = near(&field);
        let block = |range: &Range<u64>| {
            let bytes = range.end - range.start + 2 * MARGIN;
            let memory = self.current.pinned(bytes as usize + 256).unwrap();
            // The address of byte 0 of all is a multiple of 256, as that of every allocation.
            let first = memory.as_ptr() as u64;
            let at = (first + MARGIN).next_multiple_of(256) + range.start % 256;
            (memory, at)
        };
        let (source, read_at) = block(&near.read);
        let (output, written_at) = block(&near.written);
        let fill = |memory: &Pinned, byte: &dyn Fn(usize) -> u8| {
            for i in 0..memory.len() {
                // SAFETY: memory of that size, which no work uses.
                unsafe { memory.as_ptr().add(i).write(byte(i)) };
            }
        };
        fill(&source, &|i| (i * 7 + i / 251) as u8);
        fill(&output, &|_| POISON);
        let mut data = made_up;
        data[near.sample] = read_at.wrapping_sub(near.read.start);
        let table = table(&data, written_at.wrapping_sub(near.written.start));
        // The launch has these items alone: their numbers begin at the first one's.
        let mut words = table.parameters(None, &policy);
        let count = (near.items.end - near.items.start) as u32;
        words[1] = words[1] >> 32 << 32 | u64::from(count);
        let first_item = size_of::<Header>() / 8 + 1;
        words[first_item] =
            words[first_item] >> 32 << 32 | u64::from((near.items.start as u32).wrapping_neg());
        let grid = count.div_ceil(policy.threads / 32);
        let values = [words.as_ptr().cast()];
        // SAFETY: the kernel has one parameter, of this size; its items read and write what exists.
        unsafe {
            self.stream.launch(&self.kernel, [grid, 1, 1], [policy.threads, 1, 1], 0, &values)
        }
        .unwrap();
        self.stream.synchronize().unwrap();

        // SAFETY: nothing uses the memory any more.
        let bytes = |memory: &Pinned, at: u64, range: &Range<u64>| unsafe {
            let all = std::slice::from_raw_parts(memory.as_ptr(), memory.len());
            let begin = (at - memory.as_ptr() as u64) as usize;
            (all, begin..begin + (range.end - range.start) as usize)
        };
        let (all, own) = bytes(&source, read_at, &near.read);
        let expected = expected(&near, &all[own]);
        let (all, own) = bytes(&output, written_at, &near.written);
        assert!(all[own.clone()] == expected, "{family:?}: wrong bytes");
        let outside = all[..own.start].iter().chain(&all[own.end..]);
        assert!(outside.clone().all(|&byte| byte == POISON), "{family:?}: bytes beside its own");
    }
}

/// The items that share the stretch in which column `col` is, of row `row` of sample `sample`, and their columns.
fn stretch(
    field: &Field,
    sample: u64,
    first: u64,
    col: u64,
    cols: u64,
) -> (Range<u64>, Range<u64>) {
    let (piece, size) = (u64::from(field.piece), u64::from(field.to_size));
    let phase = sample * field.step as u64 % 16 / size;
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

#[test]
fn samples_beyond_32_bits() {
    let Some(context) = context() else { return };
    let current = context.enter().unwrap();
    let stream = current.stream(0).unwrap();
    let kernel = current.load(&image().unwrap()).unwrap().kernel("windrow_assemble_small").unwrap();
    let gpu = Gpu { current: &current, stream: stream.on(&current), kernel };
    let stack = Collate::stack();
    let moved = |_: &Near, read: &[u8]| read.to_vec();

    // Near the end of each kind of number of 32 bits, and of a sample.
    let places = |end: u64| [(1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, end - 1];

    // Bytes that are moved, at addresses that differ in their last bits.
    let cols = 5_000_000_005u64;
    for (sample, col) in [0, 1].into_iter().flat_map(|sample| places(cols).map(|col| (sample, col)))
    {
        let near = |field: &Field| {
            let first = sample as u64 * u64::from(field.items);
            let (items, read) = stretch(field, sample as u64, first, col, cols);
            let start = sample as u64 * cols;
            Near { items, written: start + read.start..start + read.end, sample, read }
        };
        let shape = [cols as i64];
        gpu.check((DType::U8, &[&shape[..]; 2]), &stack, Family::Line, near, moved);
    }

    // Ragged rows: the offsets are beyond 32 bits, no sample is.
    let lengths = [3_000_000_001u64, 3_000_000_000, 7];
    for sample in 0..3 {
        let offset: u64 = lengths[..sample].iter().sum();
        let near = |field: &Field| {
            let slack = 15 + u64::from(field.piece);
            let pieces = |length: &u64| (length + slack - 1) / u64::from(field.piece);
            let first: u64 = lengths[..sample].iter().map(pieces).sum();
            let (piece, cols) = (u64::from(field.piece), lengths[sample]);
            let phase = offset % 16;
            let last = (cols - 1 + phase) / (8 * piece);
            let begin = (last * 8 * piece).saturating_sub(phase);
            let items = first + 8 * last..first + pieces(&cols);
            Near { items, written: offset + begin..offset + cols, sample, read: begin..cols }
        };
        let shapes = lengths.map(|length| [length as i64]);
        let shapes: Vec<&[i64]> = shapes.iter().map(|shape| &shape[..]).collect();
        gpu.check((DType::U8, &shapes), &Collate::ragged(), Family::Line, near, moved);
    }

    // Elements that are cast.
    let cols = 3_000_000_000u64;
    for col in [1 << 30, (1 << 31) - 1, 1 << 31, cols - 1] {
        let near = |field: &Field| {
            let (items, cols) = stretch(field, 0, 0, col, cols);
            Near { items, written: scaled(&cols, 8), sample: 0, read: scaled(&cols, 4) }
        };
        let cast = |_: &Near, read: &[u8]| -> Vec<u8> {
            let numbers =
                read.chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap()));
            numbers.flat_map(|number| i64::from(number).to_ne_bytes()).collect()
        };
        let collate = stack.clone().cast(DType::I64);
        gpu.check((DType::I32, &[&[cols as i64]]), &collate, Family::Line, near, cast);
    }

    // Whole pages, in samples of 3 GiB.
    let page = 2048u64;
    let pages = (3u64 << 30) / page;
    for (sample, own) in [(0, (1 << 31) / page), (1, (1 << 30) / page), (2, pages - 3)] {
        let near = |_: &Field| {
            let read = own * page..(own + 3) * page;
            let first = sample as u64 * pages + own;
            Near {
                items: first..first + 3,
                written: scaled(&(first..first + 3), page),
                sample,
                read,
            }
        };
        let shape = [3i64 << 30];
        gpu.check((DType::U8, &[&shape[..]; 3]), &stack, Family::Pages, near, moved);
    }

    // The innermost loops are exchanged; there are 2.4 million of them.
    let (outer, rows, cols) = (2_400_000u64, 32u64, 40u64);
    for at in [0, (1 << 31) / (rows * cols), (1 << 32) / (rows * cols) / 2, outer - 1] {
        let near = |field: &Field| {
            let items = u64::from(field.items) * u64::from(field.rounds) / outer;
            let elements = at * rows * cols..(at + 1) * rows * cols;
            Near {
                items: at * items..(at + 1) * items,
                written: scaled(&elements, 4),
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
        let collate = stack.clone().cast(DType::F32).transform(Transform::new().permute([0, 2, 1]));
        let shape = [outer as i64, rows as i64, cols as i64];
        gpu.check((DType::I16, &[&shape]), &collate, Family::Box, near, transposed);
    }
}
