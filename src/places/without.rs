//! Replaces `cloud/` in a build without the feature `cloud`: the same types and methods, but no [`Client`] can be
//! opened.

use std::convert::Infallible;
use std::io::{self, BufRead, Read};
use std::ops::Range;

use super::{Lent, Object, Place, PlaceOptions, PlaceStats};
use dlfs_base::error::{Error, ErrorKind, Result};

/// A client of a store. This build cannot create one.
#[derive(Debug, Clone)]
pub struct Client(Infallible);

/// A requested range of an object.
#[derive(Debug)]
pub struct Pending(Infallible);

/// Reads objects one after another.
#[derive(Debug)]
pub struct Reader(Infallible);

impl Client {
    /// Always fails.
    ///
    /// # Errors
    /// `Unsupported`: this build lacks the feature `cloud`.
    pub fn open(place: &Place, _: &PlaceOptions) -> Result<Client> {
        Err(Error::new(ErrorKind::Unsupported, "this build cannot read object stores")
            .target(place.to_string())
            .hint("build with --features cloud; released packages and the Python package have it"))
    }

    /// A client of another store on the same server.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn beside(&self, _: &Place) -> Result<Client> {
        match self.0 {}
    }

    /// The store's address.
    pub fn place(&self) -> &Place {
        match self.0 {}
    }

    /// Length of the ranges into which objects are split.
    pub fn range_bytes(&self) -> u64 {
        match self.0 {}
    }

    /// Maximum bytes that one reader holds.
    pub fn window_bytes(&self) -> u64 {
        match self.0 {}
    }

    /// Counters so far.
    pub fn stats(&self) -> PlaceStats {
        match self.0 {}
    }

    /// The object with this key.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn head(&self, _: &str) -> Result<Object> {
        match self.0 {}
    }

    /// The file with this key.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn file(&self, _: &str) -> Result<Object> {
        match self.0 {}
    }

    /// Creates an object.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn create(&self, _: &str, _: Vec<u8>) -> Result<bool> {
        match self.0 {}
    }

    /// Lists the objects beneath a prefix.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn list(&self, _: &str, _: &mut dyn FnMut(Object) -> Result<()>) -> Result<Vec<String>> {
        match self.0 {}
    }

    /// Requests a range of an object.
    pub fn fetch(&self, _: &Object, _: Range<u64>) -> Pending {
        match self.0 {}
    }

    /// Requests a range of an object with this stamp.
    pub fn fetch_stamped(&self, _: &str, _: u64, _: u64, _: Range<u64>) -> Pending {
        match self.0 {}
    }
}

impl Pending {
    /// Number of requested bytes.
    pub fn len_bytes(&self) -> u64 {
        match self.0 {}
    }

    /// Copies the bytes.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn read_into(self, _: &mut [u8]) -> Result<()> {
        match self.0 {}
    }

    /// The bytes.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn take(self) -> Result<Vec<u8>> {
        match self.0 {}
    }
}

impl Reader {
    /// Reads objects in order.
    pub fn new(client: Client, _: Vec<Object>) -> Reader {
        match client.0 {}
    }

    /// Reads objects in order, from an offset.
    pub fn from(client: Client, _: Vec<Object>, _: u64, _: u64) -> Reader {
        match client.0 {}
    }

    /// Reads a part of an object.
    pub fn part(client: Client, _: Object, _: Range<u64>) -> Reader {
        match client.0 {}
    }

    /// Goes to the next object.
    pub fn next_object(&mut self) -> Option<&Object> {
        match self.0 {}
    }

    /// Lends bytes.
    pub fn lend(&mut self, _: usize) -> Option<Lent> {
        match self.0 {}
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.0 {}
    }

    fn consume(&mut self, _: usize) {
        match self.0 {}
    }
}

impl Read for Reader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}
