//! Where a run is: all that is needed to go on exactly there, as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{OrderKind, OrderSpec};
use crate::error::{Error, ErrorKind};
use crate::units::{Epoch, Generation};

/// A point between two global batches of a run.
///
/// It holds neither world size nor batch size: a run may go on with others. (Orders that depend on the
/// world size name it in `order`.)
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Version of this record; others are refused.
    pub version: u32,
    /// The image, by its UUID's 32 hexadecimal digits.
    pub image: ImageId,
    /// The generation of the image, whose live samples the positions count.
    pub generation: Generation,
    /// The order, with its seed.
    pub order: OrderSpec,
    /// The epoch that is being read.
    pub epoch: Epoch,
    /// Positions of that epoch that all ranks together have consumed.
    pub consumed: u64,
}

impl State {
    /// The start of a run.
    pub fn start(image: [u8; 16], generation: Generation, order: OrderSpec) -> State {
        State {
            version: VERSION,
            image: ImageId(image),
            generation,
            order,
            epoch: Epoch(0),
            consumed: 0,
        }
    }

    /// Reads a state from JSON.
    ///
    /// # Errors
    /// `InvalidArgument`: it is no state, or one of another version.
    pub fn from_json(text: &str) -> Result<State, Error> {
        let refuse = |why: String| Error::new(ErrorKind::InvalidArgument, why);
        let state: State = serde_json::from_str(text)
            .map_err(|error| refuse("this is no reading state".into()).source(error))?;
        if state.version != VERSION {
            let found = state.version;
            return Err(refuse(format!(
                "a reading state of version {found}; this build knows {VERSION}"
            )));
        }
        state.order.check()?;
        Ok(state)
    }

    /// The state as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers, strings and finite shares always become JSON")
    }

    /// Whether a run on `image` at `generation` with `order`, with `world_size` ranks over `len`
    /// samples, can go on from here.
    ///
    /// # Errors
    /// The first reason why it cannot.
    pub fn check(
        &self,
        image: [u8; 16],
        generation: Generation,
        order: &OrderSpec,
        world_size: u32,
        len: u64,
    ) -> Result<(), Refusal> {
        let consumed = self.consumed;
        if self.image.0 != image {
            return Err(Refusal::Image { state: self.image, open: ImageId(image) });
        }
        if self.generation != generation {
            return Err(Refusal::Generation { state: self.generation, open: generation });
        }
        if let (Some(state), Some(asked)) = (self.order.kind.world_size(), order.kind.world_size())
            && (state != asked || state != world_size)
        {
            return Err(Refusal::WorldSize {
                state,
                asked: if state == asked { world_size } else { asked },
            });
        }
        if self.order.kind != order.kind {
            return Err(Refusal::Order { state: self.order.kind, asked: order.kind });
        }
        if self.order.seed != order.seed {
            return Err(Refusal::Seed { state: self.order.seed, asked: order.seed });
        }
        if consumed > len {
            return Err(Refusal::Consumed { consumed, len });
        }
        let uneven = consumed < len && !consumed.is_multiple_of(u64::from(world_size.max(1)));
        match self.order.kind.world_size() {
            Some(world_size) if uneven => Err(Refusal::Uneven { consumed, world_size }),
            _ => Ok(()),
        }
    }

    /// The state once the epoch has `consumed` of its `len` positions; at the end, the next epoch's start.
    #[must_use]
    pub fn at(&self, epoch: Epoch, consumed: u64, len: u64) -> State {
        let next = if consumed < len { (epoch, consumed) } else { (Epoch(epoch.0 + 1), 0) };
        State { epoch: next.0, consumed: next.1, ..self.clone() }
    }
}

/// Why a run cannot go on from a state.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another data set.
    #[error("the state belongs to image {state}, and this is image {open}")]
    Image {
        /// The state's.
        state: ImageId,
        /// The one that is open.
        open: ImageId,
    },
    /// Samples were added or deleted, so positions mean other samples.
    #[error(
        "the state counts samples of generation {state}, and the image is at generation {open}"
    )]
    Generation {
        /// The state's.
        state: Generation,
        /// The one that is open.
        open: Generation,
    },
    /// Another order.
    #[error("the state's order is {state:?}, and {asked:?} was asked for")]
    Order {
        /// The state's.
        state: OrderKind,
        /// What was asked for.
        asked: OrderKind,
    },
    /// Another seed.
    #[error("the state's seed is {state}, and {asked} was asked for")]
    Seed {
        /// The state's.
        state: u64,
        /// What was asked for.
        asked: u64,
    },
    /// Each rank has a share of its own in this order, and shares depend on how many there are.
    #[error(
        "this order gives each of {state} ranks a share of its own; it cannot go on with {asked}"
    )]
    WorldSize {
        /// The state's.
        state: u32,
        /// What was asked for.
        asked: u32,
    },
    /// More was consumed than there is.
    #[error("the state has consumed {consumed} samples of an epoch of {len}")]
    Consumed {
        /// The state's.
        consumed: u64,
        /// Samples of an epoch.
        len: u64,
    },
    /// Ranks with shares of their own that are not equally far.
    #[error("the state has consumed {consumed} samples, no multiple of its {world_size} ranks")]
    Uneven {
        /// The state's.
        consumed: u64,
        /// The ranks of its order.
        world_size: u32,
    },
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let kind = match refusal {
            Refusal::Generation { .. } => ErrorKind::Stale,
            _ => ErrorKind::InvalidArgument,
        };
        Error::new(kind, refusal.to_string()).hint("start anew, without the state file")
    }
}

/// An image's UUID: 32 hexadecimal digits in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ImageId(pub [u8; 16]);

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl From<ImageId> for String {
    fn from(id: ImageId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for ImageId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<ImageId, &'static str> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| digits);
        number
            .map(|number| ImageId(number.to_be_bytes()))
            .ok_or("an image is named by 32 hexadecimal digits")
    }
}

const VERSION: u32 = 1;
