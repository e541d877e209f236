//! Finds SPDK with pkg-config (or below `SPDK_DIR`), says how to link it, and makes the bindings.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=wrapper.h");
    #[cfg(feature = "bindings")]
    spdk::find_link_and_bind();
}

#[cfg(feature = "bindings")]
mod spdk {
    use std::env;
    use std::path::PathBuf;

    use pkg_config::Library;

    /// `spdk_syslibs` has to be asked for; the file keyring is a module of its own.
    const MODULES: [&str; 4] = ["spdk_nvme", "spdk_env_dpdk", "spdk_syslibs", "spdk_keyring_file"];

    /// Libraries that `spdk_syslibs` names and an NVMe host does not need.
    const NOT_NEEDED: [&str; 6] = ["vfio-user", "json-c", "aio", "pthread", "rt", "dl"];

    pub(super) fn find_link_and_bind() {
        for variable in ["SPDK_DIR", "PKG_CONFIG_PATH"] {
            println!("cargo:rerun-if-env-changed={variable}");
        }
        let found = match find() {
            Ok(found) => found,
            Err(problem) => {
                // One message, where a failed build script would be a page.
                println!("cargo::error={problem}");
                return;
            }
        };
        link(&found);
        bind(&found);
    }

    fn find() -> Result<Vec<Library>, String> {
        let mut looked = "pkg-config's own places".to_owned();
        if let Some(folder) = env::var_os("SPDK_DIR").map(PathBuf::from) {
            let places = ["lib/pkgconfig", "lib64/pkgconfig", "build/lib/pkgconfig"];
            let places: Vec<PathBuf> = places.iter().map(|place| folder.join(place)).collect();
            let before = env::var_os("PKG_CONFIG_PATH").unwrap_or_default();
            let all = places.iter().cloned().chain(env::split_paths(&before));
            let joined = env::join_paths(all).map_err(|error| format!("SPDK_DIR: {error}"))?;
            #[allow(unsafe_code)] // pkg-config is told by the environment
            // SAFETY: the build script has one thread.
            unsafe {
                env::set_var("PKG_CONFIG_PATH", &joined);
            }
            looked = format!("{}, then {looked}", joined.to_string_lossy());
        }
        let mut config = pkg_config::Config::new();
        config.cargo_metadata(false).print_system_libs(false);
        let probed: Result<Vec<Library>, _> =
            MODULES.iter().map(|name| config.probe(name)).collect();
        probed.map_err(|error| {
            let lines = error.to_string();
            let complaints = ["was not found", "No package", "could not"];
            let says = |line: &&str| complaints.iter().any(|words| line.contains(words));
            let first = lines.lines().find(says).unwrap_or("it was not found");
            format!(
                "feature `spdk` needs an installed SPDK, 24.09 or later, with static libraries. Looked for the \
                 pkg-config modules {} in: {looked}. Set SPDK_DIR to the prefix that SPDK was installed \
                 into (`./configure --prefix=DIR` and `make install`), or PKG_CONFIG_PATH to its \
                 lib/pkgconfig; or build without the feature. pkg-config said: {}",
                MODULES.join(", "),
                first.trim()
            )
        })
    }

    /// Statically, and SPDK's and DPDK's archives whole: transports, socket implementations, the
    /// keyring and DPDK's drivers register themselves in constructors that nothing names.
    fn link(found: &[Library]) {
        let mut told: Vec<String> = Vec::new();
        let mut tell = |line: String| {
            if !told.contains(&line) {
                println!("{line}");
                told.push(line);
            }
        };
        for library in found {
            for path in &library.link_paths {
                tell(format!("cargo:rustc-link-search=native={}", path.display()));
            }
            for name in &library.libs {
                if name.starts_with("spdk_") || name.starts_with("rte_") {
                    tell(format!("cargo:rustc-link-lib=static:+whole-archive,-bundle={name}"));
                }
            }
        }
        for file in found.iter().flat_map(|library| &library.link_files) {
            // ISA-L is named by its file.
            let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            if let (Some(folder), Some(name)) = (file.parent(), name) {
                tell(format!("cargo:rustc-link-search=native={}", folder.display()));
                tell(format!(
                    "cargo:rustc-link-lib=static:-bundle={}",
                    name.trim_start_matches("lib")
                ));
            }
        }
        for name in found.iter().flat_map(|library| &library.libs) {
            let ours = name.starts_with("spdk_") || name.starts_with("rte_");
            if !ours && !name.starts_with("isal") && !NOT_NEEDED.contains(&name.as_str()) {
                tell(format!("cargo:rustc-link-lib=dylib={name}"));
            } else if name.starts_with("isal") {
                tell(format!("cargo:rustc-link-lib=static:-bundle={name}"));
            }
        }
    }

    fn bind(found: &[Library]) {
        let includes = found.iter().flat_map(|library| &library.include_paths);
        let bindings = bindgen::Builder::default()
            .header("wrapper.h")
            .clang_args(includes.map(|path| format!("-I{}", path.display())))
            .allowlist_function("spdk_env_(init|opts_init)|spdk_dma_(zmalloc|free)")
            .allowlist_function(
                "spdk_nvme_(connect_async|probe_poll_async|detach_async|detach_poll_async)",
            )
            .allowlist_function(
                "spdk_nvme_ctrlr_(get_default_ctrlr_opts|get_default_io_qpair_opts|get_data)",
            )
            .allowlist_function(
                "spdk_nvme_ctrlr_(get_opts|get_ns|get_first_active_ns|get_max_xfer_size)",
            )
            .allowlist_function(
                "spdk_nvme_ctrlr_(get_num_io_queues|process_admin_completions|fail)",
            )
            .allowlist_function(
                "spdk_nvme_ctrlr_(alloc_io_qpair|connect_io_qpair|free_io_qpair|is_active_ns)",
            )
            .allowlist_function("spdk_nvme_ctrlr_(register_aer_callback|get_flags|reset)")
            .allowlist_function("spdk_nvme_qpair_(process_completions|is_connected)")
            .allowlist_function(
                "spdk_nvme_poll_group_(create|destroy|add|remove|process_completions)",
            )
            .allowlist_function(
                "spdk_nvme_ns_(cmd_read|cmd_write|cmd_flush|get_data|get_uuid|get_id)",
            )
            .allowlist_function("spdk_nvme_transport_(id_populate_trstring|available_by_name)")
            .allowlist_function("spdk_keyring_(init|get_key|put_key|file_add_key|file_remove_key)")
            .allowlist_function("spdk_log_(open|set_print_level|set_level)|vsnprintf")
            .allowlist_var("SPDK_VERSION_(MAJOR|MINOR|PATCH|STRING)|SPDK_LOG_.*")
            .allowlist_var("SPDK_NVME_IO_FLAGS_.*")
            .default_enum_style(bindgen::EnumVariation::NewType {
                is_bitfield: false,
                is_global: false,
            })
            // bindgen cannot lay these out: a packed struct with bit-fields, and what contains it.
            .opaque_type("spdk_nvme_feat_async_event_configuration.*")
            .opaque_type("spdk_nvme_(ctrlr|ns)_data")
            .layout_tests(true)
            .generate();
        let written = match bindings {
            Ok(bindings) => {
                let folder = env::var_os("OUT_DIR").expect("cargo sets it");
                let path = PathBuf::from(folder).join("bindings.rs");
                bindings.write_to_file(path).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string().replace('\n', " ")),
        };
        if let Err(problem) = written {
            println!("cargo::error=no bindings from SPDK's headers: {problem}");
        }
    }
}
