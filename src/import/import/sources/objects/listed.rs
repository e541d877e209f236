//! The listing of a prefix in compact form, since a bucket may hold many millions of objects.

use crate::import::sources::file_counts::{FileCounts, HIDDEN, Role};
use crate::import::sources::indexing::Indexing;
use dlfs_base::Result;
use dlfs_base::folders::is_dropping;
use dlfs_format::format::origins::{put_tag, tag_at};
use dlfs_places::{Client, Object};

/// The objects beneath a prefix, or one object.
#[derive(Debug)]
pub(super) struct Listed {
    /// The store.
    pub(super) client: Client,
    /// The common prefix of all keys; names are keys without it.
    pub(super) prefix: String,
    /// Set if the user named the object itself, not a prefix.
    pub(super) is_given: bool,
    /// Keys that no address can name.
    pub(super) refused: Vec<String>,
    /// Objects left out because of their names.
    pub(super) set_aside: FileCounts,
    names: String,
    rows: Vec<Row>,
    tags: Vec<u8>,
}

#[derive(Debug)]
struct Row {
    name: u64,
    len_bytes: u64,
    /// Offset of the object's entity tag in `tags`.
    tag: u64,
}

impl Listed {
    /// Lists the objects beneath `prefix`.
    ///
    /// # Errors
    /// Errors of the store. `Interrupted`: indexing was asked to stop.
    pub(super) fn beneath(
        client: Client,
        prefix: &str,
        indexing: &mut Indexing<'_>,
    ) -> Result<Listed> {
        let mut listed = Listed::empty(client.clone(), prefix.to_owned(), false);
        listed.refused = client.list(prefix, &mut |object| {
            indexing.found(1, object.len_bytes);
            listed.push(object);
            indexing.check()
        })?;
        Ok(listed)
    }

    /// One object, named after the last part of its key.
    pub(super) fn one(client: Client, object: Object) -> Listed {
        let folder = object.key.rfind('/').map_or(0, |slash| slash + 1);
        let mut listed = Listed::empty(client, object.key[..folder].to_owned(), true);
        listed.push(object);
        listed
    }

    fn empty(client: Client, prefix: String, is_given: bool) -> Listed {
        Listed {
            client,
            prefix,
            is_given,
            refused: Vec::new(),
            set_aside: FileCounts::default(),
            names: String::new(),
            rows: Vec::new(),
            tags: Vec::new(),
        }
    }

    fn push(&mut self, object: Object) {
        // A web server may list objects outside the prefix.
        let Some(name) = object.key.strip_prefix(&*self.prefix).filter(|name| !name.is_empty())
        else {
            return;
        };
        let at = self.names.len() as u64;
        let tag = self.tags.len() as u64;
        put_tag(&mut self.tags, object.etag.as_deref());
        self.rows.push(Row { name: at, len_bytes: object.len_bytes, tag });
        self.names.push_str(name);
    }

    /// A listing of only the objects whose names are `wanted`.
    pub(super) fn only(&self, wanted: &impl Fn(&str) -> bool) -> Listed {
        let mut some = Listed::empty(self.client.clone(), self.prefix.clone(), self.is_given);
        some.refused.clone_from(&self.refused);
        (0..self.len())
            .filter(|row| wanted(self.name(*row)))
            .for_each(|row| some.push(self.object(row)));
        some.set_aside.clone_from(&self.set_aside);
        some
    }

    /// Leaves out hidden objects and the droppings of file systems and tools, unless the user named the object itself.
    pub(super) fn leave_out_droppings(&mut self) {
        let is_dropping = |name: &str| is_dropping(name.as_bytes());
        if self.is_given || !(0..self.len()).any(|row| is_dropping(self.name(row))) {
            return;
        }
        let mut counts = FileCounts::default();
        for row in (0..self.len()).filter(|row| is_dropping(self.name(*row))) {
            let name = self.name(row).as_bytes();
            let len_bytes = self.len_bytes(row);
            counts.add(HIDDEN, Role::SetAside, len_bytes, name);
        }
        *self = self.only(&|name| !is_dropping(name));
        self.set_aside = counts;
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn name(&self, row: usize) -> &str {
        let end = self.rows.get(row + 1).map_or(self.names.len(), |next| next.name as usize);
        &self.names[self.rows[row].name as usize..end]
    }

    pub(super) fn len_bytes(&self, row: usize) -> u64 {
        self.rows[row].len_bytes
    }

    /// The object, with its entity tag.
    pub(super) fn object(&self, row: usize) -> Object {
        let key = format!("{}{}", self.prefix, self.name(row));
        let tag = &self.tags[self.rows[row].tag as usize..];
        let etag = tag_at(tag).expect("a tag that was put there");
        Object { key, len_bytes: self.len_bytes(row), etag }
    }

    /// The first `len` bytes of an object, or all if it is shorter.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) fn start(&self, row: usize, len: u64) -> Result<Vec<u8>> {
        let object = self.object(row);
        let mut bytes = vec![0; object.len_bytes.min(len) as usize];
        self.client.fetch(&object, 0..bytes.len() as u64).read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// The prefix's address, for messages.
    pub(super) fn address(&self) -> String {
        self.client.place().with_key(&*self.prefix).to_string()
    }
}
