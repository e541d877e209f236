//! Errors for what a build lacks: each names the feature that brings it. `tools/check --all` runs these tests with
//! the default features.

use std::fs;

use crate::common::{TestDir, dlfs, finish, run};

#[test]
fn sources_of_the_feature_formats_name_it() {
    if cfg!(feature = "formats") {
        return println!("SKIPPED: this build has the feature");
    }
    let dir = TestDir::new();
    let sources: [(&str, &[u8]); 7] = [
        ("a.parquet", b"PAR1"),
        ("a.arrow", b"ARROW1"),
        ("mds/index.json", br#"{"shards": [], "version": 2}"#),
        ("litdata/index.json", br#"{"chunks": [], "config": {}}"#),
        ("a.tar.xz", b"\xfd7zXZ\0\0"),
        ("a.tar.bz2", b"BZh91AY&SY"),
        ("a.tar.zst", b"\x28\xb5\x2f\xfd\0\0"),
    ];
    for (number, (name, bytes)) in sources.into_iter().enumerate() {
        let path = dir.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        let image = dir.arg(&format!("{number}.dlfs"));
        run(&["import", &dir.arg(name), &image])
            .code(1)
            .complains_of(&[name, "--features formats"]);
    }
}

#[test]
fn object_stores_name_the_feature_cloud() {
    if cfg!(feature = "cloud") {
        return println!("SKIPPED: this build has the feature");
    }
    let dir = TestDir::new();
    for store in ["s3://bucket/train", "https://example.org/train.tar", "hf://datasets/a/b"] {
        let image = dir.arg("image.dlfs");
        run(&["import", store, &image]).code(1).complains_of(&[store, "--features cloud"]);
        run(&["read", store]).code(1).complains_of(&["--features cloud"]);
    }
}

#[test]
fn a_catalogue_in_redis_names_the_feature_catalog() {
    if cfg!(feature = "catalog") {
        return println!("SKIPPED: this build has the feature");
    }
    let mut command = dlfs();
    command.env("DLFS_CATALOGS", "site=redis://127.0.0.1:1/0").args(["stat", "dlfs://site/train"]);
    finish(command).code(1).complains_of(&["--features catalog"]);
}

#[test]
fn the_page_over_metrics_names_the_feature_top() {
    if cfg!(feature = "top") {
        return println!("SKIPPED: this build has the feature");
    }
    run(&["top", "127.0.0.1:9410", "--once"]).code(1).complains_of(&["--features top"]);
}
