//! Pairs of a move of which a device chooses one side or both: the kernel finds their ends itself, and leaves out what is out
//! of range.
#![allow(unsafe_code)] // A launch with raw addresses.

use bytemuck::{bytes_of, cast_slice, Zeroable};

use super::capture::refused_in_capture;
use super::executor::Executor;
use super::run::Run;
use super::upload;

use crate::cuda::launch::kernel_abi::{self, MoveDim, MoveSide, MOST_MOVE_DIMS, MOVE_BYTES};
use crate::cuda::memory::list_table::ListTable;
use crate::cuda::memory::policy::POLICY;
use crate::observe::Traffic;
use crate::plan::ChosenMove;
use crate::run_options::RunOptions;
use crate::samples::SampleList;
use crate::tensor::{DType, Error, Owner, Result, Tensor};

/// The largest unit that is loaded and stored as one.
const MOST_UNIT_BYTES: u64 = 16;

impl Executor {
    /// Enqueues moves, such as those of data and of scales, each as one launch, and returns when all are enqueued. Pairs whose index
    /// is out of range are left out, which a later call of the list reports.
    ///
    /// # Errors
    /// [`Error::Argument`] where a graph has no room for addresses, or for too many loops; [`Error::TooLarge`]; [`Error::Cuda`].
    /// No move is enqueued unless all have their loops and memory, and their addresses are on the way.
    ///
    /// # Safety
    /// Destinations may be written to, sources are read, until the work is done.
    pub unsafe fn move_chosen(
        &self,
        moves: &[ChosenMove<'_>],
        options: &RunOptions,
        out_owners: &[Owner],
    ) -> Result<Traffic> {
        let current = self.enter()?;
        let stream = self.stream_for(&current, options)?;
        let is_capturing = stream.is_capturing()?;
        if !is_capturing {
            self.keep_alive.reap_some(POLICY.max_keep_alive_queries)?;
        }
        let mut run = Run::new(self, &current, stream, is_capturing);
        run.find_producers(options)?;
        let finished = run.move_chosen(moves, options, out_owners);
        run.end(finished).map(|done| done.traffic)
    }
}

/// The launch of a move, before it is enqueued.
struct MoveLaunch {
    parameters: kernel_abi::Move,
    /// Addresses that the device does not have yet, and where they are uploaded to unless the parameters have room.
    words: Vec<u64>,
    uploaded: Option<u64>,
}

impl Run<'_> {
    /// Does the work of [`Executor::move_chosen`]; the caller ends the run.
    fn move_chosen(
        &mut self,
        moves: &[ChosenMove<'_>],
        options: &RunOptions,
        out_owners: &[Owner],
    ) -> Result<()> {
        // Loops and memory of all moves first, so that nothing is enqueued if one cannot be.
        let mut launches =
            moves.iter().map(|pairs| self.prepared(pairs)).collect::<Result<Vec<_>>>()?;
        let sides = moves.iter().flat_map(|pairs| [pairs.dsts, pairs.srcs]);
        if self.is_capturing {
            let tables = sides.clone().filter_map(ListTable::of);
            tables.for_each(|table| table.keep_for_graph(&options.keep));
        }
        let gathered = moves.iter().filter_map(|pairs| pairs.gathered).map(Tensor::owner);
        let all = sides.flat_map(SampleList::owners).chain(gathered).chain(&options.keep);
        let read = self.readable_of(all);
        // The samples that are chosen from, without their table.
        let listed = moves.iter().map(|pairs| {
            pairs.dsts.selection().map_or(pairs.dsts, |selection| &selection.list.samples)
        });
        let listed = listed.flat_map(SampleList::owners);
        let written: Vec<Owner> = out_owners.iter().chain(listed).cloned().collect();
        self.order_behind(&read, &written)?;
        // All uploads before the first launch: one that fails leaves every destination as it was.
        for MoveLaunch { parameters, words, uploaded } in &mut launches {
            let Some(address) = *uploaded else { continue };
            // SAFETY: a block of as many bytes, which is held until the event after the launches.
            unsafe { upload::bytes(self, address, cast_slice(words)) }?;
            words.clear();
            for side in [&mut parameters.dst, &mut parameters.src] {
                if side.is_inline != 0 {
                    side.addresses = address + u64::from(side.word) * 8;
                    side.is_inline = 0;
                }
            }
        }
        let policy = &self.executor.policy;
        for MoveLaunch { parameters, words, .. } in &launches {
            let grid = parameters.num_items.div_ceil(policy.threads / 32);
            let grid = options.max_blocks.map_or(grid, |most| grid.min(most));
            let header = cast_slice(bytes_of(parameters));
            let arguments = self.executor.arguments.with(header, words, policy);
            let kernel = &self.executor.moves[usize::from(arguments.is_large)];
            // SAFETY: the kernel has one parameter, of this size. What it reads and writes is the caller's promise, and held until
            // the event after this.
            unsafe { self.launch_kernel(kernel, grid, arguments.words()) }?;
        }
        self.finish(&written, true, &read, options)
    }

    /// The launch of a move, with memory for its addresses; errors as of [`Executor::move_chosen`].
    fn prepared(&mut self, pairs: &ChosenMove<'_>) -> Result<MoveLaunch> {
        let (mut words, mut bits) = (Vec::new(), 0);
        let mut side = |list, gathered| {
            let (side, side_bits) = side_of(list, gathered, &mut words);
            bits |= side_bits;
            side
        };
        let (dst, src) = (side(pairs.dsts, None), side(pairs.srcs, pairs.gathered));
        let mut parameters = kernel_abi::Move { dst, src, ..kernel_abi::Move::zeroed() };
        set_loops(&mut parameters, pairs, bits)?;
        let is_inline = (size_of::<kernel_abi::Move>() + words.len() * 8) as u64
            <= self.executor.policy.inline_bytes;
        let uploaded = match is_inline {
            true => None,
            false if self.is_capturing => {
                return Err(refused_in_capture(format_args!(
                    "the addresses of {} samples do not fit the parameters of a kernel; capture fewer, or rows of one table",
                    words.len(),
                )));
            }
            false => Some(self.allocate(words.len() as u64 * 8)?.address()),
        };
        Ok(MoveLaunch { parameters, words, uploaded })
    }
}

/// The table by which a device chooses the samples of a list; `None` if the host knows them.
fn table_of<'l>(list: &'l SampleList<'_>) -> Option<&'l ListTable> {
    list.selection().and_then(|selection| selection.list.table.downcast_ref())
}

/// A side as the kernel reads it, and all its addresses and strides by or. Addresses that the device does not have yet are
/// appended to `words`. `gathered`: a tensor of the samples, row by row, that is read in their place.
fn side_of(
    list: &SampleList<'_>,
    gathered: Option<&Tensor>,
    words: &mut Vec<u64>,
) -> (MoveSide, u64) {
    let mut side = MoveSide::default();
    let mut bits = 0;
    if let (Some(selection), Some(table)) = (list.selection(), table_of(list)) {
        let indices = &selection.indices;
        side.indices = indices.data_ptr().addr() as u64;
        side.index_step = indices.strides()[0];
        side.index_bytes = if indices.dtype() == DType::I64 { 8 } else { 4 };
        (side.addresses, side.first, side.step) = (table.addresses, table.first, table.step);
        side.num_listed = table.num_listed as u64;
        side.found = table.found.as_ptr().addr() as u64;
        bits = table.alignment;
    } else if let (Some((first, step)), None) = (list.as_table(), gathered) {
        (side.first, side.step) = (first.addr() as u64, step);
        bits = side.first | step as u64;
    } else if gathered.is_none() {
        (side.word, side.is_inline) = (words.len() as u32, 1);
        words.extend(list.data().iter().map(|data| data.addr() as u64));
        bits = words[side.word as usize..].iter().fold(0, |all, address| all | address);
    }
    if let Some(gathered) = gathered {
        let bytes = gathered.nbytes() / gathered.shape()[0].max(1) as usize;
        (side.addresses, side.is_gathered) = (0, 1);
        (side.first, side.step) = (gathered.data_ptr().addr() as u64, bytes as i64);
        bits = side.first | side.step as u64;
    }
    (side, bits)
}

/// Sets the loops of a pair in the parameters, in the largest units up to 16 bytes that everything is a multiple of, and the
/// number of items. [`Error::Argument`] for too many loops, [`Error::TooLarge`] for too many items.
fn set_loops(launch: &mut kernel_abi::Move, pairs: &ChosenMove<'_>, bits: u64) -> Result<()> {
    let (outer, row_bytes) = pairs.rows();
    if outer.len() > MOST_MOVE_DIMS {
        return Err(Error::argument(format!(
            "ids on a device: at most {MOST_MOVE_DIMS} dims that no loops have in common, got {}; make one side contiguous",
            outer.len()
        )));
    }
    let strides = outer.iter().flat_map(|dim| [dim.src_stride, dim.dst_stride]);
    let bits = strides.fold(bits | row_bytes, |all, stride| all | stride as u64);
    let unit = MOST_UNIT_BYTES.min(1 << bits.trailing_zeros().min(4));
    launch.log_unit = unit.trailing_zeros();
    launch.row_units = row_bytes / unit;
    launch.units = outer.iter().fold(launch.row_units, |all, dim| all.saturating_mul(dim.extent));
    launch.num_dims = outer.len() as u32;
    for (move_dim, dim) in launch.dims.iter_mut().zip(outer) {
        let (src_stride, dst_stride) = (dim.src_stride, dim.dst_stride);
        *move_dim = MoveDim { extent: dim.extent, src_stride, dst_stride };
    }
    let items = launch.units.div_ceil(MOVE_BYTES / unit);
    let all = items.saturating_mul(pairs.dsts.len() as u64);
    if all >= 1 << 31 {
        let text = "more than 2^31 pieces of 2 KiB in one launch: move fewer pairs at a time";
        return Err(Error::too_large(text.into()));
    }
    (launch.items, launch.num_items) = (items as u32, all as u32);
    Ok(())
}
