//! The label column: one number per sample, read without I/O.

use crate::directory::Bytes;
use crate::format::FormatError;
use crate::format::error::{equal, out_of_range};

/// Labels of all samples, by id, all as wide as the widest label.
#[derive(Debug, Clone)]
pub struct Labels {
    bytes: Bytes,
    width: usize,
}

impl Labels {
    /// Appends `labels` to the column of `base`, which has the first `num_base` ids. The labels are in the order of
    /// ids and within `range`. `None` if no sample has a label.
    pub(crate) fn extended(
        base: Option<&Labels>,
        num_base: u64,
        labels: impl Iterator<Item = i64>,
        mut range: LabelRange,
    ) -> Option<Labels> {
        let base_label = |id| base.and_then(|base| base.get(id)).unwrap_or(NO_LABEL);
        if base.is_some() {
            (0..num_base).for_each(|id| range.take(base_label(id)));
        }
        let least = range.0?;
        let most = range.1?;
        let fits = |width: &usize| least > absent(*width) && most <= max(*width);
        let width = WIDTHS.into_iter().find(fits).unwrap_or(8);
        let mut bytes = Vec::new();
        let mut from = 0;
        if let Some(base) = base.filter(|base| base.width == width) {
            bytes.extend_from_slice(&base.bytes);
            from = num_base;
        }
        for label in (from..num_base).map(base_label).chain(labels) {
            let label = if label == NO_LABEL { absent(width) } else { label };
            bytes.extend_from_slice(&label.to_le_bytes()[..width]);
        }
        Some(Labels { bytes: bytes.into(), width })
    }

    /// The column of `count` samples that have no label.
    pub(crate) fn absent(count: u64) -> Labels {
        Labels { bytes: vec![absent(1) as u8; count as usize].into(), width: 1 }
    }

    /// The column from `bytes`, with `width` bytes a label, for `num_samples` samples.
    ///
    /// # Errors
    /// The width is invalid, or the length does not match.
    pub(crate) fn from_bytes(
        bytes: Bytes,
        width: u64,
        num_samples: u64,
    ) -> Result<Labels, FormatError> {
        let Some(width) = WIDTHS.into_iter().find(|known| *known as u64 == width) else {
            return Err(out_of_range("bytes of a label", width, 8));
        };
        let len = num_samples.saturating_mul(width as u64);
        equal("length of the labels", len, bytes.len() as u64)?;
        Ok(Labels { bytes, width })
    }

    /// A column of other values than labels, `width` bytes each.
    pub(super) fn of_width(bytes: Bytes, width: usize) -> Labels {
        Labels { bytes, width }
    }

    /// The bytes of the value of `id`.
    #[inline]
    pub(super) fn bytes_of(&self, id: u64) -> Option<&[u8]> {
        let at = usize::try_from(id).ok()?.checked_mul(self.width)?;
        self.bytes.get(at..at.checked_add(self.width)?)
    }

    /// The label of sample `id`, deleted or not; `None` if it has no label.
    #[inline]
    pub fn get(&self, id: u64) -> Option<i64> {
        let bytes = self.bytes_of(id)?;
        let mut wide = [0; 8];
        wide[8 - self.width..].copy_from_slice(bytes);
        let label = i64::from_le_bytes(wide) >> (64 - self.width * 8);
        (label != absent(self.width)).then_some(label)
    }

    /// Bytes a label: 1, 2, 4 or 8.
    pub fn width_bytes(&self) -> usize {
        self.width
    }

    /// The column: little-endian two's complement, by id; the smallest value means "no label".
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn shared(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// The smallest and the largest label, if any sample has one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LabelRange(Option<i64>, Option<i64>);

impl LabelRange {
    /// Extends the range to include `label`; ignores [`NO_LABEL`].
    pub(crate) fn take(&mut self, label: i64) {
        if label != NO_LABEL {
            self.0 = Some(self.0.map_or(label, |least| least.min(label)));
            self.1 = Some(self.1.map_or(label, |most| most.max(label)));
        }
    }
}

/// The value for "no label" while the column is built.
pub(crate) const NO_LABEL: i64 = i64::MIN;

/// The value for "no label" in a column of this width: the smallest one. So `i64::MIN` is not a valid label.
fn absent(width: usize) -> i64 {
    i64::MIN >> (64 - width * 8)
}

fn max(width: usize) -> i64 {
    i64::MAX >> (64 - width * 8)
}

const WIDTHS: [usize; 4] = [1, 2, 4, 8];

#[cfg(test)]
mod tests {
    use super::*;

    fn column_of(labels: &[Option<i64>]) -> Option<Labels> {
        let labels = labels.iter().map(|label| label.unwrap_or(NO_LABEL));
        let mut range = LabelRange::default();
        labels.clone().for_each(|label| range.take(label));
        Labels::extended(None, 0, labels, range)
    }

    #[test]
    fn labels_take_the_bytes_that_the_widest_needs() {
        let cases = [
            (vec![Some(0), None, Some(127), Some(-127)], 1),
            (vec![Some(-128)], 2),
            (vec![Some(1000), Some(-32_767)], 2),
            (vec![Some(-32_768), None], 4),
            (vec![Some(1 << 31)], 8),
            (vec![Some(i64::MAX), Some(i64::MIN + 1), None], 8),
        ];
        for (labels, width) in cases {
            let column = column_of(&labels).unwrap();
            assert_eq!(column.width_bytes(), width, "{labels:?}");
            for (id, label) in labels.iter().enumerate() {
                assert_eq!(column.get(id as u64), *label);
            }
            assert_eq!(column.get(labels.len() as u64), None);
            assert_eq!(column.get(u64::MAX), None);
        }
        assert!(column_of(&[None, None]).is_none());
    }

    #[test]
    fn a_column_grows_to_what_it_is_when_made_at_once() {
        let labels = [None, Some(5), Some(-7), Some(300), None, Some(1 << 40)];
        for cut in 0..=labels.len() {
            let (before, after) = labels.split_at(cut);
            let base = column_of(before);
            let mut range = LabelRange::default();
            let after = after.iter().map(|label| label.unwrap_or(NO_LABEL));
            after.clone().for_each(|label| range.take(label));
            let grown = Labels::extended(base.as_ref(), cut as u64, after, range).unwrap();
            assert_eq!(grown.as_bytes(), column_of(&labels).unwrap().as_bytes(), "cut at {cut}");
        }
    }

    #[test]
    fn a_column_of_another_length_or_width_is_refused() {
        assert!(Labels::from_bytes(vec![0; 8].into(), 3, 2).is_err());
        assert!(Labels::from_bytes(vec![0; 8].into(), 4, 3).is_err());
        assert!(Labels::from_bytes(vec![0; 8].into(), 8, u64::MAX).is_err());
        assert!(Labels::from_bytes(vec![0; 8].into(), 4, 2).is_ok());
    }
}
