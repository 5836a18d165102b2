//! [`Role`]: which tensor of a batch.

/// The role of a tensor in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Data,
    Mask,
    BatchIndex,
    /// Scales of elements that were quantised; the output of the data writes them too.
    Scales,
    /// Known before the plan runs, as `Offsets` are: no output writes them.
    Lengths,
    Offsets,
}

impl Role {
    /// The name of the role in `explain` and in errors.
    pub fn name(self) -> &'static str {
        match self {
            Role::Data => "data",
            Role::Mask => "mask",
            Role::BatchIndex => "batch_index",
            Role::Scales => "scales",
            Role::Lengths => "lengths",
            Role::Offsets => "offsets",
        }
    }
}
