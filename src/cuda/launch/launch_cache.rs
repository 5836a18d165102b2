//! [`CachedTable`]: the table of a launch, cached with its plan, for samples and outputs at other addresses.
//!
//! The problem: a loop over a dataset takes batch after batch from one list. Each batch has the same table except for the
//! addresses of its samples and outputs.
//!
//! ```text
//! table       | descriptors: OUT_WORD, BASE_WORD, STRIDE_WORD ... | addresses or ids | lengths ...   |
//! next batch  | ^ outputs of this run          ^ new base         | ^ rewritten      | as they were  |
//! ```
//!
//! The families of kernels, and the loops of boxes, are chosen by the alignment of addresses up to 16 bytes. So a cached table
//! fits only if the outputs are aligned and the alignment of all samples together is the same as before; otherwise a new table is
//! made. `cached_launch` keeps nothing for other plans: plans with merged neighbours or a route are made anew each time. To make
//! each table anew would be simpler: a stack of the same 256 samples took 18 250 instructions outside of the driver with plan and
//! table made anew, and takes 12 420 with both cached.

use std::sync::Arc;

use smallvec::SmallVec;

use super::argument_pool::{ArgumentPool, KernelArguments};
use super::output_desc::{BASE_WORD, DESC_WORDS, OUT_WORD, SCALES_WORD, STRIDE_WORD};
use super::policy::Policy;
use super::segment::{address_of, OutputSegment};
use super::table::Table;
use super::table_writer::{base_of, write_sources};
use crate::plan::{OutputPlan, Plan, Role};
use crate::samples::Memo;
use crate::tensor::{Owner, Result};

/// The families of kernels, and the loops of boxes, depend on what addresses are multiples of up to this.
const ALIGN: u64 = 16;

/// For each descriptor of a table, which of the addresses of a run it writes to.
#[derive(Debug)]
pub(crate) struct OutputAddresses {
    outputs: SmallVec<[usize; 2]>,
    /// The descriptors that find scales, and to which of the addresses these go.
    scales: SmallVec<[(usize, usize); 1]>,
}

