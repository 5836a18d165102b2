//! Memory of devices, and what is kept alive until a device has finished with it.
//!
//! | module | what it knows |
//! |---|---|
//! | `policy` | the numbers that tuning may change |
//! | `device`, `stream_key` | outputs in stream order, and the streams that use them |
//! | `pinned`, `ring` | page-locked host memory: for batches, and on the way to the device |
//! | `trial` | whether kernels read page-locked memory where it is: what an engine has found |
//! | `keep_alive` | owners of samples, until the device has read them |
//! | `blocks` | blocks of worker processes, page-locked for copies to devices |
//! | `list_table` | the table of a list's addresses on a device |

pub(crate) mod blocks;
pub(crate) mod device;
pub(crate) mod keep_alive;
pub(crate) mod list_table;
pub(crate) mod pinned;
pub(crate) mod policy;
pub(crate) mod ring;
mod stream_key;
pub(crate) mod trial;

pub(crate) use device::DeviceBlock;
pub(crate) use list_table::ListTable;
pub(crate) use pinned::PinnedBlock;
