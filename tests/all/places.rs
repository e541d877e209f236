//! Object stores, read over real sockets: good ones, and one that does everything wrong.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::places::{Cancel, Client, Object, Place, PlaceOptions, Reader};

use crate::support::object_store::{Fault, ObjectStore, Request, bytes_of, mix, wait_until};

fn open(options: &PlaceOptions) -> Client {
    Client::open(&Place::parse("s3://bucket/").unwrap(), options).unwrap()
}

fn listed(client: &Client, prefix: &str) -> Vec<Object> {
    let mut objects = Vec::new();
    let push = &mut |object| {
        objects.push(object);
        Ok(())
    };
    assert_eq!(client.list(prefix, push).unwrap(), Vec::<String>::new());
    objects
}

fn read(client: &Client, object: &Object) -> dlfs::Result<Vec<u8>> {
    let mut bytes = vec![0; object.len_bytes as usize];
    client.fetch(object, 0..object.len_bytes).read_into(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn objects_are_listed_and_read_in_order_each_range_of_the_listed_version() {
    let store = ObjectStore::good();
    let lens = [0, 1, 4095, 64 << 10, (64 << 10) + 1, 300_000];
    for (number, len) in lens.into_iter().enumerate() {
        store.put(&format!("train/{number}"), bytes_of(number as u64, len));
    }
    store.put("train2/x", "other");
    let options =
        PlaceOptions { range_bytes: 64 << 10, window_bytes: 200 << 10, ..store.options() };
    let client = open(&options);
    let objects = listed(&client, "train/");
    assert_eq!(objects.iter().map(|object| object.len_bytes as usize).collect::<Vec<_>>(), lens);
    let mut reader = Reader::new(client.clone(), objects.clone());
    for (number, len) in lens.into_iter().enumerate() {
        assert_eq!(reader.next_object(), Some(&objects[number]));
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, bytes_of(number as u64, len), "object {number}");
    }
    assert_eq!(reader.next_object(), None);
    assert_eq!(store.state().unconditional.load(Ordering::Relaxed), 0);
    let mut part = [0; 1000];
    client.fetch(&objects[5], 123_456..124_456).read_into(&mut part).unwrap();
    assert_eq!(part[..], bytes_of(5, lens[5])[123_456..124_456]);
    assert_eq!(client.head("train/4").unwrap(), objects[4]);
    assert_eq!(client.head("none").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn bytes_are_lent_within_a_range_and_keep_the_memory_of_few_ranges() {
    const RANGE: usize = 8 << 20;
    let store = ObjectStore::good();
    let whole = bytes_of(1, 7 * RANGE);
    store.put("x", whole.clone());
    let client = open(&PlaceOptions { window_bytes: 4 * RANGE as u64, ..store.options() });
    let mut reader = Reader::new(client.clone(), listed(&client, ""));
    assert!(reader.lend(0).is_none(), "no object is read");
    reader.next_object();
    assert!(reader.lend(1).is_none(), "nothing has arrived");
    let mut at = 0;
    let mut lent_of = [0; 7];
    let mut kept = Vec::new();
    let mut piece = vec![0; 1_000_000];
    while at + piece.len() + 512 <= whole.len() {
        reader.read_exact(&mut [0; 512]).unwrap();
        at += 512;
        let in_one_range = at / RANGE == (at + piece.len() - 1) / RANGE;
        match reader.lend(piece.len()) {
            Some((bytes, range)) => {
                assert!((*bytes).as_ref()[range] == whole[at..at + piece.len()], "at {at}");
                assert!(in_one_range, "at {at}");
                lent_of[at / RANGE] += 1;
                kept.push(bytes);
            }
            None => {
                reader.read_exact(&mut piece).unwrap();
                assert!(piece == whole[at..at + piece.len()], "at {at}");
            }
        }
        at += piece.len();
        if at / RANGE == 5 {
            kept.clear();
        }
    }
    // Nothing is lent from the fifth range on until the earlier loans have come back.
    assert!(lent_of[..4].iter().all(|&count| count >= 7), "{lent_of:?}");
    assert_eq!(lent_of[4], 0);
    assert!(lent_of[6] >= 6, "{lent_of:?}");
}

#[test]
fn a_reader_skips_what_is_left_of_an_object() {
    let store = ObjectStore::good();
    (0..20).for_each(|number| store.put(&format!("{number:02}"), bytes_of(number, 100_000)));
    let options = PlaceOptions { range_bytes: 10_000, window_bytes: 50_000, ..store.options() };
    let client = open(&options);
    let mut reader = Reader::new(client.clone(), listed(&client, ""));
    let mut number = 0;
    while reader.next_object().is_some() {
        let mut begin = vec![0; 5000 * (number as usize % 7)];
        reader.read_exact(&mut begin).unwrap();
        assert_eq!(begin, bytes_of(number, begin.len()), "object {number}");
        number += 1;
    }
    assert_eq!(number, 20);
}

#[test]
fn odd_keys_are_read_and_those_that_cannot_be_named_are_told() {
    let store = ObjectStore::good();
    let odd = [
        "a b", "a%2Fb", "100%", "ü/ß", "x&y<z", "+", "a+b=c", "q?r", "h#i", "~", "-", "...",
        "a/.b", "'\"*",
    ];
    odd.into_iter().for_each(|key| store.put(key, key));
    ["a//b", "/a", "a/../b", "./x"].into_iter().for_each(|key| store.put(key, "?"));
    ["folder/", "a/b/"].into_iter().for_each(|key| store.put(key, ""));
    let client = open(&store.options());
    let mut keys = Vec::new();
    let refused = client
        .list("", &mut |object| {
            assert_eq!(read(&client, &object)?, object.key.as_bytes(), "{}", object.key);
            keys.push(object.key);
            Ok(())
        })
        .unwrap();
    let mut sorted = odd.to_vec();
    sorted.sort_unstable();
    assert_eq!(keys, sorted);
    assert_eq!(refused, ["./x", "/a", "a/../b", "a//b"]);
}

#[test]
fn listings_of_one_client_at_once_each_tell_the_keys_that_they_refuse() {
    let store = ObjectStore::good();
    ["a/x", "a//y", "b/x", "b//y"].into_iter().for_each(|key| store.put(key, "?"));
    let client = open(&store.options());
    let mut inner = Vec::new();
    let outer = client.list("a/", &mut |_| {
        inner = client.clone().list("b/", &mut |_| Ok(()))?;
        Ok(())
    });
    assert_eq!((outer.unwrap(), inner), (vec!["a//y".to_owned()], vec!["b//y".to_owned()]));
}

/// The faults of one request in four, besides storms of 503 in which most are refused.
fn hostile(seed: u64) -> impl Fn(&Request) -> Fault {
    move |request| {
        let mut state = seed ^ request.number.wrapping_mul(0x9E37_79B9);
        let draw = mix(&mut state) % 1000;
        let is_list = request.key.is_empty();
        if request.number % 1000 < 60 && draw < 700 {
            let after =
                [None, Some(0), Some(1)][mix(&mut state) as usize % 3].filter(|_| draw < 100);
            return Fault::Status(if draw.is_multiple_of(2) { 503 } else { 429 }, after);
        }
        match draw {
            0..25 => Fault::Status(500, None),
            25..50 => Fault::Reset,
            50..80 => Fault::Cut,
            80..110 if !is_list => Fault::OtherRange,
            110..130 if !is_list => Fault::Nothing,
            130..150 if !is_list => Fault::More,
            150..170 if !is_list => Fault::ErrorWith200,
            170..190 if !is_list => Fault::BrokenChunks,
            190..200 if !is_list => Fault::Drip,
            200..210 => Fault::Stall,
            210..250 => Fault::Late(draw % 40),
            _ => Fault::None,
        }
    }
}

#[test]
fn a_hostile_store_gives_no_wrong_byte_and_no_hang() {
    read_hostile(false);
    read_hostile(true);
}

/// Reads all objects again and again: through one reader, or each as its bytes arrive.
fn read_hostile(flowing: bool) {
    let wanted: u64 =
        std::env::var("DLFS_CLOUD_REQUESTS").map_or(2000, |text| text.parse().unwrap()) / 2;
    let seed = std::env::var("DLFS_SEED").map_or(0x0C10_0D5E, |text| text.parse().unwrap());
    println!("seed {seed}, {wanted} requests");
    let store = ObjectStore::with_faults(hostile(seed));
    let mut state = seed;
    let lens: Vec<usize> = (0..60).map(|_| (mix(&mut state) % 40_000) as usize).collect();
    for (number, len) in lens.iter().enumerate() {
        store.put(&format!("{number:03}"), bytes_of(number as u64, *len));
    }
    let options = PlaceOptions {
        range_bytes: 4096,
        window_bytes: 512 << 10,
        silence: Duration::from_millis(250),
        flowing,
        ..store.options()
    };
    let client = open(&options);
    let mut rounds = 0;
    while store.state().requests.load(Ordering::Relaxed) < wanted {
        let objects = listed(&client, "");
        assert_eq!(objects.len(), lens.len());
        let mut reader = Reader::new(client.clone(), objects.clone());
        for (number, len) in lens.iter().enumerate() {
            if flowing {
                reader = Reader::new(client.clone(), vec![objects[number].clone()]);
            }
            assert!(reader.next_object().is_some());
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, bytes_of(number as u64, *len), "object {number} of round {rounds}");
        }
        rounds += 1;
    }
    let stats = client.stats();
    println!("{rounds} rounds, {stats:?}");
    assert!(stats.retries * 10 > stats.requests && stats.throttled > 0, "{stats:?}");
}

#[test]
fn a_flowing_reader_that_failed_never_looks_as_if_it_had_ended() {
    let store = ObjectStore::good();
    store.put("x", bytes_of(1, 1 << 20));
    let options = PlaceOptions { range_bytes: 512 << 10, flowing: true, ..store.options() };
    let client = open(&options);
    let objects = listed(&client, "");
    store.put("x", bytes_of(2, 1 << 20));
    let mut reader = Reader::new(client, objects);
    reader.next_object().unwrap();
    for _ in 0..3 {
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        let error = error.downcast::<dlfs::Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadSource);
        assert!(error.to_string().contains("s3://bucket/x"), "{error}");
    }
}

#[test]
fn a_flowing_reader_has_the_first_bytes_before_the_last_and_holds_few() {
    const LEN: usize = 32 << 20;
    let store = ObjectStore::good();
    let whole = bytes_of(3, LEN);
    store.put("x", whole.clone());
    let client = open(&PlaceOptions { flowing: true, ..store.options() });
    let mut reader = Reader::from(client.clone(), listed(&client, ""), 5, u64::MAX);
    assert_eq!(reader.next_object().unwrap().len_bytes as usize, LEN);
    let mut first = [0; 1000];
    reader.read_exact(&mut first).unwrap();
    assert_eq!(first[..], whole[5..1005]);
    assert!(reader.lend(1).is_none());
    // Bytes in sockets and in pieces arrive, and then the store waits.
    let before = Cell::new(u64::MAX);
    wait_until("the store waits", || {
        let now = store.state().sent.load(Ordering::Relaxed);
        let stays = before.replace(now) == now;
        std::thread::sleep(Duration::from_millis(300));
        stays
    });
    assert!(before.get() < LEN as u64 / 2, "{} bytes", before.get());
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert!(rest == whole[1005..]);
    assert!(reader.next_object().is_none());
}

#[test]
fn an_object_that_changes_is_an_error_that_names_it_and_never_a_mixture() {
    let store = ObjectStore::good();
    store.put("a/x", bytes_of(1, 50_000));
    let options = PlaceOptions { range_bytes: 10_000, window_bytes: 20_000, ..store.options() };
    let client = open(&options);
    let objects = listed(&client, "");
    let mut reader = Reader::new(client.clone(), objects.clone());
    reader.next_object().unwrap();
    let mut begin = vec![0; 10_000];
    reader.read_exact(&mut begin).unwrap();
    store.put("a/x", bytes_of(2, 50_000));
    let error = reader.read_to_end(&mut begin).unwrap_err();
    let error = error.downcast::<dlfs::Error>().unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSource);
    assert!(error.to_string().contains("s3://bucket/a/x"), "{error}");
    let stamped = client.fetch_stamped("a/x", 50_000, objects[0].stamp(), 0..50_000);
    assert_eq!(stamped.read_into(&mut vec![0; 50_000]).unwrap_err().kind(), ErrorKind::BadSource);
    let now = &listed(&client, "")[0];
    let mut bytes = vec![0; 50_000];
    client.fetch_stamped("a/x", 50_000, now.stamp(), 0..50_000).read_into(&mut bytes).unwrap();
    assert_eq!(bytes, bytes_of(2, 50_000));
}

