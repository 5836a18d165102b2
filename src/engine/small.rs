//! Batches so small that the tables of a plan would take longer to make than the batch: rows on the host, copied
//! or cast one after the other by the calling thread, each batch into one allocation.

use std::sync::Arc;
use std::time::Instant;

use smallvec::{smallvec, SmallVec};

use super::engine::Engine;
use crate::batch::{Batch, Fields, Parts};
use crate::collate::{Collate, Form, MaskBits, Pad, Transform};
use crate::host::{self, write_numbers, write_rows, Helpers, MemoryPool, RowPadding};
use crate::observe::{Span, Stage, Tally};
use crate::plan::{padded_dims, padded_extent, Leaf, Path};
use crate::samples::SampleRows;
use crate::tensor::{DType, Device, Dims, Layout, Offsets};

/// How rows are in a batch.
#[derive(Clone, Copy)]
enum RowForm {
    /// Each is one of dim 0.
    Stacked,
    /// As stacked, within padding along their own dim 0.
    Padded(RowPadding, Option<MaskBits>),
    /// One after the other.
    Joined { offsets_i32: bool, batch_index: bool, is_ragged: bool },
}

/// Tensors of one allocation begin at multiples of this.
const ALIGN: u64 = 64;

/// A batch that needs no plan.
struct Small<'r> {
    rows: SampleRows<'r>,
    form: RowForm,
    dtype: DType,
    layout: Layout,
    data_bytes: u64,
    /// Elements that are not padding.
    elems: u64,
}

