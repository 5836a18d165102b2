//! Samples by indices on a device: a kernel makes the table of the launch that assembles them. What the host knows of that table
//! goes with its parameters, however many samples there are.
//!
//! The problem: the host does not know which samples these are, and to ask would be to wait for the device. The plan does not
//! depend on them; of its table only columns with a number for each sample do, such as its address.
//!
//! ```text
//! SelectedTable   | entries of the columns | their numbers for each loop nest | the table's own words |     parameters of select
//! table           | the table's own words ... | column 0: s0 s1 s2 ... | column 1: s0 s1 s2 ... |           written by select
//!                   copied                      from DEVICE_COLUMNS_START on: the number of the sample's loop nest, or its
//!                                               address plus that number
//! ```
//!
//! ```text
//! list_table      once for a list: the addresses of its samples, unless these are rows of one table, and their layouts
//! enqueue_table   memory for the table; the words as parameters, or uploaded if these have no room; the launch of select
//!                 an index out of range: the last loop nest, and a note in page-locked memory, which the host reads later
//! ```
//!
//! Indices that are copied to the host would be simpler, but wait for the device. `take`, the batch, `check` and the release of
//! both are some 13 900 instructions of the host outside of the driver, for 256 samples as for 65 536 (`make bench-check`).
#![allow(unsafe_code)] // Copies and launches with raw addresses.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::{bytes_of, cast, cast_slice, Zeroable};

use super::capture::refused_in_capture;
use super::executor::Executor;
use super::run::Run;
use super::upload;
use crate::cuda::launch::argument_pool::{ArgumentPool, KernelArguments};
use crate::cuda::launch::kernel_abi;
use crate::cuda::launch::launch_cache::OutputAddresses;
use crate::cuda::launch::policy::Policy;
use crate::cuda::launch::table::Table;
use crate::cuda::launch::table_writer::DeviceColumn;
use crate::cuda::memory::device::DeviceBlock;
use crate::cuda::memory::list_table::{IndexCheck, ListTable, NUM_FOUND};
use crate::samples::{SampleList, Selection};
use crate::tensor::{DType, Error, Owner, Result, Tensor};

impl Executor {
    /// Makes the table by which the device finds the samples of a list by indices: their addresses,
    /// unless they are rows of one table, and the position of each one's `TensorMeta`, if there are
    /// several (`metas`, positions in `representatives`). It has the zeros of a sample, too, if all
    /// have as many bytes. Blocks until it is there. A list without samples is a panic.
    ///
    /// # Errors
    /// [`Error::Argument`] if kernels do not read page-locked memory as the host has it; [`Error::OutOfMemory`]; [`Error::Cuda`].
    pub fn list_table(
        &self,
        samples: &SampleList<'_>,
        representatives: &SampleList<'_>,
        metas: &[u32],
    ) -> Result<Arc<ListTable>> {
        let current = self.enter()?;
        let stream = self.stream.on(&current);
        if !self.reads_mapped(&current, true)? {
            return Err(Error::argument(
                "indices on the device report those out of range through page-locked memory, which kernels of this \
                 machine do not share with the host, as under confidential computing: give indices on the host"
                    .into(),
            ));
        }
        let found = self.pinned.take(&current, NUM_FOUND as u64 * 8)?;
        // SAFETY: as many bytes of a block that nothing else has.
        unsafe { found.as_ptr().write_bytes(0, NUM_FOUND * 8) };
        let rows = samples.as_table();
        let mut words: Vec<u64> = match rows {
            Some(_) => Vec::new(),
            None => samples.data().iter().map(|data| data.addr() as u64).collect(),
        };
        let (first, step) = (samples.address(0).addr() as u64, rows.map_or(0, |(_, step)| step));
        let alignment = words.iter().fold(first | step as u64, |all, address| all | address);
        let num_addresses = words.len() as u64;
        words.extend(in_pairs(metas, |meta| meta));
        let zero_bytes = row_bytes(representatives).unwrap_or(0);
        let zeros = (words.len() as u64 * 8).next_multiple_of(16);

        let mut run = Run::new(self, &current, stream, false);
        let mut block = None;
        let uploaded = (|| {
            if zeros + zero_bytes == 0 {
                return Ok(());
            }
            let memory = run.allocate(zeros + zero_bytes)?;
            // SAFETY: the block has as many bytes, which nothing else has.
            unsafe {
                stream.memset(memory.address() + zeros, 0, zero_bytes as usize)?;
                upload::bytes(&mut run, memory.address(), cast_slice(&words))?;
            }
            // Graphs use it without a wait for what is outside of them; and so no call has to wait for it.
            stream.synchronize()?;
            block = Some(memory);
            Ok(())
        })();
        let done = run.end(uploaded)?;
        drop(done);
        let address = block.as_ref().map_or(0, |block| block.address());
        Ok(Arc::new(ListTable {
            addresses: if num_addresses > 0 { address } else { 0 },
            metas: if metas.is_empty() { 0 } else { address + num_addresses * 8 },
            zeros: (address + zeros, zero_bytes),
            block,
            first,
            step,
            num_metas: representatives.len(),
            num_listed: samples.len(),
            alignment,
            found,
            num_calls: AtomicU32::new(0),
            is_in_graph: AtomicBool::new(false),
            in_graphs: Mutex::default(),
        }))
    }
}

