//! The workloads of `copy_many` whose machine code is counted: tensors of one arena to places in another.

use windrow::bindings::MoveOptions;
use windrow::{DType, Device, Engine, SampleList};

use super::counted::Scale;
use super::gpu::device::{self, Bytes};
use super::gpu::{Gpu, Outcome};
use super::options::Options;
use super::workloads::Random;

/// One pair: its dtypes, its shape, and where each side begins in its arena.
struct Pair {
    dtypes: [DType; 2],
    shape: Vec<i64>,
    at: [usize; 2],
}

impl Pair {
    fn bytes(&self, side: usize) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtypes[side].size()
    }
}

/// The pairs of a workload, sources first among sides, and the bytes of both arenas.
struct Moves {
    pairs: Vec<Pair>,
    lens: [usize; 2],
}

impl Moves {
    /// Both sides in an order of their own, each tensor at a multiple of `aligns`.
    fn scattered(tensors: Vec<([DType; 2], Vec<i64>)>, aligns: [usize; 2]) -> Moves {
        let mut random = Random(0x5DEE_CE66_D1CE_4E5B);
        let pair = |(dtypes, shape)| Pair { dtypes, shape, at: [0; 2] };
        let mut moves = Moves { pairs: tensors.into_iter().map(pair).collect(), lens: [0; 2] };
        for (side, align) in aligns.into_iter().enumerate() {
            let mut order: Vec<usize> = (0..moves.pairs.len()).collect();
            random.shuffle(&mut order);
            for index in order {
                let pair = &mut moves.pairs[index];
                pair.at[side] = moves.lens[side];
                let end = moves.lens[side] + pair.bytes(side);
                moves.lens[side] = end.next_multiple_of(align);
            }
        }
        moves
    }

    fn list(&self, side: usize, base: u64, device: Device) -> SampleList<'static> {
        let mut list = SampleList::new();
        for Pair { dtypes, shape, at } in &self.pairs {
            let data = (base as *const u8).wrapping_add(at[side]);
            // SAFETY: inside an arena that outlives the list.
            unsafe { list.push(data, dtypes[side], device, shape, None) }.expect("a sound shape");
        }
        list
    }

    /// Bytes of all tensors of a side.
    fn bytes(&self, side: usize) -> usize {
        self.pairs.iter().map(|pair| pair.bytes(side)).sum()
    }
}

/// Pieces of 64 bytes to 4 KiB into one buffer.
fn pieces(scale: Scale) -> Moves {
    let mut random = Random(29);
    let dtypes = [DType::U8, DType::F16, DType::F32, DType::I64];
    let tensors = (0..scale.scaled_count(4096)).map(|index| {
        let dtype = dtypes[index % 4];
        let bytes = 64 + random.below(4033) as i64;
        ([dtype; 2], vec![bytes / dtype.size() as i64])
    });
    Moves::scattered(tensors.collect(), [256, 64])
}

/// Parameters of a model, matrices and vectors in turn.
fn parameters(scale: Scale) -> Moves {
    let tensors = (0..scale.scaled_count(300)).map(|index| {
        let shape = if index % 2 == 0 { vec![256, 384] } else { vec![2048] };
        ([DType::BF16, DType::F32], shape)
    });
    Moves::scattered(tensors.collect(), [512, 512])
}

/// Pages of a cache.
fn pages(count: usize, bytes: i64) -> Moves {
    Moves::scattered(vec![([DType::F16; 2], vec![bytes / 2]); count], [1, 1])
}

type Make = fn(Scale) -> Moves;

const MOVES: [(&str, Make); 5] = [
    ("M1", pieces),
    ("M2", parameters),
    ("M3 4 KiB", |scale| pages(scale.scaled_count(16_384), 4 << 10)),
    ("M3 32 KiB", |scale| pages(scale.scaled_count(2048), 32 << 10)),
    ("M4", |scale| pages(scale.scaled_count(131_072), 512)),
];

/// Runs each once and compares the arena of destinations; prints what it was, one line of JSON each.
pub fn run(
    engine: &Engine,
    gpu: &Gpu,
    options: &Options,
    scale: Scale,
    multiprocessors: i32,
) -> Outcome {
    let refused = |error: windrow::Error| error.to_string();
    for (name, make) in MOVES {
        if !options.is_wanted(&format!("{name}, ")) {
            continue;
        }
        let moves = make(scale);
        let mut random = Random(31);
        let mut read = random.bytes(moves.lens[0]);
        // No NaNs: the highest bit of the exponent of both bytes of a bfloat16.
        read.iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 0xBF);
        let mut expected = vec![0xA5u8; moves.lens[1]];
        let copy = |engine: &Engine, bases: [u64; 2], device, options: MoveOptions| {
            let [srcs, dsts] = [0, 1].map(|side| moves.list(side, bases[side], device));
            // SAFETY: arenas of their own, which nothing else uses until the work is done.
            unsafe { engine.copy_lists(&dsts, &srcs, options) }.map_err(refused)
        };
        let bases = [read.as_ptr().addr(), expected.as_mut_ptr().expose_provenance()];
        copy(&Engine::host(), bases.map(|at| at as u64), Device::Cpu, MoveOptions::default())?;
        let (source, out) =
            (Bytes::from_bytes(&read), Bytes::from_bytes(&vec![0xA5u8; moves.lens[1]]));
        let mut on_stream = MoveOptions::default();
        on_stream.run.stream = Some(gpu.windrow_stream());
        let before = engine.stats();
        copy(engine, [source.address, out.address], Device::Cuda(0), on_stream)?;
        gpu.synchronize()?;
        let after = engine.stats();
        let got = device::read(out.address, expected.len());
        if let Some(at) = expected.iter().zip(&got).position(|(want, got)| want != got) {
            return Err(format!("{name} writes a wrong byte at {at}"));
        }
        println!(
            "{{\"workload\": \"{name}\", \"case\": \"\", \"launches\": {}, \"uploaded\": {}, \
             \"multiprocessors\": {multiprocessors}, \"samples\": {}, \"read\": {}, \"written\": {}}}",
            after.launches - before.launches,
            after.bytes_to_device - before.bytes_to_device,
            moves.pairs.len(),
            moves.bytes(0),
            moves.bytes(1)
        );
    }
    Ok(())
}
