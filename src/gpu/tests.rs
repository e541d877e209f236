//! Drivers and rings against the fake driver of `tests/fake_cuda`. Each test that opens a driver runs in a process of
//! its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlfs_base::buf::{HugePages, IoBuf, Pool, PoolOptions, Registered, Registrar, SharedBytes};
use dlfs_base::error::ErrorKind;
use dlfs_fake_cuda::{Fake, digest};

use super::*;
use alone::ran_alone;
use random::Random;

#[path = "../../tests/support/alone.rs"]
#[allow(dead_code, unreachable_pub)] // other tests use other parts of it
mod alone;
#[path = "../../tests/support/fork.rs"]
#[allow(dead_code, unreachable_pub)] // other tests use other parts of it
mod fork;
#[path = "../../tests/support/random.rs"]
#[allow(dead_code, unreachable_pub)] // other tests use other parts of it
mod random;

const MIB: usize = 1 << 20;

/// Time in which the thread that polls asks for a copy often: once a millisecond.
const MANY_QUERIES: Duration = Duration::from_millis(50);

// Codes of the driver.
const INVALID_HANDLE: u64 = 400;
const CAPTURE_UNSUPPORTED: u64 = 900;

fn pool(bytes: usize, slot_len_bytes: usize) -> Pool {
    Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages: HugePages::Auto }).unwrap()
}

fn cuda() -> &'static Driver {
    Driver::find(Pin::Cuda).unwrap().unwrap()
}

/// One array of all bytes.
fn whole(bytes: &[u8]) -> Parts<'_> {
    let mut parts = Parts::new();
    parts.begin();
    parts.push(bytes);
    parts
}

/// A free buffer, within a minute.
fn slot(ring: &Ring) -> Slot {
    ring.slot(Duration::from_secs(60)).unwrap().expect("a buffer")
}

/// Waits until `done`, a minute at most.
fn until(what: &str, done: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn auto_finds_only_a_driver_with_which_the_process_uses_a_device() {
    if ran_alone(auto_finds_only_a_driver_with_which_the_process_uses_a_device) {
        return;
    }
    let found = || Driver::find(Pin::Auto).unwrap();
    Fake::name("DLFS_CUDA_LIBRARY");
    assert!(found().is_none());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("fake_cuda") && !maps.contains("libcuda"), "nothing is opened");
    let fake = Fake::open();
    assert!(found().is_none(), "it is opened, and not used");
    fake.use_by_others(None);
    assert!(found().is_none(), "it is started, and no device is used");
    assert_eq!(fake.counts().devices, 0);
    fake.use_by_others(Some(1));
    let context = fake.current();
    let driver = found().expect("it is used");
    assert_eq!((driver.name(), driver.num_devices().unwrap()), ("cuda", 2));
    let pool = pool(MIB, 4096);
    pool.register(driver).unwrap();
    assert_eq!((fake.counts().devices, fake.current()), (2, context), "no other device is used");
    std::thread::spawn(move || {
        assert_eq!(fake.current(), 0);
        drop(pool); // in a thread without a context
        assert_eq!(fake.current(), 0);
    })
    .join()
    .unwrap();
    assert_eq!((fake.counts().registered_bytes, fake.violations()), (0, 0));
}

#[test]
fn a_driver_that_is_missing_or_is_none_is_named_with_the_reason() {
    if ran_alone(a_driver_that_is_missing_or_is_none_is_named_with_the_reason) {
        return;
    }
    if std::env::var_os("DLFS_CUDA_LIBRARY").is_some() {
        println!("SKIPPED: the environment names a driver");
        return;
    }
    for (pin, name) in [(Pin::Cuda, "libcuda.so.1"), (Pin::Hip, "libamdhip64.so")] {
        match Driver::find(pin) {
            Ok(driver) => println!("SKIPPED: there is {driver:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(error.to_string().contains(name), "{error}");
            }
        }
    }
}

