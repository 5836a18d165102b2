//! [`Module`]: the image of the kernels on a device. [`Kernel`]: one of them.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cust::sys::CUfunction;

use super::codes::{NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION};
use super::context::Current;
use super::error::DriverResult;
use super::init::driver_version;
use crate::tensor::{DeviceInfo, DriverError, Error, Result};

/// The kernels, for every target; or those of the file that `$WINDROW_CUDA_IMAGE` names: for trials, and for programs
/// that were built without kernels of their own.
///
/// # Errors
/// [`Error::Argument`] if that file cannot be read; [`Error::NoDriver`] if there are no kernels at all.
// (The driver requires 8-byte alignment, which every allocator gives blocks of this size.)
pub(crate) fn image() -> Result<Cow<'static, [u8]>> {
    match std::env::var_os("WINDROW_CUDA_IMAGE") {
        // The driver reads a header, whatever the length.
        None if IMAGE.is_empty() => Err(Error::no_driver(
            "windrow was built without kernels (WINDROW_CUDA_EMBED=0): set WINDROW_CUDA_IMAGE to \
             the file that has them, or build without that variable"
                .to_owned(),
        )),
        None => Ok(Cow::Borrowed(IMAGE)),
        Some(path) => std::fs::read(&path).map(Cow::Owned).map_err(|error| {
            Error::argument(format!("WINDROW_CUDA_IMAGE={}: {error}", Path::new(&path).display()))
        }),
    }
}

static IMAGE: &[u8] = {
    /// The driver reads the image's header as 64-bit words.
    #[repr(C, align(16))]
    struct Aligned<T: ?Sized>(T);
    static IMAGE: &Aligned<[u8]> =
        &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/windrow.fatbin")));
    &IMAGE.0
};
/// The toolkit that compiled the kernels, as in `13.0.88`.
pub(crate) const TOOLKIT: &str = env!("WINDROW_NVCC_VERSION");
/// The targets of the compiled kernels, as in `sm_90 compute_120`.
pub(crate) const TARGETS: &str = env!("WINDROW_CUDA_TARGETS");

/// The oldest driver, by its CUDA version, that launches kernels with more than 4 KiB of parameters: release 530. Images of
/// older toolkits of CUDA 12 have no such kernels, and ours has.
const LARGE_PARAMETERS: (u32, u32) = (12, 1);

/// A loaded image, until its context ends: a graph or enqueued work may need the kernels when their engine is gone, and the
/// driver does not say when that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module(&'static cust::module::Module);

/// An image, and the number of the context that it is loaded in.
type Loaded = (u64, Cow<'static, [u8]>, Module);

/// Modules of this process, those of ended contexts too. Not asked for in a forked child.
static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

impl Current<'_> {
    /// Loads an image made by nvcc. The same bytes are loaded once for each context, and never unloaded before it ends.
    ///
    /// # Errors
    /// [`Error::NoDriver`] if the driver is too old for it or it has nothing for this device; [`Error::Cuda`].
    pub(crate) fn load(&self, image: Cow<'static, [u8]>) -> Result<Module> {
        let version = driver_version()?;
        if version < LARGE_PARAMETERS {
            return Err(too_old(version));
        }
        let context = self.context_id()?;
        // The lock is held while the module is loaded: engines of several threads share it.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &[u8]| std::ptr::eq(known, &raw const *image) || *known == *image;
        let known = loaded.iter().find(|(id, known, _)| *id == context && is_same(known));
        if let Some((_, _, module)) = known {
            return Ok(*module);
        }
        match cust::module::Module::from_fatbin(&image, &[]) {
            Ok(inner) => {
                let module = Module(Box::leak(Box::new(inner)));
                loaded.push((context, image, module));
                Ok(module)
            }
            Err(error) => {
                let error = DriverError::from_cust("cuModuleLoadDataEx", error);
                Err(explain(error, self.context.info(), version))
            }
        }
    }
}

