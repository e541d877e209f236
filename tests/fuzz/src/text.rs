//! Texts of people and files: addresses, NQNs, the state of a run, sizes and tiers.

use dlfs::address::Address;
use dlfs::cache::{Environment, TierSpec};
use dlfs::dataset::load_state;
use dlfs::format::Uuid;
use dlfs::import::sources::{SourceKind, tar};
use dlfs::import::{OnError, PlacementOrder};
use dlfs::nvme::Nqn;
use dlfs::order::{EpochOrder, Population, Shard, State, Tail};
use dlfs::qpair::Cpus;
use dlfs::units::{Epoch, Generation, SampleId, parse_size};

use super::Target;

/// Addresses of images, in lists and alone, and NQNs.
pub const ADDRESS: Target = Target {
    name: "address",
    seeds: addresses,
    refit: None,
    run: address,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

/// The state of a run, as text and as file.
pub const STATE: Target = Target {
    name: "state",
    seeds: states,
    refit: None,
    run: state,
    heap_bytes: 1 << 20,
    rounds: 1000,
};

/// Sizes, tiers and their environment, processors, UUIDs and other words of options.
pub const OPTION: Target = Target {
    name: "option",
    seeds: options,
    refit: None,
    run: option,
    heap_bytes: 1 << 20,
    rounds: 3000,
};

fn bytes_of(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn addresses() -> Vec<Vec<u8>> {
    bytes_of(&[
        "train.dlfs",
        "a%2Cb.dlfs,/dev/nvme0n1",
        "nvme-tcp://127.0.0.1:4420/nqn.2026-11.io.dlfs:train?ns=1",
        "nvme-tcp://[::1]/nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef",
        "trtype:TCP adrfam:IPv4 traddr:10.0.0.1 trsvcid:4420 subnqn:nqn.2026-11.io.dlfs:train ns:2",
        "trtype:PCIe traddr:0000:04:00.0 ns:1,nvme-tcp://h:1/nqn.2026-11.io.dlfs:a",
        "nqn.2026-11.io.dlfs:train",
    ])
}

fn address(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(addresses) = Address::parse_list(text) {
        assert!(!addresses.is_empty(), "a list names something");
        let printed = Address::list_to_string(&addresses);
        assert_eq!(Address::parse_list(&printed).as_ref(), Ok(&addresses), "{text} as {printed}");
    }
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse().as_ref(), Ok(&address), "{text} as {address}");
        assert!(address.is_same_namespace(&address));
        if let Address::Spdk(address) = &address {
            let _ = address.needs_dma_memory();
        }
    }
    if let Ok(nqn) = Nqn::new(text) {
        assert_eq!(nqn.as_str(), text);
        assert_eq!(Nqn::from_field(&nqn.to_field()).as_ref(), Ok(&nqn), "{text}");
    }
    let mut field = [0; 256];
    let len = input.len().min(256);
    field[..len].copy_from_slice(&input[..len]);
    if let Ok(nqn) = Nqn::from_field(&field) {
        assert_eq!(nqn.to_field(), Nqn::new(nqn.as_str()).unwrap().to_field());
    }
}

