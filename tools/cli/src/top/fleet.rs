//! The addresses of metrics, `HOST:PORT` or `http://HOST:PORT/PATH`. Threads ask them ([`start`]), and [`Fleet`] keeps
//! the last two answers of each, and the failure of its last request.
//!
//! Requests use HTTP/1.0, so that an answer is never chunked. An answer that is too long, too slow or
//! incomplete is an error, and delays no other address. The threads are not joined: they end with the
//! process, or when nobody receives their answers.
//!
//! [`Fleet`] is pure: time is an argument.

use std::io::{self, ErrorKind, Write};
use std::net::ToSocketAddrs;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use super::page::{Between, Page, is_restarted};
use super::report::{Answers, Report};
use crate::net::{connect, left, read_within};

/// The addresses in the order in which they were given.
pub(super) struct Fleet {
    watched: Vec<Watched>,
    /// The time between two requests to an address.
    interval: Duration,
    /// The time at which the threads began to ask.
    began: Instant,
}

/// An address with its last answers.
#[derive(Default)]
struct Watched {
    address: String,
    /// The answer before the last one and its time, of the same process or of an earlier one.
    before: Option<(Instant, Page)>,
    /// The last answer and its time.
    last: Option<(Instant, Page)>,
    /// The failed requests since the last answer, if there are any.
    failure: Option<FailedRequests>,
    /// The time at which a request has failed last, even if later ones have succeeded.
    failed_at: Option<Instant>,
    /// The time of the first answer of the current process, if it is not the first process.
    restarted_at: Option<Instant>,
}

/// Failed requests of an address without an answer in between.
struct FailedRequests {
    /// The reason of the last one.
    why: String,
    /// The time of the first one.
    since: Instant,
}

impl Fleet {
    /// Begins without answers. `interval` is the time between two requests.
    pub(super) fn new(addresses: &[MetricsAddress], interval: Duration, now: Instant) -> Fleet {
        let watched = addresses
            .iter()
            .map(|address| Watched { address: address.to_string(), ..Watched::default() });
        Fleet { watched: watched.collect(), interval, began: now }
    }

    /// Takes an answer from the thread of an address.
    pub(super) fn take(&mut self, answer: Answer) {
        let Answer { index, asked, at, page } = answer;
        match page {
            Ok(page) => self.watched[index].answered(at, page),
            Err(why) => self.watched[index].failed(asked, at, why),
        }
    }

    /// Returns whether every address has answered twice, or failed.
    pub(super) fn is_measured(&self) -> bool {
        self.watched.iter().all(|watched| watched.before.is_some() || watched.failure.is_some())
    }

    /// Everything that is known at `now`.
    pub(super) fn report(&self, now: Instant) -> Report {
        let interval_seconds = self.interval.as_secs_f64();
        let mut report = Report { interval_seconds, ..Report::default() };
        let late = self.interval + TIME_LIMIT + Duration::from_secs(1);
        for watched in &self.watched {
            report.add(&watched.answers(now, self.began, late));
        }
        report
    }
}

impl Watched {
    /// Takes an answer.
    fn answered(&mut self, at: Instant, page: Page) {
        self.failure = None;
        let last = self.last.take();
        if last.as_ref().is_some_and(|(_, before)| is_restarted(before, &page)) {
            self.restarted_at = Some(at);
        }
        self.before = last;
        self.last = Some((at, page));
    }

    /// Takes the failure of a request that was sent at `asked`.
    fn failed(&mut self, asked: Instant, at: Instant, why: String) {
        self.failed_at = Some(at);
        match &mut self.failure {
            Some(failure) => failure.why = why,
            None => self.failure = Some(FailedRequests { why, since: asked }),
        }
    }

