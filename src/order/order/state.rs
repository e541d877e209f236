//! The state of a run, as JSON, and the checks that another run can resume from it exactly.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::budget::{Budget, RowPlace, wrong_place};
use super::mixture::MixtureSpec;
use super::spec::HexId;
use super::{OrderKind, OrderSpec};
use dlfs_base::error::{Error, ErrorKind, Result, ensure, invalid};
use dlfs_base::permutation::Key;
use dlfs_base::units::{Epoch, Generation};

/// The state of a run between two global batches.
///
/// The state contains neither world size nor batch size: a run may resume with others. (If an order depends on the
/// world size, `order` contains it.)
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The version of this record; unknown versions are refused.
    pub version: u32,
    /// The image, by its UUID's 32 hexadecimal digits.
    pub image: HexId,
    /// The generation of the image: positions count its live samples.
    pub generation: Generation,
    /// The hash of the view, if positions count the samples of a view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<HexId>,
    /// The order, with its seed.
    pub order: OrderSpec,
    /// The current epoch.
    pub epoch: Epoch,
    /// The positions of this epoch that all ranks together have consumed.
    pub consumed: u64,
    /// The mixture, if the run is over one: `image` is then the mixture's hash, and `generation` is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<Arc<MixtureSpec>>,
    /// The token budget, if batches have one. The consumed positions then end with a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Arc<Budget>>,
    /// The place from which a run of rows of tokens resumes. Without it, the run reads the lengths of all earlier
    /// documents of the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<RowPlace>,
}

impl State {
    /// The start of a run over a whole generation.
    pub fn start(image: [u8; 16], generation: Generation, order: OrderSpec) -> State {
        State {
            version: VERSION,
            image: HexId(image),
            generation,
            view: None,
            order,
            epoch: Epoch(0),
            consumed: 0,
            mixture: None,
            budget: None,
            place: None,
        }
    }

    /// Moves the state behind a batch: to a number of consumed positions, or rows, of an epoch. A run of rows resumes
    /// there at `place`.
    pub fn move_to(&mut self, (epoch, consumed): (Epoch, u64), place: Option<RowPlace>) {
        self.epoch = epoch;
        self.consumed = consumed;
        self.place = place.map(|place| RowPlace { check: self.check_word(&place), ..place });
    }

    /// Checks that the place belongs to the other numbers of the state.
    ///
    /// # Errors
    /// The numbers differ from those with which the place was set: the state is damaged, or was edited.
    pub fn check_place(&self) -> Result<()> {
        let Some(place) = self.place.filter(|place| place.check != self.check_word(place)) else {
            return Ok(());
        };
        Err(wrong_place(&place, self.consumed))
    }

    /// A checksum of all numbers on which `place` depends. It has 52 bits, which every JSON reader keeps. The hash of a
    /// mixture is left out: later phases of a mixture may change.
    fn check_word(&self, place: &RowPlace) -> u64 {
        let (lanes, group) = self.order.kind.lanes_and_group().unwrap_or_default();
        let image = match self.mixture {
            Some(_) => 0,
            None => u128::from_le_bytes(self.image.0),
        };
        let words = [
            LABEL,
            image as u64,
            (image >> 64) as u64,
            self.generation.0,
            lanes.into(),
            group.into(),
            self.epoch.0,
            self.consumed,
            place.position,
            place.tokens,
            place.rows,
        ];
        Key::derive(self.order.seed, &words).word() >> 12
    }

    /// The same state for a run over the view with this hash.
    #[must_use]
    pub fn of_view(self, view: Option<[u8; 16]>) -> State {
        State { view: view.map(HexId), ..self }.versioned()
    }

    /// The same state for a run whose batches have this budget.
    #[must_use]
    pub fn by_budget(self, budget: Option<Arc<Budget>>) -> State {
        State { budget, ..self }.versioned()
    }

