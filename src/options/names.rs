//! The names of the values that options choose from, in the order of C's numbers.

use super::{Kind, Named};
use crate::dataset::LongDocuments;
use crate::folders::Links;
use crate::gpu::Pin;
use crate::order::Sharding;
use crate::order::budget::{Cost, Pack, TooLong};
use crate::peers::Serving;
use crate::prefetch::Batching;
use crate::qpair::Direct;
use crate::reader::OnError;
use crate::tier::Policy;

impl Named for Kind {
    const NAMES: &'static [(&'static str, Kind)] = &[
        ("global", Kind::Global),
        ("grouped", Kind::Grouped),
        ("sequential", Kind::Sequential),
        ("local", Kind::Local),
        ("partial", Kind::Partial),
        ("weighted", Kind::Weighted),
    ];
}

impl Named for Direct {
    const NAMES: &'static [(&'static str, Direct)] =
        &[("auto", Direct::Auto), ("on", Direct::On), ("off", Direct::Off)];
}

impl Named for Links {
    const NAMES: &'static [(&'static str, Links)] =
        &[("follow", Links::Follow), ("inside", Links::Inside), ("refuse", Links::Refuse)];
}

impl Named for Policy {
    const NAMES: &'static [(&'static str, Policy)] = &[
        ("first-touch", Policy::FirstTouch),
        ("clairvoyant", Policy::Clairvoyant),
        ("none", Policy::None),
    ];
}

impl Named for Serving {
    const NAMES: &'static [(&'static str, Serving)] = Serving::NAMES;
}

impl Named for Sharding {
    const NAMES: &'static [(&'static str, Sharding)] = &[
        ("strided", Sharding::Strided),
        ("aligned", Sharding::Aligned),
        ("local", Sharding::Local),
    ];
}

impl Named for Batching {
    const NAMES: &'static [(&'static str, Batching)] =
        &[("chunk", Batching::Chunk), ("sample", Batching::Sample)];
}

impl Named for OnError {
    const NAMES: &'static [(&'static str, OnError)] =
        &[("raise", OnError::Raise), ("skip", OnError::Skip)];
}

impl Named for Pin {
    const NAMES: &'static [(&'static str, Pin)] =
        &[("auto", Pin::Auto), ("cuda", Pin::Cuda), ("hip", Pin::Hip)];
}

impl Named for Cost {
    const NAMES: &'static [(&'static str, Cost)] = &[("padded", Cost::Padded), ("sum", Cost::Sum)];
}

impl Named for TooLong {
    const NAMES: &'static [(&'static str, TooLong)] =
        &[("raise", TooLong::Raise), ("alone", TooLong::Alone)];
}

impl Named for Pack {
    const NAMES: &'static [(&'static str, Pack)] =
        &[("concat", Pack::Concat), ("best_fit", Pack::BestFit), ("none", Pack::None)];
}

impl Named for LongDocuments {
    const NAMES: &'static [(&'static str, LongDocuments)] =
        &[("cut", LongDocuments::Cut), ("raise", LongDocuments::Raise)];
}
