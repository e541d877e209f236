//! Reads an [`Environment`] from a file: TOML (`options.rs`), or the configuration of HDMLP and NoPFS.
//!
//! HDMLP's configuration is in libconfig's text format (`libconfig.rs`). Its keys:
//!
//! | key | here |
//! |---|---|
//! | `storage_classes` | the first is the staging buffer, which is the loader's window here; the others are tiers |
//! | `.capacity` | quota, in MiB |
//! | `.threads`, `.bandwidth` of `threads`, `bw` | threads, and the rates by number of threads, in MB/s |
//! | `.backend`, `.backend_options.path` | `memory`, or `filesystem` and its folder |
//! | `pfs_bandwidth` of `processes`, `bw` | rates of the origin by number of processes |
//! | `b_fs` | maximum rate of one process from the origin |
//! | `b_c` | maximum rate of one process from another node |
//! | `distributed_threads`, `checkpoint`, `checkpoint_path` | ignored, with a warning |
//!
//! The policy is always HDMLP's, `clairvoyant`. Any other key is refused by name.

use std::path::Path;

use serde_json::{Map, Value};

use super::libconfig;
use super::options::{self, Environment, Point, TierTable};
use dlfs_base::error::{Error, ErrorKind, Result};

/// Returns whether the text is a configuration of HDMLP: it has `storage_classes`, a key that our TOML
/// lacks.
fn is_hdmlp(text: &str) -> bool {
    let names = |line: &str| line.trim_start().starts_with("storage_classes");
    text.lines().any(names)
}

/// Parses HDMLP's configuration.
fn environment(text: &str) -> Result<Environment> {
    let settings = libconfig::parse(text).map_err(|why| refuse(why.to_string()))?;
    let mut root = Group::new("the configuration", settings);
    let classes = root.list("storage_classes")?;
    let mut classes = classes.into_iter().enumerate();
    let (_, staging) =
        classes.next().ok_or_else(|| refuse("storage_classes is empty".to_owned()))?;
    check_staging_buffer(staging)?;
    let mut unused = vec!["storage_classes[0] (the staging buffer is the loader's window)"];
    let tiers = classes.map(|(number, class)| tier(number, class)).collect::<Result<_>>()?;
    let origin = if root.settings.contains_key("pfs_bandwidth") {
        points("pfs_bandwidth", root.list("pfs_bandwidth")?, "processes")?
    } else {
        Vec::new()
    };
    let mut rate =
        |key: &str| root.settings.contains_key(key).then(|| root.number(key)).transpose();
    let origin_link_mb_per_s = rate("b_fs")?;
    let network_mb_per_s = rate("b_c")?;
    unused.extend(UNUSED.into_iter().filter(|key| root.settings.remove(*key).is_some()));
    root.end()?;
    let keys = unused.join(", ");
    tracing::warn!(keys, "keys of HDMLP's configuration that have no effect here");
    Ok(Environment {
        policy: Some("clairvoyant".to_owned()),
        origin,
        origin_by: Some("processes".to_owned()),
        origin_link_mb_per_s,
        network_mb_per_s,
        tiers,
        ..Environment::default()
    })
}

/// Checks the keys of the first storage class. Its values have no effect.
fn check_staging_buffer(class: Value) -> Result<()> {
    let what = "storage_classes[0], the staging buffer,";
    let mut class = Group::of(what, class)?;
    class.number("capacity")?;
    class.number("threads")?;
    points(what, class.list("bandwidth")?, "threads")?;
    class.end()
}

fn tier(number: usize, class: Value) -> Result<TierTable> {
    let what = format!("storage_classes[{number}]");
    let mut class = Group::of(&what, class)?;
    let backend = class.text("backend")?;
    let path = match class.settings.remove("backend_options") {
        None => None,
        Some(options) => {
            let mut options = Group::of(&format!("{what}.backend_options"), options)?;
            let path = options.text("path")?;
            options.end()?;
            Some(path)
        }
    };
    let mib = class.whole("capacity")?;
    let tier = TierTable {
        backend,
        path,
        capacity: format!("{mib}M"),
        overwrite: false,
        threads: u32::try_from(class.whole("threads")?)
            .map_err(|_| refuse(format!("{what} has too many threads")))?,
        read: points(&what, class.list("bandwidth")?, "threads")?,
        write: Vec::new(),
    };
    class.end()?;
    Ok(tier)
}

