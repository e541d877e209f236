//! A small Hugging Face hub on loopback: it lists the files of one data set by page, and redirects to another host for
//! their bytes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlfs::places::PlaceOptions;

type Files = BTreeMap<String, Vec<u8>>;

/// A hub with the data set `own/set`.
pub struct Hub {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
pub struct State {
    /// The files of `main` at each commit, from the first to the last one.
    commits: Mutex<Vec<Files>>,
    /// Whoever reads the data set needs it.
    token: Option<String>,
    /// Each request of a listing is refused this often before it is answered.
    busy: u64,
    requests: AtomicU64,
    pub pages: AtomicU64,
    /// Requests for bytes, and those of them that brought the token along.
    pub reads: AtomicU64,
    pub leaks: AtomicU64,
    /// `main` moves to the next commit when it is looked up.
    moves: AtomicBool,
    looked_up: AtomicU64,
    is_over: AtomicBool,
}

impl Hub {
    /// Serves `commits` of the data set.
    pub fn new(commits: Vec<Files>, token: Option<&str>, busy: u64) -> Hub {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let token = token.map(str::to_owned);
        let state = State { commits: Mutex::new(commits), token, busy, ..State::default() };
        let state = Arc::new(state);
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), state) = (stream, Arc::clone(&served)) else { continue };
                std::thread::spawn(move || {
                    // Clients may close at any time.
                    let _ = state.serve(&stream, address.port());
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Hub { address, state }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// From now on `main` is another commit each time that it is looked up.
    pub fn moves(&self) {
        self.state.moves.store(true, Ordering::Relaxed);
    }

    /// Settings that lead to it; an empty token is none.
    pub fn options(&self, token: &str) -> PlaceOptions {
        let endpoint = format!("http://{}/", self.address);
        let settings = [("hf_endpoint", &*endpoint), ("hf_token", token)];
        PlaceOptions {
            settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            silence: Duration::from_secs(10),
            patience: Duration::from_secs(60),
            ..PlaceOptions::default()
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address); // wakes the listener
    }
}

struct Request {
    method: String,
    path: String,
    query: String,
    host: String,
    token: Option<String>,
    range: Option<(usize, usize)>,
}

impl State {
    fn serve(&self, stream: &TcpStream, port: u16) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut from = BufReader::new(stream);
        while let Some(request) = request(&mut from)? {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let (head, body) = self.answer(&request, port);
            let len = body.len();
            let mut to = stream;
            write!(to, "HTTP/1.1 {head}\r\nContent-Length: {len}\r\n\r\n")?;
            if request.method != "HEAD" {
                to.write_all(&body)?;
            }
        }
        Ok(())
    }

    /// Status and headers, and the body.
    fn answer(&self, request: &Request, port: u16) -> (String, Vec<u8>) {
        let commits = self.commits.lock().unwrap();
        let nothing = |status: &str| (status.to_owned(), b"{\"error\": \"no\"}".to_vec());
        if let Some(path) = request.path.strip_prefix("/bytes/") {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.leaks.fetch_add(u64::from(request.token.is_some()), Ordering::Relaxed);
            assert!(request.host.starts_with("127.0.0.2"), "{}", request.host);
            let Some(bytes) = file(&commits, path) else { return nothing("404 Not Found") };
            // Tags of where bytes are kept are no tags of the hub.
            let tag = format!("ETag: \"{}\"", self.requests.load(Ordering::Relaxed));
            return match request.range {
                None => (format!("200 OK\r\n{tag}"), bytes.clone()),
                Some((first, last)) => {
                    let last = last.min(bytes.len() - 1);
                    let range = format!("Content-Range: bytes {first}-{last}/{}", bytes.len());
                    (format!("206 Partial\r\n{tag}\r\n{range}"), bytes[first..=last].to_vec())
                }
            };
        }
        if self.token.is_some() && request.token != self.token {
            return match request.token {
                None => nothing("401 Unauthorized\r\nX-Error-Code: GatedRepo"),
                Some(_) => nothing("403 Forbidden\r\nX-Error-Code: GatedRepo"),
            };
        }
        let busy = !self.requests.load(Ordering::Relaxed).is_multiple_of(self.busy + 1);
        if request.path.starts_with("/api/") && busy {
            return nothing("429 Too Many Requests\r\nRetry-After: 0");
        }
        let api = request.path.strip_prefix("/api/datasets/own/set/");
        if let Some(revision) = api.and_then(|rest| rest.strip_prefix("revision/")) {
            let at = match revision {
                "main" if self.moves.load(Ordering::Relaxed) => {
                    self.looked_up.fetch_add(1, Ordering::Relaxed) as usize % commits.len()
                }
                "main" => commits.len() - 1,
                "refs%2Fpr%2F1" => 0,
                _ => return nothing("404 Not Found\r\nX-Error-Code: RevisionNotFound"),
            };
            return ("200 OK".to_owned(), format!("{{\"sha\": \"{}\"}}", sha(at)).into_bytes());
        }
        if let Some(rest) = api.and_then(|rest| rest.strip_prefix("tree/")) {
            let (sha, folder) = rest.split_once('/').unwrap_or((rest, ""));
            return match commit(&commits, sha) {
                None => nothing("404 Not Found\r\nX-Error-Code: RevisionNotFound"),
                Some(files) => self.page(files, folder, request, port),
            };
        }
        match request.path.strip_prefix("/datasets/own/set/resolve/") {
            Some(path) if file(&commits, path).is_some() => {
                let to = format!("Location: http://127.0.0.2:{port}/bytes/{path}");
                (format!("302 Found\r\n{to}"), Vec::new())
            }
            _ => nothing("404 Not Found\r\nX-Error-Code: EntryNotFound"),
        }
    }

    /// Files and folders, from the last name to the first.
    fn page(&self, files: &Files, folder: &str, request: &Request, port: u16) -> (String, Vec<u8>) {
        assert!(request.query.contains("recursive=true"), "{}", request.query);
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut entries: Vec<String> = Vec::new();
        for (path, bytes) in files.iter().rev().filter(|(path, _)| path.starts_with(&prefix)) {
            let len = bytes.len();
            entries.push(match len % 2 {
                0 => format!(r#"{{"type": "file", "path": "{path}", "size": {len}, "oid": "1"}}"#),
                _ => format!(
                    r#"{{"type": "file", "path": "{path}", "size": 130, "lfs": {{"size": {len}, "oid": "2"}}}}"#
                ),
            });
            if let Some((folder, _)) = path.rsplit_once('/') {
                entries.push(format!(r#"{{"type": "directory", "path": "{folder}", "size": 0}}"#));
            }
        }
        if entries.is_empty() {
            return ("404 Not Found\r\nX-Error-Code: EntryNotFound".to_owned(), Vec::new());
        }
        self.pages.fetch_add(1, Ordering::Relaxed);
        let cursor = request.query.split('&').find_map(|pair| pair.strip_prefix("cursor=at%3D"));
        let start = cursor.map_or(0, |cursor| cursor.parse().unwrap());
        let end = (start + PAGE).min(entries.len());
        let body = format!("[{}]", entries[start..end].join(", ")).into_bytes();
        // A mirror leaves the hub's own address there.
        let url = format!("http://127.0.0.3:{port}/api/datasets/own/set/tree/x?recursive=true");
        if end < entries.len() {
            (format!("200 OK\r\nLink: <{url}&cursor=at%3D{end}&limit=3>; rel=\"next\""), body)
        } else {
            ("200 OK".to_owned(), body)
        }
    }
}

/// The commit that the hub calls so.
fn commit<'a>(commits: &'a [Files], sha_of: &str) -> Option<&'a Files> {
    (0..commits.len()).find(|at| sha(*at) == sha_of).map(|at| &commits[at])
}

fn file<'a>(commits: &'a [Files], path: &str) -> Option<&'a Vec<u8>> {
    let (sha, path) = path.split_once('/')?;
    commit(commits, sha)?.get(&path.replace("%20", " "))
}

fn sha(at: usize) -> String {
    format!("{:040x}", 0xabc0 + at)
}

fn request(from: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or("");
    let target = words.next().unwrap_or("");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let method = method.to_owned();
    let path = path.to_owned();
    let query = query.to_owned();
    let mut request =
        Request { method, path, query, host: String::new(), token: None, range: None };
    loop {
        let mut header = String::new();
        from.read_line(&mut header)?;
        let header = header.trim();
        if header.is_empty() {
            return Ok(Some(request));
        }
        let Some((name, value)) = header.split_once(':') else { continue };
        let value = value.trim();
        match &*name.to_ascii_lowercase() {
            "host" => request.host = value.to_owned(),
            "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_owned),
            "range" => {
                let range = value.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
                request.range = range.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            }
            _ => {}
        }
    }
}

/// Entries of a page.
const PAGE: usize = 3;
