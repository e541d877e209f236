//! Detects what a file holds: from its bytes, or from its name if the bytes do not tell.

use std::borrow::Cow;
use std::io::{self, Read};

use serde::de::IgnoredAny;

use super::compression::{self, Compression};
use super::expansion::Expansion;
use super::shard::read_some;
use super::shard_index::{INDEX, MEGATRON_INDEX, kind_of};
use super::source_kind::SourceKind;
use super::{tar_header, tfrecord};
use dlfs_base::folders::is_dropping;

/// The content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// A shard of this kind, in this compression, which is not told for JSON Lines. Plain and WebDataset archives are
    /// both `Tar`.
    Shard(SourceKind, Option<Compression>),
    /// A shard, judging by its name, in a compression that is not supported; the compression's program.
    Packed(&'static str),
    /// A file of many samples in the named format, which is not supported.
    Unread(&'static str),
    /// An empty file.
    Empty,
    /// Anything else: at most one sample.
    Other,
}

impl Content {
    /// Classifies the file called `name`; `at` reads it from an offset on. Reads 4 KiB, and of a compressed file also
    /// 4 KiB of its decompressed data. Reads more only of an index file, or if the first line of JSON is longer.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn of<R: Read + Send>(at: impl Fn(u64) -> R, name: &[u8]) -> io::Result<Content> {
        let name = base(name).to_ascii_lowercase();
        let mut buffer = [0; EXAMINED_BYTES];
        let len = read_some(&mut at(0), &mut buffer)?;
        let head = &buffer[..len];
        let rows = |kind| Content::Shard(kind, None);
        if let Some(compression) = Compression::of(head) {
            let mut inner = [0; EXAMINED_BYTES];
            let mut from = compression.undo(at(0), &Expansion::default())?;
            // If the data is broken, the name tells the kind, and reading the shard will report the error.
            let len = read_some(&mut from, &mut inner).unwrap_or(0);
            let inner = &inner[..len];
            return Ok(match shard(inner).or_else(|| claim(&name)) {
                Some(kind) => Content::Shard(kind, Some(compression)),
                None if is_json_lines(inner, from, &name) => rows(SourceKind::JsonLines),
                None => Content::Other,
            });
        }
        if let Some(kind) = shard(head) {
            return Ok(Content::Shard(kind, None));
        }
        if let Some(program) = compression::foreign(head) {
            let is_shard = claim(&name).is_some() || is_json_lines_name(&name);
            return Ok(if is_shard { Content::Packed(program) } else { Content::Other });
        }
        if let Some(kind) = claim(&name) {
            return Ok(Content::Shard(kind, None));
        }
        Ok(match head {
            [] => Content::Empty,
            [b'P', b'A', b'R', b'1', ..] => rows(SourceKind::Parquet),
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => rows(SourceKind::Arrow),
            [0xff, 0xff, 0xff, 0xff, ..] if is_arrow(&name) => rows(SourceKind::Arrow),
            [b'O', b'b', b'j', 1, ..] => Content::Unread("Avro file"),
            [b'O', b'R', b'C', ..] => Content::Unread("ORC file"),
            [b'F', b'E', b'A', b'1', ..] => Content::Unread("Feather file of version 1"),
            // NumPy arrays and office documents are zip archives too, with other extensions.
            [b'P', b'K', 3, 4, ..] if name.ends_with(b".zip") => Content::Unread("zip archive"),
            head if head.starts_with(MEGATRON_INDEX) => rows(SourceKind::Megatron),
            head if head.starts_with(b"SQLite format 3\0") => Content::Unread("SQLite database"),
            _ if name == INDEX => kind_of(at(0))?.map_or(Content::Other, rows),
            head if is_json_lines(head, at(head.len() as u64), &name) => {
                rows(SourceKind::JsonLines)
            }
            _ => Content::Other,
        })
    }

    /// Returns whether the file is a shard, possibly in a compression that is not supported.
    pub(crate) fn is_shard(self) -> bool {
        matches!(self, Content::Shard(..) | Content::Packed(_))
    }

    /// The content of shards of this kind.
    pub(super) fn of_kind(kind: SourceKind) -> Content {
        let is_archive = kind != SourceKind::TfRecord && !kind.is_rows();
        Content::Shard(if is_archive { SourceKind::Tar } else { kind }, None)
    }

    /// The kind of a shard, `Tar` for WebDataset's archives, too; `Auto` for anything else.
    pub(super) fn kind(self) -> SourceKind {
        match self {
            Content::Shard(kind, _) => kind,
            _ => SourceKind::Auto,
        }
    }

    /// The description for messages.
    pub(crate) fn label(self) -> Cow<'static, str> {
        let plain = match self {
            Content::Shard(SourceKind::TfRecord, _) => "TFRecord shard",
            Content::Shard(SourceKind::Parquet, _) => "Parquet file",
            Content::Shard(SourceKind::Arrow, _) => "Arrow file",
            Content::Shard(SourceKind::Mds, _) => "MDS index file",
            Content::Shard(SourceKind::LitData, _) => "LitData index file",
            Content::Shard(SourceKind::Megatron, _) => "Megatron index file",
            Content::Shard(SourceKind::Tokens, _) => "file of tokens",
            Content::Shard(SourceKind::JsonLines, _) => "JSON Lines file",
            Content::Shard(..) => "tar archive",
            Content::Packed(_) => "shard in another compression",
            Content::Unread(format) => format,
            Content::Empty => "empty file",
            Content::Other => "other file",
        };
        match self {
            Content::Shard(_, Some(compression)) => {
                format!("{plain} in {}", compression.name()).into()
            }
            _ => plain.into(),
        }
    }
}