    /// The last answers at `now`, for the report. An address that has not answered for `late` counts as failed.
    fn answers(&self, now: Instant, began: Instant, late: Duration) -> Answers<'_> {
        let error = self.failure.as_ref().map(|failure| (&*failure.why, failure.since));
        // A request may hang without failing, since looking up a host name has no time limit.
        let last = self.last.as_ref().map_or(began, |(at, _)| *at);
        let error =
            error.or_else(|| (now.saturating_duration_since(last) > late).then_some((LATE, last)));
        let seconds_since = |then: Instant| now.saturating_duration_since(then).as_secs_f64();
        let restarted = self.restarted_at.map(seconds_since);
        Answers {
            address: &self.address,
            page: self.last.as_ref().map(|(_, page)| page),
            between: if error.is_some() { None } else { self.between() },
            error: error.map(|(why, since)| (why, seconds_since(since))),
            restarted_seconds: restarted.filter(|seconds| *seconds < RESTART_SHOWN_SECONDS),
        }
    }

    /// The comparison of the last two answers.
    fn between(&self) -> Option<Between<'_>> {
        let ((began, before), (at, after)) = self.before.as_ref().zip(self.last.as_ref())?;
        let mut began = *began;
        if self.restarted_at == Some(*at) {
            // A restarted process counts from 0. It began after the last failed request, if there was one since the
            // previous answer; the time before that does not count.
            began = self.failed_at.map_or(began, |failed| failed.max(began));
        }
        let seconds = at.saturating_duration_since(began).as_secs_f64();
        Some(Between::new(before, after, seconds.max(1e-3)))
    }
}

/// The error of an address that has not answered for too long, although no request has failed.
const LATE: &str = "no answer so far";
/// The time for which a restart is shown.
const RESTART_SHOWN_SECONDS: f64 = 60.0;

/// An answer of an address, from its thread.
pub(super) struct Answer {
    /// The index of the address.
    pub(super) index: usize,
    /// The time of the request.
    pub(super) asked: Instant,
    /// The time of the answer, or of the failure.
    pub(super) at: Instant,
    /// The page, or the reason why there is none.
    pub(super) page: Result<Page, String>,
}

/// Starts a thread for each address, and returns the receiver of their answers.
///
/// # Errors
/// Errors of starting a thread.
pub(super) fn start(
    addresses: Vec<MetricsAddress>,
    interval: Duration,
) -> dlfs::Result<Receiver<Answer>> {
    let (sender, answers) = channel();
    for (index, address) in addresses.into_iter().enumerate() {
        let sender = sender.clone();
        let ask_again_and_again = move || loop {
            let asked = Instant::now();
            let page = ask(&address, asked + TIME_LIMIT);
            let answer = Answer { index, asked, at: Instant::now(), page };
            if sender.send(answer).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(asked.elapsed()));
        };
        thread::Builder::new().name("dlfs-top".to_owned()).spawn(ask_again_and_again)?;
    }
    Ok(answers)
}

/// Sends one request; returns the page, or the reason why there is none.
fn ask(address: &MetricsAddress, until: Instant) -> Result<Page, String> {
    let answer = exchange(address, until).map_err(|error| reason(&error))?;
    let body = body_of(&answer)?;
    Page::parse(body)
}

/// Sends the request, and receives the whole answer.
fn exchange(address: &MetricsAddress, until: Instant) -> io::Result<Vec<u8>> {
    let stream = connect(address.authority.to_socket_addrs()?, || left(until))?;
    stream.set_write_timeout(Some(left(until)?))?;
    let MetricsAddress { authority, path } = address;
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/openmetrics-text\r\n\
         User-Agent: dlfs-top/{}\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    (&stream).write_all(request.as_bytes())?;
    let limit = || stream.set_read_timeout(Some(left(until)?));
    read_within(&stream, limit, MAX_ANSWER_BYTES, |_| false)
}

/// An error of the exchange, in words.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!("timed out after {} s", TIME_LIMIT.as_secs())
        }
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::InvalidData => TOO_LONG.to_owned(),
        _ => error.to_string(),
    }
}

/// The body of an answer with status 200.
fn body_of(answer: &[u8]) -> Result<&[u8], String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let status = head.parse(answer).map_err(|_| NOT_HTTP)?;
    match (status, head.code) {
        (httparse::Status::Complete(begin), Some(200)) => Ok(&answer[begin..]),
        (_, Some(code)) if code != 200 => {
            let reason: String = head.reason.unwrap_or_default().chars().take(60).collect();
            Err(format!("the answer is {code} {reason}"))
        }
        _ => Err(NOT_HTTP.to_owned()),
    }
}

/// Time limit of an answer, from connecting to its last byte.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The longest answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The most headers of an answer.
const MAX_HEADERS: usize = 64;
const TOO_LONG: &str = "the answer is longer than 16 MiB";
const NOT_HTTP: &str = "the answer is not HTTP";

