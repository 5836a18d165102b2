//! [`Piece`]: tensors in one memory, and what a loop of single elements makes of pairs of them.

use std::collections::BTreeSet;

use windrow::plan::Target;
use windrow::{DType, Device, Engine, Error, Layout, SampleView};

use super::convert::cast;
use super::{coordinates, Random};

/// A tensor in a memory that others are in too.
#[derive(Clone, Debug)]
pub struct Piece {
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub first: usize,
}

impl Piece {
    pub fn compact(dtype: DType, shape: &[i64], first: usize) -> Piece {
        let layout = Layout::compact(dtype, shape).unwrap();
        Piece { dtype, shape: shape.to_vec(), strides: layout.strides().to_vec(), first }
    }

    /// A piece of a random layout, somewhere in the memory. `repeats`: elements may be read repeatedly.
    pub fn random(
        random: &mut Random,
        dtype: DType,
        shape: &[i64],
        repeats: bool,
        len: usize,
    ) -> Piece {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        let (mut strides, mut step) = (vec![0; shape.len()], 1);
        for &dim in &order {
            step *= [1, 1, 1, 2][random.below(4) as usize];
            strides[dim] = match random.below(8) {
                0 if repeats => 0,
                1 => -step,
                _ => step,
            };
            step *= shape[dim].max(1);
        }
        let size = dtype.size() as i64;
        let reach = |sign: i64| -> i64 {
            let each = shape.iter().zip(&strides).map(|(extent, stride)| (extent - 1) * stride);
            each.map(|reach| (sign * reach).max(0)).sum::<i64>() * size
        };
        let (below, above) = match shape.contains(&0) {
            true => (0, 0),
            false => (reach(-1), reach(1)),
        };
        let room = len as i64 - below - above - size;
        assert!(room > 0, "{shape:?} {strides:?}");
        let first = (below + random.below(room as u64) as i64) as usize;
        Piece { dtype, shape: shape.to_vec(), strides, first }
    }

    /// The first byte of each element, row-major.
    pub fn elements(&self) -> Vec<usize> {
        let mut all = Vec::new();
        coordinates(&self.shape, |at| {
            let steps: i64 = at.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
            all.push((self.first as i64 + steps * self.dtype.size() as i64) as usize);
        });
        all
    }

    pub fn bytes(&self) -> BTreeSet<usize> {
        let size = self.dtype.size();
        self.elements().into_iter().flat_map(|at| at..at + size).collect()
    }

    pub fn layout(&self) -> Layout {
        Layout::try_new(self.dtype, &self.shape, Some(&self.strides)).unwrap()
    }

    pub fn is(&self, other: &Piece) -> bool {
        self.dtype == other.dtype && self.elements() == other.elements()
    }

    /// # Safety
    /// It is within the memory, which lives on and is written to by the engine alone.
    pub unsafe fn target(&self, memory: *mut u8) -> Target<'static> {
        // SAFETY: the caller's promise.
        unsafe { self.target_on(memory, Device::Cpu) }
    }

    /// # Safety
    /// As of [`Piece::target`], of memory of this device.
    pub unsafe fn target_on(&self, memory: *mut u8, device: Device) -> Target<'static> {
        // SAFETY: the caller's promise.
        unsafe {
            let data = memory.wrapping_add(self.first);
            Target::from_raw_parts(data, self.dtype, device, self.layout())
        }
    }

    /// # Safety
    /// As of [`Piece::target`].
    pub unsafe fn view(&self, memory: *mut u8) -> SampleView<'static> {
        // SAFETY: the caller's promise.
        unsafe { self.view_on(memory, Device::Cpu) }
    }

    /// # Safety
    /// As of [`Piece::target`], of memory of this device.
    pub unsafe fn view_on(&self, memory: *mut u8, device: Device) -> SampleView<'static> {
        // SAFETY: the caller's promise.
        unsafe {
            let data = memory.wrapping_add(self.first);
            SampleView::from_raw_parts(data, self.dtype, device, self.layout())
        }
    }
}

pub fn random_bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// The memory after a loop over single elements.
pub fn moved(memory: &[u8], pairs: &[(Piece, Piece)]) -> Vec<u8> {
    let mut out = memory.to_vec();
    for (dst, src) in pairs {
        for (to, from) in dst.elements().into_iter().zip(src.elements()) {
            let mut bits = [0; 16];
            bits[..src.dtype.size()].copy_from_slice(&memory[from..from + src.dtype.size()]);
            if src.dtype != dst.dtype {
                bits = cast(src.dtype, dst.dtype, u128::from_le_bytes(bits)).to_le_bytes();
            }
            out[to..to + dst.dtype.size()].copy_from_slice(&bits[..dst.dtype.size()]);
        }
    }
    out
}

/// Whether a destination shares bytes with itself, with another one, or with a source but its own identical one.
pub fn shares(pairs: &[(Piece, Piece)]) -> (bool, bool) {
    let written: Vec<_> = pairs.iter().map(|(dst, _)| dst.bytes()).collect();
    let read: Vec<_> = pairs.iter().map(|(_, src)| src.bytes()).collect();
    let itself = pairs.iter().zip(&written).any(|((dst, _), bytes_of_dst)| {
        bytes_of_dst.len() != dst.elements().len() * dst.dtype.size()
    });
    let others = (0..pairs.len()).any(|i| {
        (0..i).any(|j| !written[i].is_disjoint(&written[j]))
            || (0..pairs.len()).any(|j| {
                let is_own = i == j && pairs[i].0.is(&pairs[i].1);
                !is_own && !written[i].is_disjoint(&read[j])
            })
    });
    (itself, others)
}

/// Runs pairs in a memory: the result of the call and the memory then.
pub fn run(
    engine: &Engine,
    memory: &[u8],
    pairs: &[(Piece, Piece)],
) -> (Result<(), Error>, Vec<u8>) {
    let mut memory = memory.to_vec();
    let base = memory.as_mut_ptr();
    // SAFETY: within the memory, which nothing else touches until the call is over.
    let (mut dsts, srcs): (Vec<_>, Vec<_>) =
        pairs.iter().map(|(dst, src)| unsafe { (dst.target(base), src.view(base)) }).unzip();
    let result = engine.copy_many(&mut dsts, &srcs);
    (result, memory)
}
