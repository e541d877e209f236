//! A catalogue in a Redis or Valkey server, for sites that have one.
//!
//! | key                         | type | holds                                                             |
//! |-----------------------------|------|-------------------------------------------------------------------|
//! | `dlfs:catalog`              | hash | `format` -> 1                                                     |
//! | `dlfs:names`                | set  | names of data sets                                                |
//! | `dlfs:versions:NAME`        | hash | number -> record of a version                                     |
//! | `dlfs:aliases:NAME`         | set  | aliases                                                           |
//! | `dlfs:alias:NAME:ALIAS`     | hash | number -> where the alias points                                  |
//! | `dlfs:dataset:NAME`         | hash | the fields of an [`Index`], with the number of chunks |
//! | `dlfs:chunks:NAME`          | hash | chunk id -> `time_ns bytes samples deleted`                       |
//!
//! Entries are created by HSETNX, which one of several callers succeeds with. The last two are DIESEL's entries; they
//! are replaced within a transaction, so that readers see the old ones or the new ones.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Client, Connection, FromRedisValue, RedisError};

use super::store::{Log, Store};
use super::{ChunkEntry, Index};
use crate::error::{Error, ErrorKind, Result};

/// A catalogue in a server.
pub(super) struct RedisStore {
    word: String,
    client: Client,
    connection: Mutex<Option<Connection>>,
}

impl RedisStore {
    /// The catalogue `word` in the server at `url`, which may have a password and is never shown.
    pub(super) fn new(word: &str, url: &str) -> Result<RedisStore> {
        let client = Client::open(url).map_err(|error| {
            let message =
                format!("the address of the catalogue {word} is not redis://HOST:PORT/NUMBER");
            Error::new(ErrorKind::InvalidArgument, message).source(error.category().to_owned())
        })?;
        Ok(RedisStore { word: word.to_owned(), client, connection: Mutex::new(None) })
    }

    /// Runs `work` on the connection, which is opened if there is none, and closed after a failure.
    fn ask<T>(&self, work: impl FnOnce(&mut Connection) -> redis::RedisResult<T>) -> Result<T> {
        let mut held = self.connection.lock();
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => self.connect().map_err(|error| self.failed(&error))?,
        };
        let result = work(&mut connection);
        if result.is_ok() {
            *held = Some(connection);
        }
        result.map_err(|error| self.failed(&error))
    }

    fn connect(&self) -> redis::RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(CONNECT_TIMEOUT)?;
        connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        connection.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(connection)
    }

    fn failed(&self, error: &RedisError) -> Error {
        let kind = match () {
            () if error.is_timeout() => ErrorKind::TimedOut,
            () if error.is_io_error() || error.is_connection_dropped() => ErrorKind::Disconnected,
            () => ErrorKind::Refused,
        };
        let message =
            format!("the server of the catalogue {} did not answer as it should", self.word);
        // The detail of an error may quote what was sent; its category does not.
        Error::new(kind, message).source(format!("{} ({:?})", error.category(), error.code()))
    }

    fn ask_one<T: FromRedisValue>(&self, command: &str, arguments: &[&[u8]]) -> Result<T> {
        self.ask(|connection| {
            let mut command = redis::cmd(command);
            for argument in arguments {
                command.arg(*argument);
            }
            command.query(connection)
        })
    }
}

impl Store for RedisStore {
    fn create(&self) -> Result<()> {
        self.ask_one::<u64>("HSETNX", &[b"dlfs:catalog", b"format", b"1"]).map(drop)
    }

    fn names(&self) -> Result<Vec<String>> {
        self.ask_one("SMEMBERS", &[b"dlfs:names"])
    }

    fn aliases(&self, name: &str) -> Result<Vec<String>> {
        self.ask_one("SMEMBERS", &[format!("dlfs:aliases:{name}").as_bytes()])
    }

    fn numbers(&self, log: &Log) -> Result<Vec<u64>> {
        self.ask_one("HKEYS", &[key_of(log).as_bytes()])
    }

    fn read(&self, log: &Log, number: u64) -> Result<Option<Vec<u8>>> {
        self.ask_one("HGET", &[key_of(log).as_bytes(), number.to_string().as_bytes()])
    }

    fn append(&self, log: &Log, number: u64, bytes: &[u8]) -> Result<bool> {
        // The set first: a name without entries is nothing, an entry without its name would not be found.
        match log {
            Log::Versions(name) => {
                self.ask_one::<u64>("SADD", &[b"dlfs:names", name.as_bytes()])?
            }
            Log::Alias(name, alias) => {
                let aliases = format!("dlfs:aliases:{name}");
                self.ask_one::<u64>("SADD", &[aliases.as_bytes(), alias.as_bytes()])?
            }
        };
        let number = number.to_string();
        Ok(self.ask_one::<u64>("HSETNX", &[key_of(log).as_bytes(), number.as_bytes(), bytes])? == 1)
    }

    fn read_index(&self, name: &str) -> Result<Option<Index>> {
        let (about, chunks): (BTreeMap<String, String>, BTreeMap<String, String>) =
            self.ask(|connection| {
                let mut both = redis::pipe();
                both.atomic();
                both.cmd("HGETALL").arg(format!("dlfs:dataset:{name}"));
                both.cmd("HGETALL").arg(format!("dlfs:chunks:{name}"));
                both.query(connection)
            })?;
        if about.is_empty() {
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
        let (about, chunks) = (format!("dlfs:dataset:{name}"), format!("dlfs:chunks:{name}"));
        self.ask(|connection| {
            let mut all = redis::pipe();
            all.atomic();
            all.cmd("DEL").arg(&about).arg(&chunks).ignore();
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
                let command = all.cmd("HSET").arg(&about);
                fields.iter().for_each(|(field, value)| _ = command.arg(field).arg(value));
                command.ignore();
                let entries: Vec<_> = index.chunks.iter().collect();
                for some in entries.chunks(CHUNKS_A_COMMAND) {
                    let command = all.cmd("HSET").arg(&chunks);
                    some.iter().for_each(|(id, entry)| _ = command.arg(id).arg(text_of(entry)));
                    command.ignore();
                }
            }
            all.query(connection)
        })
    }
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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const CHUNKS_A_COMMAND: usize = 1000;
