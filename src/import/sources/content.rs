//! Detects what a file holds, from its bytes; from its name only if the bytes do not tell.

use std::fs::File;
use std::io;

use serde::de::IgnoredAny;

use super::compression::{self, Compression, FileAt, read_some};
use super::kind::SourceKind;
use super::row_indexes::{self, INDEX};
use super::{tar_members, tfrecord};

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A tar archive.
    Tar(Option<Compression>),
    /// TFRecords.
    TfRecord(Option<Compression>),
    /// Rows, in files of this kind.
    Rows(SourceKind),
    /// A shard by its name, in a compression that is not supported.
    Packed(&'static str),
    /// Many samples in the named format, which is not supported.
    Unread(&'static str),
    /// Nothing.
    Empty,
    /// Anything else: one sample, if it is one.
    Other,
}

impl Content {
    /// Classifies `file`, which is called `name`. Reads 4 KiB, or of a compressed file enough for 4 KiB of
    /// decompressed data.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(file: &File, name: &[u8]) -> io::Result<Content> {
        let name = base(name).to_ascii_lowercase();
        let mut buffer = [0; HEAD_BYTES];
        let len = read_some(&mut FileAt { file, offset: 0 }, &mut buffer)?;
        let head = &buffer[..len];
        let claimed = || claim(&name);
        if let Some(compression) = Compression::of(head) {
            let mut inner = [0; HEAD_BYTES];
            let from = compression.undo(FileAt { file, offset: 0 })?;
            // Broken: its name tells what it should be, and reading it will report the error.
            let len = read_some(&mut { from }, &mut inner).unwrap_or(0);
            return Ok(match shard(&inner[..len], Some(compression)) {
                Some(shard) => shard,
                None => claimed().map_or(Content::Other, |claim| claim(Some(compression))),
            });
        }
        if let Some(shard) = shard(head, None) {
            return Ok(shard);
        }
        if let Some(program) = compression::foreign(head) {
            return Ok(claimed().map_or(Content::Other, |_| Content::Packed(program)));
        }
        if let Some(claim) = claimed() {
            return Ok(claim(None));
        }
        Ok(match head {
            [] => Content::Empty,
            [b'P', b'A', b'R', b'1', ..] => Content::Rows(SourceKind::Parquet),
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Content::Rows(SourceKind::Arrow),
            [0xff, 0xff, 0xff, 0xff, ..] if name.ends_with(b".arrow") => {
                Content::Rows(SourceKind::Arrow)
            }
            [b'O', b'b', b'j', 1, ..] => Content::Unread("Avro file"),
            [b'O', b'R', b'C', ..] => Content::Unread("ORC file"),
            _ if name == INDEX => row_indexes::kind_of(file)?.map_or(Content::Other, Content::Rows),
            _ if is_json_lines(head, &name) => Content::Rows(SourceKind::JsonLines),
            _ => Content::Other,
        })
    }

    /// Whether it holds samples that can be imported one by one, possibly after decompression.
    pub fn is_shard(self) -> bool {
        use Content::{Packed, Rows, Tar, TfRecord};
        matches!(self, Tar(_) | TfRecord(_) | Rows(_) | Packed(_))
    }

    /// Its name for messages.
    pub fn label(self) -> &'static str {
        match self {
            Content::Tar(None) => "tar archive",
            Content::Tar(Some(compression)) => match compression.name() {
                "gzip" => "tar archive in gzip",
                "zstd" => "tar archive in zstd",
                "xz" => "tar archive in xz",
                _ => "tar archive in bzip2",
            },
            Content::TfRecord(None) => "TFRecord shard",
            Content::TfRecord(Some(compression)) => match compression.name() {
                "gzip" => "TFRecord shard in gzip",
                "zstd" => "TFRecord shard in zstd",
                "xz" => "TFRecord shard in xz",
                _ => "TFRecord shard in bzip2",
            },
            Content::Rows(SourceKind::Parquet) => "Parquet file",
            Content::Rows(SourceKind::Arrow) => "Arrow file",
            Content::Rows(SourceKind::Mds) => "index of MDS shards",
            Content::Rows(SourceKind::LitData) => "index of LitData chunks",
            Content::Rows(_) => "JSON Lines file",
            Content::Packed(_) => "shard in another compression",
            Content::Unread(format) => format,
            Content::Empty => "empty file",
            Content::Other => "other file",
        }
    }
}

fn shard(head: &[u8], compression: Option<Compression>) -> Option<Content> {
    if tar_members::looks_like(head) {
        return Some(Content::Tar(compression));
    }
    tfrecord::looks_like(head).then_some(Content::TfRecord(compression))
}

