//! Batches so small that the tables of a plan would take longer to make than the batch: rows on the host, copied
//! or cast one after the other by the calling thread, each batch into one allocation.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use smallvec::{smallvec, SmallVec};

use super::engine::Engine;
use crate::batch::{Fields, Filled, Parts};
use crate::collate::{Collate, Form, MaskBits, Pad, Transform};
use crate::host::{self, write_numbers, write_rows, Helpers, MemoryPool, RowPadding, RowsMemory};
use crate::observe::{Span, Stage, Tally};
use crate::plan::{self, padded_dims, padded_extent, Leaf, Path, Target};
use crate::samples::SampleRows;
use crate::tensor::{DType, Device, Dims, Layout, Offsets, Tensor};

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
    /// The caller's memory for the data, if it is to go there.
    out: Option<&'r Target<'r>>,
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
    fn new(
        rows: SampleRows<'r>,
        collate: &Collate,
        out: Option<&'r Target<'r>>,
        device: Option<Device>,
    ) -> Option<Small<'r>> {
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
            RowForm::Stacked if own.is_empty() => (smallvec![count], total),
            RowForm::Stacked => (smallvec![count, extents[1]], total),
            RowForm::Padded(RowPadding { extent, .. }, _) => {
                (smallvec![count, *extent], real_total(&rows, *extent))
            }
            RowForm::Joined { .. } => (smallvec![total], total),
        };
        shape.extend_from_slice(rest);
        let elems = real.checked_mul(rest.iter().product())? as u64;
        let layout = Layout::compact(dtype, &shape).ok()?;
        if !out.is_none_or(|out| out.is_dense(dtype, &layout)) {
            return None;
        }
        let data_bytes = layout.numel() as u64 * dtype.size() as u64;
        Some(Small { rows, out, form, dtype, layout, data_bytes, elems })
    }

    /// The addresses of the caller's memory that is written.
    fn written(&self) -> Option<Range<usize>> {
        let begin = self.out?.data.addr();
        Some(begin..begin + self.data_bytes as usize)
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

    /// The memory of the batch, of which nothing is written yet; `None` without memory.
    fn room(&self, memory: &Arc<MemoryPool>) -> Option<Filled> {
        let (count, mut fields) = (self.rows.len() as i64, Fields::of_rows(self.rows.len()));
        let mut end = if self.out.is_some() { 0 } else { self.data_bytes };
        let mut place = |bytes: i64| {
            let at = end.next_multiple_of(ALIGN);
            end = at + bytes as u64;
            at
        };
        let (mut offsets, mut mask, mut index_at) = (None, None, None);
        let lengths_at = match &self.form {
            RowForm::Stacked => {
                let data = match self.out {
                    Some(_) => None,
                    None => {
                        let block = memory.allocate(end).ok()?;
                        Some(block.into_tensor(self.dtype, self.layout.clone()))
                    }
                };
                return Some(Filled { data, fields });
            }
            RowForm::Padded(padding, bits) => {
                let at = place(8 * count);
                mask = bits.as_ref().map(|bits| {
                    (place(mask_bytes(bits, count, padding)), bits.dtype, padding.extent)
                });
                at
            }
            &RowForm::Joined { offsets_i32, batch_index, .. } => {
                let at = place(8 * count);
                let dtype = if offsets_i32 { DType::I32 } else { DType::I64 };
                offsets = Some((place((count + 1) * dtype.size() as i64), dtype));
                index_at = batch_index.then(|| place(8 * self.layout.shape()[0]));
                at
            }
        };
        let block = memory.allocate(end).ok()?.share();
        // Every size fits: see `is_countable`.
        let part = |at: u64, dtype: DType, shape: &[i64]| {
            let layout = Layout::compact(dtype, shape).ok()?;
            Some(Box::new(block.part(at, dtype, layout)))
        };
        fields.lengths = part(lengths_at, DType::I64, &[count]);
        fields.offsets = offsets.and_then(|(at, dtype)| part(at, dtype, &[count + 1]));
        fields.mask = mask.and_then(|(at, dtype, extent)| part(at, dtype, &[count, extent]));
        let total = &self.layout.shape()[..1];
        fields.batch_index = index_at.and_then(|at| part(at, DType::I64, total));
        let data = self.out.is_none().then(|| block.part(0, self.dtype, self.layout.clone()));
        Some(Filled { data, fields })
    }

    /// Makes the batch in its room.
    fn write(&self, room: &mut Filled, threads: Option<&Helpers>) {
        let (rows, fields) = (&self.rows, &mut room.fields);
        let own = room.data.as_ref().map(Tensor::data_ptr);
        let data = own.or(self.out.map(|out| out.data)).unwrap_or(std::ptr::null_mut());
        let memory = RowsMemory { data, bytes: self.data_bytes as usize, dtype: self.dtype };
        let (mut padding, mut mask) = (None, None);
        match &self.form {
            RowForm::Stacked => {}
            RowForm::Padded(of_rows, bits) => {
                let real = rows.lengths_within(of_rows.extent);
                // SAFETY: just allocated, a number for each row.
                #[allow(unsafe_code)]
                unsafe {
                    write_numbers(fields.lengths.as_deref(), real.iter().copied());
                }
                let dims = smallvec![(0, of_rows.side)];
                fields.set_parts(Parts::Padded { dims, lengths: Arc::from(&*real) });
                (padding, mask) = (Some(of_rows), fields.mask.as_deref().zip(bits.as_ref()));
            }
            RowForm::Joined { is_ragged, .. } => {
                let each = || (0..rows.len()).map(|index| rows.at(index).1);
                let offsets = Offsets::of_checked(each());
                let of_places = each()
                    .enumerate()
                    .flat_map(|(row, length)| std::iter::repeat_n(row as i64, length as usize));
                // SAFETY: just allocated: a length for each row, one boundary more, and a number for each place of all rows.
                #[allow(unsafe_code)]
                unsafe {
                    write_numbers(fields.lengths.as_deref(), each());
                    write_numbers(fields.offsets.as_deref(), offsets.as_slice().iter().copied());
                    write_numbers(fields.batch_index.as_deref(), of_places);
                }
                fields.max_length = is_ragged.then(|| rows.extents()[1]);
                fields.set_parts(Parts::Joined { dim: 0, offsets });
            }
        }
        // SAFETY: memory just allocated for each row with its padding; or the caller's for this call, which has the batch's dtype
        // and layout (`Small::new`) and is apart from all samples (`are_apart`). The mask was just allocated, with an element for
        // each place of all rows.
        #[allow(unsafe_code)]
        unsafe {
            write_rows(rows, padding, mask, &memory, threads);
        }
    }

    /// Adds the account of this batch.
    fn add_to(&self, tally: &mut Tally, made: &Fields) {
        let real_bytes = self.elems * self.dtype.size() as u64;
        let is_moved = self.rows.meta().dtype == self.dtype;
        tally.paths.push(match (is_moved, real_bytes == self.data_bytes) {
            (false, _) => Path::Cast,
            (true, false) => Path::Strided,
            (true, true) if real_bytes > 0 && self.rows.is_one_range() => Path::Memcpy,
            (true, true) => Path::Gather,
        });
        let others = [&made.lengths, &made.mask, &made.batch_index];
        let others: u64 = others.into_iter().flatten().map(|field| field.nbytes() as u64).sum();
        tally.samples += self.rows.len() as u64;
        tally.bytes_in += self.bytes_in();
        tally.bytes_out += self.data_bytes + others;
        tally.data_bytes += self.data_bytes;
        tally.padding_bytes += self.data_bytes - real_bytes;
    }
}

