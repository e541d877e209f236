//! A web server on loopback with the habits of real ones: the first part of a path says which.
//!
//! `plain`; `nohead405` and the like: HEAD gets this status; `zero`: HEAD says that each file is empty; `chunked`:
//! neither a length nor ranges; `closing`: the same, and its end is that of the connection; `chunks206`: ranges in
//! chunks; `norange`; `etags`: another entity tag from each of two machines; `html404`: a page for what is not there;
//! `final501`; `away`: 503 for ever; `once`: 503 for each first request. All but those of the last line list folders as
//! Python does, `nginx` as nginx does, `odd` on pages of no known kind, and `dav` answers each method as GET.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub struct WebServer {
    address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    answers: AtomicUsize,
    asked: Mutex<Vec<String>>,
    /// Requests that have been refused once.
    refused: Mutex<BTreeSet<String>>,
}

impl WebServer {
    /// Serves these files in all its ways.
    pub fn new(files: BTreeMap<String, Vec<u8>>) -> WebServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared { files, ..Shared::default() });
        let serving = Arc::clone(&shared);
        // It ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        WebServer { address, shared }
    }

    /// The URL of a file or folder, read in this way.
    pub fn url(&self, how: &str, name: &str) -> String {
        format!("http://{}/{how}/{name}", self.address)
    }

    /// `METHOD PATH` of each request so far.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().unwrap().clone()
    }
}

struct Request {
    method: String,
    /// The name of the file, and the way to serve it.
    name: String,
    how: String,
    range: Option<String>,
}

impl Shared {
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let mut from = BufReader::new(stream);
        while let Some(request) = self.request(&mut from)? {
            if !self.answer(&request, stream)? {
                break;
            }
        }
        Ok(())
    }

    fn request(&self, from: &mut impl BufRead) -> io::Result<Option<Request>> {
        let mut line = String::new();
        let mut range = None;
        from.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
        let path = target.split('?').next().unwrap();
        let (how, name) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        let how = how.to_owned();
        let name = name.replace("%20", " ").replace("%26", "&");
        self.asked.lock().unwrap().push(format!("{method} {path}"));
        let method = method.to_owned();
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            match line.trim().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("range") => {
                    range = value.strip_prefix("bytes=").map(str::to_owned);
                }
                Some(_) => {}
                None => return Ok(Some(Request { method, name, how, range })),
            }
        }
    }

    fn is_new(&self, Request { method, name, range, .. }: &Request) -> bool {
        self.refused.lock().unwrap().insert(format!("{method} {name} {range:?}"))
    }

    /// Answers a request; returns whether the connection stays open.
    fn answer(&self, request: &Request, to: &TcpStream) -> io::Result<bool> {
        let Request { method, name, how, range } = request;
        let turn = self.answers.fetch_add(1, Ordering::SeqCst);
        let is_head = method == "HEAD";
        let refused = match (&**how, &**method) {
            ("away", _) => Some(503),
            ("once", _) if self.is_new(request) => Some(503),
            ("final501", _) => Some(501),
            (_, "HEAD") => how.strip_prefix("nohead").map(|status| status.parse().unwrap()),
            ("dav", _) | (_, "GET") => None,
            _ => Some(501),
        };
        if let Some(status) = refused {
            return reply(to, status, "", b"", is_head);
        }
        let Some(file) = self.files.get(name) else {
            return self.folder(name, how, to, is_head);
        };
        let tag = if how == "etags" { turn % 2 } else { 0 };
        let head = format!("ETag: \"{tag}\"\r\n");
        let range = range.as_deref().map(|range| span(range, file.len()));
        match (&**how, range) {
            ("chunked", _) | ("chunks206", None) => chunks(to, 200, &head, file, is_head),
            ("closing", _) => {
                write_all(to, format!("HTTP/1.0 200 OK\r\n{head}\r\n").as_bytes())?;
                if !is_head {
                    write_all(to, file)?;
                }
                Ok(false)
            }
            ("zero", _) if is_head => {
                write_all(to, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            }
            ("norange", _) | (_, None) => reply(to, 200, &head, file, is_head),
            (_, Some(None)) => reply(to, 416, "", b"", is_head),
            (_, Some(Some((first, end)))) => {
                let of = format!("Content-Range: bytes {first}-{}/{}\r\n", end - 1, file.len());
                let head = format!("{head}{of}");
                let part = &file[first..end];
                match &**how {
                    "chunks206" => chunks(to, 206, &head, part, is_head),
                    _ => reply(to, 206, &head, part, is_head),
                }
            }
        }
    }

    /// The page of a folder, or none.
    fn folder(&self, name: &str, how: &str, to: &TcpStream, is_head: bool) -> io::Result<bool> {
        let prefix = if name.is_empty() {
            String::new()
        } else {
            format!("{}/", name.trim_end_matches('/'))
        };
        let inside: BTreeSet<String> = (self.files.keys())
            .filter_map(|key| key.strip_prefix(&prefix))
            .map(|rest| rest.split_inclusive('/').next().unwrap_or(rest).to_owned())
            .collect();
        let html = "Content-Type: text/html; charset=utf-8\r\n";
        if inside.is_empty() {
            let status = if how == "html404" { 200 } else { 404 };
            return reply(to, status, html, b"<html>not found</html>", is_head);
        }
        if prefix != name {
            let at = format!("Location: /{how}/{prefix}\r\n");
            return reply(to, 301, &at, b"", is_head);
        }
        let title = match how {
            "odd" => "Our files".to_owned(),
            "nginx" => format!("Index of /{how}/{prefix}"),
            _ => format!("Directory listing for /{how}/{prefix}"),
        };
        let link = |name: &String| {
            let at = name.replace(' ', "%20").replace('&', "%26");
            format!("<a href=\"{at}\">{}</a>\r\n", name.replace('&', "&amp;"))
        };
        let up = if how == "nginx" { "<a href=\"../\">../</a>\r\n" } else { "" };
        let links: String = inside.iter().map(link).collect();
        let page =
            format!("<html><head><title>{title}</title></head><body>{up}{links}</body></html>");
        reply(to, 200, html, page.as_bytes(), is_head)
    }
}

/// The range that is asked for, of a file of this length.
fn span(range: &str, len: usize) -> Option<(usize, usize)> {
    let (first, last) = range.split_once('-').unwrap();
    let first: usize = first.parse().unwrap();
    let last: usize = last.parse().unwrap();
    (first < len).then(|| (first, len.min(last + 1)))
}

fn reply(to: &TcpStream, status: u16, head: &str, body: &[u8], is_head: bool) -> io::Result<bool> {
    let len = body.len();
    write_all(
        to,
        format!("HTTP/1.1 {status} Told\r\n{head}Content-Length: {len}\r\n\r\n").as_bytes(),
    )?;
    if !is_head {
        write_all(to, body)?;
    }
    Ok(true)
}

fn chunks(to: &TcpStream, status: u16, head: &str, body: &[u8], is_head: bool) -> io::Result<bool> {
    write_all(
        to,
        format!("HTTP/1.1 {status} Told\r\n{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes(),
    )?;
    for part in body.chunks(300).filter(|_| !is_head) {
        write_all(to, format!("{:x}\r\n", part.len()).as_bytes())?;
        write_all(to, &[part, b"\r\n"].concat())?;
    }
    if !is_head {
        write_all(to, b"0\r\n\r\n")?;
    }
    Ok(true)
}

fn write_all(mut to: &TcpStream, bytes: &[u8]) -> io::Result<bool> {
    to.write_all(bytes).map(|()| true)
}
