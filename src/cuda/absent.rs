//! In place of the CUDA executor in builds without the feature `cuda`: its interface, of types that have no values. The
//! rest of the crate is written once for both builds.

use std::convert::Infallible;
use std::marker::PhantomData;
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

/// No plan needs a device: one that would is refused where it is made.
pub(crate) fn ordinal_of(_: &Plan<'_>) -> Result<Option<u32>> {
    Ok(None)
}

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

impl Executor {
    pub fn enter(&self) -> Result<Current<'_>> {
        match self.0 {}
    }

    pub fn launch_stream(
        &self,
        _: &Current<'_>,
        _: &Plan<'_>,
        _: &RunOptions,
    ) -> Result<LaunchStream<'_>> {
        match self.0 {}
    }

    pub fn run(
        &self,
        _: &Current<'_>,
        _: LaunchStream<'_>,
        _: &Plan<'_>,
        _: &[Option<*mut u8>],
        _: &RunOptions,
        _: Host<'_>,
    ) -> Result<RunResult> {
        match self.0 {}
    }

    pub fn list_table(
        &self,
        _: &SampleList<'_>,
        _: &SampleList<'_>,
        _: &[u32],
    ) -> Result<Arc<ListTable>> {
        match self.0 {}
    }

    #[allow(unsafe_code)]
    pub unsafe fn move_chosen(
        &self,
        _: &ChosenMove<'_>,
        _: &RunOptions,
        _: &[Owner],
    ) -> Result<Traffic> {
        match self.0 {}
    }

    pub fn settle(&self, _: &RunOptions) -> Result<()> {
        match self.0 {}
    }

    pub fn stream(&self) -> Result<Stream> {
        match self.0 {}
    }

    pub fn stream_owner(&self) -> Owner {
        match self.0 {}
    }

    pub fn adopt(&self, _: Stream) -> Result<Stream> {
        match self.0 {}
    }

    #[allow(unsafe_code)]
    pub unsafe fn adopt_event(&self, _: usize) -> Result<Stream> {
        match self.0 {}
    }

    pub fn order(&self, _: &[Stream], _: Stream) -> Result<()> {
        match self.0 {}
    }

    pub fn has_stream(&self, _: Stream) -> Result<bool> {
        match self.0 {}
    }

    pub fn capture_of(&self, _: Stream) -> Result<Option<u64>> {
        match self.0 {}
    }

    pub fn reads_mapped(&self, _: &Current<'_>, _: bool) -> Result<bool> {
        match self.0 {}
    }

    pub fn trim(&self, _: bool) -> Result<bool> {
        match self.0 {}
    }

    pub fn memory(&self, _: DType, _: Layout, _: u64, _: bool) -> Result<Tensor> {
        match self.0 {}
    }

    pub fn pinned(&self, _: u64) -> Result<PinnedBlock> {
        match self.0 {}
    }

    pub fn copy_block(&self, _: &Tensor, _: &Tensor, _: Option<Stream>) -> Result<End> {
        match self.0 {}
    }
}

impl PinnedBlock {
    pub fn set_handed_out(&self, _: bool) {
        match self.0 {}
    }

    pub fn into_tensor(self, _: DType, _: Layout) -> Tensor {
        match self.0 {}
    }
}

impl DeviceBlock {
    pub fn hand_to(&self, _: Stream, _: bool) -> Result<()> {
        match self.0 {}
    }

    pub fn hand_to_unnamed(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }
}

impl ListTable {
    pub fn check(&self) -> Result<()> {
        match self.never {}
    }

    pub fn note(&self, _: u32) {
        match self.never {}
    }
}

impl Completion {
    pub fn end(&self) -> Option<End> {
        match self.0 {}
    }

    pub fn check(&self) -> Result<()> {
        match self.0 {}
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
pub fn hold(_: Vec<Owner>, ordinal: u32, _: Stream) -> Result<()> {
    try_lock(ordinal)
}

/// Nothing is held.
pub fn reap_copies() {}

/// The end of the work of a call on a device.
#[derive(Clone, Debug)]
pub struct End(Infallible);

impl End {
    /// Orders a stream behind the work.
    ///
    /// # Errors
    /// None.
    pub fn order(&self, _: Stream) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn wait(&self) -> Result<()> {
        match self.0 {}
    }

    /// Whether both are the end of one call.
    pub fn is_same(&self, _: &End) -> bool {
        match self.0 {}
    }
}