impl<'r> Small<'r> {
    /// `None` if more is asked for than to copy or cast the rows and to pad dim 0; and if anything is wrong, which a
    /// plan then tells. `device`: where batches go if the options do not say.
    fn new(rows: SampleRows<'r>, collate: &Collate, device: Option<Device>) -> Option<Small<'r>> {
        let (meta, count) = (rows.meta(), rows.len() as i64);
        let (from, dtype) = (meta.dtype, collate.dtype.unwrap_or(meta.dtype));
        let is_plain = collate.misplaced.is_none()
            && collate.increments.is_none()
            && collate.transform == Transform::default()
            && collate.device.or(device).is_none_or(|device| device == Device::Cpu)
            && (from == dtype || from.is_arithmetic() && dtype.is_arithmetic());
        if !is_plain {
            return None;
        }
        let extents @ [_, _, total] = rows.extents();
        let own = meta.layout.shape();
        let form = row_form_of(collate, own, dtype, extents)?;
        let rest = own.get(1..).unwrap_or_default();
        is_countable(&form, rest, rows.len(), extents[1])?;
        let (mut shape, real): (Dims, i64) = match &form {
            RowForm::Stacked => (smallvec![count], total),
            RowForm::Padded(RowPadding { extent, .. }, _) => {
                (smallvec![count, *extent], real_total(&rows, *extent))
            }
            RowForm::Joined { .. } => (smallvec![total], total),
        };
        shape.extend_from_slice(if let RowForm::Stacked = form { own } else { rest });
        let elems = real.checked_mul(rest.iter().product())? as u64;
        let layout = Layout::compact(dtype, &shape).ok()?;
        let data_bytes = layout.numel() as u64 * dtype.size() as u64;
        Some(Small { rows, form, dtype, layout, data_bytes, elems })
    }

    fn bytes_in(&self) -> u64 {
        self.elems * self.rows.meta().dtype.size() as u64
    }

    /// Bytes read and written; of what is not data, as many as there may be.
    fn traffic(&self) -> u64 {
        let others = match self.form {
            RowForm::Stacked => 0,
            RowForm::Padded(padding, Some(mask)) => {
                mask_bytes(&mask, self.rows.len() as i64, &padding) as u64
            }
            RowForm::Padded(_, None) => 0,
            RowForm::Joined { batch_index, .. } => {
                if batch_index {
                    self.layout.shape()[0].unsigned_abs().saturating_mul(8)
                } else {
                    0
                }
            }
        };
        let numbers = match self.form {
            RowForm::Stacked => 0,
            _ => 16 * self.rows.len() as u64,
        };
        let all = [self.bytes_in(), self.data_bytes, others, numbers];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// Makes the batch; `None` without memory.
    fn write(&self, memory: &Arc<MemoryPool>, threads: Option<&Helpers>) -> Option<Batch> {
        match &self.form {
            RowForm::Stacked => self.write_stacked(memory, threads),
            RowForm::Padded(padding, mask) => self.write_padded(memory, threads, padding, *mask),
            &RowForm::Joined { offsets_i32, batch_index, is_ragged } => {
                let dtype = if offsets_i32 { DType::I32 } else { DType::I64 };
                self.write_joined(memory, threads, dtype, batch_index, is_ragged)
            }
        }
    }

    fn write_stacked(&self, memory: &Arc<MemoryPool>, threads: Option<&Helpers>) -> Option<Batch> {
        let block = memory.allocate(self.data_bytes).ok()?;
        let data = block.into_tensor(self.dtype, self.layout.clone());
        // SAFETY: memory for as many rows that was just allocated.
        #[allow(unsafe_code)]
        unsafe {
            write_rows(&self.rows, None, None, &data, threads);
        }
        Some(Batch::new(data, Fields::of_rows(self.rows.len())))
    }

    fn write_padded(
        &self,
        memory: &Arc<MemoryPool>,
        threads: Option<&Helpers>,
        padding: &RowPadding,
        mask: Option<MaskBits>,
    ) -> Option<Batch> {
        let rows = &self.rows;
        let count = rows.len() as i64;
        let mut end = self.data_bytes;
        let lengths_at = place(&mut end, 8 * count as u64);
        let mask = match mask {
            Some(bits) => {
                let layout = Layout::compact(bits.dtype, &[count, padding.extent]).ok()?;
                Some((place(&mut end, mask_bytes(&bits, count, padding) as u64), layout, bits))
            }
            None => None,
        };
        let block = memory.allocate(end).ok()?.share();
        let data = block.part(0, self.dtype, self.layout.clone());
        let lengths = block.part(lengths_at, DType::I64, row_of(DType::I64, count)?);
        let mask = mask.map(|(at, layout, bits)| (block.part(at, bits.dtype, layout), bits));
        let real = rows.lengths_within(padding.extent);
        // SAFETY: memory that was just allocated: for each row with its padding, a length for each row, and an element
        // of the mask for each place of all rows.
        #[allow(unsafe_code)]
        unsafe {
            write_numbers(&lengths, real.iter().copied());
            write_rows(rows, Some(padding), mask.as_ref(), &data, threads);
        }
        let mut fields = Fields::of_rows(rows.len());
        fields.lengths = Some(Box::new(lengths));
        fields.mask = mask.map(|(mask, _)| Box::new(mask));
        let dims = smallvec![(0, padding.side)];
        fields.set_parts(Parts::Padded { dims, lengths: Arc::from(&*real) });
        Some(Batch::new(data, fields))
    }

    /// `of_offsets`: their dtype.
    fn write_joined(
        &self,
        memory: &Arc<MemoryPool>,
        threads: Option<&Helpers>,
        of_offsets: DType,
        batch_index: bool,
        is_ragged: bool,
    ) -> Option<Batch> {
        let rows = &self.rows;
        let (count, total) = (rows.len() as i64, self.layout.shape()[0]);
        let mut end = self.data_bytes;
        let lengths_at = place(&mut end, 8 * count as u64);
        let boundaries_at = place(&mut end, (count as u64 + 1) * of_offsets.size() as u64);
        let index_at = batch_index.then(|| place(&mut end, 8 * total as u64));
        let index = row_of(DType::I64, total)?;
        let block = memory.allocate(end).ok()?.share();
        let data = block.part(0, self.dtype, self.layout.clone());
        let lengths = block.part(lengths_at, DType::I64, row_of(DType::I64, count)?);
        let boundaries = block.part(boundaries_at, of_offsets, row_of(of_offsets, count + 1)?);
        let index = index_at.map(|at| block.part(at, DType::I64, index));
        let each = || (0..rows.len()).map(|index| rows.at(index).1);
        let offsets = Offsets::of_checked(each());
        // SAFETY: memory that was just allocated: for all rows, a length for each, one boundary more, and a number for
        // each place of all rows.
        #[allow(unsafe_code)]
        unsafe {
            write_numbers(&lengths, each());
            write_numbers(&boundaries, offsets.as_slice().iter().copied());
            if let Some(index) = &index {
                let numbers = each()
                    .enumerate()
                    .flat_map(|(row, length)| std::iter::repeat_n(row as i64, length as usize));
                write_numbers(index, numbers);
            }
            write_rows(rows, None, None, &data, threads);
        }
        let mut fields = Fields::of_rows(rows.len());
        fields.lengths = Some(Box::new(lengths));
        fields.offsets = Some(Box::new(boundaries));
        fields.batch_index = index.map(Box::new);
        fields.max_length = is_ragged.then(|| rows.extents()[1]);
        fields.set_parts(Parts::Joined { dim: 0, offsets });
        Some(Batch::new(data, fields))
    }

    /// Adds the account of this batch.
    fn add_to(&self, tally: &mut Tally, made: &Batch) {
        let real_bytes = self.elems * self.dtype.size() as u64;
        let is_moved = self.rows.meta().dtype == self.dtype;
        tally.paths.push(match (is_moved, real_bytes == self.data_bytes) {
            (false, _) => Path::Cast,
            (true, false) => Path::Strided,
            (true, true) if real_bytes > 0 && self.rows.is_one_range() => Path::Memcpy,
            (true, true) => Path::Gather,
        });
        let others = [made.lengths(), made.mask(), made.batch_index()];
        let others: u64 = others.into_iter().flatten().map(|field| field.nbytes() as u64).sum();
        tally.samples += self.rows.len() as u64;
        tally.bytes_in += self.bytes_in();
        tally.bytes_out += self.data_bytes + others;
        tally.data_bytes += self.data_bytes;
        tally.padding_bytes += self.data_bytes - real_bytes;
    }
}

impl Engine {
    /// Assembles all leaves without a plan, if together they read and write less than 1 MiB, if the samples are
    /// row-major rows on the host that differ in dim 0 at most, and if no more is asked for than to copy or cast
    /// them and to pad dim 0. Otherwise, and if an input is wrong, returns `None` and does nothing: a plan does the
    /// work or reports the error. `begin`: when the work on the samples began. `most_bytes`: a limit below 1 MiB.
    pub(super) fn small_leaves<'s, 'a: 's>(
        &self,
        leaves: &[Leaf<'s, 'a>],
        begin: Instant,
        most_bytes: u64,
    ) -> Option<Vec<Batch>> {
        let of_leaf = |leaf: &Leaf<'s, 'a>| -> Option<Small<'s>> {
            let rows = SampleRows::of_list(leaf.samples, host::POLICY.small_bytes)
                .filter(|_| leaf.out.is_none())?;
            Small::new(rows, leaf.collate, self.shared.device)
        };
        let all = leaves.iter().map(of_leaf).collect::<Option<SmallVec<[Small<'_>; 1]>>>()?;
        let most_bytes = most_bytes.min(limit_of(&all));
        self.write_small(&all, begin, most_bytes, |write| {
            let mut batches = Vec::with_capacity(all.len());
            for small in &all {
                batches.push(write(small)?);
            }
            Some(batches)
        })
    }

    /// As [`Engine::small_leaves`], of rows that are one leaf without an output.
    pub(super) fn small_rows(
        &self,
        rows: SampleRows<'_>,
        collate: &Collate,
        begin: Instant,
        most_bytes: u64,
    ) -> Option<Batch> {
        let small = Small::new(rows, collate, self.shared.device);
        let all = small.as_slice();
        let small = all.first()?;
        self.write_small(all, begin, most_bytes, |write| write(small))
    }

    /// As [`Engine::small_leaves`], of one leaf, whose rows may be more if they are short.
    pub(super) fn assemble_rows(
        &self,
        rows: SampleRows<'_>,
        collate: &Collate,
        begin: Instant,
    ) -> Option<Batch> {
        let small = Small::new(rows, collate, self.shared.device);
        let all = small.as_slice();
        let small = all.first()?;
        self.write_small(all, begin, limit_of(all), |write| write(small))
    }

    /// Makes all batches with `make`, if they are small enough. `make` writes each batch through the function it receives, which returns
    /// `None` without memory.
    fn write_small<'r, T>(
        &self,
        all: &[Small<'r>],
        begin: Instant,
        most_bytes: u64,
        make: impl FnOnce(&mut dyn FnMut(&Small<'r>) -> Option<Batch>) -> Option<T>,
    ) -> Option<T> {
        let traffic = all.iter().map(Small::traffic).fold(0, u64::saturating_add);
        if traffic >= most_bytes || self.shared.reference {
            return None;
        }
        let threads = match host::is_small(traffic) {
            true => None,
            false => self.shared.threads.helpers().ok()?,
        };
        let span = Span::timed(Stage::Run, begin, &self.shared.counters.run_ns);
        let mut tally = Tally::default();
        let made = make(&mut |small| {
            let made = small.write(&self.shared.memory, threads.as_ref());
            if let Some(made) = &made {
                small.add_to(&mut tally, made);
            }
            made
        })?;
        self.shared.counters.count(&tally);
        span.note(&tally);
        Some(made)
    }
}

/// The bytes from which on batches need a plan. Short rows are never cut into tiles, and need none for longer.
fn limit_of(all: &[Small<'_>]) -> u64 {
    let policy = &host::POLICY;
    let is_short =
        |small: &Small<'_>| small.traffic() / (small.rows.len() as u64) < policy.min_tile_bytes;
    match all.iter().all(is_short) {
        true => policy.streaming_bytes,
        false => policy.small_bytes,
    }
}

/// Where a part of so many bytes is in a block that ends at `end` so far.
fn place(end: &mut u64, bytes: u64) -> u64 {
    let at = end.next_multiple_of(ALIGN);
    *end = at + bytes;
    at
}

/// Of a tensor of one dim.
fn row_of(dtype: DType, extent: i64) -> Option<Layout> {
    Layout::compact(dtype, &[extent]).ok()
}

/// The elements along dim 0 of all rows that are within an extent.
fn real_total(rows: &SampleRows<'_>, extent: i64) -> i64 {
    match rows.extents() {
        [_, longest, total] if longest <= extent => total,
        _ => rows.lengths_within(extent).iter().sum(),
    }
}

/// Of a mask with an element for each place along dim 0 of each row.
fn mask_bytes(mask: &MaskBits, count: i64, padding: &RowPadding) -> i64 {
    count * padding.extent * mask.dtype.size() as i64
}

/// `None` where a number of elements or bytes could leave 64 bits, as with vast extents beside one of zero.
fn is_countable(form: &RowForm, rest: &[i64], count: usize, longest: i64) -> Option<i64> {
    let extent = match form {
        RowForm::Padded(padding, _) => padding.extent.max(longest),
        _ => longest,
    };
    // No element has more bytes, nor has a number beside one.
    let sizes = [16, count as i64, extent];
    sizes.iter().chain(rest).try_fold(1i64, |all, &size| all.checked_mul(size.max(1)))
}

/// How rows of this shape are in the batch; `None` if a plan has to see to it.
fn row_form_of(
    collate: &Collate,
    shape: &[i64],
    dtype: DType,
    [shortest, longest, total]: [i64; 3],
) -> Option<RowForm> {
    let differ = shortest != longest;
    match &collate.form {
        Form::Stack => (!differ).then_some(RowForm::Stacked),
        Form::Concat { dim } => {
            let is_first = *dim == 0 || *dim == -(shape.len() as i64);
            let form = RowForm::Joined { offsets_i32: false, batch_index: false, is_ragged: false };
            (is_first && !shape.is_empty()).then_some(form)
        }
        &Form::Ragged { offsets_i32, batch_index } => {
            let fits = !offsets_i32 || i32::try_from(total).is_ok();
            let form = RowForm::Joined { offsets_i32, batch_index, is_ragged: true };
            (fits && !shape.is_empty()).then_some(form)
        }
        Form::Pad(pad) => {
            let padding = padding_of(pad, shape, dtype, differ, longest)?;
            Some(RowForm::Padded(padding, pad.mask_bits().ok()?))
        }
    }
}

fn padding_of(
    pad: &Pad,
    shape: &[i64],
    dtype: DType,
    differ: bool,
    longest: i64,
) -> Option<RowPadding> {
    pad.check(shape.len()).ok()?;
    let value = pad.value.bits(dtype).ok()?;
    let mut differs: smallvec::SmallVec<[bool; 4]> = smallvec![false; shape.len()];
    *differs.first_mut()? = differ;
    let padded = padded_dims(pad, &differs).ok()?;
    if !padded[0] || padded[1..].contains(&true) {
        return None;
    }
    let extent = padded_extent(pad, 0, longest).ok()?;
    let fits = longest <= extent || pad.truncate;
    fits.then_some(RowPadding { extent, side: *pad.side.at(0), value })
}
