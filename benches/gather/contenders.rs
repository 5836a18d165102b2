//! Who assembles the batch, or copies as many bytes.
#![allow(clippy::too_many_arguments, reason = "the driver's")]

use lazy_driver::Function;
use std::ffi::c_void;
use std::mem::transmute;
use windrow::{Device, Engine, Fields, Leaf, Plan, RunOptions, Target};

use super::gpu::{allocate, check, Gpu, Outcome};
use super::workloads::{Set, Workload};

pub const WINDROW: &str = "windrow";
pub const COPY: &str = "one cuMemcpyDtoD of as many bytes";
pub const COPY16: &str = "copy kernel, 16 bytes a lane";
pub const EMPTY: &str = "one empty launch";

/// A function that enqueues a run on one of the sets.
pub struct Contender<'a> {
    pub name: &'static str,
    /// Its output is the batch.
    pub is_batch: bool,
    pub run: Box<dyn Fn(&Set) -> Outcome + 'a>,
}

/// A batch by windrow, into the memory of the set.
pub fn windrow(
    gpu: &Gpu,
    engine: &Engine,
    workload: &Workload,
    set: &Set,
) -> Result<Fields, String> {
    let data = workload.expected().data();
    let (out, layout) = (set.out.address as *mut u8, data.layout().clone());
    // SAFETY: as many bytes as the batch has, which are read only behind this on the same stream.
    let target = unsafe { Target::from_raw_parts(out, data.dtype(), Device::Cuda(0), layout) };
    let collate = workload.collate();
    let leaf = Leaf { samples: &set.samples, collate, path: "", out: Some(&target) };
    let mut options = RunOptions::default();
    options.stream = Some(gpu.windrow_stream());
    let filled = Plan::for_leaves(&[leaf]).and_then(|plan| engine.run_with(plan, options));
    let mut filled = filled.map_err(|error| error.to_string())?;
    filled.pop().map(|filled| filled.fields).ok_or_else(|| "no batch".into())
}

/// Those that can do a workload, windrow first, and why others are not there.
pub fn of<'a>(
    gpu: &'a Gpu,
    engine: &'a Engine,
    workload: &'a Workload,
    sets: &[Set],
) -> (Vec<Contender<'a>>, Vec<String>) {
    let (mut all, mut absent) = (Vec::new(), Vec::new());
    let mut add = |name, is_batch, run: Box<dyn Fn(&Set) -> Outcome + 'a>| {
        all.push(Contender { name, is_batch, run });
    };
    add(WINDROW, true, Box::new(|set| windrow(gpu, engine, workload, set).map(drop)));
    let copy = |set: &Set| gpu.copy(set.copy_to.address, set.copy_from.address, set.copy_to.len);
    add(COPY, false, Box::new(copy));
    if workload.is_copy {
        add(
            "cuMemcpyDtoDAsync for each sample",
            true,
            Box::new(|set| {
                let copies = set.to.iter().zip(&set.from).zip(&set.sizes);
                copies
                    .into_iter()
                    .try_for_each(|((to, from), size)| gpu.copy(*to, *from, *size as usize))
            }),
        );
        match lazy_driver::entry(Function::cuMemcpyBatchAsync_v2) {
            Some(_) => {
                add("cuMemcpyBatchAsync", true, Box::new(|set| copy_batch(gpu, set)));
            }
            None => absent.push("cuMemcpyBatchAsync: this driver does not have it".into()),
        }
    }
    let peers = match &gpu.peers {
        Ok(peers) => peers,
        Err(reason) => {
            absent.push(format!("CUB, the copy kernels, an empty launch: {reason}"));
            return (all, absent);
        }
    };
    add(
        COPY16,
        false,
        Box::new(move |set| {
            let (to, from) = (set.copy_to.address, set.copy_from.address);
            peers.copy16(to, from, set.copy_to.len as u64, gpu.stream)
        }),
    );
    add(EMPTY, false, Box::new(move |_| peers.nothing(gpu.stream)));
    if let Some(tables) = sets[0].tables() {
        add(
            "a block for each buffer",
            true,
            Box::new(move |set| {
                set.tables().map_or(Ok(()), |tables| peers.block_per_buffer(tables, gpu.stream))
            }),
        );
        let scratch = peers.cub_scratch(tables, gpu.stream).and_then(allocate);
        match scratch {
            Ok(scratch) => {
                let run = move |set: &Set| {
                    let tables = set.tables().ok_or("no tables")?;
                    peers.cub(tables, (scratch.address, scratch.len), gpu.stream)
                };
                add("cub::DeviceMemcpy::Batched", true, Box::new(run));
            }
            Err(reason) => absent.push(reason),
        }
    }
    (all, absent)
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