/// The major version of the toolkit that made the kernels; 0 if it is not known.
fn toolkit_major() -> u32 {
    TOOLKIT.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The [`Error::NoDriver`] for a driver of this CUDA version, which does not run the kernels, with what to do about it.
fn too_old((major, minor): (u32, u32)) -> Error {
    let needed = match toolkit_major() {
        ..=12 => "530 or newer (CUDA 12.1)".to_owned(),
        13 => "580 or newer (CUDA 13)".to_owned(),
        newer => format!("one for CUDA {newer} or newer"),
    };
    let hint = match (major, minor) >= LARGE_PARAMETERS {
        true => format!(", or build windrow with a CUDA {major} toolkit"),
        false => String::new(),
    };
    Error::no_driver(format!(
        "the driver supports CUDA {major}.{minor} and the kernels were compiled with CUDA {TOOLKIT}: update the driver \
         to {needed}{hint}"
    ))
}

/// The error of a failed load. [`Error::NoDriver`] with the cure if the driver's major version is below the toolkit's, whatever
/// failed, and for the codes of an image that does not fit; else the driver's error.
fn explain(error: DriverError, info: &DeviceInfo, driver: (u32, u32)) -> Error {
    let (major, minor) = driver;
    if major < toolkit_major() {
        return too_old(driver);
    }
    if matches!(error.code, NO_BINARY_FOR_GPU | UNSUPPORTED_PTX_VERSION) {
        let (capability_major, capability_minor) = info.compute_capability;
        return Error::no_driver(format!(
            "no kernels for {} ({}, compute capability {capability_major}.{capability_minor}) \
             with a driver for CUDA {major}.{minor}: they were compiled with CUDA {TOOLKIT} for \
             {TARGETS}; update the driver, or build windrow with \
             WINDROW_CUDA_ARCHS={capability_major}{capability_minor} and a toolkit no newer than the \
             driver",
            info.device, info.name
        ));
    }
    error.into()
}

impl Module {
    /// The kernel of this name in the image; a driver error if there is none.
    pub(crate) fn kernel(self, name: &str) -> DriverResult<Kernel> {
        let function = self.0.get_function(name);
        let function = function.map_err(|e| DriverError::from_cust("cuModuleGetFunction", e))?;
        Ok(Kernel(function.to_raw()))
    }
}

/// A kernel, which exists as long as the context of its module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel(CUfunction);

// SAFETY: the handle of immutable code, which the driver takes from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The handle of the function.
    pub(super) fn raw(self) -> CUfunction {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Device;

    #[test]
    fn an_image_that_does_not_fit_names_versions_and_cure() {
        let info = DeviceInfo {
            device: Device::Cuda(2),
            name: "a GPU".into(),
            compute_capability: (7, 5),
            num_multiprocessors: 1,
            total_bytes: 1,
        };
        let error_of = |code, driver| {
            let error = DriverError::from_code("cuModuleLoadDataEx", code);
            explain(error, &info, driver)
        };
        let Error::NoDriver(text) = error_of(NO_BINARY_FOR_GPU, (11, 4)) else { panic!() };
        let old = format!("supports CUDA 11.4 and the kernels were compiled with CUDA {TOOLKIT}: update the driver to ");
        assert!(
            text.to_string().contains(&old) && !text.to_string().contains("build windrow"),
            "{text}"
        );
        let Error::NoDriver(text) = too_old((12, 1)) else { panic!() };
        assert!(text.to_string().ends_with(", or build windrow with a CUDA 12 toolkit"), "{text}");
        let Error::NoDriver(text) = error_of(UNSUPPORTED_PTX_VERSION, (99, 1)) else { panic!() };
        for part in ["cuda:2 (a GPU, compute capability 7.5)", "99.1", TARGETS, "ARCHS=75"] {
            assert!(text.to_string().contains(part), "{text}");
        }
        assert!(matches!(error_of(700, (99, 1)), Error::Cuda(error) if error.code == 700));
    }
}
