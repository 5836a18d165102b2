//! A workload in memory: samples somewhere in one arena, and the batch that they are to become.

use std::sync::Arc;

use windrow::plan::Leaf;
use windrow::{Batch, Collate, DType, Device, Engine, Layout, Plan, Ragged, SampleList, Tensor};

use super::gpu::allocate;
use super::gpu::device::{Bytes, PinnedBytes};
use super::peers::Tables;

/// A sequence of pseudo-random numbers.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_ne_bytes());
        }
        bytes
    }
}

/// The memory of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// The samples are in shuffled order, at multiples of 256.
    Scattered,
    /// The same, 1 to 15 bytes later.
    Misaligned,
    /// One after the other, in the order of the batch: the control.
    Contiguous,
    /// Rows of one table, picked by their numbers in shuffled order.
    Rows,
    /// Scattered, in page-locked memory of the host.
    Pinned,
}

impl Lie {
    pub fn label(self) -> &'static str {
        match self {
            Lie::Scattered => "scattered",
            Lie::Misaligned => "misaligned",
            Lie::Contiguous => "contiguous",
            Lie::Rows => "by number",
            Lie::Pinned => "page-locked",
        }
    }
}

/// The samples of one leaf, and what they become.
pub struct Part {
    /// The leaf's path in the tree; empty if there is but one.
    pub path: &'static str,
    pub dtype: DType,
    pub shapes: Vec<Vec<i64>>,
    pub collate: Collate,
}

impl Part {
    fn size(&self, sample: usize) -> usize {
        self.shapes[sample].iter().product::<i64>() as usize * self.dtype.size()
    }

    fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.shapes.len()).map(|sample| self.size(sample))
    }

    /// The bytes of the batch are those of the samples, one after the other: what copies can do too.
    fn is_copy(&self) -> bool {
        [Collate::stack(), Collate::ragged(Ragged::new()), Collate::concat(0)]
            .contains(&self.collate)
    }
}

fn is_float(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, F64, F8E4M3FN, F8E5M2};
    matches!(dtype, F16 | BF16 | F32 | F64 | F8E4M3FN | F8E5M2)
}

/// Random bits hold more NaNs than samples do, and kernels have a slower path for them.
fn make_finite(bytes: &mut [u8], size: usize) {
    // The highest bit of the exponent, which infinities and NaNs have.
    bytes.chunks_exact_mut(size).for_each(|number| number[size - 1] &= 0xBF);
}

