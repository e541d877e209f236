//! The NVMe/TCP engine against a target that lies: every lie is refused or survived, no wrong byte
//! is accepted, nothing panics and nothing waits for ever.

use std::time::{Duration, Instant};

use crate::support::contract::{Driver, read};
use crate::support::hostile_target::{HostileTarget, Misbehaviour, Step, identify_controller};
use crate::support::random::Random;
use crate::support::short_timeouts::{
    LEN, bytes, hasty, one, opened, patient, refusal, short_timeouts,
};
use dlfs::ErrorKind;
use dlfs::nvme::fabrics::DiscoveryLogHeader;
use dlfs::nvme::identify::{IDENTIFY_LEN_BYTES, IdentifyNamespace};
use dlfs::nvme::{Cqe, IdentifyController, Status};
use dlfs::qpair::tcp::discover;
use dlfs::qpair::{ConnectOptions, IoError, IoOp, open};
use dlfs::tcp::Digests;
use dlfs::tcp::pdu::{C2HData, CapsuleResp, FLAG_LAST_PDU, Form, IcResp, R2T, put_term_req};
use zerocopy::{FromZeros as _, IntoBytes as _};

fn with_digests(options: ConnectOptions) -> ConnectOptions {
    ConnectOptions { hdr_digest: true, data_digest: true, ..options }
}

/// The ways in which an answer to a read is wrong.
fn lies() -> Vec<Misbehaviour> {
    let r2t = |len| {
        let mut bytes = Vec::new();
        Form::default().put(&mut bytes, &R2T::new(0, 1, 0, len, Form::default()));
        bytes
    };
    vec![
        Misbehaviour::WrongCid(1),
        Misbehaviour::WrongCid(0x1000),
        Misbehaviour::WrongCid(0x8000),
        Misbehaviour::WrongCompletionCid(1),
        Misbehaviour::WrongCompletionCid(0x1000),
        Misbehaviour::WrongCompletionCid(0xFFFF),
        Misbehaviour::DoubleCompletion,
        Misbehaviour::DoubleData,
        Misbehaviour::WrongOffset(4),
        Misbehaviour::WrongOffset(512),
        Misbehaviour::WrongOffset(0u32.wrapping_sub(512)),
        Misbehaviour::TooMuchData(4),
        Misbehaviour::TooMuchData(64 << 10),
        Misbehaviour::SuccessWithoutLast,
        Misbehaviour::R2tForRead,
        Misbehaviour::CloseInData,
        Misbehaviour::CloseIo,
        Misbehaviour::HangIo,
        Misbehaviour::TermReq(0),
        Misbehaviour::TermReq(3),
        Misbehaviour::TermReq(u16::MAX),
        Misbehaviour::GarbageIo(vec![0; 24]),
        Misbehaviour::GarbageIo(vec![0xFF; 24]),
        Misbehaviour::GarbageIo(vec![7, 12, 24, 24, 0xFF, 0xFF, 0xFF, 0xFF]),
        Misbehaviour::GarbageIo(vec![7, 12, 24, 24, 24, 0, 0, 0]),
        Misbehaviour::GarbageIo(vec![5, 0, 255, 0, 255, 0, 0, 0]),
        Misbehaviour::GarbageIo(IcResp::new(Digests::default(), 4096).as_bytes().to_vec()),
        Misbehaviour::GarbageIo(r2t(0)),
        Misbehaviour::GarbageIo(r2t(u32::MAX)),
        Misbehaviour::WrongHeaderDigest,
    ]
}

#[test]
fn a_single_protocol_violation_costs_a_connection_and_no_read() {
    for options in [short_timeouts(), with_digests(short_timeouts())] {
        for len in [4096, 64 << 10] {
            for misbehaviour in lies() {
                let expected = bytes(1);
                let target = HostileTarget::start(expected.clone());
                let device = opened(&target.address(), &options);
                let mut driver = Driver::new(&*device);
                one(&mut driver, read(0, 512)).result.unwrap();
                target.behave(misbehaviour.clone(), Some(1));
                for round in 0..2 {
                    let ios = (0..6).map(|i| read(i * 128, len)).collect();
                    for (sent, completion) in driver.run(ios) {
                        let at = sent.slba.0 as usize * 512;
                        completion
                            .result
                            .unwrap_or_else(|e| panic!("{misbehaviour:?}, {round}: {e}"));
                        assert!(
                            *completion.buf == expected[at..at + len],
                            "{misbehaviour:?} at {at}"
                        );
                    }
                }
                assert_eq!(target.misbehaved(), 1, "{misbehaviour:?}");
            }
        }
    }
}