#[test]
fn an_object_of_another_length_has_changed_also_if_it_was_listed_without_a_tag() {
    let store = ObjectStore::good();
    store.put("x", "12345");
    let options = PlaceOptions { patience: Duration::from_secs(3), ..store.options() };
    let object = Object { key: "x".to_owned(), len_bytes: 7, etag: None };
    let error = open(&options).fetch(&object, 0..3).read_into(&mut [0; 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource, "{}", error.report());
    assert!(error.to_string().contains("has changed"), "{error}");
}

#[test]
fn a_redirect_loop_and_a_store_that_is_away_end_with_an_error_that_shows_no_secret() {
    let circle = ObjectStore::with_faults(|_| Fault::RedirectLoop);
    let error = open(&circle.options()).head("x").unwrap_err();
    assert!(error.report().contains("redirect"), "{}", error.report());
    let refusing = ObjectStore::with_faults(|_| Fault::Status(403, None));
    let refused = open(&refusing.options()).head("x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    let options = PlaceOptions { patience: Duration::from_secs(1), ..circle.options() };
    drop(circle);
    let gone = Client::open(&Place::parse("s3://bucket/").unwrap(), &options).unwrap();
    let gone = gone.head("x").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Disconnected);
    assert!(gone.report().contains("efused"), "{}", gone.report());
    for error in [error, refused, gone] {
        let report = error.report();
        assert!(report.contains("s3://bucket/x"), "{report}");
        assert!(!report.contains("SECRET") && !report.contains("AKID"), "{report}");
    }
}

#[test]
fn a_listing_outlasts_a_storm_and_a_refused_one_says_so() {
    // It asks for a second each time, longer in all than credentials are waited for.
    let store = ObjectStore::with_faults(|request| {
        if request.number < 7 { Fault::Status(503, Some(1)) } else { Fault::None }
    });
    store.put("x", "y");
    assert_eq!(listed(&open(&store.options()), "").len(), 1);
    let busy = ObjectStore::with_faults(|_| Fault::Status(503, None));
    let options = PlaceOptions { patience: Duration::from_secs(1), ..busy.options() };
    let error = open(&options).list("", &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{}", error.report());
    assert!(error.report().contains("SlowDown"), "{}", error.report());
}

#[test]
fn what_is_dropped_is_not_waited_for() {
    let store =
        ObjectStore::with_faults(
            |request| if request.key.is_empty() { Fault::None } else { Fault::Stall },
        );
    store.put("x", "y");
    let client = open(&store.options());
    let object = &listed(&client, "")[0];
    let before = store.state().requests.load(Ordering::Relaxed);
    let pending = client.fetch(object, 0..1);
    wait_until("the request is sent", || store.state().requests.load(Ordering::Relaxed) > before);
    drop(pending);
    drop(Reader::new(client.clone(), vec![object.clone()]));
    drop(client); // the thread ends, though no answer has come
}

#[test]
fn whoever_waits_can_give_up_while_requests_are_tried_again() {
    let busy = ObjectStore::with_faults(|_| Fault::Status(503, None));
    let asked = Arc::new(AtomicBool::new(false));
    let cancel = Cancel::when({
        let asked = Arc::clone(&asked);
        move || asked.load(Ordering::Relaxed)
    });
    // For a day it would be tried again.
    let patience = Duration::from_secs(86_400);
    let client = open(&PlaceOptions { patience, cancel, ..busy.options() });
    let object = Object { key: "x".to_owned(), len_bytes: 5, etag: None };
    let mut reader = Reader::new(client.clone(), vec![object.clone()]);
    reader.next_object().unwrap();
    let of_reader = |error: std::io::Error| error.downcast::<dlfs::Error>().unwrap();
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| client.head("x").map(drop)),
            scope.spawn(|| client.list("", &mut |_| Ok(())).map(drop)),
            scope.spawn(|| client.fetch(&object, 0..5).read_into(&mut [0; 5])),
            scope.spawn(|| reader.read(&mut [0; 5]).map(drop).map_err(of_reader)),
        ];
        wait_until("all are sent again", || client.stats().retries > 10);
        let ended = waits.iter().filter(|wait| wait.is_finished()).count();
        asked.store(true, Ordering::Relaxed);
        assert_eq!(ended, 0, "they are still tried");
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
        }
    });
}

