//! The contenders: each assembles the batch, or copies as many bytes.
#![allow(clippy::too_many_arguments, reason = "the driver's")]

use std::ffi::c_void;
use std::mem::transmute;
use windrow::batch::Fields;
use windrow::engine::RunOptions;
use windrow::plan::{Leaf, Target};
use windrow::{Collate, Device, Engine, Plan, SampleList};
use windrow_driver::Function;

use super::gpu::{allocate, check, Gpu, Outcome};
use super::peers::{Peers, Tables};
use super::workloads::{Lie, Set, Workload};

pub const WINDROW: &str = "windrow";
pub const COPY: &str = "one cuMemcpyDtoD of as many bytes";
/// The same across the bus.
pub const BUS_COPY: &str = "one cuMemcpyHtoD of as many bytes";
/// Other ways for page-locked samples, see [`Set::others`].
pub const DIRECT: &str = "windrow, read by the kernel";
pub const RING: &str = "windrow, through the staging ring";
pub const BATCH: &str = "cuMemcpyBatchAsync";
pub const COPY16: &str = "copy kernel, 16 bytes a lane";
pub const EMPTY: &str = "one empty launch";

/// A function that enqueues a run on one of the sets.
pub struct Contender<'a> {
    pub name: &'a str,
    /// The contender's output is the batch.
    pub is_batch: bool,
    /// windrow's engine, by which more than the output can be compared.
    pub engine: Option<&'a Engine>,
    pub run: Box<dyn Fn(&Set) -> Outcome + 'a>,
}

/// Batches by windrow in one call, into the memory of the set; a list of samples for each leaf.
pub fn windrow(
    gpu: &Gpu,
    engine: &Engine,
    workload: &Workload,
    set: &Set,
    samples: &[SampleList<'_>],
) -> Result<Vec<Fields>, String> {
    let target = |(expected, out): (&windrow::Batch, &u64)| {
        let data = expected.data();
        let (out, layout) = (*out as *mut u8, data.layout().clone());
        // SAFETY: as many bytes as the batch has, which are read only behind this on the same stream.
        unsafe { Target::from_raw_parts(out, data.dtype(), Device::Cuda(0), layout) }
    };
    let targets: Vec<_> = workload.expected.iter().zip(&set.out_at).map(target).collect();
    let placed = |part: &super::workloads::Part| part.collate.clone().device(Device::Cuda(0));
    let collates: Vec<Collate> = workload.parts.iter().map(placed).collect();
    let leaves = workload.parts.iter().zip(samples).zip(collates.iter().zip(&targets));
    let leaves: Vec<Leaf<'_, '_>> = leaves
        .map(|((part, samples), (collate, out))| Leaf {
            samples,
            collate,
            path: part.path,
            out: Some(out),
        })
        .collect();
    let mut options = RunOptions::default();
    options.stream = Some(gpu.windrow_stream());
    let filled = Plan::for_leaves(&leaves).and_then(|plan| engine.run_with(plan, options));
    let filled = filled.map_err(|error| error.to_string())?;
    Ok(filled.into_iter().map(|filled| filled.fields).collect())
}

/// windrow by an engine, under a name.
pub fn by<'a>(
    gpu: &'a Gpu,
    engine: &'a Engine,
    workload: &'a Workload,
    name: &'a str,
) -> Contender<'a> {
    let run = move |set: &Set| windrow(gpu, engine, workload, set, &set.samples).map(drop);
    Contender { name, is_batch: true, engine: Some(engine), run: Box::new(run) }
}

/// One copy of as many bytes.
pub fn one_copy<'a>(gpu: &'a Gpu, workload: &Workload) -> Contender<'a> {
    let copy = copy(gpu, workload);
    let name = if workload.is_pinned() { BUS_COPY } else { COPY };
    let run = move |set: &Set| copy(set.copy_to.address, set.copy_from.address(), set.copy_to.len);
    Contender { name, is_batch: false, engine: None, run: Box::new(run) }
}

/// A copy between addresses, across the bus if the samples are there.
fn copy<'a>(gpu: &'a Gpu, workload: &Workload) -> impl Fn(u64, u64, usize) -> Outcome + 'a {
    let is_pinned = workload.is_pinned();
    move |to, from, bytes| match is_pinned {
        true => gpu.upload(to, from, bytes),
        false => gpu.copy(to, from, bytes),
    }
}

