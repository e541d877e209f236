//! An object store that speaks S3 over HTTP, on threads of the test: a good one, or one that is as hostile as told.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlfs::places::PlaceOptions;

/// A running store. It ends when it is dropped.
pub struct ObjectStore {
    address: SocketAddr,
    state: Arc<State>,
}

/// A request that the store received.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Without the bucket, decoded.
    pub key: String,
    pub query: Vec<(String, String)>,
    pub range: Option<(u64, u64)>,
    pub if_match: Option<String>,
    /// Set if the object must not be there yet.
    pub is_new: bool,
    pub body: Vec<u8>,
    /// How many requests came before it.
    pub number: u64,
}

/// A fault in the store's answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Answers with this status, and asks to wait for so many seconds.
    Status(u16, Option<u32>),
    /// Closes the connection without an answer.
    Reset,
    /// Sends half of the body and closes the connection.
    Cut,
    /// Sends the range that follows, and says so.
    OtherRange,
    /// Says 206 and sends nothing.
    Nothing,
    /// Sends more than was asked for.
    More,
    /// Says 200 and sends an error in place of the bytes.
    ErrorWith200,
    /// Sends a body in chunks, the last of which is broken.
    BrokenChunks,
    /// Sends a byte every 20 ms.
    Drip,
    /// Never answers.
    Stall,
    /// Redirects to itself.
    RedirectLoop,
    /// Answers after so many milliseconds.
    Late(u64),
}

type Faults = Box<dyn Fn(&Request) -> Fault + Send + Sync>;

pub struct State {
    objects: Mutex<BTreeMap<String, Arc<Stored>>>,
    /// So many empty objects, whose keys are numbers, besides those in the map.
    numbered: AtomicU64,
    faults: Faults,
    /// Bytes a second of all bodies together; 0: as fast as it goes.
    rate: AtomicU64,
    /// When the line is free again.
    line: Mutex<Instant>,
    pub requests: AtomicU64,
    pub lists: AtomicU64,
    /// Ranges that were asked for without saying of which version.
    pub unconditional: AtomicU64,
    /// Bytes of bodies that were written to sockets.
    pub sent: AtomicU64,
    /// The most connections at once.
    pub connections: AtomicU64,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

struct Stored {
    content: Content,
    etag: String,
}

enum Content {
    Bytes(Vec<u8>),
    /// A file of this length.
    File(PathBuf, u64),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(_, len) => *len,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Content::Bytes(bytes) => bytes,
            Content::File(path, _) => panic!("{} is not in memory", path.display()),
        }
    }
}

impl ObjectStore {
    pub fn good() -> ObjectStore {
        ObjectStore::with_faults(|_| Fault::None)
    }

