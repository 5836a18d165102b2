//! The instruction set of the host's loops: [`with_isa`] alone chooses it.

#[cfg(avx512)]
use crate::tensor::DType;

/// Evaluates to `$body` with `$i` standing for the best compilation of the loops ([`Isa`](super::simd::Isa)) that this processor
/// runs; for a pair of dtypes, if given, the best that was measured for it.
macro_rules! with_isa {
    ($src:expr, $dst:expr, $i:ident => $body:expr) => {{
        match () {
            #[cfg(avx512)]
            () if $crate::host::isa::gains_from_avx512($src, $dst)
                && $crate::host::isa::has_avx512() =>
            {
                type $i = $crate::host::simd::Avx512;
                $body
            }
            () => $crate::host::isa::with_isa!($i => $body),
        }
    }};
    ($i:ident => $body:expr) => {
        match () {
            #[cfg(target_arch = "x86_64")]
            () if $crate::host::isa::has_avx2() => {
                type $i = $crate::host::simd::Avx2;
                $body
            }
            () => {
                type $i = $crate::host::simd::Plain;
                $body
            }
        }
    };
}

pub(super) use with_isa;

/// Whether [`Avx2`](super::simd::Avx2) is used: the processor runs it, and no test forbids it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn has_avx2() -> bool {
    #[cfg(test)]
    if !forced::allows("avx2") {
        return false;
    }
    detects_avx2()
}

/// Whether this processor runs [`Avx2`](super::simd::Avx2).
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn detects_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Whether [`Avx512`](super::simd::Avx512) may be used: the processor runs it, and no test forbids
/// it.
#[cfg(avx512)]
#[inline]
pub(super) fn has_avx512() -> bool {
    #[cfg(test)]
    if !forced::allows("avx512") {
        return false;
    }
    detects_avx512()
}

/// Whether this processor runs [`Avx512`](super::simd::Avx512).
#[cfg(avx512)]
#[inline]
pub(super) fn detects_avx512() -> bool {
    detects_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Whether this processor looks bytes up in tables of 128; AVX-512 itself is not checked.
#[cfg(avx512)]
#[inline]
pub(super) fn detects_vbmi() -> bool {
    is_x86_feature_detected!("avx512vbmi")
}

/// Whether [`Avx512`](super::simd::Avx512) was measured to be faster than [`Avx2`](super::simd::Avx2) for a pair of dtypes: it has
/// conversions of 64-bit and of unsigned integers, clamps under a mask, and rounds to bfloat16 and float8 in fewer steps. Zen 4, 16384 elements in
/// the second cache, time as a share of AVX2's: to bfloat16 0.38 to 0.82, from uint32, int64 and uint64 to floats 0.17 to 1.04, from
/// floats to integers 0.44 to 0.89, but to int64 1.07 to 1.10, bfloat16 and float64 to float16 0.80 and 0.62, other floats 1.0; among
/// integers of which one has 64 bits 2.4 to 5.8. From float32 to float8 0.68.
/// Emerald Rapids, in the second cache: from float8 to floats of 16 bits 0.50 to 0.67, to float32 0.42 to 0.44; from bfloat16 to float8
/// 0.51 and 0.59. True for all pairs to float8; floats to integers other than int64; uint32, int64 and uint64 to floats; all
/// dtypes to bfloat16; bfloat16 to floats other than float64; float64 to float16; float8 to float16 and float32.
#[cfg(avx512)]
pub(super) fn gains_from_avx512(src: DType, dst: DType) -> bool {
    let lacks_avx2 = matches!(src, DType::U32 | DType::I64 | DType::U64);
    match (src.is_float(), dst.is_float()) {
        _ if dst.is_float8() => true,
        (true, false) => dst.is_integer() && dst != DType::I64,
        (false, true) => dst == DType::BF16 || lacks_avx2,
        (true, true) => {
            dst == DType::BF16
                || src == DType::BF16 && dst != DType::F64
                || src == DType::F64 && dst == DType::F16
                || src.is_float8() && matches!(dst, DType::F16 | DType::F32)
        }
        (false, false) => false,
    }
}

/// The best instruction set that is used, for tests that compare them.
#[cfg(test)]
pub(super) mod forced {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Worst first.
    pub const NAMES: &[&str] = &["plain", "avx2", "avx512"];

    static BEST: AtomicUsize = AtomicUsize::new(usize::MAX);

    /// Allows nothing better than this one, on any thread; `None` allows whatever the processor has. Panics for a name that is not
    /// in [`NAMES`].
    pub fn limit_to(name: Option<&str>) {
        BEST.store(name.map_or(usize::MAX, position), Ordering::SeqCst);
    }

    /// Whether [`limit_to`] allows it, on any processor. Panics for a name that is not in [`NAMES`].
    pub fn allows(name: &str) -> bool {
        position(name) <= BEST.load(Ordering::SeqCst)
    }

    /// Whether this build and this processor have it, whatever the limit; false for a name that is not in [`NAMES`].
    pub fn is_supported(name: &str) -> bool {
        match name {
            #[cfg(target_arch = "x86_64")]
            "avx2" => super::detects_avx2(),
            #[cfg(avx512)]
            "avx512" => super::detects_avx512(),
            name => name == "plain",
        }
    }

    /// Whether this build and this processor have it and [`limit_to`] allows it.
    pub fn is_used(name: &str) -> bool {
        match name {
            #[cfg(target_arch = "x86_64")]
            "avx2" => super::has_avx2(),
            #[cfg(avx512)]
            "avx512" => super::has_avx512(),
            name => name == "plain",
        }
    }

    /// The position of a name in [`NAMES`]. Panics for any other name.
    fn position(name: &str) -> usize {
        NAMES.iter().position(|known| *known == name).expect("a name of the list")
    }
}
