//! The workloads: samples somewhere in one arena, and the batch that they shall become.

use windrow::{Batch, Collate, DType, Device, Engine, Mask, Pad, Plan, SampleList, Transform};

use super::gpu::allocate;
use super::gpu::device::{Bytes, PinnedBytes};
use super::peers::Tables;

/// A sequence of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Where samples lie.
#[derive(Clone, Copy, PartialEq)]
pub enum Lie {
    /// In shuffled order, at multiples of 256.
    Scattered,
    /// The same, 1 to 15 bytes later.
    Misaligned,
    /// One after the other, in the order of the batch.
    Contiguous,
}

/// A workload before there is memory for it.
pub struct Workload {
    pub name: String,
    dtype: DType,
    shapes: Vec<Vec<i64>>,
    offsets: Vec<usize>,
    collate: Collate,
    /// The samples lie in page-locked memory of the host, not on the device.
    pub is_pinned: bool,
    /// The samples' bytes as they are, one after the other: what copies can do too.
    pub is_copy: bool,
    arena: Vec<u8>,
    /// What the host's engine makes of it.
    expected: Batch,
    pub bytes_moved: u64,
}

impl Workload {
    fn new(
        name: &str,
        dtype: DType,
        shapes: Vec<Vec<i64>>,
        lie: Lie,
        collate: Collate,
    ) -> Workload {
        let mut random = Random(0x2545_F491_4F6C_DD1D);
        let size = |shape: &[i64]| shape.iter().product::<i64>() as usize * dtype.size();
        let mut order: Vec<usize> = (0..shapes.len()).collect();
        if lie != Lie::Contiguous {
            random.shuffle(&mut order);
        }
        let (mut offsets, mut end) = (vec![0; shapes.len()], 0);
        for sample in order {
            offsets[sample] = end;
            if lie == Lie::Misaligned {
                offsets[sample] += 1 + random.below(15) as usize;
            }
            end = offsets[sample] + size(&shapes[sample]);
            if lie != Lie::Contiguous {
                // A gap, so that no two samples are neighbours.
                end = (end + 1).next_multiple_of(256);
            }
        }
        let words = (0..end.div_ceil(8)).flat_map(|_| random.next().to_ne_bytes());
        let arena: Vec<u8> = words.collect();
        let is_copy = collate == Collate::stack();
        let base = arena.as_ptr().addr();
        let list = list(base as u64, Device::Cpu, dtype, &shapes, &offsets);
        let expected = Engine::host().assemble(&list, &collate).expect("a sound workload");
        let explain = Plan::new(&list, &collate).expect("a sound workload").explain();
        let bytes_moved = explain.bytes_read + explain.bytes_written;
        drop(list);
        let name = name.to_owned();
        Workload {
            name,
            dtype,
            shapes,
            offsets,
            collate,
            is_pinned: false,
            is_copy,
            arena,
            expected,
            bytes_moved,
        }
    }

    /// The same from page-locked memory. What crosses the bus counts.
    fn pinned(mut self) -> Workload {
        self.is_pinned = true;
        self.bytes_moved = self.sizes().iter().sum();
        self
    }

    pub fn num_samples(&self) -> usize {
        self.shapes.len()
    }

    pub fn expected(&self) -> &Batch {
        &self.expected
    }

    pub fn collate(&self) -> &Collate {
        &self.collate
    }

    /// Bytes of one set of sources and outputs.
    pub fn set_bytes(&self) -> u64 {
        (self.arena.len() + self.expected.data().nbytes()) as u64
    }

    /// Sizes of the samples in bytes.
    fn sizes(&self) -> Vec<u64> {
        let size =
            |shape: &Vec<i64>| (shape.iter().product::<i64>() as usize * self.dtype.size()) as u64;
        self.shapes.iter().map(size).collect()
    }

    /// Memory of its own with the samples in it.
    pub fn set(&self) -> Result<Set, String> {
        let home = |bytes: &[u8]| match self.is_pinned {
            true => Home::Host(PinnedBytes::of(bytes)),
            false => Home::Device(Bytes::of(bytes)),
        };
        let source = home(&self.arena);
        let out = allocate(self.expected.data().nbytes())?;
        let half = match self.is_pinned {
            true => self.bytes_moved,
            false => self.bytes_moved / 2,
        };
        let half = (half as usize).next_multiple_of(16);
        let noise: Vec<u8> = self.arena.iter().copied().cycle().take(half).collect();
        let at = |device| list(source.address(), device, self.dtype, &self.shapes, &self.offsets);
        let samples = at(if self.is_pinned { Device::Pinned } else { Device::Cuda(0) });
        let others = match self.is_pinned {
            true => vec![at(Device::Cuda(0)), at(Device::Cpu)],
            false => Vec::new(),
        };
        let mut set = Set {
            samples,
            others,
            out,
            copy_from: home(&noise),
            copy_to: allocate(half)?,
            from: Vec::new(),
            to: Vec::new(),
            sizes: Vec::new(),
            tables: None,
            source,
        };
        if self.is_copy {
            set.sizes = self.sizes();
            set.from = self.offsets.iter().map(|&at| set.source.address() + at as u64).collect();
            let mut end = set.out.address;
            for size in &set.sizes {
                set.to.push(end);
                end += size;
            }
            let bytes = |words: &[u64]| {
                Bytes::of(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>())
            };
            set.tables = Some([bytes(&set.from), bytes(&set.to), bytes(&set.sizes)]);
        }
        Ok(set)
    }
}

