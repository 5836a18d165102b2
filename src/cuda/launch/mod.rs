//! The table of a launch: a plan as the kernels read it.
//!
//! | module | what it knows |
//! |---|---|
//! | `output_desc`, `kernel_abi` | the structs that kernels/params.h has too |
//! | `policy` | numbers of a launch that tuning may change |
//! | `launch_outputs`, `host_metadata` | what a launch writes; lengths and offsets, which the host knows |
//! | `segment`, `loops`, `sample_groups`, `boxes`, `family` | the part of an output that one loop nest writes, and its family of kernels |
//! | `scaled_segments` | the same of outputs whose elements share scales, and of the scales |
//! | `table_writer`, `encode`, `table` | the table itself |
//! | `launch_cache` | the launch of a plan, cached for the plan's next run |
//! | `argument_pool` | parameters of launches, in memory that is used again |

/// Structs of kernels/params.h: plain numbers, laid out as in C.
macro_rules! kernel_structs {
    ($($(#[$about:meta])* struct $name:ident {
        $($(#[$field_about:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$field_about])* pub $field: $type,)*
        }
    )*};
}

pub(crate) mod argument_pool;
mod boxes;
mod encode;
pub(crate) mod family;
pub(crate) mod host_metadata;
pub(crate) mod kernel_abi;
pub(crate) mod launch_cache;
pub(crate) mod launch_outputs;
mod loops;
pub(crate) mod output_desc;
pub(crate) mod policy;
mod sample_groups;
mod scaled_segments;
pub(crate) mod segment;
pub(crate) mod table;
pub(crate) mod table_writer;
