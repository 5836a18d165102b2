//! Batches so small that the tables of a plan would take longer to make than the batch: rows on the host, copied
//! or cast by the calling thread and, in larger batches, by the engine's helpers, each batch into one allocation.
//! By a plan 8 rows of 128 float32 take 3.2 times as long (Xeon, one thread).

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::engine::Engine;
use crate::batch::{Fields, LeafOutput};
use crate::collate::{Collate, Form};
use crate::host::{
    self, write_numbers, write_rows, Helpers, MemoryPool, RowPadding, RowsMemory, ALIGN,
};
use crate::observe::{Span, Stage, Tally};
use crate::plan::{check_disjoint, check_target, BatchShape, Leaf, Path, Placement, Target};
use crate::samples::{SampleRows, TableLimits};
use crate::tensor::{Device, DimSet, Layout, Result, Tensor};

/// A batch that needs no plan.
struct Small<'s> {
    rows: &'s SampleRows<'s>,
    shape: &'s BatchShape,
    /// The caller's memory for the data, if it is to go there.
    out: Option<&'s Target<'s>>,
    /// Elements that are not padding.
    elems: u64,
}

/// Whether the options have no increments, transform or scales, and no device but the host. `device`: where batches go if the
/// options do not say.
fn is_plain(collate: &Collate, device: Option<Device>) -> bool {
    collate.increments.is_none()
        && collate.has_no_transform()
        && collate.device.or(device).is_none_or(|device| device == Device::Cpu)
}

