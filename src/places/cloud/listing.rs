//! Finds objects: one by its key, or all beneath a prefix.
//!
//! A store and the Hub list their objects page by page. A web server has no such method: its files are found by WebDAV,
//! or on HTML pages, each of which lists the files of a folder.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::list::PaginatedListOptions;
use object_store::path::Path as Key;
use object_store::{GetOptions, ObjectMeta};
use tokio::sync::mpsc;

use super::failure::Failure;
use super::fetch::StoreShared;
use super::pages;
use super::store::Pages;
use super::watch::{LISTING, Note};
use super::web::Web;
use crate::Object;
use dlfs_base::error::{Error, ErrorKind, Result};

/// Finds the object with this key. On a web server, `may_be_page` tells whether an HTML page counts as one.
///
/// # Errors
/// As [`Client::head`](super::Client::head).
pub(super) async fn find(shared: &StoreShared, key: &Key, may_be_page: bool) -> Result<Object> {
    match &shared.store.web {
        Some(web) => find_on_web(shared, web, key.as_ref(), may_be_page).await,
        None => find_in_store(shared, key).await,
    }
}

/// As [`find`], in a store.
async fn find_in_store(shared: &StoreShared, key: &Key) -> Result<Object> {
    let note = Note::default();
    let head = || async {
        let mut options = GetOptions { head: true, ..GetOptions::default() };
        options.extensions.insert(note.clone());
        let sent = Instant::now();
        let answer = limited(shared, shared.store.get(key, options), &note).await?;
        shared.answered(sent.elapsed());
        Ok(object(answer.meta))
    };
    shared.again(key.as_ref(), &note, head).await
}

/// As [`find`], on a web server. If the server does not state the file's length, copies the file.
async fn find_on_web(
    shared: &StoreShared,
    web: &Web,
    key: &str,
    may_be_page: bool,
) -> Result<Object> {
    let note = Note::default();
    let head = || async {
        let sent = Instant::now();
        let info = limited(shared, web.describe(key, &note), &note).await?;
        shared.answered(sent.elapsed());
        if info.is_page && !may_be_page {
            let text = "the web server answers with a page (text/html) and no file";
            return Err(Failure::Final(Error::new(ErrorKind::NotFound, text)));
        }
        match info.len_bytes {
            Some(len_bytes) => Ok(Object { key: key.to_owned(), len_bytes, etag: info.etag }),
            None => Ok(shared.copy(web, key, &note).await?.object.clone()),
        }
    };
    shared.again(key, &note, head).await
}

/// Sends the objects beneath `prefix`, in the order of keys. The objects of a store are sent page by page. Those of the
/// Hub or of a web server are sent all at once, since they must be sorted first. Ends early if the receiver is gone.
/// The task must have a [`LISTING`].
pub(super) async fn list(
    shared: &StoreShared,
    prefix: &str,
    send: &mpsc::Sender<Vec<Object>>,
) -> Result<()> {
    let Some(pages) = &shared.store.pages else {
        // Fails if the receiver is gone; then nobody waits for the page.
        let _ = send.send(list_of_web(shared, prefix).await?).await;
        return Ok(());
    };
    let mut token = None;
    let mut unsorted = Vec::new();
    let mut found = 0;
    let mut empty = 0;
    loop {
        let note = LISTING.get().note;
        let page = shared.again(prefix, &note, || {
            note.reset();
            limited(shared, page(pages, prefix, token.clone()), &note)
        });
        let (objects, next) = page.await?;
        found += objects.len();
        empty = if objects.is_empty() { empty + 1 } else { 0 };
        if empty > MOST_EMPTY_PAGES || found > MOST_OBJECTS {
            return Err(Error::new(ErrorKind::BadSource, "the listing of the store has no end"));
        }
        if let Pages::Store(_) = pages {
            if send.send(objects).await.is_err() {
                return Ok(());
            }
        } else {
            unsorted.extend(objects);
        }
        match next {
            None => break,
            // Following the same token again would never end.
            same if same == token => {
                let text = "the store gives the same page of its listing again and again";
                return Err(Error::new(ErrorKind::Io, text));
            }
            next => token = next,
        }
    }
    unsorted.sort_unstable_by(|a: &Object, b| a.key.cmp(&b.key));
    // Fails if the receiver is gone; then nobody waits for the objects.
    let _ = send.send(unsorted).await;
    Ok(())
}

/// A page of a listing, and the token of the next page.
async fn page(
    pages: &Pages,
    prefix: &str,
    page_token: Option<String>,
) -> object_store::Result<(Vec<Object>, Option<String>)> {
    match pages {
        Pages::Hub(hub) => hub.page(prefix, page_token.as_deref()).await,
        Pages::Store(store) => {
            let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
            let options = PaginatedListOptions { page_token, ..PaginatedListOptions::default() };
            let page = store.list_paginated(prefix, options).await?;
            Ok((page.result.objects.into_iter().map(object).collect(), page.page_token))
        }
    }
}