/// The kind of a shard that begins with `head`, if its bytes tell.
fn shard(head: &[u8]) -> Option<SourceKind> {
    if tar_header::looks_like(head) {
        return Some(SourceKind::Tar);
    }
    tfrecord::looks_like(head).then_some(SourceKind::TfRecord)
}

/// The kind of shard that a lower-case file name suggests. The name counts if the bytes do not tell the kind: in a file
/// that is damaged, empty, or begins with an end mark.
fn claim(name: &[u8]) -> Option<SourceKind> {
    let packed = COMPRESSED_ENDS.iter().find_map(|end| name.strip_suffix(*end));
    let plain = packed.unwrap_or(name);
    let ends = |ends: &[&[u8]], name: &[u8]| ends.iter().any(|end| name.ends_with(end));
    if plain.ends_with(b".tar") || ends(TAR_ENDS, name) {
        return Some(SourceKind::Tar);
    }
    let numbered = position(plain, b".tfrecord-").or_else(|| position(plain, b".tfrecords-"));
    let numbered = numbered.is_some_and(|at| !plain[at + 1..].contains(&b'.'));
    (numbered || ends(TFRECORD_ENDS, plain)).then_some(SourceKind::TfRecord)
}

/// Returns whether the name is that of a shard, regardless of the content.
pub(crate) fn is_shard_name(name: &[u8]) -> bool {
    let name = base(name).to_ascii_lowercase();
    name == INDEX || named_kind(&name).is_some() || position(&name, b"-of-").is_some()
}

/// Returns whether a lower-case file name is that of an Arrow file or stream.
fn is_arrow(name: &[u8]) -> bool {
    name.ends_with(b".arrow") || name.ends_with(b".arrows")
}

/// Returns whether a file of this name may hold tokens, if the caller says that some files do.
pub(super) fn is_tokens_name(name: &[u8]) -> bool {
    name.ends_with(b".bin") || name.ends_with(b".npy")
}

/// The kind of a shard called `name`; `None` if the name does not tell.
pub(crate) fn named_kind(name: &[u8]) -> Option<SourceKind> {
    let name = base(name).to_ascii_lowercase();
    match claim(&name) {
        None if name.ends_with(b".parquet") => Some(SourceKind::Parquet),
        None if is_arrow(&name) => Some(SourceKind::Arrow),
        None => is_json_lines_name(&name).then_some(SourceKind::JsonLines),
        claimed => claimed,
    }
}

/// Returns whether a file of this name accompanies shards: it describes, lists or signs them.
pub(crate) fn is_side_file(name: &[u8]) -> bool {
    let base = base(name).to_ascii_lowercase();
    let stem = base.split(|&byte| byte == b'.').next().unwrap_or(&base);
    let extension = base.iter().rposition(|&byte| byte == b'.').map(|dot| &base[dot + 1..]);
    is_dropping(name)
        || base.starts_with(b"_")
        || is_among(SIDE_STEMS, stem)
        || extension.is_some_and(|extension| is_among(SIDE_EXTENSIONS, extension))
        || base.ends_with(b"labels.txt")
        || base.ends_with(b"classes.txt")
}

