//! [`LaunchOutputs`]: what the launch of a plan writes, and where.

use smallvec::SmallVec;

use crate::plan::{OutputPlan, Plan, StagedBlock};

/// The outputs of a launch: as planned, or reading from where their samples were copied to.
pub(crate) struct LaunchOutputs<'p> {
    /// The address of each output; `None` for one that the launch does not write.
    pub addresses: SmallVec<[Option<u64>; 4]>,
    staged: Vec<Option<Box<OutputPlan<'p>>>>,
}

impl<'p> LaunchOutputs<'p> {
    /// No address assigned, for `num_outputs` outputs.
    pub fn unassigned(num_outputs: usize) -> LaunchOutputs<'p> {
        LaunchOutputs { addresses: SmallVec::from_elem(None, num_outputs), staged: Vec::new() }
    }

    /// Makes the launch read staged samples from memory at this address.
    pub fn stage(&mut self, staging: &'p StagedBlock, memory: u64) {
        // Most runs stage none.
        self.staged.resize_with(self.addresses.len(), || None);
        for staged in &staging.outputs {
            self.staged[staged.output] = Some(Box::new(staged.read_at(memory)));
        }
    }

    /// The outputs that the launch writes, each with its address: as planned, reading from staged samples, or compact where the
    /// host spreads them afterwards.
    pub fn outputs<'w>(
        &'w self,
        plan: &'w Plan<'_>,
    ) -> impl Iterator<Item = (&'w OutputPlan<'w>, u64)> {
        let outputs = plan.outputs().iter().enumerate().zip(&self.addresses);
        outputs.filter_map(|((index, planned), place)| {
            let staged = self.staged.get(index).and_then(Option::as_deref);
            let spread = || plan.route().and_then(|route| route.spread(index));
            let compact = || spread().map(|spread| &spread.compact);
            Some((staged.or_else(compact).unwrap_or(planned), (*place)?))
        })
    }
}
