//! Web servers over plain HTTP, each with habits of its own: how the ranges of their files are received.
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlfs::Result;
use dlfs::places::{Client, Object, Place, PlaceOptions, Reader};

/// How a server answers a request for a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Plain,
    /// A byte of the head at a time, and the body with the last one.
    Slow,
    /// With the interim answer 103 before.
    Hinting,
    /// As HTTP/1.0, which ends the connection.
    Old,
    /// Says that it closes the connection.
    Closing,
    /// Closes each connection after an answer, and does not say so.
    Hasty,
    /// In chunks.
    Chunks,
    /// Redirects to another file of its own.
    Redirecting,
    /// With two lengths.
    TwoLengths,
    /// With a length below 0.
    Negative,
    /// With a head that never ends.
    Endless,
    /// With something else.
    Noise,
}

struct Server {
    address: String,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// The user agents that asked for ranges.
    agents: Mutex<Vec<String>>,
}

impl Server {
    fn new(habit: Habit) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Seen>::default();
        let shared = Arc::clone(&seen);
        // It ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, habit, &seen));
            }
        });
        Server { address, seen }
    }

    /// All bytes of its file.
    fn read(&self) -> Result<Vec<u8>> {
        self.read_within(Duration::from_secs(60))
    }

    /// The same, read in ranges of 1000, each of which is asked for again until `patience` is over.
    fn read_within(&self, patience: Duration) -> Result<Vec<u8>> {
        let place = Place::parse(&format!("http://{}/", self.address)).unwrap();
        let options = PlaceOptions {
            range_bytes: 1000,
            window_bytes: 4000,
            silence: Duration::from_secs(60),
            patience,
            ..PlaceOptions::default()
        };
        let client = Client::open(&place, &options)?;
        let object: Object = client.head("file")?;
        let mut reader = Reader::new(client, vec![object]);
        reader.next_object();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut reader, &mut bytes)
            .map_err(|error| error.downcast::<dlfs::Error>().unwrap())?;
        Ok(bytes)
    }

    /// How many ranges were asked for by our own client, and by the client library's.
    fn agents(&self) -> (usize, usize) {
        let agents = self.seen.agents.lock().unwrap();
        let ours = agents.iter().filter(|agent| agent.starts_with("dlfs/")).count();
        (ours, agents.len() - ours)
    }
}

