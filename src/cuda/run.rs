//! One run of a plan on a device: what is enqueued, and in which order.
#![allow(unsafe_code)] // Launches and copies between raw addresses.

use std::sync::Arc;

use super::capture::refused_in_capture;
use super::download;
use super::driver::Current;
use super::encode::Values;
use super::enqueue::{Done, Run};
use super::executor::{Executor, Lane};
use super::list_table::ListTable;
use super::numbers::known_numbers;
use super::outputs::Number;
use super::params;
use super::select;
use super::table::{parts, Table};
use super::upload;
use crate::host::{Helpers, MemoryPool};
use crate::observe::{Span, Stage};
use crate::plan::{
    is_device_field, is_on_device, is_upload, must_upload, uploaded_together, OutputPlan, Plan,
};
use crate::run_options::RunOptions;
use crate::tensor::{DType, Device, Result};

/// What of the host a run on a device needs.
#[derive(Clone, Copy)]
pub(crate) struct Host<'h> {
    pub memory: &'h Arc<MemoryPool>,
    pub threads: Option<&'h Helpers>,
}

impl Executor {
    /// Runs the fields of a plan that are read from the device or written to it. Returns when all is
    /// enqueued; for a batch on the host, when it is there.
    pub fn run(
        &self,
        current: &Current<'_>,
        Lane { stream, is_capturing }: Lane<'_>,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        options: &RunOptions,
        host: Host<'_>,
    ) -> Result<Done> {
        if !is_capturing {
            self.held.reap()?;
        }
        let mut run = Run::new(self, current, stream, is_capturing);
        let own: Vec<usize> =
            (0..plan.fields.len()).filter(|&field| is_device_field(plan, field)).collect();
        run.find_producers(options)?;
        let finished = run.assemble(plan, placements, &own, options, host);
        run.end(finished)
    }
}

