//! Seeded damage: effects of bit rot, lost writes, faulty peers and adversaries on bytes.

/// A sequence of damages determined by its seed.
pub struct Damage(u64);

impl Damage {
    pub fn new(seed: u64) -> Damage {
        Damage(seed)
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// One to four changes; mostly few, so that what follows is still decoded.
    pub fn inflict(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) * self.below(2) {
            self.change(bytes);
        }
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            bytes.push(self.next() as u8);
            return;
        }
        // Most significant bytes are near the front: heads, tables, first PDUs.
        let end = if self.below(2) == 0 { bytes.len() } else { bytes.len().min(256) };
        let at = self.below(end);
        match self.below(10) {
            0 | 1 => bytes[at] ^= 1 << self.below(8),
            2 => bytes[at] = self.next() as u8,
            3..=6 => self.set_number(bytes, at),
            7 => bytes.truncate(at),
            8 => {
                let len = self.below(bytes.len() - at + 1).min(64);
                let piece = bytes[at..at + len].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            _ => {
                let len = self.below(bytes.len() - at + 1).min(64);
                bytes.drain(at..at + len);
            }
        }
    }

    /// Sets a field of 1, 2, 4 or 8 bytes to a number that challenges arithmetic.
    fn set_number(&mut self, bytes: &mut [u8], at: usize) {
        let width = 1 << self.below(4);
        let at = at / width * width;
        let Some(field) = bytes.get_mut(at..at + width) else { return };
        let mut old = [0; 8];
        old[..width].copy_from_slice(field);
        let old = u64::from_le_bytes(old);
        let top = 1_u64 << (8 * width as u32 - 1);
        let new = match self.below(9) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => u64::MAX - 1,
            4 => top,
            5 => top - 1,
            6 => old.wrapping_add(1),
            7 => old.wrapping_sub(1),
            _ => old.wrapping_mul(2),
        };
        field.copy_from_slice(&new.to_le_bytes()[..width]);
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
