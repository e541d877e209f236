//! The engines of this build, for display.

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Its name: the first word of [`super::Namespace::engine`].
    pub name: &'static str,
    /// True if this build includes it.
    pub compiled_in: bool,
    /// The addresses that it supports, or what is missing.
    pub reaches: String,
}

/// All engines that addresses select, including those that this build lacks.
pub fn engines() -> Vec<Engine> {
    let engine =
        |name, reaches: &str| Engine { name, compiled_in: true, reaches: reaches.to_owned() };
    vec![
        engine("file", "image files and block devices, by io_uring or pread"),
        engine("folder", "folders of files, read without an import"),
        engine("tcp", "nvme-tcp:// and trtype:TCP: NVMe/TCP by this library's own host"),
        engine("pcie", "pcie: drives by VFIO; trtype:VFIOUSER: controllers that a process plays"),
        spdk(),
    ]
}

#[cfg(feature = "spdk")]
fn spdk() -> Engine {
    let transports: Vec<String> = crate::spdk::transports()
        .into_iter()
        .map(|trtype| match trtype {
            "TCP" => "spdk:nvme-tcp://".to_owned(),
            "VFIOUSER" => "spdk:trtype:VFIOUSER".to_owned(),
            trtype => format!("trtype:{trtype}"),
        })
        .collect();
    let reaches = format!("{}, by SPDK {}", transports.join(", "), crate::spdk::version());
    Engine { name: "spdk", compiled_in: true, reaches }
}

#[cfg(not(feature = "spdk"))]
fn spdk() -> Engine {
    let reaches = "spdk:nvme-tcp:// and trtype:PCIE|RDMA need a build with --features spdk";
    Engine { name: "spdk", compiled_in: false, reaches: reaches.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_listed_once_and_missing_ones_say_what_they_need() {
        let found = engines();
        let names: Vec<&str> = found.iter().map(|engine| engine.name).collect();
        assert_eq!(names, ["file", "folder", "tcp", "pcie", "spdk"]);
        for engine in found {
            assert_eq!(engine.compiled_in, !engine.reaches.contains("--features"), "{engine:?}");
        }
    }
}
