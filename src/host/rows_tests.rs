//! Rows against an oracle in integer arithmetic, for every pair of dtypes and both compilations.
#![allow(clippy::cast_possible_truncation, reason = "bits of known width")]

use super::*;

const ARITHMETIC: &[DType] = DType::ALL.split_at(13).0;
const POISON: u8 = 0xA5;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
}

/// Precision, exponent of the smallest normal number and width of a floating-point dtype.
fn format(dtype: DType) -> Option<(u32, i32, u32)> {
    match dtype {
        DType::F16 => Some((11, -14, 16)),
        DType::BF16 => Some((8, -126, 16)),
        DType::F32 => Some((24, -126, 32)),
        DType::F64 => Some((53, -1022, 64)),
        _ => None,
    }
}

fn infinity(dtype: DType) -> u64 {
    let (p, _, width) = format(dtype).unwrap();
    ((1 << (width - p)) - 1) << (p - 1)
}

enum Value {
    /// `magnitude * 2^exponent`
    Finite(bool, u128, i32),
    Infinite(bool),
    /// Sign and payload, left-aligned in 64 bits.
    Nan(bool, u64),
}

fn decode(dtype: DType, bits: u64) -> Value {
    let width = dtype.size() as u32 * 8;
    let negative = bits >> (width - 1) & 1 == 1;
    let Some((p, emin, _)) = format(dtype) else {
        let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        let value = match dtype {
            DType::Bool => i128::from(bits != 0),
            _ if signed && negative => i128::from(bits) - (1 << width),
            _ => i128::from(bits),
        };
        return Value::Finite(value < 0, value.unsigned_abs(), 0);
    };
    let fraction = bits & ((1 << (p - 1)) - 1);
    let magnitude = bits & ((1 << (width - 1)) - 1);
    let field = (magnitude >> (p - 1)) as i32;
    if magnitude == infinity(dtype) {
        Value::Infinite(negative)
    } else if magnitude > infinity(dtype) {
        Value::Nan(negative, fraction << (65 - p))
    } else if field == 0 {
        Value::Finite(negative, fraction.into(), emin - (p as i32 - 1))
    } else {
        let whole = u128::from(fraction) | 1 << (p - 1);
        Value::Finite(negative, whole, emin - (p as i32 - 1) + field - 1)
    }
}

/// `magnitude * 2^exponent` in a floating-point dtype, to nearest even, without its sign.
fn round(dtype: DType, magnitude: u128, exponent: i32) -> u64 {
    let (p, emin, _) = format(dtype).unwrap();
    if magnitude == 0 {
        return 0;
    }
    let top = 127 - magnitude.leading_zeros() as i32;
    let lowest = emin - (p as i32 - 1);
    let quantum = (top + exponent).max(emin) - (p as i32 - 1);
    let shift = quantum - exponent;
    let units = if shift <= 0 {
        magnitude << -shift
    } else if shift > top + 1 {
        0
    } else {
        let (kept, rest) = (magnitude >> shift, magnitude & ((1 << shift) - 1));
        let half = 1 << (shift - 1);
        kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
    };
    let bits = ((quantum - lowest) as u128) << (p - 1);
    u64::try_from(bits + units).unwrap().min(infinity(dtype))
}

