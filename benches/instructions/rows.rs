//! The samples of the counted cases: their memory and contents.

use windrow::{SampleList, SampleView};

/// Element `i` of any input.
pub fn byte(i: usize) -> u8 {
    (i * 7919 % 251) as u8
}

/// The places of `count` things in an order without any pattern, the same in every run.
pub fn shuffled(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * 2477 % count)
}

/// `count` samples of `length` bytes in shuffled order, with gaps, so that none are one run of memory.
pub fn rows(bytes: &[u8], count: usize, length: usize) -> SampleList<'_> {
    let view = |i| {
        let begin = i * (length + 8);
        SampleView::from_slice(&bytes[begin..begin + length], &[length as i64]).expect("a row")
    };
    shuffled(count).map(view).collect()
}

pub fn bytes_for(count: usize, length: usize) -> Vec<u8> {
    (0..count * (length + 8)).map(byte).collect()
}
