//! Decides which mount a path belongs to. A path below no mount costs no allocation, lock or system call, unless
//! it is relative to a folder's descriptor.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::mounts::{self, Mount};
use crate::{files, inside, syscalls};

/// A path below a mount.
pub(crate) struct MountedPath {
    pub(crate) mount: &'static Mount,
    /// Path relative to the mount's top folder.
    pub(crate) path: Vec<u8>,
}

/// Finds the mount of `path`. `None`: the path is below no mount, or the library itself makes the call. A relative path
/// starts at the folder's descriptor `folder`, or at the working directory if that is AT_FDCWD.
#[inline]
pub(crate) fn mounted(folder: c_int, path: &CStr) -> Option<MountedPath> {
    let mounts = mounts::all();
    if mounts.is_empty() {
        return None;
    }
    let path = path.to_bytes();
    let mounted = match path.first() {
        Some(b'/') => absolute(mounts, path)?,
        None => return None,
        Some(_) if folder == libc::AT_FDCWD => relative(path)?,
        Some(_) => below(folder, path)?,
    };
    (!inside::is_inside()).then_some(mounted)
}

/// Finds the mount of an absolute path.
fn absolute(mounts: &'static [Mount], path: &[u8]) -> Option<MountedPath> {
    if let Some((mount, rest)) = mounts.iter().find_map(|mount| Some((mount, mount.below(path)?)))
        && !leaves(rest)
    {
        return Some(MountedPath { mount, path: rest.to_vec() });
    }
    // Paths such as `//data` and `/x/../data` are rare; only these are examined component by component.
    let mut last = 0;
    let is_odd = path.iter().any(|&byte| {
        let odd = last == b'/' && (byte == b'/' || byte == b'.');
        last = byte;
        odd
    });
    if is_odd && path.len() <= MOST_BYTES { by_components(path) } else { None }
}

/// As [`absolute`], for a path with `//`, `.` or `..`. Follows the path component by component like the kernel, except
/// links; where this reaches a mount, the rest of the path is below the mount.
#[cold]
fn by_components(path: &[u8]) -> Option<MountedPath> {
    // On the stack, since most such paths are below no mount.
    let mut plain = [0; MOST_BYTES + 1];
    let mut len = 0;
    let mut end = 0;
    for component in path.split(|byte| *byte == b'/') {
        end += component.len() + 1; // past the component and its slash
        len = step(&mut plain, len, component);
        let reached = mounts::all().iter().find(|mount| mount.setting.prefix == plain[..len]);
        let rest = path.get(end - 1..).unwrap_or_default();
        if let Some(mount) = reached
            && !leaves(rest)
        {
            return Some(MountedPath { mount, path: rest.to_vec() });
        }
    }
    None
}

/// Returns whether `..` leads out of a mount.
fn leaves(rest: &[u8]) -> bool {
    let mut depth = 0;
    rest.split(|byte| *byte == b'/').any(|component| {
        depth += match component {
            b"" | b"." => 0,
            b".." => -1,
            _ => 1,
        };
        depth < 0
    })
}

/// The last known working directory; paths relative to it are joined on the stack.
static WORKING: WorkingFolder = WorkingFolder {
    len: AtomicUsize::new(0),
    bytes: [const { AtomicU8::new(0) }; MOST_BYTES],
    is_near: AtomicBool::new(false),
};

/// A working directory. Readers take no lock: while the path changes, `len` is 0.
struct WorkingFolder {
    /// Length of the path in bytes; 0: the path is not known, or is changing.
    len: AtomicUsize,
    /// The path.
    bytes: [AtomicU8; MOST_BYTES],
    /// Set if a path without `..` can lead from the working directory to a mount.
    is_near: AtomicBool,
}

/// Finds the mount of a path relative to the working directory.
fn relative(path: &[u8]) -> Option<MountedPath> {
    if !has_parent(path) && !WORKING.is_near.load(Ordering::Relaxed) {
        return None;
    }
    let len = WORKING.len.load(Ordering::Acquire);
    let mut whole = [0; MOST_BYTES];
    let known = whole.iter_mut().zip(&WORKING.bytes).take(len);
    known.for_each(|(byte, known)| *byte = known.load(Ordering::Relaxed));
    joined(&mut whole, len, path)
}

