//! The words of a table: what descriptors refer to by position, each column of numbers once.

use bytemuck::{cast_slice, Pod};

use super::family::Family;
use super::kernel_abi::{DEVICE_COLUMNS_START, SMALL_BYTES};
use crate::tensor::{Error, Result};

/// A column of a table that depends on which samples a device chooses.
#[derive(Debug)]
pub(crate) struct DeviceColumn {
    pub position: u32,
    /// `count` numbers for each loop nest; the last entry is for indices out of range.
    pub values: Vec<i64>,
    pub count: usize,
    /// Numbers have 64 bits, else 32 and there is one for each loop nest.
    pub is_wide: bool,
    /// Numbers are added to the address of the sample, if it is there.
    pub is_address: bool,
}

impl DeviceColumn {
    pub fn new(values: Vec<i64>, count: usize, is_wide: bool) -> DeviceColumn {
        debug_assert!(is_wide || count == 1);
        DeviceColumn { position: 0, values, count, is_wide, is_address: false }
    }
}

/// The words of a table that hold the addresses of samples that are all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressColumn {
    /// The number of the descriptor.
    pub desc: u32,
    pub family: Family,
    /// Its first word, and how many there are.
    pub first: u32,
    pub count: u32,
    /// Bytes from the beginning of a sample.
    pub src_offset: i64,
    /// All addresses, by or: what the family depends on.
    pub bits: u64,
    pub is_by_id: bool,
}

/// The position of a column that several descriptors may share, its length, and the bytes of a number.
struct NumberColumn {
    position: u32,
    count: usize,
    size: usize,
}

/// A table that is written. Positions count its words from the beginning; one that 32 bits do not
/// hold is [`Error::TooLarge`].
pub(crate) struct TableWriter {
    pub words: Vec<u64>,
    /// Columns of up to 32 bits: lengths and offsets are written once, though several descriptors use them.
    columns: Vec<NumberColumn>,
    /// Columns that a device writes, from [`DEVICE_COLUMNS_START`] on, and where the next one begins.
    pub chosen: Vec<DeviceColumn>,
    pub next: u64,
}

impl TableWriter {
    /// A table that begins with `len` zero words, for the descriptors.
    pub fn new(len: usize) -> TableWriter {
        // Most tables go with the parameters of a launch, and most of those with small ones.
        let mut words = Vec::with_capacity(len.max(SMALL_BYTES / 8));
        words.resize(len, 0);
        TableWriter { words, columns: Vec::new(), chosen: Vec::new(), next: DEVICE_COLUMNS_START }
    }

    /// Adds a column that a device writes, unless there is the same one: `count` numbers for each sample that it selects, by
    /// its loop nest. Returns its position.
    pub fn chosen(&mut self, num_samples: usize, column: DeviceColumn) -> Result<u32> {
        let is_there = |known: &&DeviceColumn| {
            (known.count, known.is_wide, known.is_address)
                == (column.count, column.is_wide, column.is_address)
                && known.values == column.values
        };
        if let Some(known) = self.chosen.iter().find(is_there) {
            return Ok(known.position);
        }
        let position = u32::try_from(self.next).map_err(|_| too_large("words of a table"))?;
        let numbers = (num_samples * column.count) as u64;
        self.next += if column.is_wide { numbers } else { numbers.div_ceil(2) };
        self.chosen.push(DeviceColumn { position, ..column });
        Ok(position)
    }

    /// The position of numbers of 64 bits, which are appended, or if not `wide`, of 32 as for
    /// [`TableWriter::column`].
    pub fn numbers(&mut self, numbers: impl Iterator<Item = i64>, wide: bool) -> Result<u32> {
        match wide {
            true => self.push_words(numbers.map(|number| number as u64)),
            false => self.column(&numbers.map(|number| number as u32).collect::<Vec<u32>>()),
        }
    }

    /// The position of numbers of 32 bits, which are written unless there is the same column.
    pub fn column(&mut self, numbers: &[u32]) -> Result<u32> {
        match self.known(numbers) {
            Some(position) => Ok(position),
            None => self.push_column(numbers),
        }
    }

    /// Like [`TableWriter::column`], with 16 bits if all are below `narrow_below`, unless a column with 32 is there; and whether
    /// it has 16.
    pub fn lengths(&mut self, numbers: &[u32], narrow_below: u64) -> Result<(u32, bool)> {
        let most = numbers.iter().max().copied().unwrap_or(0);
        if u64::from(most) >= narrow_below {
            return Ok((self.column(numbers)?, false));
        }
        if let Some(position) = self.known(numbers) {
            return Ok((position, false));
        }
        let narrow: Vec<u16> = numbers.iter().map(|&number| number as u16).collect();
        match self.known(&narrow) {
            Some(position) => Ok((position, true)),
            None => Ok((self.push_column(&narrow)?, true)),
        }
    }

