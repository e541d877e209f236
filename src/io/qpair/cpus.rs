//! Binds threads to processors, and so their memory to NUMA nodes.
//!
//! The kernel allocates a page on the NUMA node of the processor that touches it first. So a thread that is
//! bound before it creates its buffers has them on its node, without an explicit NUMA policy.

use std::fmt;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use dlfs_base::error::{Error, Result, invalid};

/// Processors to bind threads to: at least one, in ascending order. When a public constructor returns, the processors
/// exist, and the calling thread may use them; threads inherit this from the one that starts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

impl Cpus {
    /// Parses a list of processors such as `0,2-5`.
    ///
    /// # Errors
    /// `InvalidArgument`: the list is malformed, or names a processor that this machine does not have or the
    /// calling thread may not use.
    pub fn parse(list: &str) -> Result<Cpus> {
        let cpus = parse_list(list).ok_or_else(|| {
            invalid(format!("'{list}' is not a list of processors such as 0,2-5"))
        })?;
        let online = online();
        let allowed = allowed()?;
        for cpu in &cpus {
            if !online.contains(cpu) {
                let online = Cpus(online);
                return Err(invalid(format!("processor {cpu} does not exist: there are {online}")));
            }
            if !allowed.contains(cpu) {
                let allowed = Cpus(allowed);
                let message = format!("processor {cpu} may not be used: {allowed} may");
                return Err(invalid(message).hint("the process was started bound to those"));
            }
        }
        Ok(Cpus(cpus))
    }

    /// The processors of NUMA node `node` that the calling thread may use.
    ///
    /// # Errors
    /// `InvalidArgument`: the machine has no such node, the node has only memory, or the calling thread may use
    /// none of its processors.
    pub fn of_node(node: u32) -> Result<Cpus> {
        let of_node = node_cpus(node)?;
        let allowed = allowed()?;
        let cpus: Vec<usize> = of_node.into_iter().filter(|cpu| allowed.contains(cpu)).collect();
        if cpus.is_empty() {
            let message = format!("no processor of NUMA node {node} may be used by this process");
            return Err(invalid(message));
        }
        Ok(Cpus(cpus))
    }

    /// Returns the processors unchanged if all of them belong to NUMA node `node`.
    ///
    /// # Errors
    /// `InvalidArgument`: the machine has no such node, the node has only memory, or a processor belongs to
    /// another node.
    pub fn within_node(self, node: u32) -> Result<Cpus> {
        let of_node = node_cpus(node)?;
        match self.0.iter().find(|cpu| !of_node.contains(cpu)) {
            None => Ok(self),
            Some(cpu) => {
                let of_node = Cpus(of_node);
                let message = format!("processor {cpu} is not of NUMA node {node}: {of_node} are");
                Err(invalid(message))
            }
        }
    }

    /// The number of processors.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One processor, counted cyclically: the processor of the `n`th thread.
    pub fn nth(&self, n: usize) -> Cpus {
        Cpus(vec![self.0[n % self.0.len()]])
    }

    /// Binds the calling thread to these processors.
    ///
    /// # Errors
    /// The kernel refuses because none of the processors is there and allowed any more.
    pub fn bind_this_thread(&self) -> Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set).map_err(|errno| {
            let message = format!("cannot bind a thread to processors {self}");
            invalid(message).source(std::io::Error::from(errno))
        })
    }

    /// Runs `work` on a new thread that is bound to these processors, and waits for it. Memory that `work`
    /// touches first is allocated near them. If `work` panics, so does this call.
    ///
    /// # Errors
    /// The thread cannot be started or bound.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("dlfs-bound".into());
            let thread =
                builder.spawn_scoped(scope, || self.bind_this_thread().map(|()| work()))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl fmt::Display for Cpus {
    /// In the format of [`Cpus::parse`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        for (index, run) in runs.enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match *run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                _ => write!(f, "{comma}{}", run[0])?,
            }
        }
        Ok(())
    }
}