impl<'s> Small<'s> {
    /// Returns `None` unless the shape stacks rows, joins them along dim 0 or pads dim 0 alone, and `out`, if given, is compact,
    /// fits the shape, is disjoint from all samples and no slice of `bool`. Invalid input also gives `None`: the planner reports
    /// the error. The caller checks [`is_plain`], and [`check_disjoint`] for outputs of several leaves.
    #[inline]
    fn new(
        rows: &'s SampleRows<'s>,
        shape: &'s Result<BatchShape>,
        out: Option<&'s Target<'s>>,
    ) -> Option<Small<'s>> {
        let shape = shape.as_ref().ok()?;
        let are_rows = match &shape.placement {
            Placement::Padded(padded) => padded.dims == DimSet::all(1),
            Placement::Joined { dim, .. } => *dim == 0,
            placement => matches!(placement, Placement::Rows),
        };
        // Extents beside one of zero may be vast. No element has more bytes than 16.
        let most = |all: i64, &extent: &i64| all.checked_mul(extent.max(1));
        shape.shape.iter().try_fold(16, most).filter(|_| are_rows)?;
        if let Some(out) = out {
            check_target(out, shape, |written| rows.sharing(written))
                .ok()
                .filter(|()| out.layout.is_compact() && !out.is_bools)?;
        }
        Some(Small { rows, shape, out, elems: shape.num_real() })
    }

    /// Bytes read of samples.
    fn bytes_in(&self) -> u64 {
        self.elems.saturating_mul(self.rows.meta().dtype.size() as u64)
    }

    /// Bytes read of samples and written to all tensors: padding, lengths, offsets, batch index and mask included.
    fn traffic(&self) -> u64 {
        self.bytes_in().saturating_add(self.shape.bytes)
    }

    /// The output without its tensors.
    fn output(&self) -> LeafOutput {
        LeafOutput { data: None, fields: Fields::for_shape(self.shape) }
    }

    /// Allocates the memory of the batch and its fields, of which nothing is written yet; `None` without memory.
    fn allocate(&self, memory: &Arc<MemoryPool>, output: &mut LeafOutput) -> Option<()> {
        let (shape, is_new) = (self.shape, self.out.is_none());
        let layout = || Layout::compact(shape.dtype, &shape.shape).ok();
        if let Placement::Rows = shape.placement {
            // Nothing beside the data.
            if is_new {
                let block = memory.allocate(shape.bytes).ok()?;
                output.data = Some(block.into_tensor(shape.dtype, layout()?));
            }
            return Some(());
        }
        let data_bytes = if is_new { shape.data_bytes } else { 0 };
        let beside = shape.bytes - shape.data_bytes + BatchShape::MAX_OTHERS * ALIGN as u64;
        let mut block = memory.allocate(data_bytes.saturating_add(beside)).ok()?.share();
        if is_new {
            output.data = Some(block.take(shape.dtype, layout()?));
        }
        let others = shape.for_each_field(|role, dtype, shape| {
            output.set(role, block.take(dtype, Layout::compact(dtype, shape)?));
            Ok(())
        });
        others.ok()
    }

    /// Writes the data, and the lengths, offsets, batch index and mask that `output` has, into their memory.
    fn write(&self, output: &mut LeafOutput, threads: Option<&Helpers>) {
        let (rows, shape, fields) = (self.rows, self.shape, &output.fields);
        // SAFETY: just allocated, with a place for each number.
        #[allow(unsafe_code)]
        unsafe {
            match &shape.placement {
                Placement::Padded(padded) => {
                    write_numbers(fields.lengths.as_deref(), padded.lengths.iter().copied());
                }
                Placement::Joined { offsets, .. } => {
                    let of_row = |(row, length)| std::iter::repeat_n(row as i64, length as usize);
                    let of_places = offsets.lengths().enumerate().flat_map(of_row);
                    write_numbers(fields.lengths.as_deref(), offsets.lengths());
                    write_numbers(fields.offsets.as_deref(), offsets.as_slice().iter().copied());
                    write_numbers(fields.batch_index.as_deref(), of_places);
                }
                // Nothing beside the data.
                _ => {}
            }
        }
        let padding = match &shape.placement {
            Placement::Padded(padded) => {
                let (extent, side) = (padded.size[0], padded.sides[0]);
                Some(RowPadding { extent, side, value: shape.value })
            }
            _ => None,
        };
        let allocated = output.data.as_ref().map(Tensor::data_ptr);
        let data = allocated.or(self.out.map(|out| out.data)).unwrap_or(std::ptr::null_mut());
        let bytes = shape.data_bytes as usize;
        let memory = RowsMemory { data, bytes, to: shape.to() };
        let mask = fields.mask.as_deref().zip(shape.mask.as_ref());
        debug_assert!(output.data.as_ref().is_none_or(|tensor| tensor.nbytes() == bytes));
        debug_assert!(bytes == 0 || !data.is_null());
        // SAFETY: memory just allocated for each row with its padding; or the caller's for this call, which has the batch's dtype
        // and layout and is disjoint from all samples (`check_target`, `check_disjoint`). The mask was just allocated, with an element
        // for each place of all rows.
        #[allow(unsafe_code)]
        unsafe {
            write_rows(rows, padding.as_ref(), mask, &memory, threads);
        }
    }

    /// Adds the path, samples and bytes of this batch to `tally`.
    fn add_to(&self, tally: &mut Tally) {
        let (dtype, data_bytes) = (self.shape.dtype, self.shape.data_bytes);
        let real_bytes = self.elems * dtype.size() as u64;
        let conversion = Path::for_conversion(self.rows.meta().dtype, dtype);
        let is_bytes = conversion.is_none() && real_bytes == data_bytes;
        let is_one_range = || real_bytes > 0 && self.rows.is_one_range();
        tally.paths.push(Path::untransformed(is_bytes, is_one_range, || conversion));
        tally.samples += self.rows.len() as u64;
        tally.bytes_in += self.bytes_in();
        tally.bytes_out += self.shape.bytes;
        tally.data_bytes += data_bytes;
        tally.padding_bytes += data_bytes - real_bytes;
    }
}

impl Engine {
    /// The largest table that is written without a plan: a stack of more rows takes a plan, which reads them as one sample, less
    /// than their addresses. The other forms take any number of rows within the same bytes.
    pub(super) fn table_limits(collate: &Collate) -> TableLimits {
        let policy = &host::POLICY;
        let rows = if collate.form == Form::Stack { policy.table_rows - 1 } else { usize::MAX };
        TableLimits { bytes: policy.small_bytes, rows }
    }

