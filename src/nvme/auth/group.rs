//! Finite-field Diffie-Hellman in the groups of RFC 7919, with generator 2.

use std::fmt;
use std::sync::OnceLock;

use crypto_bigint::ctutils::{CtAssign as _, CtEq as _};
use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U384, U2048, U3072, Uint};
use zeroize::{Zeroize, Zeroizing};

/// A Diffie-Hellman group, with its identifier on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Group {
    /// No exchange: the response depends only on key and challenge, so that an eavesdropper can try keys
    /// offline.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
}

impl Group {
    /// All groups, ascending by identifier.
    pub const ALL: [Group; 3] = [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072];

    /// The group's identifier on the wire.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The group with this identifier, if there is one.
    pub(crate) fn from_id(id: u8) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Length of the group's values in bytes: the length of the prime.
    pub const fn len_bytes(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
        }
    }

    /// Returns whether `value` may be a public value of the other side: it has the prime's length, is
    /// greater than 1 and less than p - 1. Any other value would make the shared secret predictable.
    pub(crate) fn is_public_value(self, value: &[u8]) -> bool {
        // The prime is odd, so p - 1 is the prime with its last bit cleared.
        let Some(prime) = self.prime() else { return false };
        let last = value.len().wrapping_sub(1);
        let is_small = || value[..last].iter().all(|byte| *byte == 0) && value[last] < 2;
        let is_large = || value[..last] == prime[..last] && value[last] >= prime[last] - 1;
        value.len() == prime.len() && value <= &prime[..] && !is_small() && !is_large()
    }

    /// The prime, in big-endian bytes.
    fn prime(self) -> Option<Box<[u8]>> {
        match self {
            Group::Null => None,
            Group::Ffdhe2048 => Some(FFDHE2048.modulus().get().to_be_bytes().as_ref().into()),
            Group::Ffdhe3072 => Some(FFDHE3072.modulus().get().to_be_bytes().as_ref().into()),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Null => "no group",
            Group::Ffdhe2048 => "ffdhe2048",
            Group::Ffdhe3072 => "ffdhe3072",
        })
    }
}

/// Length of private exponents: 384 bits, more than the 225 and 275 that RFC 7919 (5.2) requires.
pub(super) const EXPONENT_LEN_BYTES: usize = 48;

/// A private exponent.
#[derive(Clone)]
pub(super) struct Exponent(Zeroizing<[u8; EXPONENT_LEN_BYTES]>);

impl Exponent {
    pub(super) fn new(bytes: [u8; EXPONENT_LEN_BYTES]) -> Exponent {
        Exponent(Zeroizing::new(bytes))
    }

    /// One column of the exponent's bits: see [`Comb`].
    fn column(&self, column: usize) -> u8 {
        let bit = |row: usize| {
            let at = row * COLUMNS + column;
            (self.0[EXPONENT_LEN_BYTES - 1 - at / 8] >> (at % 8) & 1) << row
        };
        (0..TEETH).fold(0, |index, row| index | bit(row))
    }
}

/// An exponentiation to compute, which takes milliseconds.
pub struct Exponentiation {
    group: Group,
    base: Base,
    exponent: Exponent,
}

/// The number of which a power is computed.
enum Base {
    Generator,
    /// The value that the other side sent, already checked.
    Peer(Vec<u8>),
}

impl Exponentiation {
    /// This side's public value.
    pub(super) fn public(group: Group, exponent: &Exponent) -> Exponentiation {
        Exponentiation { group, base: Base::Generator, exponent: exponent.clone() }
    }

    /// The shared secret, from the other side's public value.
    pub(super) fn shared(group: Group, peer: &[u8], exponent: &Exponent) -> Exponentiation {
        assert!(group.is_public_value(peer), "checked when it came");
        Exponentiation { group, base: Base::Peer(peer.to_vec()), exponent: exponent.clone() }
    }

    /// An exponentiation for the callers' tests.
    #[doc(hidden)]
    pub fn example(group: Group) -> Exponentiation {
        Exponentiation::public(group, &Exponent::new([7; EXPONENT_LEN_BYTES]))
    }