#[test]
fn a_target_that_always_violates_the_protocol_is_an_error_in_bounded_time() {
    // Concurrently, since a host backs off from a target that fails.
    std::thread::scope(|scope| {
        for misbehaviour in
            lies().into_iter().filter(|misbehaviour| *misbehaviour != Misbehaviour::HangIo)
        {
            scope.spawn(move || always_lies(&misbehaviour));
        }
    });
}

fn always_lies(misbehaviour: &Misbehaviour) {
    let expected = bytes(2);
    let target = HostileTarget::start(expected.clone());
    let device = opened(&target.address(), &with_digests(short_timeouts()));
    let mut driver = Driver::new(&*device);
    target.behave(misbehaviour.clone(), None);
    for (sent, completion) in driver.run((0..4).map(|i| read(i * 8, 4096)).collect()) {
        let at = sent.slba.0 as usize * 512;
        match completion.result {
            // A read may be correct before the lie: data, then an extra completion.
            Ok(()) => assert!(*completion.buf == expected[at..at + 4096], "{misbehaviour:?}"),
            Err(error) => {
                assert!(matches!(error, IoError::Disconnected(_)), "{misbehaviour:?}: {error}")
            }
        }
    }
    target.be_good();
    let completion = one(&mut driver, read(0, 4096));
    assert!(completion.result.is_ok() && *completion.buf == expected[..4096], "{misbehaviour:?}");
}

#[test]
fn success_with_too_few_bytes_is_a_short_read_and_others_go_on() {
    for options in [patient(), with_digests(patient())] {
        for found in [0, 4, 512, 4092] {
            for misbehaviour in
                [Misbehaviour::ShortSuccess(found), Misbehaviour::ShortCapsule(found)]
            {
                let target = HostileTarget::start(bytes(3));
                let device = open(&target.address(), &options).unwrap();
                let mut driver = Driver::new(&*device);
                target.behave(misbehaviour, Some(1));
                let ios = (0..8).map(|i| read(i * 8, 4096)).collect();
                let done = driver.run(ios);
                let failed: Vec<_> =
                    done.iter().filter_map(|(_, c)| c.result.clone().err()).collect();
                assert_eq!(failed, [IoError::Short { expected: 4096, found: found.into() }]);
            }
        }
    }
}

#[test]
fn a_wrong_data_digest_fails_that_read_and_keeps_the_connection() {
    let target = HostileTarget::start(bytes(4));
    let device = open(&target.address(), &with_digests(patient())).unwrap();
    let mut driver = Driver::new(&*device);
    let before = target.accepted();
    for len in [4096, 64 << 10] {
        target.behave(Misbehaviour::WrongDataDigest, Some(1));
        assert_eq!(one(&mut driver, read(0, len)).result, Err(IoError::DataDigest));
        one(&mut driver, read(0, len)).result.unwrap();
    }
    assert_eq!(target.accepted(), before);
}

#[test]
fn a_stream_of_single_bytes_is_read_like_any_other() {
    let expected = bytes(5);
    let target = HostileTarget::start(expected.clone());
    let device = open(&target.address(), &with_digests(patient())).unwrap();
    let mut driver = Driver::new(&*device);
    target.behave(Misbehaviour::OneByteAtATime, None);
    for len in [512, 20 << 10] {
        let completion = one(&mut driver, read(0, len));
        completion.result.unwrap();
        assert!(*completion.buf == expected[..len]);
    }
}

