//! [`TensorMeta`]: tensor metadata, deduplicated across samples.

use std::collections::{HashMap, TryReserveError};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::OnceLock;

use crate::samples::memo::Memo;
use crate::tensor::{are_compact, checked_numel, DType, Device, Layout};

/// Metadata of a tensor, stored once for all samples that share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorMeta {
    /// The element type.
    pub dtype: DType,
    /// The device of the memory.
    pub device: Device,
    /// Shape and strides.
    pub layout: Layout,
}

impl TensorMeta {
    /// Whether this is the metadata of these parts.
    #[inline]
    pub(crate) fn is(&self, dtype: DType, device: Device, shape: &[i64], strides: &[i64]) -> bool {
        self.dtype == dtype
            && self.device == device
            && same_dims(self.layout.shape(), shape)
            && same_dims(self.layout.strides(), strides)
    }

    /// Bytes of one place along dim 0 of a row-major sample; without dims those of an element.
    #[inline]
    pub(crate) fn unit(&self) -> i64 {
        let rest = self.layout.shape().get(1..).unwrap_or_default();
        rest.iter().fold(self.dtype.size() as i64, |bytes, &extent| bytes.wrapping_mul(extent))
    }

    /// The largest extent of dim 0 that a row like this one may have, so that its bytes fit an
    /// `i64`; negative if it is no row. Rows are row-major, on [`Device::Cpu`], not
    /// [`Device::Pinned`], and have a dim 0 with a byte or more for each place along it.
    fn max_row_len(&self) -> i64 {
        let (shape, strides) = (self.layout.shape(), self.layout.strides());
        let [_, rest @ ..] = shape else { return -1 };
        let elements = checked_numel(rest).filter(|_| are_compact(strides, shape));
        let row_bytes = elements.and_then(|count| count.checked_mul(self.dtype.size() as i64));
        match row_bytes {
            Some(bytes @ 1..) if self.device == Device::Cpu => i64::MAX / bytes,
            _ => -1,
        }
    }
}

/// Equality of a few numbers, without a call of `memcmp`.
#[inline]
pub(crate) fn same_dims(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

/// Every distinct `TensorMeta`, by position. A list of many lengths asks here once for each sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metas {
    all: Vec<TensorMeta>,
    /// The extent of dim 0 of the first one; 0 without dims.
    pub first_length: i64,
    /// The largest extent of dim 0 that a row like the first one may have; negative if that is no row.
    pub max_row_len: i64,
    /// The newest of each hash; made with the second `TensorMeta`.
    newest: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    /// The one before each that has the same hash, or itself.
    before: Vec<u32>,
    /// The seed differs between processes, so that layouts of one hash cannot be prepared.
    seed: u64,
    /// The latest plan for samples with this metadata, once one is asked for.
    pub plan_memo: OnceLock<Memo>,
}

impl Metas {
    /// The table of one metadata.
    pub fn one(meta: TensorMeta) -> Metas {
        let mut metas = Metas::default();
        metas.insert(meta);
        metas
    }

    /// Whether a sample, if it is row-major, differs from the first one in the extent of dim 0 at most, and both are rows.
    #[inline]
    pub fn has_row(&self, dtype: DType, device: Device, shape: &[i64]) -> bool {
        let Some(first) = self.all.first() else { return false };
        let first_shape = first.layout.shape();
        self.max_row_len >= 0
            && first.dtype == dtype
            && first.device == device
            && matches!(shape, [length, rest @ ..] if first_shape.len() == shape.len()
                && same_dims(&first_shape[1..], rest) && (0..=self.max_row_len).contains(length))
    }

    /// All metadata, in the order in which they were added.
    pub fn all(&self) -> &[TensorMeta] {
        &self.all
    }

    /// The position of this metadata; `None` if it is not there.
    pub fn find(
        &self,
        dtype: DType,
        device: Device,
        shape: &[i64],
        strides: &[i64],
    ) -> Option<u32> {
        let is = |id: u32| self.all[id as usize].is(dtype, device, shape, strides);
        if self.newest.is_empty() {
            return (!self.all.is_empty() && is(0)).then_some(0);
        }
        let mut id = *self.newest.get(&self.hash(dtype, device, shape, strides))?;
        while !is(id) {
            let before = self.before[id as usize];
            if before == id {
                return None;
            }
            id = before;
        }
        Some(id)
    }