#[test]
fn each_range_is_registered_and_unregistered_once_in_whatever_order_pools_are_dropped() {
    if ran_alone(each_range_is_registered_and_unregistered_once_in_whatever_order_pools_are_dropped)
    {
        return;
    }
    let fake = Fake::open();
    let mut random = Random::new(7);
    for round in 0..12 {
        let mut held: Vec<Box<dyn Send>> = Vec::new();
        let mut bytes = 0;
        for _ in 0..4 {
            let options = PoolOptions {
                bytes: [MIB, 3 * MIB, 8 * MIB, 70 * MIB][random.below(4) as usize],
                slot_len_bytes: 4096,
                huge_pages: if random.one_in(2) { HugePages::Auto } else { HugePages::Off },
            };
            let is_shared = random.one_in(3);
            let made = if is_shared { Pool::shared(options) } else { Pool::new(options) }.unwrap();
            made.register(cuda()).unwrap();
            assert_eq!(made.registered_bytes(), made.capacity_bytes());
            bytes += made.capacity_bytes() as u64;
            held.push(Box::new(made.take(5000).unwrap()));
            held.push(Box::new(made.outside(5000).unwrap())); // registered by itself
            held.push(Box::new(made));
        }
        let counts = fake.counts();
        assert!(counts.registered_bytes >= bytes + 4 * 5000, "round {round}: {counts:?}");
        random.shuffle(&mut held);
        drop(held);
        let counts = fake.counts();
        assert_eq!(counts.registered, counts.unregistered, "round {round}");
        assert_eq!((counts.registered_bytes, fake.violations()), (0, 0), "round {round}");
    }
}

#[test]
fn a_refused_registration_leaves_nothing_registered_and_the_pool_as_it_was() {
    if ran_alone(a_refused_registration_leaves_nothing_registered_and_the_pool_as_it_was) {
        return;
    }
    let fake = Fake::open();
    let pool = pool(100 * MIB, MIB);
    fake.refuse_registration(0);
    let error = pool.register(cuda()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("cuMemHostRegister_v2 failed with CUDA_ERROR_NOT_SUPPORTED")
    );
    let counts = fake.counts();
    assert_eq!((counts.registered, pool.registered_bytes()), (0, 0));
    let mut buf = pool.take(MIB).unwrap();
    buf.fill(3);
    let ring = Ring::new(cuda(), 0, 1).unwrap();
    let bytes = slot(&ring).upload(buf, |buf| whole(buf)).unwrap();
    bytes.wait().unwrap();
    assert!(fake.bytes(bytes.array(0).unwrap()).iter().all(|&byte| byte == 3));
    assert_eq!((fake.counts().pageable_bytes, fake.violations()), (MIB as u64, 0));
    let child = fork::in_child(|| {
        pool.take(4096).is_some_and(|mut buf| {
            buf[0] = 1;
            true
        })
    });
    assert!(child, "memory that is not registered is inherited");
}

#[test]
fn memory_that_others_registered_is_left_to_them_and_memory_for_reading_is_registered_as_such() {
    if ran_alone(
        memory_that_others_registered_is_left_to_them_and_memory_for_reading_is_registered_as_such,
    ) {
        return;
    }
    let fake = Fake::open();
    let both = pool(MIB, 4096);
    let start = both.address_of(0);
    assert_eq!(cuda().register(start, MIB).unwrap(), Registered::Ours);
    both.register(cuda()).unwrap();
    assert_eq!(both.registered_bytes(), MIB);
    let buf = both.take(MIB).unwrap();
    let ring = Ring::new(cuda(), 0, 1).unwrap();
    slot(&ring).upload(buf, |buf| whole(buf)).unwrap().wait().unwrap();
    assert_eq!((fake.counts().registered, fake.counts().pageable_bytes), (1, 0));
    cuda().unregister(start, MIB);
    drop((ring, both));
    assert_eq!((fake.counts().unregistered, fake.violations()), (1, 0));
    let written = SharedBytes::new(2 * MIB).unwrap();
    let file = written.file().try_clone_to_owned().unwrap();
    let read = SharedBytes::open(file, 2 * MIB, HugePages::Auto).unwrap();
    read.register(cuda()).unwrap();
    assert_eq!((read.registered_bytes(), fake.counts().registered), (2 * MIB, 2));
    drop(read);
    assert_eq!((fake.counts().unregistered, fake.violations()), (2, 0));
}

