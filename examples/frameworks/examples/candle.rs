//! Rows of tokens for candle: tensors of any length, to one padded batch of another dtype and its mask.
//!
//! `cargo run --example candle --features candle`

use candle_core::{Device, Storage, Tensor};
use windrow::{Collate, Engine, Mask, Pad, SampleView};
use windrow_framework_examples::{assemble, Outcome};

/// Makes batches of rows.
struct TokenBatcher {
    engine: Engine,
    collate: Collate,
}

impl TokenBatcher {
    fn new(padding: i64) -> TokenBatcher {
        let pad = Pad::new().value(padding).multiple_of(8).mask(Mask::Real);
        TokenBatcher { engine: Engine::host(), collate: Collate::pad(pad) }
    }

    /// Tokens `[N, longest]` as int64, and their mask as u8.
    fn batch(&self, rows: &[Tensor]) -> Outcome<(Tensor, Tensor)> {
        // candle lends its memory for as long as these live.
        let lent: Vec<_> = rows.iter().map(Tensor::storage_and_layout).collect();
        let mut samples = Vec::with_capacity(rows.len());
        for (storage, layout) in &lent {
            let Storage::Cpu(storage) = &**storage else { return Err("rows on the host".into()) };
            let data = &storage.as_slice::<u32>()?[layout.start_offset()..];
            let dims = |dims: &[usize]| dims.iter().map(|&dim| dim as i64).collect::<Vec<_>>();
            samples.push(SampleView::with_strides(data, &dims(layout.dims()), &dims(layout.stride()))?);
        }
        let (tokens, shape, fields) = assemble::<i64, _>(&self.engine, &samples, &self.collate)?;
        let mask = fields.mask.ok_or("a mask was asked for")?;
        let mask: Vec<u8> = mask.as_slice::<bool>()?.iter().map(|&is_real| is_real.into()).collect();
        let mask = Tensor::from_vec(mask, shape.clone(), &Device::Cpu)?;
        Ok((Tensor::from_vec(tokens, shape, &Device::Cpu)?, mask))
    }
}

fn main() -> Outcome<()> {
    let table = Tensor::arange(0u32, 60, &Device::Cpu)?.reshape((6, 10))?;
    // Views into one tensor: a row, a column, a row that begins elsewhere.
    let rows = [table.get(1)?, table.narrow(1, 3, 1)?.squeeze(1)?, table.get(4)?.narrow(0, 2, 5)?];
    let (tokens, mask) = TokenBatcher::new(-1).batch(&rows)?;
    println!("{tokens}\n{mask}");
    assert_eq!((tokens.dims(), mask.dims()), (&[3, 16][..], &[3, 16][..]));
    for (index, row) in rows.iter().enumerate() {
        let (got, len) = (tokens.get(index)?.to_vec1::<i64>()?, row.dims1()?);
        let want: Vec<i64> = row.to_vec1::<u32>()?.into_iter().map(i64::from).collect();
        assert_eq!((&got[..len], &got[len..]), (&want[..], &vec![-1; 16 - len][..]));
        assert_eq!(mask.get(index)?.to_vec1::<u8>()?.iter().map(|&m| usize::from(m)).sum::<usize>(), len);
    }
    Ok(())
}