/// A bandwidth table whose first column is called `by`.
fn points(what: &str, list: Vec<Value>, by: &str) -> Result<Vec<Point>> {
    let mut points = Vec::with_capacity(list.len());
    for entry in list {
        let mut entry = Group::of(&format!("a table of {what}"), entry)?;
        let threads = u32::try_from(entry.whole(by)?)
            .map_err(|_| refuse(format!("{what}: too large a number of {by}")))?;
        points.push(Point { threads, mb_per_s: entry.number("bw")? });
        entry.end()?;
    }
    Ok(points)
}

/// The settings of a group that have not been read yet.
struct Group {
    what: String,
    settings: Map<String, Value>,
}

impl Group {
    fn new(what: &str, settings: Map<String, Value>) -> Group {
        Group { what: what.to_owned(), settings }
    }

    fn of(what: &str, value: Value) -> Result<Group> {
        match value {
            Value::Object(settings) => Ok(Group::new(what, settings)),
            _ => Err(refuse(format!("{what} is no group of settings"))),
        }
    }

    fn get<T>(&mut self, key: &str, kind: &str, of: impl Fn(Value) -> Option<T>) -> Result<T> {
        let found = self.settings.remove(key);
        let is_there = found.is_some();
        found.and_then(of).ok_or_else(|| self.wrong(key, kind, is_there))
    }

    fn list(&mut self, key: &str) -> Result<Vec<Value>> {
        self.get(key, "a list", |value| value.as_array().cloned())
    }

    fn text(&mut self, key: &str) -> Result<String> {
        self.get(key, "a text", |value| value.as_str().map(str::to_owned))
    }

    fn number(&mut self, key: &str) -> Result<f64> {
        self.get(key, "a number", |value| value.as_f64())
    }

    fn whole(&mut self, key: &str) -> Result<u64> {
        let number = self.number(key)?;
        let is_whole = number.fract() == 0.0 && (0.0..=MAX_WHOLE).contains(&number);
        is_whole.then_some(number as u64).ok_or_else(|| self.wrong(key, "a whole number", true))
    }

    /// Refuses the remaining settings, whose keys are unknown.
    fn end(self) -> Result<()> {
        match self.settings.keys().next() {
            None => Ok(()),
            Some(key) => Err(refuse(format!("{} has an unknown key '{key}'", self.what))),
        }
    }

    fn wrong(&self, key: &str, kind: &str, is_there: bool) -> Error {
        let what = &self.what;
        refuse(if is_there {
            format!("'{key}' of {what} is not {kind}")
        } else {
            format!("{what} has no '{key}'")
        })
    }
}

fn refuse(text: String) -> Error {
    let text = format!("HDMLP's configuration: {text}");
    Error::new(ErrorKind::InvalidArgument, text).hint("docs/operations.md lists the keys")
}

impl Environment {
    /// Parses TOML, or HDMLP's configuration if the text has the key `storage_classes`.
    ///
    /// # Errors
    /// `InvalidArgument`: neither of the two, an unknown key or backend, an invalid size, an empty or
    /// unsorted table, or a rate of 0 or less. The message says where.
    pub fn parse(text: &str) -> Result<Environment> {
        let environment: Environment = if is_hdmlp(text) {
            environment(text)?
        } else {
            toml::from_str(text).map_err(|error| options::refuse(error.to_string()))?
        };
        environment.options()?;
        Ok(environment)
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: errors of the operating system. `InvalidArgument`: see
    /// [`Environment::parse`].
    pub fn read(path: impl AsRef<Path>) -> Result<Environment> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| Error::from(error).path(path))?;
        Environment::parse(&text).map_err(|error| error.path(path))
    }
}

/// Keys without an effect here.
const UNUSED: [&str; 3] = ["distributed_threads", "checkpoint", "checkpoint_path"];

/// 2^53: all integers up to it are exact as floating-point numbers.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_order::plan::{Rate, Source};
    use dlfs_order::tier::Policy;

    /// The layout of the files that come with HDMLP and NoPFS: both separators, lines without a
    /// separator, and comments.
    const TEXT: &str = r#"
