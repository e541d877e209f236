//! A catalogue in a Redis or Valkey server, for sites that have one.
//!
//! | key                         | type | holds                                                             |
//! |-----------------------------|------|-------------------------------------------------------------------|
//! | `dlfs:catalog`              | hash | `format` -> 1                                                     |
//! | `dlfs:names`                | set  | names of data sets                                                |
//! | `dlfs:versions:NAME`        | hash | number -> record of a version                                     |
//! | `dlfs:aliases:NAME`         | set  | aliases                                                           |
//! | `dlfs:alias:NAME:ALIAS`     | hash | number -> target of the alias                                     |
//! | `dlfs:dataset:NAME`         | hash | the fields of an [`Index`], with the number of chunks |
//! | `dlfs:chunks:NAME`          | hash | chunk id -> `time_ns bytes samples deleted`                       |
//!
//! HSETNX creates an entry: of several callers exactly one succeeds. The last two keys are DIESEL's
//! entries. A transaction replaces both, so readers see either the old pair or the new pair.
//! The connection speaks RESP2. The server is not trusted: each answer has a [`Limit`] and a deadline. After a
//! failure the connection is closed, so the rest of an answer is never taken for the next one.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::catalog::store::{
    Log, MAX_ENTRY_BYTES, MAX_INDEX_BYTES, MAX_LISTED, MAX_LOG_BYTES, Store, number_of,
};
use crate::catalog::{ChunkEntry, Index};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_io::address::unescape_all;

/// A catalogue in a server.
#[derive(Clone)]
pub(super) struct RedisStore {
    word: String,
    server: Arc<Server>,
    connection: Arc<Mutex<Option<Connection>>>,
    /// The deadline of the current call.
    until: Option<Instant>,
}

impl RedisStore {
    /// The catalogue `word` in the server at `url`. The URL may contain a password, so it is never
    /// shown.
    pub(super) fn new(word: &str, url: &str) -> Result<RedisStore> {
        let server = Server::parse(url).ok_or_else(|| {
            let message =
                format!("the address of the catalogue {word} is not redis://HOST:PORT/NUMBER");
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        let server = Arc::new(server);
        let connection = Arc::default();
        Ok(RedisStore { word: word.to_owned(), server, connection, until: None })
    }

    /// Sends the commands on the connection, and returns the answer to the last one. Opens the
    /// connection if there is none; closes it after a failure.
    fn ask(&self, commands: &[Command], limit: Limit) -> Result<Value> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        let until = self.until.map_or(until, |call| until.min(call));
        let ask = || -> Result<Value, Failure> {
            let held = self.connection.try_lock_until(until);
            let mut held = held.ok_or(std::io::Error::from(std::io::ErrorKind::TimedOut))?;
            let mut connection = match held.take() {
                Some(connection) => connection,
                None => self.server.connect(until)?,
            };
            let answer = connection.ask(commands, limit, until)?;
            *held = Some(connection);
            Ok(answer)
        };
        ask().map_err(|failure| self.failed(failure))
    }

    fn ask_one(&self, words: &[&[u8]], limit: Limit) -> Result<Value> {
        self.ask(&[command(words.iter().copied())], limit)
    }

    fn failed(&self, failure: Failure) -> Error {
        use std::io::ErrorKind::{InvalidData, TimedOut, WouldBlock};
        let message =
            format!("the server of the catalogue {} did not answer as it should", self.word);
        let (kind, why) = match failure {
            Failure::Io(error) => match error.kind() {
                TimedOut | WouldBlock => (ErrorKind::TimedOut, "it takes too long".to_owned()),
                InvalidData => (ErrorKind::Corrupt, error.to_string()),
                _ => (ErrorKind::Disconnected, error.to_string()),
            },
            Failure::Refused(code) => match &*code {
                "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" => {
                    (ErrorKind::Disconnected, code)
                }
                "WRONGTYPE" => (ErrorKind::Corrupt, code),
                _ => (ErrorKind::Refused, code),
            },
        };
        Error::new(kind, message).source(why)
    }

    fn malformed(&self) -> Error {
        let why = "the answer is of another type";
        self.failed(std::io::Error::new(std::io::ErrorKind::InvalidData, why).into())
    }

    fn texts(&self, words: &[&[u8]]) -> Result<Vec<String>> {
        self.ask_one(words, LIST)?.into_texts().ok_or_else(|| self.malformed())
    }

    /// Returns whether the answer to a command is 1.
    fn is_one(&self, words: &[&[u8]]) -> Result<bool> {
        match self.ask_one(words, SHORT)? {
            Value::Int(number) => Ok(number == 1),
            _ => Err(self.malformed()),
        }
    }
}

impl Store for RedisStore {
    fn create(&self) -> Result<()> {
        self.is_one(&[b"HSETNX", b"dlfs:catalog", b"format", b"1"]).map(drop)
    }

