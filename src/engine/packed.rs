//! `pack`: many tensors in one buffer.

use std::collections::HashMap;

use super::engine::Engine;
use crate::plan::Target;
use crate::samples::{SampleView, TensorMeta};
use crate::tensor::{
    bytes_of, DType, Device, Error, Hint, Layout, Mismatch, Places, Result, Tensor,
};

/// Leaves begin at multiples of this: a cache line.
const ALIGN: u64 = 64;

/// Tensors with names in one buffer: see [`Engine::pack`].
#[derive(Clone, Debug)]
pub struct Packed {
    buffer: Tensor,
    leaves: Vec<(String, Tensor)>,
}

impl Packed {
    /// All bytes, uint8 `[nbytes]`.
    pub fn buffer(&self) -> &Tensor {
        &self.buffer
    }

    /// The number of bytes.
    pub fn nbytes(&self) -> usize {
        self.buffer.nbytes()
    }

    /// The first leaf of a name, as a view of the buffer; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.leaves.iter().find(|(leaf_name, _)| leaf_name == name).map(|(_, tensor)| tensor)
    }

    /// The names of the leaves and views of the buffer, in the order of the tree.
    pub fn leaves(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.leaves.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The first byte of each leaf in the buffer: multiples of 64.
    pub fn offsets(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        let first = self.buffer.data_ptr().addr();
        self.leaves.iter().map(move |(_, tensor)| tensor.data_ptr().addr() - first)
    }
}

impl Engine {
    /// Copies all leaves of one tree into one buffer, by one [`Engine::copy_many`]: a model's
    /// parameters, the metadata of a step. A tree is its leaves in order, each with the name that
    /// leads to it. The buffer is where the leaves are, which is one place; leaves without elements
    /// may be anywhere, and without others it is on the host. Leaves are stored row-major and in
    /// native byte order. Leaves of the same address, dtype, shape and strides are stored once;
    /// bytes between leaves are 0.
    ///
    /// ```
    /// use windrow::{Engine, SampleView};
    /// let (weight, step) = ([1f32, 2.0, 3.0, 4.0], [7i64]);
    /// let packed = Engine::host().pack(&[
    ///     ("encoder.weight", SampleView::from_slice(&weight, &[2, 2])?),
    ///     ("step", SampleView::from_slice(&step, &[])?),
    /// ])?;
    /// assert_eq!((packed.nbytes(), packed.offsets().collect::<Vec<_>>()), (72, vec![0, 64]));
    /// assert_eq!(packed.get("encoder.weight").unwrap().as_slice::<f32>()?, weight);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::copy_many`], with the name as the path; [`Error::Device`] for leaves in several places; [`Error::TooLarge`].
    pub fn pack(&self, tree: &[(impl AsRef<str>, SampleView<'_>)]) -> Result<Packed> {
        // A leaf without bytes may name any device.
        let has_bytes = |meta: &TensorMeta| meta.layout.numel() > 0;
        let first = tree.iter().find(|(_, leaf)| has_bytes(leaf.meta()));
        let device = first.map_or(Device::Cpu, |(_, leaf)| leaf.meta().device);
        let mut places = Places::new(ALIGN);
        let mut known: HashMap<(usize, &TensorMeta), usize> = HashMap::new();
        // `stored` has the position of each stored leaf, `which` the stored leaf of each leaf.
        let (mut stored, mut which) = (Vec::new(), Vec::with_capacity(tree.len()));
        let (mut offsets, mut used) = (Vec::new(), 0);
        for (position, (name, leaf)) in tree.iter().enumerate() {
            let TensorMeta { dtype, device: leaf_device, layout } = leaf.meta();
            if *leaf_device != device && has_bytes(leaf.meta()) {
                let found = Mismatch::new(None, device.to_string(), leaf_device.to_string());
                let found = found.with_hint(Hint::Text("copy the leaves to one place first"));
                return Err(found.into_error(Error::Device).about("tree").at_path(name.as_ref()));
            }
            let bytes = bytes_of(*dtype, layout.shape());
            // A leaf without bytes may have any address.
            let next = stored.len();
            let found = match bytes {
                0 => next,
                _ => *known.entry((leaf.data().addr(), leaf.meta())).or_insert(next),
            };
            which.push(found);
            if found < next {
                continue;
            }
            let text = "the leaves are beyond 64 bits together";
            offsets.push(places.place(bytes).ok_or_else(|| Error::too_large(text.to_owned()))?);
            stored.push(position);
            used += bytes;
        }
        let buffer = match used == places.end() {
            true => self.unwritten(places.end(), device)?,
            // The bytes between the leaves are zeros.
            false => self.empty(DType::U8, &[places.end() as i64], device)?,
        };
        let leaf_at = |(&position, &offset): (&usize, &u64)| {
            let meta = tree[position].1.meta();
            buffer.part(offset, meta.dtype.native(), meta.layout.shape())
        };
        let parts = stored.iter().zip(&offsets).map(leaf_at).collect::<Result<Vec<Tensor>>>()?;
        let mut targets = Vec::with_capacity(parts.len());
        debug_assert!(parts.windows(2).all(|pair| {
            pair[0].data_ptr().addr() + pair[0].nbytes() <= pair[1].data_ptr().addr()
        }));
        for part in &parts {
            let layout = Layout::compact(part.dtype(), part.shape())?;
            debug_assert_eq!(part.device(), device);
            // SAFETY: a part of a buffer that nothing else has seen, disjoint from the others.
            #[allow(unsafe_code)]
            let target =
                unsafe { Target::from_raw_parts(part.data_ptr(), part.dtype(), device, layout) };
            targets.push(target.owned_by(buffer.owner()));
        }
        let leaves: Vec<SampleView<'_>> =
            stored.iter().map(|&position| tree[position].1.clone()).collect();
        self.copy_many(&mut targets, &leaves).map_err(|error| {
            let position = error.sample().and_then(|pair| stored.get(pair));
            let error = error.renumbered(|pair| stored.get(pair).copied().unwrap_or(pair));
            match position {
                Some(&position) => error.at_path(tree[position].0.as_ref()),
                None => error,
            }
        })?;
        let leaves = tree.iter().zip(which);
        let leaves =
            leaves.map(|((name, _), found)| (name.as_ref().to_owned(), parts[found].clone()));
        let leaves = leaves.collect();
        Ok(Packed { buffer, leaves })
    }
}
