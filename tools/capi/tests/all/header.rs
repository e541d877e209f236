//! dlfs.h is up to date with the sources.

use std::path::Path;

/// In the order of the header.
const SOURCES: [&str; 18] = [
    "error",
    "options",
    "mount",
    "views",
    "column",
    "field_type",
    "file",
    "read_batch",
    "sequence",
    "mixture",
    "tokens",
    "batch",
    "stats",
    "log",
    "edit",
    "writer",
    "parts",
    "namespace",
];

#[test]
fn the_header_is_what_cbindgen_makes_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder.join(format!("src/{source}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let header = folder.join("dlfs.h");
    if std::env::var_os("DLFS_BLESS").is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    let found = std::fs::read_to_string(&header).unwrap();
    assert!(
        found == made,
        "dlfs.h is not what the sources say: DLFS_BLESS=1 cargo test -p dlfs-capi header"
    );
}
