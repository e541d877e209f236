//! A client of a Redis or Valkey server, which speaks RESP2.
//!
//! The server is not trusted: its answers have a [`Limit`] and a deadline. Only the look-up of the host's name has no
//! deadline.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use dlfs_io::address::unescape_all;

/// Address of a server, and the login for it.
pub(super) struct Server {
    host: String,
    port: u16,
    /// `None`: the server's default user.
    user: Option<String>,
    /// `None`: there is no login.
    password: Option<Zeroizing<String>>,
    /// The number of the database.
    database: u32,
}

/// A command: its name, then its arguments.
pub(super) type Command = Vec<Vec<u8>>;

/// Limits for the answers to the commands of one [`Connection::ask`], all answers together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// Maximum number of bytes.
    pub(super) bytes: u64,
    /// Maximum number of values, each array and each of its elements counted.
    pub(super) values: u32,
}

/// The answer to a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// There is no value.
    Nil,
    Int(i64),
    /// A string, or a state such as `OK`.
    Bytes(Vec<u8>),
    Array(Vec<Value>),
}

/// The failure of commands.
#[derive(Debug)]
pub(super) enum Failure {
    /// I/O failed. `InvalidData`: the bytes are not RESP2, or exceed the limit.
    Io(io::Error),
    /// The first word of the server's error message.
    Refused(String),
}

impl Value {
    /// The strings of an array; `None`: it is none, or they are not UTF-8.
    pub(super) fn into_texts(self) -> Option<Vec<String>> {
        let text = |value| match value {
            Value::Bytes(bytes) => String::from_utf8(bytes).ok(),
            _ => None,
        };
        match self {
            Value::Array(values) => values.into_iter().map(text).collect(),
            _ => None,
        }
    }

    /// The map of an array in which keys and values alternate; `None` as in [`into_texts`](Self::into_texts).
    pub(super) fn into_map(self) -> Option<BTreeMap<String, String>> {
        let mut texts = self.into_texts()?.into_iter();
        let pairs = std::iter::from_fn(|| Some((texts.next()?, texts.next()?)));
        Some(pairs.collect())
    }
}

impl Server {
    /// Parses `redis://[[USER]:PASSWORD@]HOST[:PORT][/NUMBER]`, with any scheme. `None`: `url` has another form.
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

    /// Connects, logs in if there is a password, and selects the database, before the deadline `until`.
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

    /// Connects to the first of the host's addresses that answers, before the deadline `until`.
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

    /// Reads a value, within `depth` arrays.
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

    /// Reads a string of `len` bytes, as the server states. Memory grows as the bytes arrive.
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

    /// Subtracts `bytes` from the limit.
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        self.limit.bytes = self.limit.bytes.checked_sub(bytes).ok_or_else(too_long)?;
        Ok(())
    }
}

/// A socket whose reads and writes together have the deadline `until`.
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

/// The time until the deadline, which must not be over.
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
/// The deadline of a connection attempt to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Limit of the answers to a login and to the choice of a database.
const GREETING: Limit = Limit { bytes: 4096, values: 1 };
/// Lines hold only numbers, states and errors, which are far shorter.
const MAX_LINE_BYTES: u64 = 4096;
/// A transaction's answer is an array of arrays.
const MAX_DEPTH: u32 = 2;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

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