impl Run<'_> {
    pub fn assemble(
        &mut self,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        own: &[usize],
        options: &RunOptions,
        host: Host<'_>,
    ) -> Result<()> {
        let Host { memory: host, threads } = host;
        // Memory first, so that nothing is enqueued if there is none.
        let arena = plan.arena.as_ref().filter(|arena| matches!(arena.device, Device::Cuda(_)));
        self.done.arena = arena
            .map(|arena| self.output(options, DType::U8, arena.layout().clone()))
            .transpose()?;
        let in_arena = self.done.arena.as_ref().map(|memory| plan.placements(Some(memory)));
        let placements = in_arena.as_deref().unwrap_or(placements);
        let known = known_numbers(plan)?;
        self.share_outputs(plan, placements, own, options, &known)?;
        let mut places = vec![None; plan.fields.len()];
        let mut back = Vec::new();
        // Fields that are read or written elsewhere than planned, on their way.
        let mut moved: Vec<Option<OutputPlan<'static>>> =
            plan.fields.iter().map(|_| None).collect();
        let mut spread = vec![None; plan.fields.len()];
        for &index in own {
            let (bytes, out) = (plan.fields[index].bytes(), placements[index]);
            let on_device = is_on_device(&plan.specs[plan.fields[index].leaf]);
            let address = match out.filter(|_| on_device) {
                Some(out) => out.addr() as u64,
                None if on_device => {
                    let field = &plan.fields[index];
                    let tensor = self.output(options, field.dtype, field.layout.clone())?;
                    let address = tensor.data_ptr().addr() as u64;
                    self.done.tensors.push((index, tensor));
                    address
                }
                None => {
                    let block = self.allocate(bytes)?;
                    back.push((index, block.address()));
                    if let Some(out) = out.filter(|_| !plan.fields[index].layout.is_compact()) {
                        moved[index] = Some(plan.compacted(index)?);
                        spread[index] = Some((out, plan.fields[index].layout.clone()));
                    }
                    block.address()
                }
            };
            places[index] = Some(address);
        }
        let returned = back
            .iter()
            .map(|&(index, _)| match &moved[index] {
                Some(field) => self.host_memory(plan, field, None, host),
                None => self.host_memory(plan, &plan.fields[index], placements[index], host),
            })
            .collect::<Result<Vec<_>>>()?;
        let numbers = self.numbers(plan, options, known)?;
        // Behind the allocations: memory just given may be in use by work that is enqueued already.
        self.order_behind_producers(plan, own, options)?;

        let together = uploaded_together(plan);
        for &index in own.iter().filter(|index| !together.contains(index)) {
            if let (Some(place), true) =
                (places[index], must_upload(plan, index, self.is_capturing))
            {
                match self.upload(plan, index, place, threads)? {
                    None => places[index] = None,
                    reread => moved[index] = reread,
                }
            }
        }
        if !together.is_empty() {
            for (index, field) in upload::together(self, plan, &together, threads)? {
                moved[index] = Some(field);
            }
        }
        let values: Vec<Values<'_>> = numbers.iter().map(Number::values).collect();
        let fields = plan.fields.iter().zip(&moved).zip(&places);
        let fields = fields.filter_map(|((planned, moved), place)| {
            Some((moved.as_ref().unwrap_or(planned), (*place)?))
        });
        self.launch(plan, fields, &values)?;

        let mut is_copying = false;
        for (&(index, address), (memory, _)) in back.iter().zip(&returned) {
            let bytes = plan.fields[index].bytes();
            let is_pinned = plan.specs[plan.fields[index].leaf].device == Device::Pinned;
            // SAFETY: a block of so many bytes, and host memory that `host_memory` measured; both are
            // held until the copy is done.
            unsafe {
                match is_pinned {
                    true => self.stream.d2h(*memory, address, bytes as usize)?,
                    false => download::bytes(self, address, *memory, bytes, threads)?,
                }
            }
            is_copying |= is_pinned;
            self.done.traffic.bytes_to_host += bytes;
        }
        self.finish(plan, own, options)?;
        if is_copying {
            self.stream.synchronize()?;
        }
        for (&(index, _), (_, tensor)) in back.iter().zip(returned) {
            match (tensor, spread[index].take()) {
                (Some(tensor), Some((out, layout))) => self.done.spread.push((tensor, out, layout)),
                (Some(tensor), None) => self.done.tensors.push((index, tensor)),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Brings the samples of a field to the device: as the batch itself, or else as they are, for the
    /// kernel to work on: then the field as it is read there.
    fn upload(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        place: u64,
        threads: Option<&Helpers>,
    ) -> Result<Option<OutputPlan<'static>>> {
        let leaf = plan.fields[index].leaf;
        if is_upload(plan, &plan.fields[index]) {
            self.upload_field(plan, index, place, threads)?;
            return Ok(None);
        }
        let staged = {
            let (packed, offsets) = Plan::packed(&plan.lists[leaf])?;
            let (block, bytes) = (self.allocate(offsets.total() as u64)?, offsets.total() as u64);
            match plan.specs[leaf].source {
                Device::Pinned => {
                    upload::copied(self, &plan.lists[leaf], &offsets, block.address())?;
                    self.done.traffic.bytes_to_device += bytes;
                }
                _ => self.upload_field(&packed, 0, block.address(), threads)?,
            }
            let device = Device::Cuda(self.current.context().ordinal());
            upload::staged(&plan.lists[leaf], &offsets, block.address(), device)?
        };
        Ok(Some(plan.reread(index, &staged)))
    }

    fn upload_field(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        place: u64,
        threads: Option<&Helpers>,
    ) -> Result<()> {
        upload::field(self, plan, index, place, threads)?;
        self.done.traffic.bytes_to_device += plan.fields[index].bytes();
        Ok(())
    }

    fn launch<'p>(
        &mut self,
        plan: &'p Plan<'_>,
        fields: impl Iterator<Item = (&'p OutputPlan<'p>, u64)>,
        values: &[Values<'_>],
    ) -> Result<()> {
        let _span = Span::enter(Stage::Launch);
        let (policy, num_sms) = (&self.executor.policy, self.current.context().info().num_sms);
        let table = Table::new(&parts(plan, fields), values, num_sms, policy)?;
        if table.num_items() == 0 {
            return Ok(());
        }
        let address = match (plan.selection(), ListTable::of(plan)) {
            (Some(selection), Some(list)) => Some(select::table_of(self, selection, list, &table)?),
            _ if table.is_inline(policy) => None,
            _ => Some(self.upload_table(&table)?),
        };
        let parameters = table.parameters(address, policy);
        let is_large = parameters.len() * 8 > params::SMALL_BYTES;
        let kernel = &self.executor.kernels[usize::from(is_large)];
        // A warp for each item.
        let grid = table.num_items().div_ceil(policy.threads / 32);
        let values = [parameters.as_ptr().cast()];
        // SAFETY: the kernel has one parameter, of this size (`Table::parameters`). Samples and
        // outputs are as the plan's maker promised, and held until the event after this.
        unsafe { self.stream.launch(kernel, [grid, 1, 1], [policy.threads, 1, 1], 0, &values) }?;
        self.done.traffic.launches += 1;
        Ok(())
    }

    /// Brings a table that is too large for parameters to the device.
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