#[test]
fn many_keys_are_listed_by_the_thousand() {
    let keys = std::env::var("DLFS_CLOUD_KEYS").map_or(50_000, |text| text.parse().unwrap());
    let store = ObjectStore::good();
    store.number(keys);
    let client = open(&store.options());
    let mut count = 0;
    let refused = client.list("many/", &mut |object| {
        assert_eq!(object.key, format!("many/{count:08}.jpg"));
        count += 1;
        Ok(())
    });
    assert_eq!((count, refused.unwrap().len()), (keys, 0));
    assert!(store.state().lists.load(Ordering::Relaxed) <= keys.div_ceil(1000) + 1);
}

/// Another implementation: moto, a server of S3 in Python.
#[test]
fn a_store_of_another_implementation_is_listed_and_read() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let command = Command::new("moto_server")
        .args(["-H", "127.0.0.1", "-p", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut server) = command else {
        println!("SKIPPED: no moto_server (pip install 'moto[s3,server]')");
        return;
    };
    let address = format!("127.0.0.1:{port}");
    let until = Instant::now() + Duration::from_secs(60);
    let is_there = loop {
        let has_ended = server.try_wait().unwrap().is_some();
        match TcpStream::connect(&address) {
            Ok(_) => break true,
            Err(_) if has_ended || Instant::now() > until => break false,
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let outcome =
        is_there.then(|| std::panic::catch_unwind(|| of_another_implementation(&address)));
    let _ = server.kill(); // it may have ended
    server.wait().unwrap();
    match outcome {
        Some(outcome) => outcome.unwrap(),
        None => println!("SKIPPED: moto_server does not start here"),
    }
}

fn of_another_implementation(address: &str) {
    let put = |path: &str, body: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        let len = body.len();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len}\r\n");
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    };
    put("/bucket", b"");
    let keys = ["a/0", "a/b c", "a/ü&<x>", "a/p%q+r", "z"];
    let lens = [0, 100_000, 5, 70_000, 1];
    for (number, (key, len)) in keys.into_iter().zip(lens).enumerate() {
        let escaped = key.bytes().map(|byte| match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'/' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        });
        put(&format!("/bucket/{}", escaped.collect::<String>()), &bytes_of(number as u64, len));
    }
    // More than a page takes it some seconds.
    let many = if std::env::var_os("DLFS_CLOUD_REQUESTS").is_some() { 1100 } else { 20 };
    (0..many).for_each(|number| put(&format!("/bucket/m/{number:04}"), b""));
    let setting = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let options = PlaceOptions {
        settings: vec![
            setting("aws_endpoint_url", &format!("http://{address}")),
            setting("aws_access_key_id", "id"),
            setting("aws_secret_access_key", "key"),
            setting("aws_region", "us-east-1"),
        ],
        range_bytes: 30_000,
        ..PlaceOptions::default()
    };
    let client = open(&options);
    let mut objects = listed(&client, "");
    let of_many = objects.iter().filter(|object| object.key.starts_with("m/"));
    assert_eq!(of_many.count(), many);
    objects.retain(|object| !object.key.starts_with("m/"));
    objects.sort_unstable_by_key(|object| keys.iter().position(|key| *key == object.key));
    let mut reader = Reader::new(client.clone(), objects);
    for (number, (key, len)) in keys.into_iter().zip(lens).enumerate() {
        assert_eq!(reader.next_object().unwrap().key, key);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, bytes_of(number as u64, len), "{key}");
    }
    let other = Object { etag: Some("\"old\"".to_owned()), ..client.head("z").unwrap() };
    assert_eq!(read(&client, &other).unwrap_err().kind(), ErrorKind::BadSource);
}