    /// Computes the power, in a time that does not depend on the exponent.
    pub fn compute(self) -> Power {
        static COMB2048: OnceLock<Comb<{ U2048::LIMBS }>> = OnceLock::new();
        static COMB3072: OnceLock<Comb<{ U3072::LIMBS }>> = OnceLock::new();
        let Exponentiation { group, base, exponent } = &self;
        Power(match group {
            Group::Null => unreachable!("nothing is computed without a group"),
            Group::Ffdhe2048 => power(&FFDHE2048, &COMB2048, base, exponent),
            Group::Ffdhe3072 => power(&FFDHE3072, &COMB3072, base, exponent),
        })
    }
}

impl fmt::Debug for Exponentiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exponentiation({})", self.group)
    }
}

/// The result of an exponentiation, padded with leading zeros to the length of the prime.
pub struct Power(pub(super) Zeroizing<Vec<u8>>);

impl fmt::Debug for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Power")
    }
}

/// A power in this group, in a time that does not depend on the exponent.
fn power<const LIMBS: usize>(
    params: &FixedMontyParams<LIMBS>,
    comb: &OnceLock<Comb<LIMBS>>,
    base: &Base,
    exponent: &Exponent,
) -> Zeroizing<Vec<u8>> {
    let mut power = match base {
        Base::Generator => comb.get_or_init(|| Comb::new(params)).power(params, exponent),
        Base::Peer(value) => {
            let base = FixedMontyForm::new(&Uint::from_be_slice(value), params);
            let mut exponent = U384::from_be_slice(&*exponent.0);
            let power = base.pow(&exponent);
            exponent.zeroize();
            power
        }
    };
    let mut number = power.retrieve();
    let bytes = Zeroizing::new(number.to_be_bytes().as_ref().to_vec());
    power.zeroize();
    number.zeroize();
    bytes
}

/// Precomputed powers of the generator, which save more than half of the multiplications (Lim and Lee,
/// CRYPTO 1994). The exponent's bits form a matrix with one row per tooth; each step takes one column.
/// Entry i is the product of g^(2^(COLUMNS j)) for the bits j of i, in Montgomery form.
struct Comb<const LIMBS: usize>([Uint<LIMBS>; 1 << TEETH]);

/// Rows of the exponent's matrix.
const TEETH: usize = 4;
/// Bits of each row.
const COLUMNS: usize = EXPONENT_LEN_BYTES * 8 / TEETH;

impl<const LIMBS: usize> Comb<LIMBS> {
    /// Computes the products.
    fn new(params: &FixedMontyParams<LIMBS>) -> Comb<LIMBS> {
        let mut powers = [FixedMontyForm::new(&Uint::ONE, params); 1 << TEETH];
        let mut tooth = FixedMontyForm::new(&Uint::from(2_u8), params);
        for row in 0..TEETH {
            let (known, new) = powers.split_at_mut(1 << row);
            for (new, known) in new.iter_mut().zip(known) {
                *new = *known * tooth;
            }
            (0..COLUMNS).for_each(|_| tooth = tooth.square());
        }
        Comb(powers.map(|power| power.to_montgomery()))
    }

    /// A power of the generator, in a time that does not depend on the exponent.
    fn power(
        &self,
        params: &FixedMontyParams<LIMBS>,
        exponent: &Exponent,
    ) -> FixedMontyForm<LIMBS> {
        let mut power = self.entry(params, exponent.column(COLUMNS - 1));
        for column in (0..COLUMNS - 1).rev() {
            power = power.square() * self.entry(params, exponent.column(column));
        }
        power
    }

    /// The entry at `index`, found by reading all entries, so that the time does not depend on `index`.
    fn entry(&self, params: &FixedMontyParams<LIMBS>, index: u8) -> FixedMontyForm<LIMBS> {
        let mut found = self.0[0];
        for (other, entry) in (1_u8..).zip(&self.0[1..]) {
            found.ct_assign(entry, other.ct_eq(&index));
        }
        FixedMontyForm::from_montgomery(found, params)
    }
}

static FFDHE2048: FixedMontyParams<{ U2048::LIMBS }> =
    FixedMontyParams::new_vartime(Odd::<U2048>::from_be_hex(
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695\
     A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617A\
     D3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935\
     984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797A\
     BC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4\
     AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61\
     9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005\
     C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF",
    ));