fn list(
    base: u64,
    device: Device,
    dtype: DType,
    shapes: &[Vec<i64>],
    offsets: &[usize],
) -> SampleList<'static> {
    let mut list = SampleList::new();
    list.reserve(shapes.len());
    for (shape, offset) in shapes.iter().zip(offsets) {
        let data = (base as *const u8).wrapping_add(*offset);
        // SAFETY: inside an arena that outlives the list: that of the workload or of the set.
        unsafe { list.push(data, dtype, device, shape, None) }.expect("a sound shape");
    }
    list
}

/// Memory that samples lie in.
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
    pub samples: SampleList<'static>,
    /// Page-locked samples under other names: as memory of the device, which the kernel reads in
    /// place, and as pageable memory, which goes through the staging ring.
    pub others: Vec<SampleList<'static>>,
    pub out: Bytes,
    /// As many bytes as the batch reads and writes, for plain copies.
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

fn bytes(count: usize, length: i64) -> Vec<Vec<i64>> {
    vec![vec![length]; count]
}

fn normalised() -> Transform {
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    Transform::new().scale(1.0 / 255.0).mean(mean).std(std).channel_dim(2).permute([2, 0, 1])
}

/// A maker of one, so that only one is in memory at a time.
pub type Make = Box<dyn Fn() -> Workload>;

/// All of them; `scale` divides the numbers of samples.
pub fn all(scale: usize) -> Vec<Make> {
    let some = move |count: usize| (count / scale).max(8);
    let mut all: Vec<Make> = Vec::new();
    for (length, label) in [
        (512, "512 B"),
        (4 << 10, "4 KiB"),
        (32 << 10, "32 KiB"),
        (150_528, "150 KiB"),
        (1 << 20, "1 MiB"),
    ] {
        for (lie, how) in [
            (Lie::Scattered, "scattered"),
            (Lie::Misaligned, "misaligned"),
            (Lie::Contiguous, "contiguous"),
        ] {
            let count = some((64_usize << 20).div_ceil(length));
            all.push(Box::new(move || {
                let shapes = bytes(count, length as i64);
                let name = format!("64 MiB of {label}, {how}");
                Workload::new(&name, DType::U8, shapes, lie, Collate::stack())
            }));
        }
    }
    all.push(Box::new(|| {
        let shapes = bytes(256, 3 << 10);
        Workload::new("small: 256 x 3 KiB", DType::U8, shapes, Lie::Scattered, Collate::stack())
    }));
    all.push(Box::new(move || {
        let collate = Collate::stack().cast(DType::F16).transform(normalised());
        let shapes = vec![vec![224, 224, 3]; some(256)];
        let name = "W1: 256 images 224 x 224 x 3, u8 HWC to f16 CHW, normalised";
        Workload::new(name, DType::U8, shapes, Lie::Scattered, collate)
    }));
    all.push(Box::new(move || {
        let mut random = Random(7);
        let shapes = (0..some(4096)).map(|_| vec![16 + random.below(2033) as i64]).collect();
        let collate = Collate::pad(Pad::new().size(2048).mask(Mask::Real)).cast(DType::I64);
        let name = "W2: 4096 rows of 16..2048, i32 padded to i64, mask, lengths";
        Workload::new(name, DType::I32, shapes, Lie::Scattered, collate)
    }));
    all.push(Box::new(move || {
        let shapes = vec![vec![128]; some(100_000)];
        let name = "W3: 100 000 rows of 128 f32";
        Workload::new(name, DType::F32, shapes, Lie::Scattered, Collate::stack())
    }));
    all.push(Box::new(move || {
        let shapes = bytes(some(4096), 32 << 10);
        let name = "W6: 4096 pages of 32 KiB";
        Workload::new(name, DType::U8, shapes, Lie::Scattered, Collate::stack())
    }));
    all.push(Box::new(move || {
        let mut random = Random(11);
        let shape = |_| vec![736 + random.below(65) as i64, 800 + random.below(545) as i64, 3];
        let shapes = (0..some(32)).map(shape).collect();
        let sizes = [Some(800), Some(1344), None];
        let collate = Collate::pad(Pad::new().sizes(sizes).mask(Mask::Pad))
            .cast(DType::F16)
            .transform(normalised());
        let name = "W7: 32 images of many sizes, u8 HWC to f16 [3, 800, 1344], mask";
        Workload::new(name, DType::U8, shapes, Lie::Scattered, collate)
    }));
    for (length, label) in
        [(4 << 10, "4 KiB"), (16 << 10, "16 KiB"), (32 << 10, "32 KiB"), (128 << 10, "128 KiB")]
    {
        let count = some((32_usize << 20).div_ceil(length));
        all.push(Box::new(move || {
            let shapes = bytes(count, length as i64);
            let name = format!("W8: 32 MiB of {label}, page-locked");
            Workload::new(&name, DType::U8, shapes, Lie::Scattered, Collate::stack()).pinned()
        }));
    }
    all.push(Box::new(move || {
        let collate = Collate::stack().cast(DType::F16).transform(normalised());
        let shapes = vec![vec![224, 224, 3]; some(256)];
        let name = "W8b: W1 from page-locked memory";
        Workload::new(name, DType::U8, shapes, Lie::Scattered, collate).pinned()
    }));
    all.push(Box::new(move || {
        let name = "W10a: 100 000 rows of 77 B, misaligned";
        let shapes = bytes(some(100_000), 77);
        Workload::new(name, DType::U8, shapes, Lie::Misaligned, Collate::stack())
    }));
    all.push(Box::new(move || {
        let collate = Collate::stack().cast(DType::F16).transform(normalised());
        let shapes = vec![vec![225, 225, 3]; some(256)];
        let name = "W10b: 256 images 225 x 225 x 3, misaligned, u8 HWC to f16 CHW";
        Workload::new(name, DType::U8, shapes, Lie::Misaligned, collate)
    }));
    all
}
