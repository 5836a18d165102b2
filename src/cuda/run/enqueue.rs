//! One run of a plan on a device: what is enqueued, and in which order.
#![allow(unsafe_code)] // Launches and copies between raw addresses.

use std::iter;
use std::sync::Arc;

use smallvec::{smallvec, SmallVec};

use super::capture::refused_in_capture;
use super::download;
use super::executor::{Executor, LaunchStream};
use super::run::{Run, RunResult};
use super::select::{self, SelectedTable};
use super::upload;
use crate::cuda::driver::Current;
use crate::cuda::launch::argument_pool::KernelArguments;
use crate::cuda::launch::host_metadata::{host_metadata, MetadataSegment};
use crate::cuda::launch::launch_cache::{cached_launch, CachedTable, OutputAddresses};
use crate::cuda::launch::launch_outputs::LaunchOutputs;
use crate::cuda::launch::table::{segments, Table, TableKernel};
use crate::cuda::memory::list_table::ListTable;
use crate::cuda::memory::pinned::PinnedBlock;
use crate::cuda::memory::policy::POLICY;
use crate::host::{Helpers, MemoryPool};
use crate::observe::{Span, Stage};
use crate::plan::{self, Plan, Upload};
use crate::run_options::RunOptions;
use crate::samples::{SampleList, Selection};
use crate::tensor::{DType, Device, Layout, Result, Tensor};

/// The parts of the host engine that a run on a device needs.
#[derive(Clone, Copy)]
pub(crate) struct Host<'h> {
    pub memory: &'h Arc<MemoryPool>,
    pub threads: Option<&'h Helpers>,
}

impl Executor {
    /// Runs the outputs of a plan that the device reads or writes; the host runs the others. Returns when all is
    /// enqueued; for a batch on the host, when it is there. It may wait for producers and for earlier copies before, as
    /// [`Run::assemble`].
    pub fn run(
        &self,
        current: &Current<'_>,
        LaunchStream { stream, is_capturing }: LaunchStream<'_>,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        options: &RunOptions,
        host: Host<'_>,
    ) -> Result<RunResult> {
        if !is_capturing {
            self.keep_alive.reap_some(POLICY.max_keep_alive_queries)?;
        }
        let mut run = Run::new(self, current, stream, is_capturing);
        let device_outputs: SmallVec<[usize; 4]> =
            (0..plan.outputs().len()).filter(|&output| plan.is_device_output(output)).collect();
        run.max_blocks = options.max_blocks;
        run.find_producers(options)?;
        if let Some(table) = ListTable::in_plan(plan).filter(|_| is_capturing) {
            table.keep_for_graph(&options.keep);
        }
        let finished = run.assemble(plan, placements, &device_outputs, options, host);
        run.end(finished)
    }
}

/// The addresses that a run writes to, first one of each output, then those of metadata. It is 0
/// for an output that the launch does not write, or whose samples have places of their own.
fn addresses_of(outputs: &LaunchOutputs<'_>, metadata: &[MetadataSegment]) -> SmallVec<[u64; 4]> {
    let addresses = outputs.addresses.iter().map(|place| place.unwrap_or(0));
    addresses.chain(metadata.iter().map(|segment| segment.out)).collect()
}

/// The memory that a run reads and writes.
struct RunMemory<'p> {
    on_device: LaunchOutputs<'p>,
    downloads: Vec<PendingDownload>,
}

/// A copy of one output, or of several together, back to the host.
struct PendingDownload {
    bytes: u64,
    is_pinned: bool,
    address: u64,
    to: *mut u8,
    /// The tensor that holds `to`, if it is not the caller's.
    tensor: Option<Tensor>,
    /// The outputs that the copy holds.
    outputs: SmallVec<[usize; 1]>,
    /// The caller's output that the tensor is spread over afterwards; null where each sample has a place of its own.
    spread: Option<*mut u8>,
}