/// Lists a web server: in one response if it supports WebDAV. Otherwise, and if WebDAV lists nothing, from
/// its pages that list files.
async fn list_of_web(shared: &StoreShared, prefix: &str) -> Result<Vec<Object>> {
    let mut all = match (list_by_webdav(shared, prefix).await, &shared.store.web) {
        (Ok(all), Some(web)) if all.is_empty() => list_by_pages(shared, web, prefix).await?,
        (Err(error), Some(web)) if !is_away(error.kind()) => {
            list_by_pages(shared, web, prefix).await?
        }
        (listed, _) => listed?,
    };
    all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(all)
}

/// Returns whether the server did not answer, so that its methods are unknown.
fn is_away(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Busy | ErrorKind::Disconnected | ErrorKind::TimedOut)
}

/// Lists a web server by WebDAV (PROPFIND).
async fn list_by_webdav(shared: &StoreShared, prefix: &str) -> Result<Vec<Object>> {
    let note = LISTING.get().note;
    note.reset();
    // Some servers answer an unknown method as they answer GET.
    let failed = |failure: Failure| match note.read().status {
        Some(200..=299) => {
            let error = Error::new(ErrorKind::Unsupported, "it does not list by WebDAV");
            Failure::Final(error.source(failure.given_up(1, true)))
        }
        _ => failure,
    };
    let all = shared.again(prefix, &note, || async {
        let prefix = Key::parse(prefix).map_err(|error| Failure::of(&error.into(), note.read()))?;
        let mut found = shared.store.objects.list(Some(&prefix)).map_ok(object);
        let mut objects = Vec::new();
        while let Some(object) = limited(shared, found.try_next(), &note).await.map_err(failed)? {
            objects.push(object);
        }
        Ok(objects)
    });
    all.await
}

/// Follows pages that list files, starting at `prefix`; lists nothing if that page does not exist. The task must have
/// a [`LISTING`].
async fn list_by_pages(shared: &StoreShared, web: &Web, prefix: &str) -> Result<Vec<Object>> {
    let mut folders = vec![prefix.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let note = Note::default();
        if folder[prefix.len()..].matches('/').count() > MOST_DEPTH {
            return Err(Error::new(
                ErrorKind::BadSource,
                "the folders of a web server have no end",
            ));
        }
        let page =
            shared.again(&folder, &note, || limited(shared, web.page(&folder, &note), &note));
        let page = match page.await {
            Err(error) if folder == prefix && error.kind() == ErrorKind::NotFound => break,
            page => page?,
        };
        let Some(names) = pages::names(&page, &folder) else {
            let text = "the web server lists no files here: neither by WebDAV nor on a page of a known kind (Python's \
                        http.server, nginx, Apache)";
            return Err(Error::new(ErrorKind::Unsupported, text)
                .hint("name its files, or give a list of their URLs with --from list"));
        };
        let refused = names.refused.iter().map(|name| format!("{folder}{name}"));
        LISTING.get().refused.lock().extend(refused);
        for name in names.good {
            let list = if name.ends_with('/') { &mut folders } else { &mut files };
            list.push(format!("{folder}{name}"));
        }
    }
    let describe = |key: String| async move { find_on_web(shared, web, &key, true).await };
    let descriptions = files.into_iter().map(describe);
    stream::iter(descriptions).buffer_unordered(DESCRIPTIONS_AT_ONCE).try_collect().await
}

/// Runs a short request within its time limit.
pub(super) async fn limited<T>(
    shared: &StoreShared,
    request: impl Future<Output = object_store::Result<T>>,
    note: &Note,
) -> Result<T, Failure> {
    let limit = shared.options.silence;
    match tokio::time::timeout(limit, request).await {
        Ok(done) => done.map_err(|error| Failure::of(&error, note.read())),
        Err(_) => Err(Failure::late(format!("there is no answer after {limit:?}"))),
    }
}

/// Converts the client library's description of an object.
fn object(meta: ObjectMeta) -> Object {
    Object { key: meta.location.into(), len_bytes: meta.size, etag: meta.e_tag }
}

/// Files of a listing whose descriptions are requested at once.
const DESCRIPTIONS_AT_ONCE: usize = 32;
/// Maximum depth of a web server's folders: a link may lead back to a parent.
const MOST_DEPTH: usize = 32;
/// Limits for a store whose listing never ends: consecutive pages without an object, and objects in total.
const MOST_EMPTY_PAGES: u32 = 100;
const MOST_OBJECTS: usize = 1 << 28;