/// The fake driver aborts a forked child that calls it.
#[test]
fn a_forked_child_never_touches_the_driver_and_the_parent_goes_on() {
    if ran_alone(a_forked_child_never_touches_the_driver_and_the_parent_goes_on) {
        return;
    }
    let fake = Fake::open();
    let pool = pool(8 * MIB, 64 << 10);
    pool.register(cuda()).unwrap();
    let ring = Ring::new(cuda(), 0, 3).unwrap();
    for round in 0..20_u8 {
        let mut buf = pool.take(64 << 10).unwrap();
        buf.fill(round);
        let bytes = slot(&ring).upload(buf, |buf| whole(buf)).unwrap();
        let unused = slot(&ring);
        let outside = pool.outside(100).unwrap();
        let mut inherited = Some((unused, (bytes.clone(), outside, pool.clone())));
        let child = fork::in_child(|| {
            let (unused, others) = inherited.take().expect("the child takes it once");
            let refused = [
                bytes.ready_on(0).err(),
                bytes.wait().err(),
                ring.slot(Duration::ZERO).err(),
                unused.upload(vec![1; 100], |bytes| whole(bytes)).err(),
                Driver::find(Pin::Cuda).err(),
            ];
            drop(others);
            refused.iter().flatten().all(|error| error.kind() == ErrorKind::Unsupported)
                && refused.iter().all(Option::is_some)
                && Driver::find(Pin::Auto).unwrap().is_none()
                && pool.take(4096).is_none()
                && own_memory_works()
        });
        assert!(child, "round {round}");
        drop(inherited);
        bytes.ready_on(0).unwrap();
        bytes.wait().unwrap();
        assert_eq!(fake.bytes(bytes.array(0).unwrap()), vec![round; 64 << 10]);
    }
    drop((ring, pool));
    let counts = fake.counts();
    assert_eq!((counts.registered, counts.registered_bytes), (counts.unregistered, 0));
    assert_eq!((counts.allocations, counts.handles, fake.violations()), (0, 0, 0));
}

/// Takes and drops memory that a child has for itself.
fn own_memory_works() -> bool {
    let pool = pool(8 * MIB, 4096);
    let mut buf = pool.take(8 * MIB).unwrap();
    buf.fill(1);
    buf.iter().all(|&byte| byte == 1)
}

/// The process's end finds them in statics: the fake driver ends first, and aborts if anything was wrong.
#[test]
fn a_process_may_end_with_memory_registered_copies_under_way_and_batches_held() {
    if ran_alone(a_process_may_end_with_memory_registered_copies_under_way_and_batches_held) {
        return;
    }
    static KEPT: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());
    let _fake = Fake::open();
    let pool = pool(64 * MIB, MIB);
    pool.register(cuda()).unwrap();
    let ring = Ring::new(cuda(), 1, 8).unwrap();
    let upload = || slot(&ring).upload(pool.take(8 * MIB).unwrap(), |buf| whole(buf)).unwrap();
    let batches: Vec<_> = (0..8).map(|_| upload()).collect();
    batches[0].ready_on(0).unwrap();
    let mut kept = KEPT.lock().unwrap();
    kept.extend([Box::new(pool) as Box<dyn Send>, Box::new(ring), Box::new(batches)]);
}

/// A batch's host memory. When it is dropped, the next owner of the memory writes there.
struct Host {
    large: IoBuf,
    small: Vec<u8>,
    returned: Arc<AtomicU64>,
}

