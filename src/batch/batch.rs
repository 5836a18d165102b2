//! [`Batch`]: the result, and the views of its samples.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::batch::sample_bounds::SampleBounds;
use crate::cuda::Completion;
use crate::plan::{check_writable, AsTarget, BatchShape, Role, Target};
use crate::tensor::{DType, Error, Result, Tensor};

/// One assembled batch. Its tensors share memory with what they are exported to.
#[derive(Clone, Debug)]
pub struct Batch {
    data: Tensor,
    fields: Fields,
}

/// The parts of a batch besides its data. Most batches have few of them, hence the boxes.
#[derive(Clone, Debug)]
pub struct Fields {
    /// The real length of each sample (after truncation), int64: `[N]`, or `[N, k]` where `k != 1` dims are padded.
    /// `None` for a stack.
    pub lengths: Option<Box<Tensor>>,
    /// The start of each sample along the joined dim, `[N + 1]`, for concat and ragged: int64, or int32 by
    /// [`Ragged::offsets`](crate::Ragged::offsets).
    pub offsets: Option<Box<Tensor>>,
    /// `[N, *padded dims]`, if asked for; bool, or of [`Pad::mask_dtype`](crate::Pad::mask_dtype).
    pub mask: Option<Box<Tensor>>,
    /// The sample of each row, int64 `[sum]`, if asked for.
    pub batch_index: Option<Box<Tensor>>,
    /// The scales of quantised elements, float32 or float8_e8m0fnu, if there are some: see [`Batch::scales`].
    pub scales: Option<Box<Tensor>>,
    /// The bytes that all tensors of this batch, and of the others of its call, are in: uint8, one
    /// allocation. Only if asked for, see [`Plan::in_arena`](crate::Plan::in_arena).
    pub arena: Option<Box<Tensor>>,
    /// The largest length, for a ragged batch.
    pub max_length: Option<i64>,
    /// Number of samples.
    pub num_samples: usize,
    bounds: SampleBounds,
    /// Errors that only the device can find, known once it has run; `None` if nothing is late.
    pub(crate) completion: Option<Arc<Completion>>,
}

impl Fields {
    /// Fields without tensors, to be filled in for [`Batch::try_new`].
    ///
    /// ```
    /// use windrow::batch::{Fields, SampleBounds};
    /// let fields = Fields::with_bounds(2, SampleBounds::rows());
    /// assert!(fields.lengths.is_none() && fields.bounds().are_rows());
    /// ```
    pub fn with_bounds(num_samples: usize, bounds: SampleBounds) -> Fields {
        Fields {
            lengths: None,
            offsets: None,
            mask: None,
            batch_index: None,
            scales: None,
            arena: None,
            max_length: None,
            num_samples,
            bounds,
            completion: None,
        }
    }

    /// Makes the lengths and the offsets on the host, and sets the bounds, the largest length and
    /// the number of samples. The mask, the batch index and the scales stay absent, and so do all
    /// tensors if a device chooses the samples.
    ///
    /// # Errors
    /// Those of [`Tensor::from_vec`]. Int32 offsets that do not fit fail in [`BatchShape::new`].
    ///
    /// ```
    /// use windrow::batch::Fields;
    /// use windrow::plan::BatchShape;
    /// use windrow::{Collate, Ragged, SampleList, SampleView};
    /// let rows: SampleList = [&[1i32, 2][..], &[3]].into_iter().map(SampleView::from).collect();
    /// let fields = Fields::new(&BatchShape::new(&rows, &Collate::ragged(Ragged::new()))?)?;
    /// assert_eq!(fields.offsets.unwrap().as_slice::<i64>()?, [0, 2, 3]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new(batch_shape: &BatchShape) -> Result<Fields> {
        let mut fields = Fields::for_shape(batch_shape);
        batch_shape.for_each_metadata(|role, dtype, shape, numbers| {
            if batch_shape.is_selected {
                // A device writes them, of the samples that it chooses.
                return Ok(());
            }
            let numbers = match dtype {
                DType::I32 => Tensor::from_vec(numbers.iter().map(|&n| n as i32).collect(), shape)?,
                _ => Tensor::from_vec(numbers.to_vec(), shape)?,
            };
            match role {
                Role::Offsets => fields.offsets = Some(Box::new(numbers)),
                _ => fields.lengths = Some(Box::new(numbers)),
            }
            Ok(())
        })?;
        Ok(fields)
    }

    /// The fields of a batch of this shape, without tensors: bounds, largest length and number of
    /// samples.
    pub(crate) fn for_shape(batch_shape: &BatchShape) -> Fields {
        let bounds = SampleBounds::new(batch_shape);
        let mut fields = Fields::with_bounds(batch_shape.num_samples, bounds);
        fields.max_length = batch_shape.max_length;
        fields
    }

    /// The bounds of each sample's real part.
    pub fn bounds(&self) -> &SampleBounds {
        &self.bounds
    }

    /// The lengths or the offsets, by role; `None` for any other role, and if the batch has none.
    pub(crate) fn number(&self, role: Role) -> Option<&Tensor> {
        match role {
            Role::Lengths => self.lengths.as_deref(),
            Role::Offsets => self.offsets.as_deref(),
            _ => None,
        }
    }
}

