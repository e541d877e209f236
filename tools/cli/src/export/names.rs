//! Names of files below the destination: the check of a name, and its escaped form.
//!
//! A name is used unchanged if every component between slashes is an ordinary file name: not empty, not `.`
//! or `..`, at most 255 bytes, without NUL. Other bytes are left to the file system: newlines and invalid
//! UTF-8 are exported unchanged.
//!
//! An escaped name is built one component at a time, so that it always passes the rule:
//! - `%` and NUL become `%25` and `%00`;
//! - `.` and `..` become `%2E` and `%2E%2E`;
//! - an empty component becomes `%-`;
//! - a component whose escaped form is longer than 255 bytes keeps the first 200 bytes of that form, followed by `%~`
//!   and the CRC32C of the component as it was, in eight hexadecimal digits.

/// Checks that `name` may be used unchanged; the error is the reason why not.
pub(super) fn check(name: &[u8]) -> Result<(), String> {
    if name.starts_with(b"/") {
        return Err("an absolute path".to_owned());
    }
    name.split(|&byte| byte == b'/').try_for_each(check_component)
}

/// Checks one component of a name.
fn check_component(component: &[u8]) -> Result<(), String> {
    match component {
        b"" => Err("an empty part in the path".to_owned()),
        b"." | b".." => Err("`.` or `..` as a part of the path".to_owned()),
        component if component.contains(&0) => Err("a NUL byte in the path".to_owned()),
        component if component.len() > MAX_COMPONENT_BYTES => Err(format!(
            "a part of {} bytes, and {MAX_COMPONENT_BYTES} is the most",
            component.len()
        )),
        _ => Ok(()),
    }
}

/// Escapes `name` by the rule at the top of this file; the result passes [`check`].
pub(super) fn escape(name: &[u8]) -> Vec<u8> {
    let components = name.split(|&byte| byte == b'/').map(escape_component);
    components.collect::<Vec<_>>().join(&b'/')
}

/// The escaped form of one component.
fn escape_component(component: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(component.len());
    match component {
        b"" => escaped.extend(b"%-"),
        b"." => escaped.extend(b"%2E"),
        b".." => escaped.extend(b"%2E%2E"),
        component => {
            for &byte in component {
                match byte {
                    b'%' => escaped.extend(b"%25"),
                    0 => escaped.extend(b"%00"),
                    byte => escaped.push(byte),
                }
            }
        }
    }
    if escaped.len() > MAX_COMPONENT_BYTES {
        escaped.truncate(KEPT_PREFIX_BYTES);
        escaped.extend(format!("%~{:08x}", dlfs::checksum::crc32c(component)).bytes());
    }
    escaped
}

/// The longest file name on Linux's file systems, in bytes.
const MAX_COMPONENT_BYTES: usize = 255;
/// The length of the prefix that an escaped component keeps, in bytes.
const KEPT_PREFIX_BYTES: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_taken_as_they_are() {
        let long = vec![b'x'; 255];
        for name in [&b"a"[..], b"cat/1.jpg", b"a\nb", b"\xff", b"...", b".hidden", b"50%", &long] {
            assert_eq!(check(name), Ok(()), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn names_that_are_no_path_below_a_folder_are_refused_with_the_reason() {
        let long = vec![b'x'; 256];
        let cases: [(&[u8], &str); 11] = [
            (b"", "empty part"),
            (b"/etc/passwd", "absolute"),
            (b"../x", "`..`"),
            (b"a/../../x", "`..`"),
            (b"a/..", "`..`"),
            (b"a/./b", "`..`"),
            (b"a//b", "empty part"),
            (b"a/", "empty part"),
            (b"a\0b", "NUL"),
            (b"a/\0", "NUL"),
            (&long, "a part of 256 bytes"),
        ];
        for (name, fault) in cases {
            let found = check(name).unwrap_err();
            assert!(found.contains(fault), "{}: {found}", name.escape_ascii());
        }
    }

    #[test]
    fn escaped_names_follow_the_rule_in_the_heading() {
        assert_eq!(escape(b"/etc/passwd"), b"%-/etc/passwd");
        assert_eq!(escape(b"../50%"), b"%2E%2E/50%25");
        assert_eq!(escape(b"a//b/"), b"a/%-/b/%-");
        assert_eq!(escape(b"a\0b"), b"a%00b");
        let long = escape(&[b'x'; 300]);
        assert_eq!(long.len(), KEPT_PREFIX_BYTES + 10);
        assert_ne!(long, escape(&[b'x'; 301]));
    }

    /// Every name of up to six of the significant bytes.
    #[test]
    fn every_short_hostile_name_is_safe_once_escaped() {
        let alphabet = b"./\0%a";
        let mut names = vec![Vec::new()];
        for _ in 0..6 {
            let longer: Vec<Vec<u8>> = names
                .iter()
                .flat_map(|name| alphabet.iter().map(|&byte| [&name[..], &[byte]].concat()))
                .collect();
            names = longer;
            for name in &names {
                assert_eq!(check(&escape(name)), Ok(()), "{}", name.escape_ascii());
            }
        }
    }
}
