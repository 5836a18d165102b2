//! Numbers that results on a device are made of: positions, indices, boundaries, in one copy for a call. No
//! figure: `graphs` and `sequences_on_device` save a copy for each column of numbers, which no GPU has timed.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::tensor::Owner;
use windrow::{Collate, DType, Device, Error, SampleList, Tensor};

use crate::collate::job::Job;
use crate::engine::default::default_engine;
use crate::ground::errors::OrPyErr;
use crate::ownership::copy::copy_by;
use crate::ownership::holder::{producers_of, Holder};
use crate::ownership::owners::Owners;
use crate::ownership::storage_watch::StorageWatches;
use crate::samples::imported::Imported;

/// Numbers that are uploaded together.
#[derive(Default)]
pub(crate) struct UploadedNumbers(Vec<i64>);

impl UploadedNumbers {
    /// Appends numbers and returns the position of the first; [`Error::OutOfMemory`] if there is no room.
    pub fn add(&mut self, numbers: impl IntoIterator<Item = i64>) -> windrow::Result<i64> {
        let (first, numbers) = (self.0.len() as i64, numbers.into_iter());
        let count = numbers.size_hint().0;
        let bytes = (count as u64).saturating_mul(8);
        self.0.try_reserve(count).map_err(|_| Error::OutOfMemory { bytes })?;
        self.0.extend(numbers);
        Ok(first)
    }

    /// Enqueues the copy of all numbers to a device, and returns them there.
    pub fn upload(self, py: Python<'_>, device: Device) -> PyResult<Uploaded> {
        let shape = [self.0.len() as i64];
        let host = Tensor::from_vec(self.0, &shape).or_py_err(py)?;
        // Stacked, which needs no launch: joined, its offsets would be written too.
        let to_device = Collate::stack().device(device);
        let upload =
            || copy_by(default_engine(), &host, &to_device, None)?.view(0, host.layout().clone());
        let tensor = py.detach(upload).or_py_err(py)?;
        let owner = Arc::new(Holder::from_tensor(tensor.clone(), producers_of(&tensor)));
        Ok(Uploaded { tensor, owner })
    }
}

pub(crate) struct Uploaded {
    /// The numbers, int64, in one dim.
    pub tensor: Tensor,
    /// Keeps the tensor, and has the stream that it is written on.
    owner: Owner,
}

impl Uploaded {
    /// The job that joins `list` along its last dim, as `dtype`. Its samples are views of the numbers, or in memory that `owners`
    /// keep (not checked).
    pub fn job(
        &self,
        name: &str,
        dtype: DType,
        owners: &Owners,
        list: SampleList<'static>,
    ) -> PyResult<Job> {
        let owners = owners.with(Arc::clone(&self.owner))?;
        let dim = list.common_ndim().map_or(0, |ndim| ndim as i64 - 1);
        let samples = Arc::new(Imported { list, owners, watches: StorageWatches::default() });
        Ok(Job::for_leaf(samples, Collate::concat(dim).cast(dtype), name.to_owned()))
    }
}