b_c = 24000 # Network bandwidth [MB/s]
b_fs = 2000 # Bandwidth to the file system [MB/s]
distributed_threads = 1
checkpoint = true
#checkpoint_path = "/tmp"
storage_classes: ( {
        capacity: 1024 # [MB]
        threads: 8
        bandwidth: (
            { threads = 1; bw = 28000; },
            { threads = 8; bw = 85800; }
        );
},
{
        capacity: 20480 # [MB]
        backend: "memory"
        threads: 4
        bandwidth: (
            { threads = 1; bw = 28000; },
            { threads = 2; bw = 50450; },
            { threads = 4; bw = 85800; }
        );
},
{
        capacity: 307200
        backend: "filesystem"
        backend_options: {
            path = "/tmp/hdmlp";
        }
        threads: 2
        bandwidth: (
            { threads = 1; bw = 192; },
            { threads = 4; bw = 637; }
        );
}
);
pfs_bandwidth: (
    { processes: 1; bw: 330; },
    { processes: 2; bw: 730; },
    { processes: 4; bw: 1540; },
);
"#;

    #[test]
    fn hdmlps_own_configuration_describes_tiers_and_origin() {
        let environment = Environment::parse(TEXT).unwrap();
        let options = environment.options().unwrap();
        let tiers: Vec<String> = options.tiers.iter().map(ToString::to_string).collect();
        assert_eq!(tiers, ["ram:21474836480", "file:/tmp/hdmlp:322122547200"]);
        assert_eq!(options.policy, Policy::Clairvoyant);
        let rates = options.rates;
        assert_eq!([0, 1].map(|tier| rates.threads(tier)), [Some(4), Some(2)]);
        assert_eq!(rates.of_tier(0), Some(Rate::mb_per_s(21_450)));
        // A third of the way from 192 to 637, shared by two processes.
        assert_eq!(rates.of_tier(1).map(|rate| rate.0 / 1000), Some(170_166));
        assert_eq!(rates.of_origin(3, 1).map(|rate| rate.0 / 1000), Some(378_333));
        assert_eq!(
            [0, 1].map(|tier| rates.choose(Some(tier), None, 1)),
            [Source::Local(0), Source::Origin]
        );
        assert_eq!(rates.network, Some(Rate::mb_per_s(24_000)));
        let linked = TEXT.replace("b_fs = 2000", "b_fs = 100");
        let rates = Environment::parse(&linked).unwrap().options().unwrap().rates;
        assert_eq!(rates.choose(Some(1), None, 1), Source::Local(1), "the link limits the origin");
    }

    #[test]
    fn it_is_written_as_toml_and_read_again() {
        let environment = Environment::parse(TEXT).unwrap();
        assert_eq!(Environment::parse(&environment.to_toml()).unwrap(), environment);
    }

    #[test]
    fn unknown_missing_and_impossible_keys_are_named() {
        let refuse = |from: &str, to: &str, says: &str| {
            assert!(TEXT.contains(from), "{from}");
            let error = Environment::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(says), "{to}: {error}");
        };
        refuse("b_c =", "b_d =", "unknown key 'b_d'");
        refuse(
            "capacity: 20480",
            "capacity: 20480; speed: 1",
            "storage_classes[1] has an unknown key 'speed'",
        );
        refuse("capacity: 20480", "size: 20480", "storage_classes[1] has no 'capacity'");
        refuse(
            "capacity: 20480",
            "capacity: 1.5",
            "'capacity' of storage_classes[1] is not a whole number",
        );
        refuse("path = \"/tmp/hdmlp\"", "path = 7", "'path' of storage_classes[2].backend_options");
        refuse("path = \"/tmp/hdmlp\"", "place = \"/\"", "has no 'path'");
        refuse("backend: \"memory\"", "", "storage_classes[1] has no 'backend'");
        refuse("backend: \"memory\"", "backend: \"tape\"", "tape");
        refuse("threads = 1; bw = 28000;", "threads = 1;", "no 'bw'");
        refuse("processes: 2; bw: 730;", "processes: 1; bw: 730;", "not sorted");
        refuse("processes: 2; bw: 730;", "threads: 2; bw: 730;", "no 'processes'");
        refuse("b_fs = 2000", "b_fs = \"much\"", "'b_fs' of the configuration is not a number");
        refuse("b_fs = 2000", "b_fs = 0", "link");
        refuse("b_fs = 2000", "b_fs 2000", "line 3: expected = or :");
        let none = "storage_classes = ( );";
        assert!(Environment::parse(none).unwrap_err().to_string().contains("is empty"));
    }
}