/// Returns whether a file has lines of JSON objects, judging by its name or its first two lines. The file begins
/// with `head` and continues with `more`.
fn is_json_lines(head: &[u8], more: impl Read, name: &[u8]) -> bool {
    if is_json_lines_name(name) {
        return !head.is_empty();
    }
    let start = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii_start();
    if !start.starts_with(b"{") {
        return false;
    }
    let mut start = start.to_vec();
    if !start.contains(&b'\n') && head.len() == EXAMINED_BYTES {
        // A read error is reported when the file is imported.
        let _ = more.take(MAX_FIRST_LINE_BYTES).read_to_end(&mut start);
    }
    let mut lines = start.split(|&byte| byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let second = lines.next().unwrap_or_default().trim_ascii_start();
    second.starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(first).is_ok()
}

/// Returns whether a file of this name is a note for people beside samples: README, LICENSE.txt.
pub(crate) fn is_note(name: &[u8]) -> bool {
    let base = base(name).to_ascii_lowercase();
    let mut parts = base.splitn(2, |&byte| byte == b'.');
    let is_side = parts.next().is_some_and(|stem| is_among(SIDE_STEMS, stem));
    is_side && matches!(parts.next(), None | Some(b"txt" | b"md" | b"rst"))
}

/// Returns whether a lower-case file name is that of a JSON Lines file, possibly compressed.
fn is_json_lines_name(name: &[u8]) -> bool {
    let packed = COMPRESSED_ENDS.iter().find_map(|end| name.strip_suffix(*end));
    let plain = packed.unwrap_or(name);
    JSON_LINES_ENDS.iter().any(|end| plain.ends_with(end))
}

/// Returns whether `word` is one of `words`, which are separated by blanks.
fn is_among(words: &str, word: &[u8]) -> bool {
    words.split(' ').any(|other| other.as_bytes() == word)
}

/// The last component of a path.
fn base(name: &[u8]) -> &[u8] {
    name.rsplit(|&byte| byte == b'/').next().unwrap_or(name)
}

/// The offset of `part` in `text`.
fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Bytes at the beginning of a file, or of its decompressed data, that are examined.
const EXAMINED_BYTES: usize = 4096;
/// Ends of lower-case names: of compressed files, and of shards.
const COMPRESSED_ENDS: &[&[u8]] =
    &[b".gz", b".zst", b".zstd", b".xz", b".bz2", b".bzip2", b".lz4", b".gzip"];
const TAR_ENDS: &[&[u8]] =
    &[b".tgz", b".tzst", b".tzstd", b".txz", b".tbz", b".tbz2", b".tb2", b".tlz4"];
const TFRECORD_ENDS: &[&[u8]] = &[b".tfrecord", b".tfrecords", b".tfrec"];
const JSON_LINES_ENDS: &[&[u8]] = &[b".jsonl", b".ndjson", b".jsonlines"];
/// U+FEFF, which some programs write before text.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Maximum bytes read after the head to find the end of the first line.
const MAX_FIRST_LINE_BYTES: u64 = 1 << 20;
/// Names without extensions, and extensions, of files that accompany shards.
const SIDE_STEMS: &str = "readme license licence copying notice citation changelog changes manifest checksums md5sums \
                          sha1sums sha256sums sha512sums";
const SIDE_EXTENSIONS: &str =
    "md rst idx index json yaml yml md5 sha1 sha256 sha512 crc asc sig log";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_extensions_are_recognised_in_any_case_and_compression() {
        for tar in ["a.tar", "A.TAR", "x.tgz", "x.tar.zst", "x.TAR.XZ"] {
            let claim = claim(tar.to_ascii_lowercase().as_bytes());
            assert_eq!(claim, Some(SourceKind::Tar), "{tar}");
        }
        for records in ["a.tfrecord", "a.tfrecord.gz", "t.tfrecord-00001-of-00010", "k.tfrec"] {
            assert_eq!(claim(records.as_bytes()), Some(SourceKind::TfRecord), "{records}");
        }
        for other in ["a.jpg", "tar", "a.tar.idx", "t.tfrecord-00001-of-00010.idx", "a.gz"] {
            assert!(claim(other.as_bytes()).is_none(), "{other}");
        }
        assert!(is_shard_name(b"d/train-00000-of-00002"));
    }

    #[test]
    fn side_files_are_recognised_by_name() {
        let side = ["README", "d/Readme.txt", "a.md", "_SUCCESS", ".git/HEAD", "dataset_info.json"];
        for name in side.into_iter().chain(["a.tar.idx", "MD5SUMS", "label.labels.txt"]) {
            assert!(is_side_file(name.as_bytes()), "{name}");
        }
        for name in ["a.jpg", "a.txt", "train.jsonl", "a", "reader.bin"] {
            assert!(!is_side_file(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn json_lines_are_distinguished_from_one_object_and_from_lists() {
        let is_json_lines = |text: &[u8], name: &[u8]| {
            let (head, more) = text.split_at(text.len().min(EXAMINED_BYTES));
            is_json_lines(head, more, name)
        };
        let long = format!("{{\"a\": \"{}\"}}\n", "a".repeat(2 * EXAMINED_BYTES));
        assert!(is_json_lines(b"{\"a\": 1}\n{\"a\": 2}\n", b"x"));
        assert!(is_json_lines(b"\xef\xbb\xbf\r\n{\"a\": 1}\r\n{\"a\": 2}", b"x"));
        assert!(is_json_lines(long.repeat(2).as_bytes(), b"x.json"));
        assert!(!is_json_lines(long.as_bytes(), b"x.json"));
        assert!(is_json_lines(b"{\"a\": 1}\n", b"x.jsonl"));
        assert!(is_json_lines(b"\n\n{\"a\": 1}\n", b"x.jsonl"));
        assert!(is_json_lines(long.as_bytes(), b"x.jsonl.gz"));
        assert!(!is_json_lines(b"", b"x.jsonl"));
        assert!(!is_json_lines(b"{\"a\": 1}\n", b"x.json"));
        assert!(!is_json_lines(b"{\n  \"a\": 1\n}\n", b"x.json"));
        assert!(!is_json_lines(b"a.jpg\t1\n{b}.jpg\t2\n", b"x"));
    }
}