impl Host {
    fn new(pool: &Pool, random: &mut Random, returned: &Arc<AtomicU64>) -> Host {
        let len = 32768 + random.below(8192) as usize;
        let large = loop {
            match pool.take(len) {
                Some(large) => break large,
                None => std::thread::yield_now(), // copies return theirs
            }
        };
        let small = vec![0; 1 + random.below(300) as usize];
        let mut host = Host { large, small, returned: Arc::clone(returned) };
        host.mark(random.next_u64());
        host
    }

    /// Writes the bytes that the digest looks at.
    fn mark(&mut self, mark: u64) {
        for bytes in [&mut self.large[..], &mut self.small[..]] {
            let last = bytes.len() - 1;
            bytes[last] = (mark >> 56) as u8;
            bytes.iter_mut().step_by(509).zip(0..).for_each(|(byte, nth)| {
                *byte = (mark >> (nth % 8 * 8)) as u8 ^ nth as u8;
            });
        }
    }

    fn parts(&self) -> Parts<'_> {
        let mut parts = Parts::new();
        parts.begin();
        parts.push(&self.large);
        parts.begin();
        let (one, other) = self.small.split_at(self.small.len() / 2);
        parts.push(one);
        parts.push(other);
        parts
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.mark(0x5555_5555_5555_5555);
        self.returned.fetch_add(1, Ordering::Relaxed);
    }
}

/// A million by `DLFS_GPU_BATCHES=1000000`, in some 20 s.
#[test]
fn no_memory_is_used_after_its_end_whatever_batches_and_rings_do() {
    if ran_alone(no_memory_is_used_after_its_end_whatever_batches_and_rings_do) {
        return;
    }
    let batches = std::env::var("DLFS_GPU_BATCHES").map_or(30_000, |text| text.parse().unwrap());
    let seed = std::env::var("DLFS_GPU_SEED").map_or(1, |text| text.parse().unwrap());
    let fake = Fake::open();
    let began = Instant::now();
    let returned = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for ordinal in 0..2 {
            let returned = &returned;
            scope.spawn(move || consume(fake, ordinal, batches / 2, seed, returned));
        }
    });
    // Each thread has two streams of its own, as a framework has.
    until("all host memory returns, and all of the rings", || {
        let counts = fake.counts();
        returned.load(Ordering::Relaxed) == batches / 2 * 2
            && (counts.registered_bytes, counts.handles) == (0, 4)
    });
    let counts = fake.counts();
    println!("{batches} batches in {:?}: {counts:?}", began.elapsed());
    assert_eq!((counts.registered, counts.pageable_bytes), (counts.unregistered, 0));
    assert_eq!((counts.allocations, fake.violations()), (0, 0));
}

/// A consumer of one device: it holds some batches at a time, reads them by streams or on the host, drops them
/// anywhere, and now and then makes another ring.
fn consume(fake: Fake, ordinal: u32, batches: u64, seed: u64, returned: &Arc<AtomicU64>) {
    let mut random = Random::new(seed + u64::from(ordinal));
    fake.use_by_others(Some(ordinal));
    let context = fake.current();
    let streams = [fake.new_stream(), fake.new_stream(), 0];
    let pool = pool(2 * MIB, 40 << 10);
    pool.register(cuda()).unwrap();
    let mut ring = Ring::new(cuda(), ordinal, 8).unwrap();
    let mut held: VecDeque<DeviceBytes> = VecDeque::new();
    for _ in 0..batches {
        while held.len() > random.below(4) as usize {
            held.pop_front();
        }
        if random.one_in(5000) {
            ring = Ring::new(cuda(), ordinal, 1 + random.below(16) as usize).unwrap();
            held.truncate(random.below(2) as usize); // those of the old ring
        }
        while ring.slots() <= held.len() {
            held.pop_front();
        }
        let host = Host::new(&pool, &mut random, returned);
        let digests = [digest(&host.large), digest(&host.small)];
        let bytes = slot(&ring).upload(host, Host::parts).unwrap();
        let arrays = [bytes.array(0).unwrap(), bytes.array(1).unwrap()];
        match random.below(16) {
            0 => {} // dropped unread
            1 => {
                bytes.wait().unwrap();
                assert_eq!(digest(&fake.bytes(arrays[0])), digests[0]);
            }
            some => {
                let stream = streams[some as usize % 3];
                bytes.ready_on(stream).unwrap();
                for (array, digest) in arrays.into_iter().zip(digests) {
                    assert!(fake.expect(stream, array, digest));
                }
            }
        }
        if random.one_in(100) {
            let clone = bytes.clone();
            std::thread::spawn(move || drop(clone));
        }
        held.push_back(bytes);
    }
    assert_eq!(fake.current(), context);
}

