//! Stand-in for the CUDA executor in builds without the feature `cuda`: its interface, of types that have no values.
//! The rest of the crate is written once for both builds.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

use crate::host::{Helpers, MemoryPool};
use crate::observe::Traffic;
use crate::plan::{ChosenMove, Launch, Plan, Role};
use crate::run_options::RunOptions;
use crate::samples::SampleList;
use crate::tensor::{DType, Device, Error, Layout, Owner, Result, Stream, Tensor};

/// Each function gives [`Error::NoDriver`].
pub(crate) mod probe {
    use crate::tensor::{CudaBuild, Device, DeviceInfo, Error, Result};

    pub(crate) fn devices() -> Result<Vec<DeviceInfo>> {
        Err(Error::host_only("CUDA"))
    }

    pub(crate) fn device_of(_: usize) -> Result<Device> {
        Err(Error::host_only("CUDA"))
    }

    pub(crate) fn cuda_build() -> Result<CudaBuild> {
        Err(Error::host_only("CUDA"))
    }
}

/// No device: an executor is [`Error::NoDriver`]; the rest succeeds, does nothing and counts 0.
#[derive(Debug, Default)]
pub(crate) struct Devices(());

impl Devices {
    pub fn executor(&self, ordinal: u32) -> Result<Arc<Executor>> {
        Err(Error::host_only(Device::Cuda(ordinal)))
    }

    pub fn executor_on(&self, ordinal: u32, _: Option<Stream>) -> Result<Arc<Executor>> {
        self.executor(ordinal)
    }

    pub fn settle(&self) -> Result<()> {
        Ok(())
    }

    pub fn bytes(&self) -> (u64, (u64, u64)) {
        (0, (0, 0))
    }

    pub fn waits(&self) -> (u64, Duration) {
        (0, Duration::ZERO)
    }

    pub fn reset_waits(&self) {}

    pub fn clear(&self) {}
}

/// No plan needs a device, hence `Ok(None)`: one that would is refused where it is made.
pub(crate) fn ordinal_of(_: &Plan<'_>) -> Result<Option<u32>> {
    Ok(None)
}

/// No plan launches anything: `Ok(None)`.
pub(crate) fn launch_of(_: &Plan<'_>, _: impl Fn(usize) -> bool) -> Result<Option<Launch>> {
    Ok(None)
}

#[derive(Debug)]
pub(crate) struct Executor(Infallible);

pub(crate) struct Current<'c>(Infallible, PhantomData<&'c ()>);

pub(crate) struct LaunchStream<'c>(Infallible, PhantomData<&'c ()>);

#[derive(Debug)]
pub(crate) struct PinnedBlock(Infallible);

#[derive(Debug)]
pub(crate) struct DeviceBlock(Infallible);

#[derive(Debug)]
pub(crate) struct ListTable {
    pub block: Option<Arc<DeviceBlock>>,
    pub is_in_graph: AtomicBool,
    never: Infallible,
}

#[derive(Debug)]
pub(crate) struct Completion(Infallible);

pub(crate) struct Host<'h> {
    pub memory: &'h Arc<MemoryPool>,
    pub threads: Option<&'h Helpers>,
}

pub(crate) struct RunResult {
    pub tensors: Vec<(usize, Tensor)>,
    pub spread: Vec<(usize, Tensor, *mut u8)>,
    pub metadata: Vec<(usize, Role, Tensor)>,
    pub arena: Option<Tensor>,
    pub traffic: Traffic,
    pub completion: Option<Arc<Completion>>,
}

/// The end of the work of a call on a device.
#[derive(Clone, Debug)]
pub struct End(Infallible);

/// Functions of types without values, which nobody calls.
macro_rules! never_called {
    ($($type:ident.$never:tt {
        $($(#[$doc:meta])* fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*
        $(unsafe fn $unsafe_name:ident($($unsafe_argument:ty),*) -> $unsafe_result:ty;)*
    })*) => {
        $(#[allow(unsafe_code, clippy::wrong_self_convention)]
        impl $type {
            $($(#[$doc])* pub fn $name(&self, $(_: $argument),*) $(-> $result)? {
                match self.$never {}
            })*
            $(pub unsafe fn $unsafe_name(&self, $(_: $unsafe_argument),*) -> $unsafe_result {
                match self.$never {}
            })*
        })*
    };
}

never_called! {
    Executor.0 {
        fn enter() -> Result<Current<'_>>;
        fn launch_stream(&Current<'_>, &Plan<'_>, &RunOptions) -> Result<LaunchStream<'_>>;
        fn run(
            &Current<'_>, LaunchStream<'_>, &Plan<'_>, &[Option<*mut u8>], &RunOptions, Host<'_>
        ) -> Result<RunResult>;
        fn list_table(&SampleList<'_>, &SampleList<'_>, &[u32]) -> Result<Arc<ListTable>>;
        fn settle(&RunOptions) -> Result<()>;
        fn stream() -> Result<Stream>;
        fn stream_owner() -> Owner;
        fn adopt(Stream) -> Result<Stream>;
        fn order(&[Stream], Stream) -> Result<()>;
        fn has_stream(Stream) -> Result<bool>;
        fn capture_of(Stream) -> Result<Option<u64>>;
        fn reads_mapped(&Current<'_>, bool) -> Result<bool>;
        fn trim(bool) -> Result<bool>;
        fn memory(DType, Layout, u64, bool) -> Result<Tensor>;
        fn pinned(u64) -> Result<PinnedBlock>;
        fn copy_block(&Tensor, &Tensor, Option<Stream>) -> Result<End>;
        unsafe fn move_chosen(&[ChosenMove<'_>], &RunOptions, &[Owner]) -> Result<Traffic>;
        unsafe fn adopt_event(usize) -> Result<Stream>;
    }
    PinnedBlock.0 {
        fn set_handed_out(bool);
        fn into_tensor(DType, Layout) -> Tensor;
    }
    DeviceBlock.0 {
        fn hand_to(Stream, bool) -> Result<()>;
        fn hand_to_unnamed() -> Result<()>;
        fn synchronize() -> Result<()>;
    }
    ListTable.never {
        fn check() -> Result<()>;
        fn note(u32);
    }
    Completion.0 {
        fn end() -> Option<End>;
        fn check() -> Result<()>;
    }
    End.0 {
        /// Orders a stream behind the work.
        ///
        /// # Errors
        /// None.
        fn order(Stream) -> Result<()>;
        /// Blocks until the work is done.
        ///
        /// # Errors
        /// None.
        fn wait() -> Result<()>;
        /// A number that the ends of one call have.
        fn id() -> usize;
    }
}

/// Nothing: there is no driver.
pub fn relax_captures() {}

/// Does some work: there is no driver.
pub fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Nothing is page-locked: there is no device.
pub fn page_locked(_: &Tensor, _: u32) -> Option<Tensor> {
    None
}

/// Nothing was refused.
pub fn lock_refusal() -> Option<String> {
    None
}

/// Page-locks nothing.
///
/// # Errors
/// [`Error::NoDriver`].
pub fn try_lock(ordinal: u32) -> Result<()> {
    Err(Error::host_only(Device::Cuda(ordinal)))
}

/// None.
pub fn lock_stats() -> (u64, u64) {
    (0, 0)
}

/// Holds nothing.
///
/// # Errors
/// [`Error::NoDriver`].
pub fn hold_until_done(_: Vec<Owner>, ordinal: u32, _: Stream) -> Result<()> {
    try_lock(ordinal)
}

/// Nothing is held.
pub fn reap_copies() {}
