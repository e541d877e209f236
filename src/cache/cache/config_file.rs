//! Reads the description of an environment: TOML, or HDMLP's own configuration.

use std::path::Path;

use super::config::{Environment, refuse};
use super::hdmlp;
use dlfs_base::error::{Error, Result};

impl Environment {
    /// Parses TOML, or HDMLP's own configuration.
    ///
    /// # Errors
    /// `InvalidArgument`: neither of the two, an unknown key or backend, an invalid size, an empty or
    /// unsorted table, or a rate of 0 or less. The message says where.
    pub fn parse(text: &str) -> Result<Environment> {
        let environment: Environment = if hdmlp::is_hdmlp(text) {
            hdmlp::environment(text)?
        } else {
            toml::from_str(text).map_err(|error| refuse(error.to_string()))?
        };
        environment.options()?;
        Ok(environment)
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: errors of the operating system. `InvalidArgument`: see
    /// [`Environment::parse`].
    pub fn read(path: impl AsRef<Path>) -> Result<Environment> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| Error::from(error).path(path))?;
        Environment::parse(&text).map_err(|error| error.path(path))
    }
}