fn states() -> Vec<Vec<u8>> {
    let state = |kind: &str, epoch: u64, consumed: u64| {
        let head = r#"{"version":1,"image":"000102030405060708090a0b0c0d0eff","generation":3"#;
        let tail = format!(r#""epoch":{epoch},"consumed":{consumed}"#);
        format!(r#"{head},"order":{{{kind},"seed":7}},{tail}}}"#)
    };
    let texts = [
        state(r#""kind":"partial","q":0.5,"world_size":8"#, 1, 512),
        state(r#""kind":"grouped","lanes":4,"group":2"#, 0, 0),
        state(r#""kind":"sequential","by":"slot""#, u64::MAX, 1),
        state(r#""kind":"global""#, 7, u64::MAX),
        state(r#""kind":"local","world_size":3"#, 7, 3),
    ];
    let of_view = r#"{"version":2,"image":"000102030405060708090a0b0c0d0eff","generation":3,
        "view":"0f0e0d0c0b0a09080706050403020100","order":{"kind":"global","seed":7},"epoch":1,"consumed":9}"#;
    let texts = texts.iter().map(String::as_str).chain([of_view]);
    texts.map(|text| text.as_bytes().to_vec()).collect()
}

fn state(input: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), input).unwrap();
    let loaded = load_state(file.path()).map(|state| state.expect("the file is there"));
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(state) = State::from_json(text) else {
        assert!(loaded.is_err(), "a file is believed no more than its text");
        return;
    };
    assert_eq!(loaded.expect("a file is believed as its text"), state);
    assert_eq!(State::from_json(&state.to_json()).unwrap(), state);
    let world_size = state.order.kind.world_size().unwrap_or(2);
    let view = state.view.map(|view| view.0);
    for len in [0, 1, 1000, u64::MAX] {
        let image = state.image.0;
        if state.check((image, view), state.generation, &state.order, world_size, len).is_ok() {
            assert!(state.consumed <= len, "a run goes on within its epoch");
            let _ = state.at(state.epoch, state.consumed, len);
        }
        let _ = state.check((image, view), Generation(1), &state.order, 1, len);
        let _ = state.at(Epoch(1), state.consumed, len);
    }
    let image = state.image.0;
    let len = Few.num_live();
    let checked = state.check((image, view), state.generation, &state.order, world_size, len);
    let goes_on = checked.is_ok();
    // A late epoch of a partial order is expensive, and is computed like an early one.
    if goes_on && state.epoch.0 < 1000 {
        go_on(&state, world_size);
    }
}

/// The rest of the epoch equals the end of the whole epoch's sequence.
fn go_on(state: &State, world_size: u32) {
    let mut order = EpochOrder::new(&state.order, state.epoch, &Few).unwrap();
    let len = order.len();
    let mut whole = Vec::new();
    let mut rest = Vec::new();
    order.ids(&Few, 0..len, &mut whole);
    order.ids(&Few, state.consumed..len, &mut rest);
    assert_eq!(rest, whole[state.consumed as usize..]);
    whole.sort_unstable();
    assert!(whole.iter().map(|id| id.0).eq(0..len), "every sample once an epoch");
    let ranks = [0, 1, world_size - 1].into_iter().filter(|&rank| rank < world_size);
    for (rank, tail) in ranks.flat_map(|rank| [(rank, Tail::Pad), (rank, Tail::Keep)]) {
        let shard = Shard::new(rank, world_size, tail).unwrap().after(state.consumed);
        let mut ids = Vec::new();
        order.ids(&Few, shard.positions(len).split_front(1000), &mut ids);
        assert!(ids.iter().all(|id| id.0 < len));
    }
}

/// Samples of a few chunks of different lengths, one of them empty.
struct Few;

const CHUNKS: [u32; 5] = [7, 0, 1, 20, 9];

impl Population for Few {
    fn num_live(&self) -> u64 {
        CHUNKS.iter().map(|&live| u64::from(live)).sum()
    }

    fn num_chunks(&self) -> u32 {
        CHUNKS.len() as u32
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        CHUNKS[chunk as usize]
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        assert!(nth < CHUNKS[chunk as usize]);
        SampleId(u64::from(CHUNKS[..chunk as usize].iter().sum::<u32>() + nth))
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        let mut end = 0;
        let holds = |&live: &u32| {
            end += u64::from(live);
            id.0 < end
        };
        CHUNKS.iter().position(holds).map(|chunk| chunk as u32)
    }
}

fn options() -> Vec<Vec<u8>> {
    bytes_of(&[
        "4096",
        "256MiB",
        "100MB",
        "18446744073709551615",
        "16E",
        "ram:4G",
        "file:/fast/cache:20G",
        "0,2-5",
        "00010203-0405-0607-0809-0a0b0c0d0eff",
        "first-touch",
        "webdataset",
        "skip",
        "-17",
        "policy = \"clairvoyant\"\ncopy_bandwidth = \"1G\"\norigin = [{threads = 1, mb_per_s = 100.5}]\n\
         [[tier]]\nbackend = \"memory\"\ncapacity = \"4G\"\nread = [{threads = 1, mb_per_s = 1.0}]\n\
         [[tier]]\nbackend = \"filesystem\"\npath = \"/x\"\ncapacity = \"20G\"\nthreads = 2\n\
         read = [{threads = 1, mb_per_s = 1.0}, {threads = 4, mb_per_s = 3e9}]\n",
    ])
}

fn option(input: &[u8]) {
    tar::parse_label(input);
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(size) = parse_size(text) {
        assert_eq!(parse_size(&size.to_string()), Ok(size), "{text}");
    }
    if let Ok(tier) = text.parse::<TierSpec>() {
        assert_eq!(tier.to_string().parse::<TierSpec>().unwrap(), tier, "{text}");
    }
    if let Ok(environment) = Environment::parse(text) {
        let printed = environment.to_toml();
        assert_eq!(Environment::parse(&printed).unwrap(), environment, "{text} as {printed}");
        environment.options().unwrap().check().unwrap();
        environment.stages().unwrap();
    }
    if let Ok(cpus) = Cpus::parse(text) {
        assert!(cpus.len() > 0, "processors to run on");
        assert_eq!(Cpus::parse(&cpus.to_string()).unwrap(), cpus, "{text}");
    }
    if let Ok(uuid) = text.parse::<Uuid>() {
        assert_eq!(uuid.to_string().parse::<Uuid>().ok(), Some(uuid), "{text}");
    }
    if let Ok(kind) = text.parse::<SourceKind>() {
        assert_eq!(kind.to_string(), text);
    }
    let _ = (text.parse::<OnError>(), text.parse::<PlacementOrder>());
    let _ = text.parse::<dlfs::tier::Policy>();
}