    pub fn with_faults(faults: impl Fn(&Request) -> Fault + Send + Sync + 'static) -> ObjectStore {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            objects: Mutex::default(),
            numbered: AtomicU64::new(0),
            faults: Box::new(faults),
            rate: AtomicU64::new(0),
            line: Mutex::new(Instant::now()),
            requests: AtomicU64::new(0),
            lists: AtomicU64::new(0),
            unconditional: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), state) = (stream, Arc::clone(&served)) else { continue };
                if let Ok(copy) = stream.try_clone() {
                    state.open.lock().unwrap().push(copy);
                }
                state.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || {
                    // Clients may close at any time.
                    let _ = state.serve(&stream);
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        ObjectStore { address, state }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds or replaces an object of the bucket, which is called `bucket`.
    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        let etag = format!("\"{:016x}-{:x}\"", hash(&bytes), bytes.len());
        self.insert(key, Stored { content: Content::Bytes(bytes), etag });
    }

    /// Adds or replaces an object that is this file, which stays as it is. Faults leave it alone.
    pub fn put_file(&self, key: &str, path: &Path) {
        let len = path.metadata().unwrap().len();
        let etag = format!("\"{:016x}-{len:x}\"", hash(path.as_os_str().as_encoded_bytes()));
        self.insert(key, Stored { content: Content::File(path.to_owned(), len), etag });
    }

    fn insert(&self, key: &str, stored: Stored) {
        self.state.objects.lock().unwrap().insert(key.to_owned(), Arc::new(stored));
    }

    /// The tag of an object.
    pub fn etag(&self, key: &str) -> String {
        self.state.objects.lock().unwrap()[key].etag.clone()
    }

    /// The bytes of an object.
    pub fn bytes(&self, key: &str) -> Vec<u8> {
        self.state.objects.lock().unwrap()[key].content.bytes().to_vec()
    }

    /// Has `count` empty objects with the keys `many/00000000.jpg` and so on.
    pub fn number(&self, count: u64) {
        self.state.numbered.store(count, Ordering::Relaxed);
    }

    /// Sends bodies at this rate, all together.
    pub fn shape(&self, bytes_a_second: u64) {
        self.state.rate.store(bytes_a_second, Ordering::Relaxed);
    }

    /// Settings that lead to it, and limits so short that tests end.
    pub fn options(&self) -> PlaceOptions {
        let setting = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        PlaceOptions {
            settings: vec![
                setting("aws_endpoint_url", &self.endpoint()),
                setting("aws_access_key_id", "AKIDEXAMPLE"),
                setting("aws_secret_access_key", "wJalrXUtnFEMI-SECRET"),
                setting("aws_region", "us-east-1"),
            ],
            silence: Duration::from_secs(10),
            patience: Duration::from_secs(600),
            ..PlaceOptions::default()
        }
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut from = BufReader::new(stream);
        while let Some(request) = self.request(&mut from)? {
            if !self.answer(&request, stream)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn request(&self, from: &mut impl BufRead) -> io::Result<Option<Request>> {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let method = words.next().unwrap_or("");
        let target = words.next().unwrap_or("");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescape(name), unescape(value))
        };
        let mut request = Request {
            method: method.to_owned(),
            key: unescape(key),
            query: query.split('&').map(pair).collect(),
            range: None,
            if_match: None,
            is_new: false,
            body: Vec::new(),
            number: self.requests.fetch_add(1, Ordering::Relaxed),
        };
        loop {
            let mut header = String::new();
            from.read_line(&mut header)?;
            let header = header.trim();
            if header.is_empty() {
                from.read_exact(&mut request.body)?;
                return Ok(Some(request));
            }
            let Some((name, value)) = header.split_once(':') else { continue };
            match &*name.to_ascii_lowercase() {
                "range" => {
                    let range =
                        value.trim().strip_prefix("bytes=").and_then(|it| it.split_once('-'));
                    request.range =
                        range.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                }
                "if-match" => request.if_match = Some(value.trim().to_owned()),
                "if-none-match" => request.is_new = value.trim() == "*",
                "content-length" => request.body = vec![0; value.trim().parse().unwrap_or(0)],
                _ => {}
            }
        }
    }

    /// Returns whether the connection goes on.
    fn answer(&self, request: &Request, mut to: &TcpStream) -> io::Result<bool> {
        let fault = (self.faults)(request);
        match fault {
            Fault::Status(status, after) => {
                let after =
                    after.map(|seconds| format!("Retry-After: {seconds}\r\n")).unwrap_or_default();
                let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
                let len = body.len();
                write!(to, "HTTP/1.1 {status} No\r\n{after}Content-Length: {len}\r\n\r\n")?;
                if request.method != "HEAD" {
                    to.write_all(body.as_bytes())?;
                }
                return Ok(true);
            }
            Fault::Reset => return Ok(false),
            Fault::Stall => {
                // Until the client has had enough.
                let _ = to.read(&mut [0; 1]);
                return Ok(false);
            }
            Fault::RedirectLoop => {
                write!(
                    to,
                    "HTTP/1.1 302 Found\r\nLocation: /bucket/{}\r\nContent-Length: 0\r\n\r\n",
                    request.key
                )?;
                return Ok(true);
            }
            Fault::Late(ms) => std::thread::sleep(Duration::from_millis(ms)),
            _ => {}
        }
        if request.key.is_empty() && request.method == "GET" {
            self.lists.fetch_add(1, Ordering::Relaxed);
            let page = self.page(request);
            let len = page.len();
            write!(
                to,
                "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len}\r\n\r\n"
            )?;
            let sent = if fault == Fault::Cut { len / 2 } else { len };
            to.write_all(&page.as_bytes()[..sent])?;
            return Ok(sent == len);
        }
        let stored = self.objects.lock().unwrap().get(&request.key).map(Arc::clone);
        if request.method == "PUT" {
            if request.is_new && stored.is_some() {
                return status(to, request, "412 Precondition Failed", "PreconditionFailed");
            }
            let etag = format!("\"{:016x}\"", hash(&request.body));
            let stored =
                Stored { content: Content::Bytes(request.body.clone()), etag: etag.clone() };
            self.objects.lock().unwrap().insert(request.key.clone(), Arc::new(stored));
            write!(to, "HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Length: 0\r\n\r\n")?;
            return Ok(true);
        }
        let Some(stored) = stored else {
            return status(to, request, "404 Not Found", "NoSuchKey");
        };
        if request.if_match.as_ref().is_some_and(|etag| *etag != stored.etag) {
            return status(to, request, "412 Precondition Failed", "PreconditionFailed");
        }
        if request.if_match.is_none() && request.method == "GET" {
            self.unconditional.fetch_add(1, Ordering::Relaxed);
        }
        self.send(to, request, &stored, fault)
    }

    fn page(&self, request: &Request) -> String {
        let given = |name: &str| {
            request.query.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
        };
        let prefix = given("prefix").unwrap_or("");
        let after = given("continuation-token");
        let mut page = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
        let mut last = None;
        let mut count = 0;
        let mut add = |key: &str, len: usize, etag: &str| {
            let key = key.replace('&', "&amp;").replace('<', "&lt;");
            page.push_str(&format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-26T00:00:00.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{len}</Size></Contents>",
                etag.replace('"', "&quot;")
            ));
        };
        let objects = self.objects.lock().unwrap();
        let from = match after {
            Some(after) => Bound::Excluded(after.to_owned()),
            None => Bound::Included(prefix.to_owned()),
        };
        for (key, stored) in objects.range((from, Bound::Unbounded)) {
            if !key.starts_with(prefix) || count == PAGE {
                break;
            }
            add(key, stored.content.len() as usize, &stored.etag);
            last = Some(key.clone());
            count += 1;
        }
        let mut is_truncated = count == PAGE;
        let numbered = self.numbered.load(Ordering::Relaxed);
        if numbered > 0 && "many/".starts_with(prefix) {
            let begin = after
                .and_then(|after| after.strip_prefix("many/")?.strip_suffix(".jpg")?.parse().ok());
            let begin = begin.map_or(0, |last: u64| last + 1);
            let end = numbered.min(begin + PAGE as u64);
            for number in begin..end {
                let key = format!("many/{number:08}.jpg");
                add(&key, 0, "\"d41d8cd98f00b204e9800998ecf8427e\"");
                last = Some(key);
            }
            is_truncated = end < numbered;
        }
        page.push_str(&format!("<IsTruncated>{is_truncated}</IsTruncated>"));
        if let Some(last) = last.filter(|_| is_truncated) {
            let last = last.replace('&', "&amp;").replace('<', "&lt;");
            page.push_str(&format!("<NextContinuationToken>{last}</NextContinuationToken>"));
        }
        page + "</ListBucketResult>"
    }
}