#[test]
pub fn false_r2ts_get_no_data_and_the_write_is_not_issued_again() {
    let lies = [
        Misbehaviour::R2t { offset: 0, len: 0 },
        Misbehaviour::R2t { offset: 512, len: 512 },
        Misbehaviour::R2t { offset: 0, len: u32::MAX },
        Misbehaviour::R2t { offset: u32::MAX, len: 2 },
        Misbehaviour::TwoR2ts,
        Misbehaviour::DataForWrite,
    ];
    for misbehaviour in lies {
        let expected = bytes(6);
        let target = HostileTarget::start(expected.clone());
        let device = opened(&target.address(), &short_timeouts());
        let mut driver = Driver::new(&*device);
        target.behave(misbehaviour.clone(), Some(1));
        let mut io = read(0, 64 << 10);
        io.op = IoOp::Write;
        let result = one(&mut driver, io).result;
        assert!(matches!(result, Err(IoError::Disconnected(_))), "{misbehaviour:?}: {result:?}");
        assert!(target.bytes() == expected, "{misbehaviour:?}");
        one(&mut driver, read(0, 512)).result.unwrap();
    }
}

#[test]
pub fn every_invalid_ic_resp_is_refused_with_the_reason() {
    let good = IcResp::new(Digests::default(), 131_072);
    let spoil = |edit: fn(&mut IcResp)| {
        let mut resp = good;
        edit(&mut resp);
        resp.as_bytes().to_vec()
    };
    for (resp, reason) in [
        (spoil(|r| r.pfv = 1.into()), "offset 8"),
        (spoil(|r| r.cpda = 32), "offset 10"),
        (spoil(|r| r.dgst = 1), "offset 11"),
        (spoil(|r| r.dgst = 2), "offset 11"),
        (spoil(|r| r.maxh2cdata = 0.into()), "offset 12"),
        (spoil(|r| r.maxh2cdata = 4095.into()), "offset 12"),
        (spoil(|r| r.maxh2cdata = u32::MAX.into()), "offset 12"),
        (spoil(|r| r.ch.hlen = 127), "header length"),
        (spoil(|r| r.ch.plen = 129.into()), "PDU length"),
        (vec![0xFF; 128], "PDU type FFh"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "PDU type 48h"),
        (
            vec![3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            "terminated",
        ),
    ] {
        let target = HostileTarget::start(bytes(7));
        target.behave(Misbehaviour::IcResp(resp), None);
        let error = refusal(&target.address(), &patient());
        assert!(error.report().contains(reason), "{reason}: {}", error.report());
    }
    let target = HostileTarget::start(bytes(7));
    target.behave(Misbehaviour::IcResp(good.as_bytes().to_vec()), None);
    let error = open(&target.address(), &with_digests(patient())).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.report().contains("--hdr-digest"), "{}", error.report());
}

#[test]
fn garbage_at_any_step_of_connecting_is_refused() {
    let seed = 8;
    let mut random = Random::new(seed);
    for step in Step::ALL {
        let mut garbage = vec![vec![0; 64], vec![0xFF; 64]];
        let mut noise = vec![0; 200];
        random.fill(&mut noise);
        garbage.push(noise);
        // A capsule for an unknown command, and data and an R2T for one without data.
        let form = Form::default();
        let cqe: [u8; 16] = zerocopy::transmute!(Cqe::new(0x0BAD, Status::SUCCESS));
        let mut capsule = Vec::new();
        form.put(&mut capsule, &CapsuleResp::new(cqe, form));
        let mut data = Vec::new();
        form.put(&mut data, &C2HData::new(0, 0, 8, FLAG_LAST_PDU, form));
        data.extend_from_slice(&[0; 8]);
        let mut r2t = Vec::new();
        form.put(&mut r2t, &R2T::new(0, 1, 0, 1024, form));
        garbage.extend([capsule, data, r2t]);
        for bytes_sent in garbage {
            let target = HostileTarget::start(bytes(9));
            target.behave(Misbehaviour::Garbage(step, bytes_sent.clone()), None);
            let address = target.address();
            let result = open(&address, &hasty()).and_then(|device| device.queue_pair().map(drop));
            // The namespace list is not requested if the address names a namespace.
            assert!(result.is_err() || step == Step::NamespaceList, "{step:?}: {bytes_sent:?}");
        }
    }
}

