//! Phases of rows: another length, and another batch size, from a number of tokens on.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::order::budget::RowPhase;

/// A phase of each epoch in which rows have another length. It begins once the rows before have counted `from` tokens,
/// each its length; unless documents lie end to end, with the next window.
///
/// As text: `TOKENS:seq_len=N`, with `,batch_size=B` behind it if batches have another size, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenPhase {
    /// The tokens of the epoch before it.
    pub from: u64,
    /// The inputs of a row.
    pub seq_len: u32,
    /// The rows of a batch on this rank. `None`: as at the epoch's start.
    pub batch_size: Option<u32>,
}

impl TokenPhase {
    /// The phase as it defines the sequence of rows.
    pub(super) fn of_rows(&self) -> RowPhase {
        RowPhase { from: self.from, seq_len: self.seq_len }
    }
}

impl fmt::Display for TokenPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenPhase { from, seq_len, batch_size } = self;
        write!(f, "{from}:seq_len={seq_len}")?;
        batch_size.map_or(Ok(()), |batch_size| write!(f, ",batch_size={batch_size}"))
    }
}

impl FromStr for TokenPhase {
    type Err = Error;

    fn from_str(text: &str) -> Result<TokenPhase, Error> {
        let parsed = || {
            let (from, rest) = text.split_once(':')?;
            let mut phase = TokenPhase { from: from.parse().ok()?, seq_len: 0, batch_size: None };
            for part in rest.split(',') {
                match part.split_once('=')? {
                    ("seq_len", value) => phase.seq_len = value.parse().ok()?,
                    ("batch_size", value) => phase.batch_size = Some(value.parse().ok()?),
                    _ => return None,
                }
            }
            Some(phase)
        };
        parsed().filter(|phase| phase.seq_len > 0 && phase.batch_size != Some(0)).ok_or_else(|| {
            Error::invalid(
                format!("{text:?} is no phase of rows"),
                "such as 1000000:seq_len=32768,batch_size=4: tokens, and what rows have from there on",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_read_back_from_its_text_and_others_are_refused() {
        for text in ["1000:seq_len=32768", "18446744073709551615:seq_len=1,batch_size=4"] {
            assert_eq!(text.parse::<TokenPhase>().unwrap().to_string(), text);
        }
        let swapped = "5:batch_size=4,seq_len=8".parse::<TokenPhase>().unwrap();
        assert_eq!(swapped, TokenPhase { from: 5, seq_len: 8, batch_size: Some(4) });
        for wrong in [
            "",
            "5",
            "5:",
            "x:seq_len=8",
            "-1:seq_len=8",
            "5:seq_len=0",
            "5:batch_size=4",
            "5:seq_len=8,batch_size=0",
            "5:seq_len=8,window=3",
            "5:seq_len=4294967296",
        ] {
            let error = wrong.parse::<TokenPhase>().unwrap_err();
            assert!(error.to_string().contains("is no phase of rows"), "{wrong}: {error}");
        }
    }
}