#[test]
fn each_device_has_a_ring_of_its_own_and_the_threads_keep_their_contexts() {
    if ran_alone(each_device_has_a_ring_of_its_own_and_the_threads_keep_their_contexts) {
        return;
    }
    let fake = Fake::open();
    fake.use_by_others(Some(1));
    let context = fake.current();
    let pool = pool(MIB, 64 << 10);
    pool.register(cuda()).unwrap();
    for ordinal in [0, 1, 0] {
        let ring = Ring::new(cuda(), ordinal, 2).unwrap();
        let mut buf = pool.take(40_000).unwrap();
        buf.fill(7 + ordinal as u8);
        let bytes = slot(&ring).upload(buf, |buf| whole(buf)).unwrap();
        bytes.ready_on(0).unwrap();
        bytes.wait().unwrap();
        assert_eq!((bytes.ordinal(), bytes.len()), (ordinal, 40_000));
        assert_eq!(fake.bytes(bytes.array(0).unwrap()), [7 + ordinal as u8; 40_000]);
        drop((bytes, ring));
        assert_eq!(fake.current(), context);
    }
    let error = Ring::new(cuda(), 2, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().contains("CUDA_ERROR_INVALID_DEVICE")
            && error.to_string().contains("cuda:2")
    );
    assert_eq!((fake.counts().pageable_bytes, fake.violations()), (0, 0));
}

#[test]
fn rocm_is_called_by_its_own_names() {
    if ran_alone(rocm_is_called_by_its_own_names) {
        return;
    }
    let fake = Fake::open();
    Fake::name("DLFS_HIP_LIBRARY");
    let driver = Driver::find(Pin::Hip).unwrap().unwrap();
    let ring = Ring::new(driver, 0, 1).unwrap();
    let bytes = slot(&ring).upload(vec![5; 99], |bytes| whole(bytes)).unwrap();
    bytes.wait().unwrap();
    assert_eq!(fake.bytes(bytes.array(0).unwrap()), [5; 99]);
    fake.lose_after(0);
    drop(bytes);
    let error = slot(&ring).upload(vec![5; 99], |bytes| whole(bytes)).unwrap_err();
    assert!(error.to_string().contains("hipMemcpyHtoDAsync failed"), "{error}");
    assert!(error.to_string().contains("hip:0"), "{error}");
}

#[test]
fn short_slices_are_gathered_and_long_ones_are_read_from_where_they_are() {
    if ran_alone(short_slices_are_gathered_and_long_ones_are_read_from_where_they_are) {
        return;
    }
    let fake = Fake::open();
    let pool = pool(8 * MIB, 64 << 10);
    pool.register(cuda()).unwrap();
    let ring = Ring::new(cuda(), 0, 1).unwrap();
    let mut random = Random::new(3);
    for _ in 0..200 {
        // Arrays of slices of all lengths, and what they are together.
        let mut buf = pool.take(4 * MIB).unwrap();
        random.fill(&mut buf[..MIB]);
        let cuts: Vec<(usize, usize, bool)> = (0..random.below(20))
            .map(|_| {
                let len = [0, 1, 300, 32767, 32768, 70_000][random.below(6) as usize];
                (random.below(MIB as u64 - 70_000) as usize, len, random.one_in(3))
            })
            .collect();
        let mut expected: Vec<Vec<u8>> = vec![Vec::new()];
        for &(at, len, begins) in &cuts {
            if begins {
                expected.push(Vec::new());
            }
            expected.last_mut().unwrap().extend(&buf[at..at + len]);
        }
        let uploaded = slot(&ring).upload(buf, |buf| {
            let mut parts = Parts::new();
            parts.begin();
            for &(at, len, begins) in &cuts {
                if begins {
                    parts.begin();
                }
                parts.push(&buf[at..at + len / 2]);
                parts.push(&buf[at + len / 2..at + len]);
            }
            parts
        });
        let bytes = uploaded.unwrap();
        bytes.wait().unwrap();
        for (nth, expected) in expected.iter().enumerate() {
            let array = bytes.array(nth).unwrap();
            assert_eq!(array.0 % Parts::ALIGN as u64, bytes.address() % Parts::ALIGN as u64);
            assert!(fake.bytes(array) == *expected, "array {nth} of {cuts:?}");
        }
        assert!(bytes.array(expected.len()).is_none());
    }
    assert_eq!((fake.counts().pageable_bytes, fake.violations()), (0, 0));
    assert!(ring.staged_bytes() > 0 && fake.counts().copied_bytes > ring.staged_bytes());
}