/// A workload before there is device memory for it.
pub struct Workload {
    /// One for each leaf, as are `offsets` and `expected`.
    pub parts: Vec<Part>,
    pub lie: Lie,
    /// The start of each sample in the arena.
    offsets: Vec<Vec<usize>>,
    arena: Vec<u8>,
    /// The result of the host's engine.
    pub expected: Vec<Batch>,
    /// The start of each leaf's output in the memory for outputs, and its size.
    out_at: Vec<usize>,
    out_len: usize,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Workload {
    pub fn new(parts: Vec<Part>, lie: Lie) -> Workload {
        let mut random = Random(0x2545_F491_4F6C_DD1D);
        let (offsets, end) = place(&parts, lie, &mut random);
        let mut arena = random.bytes(end);
        for (part, offsets) in parts.iter().zip(&offsets).filter(|(part, _)| is_float(part.dtype)) {
            for (size, &at) in part.sizes().zip(offsets) {
                make_finite(&mut arena[at..at + size], part.dtype.size());
            }
        }
        let base = arena.as_ptr().addr() as u64;
        let lists = lists(base, Device::Cpu, lie, &parts, &offsets);
        let engine = Engine::host();
        let leaves = parts.iter().zip(&lists);
        let expected = leaves.clone().map(|(part, samples)| {
            engine.assemble(samples, &part.collate).expect("a sound workload")
        });
        let expected: Vec<Batch> = expected.collect();
        let leaves: Vec<Leaf<'_, '_>> = leaves
            .map(|(part, samples)| Leaf {
                samples,
                collate: &part.collate,
                path: part.path,
                out: None,
            })
            .collect();
        let explain = Plan::for_leaves(&leaves).expect("a sound workload").explain();
        let mut out_len = 0;
        let mut out_at = Vec::new();
        for batch in &expected {
            out_at.push(out_len);
            out_len = (out_len + batch.data().nbytes()).next_multiple_of(256);
        }
        Workload {
            lie,
            offsets,
            arena,
            out_at,
            out_len,
            bytes_read: explain.bytes_read,
            bytes_written: explain.bytes_written,
            expected,
            parts,
        }
    }

    /// The bytes read and written; of page-locked samples, the bytes that cross the bus.
    pub fn bytes_moved(&self) -> u64 {
        match self.is_pinned() {
            true => self.source_bytes(),
            false => self.bytes_read + self.bytes_written,
        }
    }

    pub fn is_pinned(&self) -> bool {
        self.lie == Lie::Pinned
    }

    /// Whether copies alone can do it.
    pub fn is_copy(&self) -> bool {
        self.parts.iter().all(Part::is_copy)
    }

    pub fn num_samples(&self) -> usize {
        self.parts.iter().map(|part| part.shapes.len()).sum()
    }

    /// Bytes of all samples.
    pub fn source_bytes(&self) -> u64 {
        self.parts.iter().flat_map(Part::sizes).sum::<usize>() as u64
    }

    /// Bytes of one set of sources and outputs.
    pub fn set_bytes(&self) -> u64 {
        (self.arena.len() + self.out_len) as u64
    }

    /// Memory of its own with the samples in it; and for plain copies, if there are to be any.
    pub fn set(&self, with_copies: bool) -> Result<Set, String> {
        let home = |bytes: &[u8]| match self.is_pinned() {
            true => Home::Host(PinnedBytes::from_bytes(bytes)),
            false => Home::Device(Bytes::from_bytes(bytes)),
        };
        let source = home(&self.arena);
        let at = |device| lists(source.address(), device, self.lie, &self.parts, &self.offsets);
        let samples = at(if self.is_pinned() { Device::Pinned } else { Device::Cuda(0) });
        let others = match self.is_pinned() {
            true => vec![at(Device::Cuda(0)), at(Device::Cpu)],
            false => Vec::new(),
        };
        let out = allocate(self.out_len)?;
        let out_at: Vec<u64> = self.out_at.iter().map(|&at| out.address + at as u64).collect();
        let mut copied = 16;
        if with_copies {
            let part = if self.is_pinned() { 1 } else { 2 };
            copied = ((self.bytes_moved() / part) as usize).next_multiple_of(16);
        }
        let mut noise = Vec::with_capacity(copied);
        while noise.len() < copied {
            noise.extend_from_slice(&self.arena[..self.arena.len().min(copied - noise.len())]);
        }
        let mut set = Set {
            samples,
            others,
            copy_from: home(&noise),
            copy_to: allocate(copied)?,
            from: Vec::new(),
            to: Vec::new(),
            sizes: Vec::new(),
            tables: None,
            source,
            out,
            out_at,
        };
        if self.is_copy() && with_copies {
            for (leaf, part) in self.parts.iter().enumerate() {
                let mut end = set.out_at[leaf];
                for (sample, size) in part.sizes().enumerate() {
                    set.from.push(set.source.address() + self.offsets[leaf][sample] as u64);
                    set.to.push(end);
                    set.sizes.push(size as u64);
                    end += size as u64;
                }
            }
            let bytes = |words: &[u64]| {
                Bytes::from_bytes(
                    &words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>(),
                )
            };
            set.tables = Some([bytes(&set.from), bytes(&set.to), bytes(&set.sizes)]);
        }
        Ok(set)
    }
}

/// The start of each sample of each leaf, and the end of the last.
fn place(parts: &[Part], lie: Lie, random: &mut Random) -> (Vec<Vec<usize>>, usize) {
    let all = |(leaf, part): (usize, &Part)| {
        let samples = 0..part.shapes.len();
        samples.map(move |sample| (leaf, sample))
    };
    let mut order: Vec<(usize, usize)> = parts.iter().enumerate().flat_map(all).collect();
    if lie != Lie::Contiguous {
        random.shuffle(&mut order);
    }
    let mut offsets: Vec<Vec<usize>> =
        parts.iter().map(|part| vec![0; part.shapes.len()]).collect();
    let mut end = 0;
    for (leaf, sample) in order {
        let mut begin = end;
        if lie == Lie::Misaligned {
            begin += 1 + random.below(15) as usize;
        }
        if lie == Lie::Contiguous && sample == 0 {
            begin = begin.next_multiple_of(256);
        }
        offsets[leaf][sample] = begin;
        end = begin + parts[leaf].size(sample);
        if !matches!(lie, Lie::Contiguous | Lie::Rows) {
            // A gap, so that no two samples are neighbours.
            end = (end + 1).next_multiple_of(256);
        }
    }
    (offsets, end)
}

fn lists(
    base: u64,
    device: Device,
    lie: Lie,
    parts: &[Part],
    offsets: &[Vec<usize>],
) -> Vec<SampleList<'static>> {
    let list = |(part, offsets): (&Part, &Vec<usize>)| {
        if lie == Lie::Rows {
            return rows(base, device, part, offsets);
        }
        let mut list = SampleList::new();
        list.reserve(part.shapes.len()).expect("memory");
        for (shape, offset) in part.shapes.iter().zip(offsets) {
            let data = (base as *const u8).wrapping_add(*offset);
            // SAFETY: inside an arena that outlives the list: that of the workload or of the set.
            unsafe { list.push(data, part.dtype, device, shape, None) }.expect("a sound shape");
        }
        list
    };
    parts.iter().zip(offsets).map(list).collect()
}

