//! The methods of `Tensor`, `Batch` and `SampleList`, as Python calls them.

pub(crate) mod batch;
pub(crate) mod sample_list;
pub(crate) mod tensor;
