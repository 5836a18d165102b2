// Rows on the host become a batch on the device by windrow, which cudarc reads on a stream of its own.
use cudarc::driver::{result, sys, CudaContext};
use windrow::{Collate, Device, Engine};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::cuda(0)?;
    let context = CudaContext::new(0)?;
    let rows: [&[i32]; 3] = [&[1, 2], &[3, 4], &[5, 6]];
    let batch = engine.assemble(&rows, &Collate::stack())?;
    assert_eq!(batch.data().device(), Device::Cuda(0));
    batch.data().synchronize()?;

    let stream = context.new_stream()?;
    let mut values = vec![0i32; 6];
    let address = batch.data().data_ptr() as sys::CUdeviceptr;
    // SAFETY: the batch has six int32 there, written before `synchronize` returned.
    unsafe { result::memcpy_dtoh_async(&mut values, address, stream.cu_stream())? };
    stream.synchronize()?;
    assert_eq!(values, [1, 2, 3, 4, 5, 6]);

    // Newer than what cust knows (CUDA 11.4): the driver's own, or the code for a function that it lacks.
    let mut milliseconds = 0.0;
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let (first, second) = (context.new_event(timed)?, context.new_event(timed)?);
    first.record(&stream)?;
    second.record(&stream)?;
    stream.synchronize()?;
    // SAFETY: events and stream of this context, and a place for the result.
    let codes = unsafe {
        [
            sys::cuEventElapsedTime_v2(&mut milliseconds, first.cu_event(), second.cu_event()),
            sys::cuStreamGetId(stream.cu_stream(), &mut 0),
            sys::cuCtxSetFlags(0),
            sys::cuKernelGetFunction(&mut std::ptr::null_mut(), std::ptr::null_mut()),
        ]
    };
    // The simulated driver has the first two; of the others it has none, which the trampolines answer with "not found".
    use sys::CUresult::{
        CUDA_ERROR_NOT_FOUND as LACKS, CUDA_ERROR_NO_DEVICE as NOT_LOADED, CUDA_SUCCESS as DONE,
    };
    assert_eq!(codes[..2], [DONE, DONE]);
    assert!([DONE, LACKS].contains(&codes[2]), "{:?}", codes[2]);
    assert!(![DONE, NOT_LOADED].contains(&codes[3]), "two null pointers: {:?}", codes[3]);
    assert!(milliseconds >= 0.0);
    println!("{} rows of windrow's, read by cudarc; newer functions: {codes:?}", rows.len());
    Ok(())
}