/// The bytes of a sample, if all samples are compact and have as many. The list has a sample at least.
fn row_bytes(representatives: &SampleList<'_>) -> Option<u64> {
    let bytes = |index| {
        let meta = representatives.meta(index);
        meta.layout.is_compact().then(|| meta.layout.numel() as u64 * meta.dtype.size() as u64)
    };
    bytes(0).filter(|_| (1..representatives.len()).all(|index| bytes(index) == bytes(0)))
}

/// The table of a launch whose samples a device chooses, as the kernel that makes it is told of it: but for the addresses
/// that are written to it is the same for each call.
#[derive(Debug)]
pub(crate) struct SelectedTable {
    /// The existing entries of each column, then their numbers, then the words that the host knows: those of `table`.
    words: Vec<u64>,
    pub table: Table,
    outs: OutputAddresses,
}

impl SelectedTable {
    /// The table of a launch whose samples a device chooses; `outs` says which descriptors write to which output.
    pub fn new(table: Table, outs: OutputAddresses) -> SelectedTable {
        let mut words = words_of(table.chosen(), table.as_bytes().len() / 8);
        words.extend_from_slice(cast_slice(table.as_bytes()));
        SelectedTable { words, table, outs }
    }

    /// The parameters of the launch for the table at this address, for a run that writes to these addresses.
    pub fn arguments<'p>(
        &self,
        table: u64,
        addresses: &[u64],
        pool: &'p ArgumentPool,
        policy: &Policy,
    ) -> KernelArguments<'p> {
        let mut arguments = self.table.arguments(Some(table), pool, policy);
        self.outs.place(arguments.last_mut(self.table.header().desc_words()), addresses);
        arguments
    }
}

