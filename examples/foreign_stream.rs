//! Samples that a program has on a GPU become a batch on a stream of that program's, between its own
//! work on both sides. Nothing waits until the program itself does.
//!
//! cust stands for the program's own CUDA library:
//! `cargo run --features cuda --example foreign_stream`

#![allow(unsafe_code, reason = "borrowed memory and a borrowed stream, by address and handle")]

use std::error::Error;

use cust::memory::{CopyDestination, DeviceBuffer, DevicePointer, DeviceSlice};
use cust::stream::{Stream as TheirStream, StreamFlags};
use windrow::{Collate, DType, Device, Engine, SampleList, Stream};

fn main() -> Result<(), Box<dyn Error>> {
    // windrow loads the driver, which cust needs here; both use the primary context of the device.
    let engine = Engine::cuda(0)?;
    let _context = cust::quick_init()?;

    // The program: a stream, and five rows at five places of the device.
    let theirs = TheirStream::new(StreamFlags::NON_BLOCKING, None)?;
    let rows: Vec<Vec<u8>> = (0u8..5).map(|i| (0..8).map(|j| 10 * i + j).collect()).collect();
    let buffers: Vec<DeviceBuffer<u8>> =
        rows.iter().map(|row| DeviceBuffer::from_slice(row)).collect::<Result<_, _>>()?;

    // windrow: the samples by address, the stream by handle.
    let mut samples = SampleList::new();
    for buffer in &buffers {
        let address = buffer.as_device_ptr().as_raw() as *const u8;
        // SAFETY: eight bytes that stay where they are until the stream has been waited for.
        unsafe { samples.push(address, DType::U8, Device::Cuda(0), &[8], None) }?;
    }
    // SAFETY: the stream lives longer than the batch.
    let stream = unsafe { Stream::from_raw(theirs.as_inner() as usize) };
    let collate = Collate::stack().cast(DType::F32);
    let batch = engine.assemble_on(&samples, &collate, &stream)?;
    println!("enqueued: {:?} on {}", batch.data().shape(), batch.data().device());

    // The program again. On the same stream no wait is needed; another one would be told by
    // `batch.data().ready_on(other)`.
    theirs.synchronize()?;
    let mut got = vec![0f32; 5 * 8];
    let address = DevicePointer::<f32>::from_raw(batch.data().data_ptr() as u64);
    // SAFETY: the batch has so many elements of this type, and lives longer than the slice.
    unsafe { DeviceSlice::from_raw_parts(address, got.len()) }.copy_to(&mut got)?;
    let want: Vec<f32> = rows.concat().into_iter().map(f32::from).collect();
    assert_eq!(got, want);
    println!("row 3: {:?}", &got[24..32]);
    Ok(())
}