#[test]
fn a_lost_device_is_an_error_for_all_and_host_memory_comes_back() {
    if ran_alone(a_lost_device_is_an_error_for_all_and_host_memory_comes_back) {
        return;
    }
    let fake = Fake::open();
    let pool = pool(2 * MIB, 40 << 10);
    pool.register(cuda()).unwrap();
    let ring = Arc::new(Ring::new(cuda(), 1, 3).unwrap());
    let returned = Arc::new(AtomicU64::new(0));
    let mut random = Random::new(5);
    fake.lose_after(100);
    let mut held: VecDeque<DeviceBytes> = VecDeque::new();
    let mut taken = 0;
    let error = loop {
        held.truncate(2);
        let slot = match ring.slot(Duration::from_secs(60)) {
            Ok(slot) => slot.expect("a buffer"),
            Err(error) => break error,
        };
        let host = Host::new(&pool, &mut random, &returned);
        taken += 1;
        match slot.upload(host, Host::parts) {
            Ok(bytes) => held.push_front(bytes),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{error}");
    assert!(error.to_string().contains("cuda:1"), "{error}");
    assert!(taken >= 50, "{taken} batches");
    // Waiters are woken, batches fail, and nothing waits for copies that never end.
    assert_eq!(ring.slot(Duration::from_secs(600)).err().unwrap().kind(), ErrorKind::DeviceLost);
    for bytes in &held {
        assert_eq!(bytes.ready_on(0).unwrap_err().kind(), ErrorKind::DeviceLost);
        assert_eq!(bytes.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
    }
    until("host memory comes back", || pool.free_bytes() == pool.capacity_bytes());
    assert_eq!(returned.load(Ordering::Relaxed), taken);
    drop((held, ring));
    assert_eq!(fake.violations(), 0);
}

#[test]
fn a_query_that_is_refused_during_a_capture_releases_no_memory_and_is_repeated() {
    if ran_alone(a_query_that_is_refused_during_a_capture_releases_no_memory_and_is_repeated) {
        return;
    }
    let fake = Fake::open();
    let pool = pool(MIB, 64 << 10);
    pool.register(cuda()).unwrap();
    let ring = Ring::new(cuda(), 0, 1).unwrap();
    let returned = Arc::new(AtomicU64::new(0));
    let mut random = Random::new(11);
    for round in 1..=3 {
        let free = slot(&ring);
        let host = Host::new(&pool, &mut random, &returned);
        let expected = digest(&host.large);
        fake.hold(true);
        fake.fail_events(CAPTURE_UNSUPPORTED);
        let bytes = free.upload(host, Host::parts).unwrap();
        std::thread::sleep(MANY_QUERIES);
        assert!(ring.slot(Duration::ZERO).unwrap().is_none(), "round {round}");
        assert_eq!(returned.load(Ordering::Relaxed), round - 1, "the copy is not done");
        fake.hold(false);
        std::thread::sleep(MANY_QUERIES);
        assert_eq!(returned.load(Ordering::Relaxed), round - 1, "nobody knows that it is done");
        fake.fail_events(0);
        bytes.wait().unwrap();
        assert_eq!(digest(&fake.bytes(bytes.array(0).unwrap())), expected, "round {round}");
        until("host memory comes back", || returned.load(Ordering::Relaxed) == round);
    }
    drop(ring);
    assert_eq!((fake.counts().handles, fake.violations()), (0, 0));
}

#[test]
fn a_query_that_fails_makes_the_ring_unusable_and_memory_stays_until_the_copy_is_done() {
    if ran_alone(a_query_that_fails_makes_the_ring_unusable_and_memory_stays_until_the_copy_is_done)
    {
        return;
    }
    let fake = Fake::open();
    let pool = pool(MIB, 64 << 10);
    pool.register(cuda()).unwrap();
    let ring = Ring::new(cuda(), 0, 2).unwrap();
    let returned = Arc::new(AtomicU64::new(0));
    let host = Host::new(&pool, &mut Random::new(12), &returned);
    let free = slot(&ring);
    fake.hold(true);
    let bytes = free.upload(host, Host::parts).unwrap();
    fake.fail_events(INVALID_HANDLE);
    until("the ring fails", || ring.slot(Duration::ZERO).is_err());
    let error = ring.slot(Duration::ZERO).err().expect("the ring has failed");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("CUDA_ERROR_INVALID_HANDLE (400)"), "{error}");
    assert_eq!(returned.load(Ordering::Relaxed), 0, "the copy is not done");
    fake.fail_events(0);
    std::thread::sleep(MANY_QUERIES);
    assert_eq!(returned.load(Ordering::Relaxed), 0, "the copy is not done");
    fake.hold(false);
    until("host memory comes back", || returned.load(Ordering::Relaxed) == 1);
    bytes.wait().unwrap();
    assert!(ring.slot(Duration::ZERO).is_err(), "it remains unusable");
    drop((bytes, ring));
    assert_eq!((fake.counts().handles, fake.violations()), (0, 0));
}

#[test]
fn an_upload_that_fails_and_cannot_wait_for_its_copies_leaves_their_memory_alone() {
    if ran_alone(an_upload_that_fails_and_cannot_wait_for_its_copies_leaves_their_memory_alone) {
        return;
    }
    let fake = Fake::open();
    let pool = pool(MIB, 64 << 10);
    pool.register(cuda()).unwrap();
    let ring = Ring::new(cuda(), 0, 1).unwrap();
    let returned = Arc::new(AtomicU64::new(0));
    let mut random = Random::new(13);
    let mut upload = || {
        fake.refuse_copies(1); // the large array is taken, the small one is not
        let host = Host::new(&pool, &mut random, &returned);
        let error = slot(&ring).upload(host, Host::parts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    };
    upload();
    assert_eq!(returned.load(Ordering::Relaxed), 1, "it has waited for the copy");
    drop(slot(&ring));
    fake.hold(true);
    fake.fail_events(CAPTURE_UNSUPPORTED);
    upload();
    assert_eq!(returned.load(Ordering::Relaxed), 1, "the copy is not done");
    let error = ring.slot(Duration::ZERO).err().expect("the ring has failed");
    assert!(error.to_string().contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)"), "{error}");
    drop((ring, pool));
    fake.hold(false);
    fake.fail_events(0);
    std::thread::sleep(MANY_QUERIES);
    assert_eq!((returned.load(Ordering::Relaxed), fake.violations()), (1, 0));
}

/// The fake driver counts calls that invalidate the graph of another thread.
#[test]
fn registering_and_copying_leave_a_graph_alone_that_another_thread_captures() {
    if ran_alone(registering_and_copying_leave_a_graph_alone_that_another_thread_captures) {
        return;
    }
    let fake = Fake::open();
    cuda().use_device(0).unwrap();
    fake.capture(true);
    let pool = pool(MIB, 64 << 10);
    pool.register(cuda()).unwrap();
    let ring = Ring::new(cuda(), 0, 2).unwrap();
    for round in 0..20_u8 {
        let len = 3000 * (usize::from(round) + 1); // staged, then in place
        let mut buf = pool.take(len).unwrap();
        buf.fill(round);
        let bytes = slot(&ring).upload(buf, |buf| whole(buf)).unwrap();
        bytes.wait().unwrap();
        assert_eq!(fake.bytes(bytes.array(0).unwrap()), vec![round; len]);
    }
    drop(ring);
    assert_eq!((fake.counts().handles, fake.violations()), (0, 0));
}

#[test]
fn without_memory_on_the_device_a_batch_fails_and_the_next_ones_go_on() {
    if ran_alone(without_memory_on_the_device_a_batch_fails_and_the_next_ones_go_on) {
        return;
    }
    let fake = Fake::open();
    fake.use_by_others(Some(0));
    let ring = Ring::new(cuda(), 0, 1).unwrap();
    let upload = |len| slot(&ring).upload(vec![1; len], |bytes| whole(bytes));
    let mut failed = 0;
    for round in 0..60 {
        if round % 3 == 0 {
            fake.fail_allocation(0);
        }
        // Each is longer than all before: the buffer grows while a stream still reads it.
        let len = 100_000 * (round + 1);
        match upload(len) {
            Ok(bytes) => {
                bytes.ready_on(0).unwrap();
                let array = bytes.array(0).unwrap();
                let digest = digest(&vec![1; len]);
                (0..50).for_each(|_| assert!(fake.expect(0, array, digest)));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                failed += 1;
            }
        }
        fake.fail_allocation(u64::MAX);
    }
    assert!(failed >= 3, "{failed} failures");
    upload(10).unwrap().wait().unwrap();
    drop(ring);
    assert_eq!((fake.counts().allocations, fake.violations()), (0, 0));
}

#[test]
fn a_ring_takes_memory_that_is_there_before_it_takes_more() {
    if ran_alone(a_ring_takes_memory_that_is_there_before_it_takes_more) {
        return;
    }
    let fake = Fake::open();
    let ring = Ring::new(cuda(), 0, 4).unwrap();
    for _ in 0..20 {
        let batch = slot(&ring).upload(vec![1; 10], |bytes| whole(bytes)).unwrap();
        let others: Vec<Slot> = (0..3).map(|_| slot(&ring)).collect();
        drop(batch);
        let used = slot(&ring); // the last one, once it is back
        drop(others);
        drop(used); // behind those without memory
        assert_eq!(fake.counts().allocations, 1);
    }
    drop(ring);
    assert_eq!((fake.counts().allocations, fake.violations()), (0, 0));
}

#[test]
fn a_full_ring_makes_wait_and_a_dropped_batch_makes_room() {
    if ran_alone(a_full_ring_makes_wait_and_a_dropped_batch_makes_room) {
        return;
    }
    let fake = Fake::open();
    let ring = Ring::new(cuda(), 0, 2).unwrap();
    let upload = || slot(&ring).upload(vec![1; 10], |bytes| whole(bytes)).unwrap();
    let first = upload();
    let second = upload();
    let limit = Duration::from_millis(20);
    assert!(ring.slot(Duration::ZERO).unwrap().is_none());
    assert!(ring.slot(limit).unwrap().is_none());
    let error = ring.full(limit);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("2 buffers") && error.to_string().contains("cuda:0"));
    let other = std::thread::spawn(move || {
        std::thread::sleep(limit);
        drop(first);
    });
    drop(slot(&ring));
    other.join().unwrap();
    drop(ring);
    second.wait().unwrap();
    assert_eq!(fake.bytes(second.array(0).unwrap()), [1; 10], "a batch outlives its ring");
    drop(second);
    assert_eq!((fake.counts().handles, fake.violations()), (0, 0));
    assert!(Ring::new(cuda(), 0, 0).is_err());
}
