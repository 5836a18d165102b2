//! Element types.

use std::fmt;

use half::{bf16, f16};

macro_rules! dtypes {
    (
        native { $($variant:ident $name:literal $size:literal $doc:literal;)* }
        swapped { $($swapped:ident $native:ident $swapped_name:literal;)* }
    ) => {
        /// The type of one element. Names are those of NumPy, `ml_dtypes` and torch.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = $doc] $variant,)*
            $(
                #[doc = concat!("[`DType::", stringify!($native), "`] in the byte order of other machines: of samples, never of batches.")]
                $swapped,
            )*
        }

        impl DType {
            /// Every dtype that a batch can have, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// The name, such as `"float16"`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$variant => $name,)*
                    $(DType::$swapped => $swapped_name,)*
                }
            }

            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self.native() {
                    $(DType::$variant => $size,)*
                    $(DType::$swapped => 0,)*
                }
            }

            /// The same dtype in the byte order of this machine.
            pub const fn native(self) -> DType {
                match self { $(DType::$swapped => DType::$native,)* other => other }
            }

            /// The same dtype in the byte order of other machines: what samples may be that come from a file or a
            /// network. A swapped dtype gives the native one, one of one byte itself, bfloat16 `None`.
            ///
            /// ```
            /// use windrow::{Collate, DType, Device, Engine, Layout, SampleView};
            /// let file = 1.5f32.to_bits().swap_bytes().to_ne_bytes();
            /// let dtype = DType::F32.swapped().unwrap();
            /// let layout = Layout::compact(dtype, &[1])?;
            /// // SAFETY: one element.
            /// let sample = unsafe { SampleView::from_raw_parts(file.as_ptr(), dtype, Device::Cpu, layout) };
            /// let batch = Engine::host().assemble(&[sample], &Collate::stack())?;
            /// assert_eq!(batch.data().as_slice::<f32>()?, [1.5]);
            /// # Ok::<(), windrow::Error>(())
            /// ```
            pub const fn swapped(self) -> Option<DType> {
                match self {
                    $(DType::$native => Some(DType::$swapped),)*
                    $(DType::$swapped => Some(DType::$native),)*
                    other if other.size() == 1 => Some(other),
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    native {
        Bool "bool" 1 "One byte, 0 or 1.";
        I8 "int8" 1 "Signed, 8 bits.";
        I16 "int16" 2 "Signed, 16 bits.";
        I32 "int32" 4 "Signed, 32 bits.";
        I64 "int64" 8 "Signed, 64 bits.";
        U8 "uint8" 1 "Unsigned, 8 bits.";
        U16 "uint16" 2 "Unsigned, 16 bits.";
        U32 "uint32" 4 "Unsigned, 32 bits.";
        U64 "uint64" 8 "Unsigned, 64 bits.";
        F16 "float16" 2 "IEEE 754 binary16.";
        BF16 "bfloat16" 2 "The upper half of a binary32.";
        F32 "float32" 4 "IEEE 754 binary32.";
        F64 "float64" 8 "IEEE 754 binary64.";
        F8E4M3FN "float8_e4m3fn" 1 "Up to 448, with NaN and without infinities.";
        F8E5M2 "float8_e5m2" 1 "The upper half of a binary16.";
        C64 "complex64" 8 "Two float32; moved, never cast.";
        C128 "complex128" 16 "Two float64; moved, never cast.";
        F8E3M4 "float8_e3m4" 1 "Moved, never cast.";
        F8E4M3 "float8_e4m3" 1 "Moved, never cast.";
        F8E4M3B11FNUZ "float8_e4m3b11fnuz" 1 "Moved, never cast.";
        F8E4M3FNUZ "float8_e4m3fnuz" 1 "Moved, never cast.";
        F8E5M2FNUZ "float8_e5m2fnuz" 1 "Moved, never cast.";
        F8E8M0FNU "float8_e8m0fnu" 1 "A power of two; moved, never cast.";
        I4 "int4" 1 "Signed, 4 bits of a byte; moved, never cast.";
        U4 "uint4" 1 "Unsigned, 4 bits of a byte; moved, never cast.";
        F4E2M1FNX2 "float4_e2m1fn_x2" 1 "Two floats of 4 bits; moved, never cast.";
    }
    swapped {
        I16Swapped I16 "int16 of other byte order";
        I32Swapped I32 "int32 of other byte order";
        I64Swapped I64 "int64 of other byte order";
        U16Swapped U16 "uint16 of other byte order";
        U32Swapped U32 "uint32 of other byte order";
        U64Swapped U64 "uint64 of other byte order";
        F16Swapped F16 "float16 of other byte order";
        F32Swapped F32 "float32 of other byte order";
        F64Swapped F64 "float64 of other byte order";
        C64Swapped C64 "complex64 of other byte order";
        C128Swapped C128 "complex128 of other byte order";
    }
}

impl DType {
    /// The dtype of [`DType::ALL`] that [`DType::name`] gives this name; `None` for any other name.
    ///
    /// ```
    /// use windrow::DType;
    /// assert_eq!(DType::from_name("bfloat16"), Some(DType::BF16));
    /// assert_eq!(DType::from_name("half"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Whether its bytes are in the order of this machine.
    pub const fn is_native(self) -> bool {
        self as u8 == self.native() as u8
    }

    /// Bytes that have an order: those of an element, or of each part of a complex one.
    pub(crate) const fn ordered_bytes(self) -> usize {
        match self.native() {
            DType::C64 => 4,
            DType::C128 => 8,
            other => other.size(),
        }
    }

    /// Whether casts and transforms take it: bool, the integers, float16 to float64 and bfloat16, in any byte order,
    /// float8_e4m3fn and float8_e5m2.
    pub const fn is_arithmetic(self) -> bool {
        (self.native() as u8) <= (DType::F8E5M2 as u8)
    }

    /// Whether it is float8_e4m3fn or float8_e5m2: of these alone a cast may saturate.
    pub const fn is_float8(self) -> bool {
        matches!(self, DType::F8E4M3FN | DType::F8E5M2)
    }

    /// Whether a value has fewer bits than the byte that it takes.
    pub const fn is_padded(self) -> bool {
        matches!(self, DType::I4 | DType::U4)
    }

    /// Whether it is one of the eight integers of whole bytes, in any byte order.
    pub const fn is_integer(self) -> bool {
        let number = self.native() as u8;
        number >= (DType::I8 as u8) && number <= (DType::U64 as u8)
    }

    /// Whether it is one of the six arithmetic floating-point types, in any byte order.
    pub const fn is_float(self) -> bool {
        let number = self.native() as u8;
        number >= (DType::F16 as u8) && number <= (DType::F8E5M2 as u8)
    }
}

/// The target of a cast: a dtype, and whether values saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CastTo {
    pub dtype: DType,
    /// Values beyond the largest finite one become it; of float8 alone.
    pub saturate: bool,
}