impl Engine {
    /// Assembles all leaves without a plan, if together they read and write less than `limit_of` them, if the samples are
    /// row-major rows on the host that differ in dim 0 at most, and if no more is asked for than to copy or cast
    /// them and to pad dim 0, into dense outputs if any. Otherwise, and if an input is wrong, returns `None` and does nothing: a
    /// plan does the work or reports the error. `begin`: when the work on the samples began. `most_bytes`: a lower limit.
    pub(super) fn small_leaves<'s, 'a: 's>(
        &self,
        leaves: &[Leaf<'s, 'a>],
        begin: Option<Instant>,
        most_bytes: u64,
    ) -> Option<Vec<Filled>> {
        let of_leaf = |leaf: &Leaf<'s, 'a>| -> Option<Small<'s>> {
            let rows = SampleRows::of_list(leaf.samples, host::POLICY.small_bytes)?;
            Small::new(rows, leaf.collate, leaf.out, self.shared.device)
        };
        let all = leaves.iter().map(of_leaf).collect::<Option<SmallVec<[Small<'_>; 1]>>>()?;
        self.write_small(&all, begin, most_bytes.min(limit_of(&all)), |write| {
            // All memory first: without it nothing is written.
            let room = |small: &Small<'_>| small.room(&self.shared.memory);
            let mut made = all.iter().map(room).collect::<Option<Vec<_>>>()?;
            all.iter().zip(&mut made).for_each(|(small, made)| write(small, made));
            Some(made)
        })
    }

    /// As [`Engine::small_leaves`], of rows that are one leaf.
    pub(super) fn small_rows<'r>(
        &self,
        rows: SampleRows<'r>,
        collate: &Collate,
        out: Option<&'r Target<'r>>,
        begin: Option<Instant>,
        most_bytes: u64,
    ) -> Option<Filled> {
        let small = Small::new(rows, collate, out, self.shared.device);
        self.write_one(small.as_ref()?, begin, most_bytes)
    }

    /// As [`Engine::small_leaves`], of one leaf, whose rows may be more if they are short.
    pub(super) fn assemble_rows<'r>(
        &self,
        rows: SampleRows<'r>,
        collate: &Collate,
        out: Option<&'r Target<'r>>,
        begin: Option<Instant>,
    ) -> Option<Filled> {
        let small = Small::new(rows, collate, out, self.shared.device);
        let small = small.as_ref()?;
        self.write_one(small, begin, limit_of(std::slice::from_ref(small)))
    }

    fn write_one(
        &self,
        small: &Small<'_>,
        begin: Option<Instant>,
        most_bytes: u64,
    ) -> Option<Filled> {
        self.write_small(std::slice::from_ref(small), begin, most_bytes, |write| {
            let mut made = small.room(&self.shared.memory)?;
            write(small, &mut made);
            Some(made)
        })
    }

    /// Makes all batches with `make`, if they are small enough. `make` writes each of them, into its room, through the function
    /// it receives. Without memory it returns `None`, and has written nothing.
    fn write_small<'r, T>(
        &self,
        all: &[Small<'r>],
        begin: Option<Instant>,
        most_bytes: u64,
        make: impl FnOnce(&mut dyn FnMut(&Small<'r>, &mut Filled)) -> Option<T>,
    ) -> Option<T> {
        let traffic = all.iter().map(Small::traffic).fold(0, u64::saturating_add);
        if traffic >= most_bytes || self.shared.reference || !are_apart(all) {
            return None;
        }
        let threads = match host::is_small(traffic) {
            true => None,
            false => self.shared.threads.helpers().ok()?,
        };
        let span = Span::timed(Stage::Run, begin, &self.shared.counters.run_ns);
        let mut tally = Tally::default();
        let made = make(&mut |small, room| {
            small.write(room, threads.as_ref());
            small.add_to(&mut tally, &room.fields);
        })?;
        self.shared.counters.count(&tally);
        span.note(&tally);
        Some(made)
    }
}

/// The bytes from which on batches need a plan. Short rows are never cut into tiles, and need none for longer, unless there are so
/// many that a plan has to see first whether there is room for what is made for each.
fn limit_of(all: &[Small<'_>]) -> u64 {
    let policy = &host::POLICY;
    let is_short = |small: &Small<'_>| {
        let count = small.rows.len();
        count < plan::POLICY.many_samples
            && small.traffic() / (count as u64) < policy.min_tile_bytes
    };
    match all.iter().all(is_short) {
        true => policy.streaming_bytes,
        false => policy.small_bytes,
    }
}

/// Whether each output is apart from the others and from all samples. Where it is not, a plan tells, which also takes outputs
/// that are columns of one table.
fn are_apart(all: &[Small<'_>]) -> bool {
    let written = || all.iter().filter_map(Small::written);
    written().enumerate().all(|(index, bytes)| {
        let is_apart =
            |other: Range<usize>| other.start.max(bytes.start) >= other.end.min(bytes.end);
        written().skip(index + 1).all(is_apart)
            && all.iter().all(|small| small.rows.are_apart_from(&bytes))
    })
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
    let extent = padded_extent(pad, 0, 1, longest).ok()?;
    let fits = longest <= extent || pad.truncate;
    fits.then_some(RowPadding { extent, side: *pad.side.at(0), value })
}