impl OutputAddresses {
    /// The addresses for the table of these segments of a plan's outputs; `others`: which of the addresses its other descriptors write to.
    pub fn new(
        plan: &Plan<'_>,
        segments: &[OutputSegment<'_>],
        others: impl Iterator<Item = usize>,
    ) -> OutputAddresses {
        let position =
            |is_it: &dyn Fn(&OutputPlan<'_>) -> bool| plan.outputs().iter().position(is_it);
        let output =
            |segment: &OutputSegment<'_>| position(&|output| std::ptr::eq(segment.output, output));
        let scales = |(desc, segment): (usize, &OutputSegment<'_>)| {
            segment.scales.as_ref().filter(|scales| scales.out != 0)?;
            let of_leaf = (segment.output.leaf, Role::Scales);
            Some((desc, position(&|output| (output.leaf, output.role) == of_leaf)?))
        };
        OutputAddresses {
            outputs: segments.iter().filter_map(output).chain(others).collect(),
            scales: segments.iter().enumerate().filter_map(scales).collect(),
        }
    }

    /// Writes the output addresses of a run into the descriptors at the beginning of these words.
    pub fn place(&self, words: &mut [u64], addresses: &[u64]) {
        let descs = words.chunks_exact_mut(DESC_WORDS);
        for (desc, &out) in descs.zip(&self.outputs) {
            desc[OUT_WORD] = addresses[out];
        }
        for &(desc, out) in &self.scales {
            words[desc * DESC_WORDS + SCALES_WORD] = addresses[out];
        }
    }
}

/// Returns the cached launch of this plan, or builds it with `make`. It is cached only if the plan is cached with its list,
/// which is on one device, and if the outputs at `addresses` are aligned. A cached launch of
/// another type is replaced.
pub(crate) fn cached_launch<T: Send + Sync + 'static>(
    plan: &Plan<'_>,
    addresses: &[u64],
    make: impl FnOnce() -> Result<T>,
) -> Result<Arc<T>> {
    let is_aligned = addresses.iter().all(|address| address % ALIGN == 0);
    let memo = plan.launch().filter(|_| is_aligned);
    let cached = memo.and_then(Memo::get).and_then(|cached| cached.downcast().ok());
    if let Some(cached) = cached {
        return Ok(cached);
    }
    let made = Arc::new(make()?);
    if let Some(memo) = memo {
        memo.set(Arc::clone(&made) as Owner);
    }
    Ok(made)
}

/// The table of samples that the host chooses, all of them alike.
#[derive(Debug)]
pub(crate) struct CachedTable {
    pub table: Table,
    pub outs: OutputAddresses,
}

impl CachedTable {
    /// The parameters of a launch that reads samples and writes outputs at other addresses; `None` if these need a table of their
    /// own. There are as many samples as the table has, and the outputs are at multiples of 16; neither is checked.
    pub fn arguments<'p>(
        &self,
        data: &[*const u8],
        addresses: &[u64],
        pool: &'p ArgumentPool,
        policy: &Policy,
    ) -> Option<KernelArguments<'p>> {
        let &[sources] = self.table.sources() else { return None };
        if !self.table.is_inline(policy) {
            return None;
        }
        let address = move |data| address_of(data, sources.src_offset);
        let bits = data.iter().fold(0, |all, &data| all | address(data));
        if (bits ^ sources.bits) % ALIGN != 0 {
            return None;
        }
        let base = match sources.is_by_id {
            true => Some(base_of(data, address, sources.family)?),
            false => None,
        };
        let mut arguments = self.table.arguments(None, pool, policy);
        let words = arguments.last_mut(self.table.as_bytes().len() / 8);
        self.outs.place(words, addresses);
        if let Some((base, shift)) = base {
            let desc = &mut words[sources.desc as usize * DESC_WORDS..];
            desc[BASE_WORD] = base;
            desc[STRIDE_WORD] = 1 << shift;
        }
        let (first, count) = (sources.first as usize, sources.count as usize);
        write_sources(&mut words[first..][..count], data, address, base);
        Some(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collate::{Collate, Mask, Pad, Quantize, Ragged, Transform};
    use crate::cuda::launch::table::segments;
    use crate::samples::{SampleList, SampleView};
    use crate::tensor::{DType, Device, Layout};

    /// Samples of four numbers at these addresses, where nothing reads them.
    fn listed(addresses: impl Iterator<Item = usize>) -> SampleList<'static> {
        let view = |address: usize| {
            let (data, layout) =
                (std::ptr::without_provenance(address), Layout::compact(DType::F32, &[4]));
            // SAFETY: plans do not read samples.
            #[allow(unsafe_code)]
            unsafe {
                SampleView::from_raw_parts(data, DType::F32, Device::Cuda(0), layout.unwrap())
            }
        };
        addresses.map(view).collect()
    }

    #[test]
    fn what_is_planned_again_is_kept_for_others_of_the_list() {
        let (samples, stack) = (listed((1..40).map(|n| 48 * n)), Collate::stack());
        let copy = samples.clone();
        let cast = Collate::stack().cast(DType::F64);
        let pad = Collate::pad(Pad::new().size(6));
        let taken = [[1, 2, 3], [5, 5, 0], [7, 8, 6]].map(|chosen| samples.take(chosen).unwrap());
        let is_kept = |plan: &Plan<'_>| plan.launch().is_some();
        let [a, b, c] = taken.each_ref().map(|list| Plan::new(list, &stack).unwrap());
        assert_eq!([&a, &b, &c].map(is_kept), [false, true, true]);
        let is_shared = |a: &Plan<'_>, b: &Plan<'_>| std::ptr::eq(a.outputs(), b.outputs());
        assert!(is_shared(&b, &c) && !is_shared(&a, &b));
        for (plan, list) in [&a, &b, &c].into_iter().zip(&taken) {
            assert_eq!(*plan.addresses(&plan.outputs()[0]), *list.data());
            assert_eq!(plan.explain(), a.explain());
        }
        for other in [&cast, &pad] {
            let [b, c] = [0, 1].map(|at| Plan::new(&taken[at], other).unwrap());
            assert!(is_shared(&b, &c) && is_kept(&b));
        }
        let more = samples.take([1, 2, 3, 9]).unwrap();
        assert_eq!(Plan::new(&more, &stack).unwrap().batch_shapes()[0].shape[0], 4);
        let whole = [&samples, &samples, &copy].map(|list| Plan::new(list, &stack).unwrap());
        assert!(is_shared(&whole[1], &whole[2]));
    }

