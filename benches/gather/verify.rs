//! Comparison of every output with the host engine's batch.

use windrow::batch::Fields;
use windrow::Tensor;

use super::contenders::{self, Contender};
use super::gpu::device::{self, cuMemsetD8Async};
use super::gpu::{check, Gpu, Outcome};
use super::workloads::{Set, Workload};

/// The bytes of outputs before they are written.
const POISON: u8 = 0xA5;

/// The output of a contender, and what windrow gives besides.
pub fn all(gpu: &Gpu, workload: &Workload, set: &Set, contender: &Contender<'_>) -> Outcome {
    if !contender.is_batch {
        return Ok(());
    }
    poison(gpu, set)?;
    (contender.run)(set).map_err(|error| format!("{}: {error}", contender.name))?;
    gpu.synchronize()?;
    same_data(workload, set, contender.name)?;
    let Some(engine) = contender.engine else { return Ok(()) };
    let all = contenders::windrow(gpu, engine, workload, set, &set.samples)?;
    gpu.synchronize()?;
    same_fields(workload, contender.name, &all)
}

pub fn poison(gpu: &Gpu, set: &Set) -> Outcome {
    // SAFETY: the set's own output.
    let code = unsafe { cuMemsetD8Async(set.out.address, POISON, set.out.len, gpu.stream) };
    check("cuMemsetD8Async", code)
}

pub fn same_data(workload: &Workload, set: &Set, name: &str) -> Outcome {
    for ((part, expected), out) in workload.parts.iter().zip(&workload.expected).zip(&set.out_at) {
        let got = device::read(*out, expected.data().nbytes());
        same(part.path, name, expected.data(), &got)?;
    }
    Ok(())
}

/// The tensors of a batch beside its data.
pub fn same_fields(workload: &Workload, who: &str, all: &[Fields]) -> Outcome {
    for ((part, expected), fields) in workload.parts.iter().zip(&workload.expected).zip(all) {
        for (name, want, got) in [
            ("mask", expected.mask(), &fields.mask),
            ("lengths", expected.lengths(), &fields.lengths),
            ("offsets", expected.offsets(), &fields.offsets),
            ("batch_index", expected.batch_index(), &fields.batch_index),
        ] {
            if let (Some(want), Some(got)) = (want, got) {
                let got = device::read(got.data_ptr().addr() as u64, got.nbytes());
                same(part.path, &format!("{name} by {who}"), want, &got)?;
            }
        }
    }
    Ok(())
}

fn same(path: &str, name: &str, want: &Tensor, got: &[u8]) -> Outcome {
    // SAFETY: a tensor of the host engine, row-major.
    let want = unsafe { std::slice::from_raw_parts(want.data_ptr(), want.nbytes()) };
    if want == got {
        return Ok(());
    }
    let at = want.iter().zip(got).position(|(want, got)| want != got);
    let (gap, at) = (if path.is_empty() { "" } else { " " }, at.unwrap_or(want.len()));
    Err(format!("{name} gives a wrong batch{gap}{path}, from byte {at} on"))
}
