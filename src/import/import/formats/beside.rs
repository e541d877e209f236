//! Finds the files beside an index: MDS, LitData and Megatron keep their shards there.

use std::path::Path;

use super::input::{InStore, Input, LOOKING_UP};
use crate::import::sources::row_indexes;
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};

impl Input {
    /// Finds the files that this index names. `files` has the possible names of each file; returns the first one that
    /// exists, or else the first one, with its input. Looks files up in a store concurrently.
    ///
    /// # Errors
    /// `BadSource`: a name leads out of the index's folder. Errors of the store: `NotFound` if no name of a file
    /// exists.
    pub(super) fn beside<N: AsRef<Path> + Clone + Default + Sync + Send>(
        &self,
        files: Vec<Vec<N>>,
    ) -> Result<Vec<(N, Input)>> {
        let is_outside = |name: &&N| row_indexes::beside(&self.path, name.as_ref()).is_none();
        if let Some(name) = files.iter().flatten().find(is_outside) {
            let name = name.as_ref().display();
            let text = format!("it names a file outside of its folder: {name}");
            return Err(Error::new(ErrorKind::BadSource, text).path(&self.path));
        }
        map_at_once(LOOKING_UP, &files, |names| {
            let mut first = None;
            for name in names {
                match self.find(name.as_ref()) {
                    Ok(Some(input)) => return Ok((name.clone(), input)),
                    Ok(None) => {}
                    // A store refuses a client that may not list, instead of reporting that the object is absent.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Refused) =>
                    {
                        first.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let name = names.first().cloned().unwrap_or_default();
            // A missing local file is reported when it is opened.
            let path = row_indexes::beside(&self.path, name.as_ref()).unwrap_or_default();
            first.map_or(Ok((name, Input { path, object: None, ..self.clone() })), Err)
        })
    }

    /// The file called `name` beside this one; `None`: there is no such local file.
    fn find(&self, name: &Path) -> Result<Option<Input>> {
        let Some(own) = &self.object else {
            let Some(path) = row_indexes::beside(&self.path, name) else { return Ok(None) };
            // Opening a pipe would wait for its writer, so do not open it.
            return match std::fs::metadata(&path) {
                Ok(found) if found.is_file() => {
                    Ok(Some(Input { path, object: None, ..self.clone() }))
                }
                Ok(_) => {
                    let text = format!("it names what is no file: {}", name.display());
                    Err(Error::new(ErrorKind::BadSource, text).path(&self.path))
                }
                Err(_) => Ok(None),
            };
        };
        let key = row_indexes::beside(Path::new(&own.object.key), name);
        let Some(key) = key else { return Ok(None) };
        let object = own.client.head(&key.to_string_lossy())?;
        let path = own.client.place().with_key(&*object.key).to_string().into();
        let object = Some(InStore { object, ..own.clone() });
        Ok(Some(Input { path, object, ..self.clone() }))
    }
}