    /// The same state with the lowest version that has all its fields.
    fn versioned(self) -> State {
        let version = match (&self.budget, self.view) {
            (Some(budget), _) if budget.rows.is_some() => VERSION_OF_ROWS,
            (Some(_), _) => VERSION_OF_BUDGETS,
            (None, Some(_)) => VERSION_OF_VIEWS,
            (None, None) => VERSION,
        };
        State { version, ..self }
    }

    /// Reads a state from JSON.
    ///
    /// # Errors
    /// `InvalidArgument`: the text is not a state, or a state of an unknown version.
    pub fn from_json(text: &str) -> Result<State> {
        let state: State = serde_json::from_str(text)
            .map_err(|error| invalid("this is not a reading state").source(error))?;
        let found = state.version;
        ensure((VERSION..=VERSION_OF_ROWS).contains(&found), || {
            format!("a reading state of version {found}; this build knows up to {VERSION_OF_ROWS}")
        })?;
        if let Some(budget) = &state.budget {
            budget.check()?;
        }
        state.order.check()?;
        state.order.check_epoch(state.epoch)?;
        Ok(state)
    }

    /// The state as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers, strings and finite shares always become JSON")
    }

    /// Checks that a run on `image` at `generation`, or on a `view` of it, with `order` and `world_size` ranks over
    /// `len` samples can resume from this state. It resumes in the order of the state, which has a number of lanes
    /// even if none was requested. If an order has a share per rank, it contains the number of shares; several
    /// processes may divide each share.
    ///
    /// # Errors
    /// The first difference that prevents it.
    pub fn check(
        &self,
        (image, view): ([u8; 16], Option<[u8; 16]>),
        generation: Generation,
        order: &OrderSpec,
        world_size: u32,
        len: u64,
    ) -> Result<()> {
        let open = HexId(image);
        agree(self.mixture.is_none(), OTHER_DATA, || {
            format!("the state belongs to a mixture, and this is image {open}")
        })?;
        agree(self.image == open, OTHER_DATA, || {
            format!("the state belongs to image {}, and this is image {open}", self.image)
        })?;
        if self.generation != generation {
            return Err(of_another_generation(self.generation, generation));
        }
        let view = view.map(HexId);
        let hint = match self.view {
            Some(_) => {
                "open the view that the run began with: a view of the same samples has the same hash"
            }
            None => "open the whole data set, or start anew",
        };
        agree(self.view == view, hint, || {
            let [state, open] = [self.view, view].map(view_text);
            format!("the state counts samples of {state}, and this is {open}")
        })?;
        self.check_order(order, world_size, len)
    }

    /// As [`State::check`], without checking the data set.
    ///
    /// # Errors
    /// The first difference that prevents it.
    pub fn check_order(&self, asked: &OrderSpec, world_size: u32, len: u64) -> Result<()> {
        let order = &self.order;
        let consumed = self.consumed;
        let shares = order.kind.world_size();
        if let (Some(state), Some(asked)) = (shares, asked.kind.world_size())
            && (state != asked || !world_size.is_multiple_of(state))
        {
            let asked = if state == asked { world_size } else { asked };
            let text = format!(
                "this order gives each of {state} ranks a share of its own; it cannot go on with {asked}"
            );
            return Err(invalid(text).hint(
                "start as many ranks as before; or, between epochs, begin new shares: the option restart_shares, in \
                 the command --restart-shares",
            ));
        }
        if let (
            OrderKind::Weighted { weights: state, .. },
            OrderKind::Weighted { weights: asked, .. },
        ) = (order.kind, asked.kind)
        {
            let hint = "resume with the weights of the state, number for number, or start anew, without the state";
            agree(state == asked, hint, || {
                format!("the state draws by weights {state}, and these are weights {asked}")
            })?;
        }
        let hint = "resume with the order of the state and its parameters, or start anew, without the state";
        agree(order.kind.continues(&asked.kind), hint, || {
            format!("the state's order is {}, and {} was asked for", order.kind, asked.kind)
        })?;
        let hint = "resume with the seed of the state, or start anew, without the state";
        agree(order.seed == asked.seed, hint, || {
            format!("the state's seed is {}, and {} was asked for", order.seed, asked.seed)
        })?;
        agree(consumed <= self.len_of_epoch(len), START_ANEW, || {
            format!("the state has consumed {consumed} samples of an epoch of {len}")
        })?;
        let ranks = shares.filter(|_| consumed < len).unwrap_or(1);
        agree(consumed.is_multiple_of(ranks.max(1).into()), START_ANEW, || {
            format!("the state has consumed {consumed} samples, no multiple of its {ranks} ranks")
        })
    }

    /// Checks that a run whose batches have the budget `asked`, or no budget, can resume from this state. Phases of
    /// rows may differ where they are still to come.
    ///
    /// # Errors
    /// The first difference. The place is not of this state.
    pub fn check_budget(&self, asked: Option<&Budget>) -> Result<()> {
        self.check_place()?;
        let begun = |budget: &Budget| budget.begun(self.consumed, self.place.as_ref()).to_vec();
        let difference = match (self.budget.as_deref(), asked) {
            (None, None) => None,
            (None, Some(_)) => Some(
                "the state's batches have a number of samples, and a budget was asked for".into(),
            ),
            (Some(_), None) => {
                Some("the state's batches have a budget of tokens, and none was asked for".into())
            }
            (Some(state), Some(asked)) => state.difference(asked).or_else(|| {
                let consumed = self.consumed;
                let text = format!(
                    "the state's phases of rows before row {consumed} are others than those asked for"
                );
                (begun(state) != begun(asked)).then_some(text)
            }),
        };
        let hint =
            "resume with the budget of the state and its window, or start anew, without the state";
        difference.map_or(Ok(()), |difference| Err(invalid(difference).hint(hint)))
    }

    /// The state at the same epoch boundary in `order`: for a run whose ranks begin with new shares, because their
    /// number or the exchanged fraction has changed. `len` is the number of samples.
    ///
    /// # Errors
    /// Some positions of the epoch are consumed, but not all.
    pub fn begun_anew(&self, order: &OrderSpec, len: u64) -> Result<State> {
        if self.consumed > 0 && self.consumed < len {
            let State { consumed, epoch, .. } = self;
            let text = format!(
                "shares begin anew between epochs, and {consumed} samples of epoch {epoch} are consumed"
            );
            return Err(invalid(text).hint("end the epoch with as many ranks as it began with"));
        }
        let State { epoch, consumed, .. } = self.at(self.epoch, self.consumed, len.max(1));
        Ok(State { order: *order, epoch, consumed, ..self.clone() })
    }

    /// The most that can be consumed of an epoch of `len` positions. The number of rows is not known.
    fn len_of_epoch(&self, len: u64) -> u64 {
        let has_rows = self.budget.as_ref().is_some_and(|budget| budget.rows.is_some());
        if has_rows { u64::MAX } else { len }
    }

    /// The state after `consumed` of the epoch's `len` positions; at the end, the start of the next epoch.
    #[must_use]
    pub fn at(&self, epoch: Epoch, consumed: u64, len: u64) -> State {
        let len = self.len_of_epoch(len);
        let next =
            if consumed < len { (epoch, consumed) } else { (Epoch(epoch.0.saturating_add(1)), 0) };
        let place = self.place.filter(|_| next == (self.epoch, self.consumed));
        State { epoch: next.0, consumed: next.1, place, ..self.clone() }
    }
}