    /// The position of a column of these numbers, as wide, that was written before; `None` without one.
    fn known<T: Pod>(&self, numbers: &[T]) -> Option<u32> {
        let bytes: &[u8] = cast_slice(numbers);
        let is_there = |known: &&NumberColumn| {
            (known.count, known.size) == (numbers.len(), size_of::<T>())
                && cast_slice::<u64, u8>(&self.words[known.position as usize..]).starts_with(bytes)
        };
        self.columns.iter().find(is_there).map(|known| known.position)
    }

    /// Appends a column, which [`TableWriter::known`] finds from now on, and returns its position.
    fn push_column<T: Pod>(&mut self, numbers: &[T]) -> Result<u32> {
        let position = self.push_bytes(cast_slice(numbers))?;
        self.columns.push(NumberColumn { position, count: numbers.len(), size: size_of::<T>() });
        Ok(position)
    }

    /// Appends words and returns their position.
    pub fn push_words(&mut self, words: impl Iterator<Item = u64>) -> Result<u32> {
        let position = self.position()?;
        self.words.extend(words);
        Ok(position)
    }

    /// Appends bytes, with zeros up to a whole word, and returns their position.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<u32> {
        let position = self.position()?;
        let (whole, rest) = bytes.split_at(bytes.len() / 8 * 8);
        self.words.extend(whole.chunks_exact(8).map(bytemuck::pod_read_unaligned::<u64>));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.words.push(u64::from_ne_bytes(last));
        }
        Ok(position)
    }

    /// The position of the next word.
    pub fn position(&self) -> Result<u32> {
        u32::try_from(self.words.len()).map_err(|_| too_large("words of a table"))
    }
}

/// Writes addresses, one in a word, or how many times a power of two each is behind a base, two in a word. `base`: that and the
/// power's log2, from [`base_of`] for these samples.
pub(crate) fn write_sources<T: Copy>(
    words: &mut [u64],
    samples: &[T],
    address: impl Fn(T) -> u64,
    base: Option<(u64, u32)>,
) {
    let Some((base, shift)) = base else {
        return words.iter_mut().zip(samples).for_each(|(word, &sample)| *word = address(sample));
    };
    let id = |sample: T| (address(sample) - base) >> shift;
    let pairs = samples.chunks_exact(2);
    if let ([.., word], [last]) = (&mut *words, pairs.remainder()) {
        *word = in_memory(id(*last), 0);
    }
    words
        .iter_mut()
        .zip(pairs)
        .for_each(|(word, pair)| *word = in_memory(id(pair[0]), id(pair[1])));
}

/// An address that is not behind any of these, and the log2, at most 31, of the largest such power
/// of two that all distances from it are multiples of. `None` without samples, or if a quotient
/// needs more than 32 bits, or for `Family::Rows` if the addresses span 32 GiB.
pub(crate) fn base_of<T: Copy>(
    samples: &[T],
    address: impl Fn(T) -> u64,
    family: Family,
) -> Option<(u64, u32)> {
    let first = address(*samples.first()?);
    // Kernels of rows count vectors of 16 bytes in 32 bits.
    let fits = |spread: u64, shift: u32| {
        let is_near = family != Family::Rows || spread < 1 << 35;
        is_near && spread >> shift <= u64::from(u32::MAX)
    };
    // The bits that are not the same in all of them: without these the first is such a base, most often.
    let varied = samples.iter().fold(0, |all, &sample| all | (address(sample) ^ first));
    let shift = varied.trailing_zeros().min(31);
    let below = u64::MAX.checked_shr(varied.leading_zeros()).unwrap_or(0);
    let mask = below >> shift << shift;
    if fits(mask, shift) {
        return Some((first & !mask, shift));
    }
    let base = samples.iter().fold(first, |least, &sample| least.min(address(sample)));
    let spread = samples.iter().fold(0, |all, &sample| all | (address(sample) - base));
    fits(spread, shift).then_some((base, shift))
}

/// Two numbers of 32 bits as they follow each other in memory.
fn in_memory(first: u64, second: u64) -> u64 {
    match cfg!(target_endian = "little") {
        true => first | second << 32,
        false => first << 32 | second,
    }
}

/// The sample of every 2^shift'th item of `total`, then the last sample. There is about one hint per sample, so that
/// the kernel's search takes a step or two. `first` holds the first item of each sample.
pub(crate) fn hints_of(first: &[u32], total: u64) -> (u8, Vec<u32>) {
    let shift = (total / first.len().max(1) as u64).max(1).ilog2();
    let mut hints = Vec::with_capacity((total >> shift) as usize + 2);
    let mut sample = 0;
    for item in (0..total).step_by(1 << shift) {
        while first.get(sample + 1).is_some_and(|&first| u64::from(first) <= item) {
            sample += 1;
        }
        hints.push(sample as u32);
    }
    hints.push(first.len().saturating_sub(1) as u32);
    (shift as u8, hints)
}

/// [`Error::TooLarge`] for more than 2^31 of these.
pub(crate) fn too_large(what: &str) -> Error {
    Error::too_large(format!(
        "more than 2^31 {what} in one launch: assemble fewer samples at a time"
    ))
}