fn serve(mut stream: &TcpStream, habit: Habit, seen: &Seen) -> io::Result<()> {
    seen.connections.fetch_add(1, Ordering::Relaxed);
    let mut from = BufReader::new(stream);
    loop {
        let mut target = String::new();
        let mut range = None;
        let mut agent = String::new();
        from.read_line(&mut target)?;
        if target.is_empty() {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            match &*name.to_ascii_lowercase() {
                "range" => range = value.strip_prefix("bytes=").map(str::to_owned),
                "user-agent" => agent = value.to_owned(),
                _ => {}
            }
        }
        let all = file();
        let common = "ETag: \"1\"\r\nLast-Modified: Fri, 27 Nov 2026 00:00:00 GMT\r\n";
        let Some(range) = range else {
            write!(stream, "HTTP/1.1 200 OK\r\n{common}Content-Length: {}\r\n\r\n", all.len())?;
            continue;
        };
        seen.agents.lock().unwrap().push(agent);
        let (first, last) = range.split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let last: usize = last.parse().unwrap();
        let body = &all[first..=last];
        let len = last + 1 - first;
        let common = format!("{common}Content-Range: bytes {first}-{last}/{}\r\n", all.len());
        let plain = format!("HTTP/1.1 206 Partial\r\n{common}Content-Length: {len}\r\n\r\n");
        let is_elsewhere = target.contains("elsewhere");
        match habit {
            Habit::Redirecting if !is_elsewhere => {
                let to = "Location: /elsewhere\r\nContent-Length: 0\r\n";
                write!(stream, "HTTP/1.1 302 Found\r\n{to}\r\n")?;
                continue;
            }
            Habit::Slow => {
                for byte in plain.as_bytes() {
                    stream.write_all(&[*byte])?;
                }
            }
            Habit::Hinting => {
                write!(stream, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n{plain}")?
            }
            Habit::Old => stream.write_all(plain.replace("HTTP/1.1", "HTTP/1.0").as_bytes())?,
            Habit::Closing => {
                stream.write_all(
                    plain.replace("\r\nETag", "\r\nConnection: Close\r\nETag").as_bytes(),
                )?;
            }
            Habit::Chunks => {
                write!(
                    stream,
                    "HTTP/1.1 206 Partial\r\n{common}Transfer-Encoding: chunked\r\n\r\n"
                )?;
                for part in body.chunks(300) {
                    write!(stream, "{:x}\r\n", part.len())?;
                    stream.write_all(part)?;
                    stream.write_all(b"\r\n")?;
                }
                stream.write_all(b"0\r\n\r\n")?;
                continue;
            }
            Habit::TwoLengths => {
                let two = format!("\r\nContent-Length: {}\r\nContent-Range", len + 1);
                stream.write_all(plain.replace("\r\nContent-Range", &two).as_bytes())?;
            }
            Habit::Negative => {
                stream
                    .write_all(plain.replace("Content-Length: ", "Content-Length: -").as_bytes())?;
            }
            Habit::Endless => loop {
                stream.write_all(
                    plain.trim_end().replace("HTTP/1.1 206 Partial", "x: y").as_bytes(),
                )?;
            },
            Habit::Noise => stream.write_all(b"\0\x01 this is no HTTP\r\n\r\n")?,
            Habit::Plain | Habit::Hasty | Habit::Redirecting => {
                stream.write_all(plain.as_bytes())?
            }
        }
        stream.write_all(body)?;
        if matches!(habit, Habit::Old | Habit::Closing | Habit::Hasty) {
            return Ok(());
        }
    }
}

/// 20 ranges, and one that is shorter.
fn file() -> Vec<u8> {
    (0..20_500_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn ranges_are_received_from_servers_of_all_regular_habits() {
    use Habit::{Closing, Hasty, Hinting, Old, Plain, Slow};
    for habit in [Plain, Slow, Hinting, Old, Closing, Hasty] {
        let server = Server::new(habit);
        assert!(server.read().unwrap() == file(), "{habit:?}");
        let (ours, others) = server.agents();
        // Slow ranges may have been asked for twice.
        assert!(ours >= 21 && others == 0, "{habit:?}: {ours} and {others}");
    }
}

#[test]
fn a_connection_is_used_again_unless_its_server_ends_it() {
    let plain = Server::new(Habit::Plain);
    let closing = Server::new(Habit::Closing);
    for _ in 0..3 {
        assert!(plain.read().unwrap() == file() && closing.read().unwrap() == file());
    }
    let connections = |server: &Server| server.seen.connections.load(Ordering::Relaxed);
    assert!(connections(&closing) >= 3 * (1 + 21), "one for each request");
    assert!(connections(&plain) < connections(&closing), "{}", connections(&plain));
}

#[test]
fn redirects_are_left_to_the_client_library() {
    let server = Server::new(Habit::Redirecting);
    assert!(server.read().unwrap() == file());
    let (ours, others) = server.agents();
    assert!(others >= 21, "{ours} and {others}");
}

#[test]
fn ranges_that_come_in_chunks_are_left_to_the_client_library() {
    let server = Server::new(Habit::Chunks);
    assert!(server.read().unwrap() == file());
    let (ours, others) = server.agents();
    assert!(others >= 21, "{ours} and {others}");
}

#[test]
pub fn answers_that_are_no_http_are_errors_that_say_so() {
    for habit in [Habit::TwoLengths, Habit::Negative, Habit::Endless, Habit::Noise] {
        let error = Server::new(habit).read_within(Duration::from_millis(500));
        let error = error.unwrap_err().report();
        assert!(error.contains("the answer is no HTTP"), "{habit:?}: {error}");
        assert!(error.contains("/file"), "{habit:?}: {error}");
    }
}