static FFDHE3072: FixedMontyParams<{ U3072::LIMBS }> =
    FixedMontyParams::new_vartime(Odd::<U3072>::from_be_hex(
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695\
     A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617A\
     D3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935\
     984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797A\
     BC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4\
     AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61\
     9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005\
     C58EF1837D1683B2C6F34A26C1B2EFFA886B4238611FCFDCDE355B3B6519035B\
     BC34F4DEF99C023861B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91C\
     AEFE130985139270B4130C93BC437944F4FD4452E2D74DD364F2E21E71F54BFF\
     5CAE82AB9C9DF69EE86D2BC522363A0DABC521979B0DEADA1DBF9A42D5C4484E\
     0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B66C62E37FFFFFFFFFFFFFFFF",
    ));

#[cfg(test)]
mod tests {
    use super::*;

    fn exponents(group: Group, at: u8) -> (Exponent, Power) {
        let exponent = Exponent::new(std::array::from_fn(|i| at.wrapping_mul(31) ^ i as u8));
        let public = Exponentiation::public(group, &exponent).compute();
        (exponent, public)
    }

    #[test]
    fn both_sides_get_the_same_secret_of_the_length_of_the_prime() {
        for group in [Group::Ffdhe2048, Group::Ffdhe3072] {
            let (a, public_a) = exponents(group, 3);
            let (b, public_b) = exponents(group, 8);
            assert!(group.is_public_value(&public_a.0) && group.is_public_value(&public_b.0));
            let of_a = Exponentiation::shared(group, &public_b.0, &a).compute();
            let of_b = Exponentiation::shared(group, &public_a.0, &b).compute();
            assert_eq!(of_a.0, of_b.0);
            assert_eq!(of_a.0.len(), group.len_bytes());
            assert_ne!(of_a.0, public_a.0);
        }
    }

    #[test]
    fn a_small_exponent_gives_the_power_that_arithmetic_gives() {
        let mut bytes = [0; EXPONENT_LEN_BYTES];
        bytes[EXPONENT_LEN_BYTES - 1] = 100;
        let power = Exponentiation::public(Group::Ffdhe2048, &Exponent::new(bytes)).compute();
        let mut expected = vec![0; 256];
        expected[255 - 12] = 16; // 2^100
        assert_eq!(*power.0, expected);
    }

    /// Compares with the crate's `pow` for any base, which is another implementation.
    #[test]
    fn a_power_of_the_generator_is_that_of_the_general_way() {
        for group in [Group::Ffdhe2048, Group::Ffdhe3072] {
            let mut generator = vec![0; group.len_bytes()];
            *generator.last_mut().unwrap() = 2;
            let patterns =
                [[0xFF; EXPONENT_LEN_BYTES], [0x80; EXPONENT_LEN_BYTES], [1; EXPONENT_LEN_BYTES]];
            let more =
                (0..8).map(|at| std::array::from_fn(|i| (i * 37 + at * 101 + i * i * at) as u8));
            for bytes in patterns.into_iter().chain(more) {
                let exponent = Exponent::new(bytes);
                let by_comb = Exponentiation::public(group, &exponent).compute();
                let in_general = Exponentiation::shared(group, &generator, &exponent).compute();
                assert_eq!(by_comb.0, in_general.0, "{group}, {bytes:?}");
            }
        }
    }

    #[test]
    fn public_values_that_give_a_known_secret_are_refused() {
        for group in [Group::Ffdhe2048, Group::Ffdhe3072] {
            let prime = group.prime().unwrap();
            let near = |by: i16| {
                let mut value = prime.to_vec();
                let last = value.last_mut().unwrap();
                *last = u8::try_from(i16::from(*last) + by).unwrap();
                value
            };
            let small = |low: u8| [vec![0; prime.len() - 1], vec![low]].concat();
            for refused in [small(0), small(1), near(0), near(-1), vec![0xFF; prime.len()]] {
                assert!(!group.is_public_value(&refused));
            }
            for taken in [small(2), near(-2)] {
                assert!(group.is_public_value(&taken));
            }
            assert!(!group.is_public_value(&small(2)[1..]), "too short");
            assert!(!group.is_public_value(&[&[0], &small(2)[..]].concat()), "too long");
        }
        assert!(!Group::Null.is_public_value(&[]));
    }
}