#[test]
pub fn every_impossible_identify_page_is_refused_and_odd_ones_are_not() {
    let controller = |edit: fn(&mut IdentifyController)| {
        let mut id = identify_controller();
        edit(&mut id);
        (Step::IdentifyController, id.as_bytes().to_vec())
    };
    let namespace = |edit: fn(&mut IdentifyNamespace)| {
        let mut id = IdentifyNamespace::new(LEN as u64 / 512, 512, [0xE7; 16], false);
        edit(&mut id);
        (Step::IdentifyNamespace, id.as_bytes().to_vec())
    };
    let refused = [
        controller(|id| id.icdoff = 1.into()),
        controller(|id| id.ioccsz = 3.into()),
        controller(|id| id.sgls = 0.into()),
        controller(|id| id.sqes = 0x77),
        namespace(|id| id.nsze = 0.into()),
        namespace(|id| id.nsze = u64::MAX.into()),
        namespace(|id| id.lbaf[0].lbads = 0),
        namespace(|id| id.lbaf[0].lbads = 8),
        namespace(|id| id.lbaf[0].lbads = 13),
        namespace(|id| id.lbaf[0].lbads = 63),
        namespace(|id| id.lbaf[0].lbads = 255),
        namespace(|id| id.lbaf[0].ms = 8.into()),
        namespace(|id| id.flbas = 0x6F),
        namespace(|id| id.dps = 1),
        (Step::IdentifyController, vec![0xFF; IDENTIFY_LEN_BYTES]),
        (Step::IdentifyNamespace, vec![0xFF; IDENTIFY_LEN_BYTES]),
        (Step::IdentifyNamespace, vec![0; IDENTIFY_LEN_BYTES]),
        (Step::IdentifyNamespace, vec![0; 4]),
    ];
    for (step, page) in refused {
        let target = HostileTarget::start(bytes(10));
        target.behave(Misbehaviour::Page(step, page.clone()), None);
        let error = refusal(&target.address(), &patient());
        assert!(error.report().contains("Identify"), "{step:?}: {}", error.report());
    }
    let odd = [
        controller(|id| id.mdts = 0),
        controller(|id| id.mdts = 255),
        controller(|id| id.ioccsz = u32::MAX.into()),
        controller(|id| id.maxcmd = 1.into()),
        controller(|id| (id.sn, id.mn) = ([0xFF; 20], [7; 40])),
        controller(|id| id.subnqn = [b'x'; 256]),
        controller(|id| id.nn = 0.into()),
        controller(|id| id.oaes = u32::MAX.into()),
        namespace(|id| id.nmic = 0xFF),
        (Step::NamespaceDescriptors, vec![0xFF; IDENTIFY_LEN_BYTES]),
        (Step::NamespaceDescriptors, vec![1; IDENTIFY_LEN_BYTES]),
        (Step::NamespaceList, vec![0xFF; IDENTIFY_LEN_BYTES]),
    ];
    for (step, page) in odd {
        let expected = bytes(11);
        let target = HostileTarget::start(expected.clone());
        target.behave(Misbehaviour::Page(step, page), None);
        let device = open(&target.address(), &patient()).unwrap();
        let namespace = device.namespace();
        assert!((4096..=1 << 20).contains(&namespace.max_transfer_bytes), "{namespace:?}");
        let completion = one(&mut Driver::new(&*device), read(0, 4096));
        assert!(completion.result.is_ok() && *completion.buf == expected[..4096], "{step:?}");
    }
}