/// Samples of one shape, one behind the other in the arena, as rows of a table.
fn rows(base: u64, device: Device, part: &Part, offsets: &[usize]) -> SampleList<'static> {
    let shape: Vec<i64> =
        [offsets.len() as i64].into_iter().chain(part.shapes[0].iter().copied()).collect();
    let layout = Layout::try_new(part.dtype, &shape, None).expect("a sound shape");
    // SAFETY: the arena, which outlives the list: that of the workload or of the set.
    unsafe {
        let (owner, data) = (Arc::new(()), base as *mut u8);
        let table = Tensor::new_unchecked(owner, data, part.dtype, device, layout, true);
        let rows = SampleList::rows_from_raw_parts(&table).expect("a table");
        let row_bytes = part.size(0).max(1);
        rows.take(offsets.iter().map(|&at| (at / row_bytes) as i64)).expect("rows of the table")
    }
}

/// Memory that samples are in.
pub enum Home {
    Device(Bytes),
    Host(PinnedBytes),
}

impl Home {
    pub fn address(&self) -> u64 {
        match self {
            Home::Device(bytes) => bytes.address,
            Home::Host(bytes) => bytes.address as u64,
        }
    }
}

/// The memory of one run.
pub struct Set {
    /// One list for each leaf.
    pub samples: Vec<SampleList<'static>>,
    /// Page-locked samples under other names: as memory of the device, which the kernel reads in
    /// place, and as pageable memory, which goes through the staging ring.
    pub others: Vec<Vec<SampleList<'static>>>,
    /// The outputs, and the address of each leaf's.
    pub out: Bytes,
    pub out_at: Vec<u64>,
    /// Memory of as many bytes as the batch reads and writes, for plain copies.
    pub copy_from: Home,
    pub copy_to: Bytes,
    pub from: Vec<u64>,
    pub to: Vec<u64>,
    pub sizes: Vec<u64>,
    tables: Option<[Bytes; 3]>,
    source: Home,
}

impl Set {
    /// The same three lists on the device.
    pub fn tables(&self) -> Option<Tables> {
        let [from, to, bytes] = self.tables.as_ref()?;
        let count = self.sizes.len() as u32;
        Some(Tables { from: from.address, to: to.address, bytes: bytes.address, count })
    }
}