    /// Assembles all leaves without a plan, if together they read and write fewer bytes than [`small_batch_limit`], if the
    /// samples are row-major rows on the host that differ in dim 0 at most, and if no more is asked for than to copy or cast
    /// them, and to stack them, join them along dim 0 or pad dim 0, into dense outputs if any. Otherwise, and if an input is
    /// wrong, returns `None` and does nothing: a plan does the work or reports the error. `begin`: when the work on the samples
    /// began. `most_bytes`: another limit, also exclusive.
    pub(super) fn small_leaves<'s, 'a: 's>(
        &self,
        leaves: &[Leaf<'s, 'a>],
        begin: Option<Instant>,
        most_bytes: u64,
    ) -> Option<Vec<LeafOutput>> {
        // Shapes are large: each is made where it stays.
        let mut rows: SmallVec<[_; 1]> = SmallVec::with_capacity(leaves.len());
        for leaf in leaves {
            if !is_plain(leaf.collate, self.shared.device) {
                return None;
            }
            rows.push(SampleRows::from_list(leaf.samples, Engine::table_limits(leaf.collate))?);
        }
        let mut shapes: SmallVec<[_; 1]> = SmallVec::with_capacity(leaves.len());
        for (leaf, rows) in leaves.iter().zip(&rows) {
            shapes.push(BatchShape::for_rows(rows, leaf.collate));
        }
        let mut all: SmallVec<[Small<'_>; 4]> = SmallVec::with_capacity(leaves.len());
        for ((leaf, rows), shape) in leaves.iter().zip(&rows).zip(&shapes) {
            all.push(Small::new(rows, shape, leaf.out)?);
        }
        check_disjoint(leaves).ok()?;
        let most_bytes = most_bytes.min(small_batch_limit(&all));
        let traffic = all.iter().map(Small::traffic).fold(0, u64::saturating_add);
        if traffic >= most_bytes {
            return None;
        }
        let mut outputs: Vec<LeafOutput> = all.iter().map(Small::output).collect();
        self.write_small(&all, traffic, &mut outputs, begin).then_some(outputs)
    }

    /// Assembles rows of one leaf as [`Engine::small_leaves`] does, below `most_bytes`, or below [`small_batch_limit`]
    /// for `None`.
    pub(super) fn small_rows<'r>(
        &self,
        rows: SampleRows<'r>,
        collate: &Collate,
        out: Option<&'r Target<'r>>,
        begin: Option<Instant>,
        most_bytes: Option<u64>,
    ) -> Option<LeafOutput> {
        if !is_plain(collate, self.shared.device) {
            return None;
        }
        let shape = BatchShape::for_rows(&rows, collate);
        let small = Small::new(&rows, &shape, out)?;
        let one = std::slice::from_ref(&small);
        let most_bytes = most_bytes.unwrap_or_else(|| small_batch_limit(one));
        let traffic = small.traffic();
        if traffic >= most_bytes {
            return None;
        }
        let mut output = small.output();
        let is_written = self.write_small(one, traffic, std::slice::from_mut(&mut output), begin);
        is_written.then_some(output)
    }

    /// Allocates and writes all batches, which together read and write `traffic` bytes; returns whether it did. False, with nothing
    /// written, without memory, for the reference engine, and if the batches are large enough for helper threads, which cannot be
    /// started.
    fn write_small(
        &self,
        all: &[Small<'_>],
        traffic: u64,
        outputs: &mut [LeafOutput],
        begin: Option<Instant>,
    ) -> bool {
        if self.shared.reference {
            return false;
        }
        let threads = match host::is_small(traffic) {
            true => None,
            false => match self.shared.threads.helpers() {
                Ok(threads) => threads,
                Err(_) => return false,
            },
        };
        let span = Span::timed(Stage::Run, begin, &self.shared.counters.run_ns);
        // All memory first: without it nothing is written.
        for (small, output) in all.iter().zip(&mut *outputs) {
            if small.allocate(&self.shared.memory, output).is_none() {
                return false;
            }
        }
        let mut tally = Tally::default();
        for (small, output) in all.iter().zip(outputs) {
            small.write(output, threads.as_ref());
            small.add_to(&mut tally);
        }
        self.shared.counters.count(&tally);
        span.note(&tally);
        true
    }
}

/// Limit of the bytes read and written by batches without a plan: a plan cuts rows into tiles, and writes long ones around the
/// caches. Short rows need neither, so their limit is higher, and rows below `min_streamed_run_bytes` have none. The length of
/// a row is the batch's average of bytes read and written; the batch with the longest decides. Each batch has at least one row.
fn small_batch_limit(all: &[Small<'_>]) -> u64 {
    let policy = &host::POLICY;
    let row_bytes = |small: &Small<'_>| small.traffic() / small.rows.len() as u64;
    match all.iter().map(row_bytes).max().unwrap_or(0) {
        longest if longest < policy.min_streamed_run_bytes => u64::MAX,
        longest if longest < policy.min_tile_bytes => policy.streaming_bytes,
        _ => policy.small_bytes,
    }
}
