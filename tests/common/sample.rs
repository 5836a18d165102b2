//! [`Sample`]: painted elements anywhere in a buffer, with any strides.

use std::ops::Range;

use windrow::{DType, Device, Layout, SampleView};

use super::convert::{edges, Bits};
use super::{coordinates, Random};

/// The bytes of the gaps between elements.
const GAP: u8 = 0x5A;

/// The bytes of the elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paint {
    /// Byte `i` of all is `(seed + i) % 251`: the largest prime below 256, so that blocks of any
    /// power of two that change places show.
    Bytes,
    /// Edges of the dtype and pseudo-random bits.
    Rich,
}

/// One sample, with the memory it is in.
#[derive(Clone, Debug)]
pub struct Sample {
    buffer: Vec<u8>,
    /// Position of the first element in the buffer.
    first: usize,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
}

impl Sample {
    /// Bytes painted, row-major without gaps, at a multiple of 64.
    pub fn new(dtype: DType, shape: &[i64], seed: u64) -> Sample {
        Sample::laid_out(dtype, shape, &compact(shape), 0, Paint::Bytes, seed)
    }

    /// A sample like that of [`Sample::new`], with values that are worth a cast.
    pub fn rich(dtype: DType, shape: &[i64], seed: u64) -> Sample {
        Sample::laid_out(dtype, shape, &compact(shape), 0, Paint::Rich, seed)
    }

    /// A sample of many equal bytes: painting takes its time under Miri.
    pub fn flat(length: usize, byte: u8) -> Sample {
        let (shape, strides) = (vec![length as i64], vec![1]);
        Sample { buffer: vec![byte; length + 1], first: 1, dtype: DType::U8, shape, strides }
    }

    /// Row-major without gaps, `misalign` bytes after a multiple of 64.
    pub fn misaligned(dtype: DType, shape: &[i64], misalign: usize, seed: u64) -> Sample {
        Sample::laid_out(dtype, shape, &compact(shape), misalign, Paint::Rich, seed)
    }

    /// Any strides, in elements.
    pub fn strided(dtype: DType, shape: &[i64], strides: &[i64], seed: u64) -> Sample {
        Sample::laid_out(dtype, shape, strides, 0, Paint::Rich, seed)
    }

    /// Everything there is to choose; the lowest element is `misalign` bytes after a multiple of 64.
    pub fn laid_out(
        dtype: DType,
        shape: &[i64],
        strides: &[i64],
        misalign: usize,
        paint: Paint,
        seed: u64,
    ) -> Sample {
        let size = dtype.size();
        let [below, above] = reach(shape, strides);
        let span = (below + above + 1) as usize * size;
        let buffer = vec![GAP; 64 + misalign + span + 64];
        let aligned = buffer.as_ptr().addr().next_multiple_of(64) - buffer.as_ptr().addr();
        let first = aligned + misalign + below as usize * size;
        let mut sample =
            Sample { buffer, first, dtype, shape: shape.to_vec(), strides: strides.to_vec() };
        sample.paint(paint, seed);
        sample
    }

    fn paint(&mut self, paint: Paint, seed: u64) {
        let size = self.dtype.size();
        let edges = if paint == Paint::Rich && self.dtype.is_arithmetic() {
            edges(self.dtype)
        } else {
            Vec::new()
        };
        let mut random = Random::new(seed + 77);
        let mut at = seed;
        let shape = self.shape.clone();
        coordinates(&shape, |coords| {
            let mut bytes = [0u8; 16];
            if edges.is_empty() {
                for byte in &mut bytes[..size] {
                    *byte = (at % 251) as u8;
                    at += 1;
                }
            } else if self.dtype == DType::Bool {
                bytes[0] = (random.next() & 1) as u8;
            } else if random.below(3) > 0 {
                let pick = random.below(edges.len() as u64) as usize;
                bytes = edges[pick].to_le_bytes();
            } else {
                bytes[..8].copy_from_slice(&random.next().to_le_bytes());
                if cfg!(miri) {
                    // No exponent of all ones: Miri picks the payload of a computed NaN at random.
                    bytes[size - 1] &= 0x3f;
                }
            }
            let position = self.position(coords);
            self.buffer[position..position + size].copy_from_slice(&bytes[..size]);
        });
    }

