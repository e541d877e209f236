//! JSON of a catalogue's entries. Other programs may have written it, so it is not trusted.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::record::FORMAT;
use dlfs_base::error::{Error, ErrorKind, Result};

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let text = serde_json::to_vec_pretty(value);
    text.map_err(|error| Error::new(ErrorKind::Internal, "cannot write JSON").source(error))
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    #[derive(serde::Deserialize)]
    struct Format {
        #[serde(default)]
        format: u32,
    }
    let corrupt = |error: serde_json::Error| {
        Error::new(ErrorKind::Corrupt, format!("{what} in the catalogue is no record of dlfs"))
            .source(error)
    };
    let Format { format } = serde_json::from_slice(bytes).map_err(corrupt)?;
    if format > FORMAT {
        let message = format!(
            "{what} in the catalogue has format {format}, and this release knows {}",
            FORMAT
        );
        return Err(Error::new(ErrorKind::Unsupported, message)
            .hint("use the release that wrote it, or a later one"));
    }
    serde_json::from_slice(bytes).map_err(corrupt)
}
