//! Samples on the device with nothing around them that a kernel may read.

use windrow::{Device, SampleView};

use super::device::{cuDeviceGetName, cuMemHostRegister_v2, cuMemHostUnregister, enter, Bytes};
use super::sample::Sample;

/// Samples where kernels read them, and may read nothing else. The simulated driver ends the program at a read outside
/// of memory, and takes for memory what is registered to the byte: there the bytes of a sample's elements are, and
/// neither the gaps between them nor what surrounds them. A GPU has a copy of all.
pub enum Placed<'s> {
    Elements(&'s [Sample], Vec<*const u8>),
    Copies(&'s [Sample], Vec<Bytes>),
}

impl Placed<'_> {
    pub fn of(samples: &[Sample]) -> Placed<'_> {
        if !is_simulated() {
            return Placed::Copies(samples, Bytes::each(samples.iter().map(|s| s.memory().0)));
        }
        enter();
        let mut registered = Vec::new();
        for sample in samples {
            for range in sample.element_ranges() {
                let bytes = &sample.memory().0[range];
                // SAFETY: bytes of the sample, which is borrowed for as long as they are registered.
                assert_eq!(unsafe { cuMemHostRegister_v2(bytes.as_ptr(), bytes.len(), 0) }, 0);
                registered.push(bytes.as_ptr());
            }
        }
        Placed::Elements(samples, registered)
    }

    /// # Safety
    /// This lives until the work of the last view is done.
    pub unsafe fn views(&self) -> Vec<SampleView<'static>> {
        let here = Device::Cuda(0);
        // SAFETY: the samples' own memory, which the simulated device reads at the same addresses, or copies of it; the
        // rest is the caller's promise.
        unsafe {
            match self {
                Placed::Elements(samples, _) => {
                    samples.iter().map(|s| s.view_at(s.memory().0.as_ptr(), here)).collect()
                }
                Placed::Copies(samples, bytes) => {
                    let both = samples.iter().zip(bytes);
                    both.map(|(s, bytes)| s.view_at(bytes.address as *const u8, here)).collect()
                }
            }
        }
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        let Placed::Elements(_, registered) = self else { return };
        enter();
        for &address in &*registered {
            // SAFETY: registered above, unregistered once.
            let code = unsafe { cuMemHostUnregister(address) };
            if !std::thread::panicking() {
                assert_eq!(code, 0);
            }
        }
    }
}

/// Whether the driver is crates/cudasim.
fn is_simulated() -> bool {
    let mut name = [0u8; 8];
    // SAFETY: a name is cut to the bytes there are.
    assert_eq!(unsafe { cuDeviceGetName(name.as_mut_ptr(), 8, 0) }, 0);
    name.starts_with(b"cudasim")
}