    fn position(&self, coords: &[i64]) -> usize {
        let elements: i64 = coords.iter().zip(&self.strides).map(|(c, stride)| c * stride).sum();
        self.first.wrapping_add_signed(elements as isize * self.dtype.size() as isize)
    }

    /// Gives an element other bits.
    pub fn put(&mut self, coords: &[i64], bits: Bits) {
        let (position, size) = (self.position(coords), self.dtype.size());
        self.buffer[position..position + size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }

    /// The bits of one element.
    pub fn element(&self, coords: &[i64]) -> Bits {
        let size = self.dtype.size();
        let position = self.position(coords);
        let mut bytes = [0; 16];
        bytes[..size].copy_from_slice(&self.buffer[position..position + size]);
        Bits::from_le_bytes(bytes)
    }

    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// The bytes of its memory that are its elements', in order; neighbours joined.
    pub fn element_ranges(&self) -> Vec<Range<usize>> {
        let size = self.dtype.size();
        let mut starts = Vec::new();
        coordinates(&self.shape, |coords| starts.push(self.position(coords)));
        starts.sort_unstable();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for start in starts {
            match ranges.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(start + size),
                _ => ranges.push(start..start + size),
            }
        }
        ranges
    }

    /// The bytes of the memory it is in.
    pub fn memory(&self) -> &[u8] {
        &self.buffer
    }

    /// Positions from the lowest of its elements to the end of the highest, and those before that give a copy at a multiple of
    /// 64 the alignment that the sample has here.
    fn extent(&self) -> Range<usize> {
        let [below, above] = reach(&self.shape, &self.strides).map(|reach| reach as usize);
        let size = self.dtype.size();
        let low = self.first - below * size;
        let end = if self.numel() == 0 { low } else { self.first + (above + 1) * size };
        low - low.min((self.buffer.as_ptr().addr() + low) % 64)..end
    }

    /// The bytes that a copy of the sample has to hold.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.extent()]
    }

    /// The sample as the library takes it, in a copy of [`Sample::bytes`] at an address of another device.
    ///
    /// # Safety
    /// As [`SampleView::from_raw_parts`].
    pub unsafe fn view_at(&self, copy: u64, device: Device) -> SampleView<'static> {
        let layout =
            Layout::try_new(self.dtype, &self.shape, Some(&self.strides)).expect("a sound layout");
        let data = (copy as *const u8).wrapping_add(self.first - self.extent().start);
        // SAFETY: the caller's promise.
        unsafe { SampleView::from_raw_parts(data, self.dtype, device, layout) }
    }

    /// The sample as the library takes it.
    pub fn view(&self) -> SampleView<'_> {
        let layout =
            Layout::try_new(self.dtype, &self.shape, Some(&self.strides)).expect("a sound layout");
        // SAFETY: `laid_out` made the buffer as large as the shape and the strides reach, from `first`
        // on, and the view borrows it.
        unsafe {
            let data = self.buffer.as_ptr().add(self.first);
            SampleView::from_raw_parts(data, self.dtype, Device::Cpu, layout)
        }
    }
}

/// How many elements are below the first one's address, and how many above.
fn reach(shape: &[i64], strides: &[i64]) -> [i64; 2] {
    let steps = || shape.iter().zip(strides).map(|(extent, stride)| (extent - 1).max(0) * stride);
    [steps().map(|step| (-step).max(0)).sum(), steps().map(|step| step.max(0)).sum()]
}

/// All samples as the library takes them.
pub fn views(samples: &[Sample]) -> Vec<SampleView<'_>> {
    samples.iter().map(Sample::view).collect()
}

/// Row-major strides without gaps.
pub fn compact(shape: &[i64]) -> Vec<i64> {
    let order: Vec<usize> = (0..shape.len()).collect();
    ordered(shape, &order, 0)
}

/// Strides of elements that are in another order of dims, outermost first, with `gap` elements
/// between the steps of every dim.
pub fn ordered(shape: &[i64], order: &[usize], gap: i64) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    let mut step = 1 + gap;
    for &dim in order.iter().rev() {
        strides[dim] = step;
        step = step * shape[dim].max(1) + gap;
    }
    strides
}
