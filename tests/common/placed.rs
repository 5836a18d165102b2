//! Samples and outputs in a device's memory: for each case one allocation, with guard bytes between; where somebody looks for
//! accesses beyond an allocation, one of its own for each.

use std::ops::Range;

use windrow::{Device, SampleView};

use super::device::{
    cuDeviceGetName, cuMemHostRegister_v2, cuMemHostUnregister, enter, Bytes, PinnedBytes,
};
use super::runner::{same_bytes, Frame};
use super::sample::Sample;

/// The bytes between copies, and the fewest of them.
const GUARD: u8 = 0xC3;
const MIN_GUARD: usize = 64;

/// A kind of memory, of which a value is one allocation.
pub trait Memory {
    fn from_bytes(host: &[u8]) -> Self;
    fn address(&self) -> u64;
    fn to_host(&self) -> Vec<u8>;
}

impl Memory for Bytes {
    fn from_bytes(host: &[u8]) -> Bytes {
        Bytes::from_bytes(host)
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn to_host(&self) -> Vec<u8> {
        self.to_host()
    }
}

impl Memory for PinnedBytes {
    fn from_bytes(host: &[u8]) -> PinnedBytes {
        PinnedBytes::from_bytes(host)
    }

    fn address(&self) -> u64 {
        self.address as u64
    }

    fn to_host(&self) -> Vec<u8> {
        self.to_host()
    }
}

/// Copies of bytes, each at a multiple of 256.
pub struct Copies<M> {
    memory: Vec<M>,
    addresses: Vec<u64>,
    /// The contents of one allocation of all, and the offset of each copy in it.
    image: Vec<u8>,
    places: Vec<Range<usize>>,
}

impl<M: Memory> Copies<M> {
    /// Copies all into one allocation or one each, as `share_allocations` says.
    pub fn new<'h>(all: impl IntoIterator<Item = &'h [u8]>) -> Copies<M> {
        if share_allocations() {
            Copies::in_one(all)
        } else {
            Copies::in_each(all)
        }
    }

    fn in_each<'h>(all: impl IntoIterator<Item = &'h [u8]>) -> Copies<M> {
        let memory: Vec<M> = all.into_iter().map(M::from_bytes).collect();
        let addresses = memory.iter().map(M::address).collect();
        Copies { memory, addresses, image: Vec::new(), places: Vec::new() }
    }

    pub fn in_one<'h>(all: impl IntoIterator<Item = &'h [u8]>) -> Copies<M> {
        let mut image = vec![GUARD; 256];
        let mut places = Vec::new();
        for bytes in all {
            let begin = image.len();
            image.extend_from_slice(bytes);
            places.push(begin..image.len());
            image.resize((image.len() + MIN_GUARD).next_multiple_of(256), GUARD);
        }
        let memory = M::from_bytes(&image);
        let addresses = places.iter().map(|place| memory.address() + place.start as u64).collect();
        Copies { memory: vec![memory], addresses, image, places }
    }

    pub fn address(&self, index: usize) -> u64 {
        self.addresses[index]
    }

    /// Checks that nothing was written but the copies from number `first_output` on. It sees what shares an allocation.
    pub fn check(&self, name: &str, first_output: usize) {
        if self.image.is_empty() {
            return;
        }
        let (mut want, got) = (self.image.clone(), self.memory[0].to_host());
        for place in &self.places[first_output..] {
            want[place.clone()].copy_from_slice(&got[place.clone()]);
        }
        same_bytes(&format!("{name}, samples and what surrounds them"), 1, &want, &got);
    }
}

/// The samples and the outputs of a case where kernels find them. The simulated driver ends the program at a read outside of
/// memory, and takes for memory what is registered to the byte: there the bytes of a sample's elements are, and neither
/// the gaps between them nor what surrounds them. A GPU has a copy of all.
pub struct Placed<'s> {
    samples: &'s [Sample],
    /// The ranges that are registered, if the samples' own memory is used.
    registered: Option<Vec<*const u8>>,
    /// Copies of the samples, unless those are registered, and of the frames.
    copies: Copies<Bytes>,
}

impl Placed<'_> {
    pub fn new<'s>(samples: &'s [Sample], frames: &[Frame]) -> Placed<'s> {
        enter();
        let are_registered = is_simulated() && !share_allocations();
        let registered = are_registered.then(|| register(samples));
        let copied = if are_registered { &[] } else { samples };
        let frames = frames.iter().map(Frame::bytes);
        let copies = Copies::new(copied.iter().map(Sample::bytes).chain(frames));
        Placed { samples, registered, copies }
    }

    /// # Safety
    /// This lives until the work of the last view is done.
    pub unsafe fn views(&self) -> Vec<SampleView<'static>> {
        let at = |(index, sample): (usize, &Sample)| {
            let address = match self.registered {
                Some(_) => sample.bytes().as_ptr() as u64,
                None => self.copies.address(index),
            };
            // SAFETY: the sample's own memory, which the simulated device reads at the same addresses, or a copy of it; the
            // rest is the caller's promise.
            unsafe { sample.view_at(address, Device::Cuda(0)) }
        };
        self.samples.iter().enumerate().map(at).collect()
    }

    /// The address of a frame.
    pub fn frame(&self, index: usize) -> u64 {
        self.copies.address(self.num_copied() + index)
    }

    /// Checks that nothing but frames was written to.
    pub fn check(&self, name: &str) {
        self.copies.check(name, self.num_copied());
    }

    fn num_copied(&self) -> usize {
        if self.registered.is_some() {
            0
        } else {
            self.samples.len()
        }
    }
}

fn register(samples: &[Sample]) -> Vec<*const u8> {
    let mut registered = Vec::new();
    for sample in samples {
        for range in sample.element_ranges() {
            let bytes = &sample.memory()[range];
            // SAFETY: bytes of the sample, which is borrowed for as long as they are registered.
            assert_eq!(unsafe { cuMemHostRegister_v2(bytes.as_ptr(), bytes.len(), 0) }, 0);
            registered.push(bytes.as_ptr());
        }
    }
    registered
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        enter();
        for &address in self.registered.iter().flatten() {
            // SAFETY: registered above, unregistered once.
            let code = unsafe { cuMemHostUnregister(address) };
            if !std::thread::panicking() {
                assert_eq!(code, 0);
            }
        }
    }
}

/// Whether copies share an allocation: an allocation of the driver's takes a call of up to half a millisecond, and its end waits for
/// the device. The simulated driver looks for accesses beyond an allocation: there each copy has its own.
/// `WINDROW_TEST_ALLOCATIONS` says otherwise: `shared`, or `each`, as memcheck's runs have it.
fn share_allocations() -> bool {
    match std::env::var("WINDROW_TEST_ALLOCATIONS").as_deref() {
        Ok("shared") => true,
        Ok("each") => false,
        Ok(other) => panic!("WINDROW_TEST_ALLOCATIONS={other}"),
        Err(_) => !is_simulated(),
    }
}

/// Whether the driver is crates/cudasim.
fn is_simulated() -> bool {
    let mut name = [0u8; 8];
    // SAFETY: a name is cut to the bytes there are.
    assert_eq!(unsafe { cuDeviceGetName(name.as_mut_ptr(), 8, 0) }, 0);
    name.starts_with(b"cudasim")
}
