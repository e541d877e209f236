//! What people and files write: addresses, qualified names, the state of a run.

use dlfs::nvme::{Address, Nqn};
use dlfs::order::State;

pub(crate) fn texts() -> Vec<Vec<u8>> {
    let texts = [
        "train.dlfs",
        "a%2Cb.dlfs,/dev/nvme0n1",
        "nvme-tcp://127.0.0.1:4420/nqn.2026-11.io.dlfs:train?ns=1",
        "nvme-tcp://[::1]/nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef",
        "trtype:TCP adrfam:IPv4 traddr:10.0.0.1 trsvcid:4420 subnqn:nqn.2026-11.io.dlfs:train ns:2",
        "nqn.2026-11.io.dlfs:train",
        concat!(
            r#"{"version":1,"image":"000102030405060708090a0b0c0d0eff","generation":3,"#,
            r#""order":{"kind":"partial","q":0.5,"world_size":8,"seed":7},"epoch":1,"consumed":512}"#
        ),
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub(crate) fn parse(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(addresses) = Address::parse_list(text) {
        let printed = Address::list_to_string(&addresses);
        assert_eq!(Address::parse_list(&printed).as_ref(), Ok(&addresses), "{text} as {printed}");
    }
    if let Ok(nqn) = Nqn::new(text) {
        assert_eq!(nqn.as_str(), text);
    }
    if let Ok(state) = State::from_json(text) {
        assert_eq!(State::from_json(&state.to_json()).unwrap(), state);
    }
}
