//! Packed sequences: rules that hold wherever they are packed. No figure of its own: `sequences` and `sequences_on_device` call it
//! for each row.

use windrow::error::{Hint, Mismatch};
use windrow::Error;

use crate::ground::reserve::space_for;
use crate::ground::tensor::PyTensor;

/// Ids, labels, positions, perhaps the sample of each, where each sequence begins, and the length of the longest.
pub(crate) type Packed = (PyTensor, PyTensor, PyTensor, Option<PyTensor>, PyTensor, i64);
/// Ids, labels, positions, segments and where each sequence begins.
pub(crate) type PackedTensors = (PyTensor, PyTensor, PyTensor, PyTensor, PyTensor);

/// How many sequences each row has, how long rows are, and `pads`: what pads ids, what pads labels, and the label of a
/// sequence's first token.
#[derive(Clone, Copy)]
pub(crate) struct RowPlan<'p> {
    pub counts: &'p [i64],
    pub max_tokens: usize,
    pub pads: (i64, i64, i64),
}

impl<'p> RowPlan<'p> {
    /// The number of tokens of all rows, padding included; [`Error::TooLarge`] beyond int32.
    pub fn total(self) -> windrow::Result<usize> {
        let (rows, max_tokens) = (self.counts.len(), self.max_tokens);
        let total = rows.checked_mul(max_tokens).filter(|&total| i32::try_from(total).is_ok());
        total.ok_or_else(|| {
            Error::too_large(format!("{rows} rows of {max_tokens} tokens: beyond int32"))
        })
    }

    /// The lengths of the sequences of each row, and the number of tokens that is left for padding; [`Error::Argument`]
    /// for a row beyond `max_tokens`. That counts add up to the number of lengths is not checked: lengths that are left
    /// over are left out, and a count beyond what is left takes that.
    pub fn rows(
        self,
        lengths: &'p [i64],
    ) -> impl Iterator<Item = windrow::Result<(&'p [i64], usize)>> + 'p {
        let (mut rest, max_tokens) = (lengths, self.max_tokens);
        self.counts.iter().enumerate().map(move |(row, &count)| {
            let row_lengths;
            (row_lengths, rest) = rest.split_at((count as usize).min(rest.len()));
            let used =
                row_lengths.iter().fold(0u64, |used, &length| used.saturating_add(length as u64));
            match (max_tokens as u64).checked_sub(used) {
                Some(left) => Ok((row_lengths, left as usize)),
                None => Err(Error::argument(format!(
                    "row {row} of the plan has more than max_tokens={max_tokens} tokens: it was made from \
                     other lengths"
                ))),
            }
        })
    }

    /// 0, then the end of each sequence in the flattened rows, and of the padding behind those of a row that has some. Errors are
    /// those of [`RowPlan::rows`]. The caller has checked [`RowPlan::total`]: ends beyond int32 overflow.
    pub fn boundaries(self, lengths: &'p [i64]) -> windrow::Result<Vec<i32>> {
        let mut boundaries = space_for(1 + lengths.len() + self.counts.len())?;
        let mut end = 0;
        boundaries.push(end);
        for row in self.rows(lengths) {
            let (row_lengths, left) = row?;
            let padding = (left > 0).then_some(left as i64);
            boundaries.extend(row_lengths.iter().copied().chain(padding).map(|length| {
                end += length as i32;
                end
            }));
        }
        Ok(boundaries)
    }
}

/// [`Error::Shape`] for a sample whose number of labels, in `label_counts`, is not that of its ids, in `id_counts`. That both are
/// of as many samples is not checked.
pub(crate) fn check_labels(id_counts: &[i64], label_counts: &[i64]) -> windrow::Result<()> {
    let mut pairs = id_counts.iter().zip(label_counts).enumerate();
    match pairs.find(|(_, (ids, labels))| ids != labels) {
        None => Ok(()),
        Some((index, (ids, labels))) => {
            let found = Mismatch::new(Some(index), &[*ids][..], &[*labels][..]);
            let found = found.with_hint(Hint::Text("there is a label for each id"));
            Err(Error::Shape(Box::new(found)).at_path("labels"))
        }
    }
}