impl Run<'_> {
    /// Allocates all memory, then uploads, launches and downloads; `device_outputs` are the outputs
    /// that the device reads or writes. The run's result has the tensors. Waits for the stream if
    /// something is copied to the host, or as of [`Run::order_behind_producers`], and for earlier
    /// copies of the ring.
    pub fn assemble(
        &mut self,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        device_outputs: &[usize],
        options: &RunOptions,
        host: Host<'_>,
    ) -> Result<()> {
        // Memory first, so that nothing is enqueued if there is none.
        let arena = plan.arena.as_ref().filter(|arena| arena.device.is_cuda());
        self.result.arena = arena
            .map(|arena| self.output(options, DType::U8, arena.layout().clone()))
            .transpose()?;
        let in_arena = self.result.arena.as_ref().map(|memory| plan.placements(Some(memory)));
        let placements = in_arena.as_deref().unwrap_or(placements);
        let mut metadata = host_metadata(plan)?;
        self.share_outputs(plan, placements, device_outputs, options, &metadata)?;
        let mut memory = self.memory(plan, placements, device_outputs, options, host.memory)?;
        self.metadata(plan, options, &mut metadata)?;
        // The waits are behind the allocations: memory just given may be in use by work that is enqueued already.
        let read = self.readable(plan, options);
        self.order_behind_producers(plan, &read)?;

        self.upload_samples(plan, &mut memory.on_device, host.threads)?;
        self.launch(plan, &memory.on_device, &metadata)?;

        let is_copying = self.download_outputs(&memory.downloads, host.threads)?;
        self.result.traffic.bytes_to_host += plan.bytes_to_host();
        self.finish(&plan.out_owners, plan.is_move, &read, options)?;
        if is_copying {
            self.stream.synchronize()?;
        }
        for PendingDownload { outputs, tensor, spread, .. } in memory.downloads {
            let staged = tensor.as_ref().filter(|_| spread.is_some());
            if let Some(block) =
                staged.and_then(|tensor| tensor.owner().downcast_ref::<PinnedBlock>())
            {
                // The block is read once more and is then free.
                block.set_handed_out(false);
            }
            for (index, tensor) in outputs.into_iter().zip(std::iter::repeat(tensor)) {
                match (tensor, spread) {
                    (Some(tensor), Some(out)) => self.result.spread.push((index, tensor, out)),
                    (Some(tensor), None) => self.result.tensors.push((index, tensor)),
                    (None, _) => {}
                }
            }
        }
        Ok(())
    }

    /// Allocates the memory of all outputs: on the device, where the run's result has the tensors, and on the host for what comes
    /// back.
    fn memory<'p>(
        &mut self,
        plan: &'p Plan<'_>,
        placements: &[Option<*mut u8>],
        device_outputs: &[usize],
        options: &RunOptions,
        host: &Arc<MemoryPool>,
    ) -> Result<RunMemory<'p>> {
        let on_device = LaunchOutputs::unassigned(plan.outputs().len());
        let mut memory = RunMemory { on_device, downloads: Vec::new() };
        let landing = match plan.route().map_or(0, |route| route.landing_bytes) {
            0 => None,
            bytes => Some(self.landing(bytes, host)?),
        };
        memory.downloads.extend(landing);
        for &index in device_outputs {
            let (output, out) = (&plan.outputs()[index], placements[index]);
            let spread = plan.route().and_then(|route| route.spread(index));
            if output.has_places() {
                // Each sample has its own; or all come back together.
                let landing =
                    memory.downloads.first_mut().zip(spread.and_then(|spread| spread.landing));
                memory.on_device.addresses[index] =
                    Some(landing.map_or(0, |(downloads, begin)| {
                        downloads.outputs.push(index);
                        downloads.address + begin
                    }));
                continue;
            }
            let address = match (out, plan.batch_shapes()[output.leaf].is_on_device()) {
                (Some(out), true) => out.addr() as u64,
                (None, true) => {
                    let tensor = self.output(options, output.dtype, output.layout.clone())?;
                    let address = tensor.data_ptr().addr() as u64;
                    self.result.tensors.push((index, tensor));
                    address
                }
                (out, false) => {
                    debug_assert!(spread.is_some() || output.layout.is_compact());
                    let address = self.allocate(output.bytes())?.address();
                    let (to, tensor) = match spread {
                        None => self.host_memory(plan, output, out, options, host)?,
                        Some(spread) => {
                            self.host_memory(plan, &spread.compact, None, options, host)?
                        }
                    };
                    let spread = spread.and(out);
                    let is_pinned = plan.batch_shapes()[output.leaf].device == Device::Pinned;
                    let (bytes, outputs) = (output.bytes(), smallvec![index]);
                    memory.downloads.push(PendingDownload {
                        bytes,
                        is_pinned,
                        address,
                        to,
                        tensor,
                        outputs,
                        spread,
                    });
                    address
                }
            };
            memory.on_device.addresses[index] = Some(address);
        }
        Ok(memory)
    }

    /// Allocates memory, on the device and the host, for outputs that come back together; on the host pinned up to a chunk.
    /// It holds no outputs yet, and its `spread` is null.
    fn landing(&mut self, bytes: u64, host: &Arc<MemoryPool>) -> Result<PendingDownload> {
        let address = self.allocate(bytes)?.address();
        let layout = Layout::compact(DType::U8, &[i64::try_from(bytes).unwrap_or(i64::MAX)])?;
        let is_pinned = bytes <= plan::POLICY.chunk_bytes;
        let tensor = match is_pinned {
            true => {
                let block = self.executor.pinned.take(self.current, bytes)?;
                block.into_tensor(DType::U8, layout)
            }
            false => host.allocate(bytes)?.into_tensor(DType::U8, layout),
        };
        let (to, spread) = (tensor.data_ptr(), Some(std::ptr::null_mut()));
        let outputs = SmallVec::new();
        Ok(PendingDownload { bytes, is_pinned, address, to, tensor: Some(tensor), outputs, spread })
    }

    /// Uploads samples by the plan's route, and counts the bytes. An output that is thereby
    /// complete loses its address: the launch leaves it out. In a capture, page-locked samples that
    /// would be staged are left where they are: the kernels read them there. An [`Upload::Copied`] is enqueued in a
    /// capture too.
    fn upload_samples<'p>(
        &mut self,
        plan: &'p Plan<'_>,
        outputs: &mut LaunchOutputs<'p>,
        threads: Option<&Helpers>,
    ) -> Result<()> {
        for upload in plan.route().into_iter().flat_map(|route| &route.uploads) {
            match upload {
                Upload::Batch(index) => {
                    let output = &plan.outputs()[*index];
                    let Some(place) = outputs.addresses[*index].take() else { continue };
                    let bytes = output.bytes();
                    upload::gathered(self, iter::once((0, output)), (place, bytes), threads)?;
                    self.result.traffic.bytes_to_device += bytes;
                }
                Upload::Copied { output, copies } => {
                    outputs.addresses[*output] = None;
                    upload::as_they_are(self, copies)?;
                }
                Upload::Staged(staging) if staging.is_pinned && self.is_capturing => {}
                Upload::Staged(staging) => {
                    let memory = self.allocate(staging.bytes)?.address();
                    match staging.is_pinned {
                        true => staging
                            .outputs
                            .iter()
                            .try_for_each(|staged| upload::copied(self, staged, memory))?,
                        false => {
                            let packed = staging.outputs.iter();
                            let packed = packed.map(|staged| (staged.begin, &staged.packed));
                            upload::gathered(self, packed, (memory, staging.bytes), threads)?;
                        }
                    }
                    self.result.traffic.bytes_to_device += staging.sample_bytes();
                    outputs.stage(staging, memory);
                }
            }
        }
        Ok(())
    }

    /// Copies batches to the host, and counts the bytes: copies to pinned memory are enqueued, others are waited for.
    /// Returns whether any is enqueued.
    fn download_outputs(
        &mut self,
        downloads: &[PendingDownload],
        threads: Option<&Helpers>,
    ) -> Result<bool> {
        let mut is_copying = false;
        for &PendingDownload { bytes, is_pinned, address, to, ref tensor, .. } in downloads {
            debug_assert!(tensor.as_ref().is_none_or(|tensor| {
                tensor.layout().is_compact() && tensor.nbytes() as u64 >= bytes
            }));
            // SAFETY: the block has `bytes` bytes, and so has the host memory, a tensor's or the
            // caller's, which is row-major; both are held until the copy is done.
            unsafe {
                match is_pinned {
                    true => self.stream.d2h(to, address, bytes as usize)?,
                    false => download::bytes(self, address, to, bytes, threads)?,
                }
            }
            is_copying |= is_pinned;
        }
        Ok(is_copying)
    }

    /// Enqueues the launch that writes all outputs with an address, and the metadata; no launch if
    /// there is nothing to write. Its table is cached with the plan where that is possible.
    /// Any other is made anew, and uploaded if it is too large for parameters.
    fn launch(
        &mut self,
        plan: &Plan<'_>,
        outputs: &LaunchOutputs<'_>,
        metadata: &[MetadataSegment],
    ) -> Result<()> {
        let _span = Span::enter(Stage::Launch);
        if let (Some(selection), Some(list)) = (plan.selection(), ListTable::in_plan(plan)) {
            return self.launch_selected(plan, (selection, list), outputs, metadata);
        }
        let (executor, policy) = (self.executor, &self.executor.policy);
        if plan.launch().is_some() {
            let addresses = addresses_of(outputs, metadata);
            let cached = cached_launch(plan, &addresses, || {
                let (table, outs) = self.table(plan, outputs, metadata)?;
                Ok(CachedTable { table, outs })
            })?;
            let data = plan.addresses(&plan.outputs()[0]);
            let known = cached.arguments(data, &addresses, &executor.arguments, policy);
            if let Some(arguments) = known {
                let table = &cached.table;
                return self.enqueue(table.num_items(), table.kernels(), &arguments);
            }
        }
        let (table, _) = self.table(plan, outputs, metadata)?;
        if table.num_items() == 0 {
            return Ok(());
        }
        let address = match table.is_inline(policy) {
            true => None,
            false => Some(self.upload_table(&table)?),
        };
        let arguments = table.arguments(address, &executor.arguments, policy);
        self.enqueue(table.num_items(), table.kernels(), &arguments)
    }

    /// The table of a launch, and for each descriptor which of [`addresses_of`] it writes to.
    fn table(
        &self,
        plan: &Plan<'_>,
        outputs: &LaunchOutputs<'_>,
        metadata: &[MetadataSegment],
    ) -> Result<(Table, OutputAddresses)> {
        let segments = segments(plan, outputs.outputs(plan));
        let num_sms = self.current.context().info().num_multiprocessors;
        let table = Table::new(&segments, metadata, num_sms, &self.executor.policy)?;
        let filled = (0..metadata.len()).filter(|&number| metadata[number].count() > 0);
        let filled = filled.map(|number| plan.outputs().len() + number);
        Ok((table, OutputAddresses::new(plan, &segments, filled)))
    }

    /// Launches like [`Run::launch`], by a table that the device makes of the indices. The rest of the launch, which is the same
    /// for all indices, is cached with the plan where that is possible.
    fn launch_selected(
        &mut self,
        plan: &Plan<'_>,
        (selection, list): (&Selection<SampleList<'_>>, &ListTable),
        outputs: &LaunchOutputs<'_>,
        metadata: &[MetadataSegment],
    ) -> Result<()> {
        let (executor, policy) = (self.executor, &self.executor.policy);
        let addresses = addresses_of(outputs, metadata);
        let selected = cached_launch(plan, &addresses, || {
            let (table, outs) = self.table(plan, outputs, metadata)?;
            Ok(SelectedTable::new(table, outs))
        })?;
        // Without a byte to write too: it finds indices that are out of range.
        let address = select::enqueue_table(self, selection, list, &selected, &addresses)?;
        let num_items = selected.table.num_items();
        if num_items == 0 {
            return Ok(());
        }
        let arguments = selected.arguments(address, &addresses, &executor.arguments, policy);
        self.enqueue(num_items, selected.table.kernels(), &arguments)
    }

    /// Launches the kernels of a table one after the other, each for `num_items` warps, in at most `max_blocks` blocks, and counts
    /// the launches. There is an item at least.
    fn enqueue(
        &mut self,
        num_items: u32,
        kernels: &[TableKernel],
        arguments: &KernelArguments<'_>,
    ) -> Result<()> {
        let (executor, threads) = (self.executor, self.executor.policy.threads);
        // A warp for each item.
        let grid = num_items.div_ceil(threads / 32);
        let most = self.max_blocks.filter(|&most| most < grid);
        for &kernel in kernels {
            let (kernel, grid, words) = match (most, kernel) {
                (most, TableKernel::Quantise) => {
                    (&executor.quantise, most.unwrap_or(grid), arguments.large_words())
                }
                // A warp takes one item after the other.
                (Some(most), _) => (&executor.kernels[1][1], most, arguments.large_words()),
                (None, _) => {
                    let kernels = &executor.kernels[usize::from(kernel == TableKernel::Any)];
                    (&kernels[usize::from(arguments.is_large)], grid, arguments.words())
                }
            };
            // SAFETY: the kernel has one parameter, of this size (`KernelArguments`). Samples and
            // outputs are as the plan's maker promised, and held until the event after this.
            unsafe { self.launch_kernel(kernel, grid, words) }?;
        }
        Ok(())
    }

    /// Uploads a table that is too large for parameters, and returns its address on the device; refused in a capture.
    fn upload_table(&mut self, table: &Table) -> Result<u64> {
        let bytes = table.as_bytes();
        if self.is_capturing {
            let limit = self.executor.policy.inline_bytes;
            return Err(refused_in_capture(format_args!(
                "this batch's table has {} bytes, of which at most {limit} go into the parameters of a \
                 kernel; capture fewer samples, or a list of rows of one table",
                bytes.len()
            )));
        }
        let block = self.allocate(bytes.len() as u64)?;
        // SAFETY: the block has as many bytes, and is held until the event after the launch.
        unsafe { upload::bytes(self, block.address(), bytes) }?;
        Ok(block.address())
    }
}
