//! Batch assembly: a list of sample tensors, wherever they are in memory, becomes one batch in a single
//! pass: stacked, concatenated, padded or ragged, and cast, normalised and permuted on the way.
//!
//! ```
//! use windrow::{Collate, Ragged, DType, Engine, Mask, Pad};
//!
//! let engine = Engine::host();
//! let rows: [&[i32]; 3] = [&[1, 2, 3], &[4], &[5, 6]];
//!
//! let padded = engine.assemble(&rows, &Collate::pad(Pad::new().value(-1).mask(Mask::Real)).cast(DType::I64))?;
//! assert_eq!(padded.data().shape(), [3, 3]);
//! assert_eq!(padded.data().as_slice::<i64>()?, [1, 2, 3, 4, -1, -1, 5, 6, -1]);
//! assert_eq!(padded.lengths().unwrap().as_slice::<i64>()?, [3, 1, 2]);
//!
//! let ragged = engine.assemble(&rows, &Collate::ragged(Ragged::new()))?;
//! assert_eq!(ragged.data().as_slice::<i32>()?, [1, 2, 3, 4, 5, 6]);
//! assert_eq!(ragged.offsets().unwrap().as_slice::<i64>()?, [0, 3, 4, 6]);
//!
//! let equal: [&[f32]; 2] = [&[0.5, 1.0], &[1.5, 2.0]];
//! assert_eq!(engine.assemble(&equal, &Collate::stack())?.data().shape(), [2, 2]);
//! assert_eq!(engine.assemble(&rows, &Collate::concat(0))?.data().shape(), [6]);
//! # Ok::<(), windrow::Error>(())
//! ```
//!
//! # The forms
//!
//! | form | samples | result |
//! |---|---|---|
//! | [`Collate::stack`] | of one shape | `[N, *shape]` |
//! | [`Collate::concat`] | equal except along one dim | joined along it, with offsets and lengths |
//! | [`Collate::pad`] | of one rank | `[N, *max]`, with lengths and, if asked for, a mask |
//! | [`Collate::ragged`] | equal except along dim 0 | values `[sum, *rest]`, with offsets and lengths |
//!
//! Three rows of 3, 1 and 2 elements in memory, padded with `-` and ragged:
//!
//! ```text
//! padded [3, 3]   a a a | b - - | c c -      lengths 3 1 2      mask 1 1 1 | 1 0 0 | 1 1 0
//! ragged [6]      a a a b c c                lengths 3 1 2      offsets 0 3 4 6
//! ```
//!
//! # The pipeline
//!
//! | stage | types | what it covers |
//! |---|---|---|
//! | choice | [`packing`] | which samples form a batch, from their lengths alone; independent of all below |
//! | import | [`dlpack`], [`arrow`] | foreign tensors and columns, validated before they are trusted |
//! | samples | [`SampleView`], [`SampleList`] | an address for each sample, and every distinct layout once |
//! | collate | [`Collate`], [`BatchShape`](plan::BatchShape) | form and options; the shapes of the batch, and every error of input |
//! | plan | [`Plan`] | loops, merged ranges, which sample writes which output bytes; no memory yet |
//! | engine | [`Engine`] | threads, streams and output memory; runs plans on the host or on a device |
//! | batch | [`Batch`], [`Tensor`] | the result, and zero-copy views of its samples |
//! | export | [`dlpack`], [`arrow`] | managed tensors and arrays for other libraries |
//!
//! # Threads
//!
//! [`Engine`], [`Batch`], [`Tensor`], [`Packed`], [`SampleView`], [`SampleList`], [`Plan`], [`Collate`], [`Error`] and the
//! types of reports are `Send` and `Sync`. Threads can call one engine at the same time; its clones are the same engine.
//! A batch that reads and writes less than 1 MiB is made by the calling thread alone. The first larger one starts the engine's
//! threads, of which an engine of one has none. Memory of batches that were dropped is used again, up to
//! [`pool_bytes`](EngineBuilder::pool_bytes), so that a program that makes batches in a loop needs no buffers of its own.
//!
//! A service keeps one engine. An error that is of one request says which, and nothing has been written then. Shapes and dtypes
//! are compared with those of the first request: check what is known of them before.
//!
//! ```
//! use windrow::{Collate, DType, Engine, Pad, SampleList, SampleView};
//!
//! struct Request {
//!     pixels: Vec<u8>,
//!     shape: [i64; 2],
//! }
//! let request = |height, width| Request { pixels: vec![7; (height * width) as usize], shape: [height, width] };
//!
//! let engine = Engine::builder().threads(1).pool_bytes(64 << 20).build()?;
//! let collate = Collate::pad(Pad::new().dims([1])).cast(DType::F32);
//! let assemble = |requests: &[Request]| {
//!     let views = requests.iter().map(|request| SampleView::from_slice(&request.pixels, &request.shape));
//!     engine.assemble(&views.collect::<windrow::Result<SampleList>>()?, &collate)
//! };
//! let mut requests = vec![request(2, 3), request(4, 3), request(2, 5)]; // the second is not of height 2
//! let batch = loop {
//!     match assemble(&requests) {
//!         Ok(batch) => break batch,
//!         Err(error) => match error.sample() {
//!             Some(index) => drop(requests.remove(index)), // to be answered by error.to_string()
//!             None => return Err(error),
//!         },
//!     }
//! };
//! assert_eq!(batch.data().shape(), [2, 2, 5]);
//! assert_eq!(batch.sample(0)?.shape(), [2, 3]); // without padding, a view
//! # Ok::<(), windrow::Error>(())
//! ```
//!
//! # Where it does not help
//!
//! A call has a fixed price, of checks, allocations and counters. A loop over `Vec`s pads 8 rows of up to 100 numbers, with a mask,
//! in a third of windrow's time. From some 32 rows of hundreds of numbers on windrow is even or ahead; for 2000 views of up to
//! 97 numbers such a loop takes 0.73 of its time. `docs/performance-method.md` has the figures.
//!
//! # On a GPU
//!
//! With feature `cuda` the same plan runs on a device: one launch for all leaves, two if only some outputs are
//! quantised, on a given stream ([`Engine::assemble_on`]) or on one of the engine's own. The host waits for the device only if the batch is
//! placed on the host. To use a batch on another stream, call [`Tensor::ready_on`] first. The driver is
//! found at run time; without one, the result is [`Error::NoDriver`].
//!
//! Building with the feature needs nvcc 12.1 or newer, and neither the libraries of a toolkit nor a driver. The build scripts of
//! cust and cust_raw look for such libraries all the same, and may stop with `Could not find a cuda installation`. An
//! empty folder is enough for them:
//!
//! ```sh
//! mkdir -p target/cuda/lib64 && export CUDA_LIBRARY_PATH=$PWD/target/cuda
//! ```
//!
//! # Observability
//!
//! [`Plan::explain`] reports what a plan would do, [`Engine::stats`] what an engine has done, by path and
//! stage. Feature `tracing` opens a span for each [`Stage`](observe::Stage); with feature `cuda`, `WINDROW_NVTX=1` opens NVTX ranges.
//!
//! # Crate features
//!
//! None is on by default, and none needs anything at start.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `cuda` | the CUDA engine, on Linux x86-64 and aarch64 | nvcc to build |
//! | `tracing` | spans of the crate `tracing` around the stages of a call | |
//! | `ndarray` | arrays as samples, by `SampleView::try_from`, and tensors as arrays, by `Tensor::as_array` | |
//! | `testing` | `Engine::reference()`, a naive executor to compare others with | |
//! | `unstable-bindings` | what this repository's bindings for Python and C use; changes in every release | |
//!
//! # Glossary
//!
//! | word | the field's word | meaning |
//! |---|---|---|
//! | sample | example, item, row | one tensor of the list that becomes a batch |
//! | batch | minibatch | data, and lengths, offsets, mask and indices that belong to it |
//! | leaf | leaf of a PyTree | the samples at one path of a tree; an independent part of a plan |
//! | form | - | stack, concat, pad or ragged |
//! | stack | `torch.stack` | equal samples along a new first dim |
//! | ragged | jagged, nested, CSR | values joined along dim 0, with offsets |
//! | offsets | row pointers, `cu_seqlens` | where each sample begins in ragged values; N + 1 numbers |
//! | lengths | sizes | the real extent of each sample along a padded or joined dim |
//! | mask | attention mask | which elements are real ([`Mask::Real`]) or padding ([`Mask::Pad`]) |
//! | padding | fill | elements of the batch that come from no sample |
//! | transform | affine normalisation | `(x * scale - mean) / std` for each channel, then a permutation of dims |
//! | cast | dtype conversion | of every element, with the rules of [`Collate::cast`] |
//! | layout | shape and strides | [`Layout`]; strides count elements |
//! | compact | C-contiguous, row-major | no gaps and no reversed or permuted dims |
//! | metadata | - | dtype, layout and device of a tensor: [`TensorMeta`](samples::TensorMeta), stored once for all samples that share it |
//! | sample list | - | imported samples: [`SampleList`], made once and used for many batches |
//! | plan | execution plan | a value that says what will be written where; pure host data |
//! | batch shape | resolved batch | the shapes and dtypes that samples and options give together: [`BatchShape`](plan::BatchShape) |
//! | placement | - | where each sample is in the data of a batch, as rows, padded or joined: [`Placement`](plan::Placement) |
//! | role | - | which tensor of a batch an output is: data, mask, `batch_index`, scales, lengths or offsets |
//! | output plan | - | one tensor that a plan writes: data, a mask or indices, and where each sample is in it |
//! | loop nest | iteration domain | the loops that lead from one sample to its place in the output, innermost last |
//! | item, tile | work item | what one warp of a device or one step of a thread writes |
//! | plan body | - | the shapes, outputs and route of a plan; cached with a list whose samples all give the same |
//! | memo | cached value | what a later stage made of a plan or a list that does not change, kept for its next use |
//! | pair class | - | pairs of a move whose destinations have one layout, and whose sources have one: checked and planned once |
//! | output segment | - | the samples of an output that one loop nest of a kernel writes |
//! | descriptor | - | the entry of a launch table for one output segment: its family, loops and addresses |
//! | family | kernel variant | the inner loops that fit an output segment: rows, small_copy, contiguous_cast, planar, strided, ...: [`SegmentReport::family`](explain::SegmentReport::family) |
//! | box | - | in kernels: the rows and columns of the output that an item of family strided writes |
//! | window | vector load | in kernels: adjacent bytes of a source, from any address, that a lane reads into registers |
//! | path (of execution) | execution path | how a leaf is executed: `gather`, `cast`, `upload`, ...; shown by [`Plan::explain`] |
//! | route | data path | which data of a plan crosses between host and device, and by which copies |
//! | arena | slab | one allocation that holds all tensors of a tree |
//! | target | destination | memory of the caller that a batch is written into |
//! | owner | base object | what keeps memory alive as long as a tensor views it |
//! | holder | keep-alive object | in Python: all that keeps the samples of one import alive |
//! | keeper | keep-alive object | in Python: what keeps one sample of a list alive and is released with it |
//! | watch | - | in Python: the address that a sample's memory had at its import; memory that was moved since is refused |
//! | footprint | access region | the bytes that a tensor reaches, by which two tensors share memory or not |
//! | parcel | message | the tensors that a worker process sends as one |
//! | claim | reservation | a word in the memory of a pool that says which process has a block |
//! | lease | guard | a claim of this process, which ends when it is dropped |
//! | engine | executor | threads, memory pool and device that run plans |
//! | pageable, page-locked | pinned | host memory that a device can read directly only when page-locked |
//! | stream | queue | [`Stream`]: an order of work on a device |
//! | export, import | exchange | by DLPack, without a copy |
//! | oracle | reference implementation | in tests: the naive loop that every executor is compared with |
//!
//! # Why not ...?
//!
//! - *A lazy graph of operations?* A batch is assembled once. A plan that is made and run in one call is
//!   easier to reason about than one that is kept.
//! - *One library copy per sample?* For samples of a few kilobytes or less, the calls cost more than the bytes.
//! - *The global rayon pool?* It belongs to the program. An engine has its own, or uses a given one.

