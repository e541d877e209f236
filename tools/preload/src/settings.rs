//! The settings of mounts, from the environment variable `DLFS_MOUNTS`.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use dlfs::address::Address;
use dlfs::cache::TierSpec;
use dlfs::units::parse_size;

use crate::paths;

/// The mount point of one data set, and its options.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    /// An absolute path without a trailing slash, as `normalise` returns it.
    pub(crate) prefix: Vec<u8>,
    /// The data set.
    pub(crate) addresses: Vec<Address>,
    /// The tiers in front of the data set, the fastest first; empty: none.
    pub(crate) tiers: Vec<TierSpec>,
    /// Length in bytes of the longest file that is copied into memory.
    pub(crate) copy_bytes: u64,
    /// The FUSE mount of the same data set, where files above 16 MiB are opened.
    pub(crate) fuse: Option<PathBuf>,
    /// The file with the order that the program reads in.
    pub(crate) order: Option<PathBuf>,
}

/// Returns whether this program has rights that its caller lacks, as set-uid programs have. The environment is
/// the caller's, and is then not trusted.
pub(crate) fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: it only reads what the kernel gave this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of an environment variable; `None`: it is not set or empty.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with NUL; before `main`, no other thread changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: the value is NULL, or a string that is valid until the environment changes.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())?;
    // A copy, since the program may change its environment.
    (!value.is_empty()).then(|| &*value.to_vec().leak())
}

/// Parses `PREFIX=ADDRESS[;tier=TIER][;copy=SIZE][;fuse=FOLDER][;order=FILE]`, several of these separated by spaces.
/// In a value, a space, `=`, `;` or `%` is written as `%20`, `%3D`, `%3B` or `%25`.
///
/// # Errors
/// The message for the user.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Setting>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?;
    let mut settings: Vec<Setting> = Vec::new();
    for mount in text.split_ascii_whitespace() {
        let setting = parse_one(mount).map_err(|why| format!("{mount}: {why}"))?;
        let inside = |one: &Setting, other: &Setting| {
            let rest = one.prefix.strip_prefix(&other.prefix[..]);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        if settings.iter().any(|known| inside(&setting, known) || inside(known, &setting)) {
            return Err(format!("{mount}: its folder is another one's, or is inside of it"));
        }
        settings.push(setting);
    }
    Ok(settings)
}

/// Parses the setting of one mount.
fn parse_one(mount: &str) -> Result<Setting, String> {
    let (prefix, rest) = mount.split_once('=').ok_or("write FOLDER=ADDRESS")?;
    if !prefix.starts_with('/') {
        return Err("its folder is not an absolute path".to_owned());
    }
    let prefix = paths::normalise(unescaped_all(prefix).as_bytes());
    if prefix == b"/" {
        return Err("the whole file system cannot be one".to_owned());
    }
    let mut parts = rest.split(';');
    // `%25` stays: an address decodes it itself.
    let addresses = Address::parse_list(&unescaped_separators(parts.next().unwrap_or_default()));
    let addresses = addresses.map_err(|error| error.to_string())?.into_iter();
    let addresses = addresses.map(|address| match address {
        Address::Path(path) => Address::Path(from_here(path)),
        other => other,
    });
    let addresses = addresses.collect();
    let mut tiers = Vec::new();
    let mut copy_bytes = COPY_BYTES;
    let mut fuse = None;
    let mut order = None;
    for option in parts {
        match option.split_once('=') {
            Some(("tier", tier)) => {
                let tier = unescaped_all(tier);
                let relative = tier.strip_prefix("file:");
                let relative = relative.filter(|rest| !rest.starts_with(['/', ':'])); // or no path
                let from_root =
                    relative.and_then(|rest| Some(format!("file:{}", from_here(rest).to_str()?)));
                tiers.push(from_root.unwrap_or(tier).parse().map_err(|why| format!("{why}"))?)
            }
            Some(("copy", size)) => copy_bytes = parse_size(size).map_err(|why| why.to_string())?,
            Some(("fuse", folder)) => fuse = Some(from_here(unescaped_all(folder))),
            Some(("order", file)) => order = Some(from_here(unescaped_all(file))),
            _ => return Err(format!("{option} is none of tier=, copy=, fuse= and order=")),
        }
    }
    Ok(Setting { prefix, addresses, tiers, copy_bytes, fuse, order })
}

/// The path from the root of `path`, which may be relative to the working directory at the start of the program. The
/// program may change that before it opens a data set.
pub(crate) fn from_here(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Decodes the escapes of separators only, not that of `%`.
fn unescaped_separators(text: &str) -> String {
    let escapes = [("%20", " "), ("%09", "\t"), ("%0A", "\n"), ("%0a", "\n")];
    let more = [("%3D", "="), ("%3d", "="), ("%3B", ";"), ("%3b", ";")];
    let all = escapes.iter().chain(&more);
    all.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Decodes all escapes.
fn unescaped_all(text: &str) -> String {
    unescaped_separators(text).replace("%25", "%")
}

/// Default length of the longest file that is copied into memory.
const COPY_BYTES: u64 = 1 << 30;
