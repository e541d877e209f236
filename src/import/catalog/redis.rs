//! A catalogue in a Redis or Valkey server, for sites that have one.
//!
//! | key                         | type | holds                                                             |
//! |-----------------------------|------|-------------------------------------------------------------------|
//! | `dlfs:catalog`              | hash | `format` -> 1                                                     |
//! | `dlfs:names`                | set  | names of data sets                                                |
//! | `dlfs:versions:NAME`        | hash | number -> record of a version                                     |
//! | `dlfs:aliases:NAME`         | set  | aliases                                                           |
//! | `dlfs:alias:NAME:ALIAS`     | hash | number -> target of the alias                                     |
//! | `dlfs:dataset:NAME`         | hash | the fields of an [`Index`]; for `chunks` their number             |
//! | `dlfs:chunks:NAME`          | hash | chunk id -> `time_ns bytes samples deleted`                       |
//!
//! HSETNX creates an entry: of several callers exactly one succeeds. The last two keys hold the index of chunks: see
//! `index.rs`. A transaction replaces both, so readers see either the old pair or the new pair.
//!
//! `resp.rs` speaks to the server. The server is not trusted: the answers to the commands of one call have a [`Limit`]
//! and a deadline together. After a failure the connection is closed, so the rest of an answer is never taken for the
//! next one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::catalog::resp::{Command, Connection, Failure, Limit, Server, Value, command};
use crate::catalog::store::{
    Log, MAX_ENTRY_BYTES, MAX_INDEX_BYTES, MAX_LISTED, MAX_LOG_BYTES, Store, number_of,
};
use crate::catalog::{ChunkEntry, Index};
use dlfs_base::error::{Error, ErrorKind, Result};

/// A catalogue in a server.
#[derive(Clone)]
pub(super) struct RedisStore {
    /// The name of the catalogue, for messages.
    catalog: String,
    server: Arc<Server>,
    /// The open connection, if there is one. The lock is held during a call, so that calls take turns.
    connection: Arc<Mutex<Option<Connection>>>,
    /// The deadline of the current call to the catalogue. `None`: only [`ANSWER_TIMEOUT`] applies.
    until: Option<Instant>,
}

impl RedisStore {
    /// The catalogue called `catalog` in the server at `url`. The URL may contain a password, so it is never shown.
    ///
    /// # Errors
    /// `InvalidArgument`: `url` is no address of a server.
    pub(super) fn new(catalog: &str, url: &str) -> Result<RedisStore> {
        let server = Server::parse(url).ok_or_else(|| {
            let message =
                format!("the address of the catalogue {catalog} is not redis://HOST:PORT/NUMBER");
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        let server = Arc::new(server);
        let connection = Arc::default();
        Ok(RedisStore { catalog: catalog.to_owned(), server, connection, until: None })
    }

    /// Sends the commands on the connection, and returns the answer to the last one. Opens the
    /// connection if there is none; closes it after a failure.
    fn ask(&self, commands: &[Command], limit: Limit) -> Result<Value> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        let until = self.until.map_or(until, |call| until.min(call));
        let ask = || -> Result<Value, Failure> {
            let guard = self.connection.try_lock_until(until);
            let mut open = guard.ok_or(std::io::Error::from(std::io::ErrorKind::TimedOut))?;
            let mut connection = match open.take() {
                Some(connection) => connection,
                None => self.server.connect(until)?,
            };
            let answer = connection.ask(commands, limit, until)?;
            *open = Some(connection);
            Ok(answer)
        };
        ask().map_err(|failure| self.failed(failure))
    }

    fn ask_one(&self, words: &[&[u8]], limit: Limit) -> Result<Value> {
        self.ask(&[command(words.iter().copied())], limit)
    }

    /// The error for the failure of commands.
    fn failed(&self, failure: Failure) -> Error {
        use std::io::ErrorKind::{InvalidData, TimedOut, WouldBlock};
        let message =
            format!("the server of the catalogue {} did not answer as it should", self.catalog);
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

    /// The strings that a command answers.
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

/// The command that sets fields of the hash `key`.
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

/// Parses an entry as [`text_of`] writes it. `None`: `text` has another form.
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

/// The deadline of the answers to commands that are sent together.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Chunks that one command adds to the index.
const CHUNKS_A_COMMAND: usize = 1000;

/// A number or a state.
const SHORT: Limit = Limit { bytes: 4096, values: 1 };
/// A record, or the target of an alias.
const ENTRY: Limit = Limit { bytes: MAX_ENTRY_BYTES + 4096, values: 1 };
/// A list of names or numbers.
const LIST: Limit = Limit { bytes: MAX_LOG_BYTES, values: MAX_LISTED as u32 };
/// The index of chunks, in which each chunk has two values: its id and its entry.
const INDEX: Limit = Limit { bytes: MAX_INDEX_BYTES, values: 1 << 24 };

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
}