    #[test]
    fn words_are_those_of_a_table_made_anew() {
        // The first half at multiples of 16.
        let samples = listed((0..800).map(|n| 4096 + 48 * n + if n < 400 { 0 } else { 4 }));
        let (pool, policy) = (ArgumentPool::default(), Policy::from_env().unwrap());
        let take = |count: i64, first: i64, step: i64| {
            let chosen = (0..count).map(|i| first / 400 * 400 + (first + i * step) % 400);
            samples.take(chosen).unwrap()
        };
        let maps = Transform::new().scale(0.5);
        let forms = [
            Collate::stack(),
            Collate::stack().cast(DType::F16),
            Collate::stack().cast(DType::I8).transform(maps),
            Collate::pad(Pad::new().size(40).mask(Mask::Real)),
            Collate::ragged(Ragged::new().batch_index()),
            Collate::stack().transform(Quantize::new(DType::I8)),
        ];
        for (form, count) in
            forms.iter().flat_map(|form| [3, 255, 300, 301].map(|count| (form, count)))
        {
            let made = |list: &SampleList<'_>, out: u64| {
                let plan = Plan::new(list, form).unwrap();
                let outputs = plan.outputs().iter().map(|output| (output, out));
                let segments = segments(&plan, outputs);
                let outs = OutputAddresses::new(&plan, &segments, std::iter::empty());
                let table = Table::new(&segments, &[], 132, &policy).unwrap();
                (CachedTable { table, outs }, plan.outputs().len())
            };
            let (cached, num_outputs) = made(&take(count, 0, 7), 1 << 20);
            for (first, step) in [(0, 7), (0, 11), (3, 13), (17, 3)] {
                let list = take(count, first, step);
                let outs = SmallVec::<[u64; 4]>::from_elem(1 << 21, num_outputs);
                let (anew, _) = made(&list, 1 << 21);
                let mut reused = cached.arguments(&list.data(), &outs, &pool, &policy).unwrap();
                let mut arguments = anew.table.arguments(None, &pool, &policy);
                let len = 2 + anew.table.as_bytes().len() / 8;
                assert_eq!(reused.last_mut(len), arguments.last_mut(len), "{form:?}");
            }
            // Other families may write samples at other multiples.
            let list = take(count, 400, 7);
            let outs = SmallVec::<[u64; 4]>::from_elem(1 << 21, num_outputs);
            assert!(cached.arguments(&list.data(), &outs, &pool, &policy).is_none());
        }
    }

    #[test]
    fn plans_that_depend_on_their_samples_are_not_kept() {
        let stack = Collate::stack();
        let neighbours = listed((1..40).map(|n| 16 * n));
        let one = listed([16].into_iter());
        let back = Collate::stack().device(Device::Cpu);
        let apart = neighbours.take([3, 5, 9]).unwrap();
        for (list, collate) in [(&neighbours, &stack), (&one, &stack), (&apart, &back)] {
            let plans = [(); 3].map(|()| Plan::new(list, collate).unwrap());
            assert!(plans.iter().all(|plan| plan.launch().is_none()));
        }
        // A cached launch is not taken for samples that are neighbours either.
        let [_, cached] = [(); 2].map(|()| Plan::new(&apart, &stack).unwrap());
        assert!(cached.launch().is_some());
        let together = neighbours.take([3, 4, 5]).unwrap();
        let plan = Plan::new(&together, &stack).unwrap();
        assert!(plan.launch().is_none() && plan.explain().ranges == 1);
    }
}
