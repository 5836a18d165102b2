//! Batch assembly: sample tensors that lie anywhere in memory become one batch, in one pass: stacked,
//! concatenated, padded or ragged, cast, normalised and permuted on the way, and handed out by DLPack.
//!
//! # The pipeline
//!
//! | stage | module | what it knows |
//! |---|---|---|
//! | import | [`dlpack`] | foreign tensors, not trusted until validated |
//! | 1 samples | [`SampleView`], [`SampleList`] | an address for each, every distinct layout once |
//! | 2 collate | [`Collate`], [`Spec`] | form and options; the shapes of the batch, and every error of input |
//! | 3 plan | [`Plan`] | flat tables: loops, merged ranges, who owns which output bytes; no memory yet |
//! | 4 engine | [`Engine`] | threads and output memory; runs plans: the host's part in `host`, a device's in `cuda` |
//! | 5 batch | [`Batch`], [`Tensor`] | the result and zero-copy views of its samples |
//! | export | [`dlpack`] | managed tensors for others |
//!
//! # The forms
//!
//! | form | samples | result |
//! |---|---|---|
//! | [`Collate::stack`] | equal shapes | `[N, *shape]` |
//! | [`Collate::concat`] | equal but for one dim | joined along it, lengths, offsets |
//! | [`Collate::pad`] | equal rank | `[N, *max]`, lengths, perhaps a mask |
//! | [`Collate::ragged`] | equal but for dim 0 | values `[sum, *rest]`, offsets, lengths |
//!
//! # On a GPU
//!
//! With feature `cuda` the same plan runs on a device: one launch for all leaves, on a stream of the
//! caller's ([`Engine::assemble_on`]) or of the engine's own. Nothing waits for the device unless the
//! batch is wanted on the host. Who uses a batch elsewhere than on that stream orders himself behind it
//! by [`Tensor::ready_on`]. The driver is found at run time; without one [`Error::NoDriver`] says so.
//!
//! # Who watches
//!
//! [`Plan::explain`] says what would be done, [`Engine::stats`] what was, by path and stage. Feature `tracing`
//! makes a span of each [`Stage`]; with feature `cuda`, `WINDROW_NVTX=1` makes NVTX ranges of them.
//!
//! # Why not ...?
//!
//! - *A lazy graph of operations?* A batch is assembled once; a plan that is made and run in one call
//!   is easier to reason about than one that is kept.
//! - *One copy per sample through a library call?* Below some kilobytes a sample, the calls cost more
//!   than the bytes.
//! - *The global rayon pool?* It belongs to the program. An engine has its own, or the caller's.
#![doc = ""]
#![doc = include_str!("../README.md")]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("windrow counts bytes in 64 bits and addresses them: it needs a 64-bit target");

#[cfg(all(
    feature = "cuda",
    not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))
))]
compile_error!(
    "feature `cuda` of windrow works on Linux x86-64 and aarch64: leave it off for this target"
);

mod affine;
mod arena;
mod batch;
mod collate;
#[cfg(feature = "cuda")]
mod cuda;
// Of the engine only what the models need, without a driver.
#[cfg(all(test, windrow_loom))]
#[path = "cuda/model_tests.rs"]
mod cuda_model_tests;
mod devices;
pub mod dlpack;
mod dtype;
mod engine;
mod error;
mod explain;
mod field;
mod fork;
mod geometry;
mod host;
mod kinds;
mod layout;
mod offsets;
mod plan;
mod sample;
mod scalar;
mod span;
mod spec;
mod stats;
mod stream;
mod sync;
mod target;
mod tensor;

pub use affine::Affine;
pub use batch::{Batch, Fields, Parts};
pub use collate::{Collate, Form, Mask, Pad, PerDim, Side, Transform};
pub use devices::{cuda_build, device_of, devices, CudaBuild, DeviceInfo};
pub use dtype::{DType, Element};
pub use engine::{Engine, EngineOptions, Filled};
pub use error::{DriverError, Error, Facet, Hint, Mismatch, Result};
pub use explain::Explain;
pub use host::{PoolStats, RowsAhead};
pub use kinds::Kind;
pub use layout::{Dims, Layout, MAX_NDIM};
pub use offsets::Offsets;
pub use plan::{Leaf, Plan};
pub use sample::{SampleList, SampleView, Samples};
pub use scalar::Scalar;
pub use span::{nvtx_state, Span, Stage};
pub use spec::{Padded, Placement, Spec};
pub use stats::Stats;
pub use stream::{OutputMemory, RunOptions, Stream};
pub use target::{AsTarget, Target};
#[doc(hidden)]
pub use tensor::new_owners;
pub use tensor::{Device, Owner, Tensor};