// The linter sees the code that only a device executes, or only a binding calls, in builds with both features.
#![cfg_attr(
    not(all(feature = "cuda", feature = "unstable-bindings")),
    allow(dead_code, unused_imports)
)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("windrow counts bytes in 64 bits and addresses them: it needs a 64-bit target");

#[cfg(all(
    feature = "cuda",
    not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))
))]
compile_error!(
    "feature `cuda` of windrow works on Linux x86-64 and aarch64: leave it off for this target"
);

/// Whether this build has the CUDA engine: what else depends on the feature is which file is `cuda` and which is `nvtx`.
pub(crate) const HAS_CUDA: bool = cfg!(feature = "cuda");

/// Tuning numbers of a module, each with its value: `POLICY` has those in use.
macro_rules! policy {
    ($($(#[$about:meta])* $field:ident: $number:ty = $value:expr,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct Policy {
            $($(#[$about])* pub $field: $number,)*
        }

        pub(crate) const POLICY: Policy = Policy { $($field: $value,)* };
    };
}

#[cfg(feature = "ndarray")]
mod arrays;
pub mod arrow;
pub mod batch;
pub mod collate;
#[cfg_attr(not(feature = "cuda"), path = "cuda/absent.rs")]
mod cuda;
// The models need these files of the engine alone, without a driver.
#[cfg(all(test, windrow_loom))]
#[path = "cuda/model_tests.rs"]
mod cuda_model_tests;
pub mod device;
pub mod dlpack;
pub mod engine;
pub mod explain;
mod host;
pub mod observe;
pub mod packing;
pub mod plan;
mod run_options;
pub mod samples;
mod sync;
pub mod tensor;

#[cfg(feature = "unstable-bindings")]
#[doc(hidden)]
pub mod workers;
#[cfg(not(feature = "unstable-bindings"))]
mod workers;

/// Errors: [`Error`], and what it says of samples, outputs and drivers.
pub mod error {
    pub use crate::tensor::error::{DriverError, Error, ErrorKind, Message, Result};
    pub use crate::tensor::mismatch::{ErrorValue, Hint, Mismatch, MoveSide};
}

/// Functions that bindings in other languages need beside the public interface. They are free to change.
#[cfg(feature = "unstable-bindings")]
#[doc(hidden)]
pub mod bindings {
    pub use crate::engine::bindings::*;
}

#[doc(inline)]
pub use self::{
    batch::Batch,
    collate::{Collate, Dequantize, Mask, Pad, Quantize, Ragged, Side, Transform},
    engine::{assemble, Engine, EngineBuilder, Packed},
    error::{Error, Result},
    observe::Stats,
    plan::Plan,
    samples::{SampleList, SampleView, Samples},
    tensor::{DType, Device, Layout, Stream, Tensor},
};

/// The types that threads may share or pass on, as "Threads" above says: a change that takes it away does not compile.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Engine>();
    shared::<EngineBuilder>();
    shared::<engine::Resident>();
    shared::<Batch>();
    shared::<batch::Fields>();
    shared::<Tensor>();
    shared::<Packed>();
    shared::<Collate>();
    shared::<SampleView<'_>>();
    shared::<SampleList<'_>>();
    shared::<samples::TensorMeta>();
    shared::<Plan<'_>>();
    shared::<plan::BatchShape>();
    shared::<explain::Explain>();
    shared::<Stats>();
    shared::<Stream>();
    shared::<Error>();
};

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The example of the page on crates.io, as a test.
#[cfg(doctest)]
#[doc = include_str!("README.md")]
struct CratePage;