/// The bits of `bits` converted.
fn oracle(src: DType, dst: DType, bits: u64) -> u64 {
    if src == dst {
        return bits;
    }
    let value = decode(src, bits);
    let width = dst.size() as u32 * 8;
    if let Some((p, _, _)) = format(dst) {
        let (negative, magnitude) = match value {
            Value::Finite(negative, m, e) => (negative, round(dst, m, e)),
            Value::Infinite(negative) => (negative, infinity(dst)),
            Value::Nan(negative, payload) => {
                (negative, infinity(dst) | 1 << (p - 2) | payload >> (65 - p))
            }
        };
        return u64::from(negative) << (width - 1) | magnitude;
    }
    if dst == DType::Bool {
        return u64::from(!matches!(value, Value::Finite(_, 0, _)));
    }
    let signed = matches!(dst, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let (low, high) =
        if signed { (-1 << (width - 1), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
    let exact: i128 = match value {
        Value::Nan(..) => 0,
        Value::Infinite(negative) => [high, low][usize::from(negative)],
        Value::Finite(negative, m, e) => {
            let whole = match e {
                ..=-128 => 0,
                -127..=0 => m >> -e,
                _ if m == 0 => 0,
                _ if e > 60 => 1 << 120,
                _ => m << e,
            };
            let value = i128::try_from(whole).unwrap() * [1, -1][usize::from(negative)];
            if format(src).is_some() {
                value.clamp(low, high)
            } else {
                value
            }
        }
    };
    exact as u64 & (u64::MAX >> (64 - width))
}

fn is_quiet_nan(dtype: DType, bits: u64) -> bool {
    let Some((p, _, width)) = format(dtype) else { return false };
    bits & (u64::MAX >> (65 - width)) >= infinity(dtype) | 1 << (p - 2)
}

/// Edges, ties of every narrower type and their neighbours, and pseudo-random values.
fn values(dtype: DType) -> Vec<u64> {
    let mut random = Random(dtype as u64 + 1);
    let width = dtype.size() as u32 * 8;
    let all = u64::MAX >> (64 - width);
    if width == 8 {
        return (0..=255).collect();
    }
    let mut bits = vec![0, all, all >> 1, (all >> 1) + 1];
    for k in 0..width {
        for delta in [u64::MAX, 0, 1] {
            let power = 1u64 << k;
            bits.push(power.wrapping_add(delta));
            bits.push(power.wrapping_neg().wrapping_add(delta));
        }
        for _ in 0..8 {
            let near = (random.next() >> 50 | 1) << k;
            for x in [near.wrapping_sub(1), near, near.wrapping_add(1)] {
                bits.extend([x, x.wrapping_neg()]);
            }
            bits.push(random.next() >> k);
        }
    }
    let Some(_) = format(dtype) else {
        bits.iter_mut().for_each(|x| *x &= all);
        return bits;
    };
    bits.clear();
    let sign = 1 << (width - 1);
    for narrow in [DType::F16, DType::BF16, DType::F32, dtype] {
        // Values and midpoints of the narrower type: those are exact in a wider one.
        let (p, emin, w) = format(narrow).unwrap();
        let top = infinity(narrow);
        let picks = (0..150).map(|_| random.next() & (u64::MAX >> (65 - w)) & !0x40);
        for pick in picks.chain([0, 1, 2, top - 1, 1 << (p - 1), (1 << (p - 1)) - 1]) {
            let Value::Finite(_, m, e) = decode(narrow, pick.min(top - 1)) else { continue };
            assert!(emin < 0);
            for x in [round(dtype, m, e), round(dtype, 2 * m + 1, e - 1)] {
                for y in [x.wrapping_sub(1), x, x + 1] {
                    bits.push(y & (sign - 1));
                }
            }
        }
    }
    for k in [7, 8, 15, 16, 24, 31, 32, 53, 63, 64] {
        for delta in [-2, -1, 0, 1, 2] {
            let m = ((1i128 << k) * 2 + delta).unsigned_abs();
            let x = round(dtype, m, -1);
            bits.extend([x.wrapping_sub(1) & (sign - 1), x, x + 1]);
        }
    }
    let top = infinity(dtype);
    bits.extend([0, 1, top, top + 1, top - 1, sign - 1, top | sign >> 8, top | 0x155]);
    let negative: Vec<u64> = bits.iter().map(|x| x | sign).collect();
    bits.extend(negative);
    bits.extend((0..400).map(|_| random.next() & all));
    bits
}

/// A buffer with elements in it and poison elsewhere.
#[derive(Clone, PartialEq)]
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    stride: isize,
    width: usize,
}

impl Memory {
    /// Room for `len` elements, `stride` apart, with a margin of `margin` at both ends.
    fn new(len: usize, width: usize, stride: isize, margin: usize) -> Self {
        let reach = stride.unsigned_abs() * len.saturating_sub(1);
        let bytes = vec![POISON; reach + width + 2 * margin];
        let start = margin + if stride < 0 { reach } else { 0 };
        Memory { bytes, start, stride, width }
    }

    fn place(mut self, values: impl Iterator<Item = u64>) -> Self {
        for (i, value) in values.enumerate() {
            let at = self.start.wrapping_add_signed(self.stride * i as isize);
            self.bytes[at..at + self.width].copy_from_slice(&value.to_le_bytes()[..self.width]);
        }
        self
    }

    fn get(&self, i: usize) -> u64 {
        let at = self.start.wrapping_add_signed(self.stride * i as isize);
        let mut bytes = [0; 8];
        bytes[..self.width].copy_from_slice(&self.bytes[at..at + self.width]);
        u64::from_le_bytes(bytes)
    }

    fn at(&mut self) -> *mut u8 {
        // Of the whole buffer: strides may lead back from the first element.
        self.bytes.as_mut_ptr().wrapping_add(self.start)
    }
}

macro_rules! compilations {
    ($select:ident($src:expr, $dst:expr)) => {{
        #[allow(unused_mut, reason = "there is one compilation where there is no AVX2")]
        let mut rows = vec![$select::<Plain>($src, $dst)];
        #[cfg(target_arch = "x86_64")]
        if super::super::simd::detects_avx2() {
            rows.push($select::<super::super::simd::Avx2>($src, $dst));
        }
        #[cfg(avx512)]
        if super::super::simd::detects_avx512() {
            rows.push($select::<super::super::simd::Avx512>($src, $dst));
        }
        rows
    }};
}

fn pairs() -> impl Iterator<Item = (DType, DType)> {
    ARITHMETIC.iter().flat_map(|&s| ARITHMETIC.iter().map(move |&d| (s, d)))
}

#[test]
fn the_oracle_agrees_with_rust() {
    for bits in values(DType::F64) {
        let x = f64::from_bits(bits);
        assert_eq!(oracle(DType::F64, DType::F32, bits), u64::from((x as f32).to_bits()), "{x:e}");
        assert_eq!(oracle(DType::F64, DType::I64, bits), x as i64 as u64, "{x:e}");
        assert_eq!(oracle(DType::F64, DType::U16, bits), u64::from(x as u16), "{x:e}");
    }
    for bits in values(DType::U64) {
        assert_eq!(oracle(DType::U64, DType::F32, bits), u64::from((bits as f32).to_bits()));
        let x = bits as i64;
        assert_eq!(oracle(DType::I64, DType::F64, bits), (x as f64).to_bits());
        assert_eq!(oracle(DType::I64, DType::I8, bits), u64::from(x as u8));
    }
}

#[test]
fn every_cast_of_every_value() {
    for (src, dst) in pairs() {
        let values = values(src);
        let (s, d) = (src.size(), dst.size());
        let mut input = Memory::new(values.len(), s, s as isize, 3).place(values.iter().copied());
        let want = Memory::new(values.len(), d, d as isize, 5)
            .place(values.iter().map(|&x| oracle(src, dst, x)));
        for row in compilations!(cast_row_on(src, dst)) {
            let mut got = Memory::new(values.len(), d, d as isize, 5);
            // SAFETY: both buffers hold that many contiguous elements.
            unsafe { row(input.at(), s as isize, got.at(), d as isize, values.len()) };
            for (i, &x) in values.iter().enumerate() {
                assert_eq!(got.get(i), want.get(i), "{src} {x:#x} to {dst}");
            }
            assert!(got == want, "{src} to {dst} wrote beyond its row");
        }
    }
}

#[test]
fn casts_of_every_length_and_stride() {
    let mut random = Random(7);
    for (src, dst) in pairs() {
        let (s, d) = (src.size() as isize, dst.size() as isize);
        let pool = values(src);
        let strides =
            [(s, d), (3 * s, d), (s, 2 * d + 1), (-s, d), (0, d), (0, -d - 2), (-3 * s - 1, 3 * d)];
        for len in (0..=70).chain(255..=257) {
            let few = if len % 8 < 3 { strides.len() } else { 2 };
            for (k, &(ss, ds)) in strides.iter().enumerate().take(few) {
                let mut elements: Vec<u64> =
                    (0..len).map(|_| pool[random.next() as usize % pool.len()]).collect();
                if ss == 0 {
                    elements.fill(pool[(k + len) % pool.len()]);
                }
                let margin = 1 + (random.next() % 40) as usize;
                let mut input =
                    Memory::new(len, s as usize, ss, margin).place(elements.iter().copied());
                let want = Memory::new(len, d as usize, ds, margin + 2)
                    .place(elements.iter().map(|&x| oracle(src, dst, x)));
                for row in compilations!(cast_row_on(src, dst)) {
                    let mut got = Memory::new(len, d as usize, ds, margin + 2);
                    // SAFETY: both buffers hold `len` elements at these strides.
                    unsafe { row(input.at(), ss, got.at(), ds, len) };
                    assert!(got == want, "{src} to {dst}, {len} at {ss} and {ds}");
                }
            }
        }
    }
}

#[test]
fn every_float16_and_its_neighbours() {
    let all: Vec<u64> = (0..=0xFFFF).collect();
    let mut around = Vec::new();
    for &half in &all {
        if let Value::Finite(negative, m, e) = decode(DType::F16, half) {
            let sign = u64::from(negative) << 31;
            let x = round(DType::F32, m, e);
            let tie = round(DType::F32, 2 * m + 1, e - 1);
            around.extend([x, tie - 1, tie, tie + 1].map(|x| x | sign));
        }
    }
    for (src, dst, values) in [
        (DType::F16, DType::F32, &all),
        (DType::BF16, DType::F32, &all),
        (DType::F16, DType::BF16, &all),
        (DType::BF16, DType::F16, &all),
        (DType::F32, DType::F16, &around),
    ] {
        for row in compilations!(cast_row_on(src, dst)) {
            let (s, d) = (src.size(), dst.size());
            let mut input = Memory::new(values.len(), s, s as isize, 0);
            input = input.place(values.iter().copied());
            let mut got = Memory::new(values.len(), d, d as isize, 0);
            // SAFETY: both buffers hold that many contiguous elements.
            unsafe { row(input.at(), s as isize, got.at(), d as isize, values.len()) };
            for (i, &x) in values.iter().enumerate() {
                assert_eq!(got.get(i), oracle(src, dst, x), "{src} {x:#x} to {dst}");
            }
            if (src, dst) == (DType::F16, DType::F32) {
                let mut back = Memory::new(values.len(), 2, 2, 0);
                let there = compilations!(cast_row_on(dst, src)).pop().unwrap();
                // SAFETY: as above.
                unsafe { there(got.at(), 4, back.at(), 2, values.len()) };
                for &x in values {
                    let quiet = u64::from(x & 0x7FFF > 0x7C00) << 9;
                    assert_eq!(back.get(x as usize), x | quiet);
                }
            }
        }
    }
}

fn transform(channels: usize) -> Affine {
    let a = (0..channels).map(|c| [1.0 / 58.395, -0.25, 3.0, 1e-3][c % 4] * (1.0 + c as f64 / 7.0));
    let b = (0..channels).map(|c| [-2.1179, 0.5, 1e4, -3.0][c % 4] + c as f64 / 3.0);
    Affine::new(a.collect(), b.collect())
}

/// One element through [`transform`], by the definition.
fn transformed(src: DType, dst: DType, bits: u64, affine: &Affine, c: usize) -> u64 {
    let c = c % affine.channels();
    if src == DType::F64 || dst == DType::F64 {
        let x = f64::from_bits(oracle(src, DType::F64, bits));
        let y = std::hint::black_box(x).mul_add(affine.a()[c], affine.b()[c]);
        oracle(DType::F64, dst, y.to_bits())
    } else {
        let x = f32::from_bits(oracle(src, DType::F32, bits) as u32);
        let y = std::hint::black_box(x).mul_add(affine.a32()[c], affine.b32()[c]);
        oracle(DType::F32, dst, y.to_bits().into())
    }
}

/// Equal bits, or a quiet NaN where one is expected.
fn agree(dtype: DType, want: u64, got: u64) -> bool {
    want == got || (is_quiet_nan(dtype, want) && is_quiet_nan(dtype, got))
}

#[test]
fn transforms_of_every_pair() {
    let mut random = Random(11);
    for (src, dst) in pairs() {
        let (s, d) = (src.size() as isize, dst.size() as isize);
        let pool = values(src);
        for channels in [1, 2, 3, 4, 5, 8, 31, 32, 33, 300] {
            let affine = transform(channels);
            for len in (0..=70).step_by(1 + channels % 7).chain([255, 256, 257, 700]) {
                let (ss, ds) = [(s, d), (s, d), (3 * s, d), (s, d + 1), (-s, d)][len % 5];
                let periodic = len % 3 > 0;
                let channel = random.next() as usize % channels;
                let elements: Vec<u64> =
                    (0..len).map(|_| pool[random.next() as usize % pool.len()]).collect();
                let mut input = Memory::new(len, s as usize, ss, 3).place(elements.iter().copied());
                let mut first: Option<Memory> = None;
                for row in compilations!(affine_row_on(src, dst)) {
                    let mut got = Memory::new(len, d as usize, ds, 7);
                    // SAFETY: both buffers hold `len` elements at these strides.
                    unsafe { row(input.at(), ss, got.at(), ds, len, &affine, channel, periodic) };
                    if let Some(first) = &first {
                        assert!(got == *first, "{src} to {dst}: the compilations differ");
                        continue;
                    }
                    for (i, &x) in elements.iter().enumerate() {
                        let c = if periodic { channel + i } else { channel };
                        let (want, got) = (transformed(src, dst, x, &affine, c), got.get(i));
                        assert!(
                            agree(dst, want, got),
                            "{src} {x:#x} to {dst}: {want:#x}, got {got:#x}; {i} of {len}"
                        );
                    }
                    let again =
                        Memory::new(len, d as usize, ds, 7).place((0..len).map(|i| got.get(i)));
                    assert!(got == again, "{src} to {dst} wrote beyond its row");
                    first = Some(got);
                }
            }
        }
    }
}

#[test]
fn planes_of_every_pair() {
    let mut random = Random(13);
    for (src, dst) in pairs() {
        let (s, d) = (src.size(), dst.size());
        let pool = values(src);
        for channels in [2, 3, 4, 5] {
            for pixels in [0, 1, 15, 31, 32, 33, 70, 255, 257, 515] {
                let len = pixels * channels;
                let elements: Vec<u64> =
                    (0..len).map(|_| pool[random.next() as usize % pool.len()]).collect();
                let mut input = Memory::new(len, s, s as isize, 5).place(elements.iter().copied());
                for affine in [None, Some(transform(1)), Some(transform(channels))] {
                    // Planes some bytes apart, so that a plane that runs over is seen.
                    let plane = pixels * d + 3;
                    let mut first: Option<Memory> = None;
                    for row in compilations!(planar_row_on(src, dst)) {
                        let mut got = Memory::new(1 + plane * channels, 1, 1, 9);
                        let (x, y) = (input.at(), got.at());
                        // SAFETY: `len` elements to rows of `pixels`, `plane` bytes apart.
                        unsafe { row(x, y, plane as isize, pixels, channels, affine.as_ref()) };
                        if let Some(first) = &first {
                            assert!(got == *first, "{src} to {dst}: the compilations differ");
                            continue;
                        }
                        let mut again = Memory::new(1 + plane * channels, 1, 1, 9);
                        for (i, &x) in elements.iter().enumerate() {
                            let (pixel, c) = (i / channels, i % channels);
                            let at = got.start + c * plane + pixel * d;
                            let mut bytes = [0; 8];
                            bytes[..d].copy_from_slice(&got.bytes[at..at + d]);
                            again.bytes[at..at + d].copy_from_slice(&bytes[..d]);
                            let value = u64::from_le_bytes(bytes);
                            let want = match &affine {
                                None => oracle(src, dst, x),
                                Some(affine) => transformed(src, dst, x, affine, c),
                            };
                            let same =
                                want == value || (affine.is_some() && agree(dst, want, value));
                            assert!(same, "{src} {x:#x} to {dst}: {want:#x}, got {value:#x}");
                        }
                        assert!(got == again, "{src} to {dst} wrote beyond its rows");
                        first = Some(got);
                    }
                }
            }
        }
    }
}

#[test]
fn copies_and_fills() {
    let data: Vec<u8> = (0..40_000u32).map(|i| (i * 31 / 8) as u8).collect();
    for width in [1usize, 2, 4, 8, 16] {
        let w = width as isize;
        for len in (0..=70).chain(255..=257) {
            for (ss, ds) in [(w, w), (0, w), (3 * w, w), (-w, w), (w, 2 * w + 1), (0, -w), (5, -w)]
            {
                let from = 20_000isize;
                let mut got = Memory::new(len, width, ds, 11);
                let mut want = got.clone();
                let mut filled = got.clone();
                let mut want_filled = got.clone();
                let value: [u8; 16] = data[777..793].try_into().unwrap();
                for i in 0..len as isize {
                    let at = got.start.wrapping_add_signed(ds * i);
                    let x = (from + ss * i) as usize;
                    want.bytes[at..at + width].copy_from_slice(&data[x..x + width]);
                    want_filled.bytes[at..at + width].copy_from_slice(&value[..width]);
                }
                // SAFETY: the rows are within the buffers.
                unsafe {
                    copy_row(width)(data.as_ptr().offset(from), ss, got.at(), ds, len);
                    fill_row(filled.at(), ds, width, &value, len);
                }
                assert!(got == want, "copy of {len} by {width} at {ss} and {ds}");
                assert!(filled == want_filled, "fill of {len} by {width} at {ds}");
            }
            let mut zeroed = Memory::new(len, width, w, 11);
            let mut want = zeroed.clone();
            want.bytes[11..11 + len * width].fill(0);
            if len > 0 {
                // SAFETY: the row is within the buffer.
                unsafe { fill_row(zeroed.at(), w, width, &[0; 16], len) };
                assert!(zeroed == want, "zeros, {len} by {width}");
            }
        }
    }
    for streaming in [false, true] {
        for len in (0..=400).chain([4095, 4096, 4097, 20_011]) {
            let (from, margin) = (len % 67, 1 + len % 61);
            let mut got = Memory::new(len + 1, 1, 1, margin);
            let mut want = got.clone();
            want.bytes[margin..margin + len].copy_from_slice(&data[from..from + len]);
            // SAFETY: `len` bytes on both sides.
            unsafe { copy_bytes(data[from..].as_ptr(), got.at(), len, streaming) };
            stream_fence();
            assert!(got == want, "{len} bytes, streaming {streaming}");
        }
    }
}

#[test]
fn rows_without_elements_are_not_read() {
    use std::ptr::{null, null_mut};
    for width in [1, 2, 4, 8, 16] {
        // SAFETY: no elements, so there need not be any memory.
        unsafe { copy_row(width)(null(), 0, null_mut(), 1 - width as isize, 0) };
    }
    for (src, dst) in pairs() {
        for row in compilations!(cast_row_on(src, dst)) {
            // SAFETY: as above.
            unsafe { row(null(), 0, null_mut(), -1, 0) };
        }
    }
}
