//! No user data is destroyed: tiers, states and snapshots overwrite only their own files or empty
//! ones.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::{Ran, TestDir, run};
use crate::disk::LoopDevice;

fn read(image: &str, tier: &str) -> Ran {
    run(&["read", image, "--tier", tier])
}

/// Reads through a tier at each of `paths` are refused, and `victim` is unchanged.
fn is_kept(dir: &TestDir, image: &str, victim: &Path, paths: &[&str], why: &str) {
    let before = fs::read(victim).unwrap();
    for path in paths {
        let tier = format!("file:{}:64M", dir.arg(path));
        read(image, &tier).code(1).complains_of(&[path, why]);
        assert!(fs::read(victim).unwrap() == before, "{path} destroyed {}", victim.display());
    }
}

#[test]
fn a_tier_takes_over_no_image_and_no_file_of_another_kind() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    run(&["import", &dir.arg("source"), &dir.arg("other.dlfs")]).code(0);
    symlink("other.dlfs", dir.path("link")).unwrap();
    fs::hard_link(dir.path("other.dlfs"), dir.path("hard")).unwrap();
    fs::write(dir.path("thesis.txt"), "three years of work").unwrap();
    fs::create_dir(dir.path("folder")).unwrap();
    // The name of this image's tier in a folder.
    read(&image, &format!("file:{}:64M", dir.arg("folder"))).code(0);
    let tier = fs::read_dir(dir.path("folder")).unwrap().next().unwrap().unwrap().path();
    fs::rename(dir.path("thesis.txt"), &tier).unwrap();
    symlink("nowhere", dir.path("dangling")).unwrap();

    let other = dir.path("other.dlfs");
    is_kept(&dir, &image, &other, &["other.dlfs", "link", "hard"], "a dlfs image");
    is_kept(&dir, &image, &tier, &["folder"], "a file with content");
    read(&image, &format!("file:{}:64M", dir.arg("dangling"))).code(1);
    assert!(!dir.path("nowhere").exists());

    // `auto` measures the tier first, which must not write to it either.
    let before = fs::read(&other).unwrap();
    let tier = format!("file:{}:64M", dir.arg("other.dlfs"));
    run(&["read", &image, "--tiers-file", "auto", "--tier", &tier])
        .code(1)
        .complains_of(&["a dlfs image"]);
    assert!(fs::read(&other).unwrap() == before);
}

#[test]
fn a_tier_is_never_the_data_set_itself_even_with_overwrite() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    symlink("train.dlfs", dir.path("link")).unwrap();
    fs::hard_link(dir.path("train.dlfs"), dir.path("hard")).unwrap();
    let before = fs::read(&image).unwrap();
    for path in ["train.dlfs", "link", "hard"] {
        for consent in ["", ":overwrite"] {
            let tier = format!("file:{}:64M{consent}", dir.arg(path));
            read(&image, &tier).code(1).complains_of(&["is the data set"]);
        }
    }
    assert!(fs::read(&image).unwrap() == before);
    // A folder is a data set itself: an empty file in it is a sample, and a new file would become
    // one.
    fs::write(dir.path("source/cat/empty"), "").unwrap();
    for path in ["source", "source/cat", "source/cat/empty"] {
        let tier = format!("file:{}:64M:overwrite", dir.arg(path));
        read(&dir.arg("source"), &tier).code(1).complains_of(&["lies within the data set"]);
    }
}

#[test]
fn a_tier_takes_over_empty_files_earlier_tiers_and_what_the_user_names() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    fs::write(dir.path("empty"), "").unwrap();
    fs::File::create(dir.path("long")).unwrap().set_len(1 << 20).unwrap();
    fs::write(dir.path("old.txt"), "may go").unwrap();
    for (path, consent) in [("empty", ""), ("empty", ""), ("long", ""), ("old.txt", ":overwrite")] {
        read(&image, &format!("file:{}:64M{consent}", dir.arg(path))).code(0);
    }
    assert!(fs::read(dir.path("old.txt")).unwrap().starts_with(b"DLFSTIER"));
}

/// Needs root, for a loop device and a mount.
#[test]
fn a_tier_takes_over_no_block_device_that_is_mounted_or_has_content() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    let file = dir.path("disk");
    fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
    let Some(device) = LoopDevice::new(&file) else {
        println!("SKIPPED: no loop device can be made here");
        return;
    };
    let tier = format!("file:{}:32M", device.path().display());
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device.path()).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no mkfs.ext4");
        return;
    }
    let before = fs::read(&file).unwrap();
    read(&image, &tier).code(1).complains_of(&["a block device with content"]);
    let at = dir.path("mounted");
    fs::create_dir(&at).unwrap();
    let mounted = Command::new("mount").arg(device.path()).arg(&at).status();
    if mounted.is_ok_and(|status| status.success()) {
        read(&image, &format!("{tier}:overwrite")).code(1).complains_of(&["is mounted"]);
        assert!(Command::new("umount").arg(&at).status().unwrap().success());
    }
    let after = fs::read(&file).unwrap();
    assert!(after[1 << 20..] == before[1 << 20..] && after[..1024] == before[..1024]);
    read(&image, &format!("{tier}:overwrite")).code(0);
    read(&image, &tier).code(0); // an earlier tier now
}

#[test]
fn states_and_snapshots_replace_regular_files_only() {
    let dir = TestDir::with_image();
    let image = dir.arg("train.dlfs");
    symlink("/dev/null", dir.path("null")).unwrap();
    for path in ["/dev/null", &dir.arg("null"), &dir.arg("source")] {
        run(&["read", &image, "--state", path]).code(1).complains_of(&["regular file"]);
        run(&["snapshot", "save", &image, path]).code(1).complains_of(&["regular file"]);
    }
    use std::os::unix::fs::FileTypeExt;
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    fs::create_dir(dir.path("kept")).unwrap();
    symlink("kept/state.json", dir.path("state")).unwrap();
    run(&["read", &image, "--state", &dir.arg("state")]).code(0);
    assert!(dir.path("state").is_symlink() && dir.path("kept/state.json").is_file());
}