    fn names(&self) -> Result<Vec<String>> {
        self.texts(&[b"SMEMBERS", b"dlfs:names"])
    }

    fn aliases(&self, name: &str) -> Result<Vec<String>> {
        self.texts(&[b"SMEMBERS", format!("dlfs:aliases:{name}").as_bytes()])
    }

    fn numbers(&self, log: &Log) -> Result<Vec<u64>> {
        let fields = self.texts(&[b"HKEYS", key_of(log).as_bytes()])?;
        let number = |field: &String| number_of(field).ok_or_else(|| self.malformed());
        fields.iter().map(number).collect()
    }

    fn read(&self, log: &Log, number: u64) -> Result<Option<Vec<u8>>> {
        let number = number.to_string();
        match self.ask_one(&[b"HGET", key_of(log).as_bytes(), number.as_bytes()], ENTRY)? {
            Value::Nil => Ok(None),
            Value::Bytes(bytes) => Ok(Some(bytes)),
            _ => Err(self.malformed()),
        }
    }

    fn append(&self, log: &Log, number: u64, bytes: &[u8]) -> Result<bool> {
        // The set comes first: a name without entries is harmless, but an entry whose name is not
        // in the set would not be found.
        match log {
            Log::Versions(name) => self.is_one(&[b"SADD", b"dlfs:names", name.as_bytes()])?,
            Log::Alias(name, alias) => {
                let aliases = format!("dlfs:aliases:{name}");
                self.is_one(&[b"SADD", aliases.as_bytes(), alias.as_bytes()])?
            }
        };
        let number = number.to_string();
        self.is_one(&[b"HSETNX", key_of(log).as_bytes(), number.as_bytes(), bytes])
    }

    fn read_index(&self, name: &str) -> Result<Option<Index>> {
        let all = |key: String| command([&b"HGETALL"[..], key.as_bytes()]);
        let both = [
            command([&b"MULTI"[..]]),
            all(format!("dlfs:dataset:{name}")),
            all(format!("dlfs:chunks:{name}")),
            command([&b"EXEC"[..]]),
        ];
        let Value::Array(both) = self.ask(&both, INDEX)? else { return Err(self.malformed()) };
        let maps = both.into_iter().map(Value::into_map).collect::<Option<Vec<_>>>();
        let Some([about, chunks]) = maps.and_then(|maps| <[_; 2]>::try_from(maps).ok()) else {
            return Err(self.malformed());
        };
        if about.is_empty() && chunks.is_empty() {
            return Ok(None);
        }
        let corrupt = || {
            Error::new(ErrorKind::Corrupt, "the index of chunks in the catalogue is none of dlfs")
        };
        let number =
            |field: &str| about.get(field).and_then(|text| text.parse().ok()).ok_or_else(corrupt);
        let entries = chunks.into_iter().map(|(id, text)| Some((id, entry_of(&text)?)));
        Ok(Some(Index {
            image: about.get("image").ok_or_else(corrupt)?.clone(),
            generation: number("generation")?,
            updated_ns: number("updated_ns")?,
            bytes: number("bytes")?,
            samples: number("samples")?,
            deleted: number("deleted")?,
            chunks: entries.collect::<Option<_>>().ok_or_else(corrupt)?,
        }))
    }

    fn write_index(&self, name: &str, index: Option<&Index>) -> Result<()> {
        let about = format!("dlfs:dataset:{name}");
        let chunks = format!("dlfs:chunks:{name}");
        let mut all = vec![command([&b"MULTI"[..]])];
        all.push(command([&b"DEL"[..], about.as_bytes(), chunks.as_bytes()]));
        if let Some(index) = index {
            let fields = [
                ("image", index.image.clone()),
                ("generation", index.generation.to_string()),
                ("updated_ns", index.updated_ns.to_string()),
                ("chunks", index.chunks.len().to_string()),
                ("bytes", index.bytes.to_string()),
                ("samples", index.samples.to_string()),
                ("deleted", index.deleted.to_string()),
            ];
            all.push(set(&about, fields));
            let mut entries =
                index.chunks.iter().map(|(id, entry)| (id, text_of(entry))).peekable();
            while entries.peek().is_some() {
                all.push(set(&chunks, entries.by_ref().take(CHUNKS_A_COMMAND)));
            }
        }
        all.push(command([&b"EXEC"[..]]));
        self.ask(&all, INDEX).map(drop)
    }