    /// Makes room for one more metadata.
    pub fn reserve(&mut self) -> Result<(), TryReserveError> {
        self.all.try_reserve(1)?;
        let count = self.all.len() + 1;
        if count < 2 {
            return Ok(());
        }
        self.before.try_reserve(count - self.before.len())?;
        match count > self.newest.capacity() {
            // Lists of many lengths soon have as many metas as samples.
            true => self.newest.try_reserve(4 * count),
            false => Ok(()),
        }
    }

    /// A copy with room for one more metadata, without the plan.
    pub fn with_capacity(&self) -> Result<Metas, TryReserveError> {
        let Metas { first_length, max_row_len, seed, .. } = *self;
        let mut copy = Metas { first_length, max_row_len, seed, ..Metas::default() };
        copy.all.try_reserve(self.all.len() + 1)?;
        copy.all.extend_from_slice(&self.all);
        copy.reserve()?;
        copy.before.extend_from_slice(&self.before);
        copy.newest.extend(&self.newest);
        Ok(copy)
    }

    /// Adds metadata that is not there, which is not checked, returns its position, and forgets the plan. Without
    /// memory, which `reserve` makes sure of, the process ends.
    pub fn insert(&mut self, meta: TensorMeta) -> u32 {
        let id = u32::try_from(self.all.len()).expect("fewer than 2^32 distinct layouts");
        self.plan_memo = OnceLock::new();
        if id == 0 {
            self.first_length = meta.layout.shape().first().copied().unwrap_or(0);
            self.max_row_len = meta.max_row_len();
        }
        self.all.push(meta);
        if id == 1 {
            self.seed = RandomState::new().hash_one(0);
            self.enter(0);
        }
        if id > 0 {
            self.enter(id);
        }
        id
    }

    /// Enters metadata `id` into the hash table; all before it have been entered.
    fn enter(&mut self, id: u32) {
        let TensorMeta { dtype, device, layout } = &self.all[id as usize];
        let hash = self.hash(*dtype, *device, layout.shape(), layout.strides());
        self.before.push(self.newest.insert(hash, id).unwrap_or(id));
    }

    /// The hash of metadata, by a few multiplications: the standard one takes longer than all else that an import does.
    fn hash(&self, dtype: DType, device: Device, shape: &[i64], strides: &[i64]) -> u64 {
        let place = match device {
            Device::Cpu => 0,
            Device::Pinned => 1,
            Device::Cuda(ordinal) => 2 + u64::from(ordinal),
        };
        let dims = shape.iter().chain(strides).map(|&dim| dim as u64);
        let parts = [dtype as u64, place, shape.len() as u64].into_iter().chain(dims);
        parts.fold(self.seed, |hash, part| {
            let product = u128::from(hash ^ part) * 0x9E37_79B9_7F4A_7C15;
            (product ^ (product >> 64)) as u64
        })
    }
}

/// A key that is a hash already: a `u64`, all else panics.
#[derive(Clone, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64")
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_meta_is_found_again() {
        let mut metas = Metas::default();
        let all: Vec<TensorMeta> = (0..1000)
            .map(|n| {
                let layout = Layout::try_new(DType::U8, &[n % 37, n], Some(&[n * n, 1])).unwrap();
                let device = if n % 2 == 0 { Device::Cpu } else { Device::Cuda(n as u32 % 3) };
                TensorMeta { dtype: if n % 5 == 0 { DType::U8 } else { DType::I8 }, device, layout }
            })
            .collect();
        let find = |metas: &Metas, meta: &TensorMeta| {
            metas.find(meta.dtype, meta.device, meta.layout.shape(), meta.layout.strides())
        };
        for (id, meta) in (0u32..).zip(&all) {
            assert_eq!(find(&metas, meta), None);
            assert_eq!(metas.insert(meta.clone()), id);
        }
        for (id, meta) in (0u32..).zip(&all) {
            assert_eq!(find(&metas, meta), Some(id));
        }
    }
}
