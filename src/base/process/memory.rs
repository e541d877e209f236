//! The memory that this process may use.

use std::path::Path;

/// Bytes of memory that this process may use: the machine's, or the lowest limit of its control groups if that
/// is lower.
pub fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram.saturating_mul(u64::from(machine.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_of(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |limit| machine.min(limit))
}

/// The lowest limit of the groups listed in `/proc/PID/cgroup` (`cgroups(7)`) and of their parents.
fn limit_of(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        let controllers = words.next().unwrap_or("");
        let group = words.next().unwrap_or("");
        let (top, name) = if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            (root.to_path_buf(), "memory.max")
        };
        let folder = top.join(group.trim_start_matches('/'));
        let around = folder.ancestors().take_while(|folder| folder.starts_with(&top));
        let limit = |folder: &Path| -> Option<u64> {
            std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
        };
        around.filter_map(limit).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_least_limit_of_a_control_group_and_of_those_around_it_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = |groups: &str| limit_of(groups, dir.path());
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "300000000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), Some(300_000_000));
        write("a/b/memory.max", "200000000\n");
        assert_eq!(limit("0::/a/b\n"), Some(200_000_000));
        // In a container, the process sees its own group as the root.
        write("memory/memory.limit_in_bytes", "100000000\n");
        assert_eq!(limit("5:cpu,memory:/far/away\n0::/a\n"), Some(100_000_000));
        assert_eq!(limit("nonsense\n1:memory\n0::/a\n"), Some(100_000_000));
        assert!(memory_bytes() > 0);
    }
}