    fn until(&self, until: Instant) -> Option<Box<dyn Store>> {
        Some(Box::new(RedisStore { until: Some(until), ..self.clone() }))
    }
}

impl Value {
    fn into_texts(self) -> Option<Vec<String>> {
        let text = |value| match value {
            Value::Bytes(bytes) => String::from_utf8(bytes).ok(),
            _ => None,
        };
        match self {
            Value::Array(values) => values.into_iter().map(text).collect(),
            _ => None,
        }
    }

    /// Reads an array in which keys and values alternate.
    fn into_map(self) -> Option<BTreeMap<String, String>> {
        let mut texts = self.into_texts()?.into_iter();
        let pairs = std::iter::from_fn(|| Some((texts.next()?, texts.next()?)));
        Some(pairs.collect())
    }
}

/// Sets fields of the hash `key`.
fn set(key: &str, fields: impl IntoIterator<Item = (impl AsRef<str>, String)>) -> Command {
    let mut words = command([&b"HSET"[..], key.as_bytes()]);
    for (field, value) in fields {
        words.extend([field.as_ref().as_bytes().to_vec(), value.into_bytes()]);
    }
    words
}

fn key_of(log: &Log) -> String {
    match log {
        Log::Versions(name) => format!("dlfs:versions:{name}"),
        Log::Alias(name, alias) => format!("dlfs:alias:{name}:{alias}"),
    }
}

fn text_of(entry: &ChunkEntry) -> String {
    let ChunkEntry { time_ns, bytes, samples, deleted } = entry;
    format!("{time_ns} {bytes} {samples} {deleted}")
}

fn entry_of(text: &str) -> Option<ChunkEntry> {
    let mut words = text.split(' ');
    let entry = ChunkEntry {
        time_ns: words.next()?.parse().ok()?,
        bytes: words.next()?.parse().ok()?,
        samples: words.next()?.parse().ok()?,
        deleted: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(entry)
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const CHUNKS_A_COMMAND: usize = 1000;

const SHORT: Limit = Limit { bytes: 4096, values: 1 };
const ENTRY: Limit = Limit { bytes: MAX_ENTRY_BYTES + 4096, values: 1 };
const LIST: Limit = Limit { bytes: MAX_LOG_BYTES, values: MAX_LISTED as u32 };
/// Each chunk has two values.
const INDEX: Limit = Limit { bytes: MAX_INDEX_BYTES, values: 1 << 24 };

/// Address of a server, and the login for it.
pub(super) struct Server {
    host: String,
    port: u16,
    user: Option<String>,
    password: Option<Zeroizing<String>>,
    database: u32,
}

/// A command: its name, then its arguments.
pub(super) type Command = Vec<Vec<u8>>;

/// Limits of all answers to one burst of commands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) bytes: u64,
    pub(super) values: u32,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
}

#[derive(Debug)]
pub(super) enum Failure {
    /// I/O failed. `InvalidData`: the bytes are not RESP2, or exceed the limit.
    Io(io::Error),
    /// The first word of the server's error message.
    Refused(String),
}

impl Server {
    /// Parses `redis://[[USER]:PASSWORD@]HOST[:PORT][/NUMBER]`.
    pub(super) fn parse(url: &str) -> Option<Server> {
        let (_, rest) = url.split_once("://")?;
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let given = |text: &str| unescape_all(text).ok();
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !place.ends_with(']') => (host, port.parse().ok()?),
            _ => (place, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let user = given(user)?;
        let password = Zeroizing::new(given(password)?);
        (!host.is_empty()).then_some(Server {
            host,
            port,
            user: (!user.is_empty()).then_some(user),
            password: (!password.is_empty()).then_some(password),
            database: if database.is_empty() { 0 } else { database.parse().ok()? },
        })
    }

    /// Connects and logs in.
    pub(super) fn connect(&self, until: Instant) -> Result<Connection, Failure> {
        let reader = BufReader::new(Timed { stream: self.reach(until)?, until });
        let mut connection = Connection { reader, limit: GREETING };
        if let Some(password) = &self.password {
            let user = self.user.as_ref().map(|user| user.as_bytes());
            let words = [Some(&b"AUTH"[..]), user, Some(password.as_bytes())];
            connection.ask(&[command(words.into_iter().flatten())], GREETING, until)?;
        }
        if self.database > 0 {
            let database = self.database.to_string();
            connection.ask(&[command([&b"SELECT"[..], database.as_bytes()])], GREETING, until)?;
        }
        Ok(connection)
    }

    fn reach(&self, until: Instant) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (&*self.host, self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(until)?.min(CONNECT_TIMEOUT)) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// The command made of these words.
pub(super) fn command<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Command {
    words.into_iter().map(<[u8]>::to_vec).collect()
}

/// An open connection.
pub(super) struct Connection {
    reader: BufReader<Timed>,
    /// The part of the limit that the current answers have not used.
    limit: Limit,
}

impl Connection {
    /// Sends commands together, and returns the answer to the last one. `limit` covers all answers
    /// together.
    ///
    /// # Errors
    /// The connection is unusable after an error.
    pub(super) fn ask(
        &mut self,
        commands: &[Command],
        limit: Limit,
        until: Instant,
    ) -> Result<Value, Failure> {
        let mut bytes = Zeroizing::new(Vec::new());
        for words in commands {
            write!(bytes, "*{}\r\n", words.len())?;
            for word in words {
                write!(bytes, "${}\r\n", word.len())?;
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.reader.get_mut().until = until;
        self.reader.get_mut().write_all(&bytes)?;
        self.limit = limit;
        let mut last = Value::Nil;
        for _ in commands {
            last = self.value(0)?;
        }
        Ok(last)
    }

    fn value(&mut self, depth: u32) -> Result<Value, Failure> {
        self.limit.values = self.limit.values.checked_sub(1).ok_or_else(too_long)?;
        let line = self.line()?;
        let text = std::str::from_utf8(line.get(1..).unwrap_or_default()).unwrap_or_default();
        let number = || text.parse::<i64>().map_err(|_| malformed());
        match line.first() {
            Some(b'+') => Ok(Value::Bytes(text.as_bytes().to_vec())),
            Some(b'-') => Err(Failure::Refused(first_word(text))),
            Some(b':') => Ok(Value::Int(number()?)),
            Some(b'$' | b'*') if number()? == -1 => Ok(Value::Nil),
            Some(b'$') => {
                let len = u64::try_from(number()?).map_err(|_| malformed())?;
                Ok(Value::Bytes(self.bytes(len)?))
            }
            Some(b'*') if depth < MAX_DEPTH => {
                let len = u32::try_from(number()?).map_err(|_| malformed())?;
                if len > self.limit.values {
                    return Err(too_long().into());
                }
                (0..len).map(|_| self.value(depth + 1)).collect::<Result<_, _>>().map(Value::Array)
            }
            _ => Err(malformed().into()),
        }
    }

    /// Reads a string of the announced length. Memory grows as bytes arrive, not by the announced
    /// length.
    fn bytes(&mut self, len: u64) -> io::Result<Vec<u8>> {
        let whole = len.checked_add(2).ok_or_else(too_long)?;
        self.take(whole)?;
        let mut bytes = Vec::new();
        self.reader.by_ref().take(whole).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != whole {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !bytes.ends_with(b"\r\n") {
            return Err(malformed());
        }
        bytes.truncate(bytes.len() - 2);
        Ok(bytes)
    }

    /// Reads a line, and strips its line ending.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        self.take(line.len() as u64)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line.to_vec()),
            None if line.ends_with(b"\n") || line.len() as u64 == MAX_LINE_BYTES => {
                Err(malformed())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn take(&mut self, bytes: u64) -> io::Result<()> {
        self.limit.bytes = self.limit.bytes.checked_sub(bytes).ok_or_else(too_long)?;
        Ok(())
    }
}

/// A socket whose reads and writes have a deadline.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        self.stream.read(buf)
    }
}

impl Write for Timed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The code of a server's error. The rest of the message is dropped: it may quote what was sent.
fn first_word(text: &str) -> String {
    text.chars().take_while(char::is_ascii_uppercase).take(32).collect()
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is none of this protocol")
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is too long")
}

const DEFAULT_PORT: u16 = 6379;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const GREETING: Limit = Limit { bytes: 4096, values: 1 };
/// Long enough: lines hold only numbers, states and errors.
const MAX_LINE_BYTES: u64 = 4096;
/// A transaction's answer is an array of arrays.
const MAX_DEPTH: u32 = 2;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::catalog::Catalog;
    use dlfs_io::address::CatalogPlace;

    #[test]
    fn a_call_that_has_ended_reads_nothing_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}/0", listener.local_addr().unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut sent =
                client.read(&mut [0; 1000]).and_then(|_| client.write_all(b"*100000\r\n"));
            while sent.is_ok() {
                std::thread::sleep(Duration::from_millis(10));
                sent = client.write_all(b"$1\r\nx\r\n");
            }
            tell.send(()).unwrap();
        });
        let store = Arc::new(RedisStore::new("site", &url).unwrap());
        let catalog = Catalog::of_store(CatalogPlace::Configured("site".to_owned()), store);
        let catalog = catalog.with_deadline(Duration::from_millis(200));
        assert_eq!(catalog.names().unwrap_err().kind(), ErrorKind::TimedOut);
        told.recv_timeout(Duration::from_secs(60)).expect("the connection is closed");
    }

    /// Returns the client's result for the answer `bytes`, after the client has closed the
    /// connection.
    fn answer(bytes: &'static [u8]) -> Result<Value, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}/0", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.write_all(bytes).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest); // reset if bytes were left unread
        });
        let until = Instant::now() + Duration::from_secs(60);
        let mut connection = Server::parse(&url).unwrap().connect(until).unwrap();
        let limit = Limit { bytes: 1000, values: 10 };
        let value = connection.ask(&[command([&b"GET"[..], b"x"])], limit, until);
        drop(connection);
        server.join().unwrap();
        value
    }

    #[test]
    fn answers_are_read_as_the_protocol_says() {
        let bytes = |text: &str| Value::Bytes(text.as_bytes().to_vec());
        for (sent, value) in [
            (&b"+OK\r\n"[..], bytes("OK")),
            (b":-7\r\n", Value::Int(-7)),
            (b"$4\r\na\r\nb\r\n", bytes("a\r\nb")),
            (b"$0\r\n\r\n", bytes("")),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (
                b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
                Value::Array(vec![Value::Array(vec![Value::Int(1)]), bytes("x")]),
            ),
        ] {
            assert_eq!(answer(sent).unwrap(), value, "{:?}", sent.escape_ascii().to_string());
        }
        assert!(
            matches!(answer(b"-WRONGPASS it was s3cret\r\n"), Err(Failure::Refused(code)) if code == "WRONGPASS")
        );
    }

    #[test]
    fn what_is_no_answer_too_long_or_cut_off_is_told_apart() {
        for sent in [
            &b"$1000\r\n"[..],
            b"$9223372036854775807\r\n",
            b"$-2\r\n",
            b"*11\r\n",
            b"*2000000000\r\n",
            b"*9\r\n*9\r\n:1\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            b">2\r\n+a\r\n+b\r\n",
            b":9999999999999999999999\r\n",
            b"$1\r\nxyz",
            b"+a\n",
            b"\r\n",
            b"\xff\xfe\r\n",
            &[b'+'; 5000],
        ] {
            let shown = sent.escape_ascii().to_string();
            match answer(sent) {
                Err(Failure::Io(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{shown:.80}: {error}");
                }
                other => panic!("{shown:.80}: {other:?}"),
            }
        }
        for sent in [&b""[..], b"+OK", b"$3\r\nab", b"*2\r\n:1\r\n"] {
            match answer(sent) {
                Err(Failure::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn an_address_has_login_port_and_number_or_not() {
        let parse = |url: &str| {
            let Server { host, port, user, password, database } = Server::parse(url)?;
            let password = password.map_or(String::new(), |password| password.to_string());
            Some((host, port, user.unwrap_or_default(), password, database))
        };
        let known = |host: &str, port, user: &str, password: &str, database| {
            Some((host.to_owned(), port, user.to_owned(), password.to_owned(), database))
        };
        assert_eq!(parse("redis://h"), known("h", 6379, "", "", 0));
        assert_eq!(parse("valkey://[::1]:7/2"), known("::1", 7, "", "", 2));
        assert_eq!(parse("redis://[::1]/"), known("::1", 6379, "", "", 0));
        assert_eq!(parse("redis://:a%40b@h:7"), known("h", 7, "", "a@b", 0));
        assert_eq!(parse("redis://me:s/3@h/1"), known("h", 6379, "me", "s/3", 1));
        for wrong in
            ["redis://", "redis://h:x", "redis://h/x", "redis://h/0?a=b", "redis://:%zz@h", "h"]
        {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
