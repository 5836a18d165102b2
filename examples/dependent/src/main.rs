//! Three rows become one padded batch: on the GPU if there is one, else on the host.
use windrow::{Collate, DType, Engine, Error, Mask, Pad, Result};

fn main() -> Result<()> {
    let engine = match Engine::cuda(0) {
        Err(error @ Error::NoDriver { .. }) => {
            println!("on the host: {error}");
            Engine::host()
        }
        engine => engine?,
    };
    let rows: [&[i32]; 3] = [&[1, 2, 3], &[4], &[5, 6]];
    let collate = Collate::pad(Pad::new().value(-1).mask(Mask::Real)).cast(DType::I64);
    let batch = engine.assemble(&rows, &collate)?;
    println!("batch of shape {:?} on {}", batch.data().shape(), batch.data().device());
    Ok(())
}