#[test]
fn bytes_sent_together_with_icresp_cost_a_connection_and_nothing_else() {
    let resp = IcResp::new(Digests::default(), 128 << 10).as_bytes().to_vec();
    let mut term = Vec::new();
    put_term_req(&mut term, false, 2, 8, &[]);
    let unasked = CapsuleResp::new([0; 16], Form::default()).as_bytes().to_vec();
    let more = [vec![0; 24], vec![0xFF; 24], vec![7], resp.clone(), term, unasked];
    let expected = bytes(21);
    for more in more {
        // On the admin queue: opening makes one attempt, and fails with the reason.
        let target = HostileTarget::start(expected.clone());
        let segment = [&resp[..], &more].concat();
        target.behave(Misbehaviour::IcResp(segment.clone()), None);
        let error = refusal(&target.address(), &hasty());
        println!("{more:02x?}: {error}");
        // On an I/O queue: it reconnects.
        target.be_good();
        let device = opened(&target.address(), &short_timeouts());
        target.behave(Misbehaviour::IcResp(segment.clone()), Some(1));
        let mut driver = Driver::new(&*device);
        assert!(*one(&mut driver, read(0, 4096)).buf == expected[..4096]);
        // During reads, on whichever queue reconnects first.
        for _ in 0..3 {
            target.behave(Misbehaviour::IcResp(segment.clone()), Some(1));
            target.cut();
            for (sent, completion) in driver.run((0..6).map(|i| read(i * 8, 4096)).collect()) {
                completion.result.unwrap();
                let at = sent.slba.0 as usize * 512;
                assert!(*completion.buf == expected[at..at + 4096]);
            }
        }
        // Permanently: an error before the controller is given up.
        let options =
            ConnectOptions { ctrl_loss_tmo: Duration::from_millis(300), ..short_timeouts() };
        let device = opened(&target.address(), &options);
        let mut driver = Driver::new(&*device);
        target.behave(Misbehaviour::IcResp(segment), None);
        target.cut();
        let result = one(&mut driver, read(0, 4096)).result;
        assert!(matches!(result, Err(IoError::Disconnected(_))), "{result:?}");
    }
}

#[test]
pub fn an_impossible_discovery_log_is_refused_in_bounded_time() {
    let ask = |target: &HostileTarget| {
        let address = target.local_addr();
        discover(&address.ip().to_string(), address.port(), &patient())
    };
    let target = HostileTarget::start(bytes(12));
    assert_eq!(ask(&target).unwrap().len(), 0);
    for num_records in [4097, u64::MAX] {
        let mut header = DiscoveryLogHeader::new_zeroed();
        header.numrec.set(num_records);
        target.behave(Misbehaviour::Page(Step::DiscoveryLog, header.as_bytes().to_vec()), Some(1));
        let error = ask(&target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.report());
    }
    let mut header = DiscoveryLogHeader::new_zeroed();
    header.recfmt.set(1);
    target.behave(Misbehaviour::Page(Step::DiscoveryLog, header.as_bytes().to_vec()), Some(1));
    assert_eq!(ask(&target).unwrap_err().kind(), ErrorKind::Unsupported);
    target.behave(Misbehaviour::RestlessLog(3), None);
    assert_eq!(ask(&target).unwrap_err().kind(), ErrorKind::Busy);
}

#[test]
fn endless_events_disturb_nothing_and_a_shrunken_namespace_is_refused() {
    const NAMESPACE_CHANGED: u32 = 2 | 4 << 16;
    const ANA_CHANGED: u32 = 2 | 3 << 8 | 0x0C << 16;
    let expected = bytes(13);
    let mut controller = identify_controller();
    controller.oaes = u32::MAX.into();
    for dw0 in [NAMESPACE_CHANGED, ANA_CHANGED, 0, 7 | 0xFF << 8, u32::MAX] {
        let target = HostileTarget::start(expected.clone());
        let page = controller.as_bytes().to_vec();
        target.behave(Misbehaviour::Page(Step::IdentifyController, page), None);
        target.behave(Misbehaviour::Event(dw0), None);
        let started = Instant::now();
        let device = open(&target.address(), &patient()).unwrap();
        let mut driver = Driver::new(&*device);
        for i in 0..200 {
            let completion = one(&mut driver, read(i, 4096));
            completion.result.unwrap();
            assert!(*completion.buf == expected[i as usize * 512..][..4096], "{dw0:08X}");
        }
        // At most one event is processed per 20 ms, however fast they come; one page was sent
        // before.
        let misbehaved = target.misbehaved();
        let most = started.elapsed().as_millis() as usize / 20 + 2;
        assert!(misbehaved <= most + 1, "{misbehaved} of {most}");
        if dw0 == NAMESPACE_CHANGED {
            target.replace([&expected[..], &expected[..]].concat(), [0xE7; 16]);
            one(&mut driver, read(0, 4096)).result.unwrap(); // it has grown; the old size is still used
            target.replace(expected[..LEN / 2].to_vec(), [0xE7; 16]);
            let reason = loop {
                match one(&mut driver, read(0, 4096)).result {
                    Ok(()) => assert!(started.elapsed() < Duration::from_secs(60)),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(reason.contains("another namespace"), "{reason}");
        }
    }
}