impl State {
    fn send(
        &self,
        mut to: &TcpStream,
        request: &Request,
        stored: &Stored,
        fault: Fault,
    ) -> io::Result<bool> {
        let len = stored.content.len();
        let (start, end) =
            request.range.map_or((0, len), |(first, last)| (first, (last + 1).min(len)));
        if request.range.is_some() && start >= len {
            return status(to, request, "416 Range Not Satisfiable", "InvalidRange");
        }
        let mut start = start;
        let mut end = end;
        if fault == Fault::OtherRange {
            (start, end) =
                if end < len { (start + 1, end + 1) } else { (start.saturating_sub(1), end - 1) };
        }
        let is_ranged = request.range.is_some() && fault != Fault::ErrorWith200;
        let mut head = String::from(if is_ranged {
            "HTTP/1.1 206 Partial\r\n"
        } else {
            "HTTP/1.1 200 OK\r\n"
        });
        if is_ranged {
            head += &format!("Content-Range: bytes {start}-{}/{len}\r\n", end.max(1) - 1);
        }
        head +=
            &format!("ETag: {}\r\nLast-Modified: Thu, 26 Nov 2026 00:00:00 GMT\r\n", stored.etag);
        if let Content::File(path, _) = &stored.content {
            write!(to, "{head}Content-Length: {}\r\n\r\n", end - start)?;
            if request.method != "HEAD" {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(start))?;
                io::copy(&mut file.take(end - start), &mut to)?;
            }
            return Ok(true);
        }
        let mut body = &stored.content.bytes()[start as usize..end as usize];
        let more;
        match fault {
            Fault::Nothing => body = &[],
            Fault::More => {
                more = [body, &b"more"[..]].concat();
                body = &more;
            }
            Fault::ErrorWith200 => body = b"<Error><Code>InternalError</Code></Error>",
            _ => {}
        }
        if fault == Fault::BrokenChunks {
            write!(to, "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len())?;
            to.write_all(body)?;
            to.write_all(b"\r\nzz\r\n")?;
            return Ok(false);
        }
        write!(to, "{head}Content-Length: {}\r\n\r\n", body.len())?;
        if request.method == "HEAD" {
            return Ok(true);
        }
        match fault {
            Fault::Cut => {
                to.write_all(&body[..body.len() / 2])?;
                Ok(false)
            }
            Fault::Drip => {
                for byte in body {
                    to.write_all(&[*byte])?;
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(true)
            }
            _ => self.write(to, body).map(|()| true),
        }
    }

    /// Writes a body, as fast as the line is.
    fn write(&self, mut to: &TcpStream, body: &[u8]) -> io::Result<()> {
        let rate = self.rate.load(Ordering::Relaxed);
        for piece in body.chunks(64 << 10) {
            if rate > 0 {
                let free = {
                    let mut line = self.line.lock().unwrap();
                    let taken = Duration::from_secs_f64(piece.len() as f64 / rate as f64);
                    *line = (*line).max(Instant::now()) + taken;
                    *line
                };
                std::thread::sleep(free.saturating_duration_since(Instant::now()));
            }
            to.write_all(piece)?;
            self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn status(mut to: &TcpStream, request: &Request, status: &str, code: &str) -> io::Result<bool> {
    let body = format!("<Error><Code>{code}</Code></Error>");
    write!(to, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len())?;
    if request.method != "HEAD" {
        to.write_all(body.as_bytes())?;
    }
    Ok(true)
}

fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let pair = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Bytes that differ from place to place and from seed to seed.
pub fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut state = seed;
    while bytes.len() < len {
        bytes.extend_from_slice(&mix(&mut state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// SplitMix64.
pub fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Waits until `is_true`, for a minute at most.
pub fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Keys of a page, as S3 has them.
const PAGE: usize = 1000;
