//! The session type of a build without TLS: no session can be created.

use std::convert::Infallible;
use std::io::IoSlice;
use std::sync::Arc;

use super::{Keys, TlsError};
use dlfs_nvme::auth::TlsPsk;

/// A TLS session, which cannot exist in this build.
#[derive(Debug)]
pub struct Session(Infallible);

#[allow(missing_docs)] // as in `openssl.rs`
impl Session {
    pub fn host(_: &TlsPsk) -> Result<Session, TlsError> {
        Err(TlsError::Unsupported)
    }

    pub fn controller(_: Arc<dyn Keys>) -> Result<Session, TlsError> {
        Err(TlsError::Unsupported)
    }

    pub fn handshake(&mut self) -> Result<bool, TlsError> {
        match self.0 {}
    }

    pub fn is_established(&self) -> bool {
        match self.0 {}
    }

    pub fn identity(&self) -> Option<String> {
        match self.0 {}
    }

    pub fn give(&mut self, _: Vec<u8>, _: usize) {
        match self.0 {}
    }

    pub fn take_back(&mut self) -> Vec<u8> {
        match self.0 {}
    }

    pub fn open(&mut self, _: &mut [u8]) -> Result<usize, TlsError> {
        match self.0 {}
    }

    pub fn seal(&mut self, _: &[IoSlice<'_>], _: usize) -> Result<usize, TlsError> {
        match self.0 {}
    }

    pub fn outgoing(&self) -> &[u8] {
        match self.0 {}
    }

    pub fn sent(&mut self, _: usize) {
        match self.0 {}
    }

    pub fn swap_outgoing(&mut self, _: &mut Vec<u8>) {
        match self.0 {}
    }
}
