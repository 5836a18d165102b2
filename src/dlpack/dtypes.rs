//! Dtypes of this crate and those of DLPack: one table for both directions.

use super::ffi::{DLDataType, DLDataTypeCode as Code};
use crate::tensor::DType;

macro_rules! dtypes {
    ($($dtype:ident $code:ident $bits:literal $lanes:literal;)*) => {
        /// The dtype of DLPack for one of this crate. A tensor of a [padded](DType::is_padded) dtype has
        /// [`FLAG_IS_SUBBYTE_TYPE_PADDED`](super::FLAG_IS_SUBBYTE_TYPE_PADDED) too. One of foreign byte order is an
        /// opaque handle of its size.
        ///
        /// ```
        /// let float = windrow::dlpack::dtype_to_dl(windrow::DType::F32);
        /// assert_eq!((float.bits, float.lanes), (32, 1));
        /// ```
        pub const fn dtype_to_dl(dtype: DType) -> DLDataType {
            let (code, bits, lanes) = match dtype {
                $(DType::$dtype => (Code::$code, $bits, $lanes),)*
                DType::I4 => (Code::INT, 4, 1),
                DType::U4 => (Code::UINT, 4, 1),
                // DLPack has no order of bytes: no number that a consumer could take for one.
                other => (Code::OPAQUE_HANDLE, 8 * other.size() as u8, 1),
            };
            DLDataType { code, bits, lanes }
        }

        /// The dtype of this crate for one of DLPack; `None` if there is none, and for 4-bit
        /// integers, which are known by a tensor's flags alone.
        #[inline]
        pub(super) fn known_dtype(dtype: DLDataType) -> Option<DType> {
            Some(match (dtype.code, dtype.bits, dtype.lanes) {
                $((Code::$code, $bits, $lanes) => DType::$dtype,)*
                _ => return None,
            })
        }
    };
}

dtypes! {
    Bool BOOL 8 1;
    I8 INT 8 1;
    I16 INT 16 1;
    I32 INT 32 1;
    I64 INT 64 1;
    U8 UINT 8 1;
    U16 UINT 16 1;
    U32 UINT 32 1;
    U64 UINT 64 1;
    F16 FLOAT 16 1;
    BF16 BFLOAT 16 1;
    F32 FLOAT 32 1;
    F64 FLOAT 64 1;
    C64 COMPLEX 64 1;
    C128 COMPLEX 128 1;
    F8E3M4 FLOAT8_E3M4 8 1;
    F8E4M3 FLOAT8_E4M3 8 1;
    F8E4M3B11FNUZ FLOAT8_E4M3B11FNUZ 8 1;
    F8E4M3FN FLOAT8_E4M3FN 8 1;
    F8E4M3FNUZ FLOAT8_E4M3FNUZ 8 1;
    F8E5M2 FLOAT8_E5M2 8 1;
    F8E5M2FNUZ FLOAT8_E5M2FNUZ 8 1;
    F8E8M0FNU FLOAT8_E8M0FNU 8 1;
    F4E2M1FNX2 FLOAT4_E2M1FN 4 2;
}