/// The content that a name suggests if the bytes do not tell: the file is damaged, empty, or begins with an
/// end mark.
fn claim(name: &[u8]) -> Option<fn(Option<Compression>) -> Content> {
    let packed = COMPRESSED_ENDS.iter().find_map(|end| name.strip_suffix(*end));
    let plain = packed.unwrap_or(name);
    let ends = |ends: &[&[u8]], name: &[u8]| ends.iter().any(|end| name.ends_with(end));
    if plain.ends_with(b".tar") || ends(TAR_ENDS, name) {
        return Some(Content::Tar);
    }
    let numbered = position(plain, b".tfrecord-").or_else(|| position(plain, b".tfrecords-"));
    let numbered = numbered.is_some_and(|at| !plain[at + 1..].contains(&b'.'));
    (numbered || ends(TFRECORD_ENDS, plain)).then_some(Content::TfRecord)
}

/// Whether the name is that of a shard, regardless of the content.
pub fn is_shard_name(name: &[u8]) -> bool {
    let name = base(name).to_ascii_lowercase();
    let holds_rows = name == INDEX || ROW_ENDS.iter().any(|end| name.ends_with(end));
    claim(&name).is_some() || holds_rows || position(&name, b"-of-").is_some()
}

/// Whether a file of this name accompanies shards: it describes, lists or signs them.
pub fn is_side_file(name: &[u8]) -> bool {
    let hidden = name.split(|&byte| byte == b'/').any(|part| part.starts_with(b"."));
    let base = base(name).to_ascii_lowercase();
    let stem = base.split(|&byte| byte == b'.').next().unwrap_or(&base);
    let extension = base.iter().rposition(|&byte| byte == b'.').map(|dot| &base[dot + 1..]);
    hidden
        || base.starts_with(b"_")
        || SIDE_STEMS.contains(&stem)
        || extension.is_some_and(|extension| SIDE_EXTENSIONS.contains(&extension))
        || base.ends_with(b"labels.txt")
        || base.ends_with(b"classes.txt")
}

/// Whether these are lines of JSON objects; a file with a single such line counts only if its name says so.
fn is_json_lines(head: &[u8], name: &[u8]) -> bool {
    let mut lines = head.split(|&byte| byte == b'\n');
    let first = lines.next().unwrap_or_default().trim_ascii();
    if first.first() != Some(&b'{') {
        return false;
    }
    let named = [&b".jsonl"[..], b".ndjson", b".jsonlines"].iter().any(|end| name.ends_with(end));
    let second = lines.next().map(<[u8]>::trim_ascii);
    match second {
        // The first line is longer than the head, or the only one.
        None => named,
        Some(second) => {
            let whole = serde_json::from_slice::<IgnoredAny>(first).is_ok();
            whole && (second.starts_with(b"{") || named)
        }
    }
}

fn base(name: &[u8]) -> &[u8] {
    name.rsplit(|&byte| byte == b'/').next().unwrap_or(name)
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

const HEAD_BYTES: usize = 4096;

const COMPRESSED_ENDS: &[&[u8]] =
    &[b".gz", b".zst", b".zstd", b".xz", b".bz2", b".bzip2", b".lz4", b".gzip"];
const TAR_ENDS: &[&[u8]] =
    &[b".tgz", b".tzst", b".tzstd", b".txz", b".tbz", b".tbz2", b".tb2", b".tlz4"];
const TFRECORD_ENDS: &[&[u8]] = &[b".tfrecord", b".tfrecords", b".tfrec"];
const ROW_ENDS: &[&[u8]] = &[b".parquet", b".arrow"];
const SIDE_STEMS: &[&[u8]] = &[
    b"readme",
    b"license",
    b"licence",
    b"copying",
    b"notice",
    b"citation",
    b"changelog",
    b"changes",
    b"manifest",
    b"checksums",
    b"md5sums",
    b"sha1sums",
    b"sha256sums",
    b"sha512sums",
];
const SIDE_EXTENSIONS: &[&[u8]] = &[
    b"md", b"rst", b"idx", b"index", b"json", b"yaml", b"yml", b"md5", b"sha1", b"sha256",
    b"sha512", b"crc", b"asc", b"sig", b"log",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_extensions_are_recognised_in_any_case_and_compression() {
        for tar in ["a.tar", "A.TAR", "x.tgz", "x.tar.zst", "x.TAR.XZ"] {
            let claim = claim(tar.to_ascii_lowercase().as_bytes()).map(|claim| claim(None));
            assert_eq!(claim, Some(Content::Tar(None)), "{tar}");
        }
        for records in ["a.tfrecord", "a.tfrecord.gz", "t.tfrecord-00001-of-00010", "k.tfrec"] {
            let claim = claim(records.as_bytes()).map(|claim| claim(None));
            assert_eq!(claim, Some(Content::TfRecord(None)), "{records}");
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
        assert!(is_json_lines(b"{\"a\": 1}\n{\"a\": 2}\n", b"x"));
        assert!(is_json_lines(b"{\"a\": 1}\n", b"x.jsonl"));
        assert!(!is_json_lines(b"{\"a\": 1}\n", b"x.json"));
        assert!(!is_json_lines(b"{\n  \"a\": 1\n}\n", b"x.json"));
        assert!(!is_json_lines(b"a.jpg\t1\n{b}.jpg\t2\n", b"x"));
    }
}
