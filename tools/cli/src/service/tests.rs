//! Clients of the control socket that a running service cannot be made to keep waiting.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

use serde_json::Value;

use super::control::{Control, Event, MAX_CLIENTS};

#[test]
fn clients_that_wait_for_answers_keep_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let (events, requests) = channel();
    let control = Control::open(&path, events).unwrap();
    let ask = || {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"{\"id\":1,\"method\":\"stats\"}\n").unwrap();
        client
    };
    let mut replies = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..MAX_CLIENTS {
        clients.push(ask());
        match requests.recv().unwrap() {
            Event::Asked(_, reply) => replies.push(reply),
            Event::Woken => panic!("nothing else happens"),
        }
    }
    let mut late = UnixStream::connect(&path).unwrap();
    assert_eq!(late.read(&mut [0; 1]).unwrap(), 0, "there is no room");
    for (client, reply) in clients.iter_mut().zip(replies) {
        reply.send(Ok(Value::Bool(true))).unwrap();
        let mut line = String::new();
        io::BufReader::new(client).read_line(&mut line).unwrap();
        assert!(line.contains("true"), "{line}");
    }
    drop(control);
}