/// Returns whether a component may be `..`.
fn has_parent(path: &[u8]) -> bool {
    path.starts_with(b"..") || path.windows(3).any(|three| three == b"/..")
}

/// Finds the mount of a path relative to a folder, whose path is the first `len` bytes of `whole`; 0: it is unknown.
fn joined(whole: &mut [u8; MOST_BYTES], len: usize, path: &[u8]) -> Option<MountedPath> {
    let end = len + 1 + path.len();
    if len == 0 || end > MOST_BYTES {
        return None;
    }
    whole[len] = b'/';
    whole[len + 1..end].copy_from_slice(path);
    by_components(&whole[..end])
}

/// Asks the kernel for the working directory, and remembers it.
pub(crate) fn learn_working_folder() {
    let mut path = [0u8; MOST_BYTES];
    // SAFETY: the buffer has this length.
    let len = unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) };
    let len = usize::try_from(len).unwrap_or(0).saturating_sub(1); // without its NUL
    let path = &path[..len];
    WORKING.len.store(0, Ordering::Release);
    path.iter().zip(&WORKING.bytes).for_each(|(byte, kept)| kept.store(*byte, Ordering::Relaxed));
    let near = |mount: &Mount| {
        let above = mount.setting.prefix.strip_prefix(path);
        mount.below(path).is_some() || path == b"/" || above.is_some_and(|rest| rest[0] == b'/')
    };
    WORKING.is_near.store(mounts::all().iter().any(near), Ordering::Relaxed);
    WORKING.len.store(len, Ordering::Release);
}

/// Finds the mount of a path relative to a folder's descriptor. The folder is below the mount, or contains it.
fn below(folder: c_int, path: &[u8]) -> Option<MountedPath> {
    if let Some((mount, node)) = files::node_behind(folder) {
        // If the descriptor is a file's, resolving the path reports ENOTDIR.
        let above =
            inside::run(|| mount.opened()?.files.tree().path(node).map_err(|_| libc::EIO)).ok()?;
        return Some(MountedPath { mount, path: [&above[..], b"/", path].concat() });
    }
    // Asking for the folder's path costs a system call. So ask only if the first component occurs in a mount's
    // path, or if a component is `..`. A path below a real folder that a mount hides is not recognised.
    let first = path.split(|byte| *byte == b'/').find(|part| !matches!(*part, b"" | b"."))?;
    let leads =
        |mount: &Mount| mount.setting.prefix.split(|byte| *byte == b'/').any(|part| part == first);
    if !has_parent(path) && !mounts::all().iter().any(leads) {
        return None;
    }
    let mut whole = [0; MOST_BYTES];
    let len = syscalls::name_of_descriptor(folder, &mut whole)?;
    if whole[0] == b'/' { joined(&mut whole, len, path) } else { None }
}

/// Resolves `//`, `.` and `..` in a path, and removes trailing slashes.
pub(crate) fn normalise(path: &[u8]) -> Vec<u8> {
    let mut plain = vec![0; path.len() + 1];
    let len = path.split(|byte| *byte == b'/').fold(0, |len, part| step(&mut plain, len, part));
    plain.truncate(len);
    if plain.is_empty() { b"/".to_vec() } else { plain }
}

/// Appends a component to a path of `len` bytes that has room for it; returns the new length.
fn step(plain: &mut [u8], len: usize, component: &[u8]) -> usize {
    match component {
        b"" | b"." => len,
        b".." => plain[..len].iter().rposition(|byte| *byte == b'/').unwrap_or(0),
        _ => {
            plain[len] = b'/';
            plain[len + 1..len + 1 + component.len()].copy_from_slice(component);
            len + 1 + component.len()
        }
    }
}

/// The longest path that is joined, or followed by component; a longer one counts as below no mount.
const MOST_BYTES: usize = 4096;