/// The error for a NUMA node that the machine does not have; it lists the nodes.
fn no_node(node: u32) -> Error {
    let nodes = std::fs::read_to_string(NODES.to_owned() + "/online").unwrap_or_default();
    let nodes = if nodes.is_empty() { "0" } else { nodes.trim_end() };
    invalid(format!("NUMA node {node} does not exist: there are {nodes}"))
}

/// The processors of a node, at least one. A kernel without NUMA has only node 0.
fn node_cpus(node: u32) -> Result<Vec<usize>> {
    if node == 0 && !Path::new(NODES).exists() {
        return Ok(online());
    }
    let list = std::fs::read_to_string(format!("{NODES}/node{node}/cpulist"));
    cpus_of_node(node, &list.map_err(|_| no_node(node))?)
}

/// Parses `list`, in which the kernel lists the processors of a node.
fn cpus_of_node(node: u32, list: &str) -> Result<Vec<usize>> {
    parse_list(list.trim_end()).ok_or_else(|| {
        invalid(format!("NUMA node {node} has no processors, only memory"))
            .hint("name the node of the processors that are near it")
    })
}

/// The processors that the calling thread may use; threads inherit this from the one that starts them.
fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(std::io::Error::from)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The processors that are online; if the kernel does not list them, those that the calling thread may use.
pub(crate) fn online() -> Vec<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    parse_list(list.trim_end()).unwrap_or_else(|| allowed().unwrap_or_default())
}

/// Parses a list of numbers and ranges; sorts it and removes duplicates. `None`: it is malformed, or has a number of
/// `CpuSet::MAX_CPU` or more.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse().ok().filter(|&cpu: &usize| cpu < CpuSet::MAX_CPU);
        let range = number(first)?..=number(last)?;
        if range.is_empty() {
            return None;
        }
        cpus.extend(range);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The folder in which the kernel describes the NUMA nodes; a kernel without NUMA has none.
const NODES: &str = "/sys/devices/system/node";

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::error::ErrorKind;

    #[test]
    fn a_list_has_numbers_and_ranges_and_prints_as_it_is_read() {
        for (list, printed) in [("0", "0"), ("3,1", "1,3"), ("0-2,2-4,7", "0-4,7"), ("5-6", "5-6")]
        {
            assert_eq!(Cpus(parse_list(list).unwrap()).to_string(), printed);
        }
        for wrong in ["", "a", "1,", "3-1", "-1", "1-", "0x1", "99999999"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn missing_processors_and_nodes_are_named() {
        let error = Cpus::parse("0-1000").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("does not exist: there are 0"), "{error}");
        assert!(Cpus::parse("zero").unwrap_err().to_string().contains("not a list of processors"));
        let error = Cpus::of_node(4000).unwrap_err();
        assert!(error.to_string().contains("NUMA node 4000 does not exist"), "{error}");
        assert_eq!(cpus_of_node(0, "0-1\n").unwrap(), [0, 1]);
        let error = cpus_of_node(1, "\n").unwrap_err();
        assert!(error.to_string().contains("NUMA node 1 has no processors"), "{error}");
    }

    #[test]
    fn work_runs_on_the_processor_that_it_is_bound_to_and_the_caller_stays_free() {
        let mine = allowed().unwrap();
        for n in 0..mine.len() {
            let one = Cpus(mine.clone()).nth(n);
            assert_eq!(one.run(allowed).unwrap().unwrap(), [mine[n]]);
        }
        assert_eq!(allowed().unwrap(), mine);
        let refused = Cpus(vec![CpuSet::MAX_CPU - 1]).run(|| ());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_panic_of_the_work_continues_in_the_caller() {
        let cpus = Cpus::parse(&allowed().unwrap()[0].to_string()).unwrap();
        let run = || cpus.run::<()>(|| panic!("the work's own words"));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the work's own words"));
    }

    #[test]
    fn a_thread_bound_elsewhere_is_told_which_processors_it_may_use() {
        let mine = allowed().unwrap();
        if mine.len() < 2 {
            println!("SKIPPED: this process may use one processor only");
            return;
        }
        let other = mine[1].to_string();
        let error = Cpus(vec![mine[0]]).run(|| Cpus::parse(&other)).unwrap().unwrap_err();
        assert!(error.to_string().contains("may not be used"), "{error}");
    }
}