/// An address that serves metrics over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricsAddress {
    /// `HOST:PORT`, for the socket and for the Host header.
    pub(crate) authority: String,
    /// Begins with `/`.
    pub(crate) path: String,
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        let wrong = || format!("{text:?} is not HOST:PORT or http://HOST:PORT{DEFAULT_PATH}");
        if text.starts_with("https://") {
            return Err("metrics are served without TLS: give http://HOST:PORT".to_owned());
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, DEFAULT_PATH),
        };
        let path = if path == "/" { DEFAULT_PATH } else { path };
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let is_host = !host.is_empty() && (bracketed || !host.contains(['[', ']', ':', '@']));
        // A line break would end the request line.
        let is_printable = rest.chars().all(|c| c.is_ascii_graphic());
        match port.parse::<u16>() {
            Ok(1..) if is_host && is_printable => {
                Ok(MetricsAddress { authority: authority.to_owned(), path: path.to_owned() })
            }
            _ => Err(wrong()),
        }
    }
}

/// The shortest form that can be given again.
impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path == DEFAULT_PATH { "" } else { &self.path };
        write!(f, "{}{path}", self.authority)
    }
}

/// The path of an address without one.
const DEFAULT_PATH: &str = "/metrics";

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fleet(count: usize, now: Instant) -> Fleet {
        let addresses: Vec<MetricsAddress> =
            (1..=count).map(|port| format!("h:{port}").parse().unwrap()).collect();
        Fleet::new(&addresses, SECOND, now)
    }

    fn target(reads: u64) -> Result<Page, String> {
        let text = format!(
            "dlfs_target_controllers{{subsystem=\"s\"}} 2\ndlfs_target_reads_total{{subsystem=\"s\"}} {reads}\n\
         dlfs_target_read_bytes_total{{subsystem=\"s\"}} {}\n# EOF\n",
            4096 * reads
        );
        Ok(Page::parse(text.as_bytes()).unwrap())
    }

    fn answer(index: usize, at: Instant, page: Result<Page, String>) -> Answer {
        Answer { index, asked: at, at, page }
    }

    fn address(fleet: &Fleet, now: Instant) -> serde_json::Value {
        fleet.report(now).to_json()["addresses"][0].clone()
    }

    fn rate(fleet: &Fleet, now: Instant) -> Option<f64> {
        address(fleet, now)["commands_per_second"].as_f64()
    }

    #[test]
    fn two_answers_make_a_rate_by_the_time_between_them() {
        let now = Instant::now();
        let mut fleet = fleet(1, now);
        fleet.take(answer(0, now, target(100)));
        assert_eq!((rate(&fleet, now), fleet.is_measured()), (None, false));
        assert_eq!(fleet.report(now).to_json()["subsystems"][0]["controllers"], 2.0);
        fleet.take(answer(0, now + SECOND * 4, target(300)));
        assert_eq!((rate(&fleet, now + SECOND * 4), fleet.is_measured()), (Some(50.0), true));
    }

    #[test]
    fn an_address_that_dies_says_so_and_comes_back_by_itself_counting_from_0() {
        let now = Instant::now();
        let mut fleet = fleet(1, now);
        fleet.take(answer(0, now, target(100)));
        fleet.take(answer(0, now + SECOND, target(200)));
        fleet.take(answer(0, now + SECOND * 2, Err("connection refused".into())));
        fleet.take(answer(0, now + SECOND * 9, Err("no route to host".into())));
        let report = fleet.report(now + SECOND * 10).to_json();
        let row = &report["addresses"][0];
        assert_eq!((&row["error"], &row["role"]), (&"no route to host".into(), &"target".into()));
        assert_eq!(row["error_seconds"], 8.0);
        assert!(row["commands_per_second"].is_null(), "{row}");
        assert_eq!(report["subsystems"].as_array().map(Vec::len), Some(0));

        fleet.take(answer(0, now + SECOND * 11, target(30)));
        let row = address(&fleet, now + SECOND * 12);
        assert!(row["error"].is_null(), "{row}");
        assert_eq!(row["restarted_seconds"], 1.0);
        assert_eq!(row["commands_per_second"], 15.0, "30 in the 2 s since it last failed");
        fleet.take(answer(0, now + SECOND * 12, target(40)));
        assert_eq!(rate(&fleet, now + SECOND * 12), Some(10.0));
        assert!(address(&fleet, now + SECOND * 100)["restarted_seconds"].is_null());
    }

    #[test]
    fn an_address_that_never_answers_is_late() {
        let now = Instant::now();
        let fleet = fleet(2, now);
        let second = |at| fleet.report(at).to_json()["addresses"][1].clone();
        assert!(second(now + SECOND)["error"].is_null());
        let row = second(now + SECOND * 20);
        assert_eq!((&row["error"], &row["error_seconds"]), (&LATE.into(), &20.0.into()));
    }

    #[test]
    fn only_a_body_with_status_200_is_a_page() {
        assert_eq!(body_of(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nx\n\ny"), Ok(&b"x\n\ny"[..]));
        assert_eq!(body_of(b"HTTP/1.0 200\n\n"), Ok(&b""[..]));
        let wrong = |answer: &[u8]| body_of(answer).unwrap_err();
        assert_eq!(wrong(b"HTTP/1.1 404 Not Found\r\n\r\n"), "the answer is 404 Not Found");
        for answer in
            [&b""[..], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1\n\n", b"\n\n"]
        {
            assert_eq!(wrong(answer), NOT_HTTP, "{answer:?}");
        }
    }

    /// A thread's answer from an address where `serve` handles one connection.
    fn asked(serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Page, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let server = thread::spawn(move || serve(listener.accept().unwrap().0));
        let answer = ask(&address, Instant::now() + Duration::from_secs(60));
        server.join().unwrap();
        answer
    }

    fn head(mut stream: &TcpStream) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_answer_in_pieces_is_a_page_and_one_that_is_cut_off_is_none() {
        let page = asked(|mut stream| {
            assert!(head(&stream).starts_with("GET /metrics HTTP/1.0\r\nHost: 127.0.0.1:"));
            for piece in ["HTTP/1.1 200 OK\r", "\n\r\ndlfs_a_total", " 5\n# E", "OF\n"] {
                stream.write_all(piece.as_bytes()).unwrap();
            }
        });
        assert_eq!(page.unwrap().series("dlfs_a_total").values().next(), Some(&5.0));
        let cut = asked(|mut stream| {
            head(&stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\ndlfs_a_total 5\n").unwrap();
        });
        assert_eq!(cut.unwrap_err(), "the answer ends early: it has no # EOF");
    }

    #[test]
    fn an_answer_without_end_is_an_error() {
        let endless = asked(|mut stream| {
            head(&stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let line = b"# x\n".repeat(10_000);
            // Fails once the other side has closed the connection.
            while stream.write_all(&line).is_ok() {}
        });
        assert_eq!(endless.unwrap_err(), TOO_LONG);
    }

    #[test]
    fn an_address_that_is_silent_or_absent_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: MetricsAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(ask(&address, soon).unwrap_err(), "timed out after 5 s");
        // Bound but not listening, so that no other program gets the port.
        let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = SocketAddr::try_from(getsockname(&bound).unwrap()).unwrap();
        let address = address.to_string().parse().unwrap();
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(ask(&address, soon).unwrap_err(), "connection refused");
    }

    #[test]
    fn an_address_is_a_host_and_port_or_a_url() {
        for (text, authority, path, shown) in [
            ("127.0.0.1:9410", "127.0.0.1:9410", "/metrics", "127.0.0.1:9410"),
            ("http://127.0.0.1:9410/metrics", "127.0.0.1:9410", "/metrics", "127.0.0.1:9410"),
            ("http://node-7:80/", "node-7:80", "/metrics", "node-7:80"),
            ("[::1]:9410", "[::1]:9410", "/metrics", "[::1]:9410"),
            ("proxy:80/a/metrics", "proxy:80", "/a/metrics", "proxy:80/a/metrics"),
        ] {
            let found: MetricsAddress = text.parse().unwrap();
            assert_eq!((&*found.authority, &*found.path), (authority, path), "{text}");
            assert_eq!(found.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_says_what_one_is() {
        for text in [
            "",
            "node7",
            ":9410",
            "node7:",
            "node7:0",
            "node7:65536",
            "::1:9410",
            "user@node7:9410",
            "node7:9410/a b",
            "node7:9410/\r\nX: y",
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert!(error.contains("HOST:PORT"), "{text:?}: {error}");
        }
        let error = "https://node7:9410/metrics".parse::<MetricsAddress>().unwrap_err();
        assert!(error.contains("without TLS"), "{error}");
    }
}