/// The error for a state of another generation: samples were added or deleted, so positions denote other samples.
fn of_another_generation(state: Generation, open: Generation) -> Error {
    let stale = |text| Error::new(ErrorKind::Stale, text);
    if state > open {
        let text = format!(
            "the state is of generation {state}, the image opened at generation {open}: its newest \
             superblock may be damaged"
        );
        return stale(text).hint("dlfs verify checks it; dlfs rebuild finds the newest generation");
    }
    let text = format!(
        "the state counts samples of generation {state}, and the image is at generation {open}"
    );
    stale(text).hint(START_ANEW)
}

/// Checks that a run agrees with the state in one respect; otherwise the error has this text and `hint`.
fn agree(agrees: bool, hint: &'static str, text: impl FnOnce() -> String) -> Result<()> {
    ensure(agrees, text).map_err(|error| error.hint(hint))
}

/// The data set of a state, for a message.
fn view_text(view: Option<HexId>) -> String {
    view.map_or("the whole data set".into(), |view| format!("view {view}"))
}

const OTHER_DATA: &str = "open what the run began with, or start anew, without the state";
const START_ANEW: &str = "start anew, without the state";

/// The first word of the keys of check words: "plac" in ASCII.
const LABEL: u64 = 0x706c_6163;

/// The version of states that have none of the following.
const VERSION: u32 = 1;
/// The version of states with views: older releases would read the whole data set, so they must refuse the state.
const VERSION_OF_VIEWS: u32 = 2;
/// The version of states with budgets: older releases would read other batches.
const VERSION_OF_BUDGETS: u32 = 3;
/// The version of states with rows of tokens: older releases would count samples.
const VERSION_OF_ROWS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::super::SequentialBy;
    use super::super::budget::{Cost, Pack, RowPhase, RowSpec};
    use super::*;

    const IMAGE: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];

    fn spec(kind: OrderKind) -> OrderSpec {
        OrderSpec { kind, seed: 7 }
    }

    fn state(kind: OrderKind, consumed: u64) -> State {
        State { consumed, ..State::start(IMAGE, Generation(3), spec(kind)) }
    }

    #[test]
    fn a_state_is_json_that_reads_back_equal() {
        let state = state(OrderKind::Grouped { lanes: 8, group: 4 }, 512);
        let json = state.to_json();
        assert_eq!(
            json,
            concat!(
                r#"{"version":1,"image":"000102030405060708090a0b0c0d0eff","generation":3,"#,
                r#""order":{"kind":"grouped","lanes":8,"group":4,"seed":7},"epoch":0,"consumed":512}"#
            )
        );
        assert_eq!(State::from_json(&json).unwrap(), state);
    }

    /// JSON's numbers were once rounded when they were read, so that such runs could not resume.
    #[test]
    fn every_digit_of_an_exchanged_fraction_reads_back() {
        for q in [0.38120423768821243, 0.9407520306285343, 1.0 / 3.0] {
            let state = state(OrderKind::Partial { q, world_size: 2 }, 0);
            assert_eq!(State::from_json(&state.to_json()).unwrap(), state);
        }
    }

    #[test]
    fn a_state_of_a_view_names_its_hash_and_goes_on_in_that_view_only() {
        let whole = state(OrderKind::Global, 5);
        let view = whole.clone().of_view(Some([0xab; 16]));
        let json = view.to_json();
        assert!(json.starts_with(r#"{"version":2,"image":"0001"#), "{json}");
        assert!(
            json.contains(&format!(r#""generation":3,"view":"{}","#, "ab".repeat(16))),
            "{json}"
        );
        assert_eq!(State::from_json(&json).unwrap(), view);
        let check = |state: &State, open| {
            state.check((IMAGE, open), Generation(3), &spec(OrderKind::Global), 1, 1000)
        };
        check(&view, Some([0xab; 16])).unwrap();
        let why = |state, open| check(state, open).unwrap_err().to_string();
        assert!(
            why(&view, None).contains("of view abab") && why(&view, None).contains("is the whole")
        );
        assert!(why(&view, Some([1; 16])).contains("is view 0101"));
        assert!(why(&whole, Some([1; 16])).contains("of the whole data set"));
        assert_eq!(view.of_view(None), whole);
        let bad = json.replace("abab", "+bab");
        assert!(State::from_json(&bad).unwrap_err().report().contains("32 hexadecimal digits"));
    }

    #[test]
    fn a_state_by_budget_names_it_and_goes_on_with_the_same_only() {
        let whole = state(OrderKind::Global, 5);
        let state = whole.clone().by_budget(Some(Arc::new(Budget::new(4096))));
        let json = state.to_json();
        assert!(json.starts_with(r#"{"version":3,"image":"0001"#), "{json}");
        assert!(json.contains(r#""budget":{"tokens":4096,"window":8192,"#), "{json}");
        assert_eq!(State::from_json(&json).unwrap(), state);
        state.check_budget(Some(&Budget::new(4096))).unwrap();
        let why = |state: &State, asked: Option<&Budget>| {
            state.check_budget(asked).unwrap_err().to_string()
        };
        assert!(why(&state, Some(&Budget::new(4097))).contains("4096 tokens, and 4097"));
        assert!(why(&state, None).contains("none was asked for"));
        assert!(why(&whole, Some(&Budget::new(4096))).contains("a number of samples"));
        whole.check_budget(None).unwrap();
        let bad = json.replace("\"tokens\":4096", "\"tokens\":0");
        assert!(State::from_json(&bad).unwrap_err().report().contains("one token"));
        assert_eq!(state.of_view(Some([1; 16])).version, 3);
    }

    #[test]
    fn a_place_is_refused_beside_any_other_number() {
        let kind = OrderKind::Grouped { lanes: 8, group: 4 };
        let rows = RowSpec { pack: Pack::BestFit, separated: false, cuts: true };
        let budget = Budget { cost: Cost::Sum, rows: Some(rows), ..Budget::new(9) };
        let mut state = state(kind, 0).by_budget(Some(Arc::new(budget.clone())));
        let place = RowPlace { position: 700, tokens: 8000, rows: 1000, check: 0 };
        state.move_to((Epoch(2), 1003), Some(place));
        state.check_budget(Some(&budget)).unwrap();
        let json = state.to_json();
        assert_eq!(State::from_json(&json).unwrap(), state);
        for (right, wrong) in [
            ("\"position\":700", "\"position\":701"),
            ("\"tokens\":8000", "\"tokens\":8008"),
            ("\"rows\":1000", "\"rows\":1001"),
            ("\"consumed\":1003", "\"consumed\":1004"),
            ("\"epoch\":2", "\"epoch\":3"),
            ("\"lanes\":8", "\"lanes\":9"),
            ("\"seed\":7", "\"seed\":8"),
            ("\"generation\":3", "\"generation\":4"),
            ("\"check\":", "\"check\":1"),
        ] {
            let state = State::from_json(&json.replace(right, wrong)).unwrap();
            let error = state.check_budget(Some(&budget)).unwrap_err().to_string();
            assert!(error.contains("is not that of its"), "{wrong}: {error}");
            State { place: None, ..state }.check_budget(Some(&budget)).unwrap();
        }
        assert_eq!(state.at(Epoch(2), 1003, 5).place, state.place);
        assert_eq!(state.at(Epoch(2), 1004, 5).place, None);
    }

    #[test]
    fn only_phases_of_rows_that_are_still_to_come_may_change() {
        let rows = RowSpec { pack: Pack::Concat, separated: false, cuts: true };
        let with = |phases: &[(u64, u32)]| {
            let phase = |&(from, seq_len): &(u64, u32)| RowPhase { from, seq_len };
            let phases = phases.iter().map(phase).collect();
            Budget { cost: Cost::Sum, rows: Some(rows), phases, ..Budget::new(11) }
        };
        let state = state(OrderKind::Global, 4);
        let state = state.by_budget(Some(Arc::new(with(&[(25, 5), (100, 8)]))));
        state.check_budget(Some(&with(&[(25, 5), (36, 2)]))).unwrap();
        state.check_budget(Some(&with(&[(25, 5)]))).unwrap();
        for other in [&[(25, 6), (100, 8)][..], &[(15, 5), (100, 8)], &[(25, 5), (27, 8)], &[]] {
            let error = state.check_budget(Some(&with(other))).unwrap_err().to_string();
            assert!(error.contains("before row 4"), "{error}");
        }
        let start = State { consumed: 0, ..state };
        start.check_budget(Some(&with(&[]))).unwrap();
    }

    #[test]
    fn a_state_of_an_impossible_epoch_is_refused() {
        for kind in [OrderKind::Global, OrderKind::Partial { q: 0.5, world_size: 2 }] {
            let state = State { epoch: Epoch(u64::MAX), ..state(kind, 5) };
            let error = State::from_json(&state.to_json()).unwrap_err();
            assert!(error.to_string().contains("epochs of this order go to"), "{error}");
            assert_eq!(state.at(state.epoch, 5, 5).epoch, state.epoch, "there is none behind it");
        }
    }

    #[test]
    fn invalid_states_and_other_versions_are_refused_with_the_reason() {
        let json = state(OrderKind::Global, 0).to_json();
        let refused = |text: &str| State::from_json(text).unwrap_err().report();
        assert!(refused("").contains("not a reading state"));
        assert!(refused(&json.replace("0001", "zz01")).contains("32 hexadecimal"));
        assert!(refused(&json.replace("\"000102", "\"+00102")).contains("32 hexadecimal"));
        assert!(refused(&json.replace("\"version\":1", "\"version\":5")).contains("version 5"));
        assert!(refused(&json.replace("\"seed\":7", "\"seed\":-7")).contains("-7"));
        assert!(
            refused(&json.replace("\"global\"", "\"grouped\",\"lanes\":0,\"group\":1"))
                .contains("lanes")
        );
    }

    #[test]
    fn a_state_resumes_with_any_world_size_if_the_order_does_not_depend_on_it() {
        for kind in [OrderKind::Global, OrderKind::Sequential { by: SequentialBy::Slot }] {
            for world_size in [1, 3, 64] {
                let check = state(kind, 100).check(
                    (IMAGE, None),
                    Generation(3),
                    &spec(kind),
                    world_size,
                    1000,
                );
                check.unwrap();
            }
        }
    }

    #[test]
    fn every_difference_that_would_change_the_sequence_is_refused_by_name() {
        let kind = OrderKind::Grouped { lanes: 8, group: 4 };
        let state = state(kind, 100);
        let check = |image, generation, order: OrderSpec, len| {
            state
                .check((image, None), Generation(generation), &order, 2, len)
                .unwrap_err()
                .to_string()
        };
        assert!(check([9; 16], 3, spec(kind), 1000).contains("image 0909"));
        assert!(check(IMAGE, 4, spec(kind), 1000).contains("generation 4"));
        assert!(check(IMAGE, 2, spec(kind), 1000).contains("superblock may be damaged"));
        assert!(check(IMAGE, 3, spec(OrderKind::Global), 1000).contains("global"));
        let other = OrderKind::Grouped { lanes: 8, group: 5 };
        assert!(check(IMAGE, 3, spec(other), 1000).contains("group 5"));
        assert!(check(IMAGE, 3, OrderSpec { kind, seed: 8 }, 1000).contains("seed is 7"));
        assert!(check(IMAGE, 3, spec(kind), 99).contains("100 samples of an epoch of 99"));
    }

    #[test]
    fn orders_with_a_share_for_each_rank_refuse_another_world_size_with_that_reason() {
        let kind = |world_size| OrderKind::Partial { q: 0.25, world_size };
        let check = |consumed, asked, world_size| {
            let state = state(kind(4), consumed);
            let order = spec(kind(asked));
            let checked = state.check((IMAGE, None), Generation(3), &order, world_size, 1000);
            checked.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(check(100, 4, 4), "");
        assert!(
            check(100, 8, 8).contains("each of 4 ranks a share of its own; it cannot go on with 8")
        );
        assert_eq!(check(100, 4, 8), "", "two processes that divide a rank's share");
        assert!(
            check(100, 4, 6).contains("each of 4 ranks a share of its own; it cannot go on with 6")
        );
        assert!(check(101, 4, 4).contains("101 samples, no multiple of its 4 ranks"));
        assert_eq!(check(1000, 4, 4), "");
    }

    #[test]
    fn the_end_of_an_epoch_is_the_start_of_the_next() {
        let state = state(OrderKind::Global, 0);
        let at = |consumed| {
            let state = state.at(Epoch(5), consumed, 1000);
            (state.epoch.0, state.consumed)
        };
        assert_eq!((at(999), at(1000)), ((5, 999), (6, 0)));
    }
}
