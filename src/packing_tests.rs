//! Plans beside naive ones.

use super::*;

/// Lengths from 0 to `max`, many of them equal.
fn lengths(count: usize, max: i64, seed: u64) -> Vec<i64> {
    let mut values: Vec<i64> = (0..count as i64).map(|i| i % (max + 1)).collect();
    shuffle(&mut values, seed);
    values
}

/// One of the rows with room, each with what still fits.
type Pick = fn(&[(i64, usize)]) -> Option<(i64, usize)>;

fn naive(lengths: &[i64], max_tokens: i64, most: usize, pick: Pick) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| (-lengths[i], i));
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for i in order {
        let fits: Vec<(i64, usize)> = (0..rows.len())
            .map(|r| (max_tokens - rows[r].iter().map(|&j| lengths[j]).sum::<i64>(), r))
            .filter(|&(rest, r)| rest >= lengths[i] && rows[r].len() < most)
            .collect();
        match pick(&fits) {
            Some((_, row)) => rows[row].push(i),
            None => rows.push(vec![i]),
        }
    }
    rows
}

#[test]
fn packed_rows_are_those_of_a_naive_search() {
    for (count, max, most) in
        [(0, 5, None), (1, 5, None), (200, 9, None), (300, 50, Some(3)), (90, 1, Some(1))]
    {
        let lengths = lengths(count, max, count as u64);
        for max_tokens in [max, max + 1, 3 * max + 2] {
            for (how, pick) in [
                (Packing::FirstFitDecreasing, (|fits| fits.first().copied()) as Pick),
                (Packing::BestFitDecreasing, |fits| fits.iter().min().copied()),
            ] {
                let rows = pack(&lengths, max_tokens, how, most).unwrap();
                let wanted = naive(&lengths, max_tokens, most.unwrap_or(usize::MAX), pick);
                let wanted = wanted.iter().map(Vec::as_slice);
                assert!(rows.iter().eq(wanted), "{how:?} {max_tokens} {most:?}");
            }
        }
    }
}

#[test]
fn rows_in_order() {
    let rows = pack(&[4, 4, 1, 8, 0, 2], 8, Packing::InOrder, None).unwrap();
    assert_eq!(rows.iter().collect::<Vec<_>>(), [&[0, 1][..], &[2], &[3, 4], &[5]]);
    assert_eq!((rows.num_tokens(), rows.waste()), (19, 1.0 - 19.0 / 32.0));
    let rows = pack(&[i64::MAX, 1], i64::MAX, Packing::InOrder, None).unwrap();
    assert_eq!(rows.len(), 2);
    let rows = token_budget(&[1 << 62; 3], i64::MAX, 1, None).unwrap();
    assert_eq!(rows.len(), 3);
    let rows = pack(&[1; 5], 8, Packing::InOrder, Some(2)).unwrap();
    assert_eq!(rows.iter().map(<[_]>::len).collect::<Vec<_>>(), [2, 2, 1]);
}

#[test]
fn budgets_count_padding() {
    let rows = token_budget(&[5, 1, 3, 7, 2], 16, 4, None).unwrap();
    // Padded lengths 4, 4, 4, then 8, 8.
    assert_eq!(rows.iter().collect::<Vec<_>>(), [&[1, 4, 2][..], &[0, 3]]);
    assert_eq!(rows.waste(), 1.0 - 18.0 / 28.0);
    let error = token_budget(&[3, 6], 7, 4, None).unwrap_err();
    assert_eq!(error.sample(), Some(1));
    assert!(error.to_string().starts_with("sample 1: a length of 6, rounded up to 8, "), "{error}");
    let error = balance(&[3, 6, -1], 2, None).unwrap_err();
    assert_eq!(
        (error.sample(), error.to_string().as_str()),
        (Some(2), "sample 2: a negative length, -1")
    );
}

#[test]
fn buckets_hold_one_range_of_lengths() {
    let lengths = lengths(100, 19, 3);
    let rows = buckets(&lengths, 8, Some(&[5, 12]), false, Some(1)).unwrap();
    let bucket = |i: &usize| [5, 12].iter().filter(|&&boundary| lengths[*i] >= boundary).count();
    assert!(rows.iter().all(|row| row.iter().all(|i| bucket(i) == bucket(&row[0]))));
    assert_eq!(rows.iter().map(<[_]>::len).sum::<usize>(), 100);
    assert_eq!(rows, buckets(&lengths, 8, Some(&[5, 12]), false, Some(1)).unwrap());
    assert_ne!(rows, buckets(&lengths, 8, Some(&[5, 12]), false, Some(2)).unwrap());
    let sorted = buckets(&[3, 1, 2, 0, 9], 2, None, true, None).unwrap();
    assert_eq!(sorted.iter().collect::<Vec<_>>(), [[3, 1], [2, 0]]);
    assert!(buckets(&lengths, 8, Some(&[5, 5]), false, None).is_err());
}

#[test]
fn ranks_have_nearly_equal_sums() {
    let lengths = lengths(1000, 63, 9);
    let rows = balance(&lengths, 7, Some(4)).unwrap();
    let sums: Vec<i64> = rows.iter().map(|row| row.iter().map(|&i| lengths[i]).sum()).collect();
    assert!(sums.iter().max().unwrap() - sums.iter().min().unwrap() <= 1, "{sums:?}");
    assert_eq!(balance(&[2, 1], 2, None).unwrap().waste(), 0.25);
    assert_eq!(balance(&[], 3, None).unwrap().iter().collect::<Vec<_>>(), [&[] as &[usize]; 3]);
}

#[test]
fn impossible_numbers_are_refused() {
    for (lengths, max_tokens, most) in
        [(&[1, 9][..], 8, None), (&[-1], 8, None), (&[1], 0, None), (&[1], 8, Some(0))]
    {
        for how in [Packing::FirstFitDecreasing, Packing::BestFitDecreasing, Packing::InOrder] {
            assert!(matches!(pack(lengths, max_tokens, how, most), Err(Error::Argument(_))));
        }
    }
    assert!(balance(&[i64::MAX; 3], 1, None).is_ok());
    assert!(matches!(balance(&[1], usize::MAX, None), Err(Error::OutOfMemory { .. })));
    assert!(balance(&[1], 0, None).is_err() && buckets(&[1], 0, None, false, None).is_err());
}