impl From<DType> for CastTo {
    fn from(dtype: DType) -> CastTo {
        CastTo { dtype, saturate: false }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the in-memory form of a [`DType`].
///
/// Sealed, because a foreign type could misstate its size.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The dtype of this type.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $t {}
            impl Element for $t {
                const DTYPE: DType = DType::$d;
            }
            const _: () = assert!(size_of::<$t>() == DType::$d.size());
        )*
    };
}

elements! {
    bool => Bool, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32,
    u64 => U64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, [f32; 2] => C64, [f64; 2] => C128,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_names() {
        for &dtype in DType::ALL {
            let name = dtype.name();
            let begins = |with: &[&str]| with.iter().any(|with| name.starts_with(with));
            assert_eq!(dtype.is_float8(), ["float8_e4m3fn", "float8_e5m2"].contains(&name));
            let is_small = begins(&["float8", "float4"]) && !dtype.is_float8();
            let is_float = begins(&["float", "bfloat"]) && !is_small;
            let is_integer = begins(&["int", "uint"]) && !dtype.is_padded();
            assert_eq!(dtype.is_float(), is_float, "{name}");
            assert_eq!(dtype.is_integer(), is_integer, "{name}");
            assert_eq!(dtype.is_arithmetic(), is_float || is_integer || name == "bool", "{name}");
        }
    }
}
