//! Rows against an oracle in integer arithmetic, for every pair of dtypes and both compilations.
#![allow(clippy::cast_possible_truncation, reason = "bits of known width")]

use super::*;
use by_definition::{decode, is_quiet_nan, oracle, round, values, Random, Value, ARITHMETIC};

#[path = "rows_tests_oracle.rs"]
mod by_definition;

const POISON: u8 = 0xA5;

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
        // The pointer has the provenance of the whole buffer: strides may lead back from the first element.
        self.bytes.as_mut_ptr().wrapping_add(self.start)
    }
}

macro_rules! compilations {
    ($select:ident($src:expr, $dst:expr)) => {{
        let (src, to) = ($src, CastTo::from($dst));
        #[allow(unused_mut, reason = "there is one compilation where there is no AVX2")]
        let mut rows = vec![$select::<super::super::simd::Plain>(src, to)];
        #[cfg(target_arch = "x86_64")]
        if super::super::isa::detects_avx2() {
            rows.push($select::<super::super::simd::Avx2>(src, to));
        }
        #[cfg(avx512)]
        if super::super::isa::detects_avx512() {
            rows.push($select::<super::super::simd::Avx512>(src, to));
        }
        rows
    }};
}

fn pairs() -> impl Iterator<Item = (DType, DType)> {
    ARITHMETIC.iter().flat_map(|&s| ARITHMETIC.iter().map(move |&d| (s, d)))
}

/// The casts whose results saturate.
fn saturated() -> [CastTo; 2] {
    [DType::F8E4M3FN, DType::F8E5M2].map(|dtype| CastTo { dtype, saturate: true })
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
fn every_saturated_cast_of_every_value() {
    for (to, src) in saturated().into_iter().flat_map(|to| ARITHMETIC.iter().map(move |&s| (to, s)))
    {
        let values = values(src);
        let s = src.size();
        let mut input = Memory::new(values.len(), s, s as isize, 3).place(values.iter().copied());
        let (scaled, two) = (Affine::new(vec![2.0], vec![0.0]), [DType::F32, DType::F64]);
        let wide = two[usize::from(src == DType::F64)];
        for (row, affine) in compilations!(cast_row_on(src, to))
            .into_iter()
            .zip(compilations!(affine_row_on(src, to)))
        {
            let mut got = Memory::new(values.len(), 1, 1, 5);
            // SAFETY: both buffers hold that many contiguous elements.
            unsafe { row(input.at(), s as isize, got.at(), 1, values.len()) };
            for (i, &x) in values.iter().enumerate() {
                assert_eq!(got.get(i), oracle(src, to, x), "{src} {x:#x} to {to:?}");
            }
            let len = values.len();
            // SAFETY: as above.
            unsafe { affine(input.at(), s as isize, got.at(), 1, len, &scaled, 0, false) };
            for (i, &x) in values.iter().enumerate() {
                let twice = match wide {
                    DType::F64 => f64::from_bits(oracle(src, wide, x)).mul_add(2.0, 0.0).to_bits(),
                    _ => {
                        let single = f32::from_bits(oracle(src, wide, x) as u32);
                        single.mul_add(2.0, 0.0).to_bits().into()
                    }
                };
                assert_eq!(got.get(i), oracle(wide, to, twice), "{src} {x:#x} twice to {to:?}");
            }
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
        (DType::F16, DType::F8E4M3FN, &all),
        (DType::F16, DType::F8E5M2, &all),
        (DType::BF16, DType::F8E4M3FN, &all),
        (DType::BF16, DType::F8E5M2, &all),
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

/// Every float32, by `cargo test --release --lib every_float32 -- --ignored`.
#[test]
#[ignore = "it takes minutes"]
fn every_float32_to_float8() {
    let targets = [DType::F8E4M3FN, DType::F8E5M2].map(CastTo::from).into_iter().chain(saturated());
    for to in targets {
        let ends = float8_ends(to);
        for row in compilations!(cast_row_on(DType::F32, to)) {
            let mut code = 0;
            for first in (0..1u64 << 31).step_by(1 << 16) {
                let both = [0, 1 << 31].map(|sign: u32| {
                    let floats: Vec<u32> =
                        (0..1 << 16).map(|i| (first as u32 + i) | sign).collect();
                    let mut codes = vec![0u8; floats.len()];
                    // SAFETY: both are of that many contiguous elements.
                    unsafe { row(floats.as_ptr().cast(), 4, codes.as_mut_ptr(), 1, floats.len()) };
                    codes
                });
                for (i, (&positive, &negative)) in both[0].iter().zip(&both[1]).enumerate() {
                    while first + i as u64 > ends[code].0 {
                        code += 1;
                    }
                    let want = ends[code].1;
                    let bits = first + i as u64;
                    assert_eq!([positive, negative], [want, want | 0x80], "{bits:#x} to {to:?}");
                }
            }
        }
    }
}

/// The last positive float32 of each code, by the order of the floats alone: at a tie the code that is even.
fn float8_ends(to: CastTo) -> Vec<(u64, u8)> {
    let most = oracle(DType::F64, to, f64::INFINITY.to_bits()) as u8;
    let value = |code: u8| match decode(to.dtype, code.into()) {
        Value::Finite(_, m, e) => m as f64 * f64::from(e).exp2(),
        // The element after the last one.
        _ => {
            if to.dtype == DType::F8E4M3FN {
                480.0
            } else {
                65536.0
            }
        }
    };
    let last = if to.saturate { most + 1 } else { most };
    let mut ends: Vec<(u64, u8)> = (0..last)
        .map(|code| {
            // Exact in float32.
            let tie = ((value(code) + value(code + 1)) / 2.0) as f32;
            (u64::from(tie.to_bits()) - u64::from(code % 2), code)
        })
        .collect();
    if to.saturate {
        ends.pop();
    }
    let nan = oracle(DType::F64, to, f64::NAN.to_bits()) as u8;
    ends.extend([(0x7F80_0000, most), (0x7FFF_FFFF, nan)]);
    ends
}

#[test]
fn the_ends_of_float8_are_those_of_the_oracle() {
    for to in [DType::F8E4M3FN, DType::F8E5M2].map(CastTo::from).into_iter().chain(saturated()) {
        let mut next = 0;
        for (end, code) in float8_ends(to) {
            for bits in [next, end] {
                assert_eq!(oracle(DType::F32, to, bits), u64::from(code), "{bits:#x} to {to:?}");
            }
            next = end + 1;
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
