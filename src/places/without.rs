//! The stand-in for a client in a build that reads no object stores: there is none.

use std::convert::Infallible;
use std::io::{self, BufRead, Read};
use std::ops::Range;

use super::{Lent, Object, Place, PlaceOptions, PlaceStats};
use dlfs_base::error::{Error, ErrorKind, Result};

/// A client of a store; this build has none.
#[derive(Debug, Clone)]
pub struct Client(Infallible);

/// Bytes that were asked for.
#[derive(Debug)]
pub struct Pending(Infallible);

/// Reads objects one after the other.
#[derive(Debug)]
pub struct Reader(Infallible);

impl Client {
    /// Fails.
    ///
    /// # Errors
    /// `Unsupported`: the library is built without the feature `cloud`.
    pub fn open(place: &Place, _: &PlaceOptions) -> Result<Client> {
        let message = "this build cannot read object stores";
        Err(Error::new(ErrorKind::Unsupported, message)
            .target(place.to_string())
            .hint("build with --features cloud; released packages and the Python package have it"))
    }

    /// Another client.
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

    /// The length of the ranges that its objects are cut into.
    pub fn range_bytes(&self) -> u64 {
        match self.0 {}
    }

    /// The most bytes that one reader holds.
    pub fn window_bytes(&self) -> u64 {
        match self.0 {}
    }

    /// The counters so far.
    pub fn stats(&self) -> PlaceStats {
        match self.0 {}
    }

    /// One object.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn head(&self, _: &str) -> Result<Object> {
        match self.0 {}
    }

    /// One file.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn file(&self, _: &str) -> Result<Object> {
        match self.0 {}
    }

    /// The objects beneath a prefix.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn list(&self, _: &str, _: &mut dyn FnMut(Object) -> Result<()>) -> Result<Vec<String>> {
        match self.0 {}
    }

    /// Asks for a range.
    pub fn fetch(&self, _: &Object, _: Range<u64>) -> Pending {
        match self.0 {}
    }

    /// Asks for a range, by the stamp of its object.
    pub fn fetch_stamped(&self, _: &str, _: u64, _: u64, _: Range<u64>) -> Pending {
        match self.0 {}
    }
}

impl Pending {
    /// How many bytes were asked for.
    pub fn len_bytes(&self) -> u64 {
        match self.0 {}
    }

    /// The bytes.
    ///
    /// # Errors
    /// None: there is no client.
    pub fn read_into(self, _: &mut [u8]) -> Result<()> {
        match self.0 {}
    }
}

impl Reader {
    /// Reads objects.
    pub fn new(client: Client, _: Vec<Object>) -> Reader {
        match client.0 {}
    }

    /// Reads objects.
    pub fn from(client: Client, _: Vec<Object>, _: u64, _: u64) -> Reader {
        match client.0 {}
    }

    /// The next object.
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