/// The contenders of a workload, windrow first, and the reasons why others are missing. Of a control only windrow
/// and copies of as many bytes.
pub fn for_workload<'a>(
    gpu: &'a Gpu,
    engine: &'a Engine,
    workload: &'a Workload,
    sets: &[Set],
) -> (Vec<Contender<'a>>, Vec<String>) {
    let mut found = Contenders { gpu, workload, all: Vec::new(), absent: Vec::new() };
    found.all.push(by(gpu, engine, workload, WINDROW));
    found.ways(engine);
    found.all.push(one_copy(gpu, workload));
    let has_peers = workload.is_copy() && workload.lie != Lie::Contiguous;
    if has_peers {
        found.copies_of_samples();
    }
    match &gpu.peers {
        Ok(peers) => found.kernels(peers, sets[0].tables().filter(|_| has_peers)),
        Err(reason) => {
            found.absent.push(format!("CUB, the copy kernels, an empty launch: {reason}"));
        }
    }
    (found.all, found.absent)
}

/// Contenders as they are found.
struct Contenders<'a> {
    gpu: &'a Gpu,
    workload: &'a Workload,
    all: Vec<Contender<'a>>,
    absent: Vec<String>,
}

impl<'a> Contenders<'a> {
    fn add(&mut self, name: &'static str, is_batch: bool, run: impl Fn(&Set) -> Outcome + 'a) {
        self.all.push(Contender { name, is_batch, engine: None, run: Box::new(run) });
    }

    /// Each of the two ways that page-locked samples can take.
    fn ways(&mut self, engine: &'a Engine) {
        let (gpu, workload) = (self.gpu, self.workload);
        let ways = [DIRECT, RING].into_iter().enumerate().filter(|_| workload.is_pinned());
        for (index, name) in ways {
            self.add(name, true, move |set| {
                windrow(gpu, engine, workload, set, &set.others[index]).map(drop)
            });
        }
    }

    fn copies_of_samples(&mut self) {
        let (gpu, copy) = (self.gpu, copy(self.gpu, self.workload));
        self.add("cuMemcpyAsync for each sample", true, move |set| {
            let mut copies = set.to.iter().zip(&set.from).zip(&set.sizes);
            copies.try_for_each(|((to, from), size)| copy(*to, *from, *size as usize))
        });
        match windrow_driver::entry(Function::cuMemcpyBatchAsync_v2) {
            Some(_) => self.add(BATCH, true, move |set| copy_batch(gpu, set)),
            None => self.absent.push("cuMemcpyBatchAsync: this driver does not have it".into()),
        }
    }

    /// The contenders of the peers' module; with `tables` those that take a table.
    fn kernels(&mut self, peers: &'a Peers, tables: Option<Tables>) {
        let stream = self.gpu.stream;
        self.add(COPY16, false, move |set| {
            let (to, from) = (set.copy_to.address, set.copy_from.address());
            peers.copy16(to, from, set.copy_to.len as u64, stream)
        });
        self.add(EMPTY, false, move |_| peers.nothing(stream));
        let Some(tables) = tables else { return };
        self.add("a block for each buffer", true, move |set| {
            set.tables().map_or(Ok(()), |tables| peers.block_per_buffer(tables, stream))
        });
        match peers.cub_scratch(tables, stream).and_then(allocate) {
            Ok(scratch) => self.add("cub::DeviceMemcpy::Batched", true, move |set| {
                let tables = set.tables().ok_or("no tables")?;
                peers.cub(tables, (scratch.address, scratch.len), stream)
            }),
            Err(reason) => self.absent.push(reason),
        }
    }
}

/// `CUmemcpyAttributes`: sources are read in stream order, no hints of place.
#[repr(C)]
pub struct Attributes {
    source_order: u32,
    source: [u32; 2],
    destination: [u32; 2],
    flags: u32,
}

driver! {
    cuMemcpyBatchAsync_v2(
        to: *const u64,
        from: *const u64,
        bytes: *const u64,
        count: usize,
        attributes: *const Attributes,
        firsts: *const usize,
        num_attributes: usize,
        stream: usize
    );
}

fn copy_batch(gpu: &Gpu, set: &Set) -> Outcome {
    let attributes = Attributes { source_order: 1, source: [0; 2], destination: [0; 2], flags: 0 };
    let (to, from, bytes) = (set.to.as_ptr(), set.from.as_ptr(), set.sizes.as_ptr());
    let (count, first) = (set.to.len(), 0);
    // SAFETY: three lists of one length that outlive the run; one attribute, from the first copy on.
    let code = unsafe {
        let (attributes, first) = (&raw const attributes, &raw const first);
        cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, first, 1, gpu.stream)
    };
    check("cuMemcpyBatchAsync", code)
}