/// Enqueues the kernel that makes a table, and returns the table's address. The run then has a call of the list, whose indices
/// out of range are found. Refused in a capture if the parameters have no room.
pub(crate) fn enqueue_table(
    run: &mut Run<'_>,
    selection: &Selection<SampleList<'_>>,
    list: &ListTable,
    selected: &SelectedTable,
    addresses: &[u64],
) -> Result<u64> {
    let (executor, policy) = (run.executor, &run.executor.policy);
    let bytes = size_of::<kernel_abi::Select>() + selected.words.len() * 8;
    let is_inline = bytes as u64 <= policy.inline_bytes;
    if run.is_capturing && !is_inline {
        return Err(refused_in_capture(
            "the samples of this list have too many layouts for the parameters of a kernel",
        ));
    }
    // Memory of the graph comes from the engine's own stream, which may itself be a part of the capture.
    if run.is_capturing && executor.stream.on(run.current).is_capturing()? {
        return Err(refused_in_capture(
            "indices on a device need another stream than the engine's own",
        ));
    }
    let block = match run.is_capturing {
        true => captured_block(run, list, selected.table.chosen_bytes())?,
        false => run.allocate(selected.table.chosen_bytes())?,
    };
    // The mark is never 0, which says that nothing was found.
    let call = list.num_calls.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1;
    let index_check = IndexCheck { list: Arc::clone(&selection.list.table), call };
    let num_words = selected.table.as_bytes().len() / 8;
    let first_word = selected.words.len() - num_words;
    let mut select = kernel_abi::Select {
        table: block.address(),
        call: call.into(),
        slot: index_check.slot() as u32,
        num_columns: selected.table.chosen().len() as u32,
        first_word: first_word as u32,
        num_words: num_words as u32,
        ..select_of(list, &selection.indices)
    };
    let arguments = if !is_inline {
        let mut words = selected.words.clone();
        selected.outs.place(&mut words[first_word..], addresses);
        let uploaded = run.allocate(words.len() as u64 * 8)?;
        // SAFETY: the block has as many bytes, and is held until the event after the launch.
        unsafe { upload::bytes(run, uploaded.address(), cast_slice(&words)) }?;
        select.words = uploaded.address();
        executor.arguments.with(cast_slice(bytes_of(&select)), &[], policy)
    } else {
        let select = cast_slice(bytes_of(&select));
        let mut arguments = executor.arguments.with(select, &selected.words, policy);
        selected.outs.place(arguments.last_mut(num_words), addresses);
        arguments
    };
    let kernel = &executor.select[usize::from(arguments.is_large)];
    let grid = select.num_samples.max(select.num_words).div_ceil(policy.threads);
    // SAFETY: the kernel has one parameter, of this size. The list's table, the indices and the memory that it
    // writes are held until the event after the launch that comes next; in a graph as the caller promised.
    unsafe { run.launch_kernel(kernel, grid, arguments.words()) }?;
    run.index_check = Some(index_check);
    Ok(block.address())
}

/// The kernel's parameters for a list and for indices into it.
fn select_of(list: &ListTable, indices: &Tensor) -> kernel_abi::Select {
    kernel_abi::Select {
        indices: indices.data_ptr().addr() as u64,
        index_step: indices.strides()[0],
        index_bytes: if indices.dtype() == DType::I64 { 8 } else { 4 },
        num_samples: indices.shape()[0] as u32,
        addresses: list.addresses,
        first: list.first,
        step: list.step,
        kinds: list.metas,
        num_kinds: list.num_metas as u32,
        num_listed: list.num_listed as u64,
        found: list.found.as_ptr().addr() as u64,
        ..kernel_abi::Select::zeroed()
    }
}

/// The words of columns as the kernel reads them: an entry for each column, then their numbers. `more` words will
/// follow.
fn words_of(columns: &[DeviceColumn], more: usize) -> Vec<u64> {
    let num_values: usize = columns.iter().map(|column| column.values.len()).sum();
    let entries = columns.len() * size_of::<kernel_abi::Column>() / 8;
    let mut words = Vec::with_capacity(entries + num_values + more);
    words.resize(entries, 0);
    for (number, column) in columns.iter().enumerate() {
        let entry = kernel_abi::Column {
            position: column.position,
            values: words.len() as u32,
            count: column.count as u32,
            is_wide: column.is_wide.into(),
            is_address: column.is_address.into(),
        };
        words[number * 2..][..2].copy_from_slice(&cast::<kernel_abi::Column, [u64; 2]>(entry));
        match column.is_wide {
            true => words.extend(column.values.iter().map(|&value| value as u64)),
            false => words.extend(in_pairs(&column.values, |value| value as u32)),
        }
    }
    words
}

/// Numbers of 32 bits, two in a word, the first in its low half.
fn in_pairs<'n, T: Copy>(
    numbers: &'n [T],
    low: impl Fn(T) -> u32 + 'n,
) -> impl Iterator<Item = u64> + 'n {
    numbers.chunks(2).map(move |pair| {
        u64::from(low(pair[0])) | u64::from(pair.get(1).map_or(0, |&number| low(number))) << 32
    })
}

/// Memory for a table that a graph makes each time that it is launched: as long as the list's own. It is allocated on a
/// stream of ours, which the host waits for, since a graph cannot wait for work outside of it.
fn captured_block(run: &Run<'_>, list: &ListTable, bytes: u64) -> Result<Arc<DeviceBlock>> {
    let stream = run.executor.stream.on(run.current);
    let block = Arc::new(run.executor.memory.allocate(run.current, stream, bytes)?);
    stream.synchronize()?;
    list.keep_for_graph(&[Arc::clone(&block) as Owner]);
    Ok(block)
}