impl Batch {
    /// A batch rebuilt from tensors in another place, such as a copy of an arena.
    ///
    /// # Errors
    /// [`Error::Argument`] if a part would be outside of the data, if there are not as many as
    /// samples, or if a dim is padded twice. The tensors of `fields` are not checked.
    ///
    /// ```
    /// use windrow::batch::{Fields, SampleBounds};
    /// use windrow::{Batch, Tensor};
    /// let data = Tensor::from_vec(vec![1u8, 2, 3, 4], &[2, 2])?;
    /// let batch = Batch::try_new(data, Fields::with_bounds(2, SampleBounds::rows()))?;
    /// assert_eq!(batch.sample(1)?.as_slice::<u8>()?, [3, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn try_new(data: Tensor, fields: Fields) -> Result<Batch> {
        if !fields.bounds.fit(fields.num_samples, data.shape()) {
            let text =
                format!("{} samples in data of shape {:?}", fields.num_samples, data.shape());
            let bounds = fields.bounds.summary();
            return Err(Error::argument(format!("{text} do not fit the bounds: {bounds}")));
        }
        Ok(Batch { data, fields })
    }

    /// A batch of data of the shape that the fields were made for, which only a debug build checks.
    pub(crate) fn new(data: Tensor, fields: Fields) -> Batch {
        debug_assert!(fields.bounds.fit(fields.num_samples, data.shape()));
        Batch { data, fields }
    }

    /// The samples, assembled.
    pub fn data(&self) -> &Tensor {
        &self.data
    }

    /// The samples, assembled, without the rest of the batch.
    pub fn into_data(self) -> Tensor {
        self.data
    }

    /// The data and everything else, of which [`Batch::try_new`] makes a batch again.
    pub fn into_parts(self) -> (Tensor, Fields) {
        (self.data, self.fields)
    }

    /// Everything but the data.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The real length of each sample (after truncation), int64: `[N]`, or `[N, k]` where `k != 1` dims are padded.
    /// `None` for a stack.
    pub fn lengths(&self) -> Option<&Tensor> {
        self.fields.lengths.as_deref()
    }

    /// The start of each sample along the joined dim, `[N + 1]`, for concat and ragged: int64, or int32 by
    /// [`Ragged::offsets`](crate::Ragged::offsets).
    pub fn offsets(&self) -> Option<&Tensor> {
        self.fields.offsets.as_deref()
    }

    /// `[N, *padded dims]`, if asked for; bool, or of [`Pad::mask_dtype`](crate::Pad::mask_dtype).
    pub fn mask(&self) -> Option<&Tensor> {
        self.fields.mask.as_deref()
    }

    /// The sample of each row, int64 `[sum]`, if asked for.
    pub fn batch_index(&self) -> Option<&Tensor> {
        self.fields.batch_index.as_deref()
    }

    /// The scales by which [`Quantize`](crate::Quantize) divided elements: of each sample `[N]`; of each row the shape of the
    /// data without its last dim; of blocks the same with the number of blocks in its place.
    pub fn scales(&self) -> Option<&Tensor> {
        self.fields.scales.as_deref()
    }

    /// The bytes of all tensors of the call, if they were asked for in one allocation.
    pub fn arena(&self) -> Option<&Tensor> {
        self.fields.arena.as_deref()
    }

    /// The largest length, for a ragged batch.
    pub fn max_length(&self) -> Option<i64> {
        self.fields.max_length
    }

    /// Waits until the batch has been written, and returns what went wrong on the way. On the host
    /// a batch is complete when its call returns, and so is a view; a batch of a graph is not
    /// waited for, nor is one of [`Fields::with_bounds`]: [`Tensor::synchronize`] waits for its
    /// data.
    ///
    /// # Errors
    /// [`Error::Index`] if an index on the device was out of range, see [`crate::engine::Resident::take`]; [`Error::Cuda`] if the
    /// device has failed.
    pub fn check(&self) -> Result<()> {
        if let Some(completion) = &self.fields.completion {
            return completion.check();
        }
        Ok(())
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.fields.num_samples
    }

    /// Whether there is no sample; never true of a batch that was assembled.
    pub fn is_empty(&self) -> bool {
        self.fields.num_samples == 0
    }

    /// The real part of sample `index`, without a copy.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such sample, or if only a device knows how long it is.
    pub fn sample(&self, index: usize) -> Result<Tensor> {
        if index >= self.fields.num_samples {
            return Err(Error::argument(format!("sample {index} of {}", self.fields.num_samples)));
        }
        self.fields.bounds.view(&self.data, index)
    }
}

impl AsRef<Tensor> for Batch {
    fn as_ref(&self) -> &Tensor {
        &self.data
    }
}

/// The data, and the scales if there are some: the other tensors are no part of it. Nothing else
/// may hold the data or the scales, a clone of any tensor in the same memory included.
impl AsTarget for Batch {
    fn as_target(&mut self) -> Result<Target<'_>> {
        // Small batches have their fields in the block of the data.
        let Batch { data, fields } = self;
        let Fields { lengths, offsets, mask, batch_index, scales, .. } = &mut *fields;
        let has_scales = scales.is_some();
        let parts = [scales, lengths, offsets, mask, batch_index].into_iter().flatten();
        let mut tensors: SmallVec<[&mut Tensor; 6]> = smallvec::smallvec![&mut *data];
        tensors.extend(parts.map(|part| &mut **part));
        check_writable(&mut tensors)?;
        if has_scales {
            tensors.swap(0, 1);
            check_writable(&mut tensors)?;
        }
        drop(tensors);
        let target = Target::over(data);
        Ok(match &mut fields.scales {
            Some(scales) => target.with_scales(Target::over(scales)),
            None => target,
        })
    }
}
