//! Random pairs of tensors in one memory, overlaps included: what `copy_many` accepts, every executor writes as a loop of single
//! elements does; what it refuses writes nothing, and is refused for a reason.

use crate::common::pieces::{moved, run, shares, Piece};
use crate::common::{runner, ARITHMETIC};
use arbitrary::{Result, Unstructured};
use windrow::{DType, Error};

/// Bytes of the memory.
const LEN: usize = 4096;

/// True in about one of `n` cases.
fn rarely(u: &mut Unstructured<'_>, n: u8) -> Result<bool> {
    Ok(u.int_in_range(0..=n - 1)? == n - 1)
}

fn dtype(u: &mut Unstructured<'_>) -> Result<DType> {
    match rarely(u, 12)? {
        true => Ok(*u.choose(DType::ALL)?),
        false => Ok(*u.choose(ARITHMETIC)?),
    }
}

/// A tensor somewhere in the memory, with steps of any sign, gaps, and elements that are one if `repeats`.
fn piece(
    u: &mut Unstructured<'_>,
    dtype: DType,
    shape: &[i64],
    repeats: bool,
) -> Result<Option<Piece>> {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, u.int_in_range(0..=at)?);
    }
    let (mut strides, mut step) = (vec![0; shape.len()], 1);
    for &dim in &order {
        step += if rarely(u, 4)? { u.int_in_range(0..=20)? } else { 0 };
        strides[dim] = match u.int_in_range(0..=9u8)? {
            0 if repeats => 0,
            1 => -step,
            _ => step,
        };
        step *= shape[dim].max(1);
    }
    Ok(Piece { dtype, shape: shape.to_vec(), strides, first: 0 }.placed(u.int_in_range(0..=LEN)?))
}

impl Piece {
    /// The same with its first element as near to this byte as the memory allows; `None` if it has no room.
    fn placed(self, near: usize) -> Option<Piece> {
        let size = self.dtype.size() as i64;
        let reach = |sign: i64| -> i64 {
            let each = self.shape.iter().zip(&self.strides);
            each.map(|(extent, stride)| (sign * (extent - 1) * stride).max(0)).sum::<i64>() * size
        };
        if self.shape.contains(&0) {
            return Some(Piece { first: near.min(LEN), ..self });
        }
        let (least, most) = (reach(-1), LEN as i64 - size - reach(1));
        (least <= most).then(|| Piece { first: (near as i64).clamp(least, most) as usize, ..self })
    }
}

fn shape(u: &mut Unstructured<'_>) -> Result<Vec<i64>> {
    (0..u.int_in_range(0..=4u8)?).map(|_| u.int_in_range(0..=5)).collect()
}

/// Pairs of any tensors.
fn any_pairs(u: &mut Unstructured<'_>, pairs: &mut Vec<(Piece, Piece)>) -> Result<()> {
    for _ in 0..u.int_in_range(0..=7u8)? {
        let shape = shape(u)?;
        let to = dtype(u)?;
        let from = if u.arbitrary()? { to } else { dtype(u)? };
        let repeats = rarely(u, 20)?;
        let Some(dst) = piece(u, to, &shape, repeats)? else { continue };
        let src = match rarely(u, 10)? {
            // The source is the destination itself, or an earlier one.
            true if rarely(u, 2)? => Some(dst.clone()),
            true => pairs.last().map(|(dst, _)| dst.clone()).filter(|src| src.shape == shape),
            false => piece(u, from, &shape, true)?,
        };
        pairs.extend(src.map(|src| (dst, src)));
    }
    Ok(())
}

/// Columns of a table, each by itself, to others of the same one or to rows elsewhere.
fn columns(u: &mut Unstructured<'_>, pairs: &mut Vec<(Piece, Piece)>) -> Result<()> {
    let dtype = *u.choose(ARITHMETIC)?;
    let (rows, row) = (u.int_in_range(1..=4i64)?, u.int_in_range(20..=60i64)?);
    let at = u.int_in_range(0..=100usize)?;
    let (mut from, mut to) = (u.int_in_range(0..=3i64)?, u.int_in_range(0..=40i64)?);
    for _ in 0..u.int_in_range(1..=40u8)? {
        let width = if rarely(u, 6)? { u.int_in_range(1..=3)? } else { 1 };
        let column = |first: i64| {
            let first = at + first as usize * dtype.size();
            Piece { dtype, shape: vec![rows, width], strides: vec![row, 1], first: 0 }.placed(first)
        };
        let (Some(dst), Some(src)) = (column(to), column(from)) else { break };
        pairs.push((dst, src));
        to += width;
        from += if rarely(u, 20)? { 0 } else { width };
    }
    Ok(())
}

fn check_case(u: &mut Unstructured<'_>) -> Result<()> {
    let seed: u8 = u.arbitrary()?;
    let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ seed;
    let memory: Vec<u8> = (0..LEN).map(byte).collect();
    let mut pairs = Vec::new();
    if u.arbitrary()? {
        columns(u, &mut pairs)?;
    }
    any_pairs(u, &mut pairs)?;
    if pairs.len() > 1 && u.arbitrary()? {
        let last = pairs.len() - 1;
        pairs.swap(0, last);
    }
    let (itself, others) = shares(&pairs);
    let is_cast = |(dst, src): &(Piece, Piece)| {
        dst.dtype == src.dtype || dst.dtype.is_arithmetic() && src.dtype.is_arithmetic()
    };
    let (are_native, are_cast) =
        (pairs.iter().all(|(dst, _)| dst.dtype.is_native()), pairs.iter().all(is_cast));
    let expected = (are_native && are_cast).then(|| moved(&memory, &pairs));
    let mut texts = Vec::new();
    for (name, engine) in runner().engines() {
        let (result, after) = run(engine, &memory, &pairs);
        match result {
            Ok(()) => {
                assert!(!itself && !others, "shared bytes are written on {name}: {pairs:?}");
                assert!(expected.as_ref() == Some(&after), "{name}: {pairs:?}");
                texts.push(String::new());
            }
            Err(error) => {
                assert!(after == memory, "{error}, but written on {name}: {pairs:?}");
                match error {
                    // Tensors that take turns in memory may count as sharing it.
                    Error::Overlap(_) => assert!(others || may_share(&pairs), "{error}: {pairs:?}"),
                    Error::DType(_) => assert!(!are_cast, "{error}: {pairs:?}"),
                    Error::Layout(_) => assert!(itself || !are_native, "{error}: {pairs:?}"),
                    _ => panic!("{error}: {pairs:?}"),
                }
                texts.push(error.to_string());
            }
        }
    }
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "engines differ: {texts:?}");
    Ok(())
}

/// Whether a destination reaches from before to behind a byte of another tensor that is not its own source.
fn may_share(pairs: &[(Piece, Piece)]) -> bool {
    let span = |piece: &Piece| {
        let elements = piece.elements();
        let first = elements.iter().min().copied().unwrap_or(0);
        let last = elements.iter().max().map_or(0, |last| last + piece.dtype.size());
        first..last
    };
    let spans: Vec<_> = pairs.iter().map(|(dst, src)| (span(dst), span(src))).collect();
    let meet = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| {
        a.start.max(b.start) < a.end.min(b.end)
    };
    (0..spans.len()).any(|i| {
        (0..spans.len())
            .any(|j| i != j && meet(&spans[i].0, &spans[j].0) || meet(&spans[i].0, &spans[j].1))
    })
}

/// Runs the pairs that an input describes.
pub fn check(data: &[u8]) {
    // Input that runs out of bytes is skipped.
    let _ = check_case(&mut Unstructured::new(data));
}
