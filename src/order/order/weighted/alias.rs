//! An alias table: draws one of N indices in proportion to weights, in constant time.

/// N equal slots; each is divided between its own index and one other index.
#[derive(Debug)]
pub(super) struct Alias {
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The part of the slot that belongs to its own index, in units of 2^-32. The rest belongs to `other`.
    own: u32,
    other: u32,
}

impl Alias {
    /// The table of `weights`: from 0 to 1, the largest being 1; at most 2^32 - 1 of them.
    pub(super) fn new(weights: &[f64]) -> Alias {
        let sum: f64 = weights.iter().sum();
        let mean = sum / weights.len() as f64;
        let mut left: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let heaviest = weights.iter().position(|weight| *weight == 1.0).unwrap_or(0) as u32;
        let mut slots: Vec<Slot> =
            (0..weights.len() as u32).map(|index| Slot { own: 0, other: index }).collect();
        let mut small = Vec::new();
        let mut large = Vec::new();
        for (&weight, index) in left.iter().zip(0_u32..) {
            if weight < 1.0 { small.push(index) } else { large.push(index) }
        }
        while let (Some(&low), Some(&high)) = (small.last(), large.last()) {
            small.pop();
            let part = left[low as usize];
            // `part` is below 1, so `own` is at most 2^32 - 1; a part of 0 is never drawn.
            slots[low as usize] = Slot { own: (part * UNIT) as u32, other: high };
            left[high as usize] -= 1.0 - part;
            if left[high as usize] < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        // Only rounding has left these as small: their slots belong to themselves, unless their weight is 0.
        for low in small {
            if weights[low as usize] == 0.0 {
                slots[low as usize].other = heaviest;
            }
        }
        Alias { slots }
    }

    /// The index that the random number `word` draws.
    #[inline]
    pub(super) fn draw(&self, word: u64) -> u64 {
        let product = u128::from(word) * self.slots.len() as u128;
        let index = (product >> 64) as u64;
        let within = (product as u64) >> 32;
        let Slot { own, other } = self.slots[index as usize];
        // Without a branch: the outcome cannot be predicted.
        let is_other = u64::from(within >= u64::from(own));
        index ^ ((index ^ u64::from(other)) & is_other.wrapping_neg())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.slots[..])
    }
}

const UNIT: f64 = (1_u64 << 32) as f64;
