//! Nothing of the user's is destroyed: tiers, states and snapshots take only what nobody could miss.

mod common;
#[allow(dead_code, unreachable_pub)] // shared with the library's tests
#[path = "../../../tests/support/disk.rs"]
mod disk;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use common::{Place, Ran, run};
use disk::LoopDevice;

fn read(image: &str, tier: &str) -> Ran {
    run(&["read", image, "--tier", tier])
}

/// Reads through a tier at each of `paths` are refused, and `victim` keeps its bytes.
fn is_kept(place: &Place, image: &str, victim: &Path, paths: &[&str], why: &str) {
    let before = fs::read(victim).unwrap();
    for path in paths {
        let tier = format!("file:{}:64M", place.arg(path));
        read(image, &tier).code(1).complains_of(&[path, why]);
        assert!(fs::read(victim).unwrap() == before, "{path} destroyed {}", victim.display());
    }
}

#[test]
fn a_tier_takes_over_no_image_and_no_file_of_another_kind() {
    let place = Place::with_image();
    let image = place.arg("train.dlfs");
    run(&["import", &place.arg("source"), &place.arg("other.dlfs")]).code(0);
    symlink("other.dlfs", place.path("link")).unwrap();
    fs::hard_link(place.path("other.dlfs"), place.path("hard")).unwrap();
    fs::write(place.path("thesis.txt"), "three years of work").unwrap();
    fs::create_dir(place.path("folder")).unwrap();
    // The name that the tier of this image has in a folder.
    read(&image, &format!("file:{}:64M", place.arg("folder"))).code(0);
    let tier = fs::read_dir(place.path("folder")).unwrap().next().unwrap().unwrap().path();
    fs::rename(place.path("thesis.txt"), &tier).unwrap();
    symlink("nowhere", place.path("dangling")).unwrap();

    let other = place.path("other.dlfs");
    is_kept(&place, &image, &other, &["other.dlfs", "link", "hard"], "a dlfs image");
    is_kept(&place, &image, &tier, &["folder"], "a file with content");
    read(&image, &format!("file:{}:64M", place.arg("dangling"))).code(1);
    assert!(!place.path("nowhere").exists());

    // `auto` measures the tier first; that must not write to it either.
    let before = fs::read(&other).unwrap();
    let tier = format!("file:{}:64M", place.arg("other.dlfs"));
    run(&["read", &image, "--tiers", "auto", "--tier", &tier])
        .code(1)
        .complains_of(&["a dlfs image"]);
    assert!(fs::read(&other).unwrap() == before);
}

#[test]
fn a_tier_is_never_the_data_set_itself_whatever_the_user_says() {
    let place = Place::with_image();
    let image = place.arg("train.dlfs");
    symlink("train.dlfs", place.path("link")).unwrap();
    fs::hard_link(place.path("train.dlfs"), place.path("hard")).unwrap();
    let before = fs::read(&image).unwrap();
    for path in ["train.dlfs", "link", "hard"] {
        for consent in ["", ":overwrite"] {
            let tier = format!("file:{}:64M{consent}", place.arg(path));
            read(&image, &tier).code(1).complains_of(&["is the data set"]);
        }
    }
    assert!(fs::read(&image).unwrap() == before);
    // A folder is a data set as it is: an empty file of it is a sample, and a new one would become one.
    fs::write(place.path("source/cat/empty"), "").unwrap();
    for path in ["source", "source/cat", "source/cat/empty"] {
        let tier = format!("file:{}:64M:overwrite", place.arg(path));
        read(&place.arg("source"), &tier).code(1).complains_of(&["lies within the data set"]);
    }
}

#[test]
fn a_tier_takes_over_empty_files_earlier_tiers_and_what_the_user_names() {
    let place = Place::with_image();
    let image = place.arg("train.dlfs");
    fs::write(place.path("empty"), "").unwrap();
    fs::File::create(place.path("long")).unwrap().set_len(1 << 20).unwrap();
    fs::write(place.path("old.txt"), "may go").unwrap();
    for (path, consent) in [("empty", ""), ("empty", ""), ("long", ""), ("old.txt", ":overwrite")] {
        read(&image, &format!("file:{}:64M{consent}", place.arg(path))).code(0);
    }
    assert!(fs::read(place.path("old.txt")).unwrap().starts_with(b"DLFSTIER"));
}

/// Needs root, for a loop device and a mount.
#[test]
fn a_tier_takes_over_no_block_device_that_is_mounted_or_has_content() {
    let place = Place::with_image();
    let image = place.arg("train.dlfs");
    let file = place.path("disk");
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
    let at = place.path("mounted");
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
    let place = Place::with_image();
    let image = place.arg("train.dlfs");
    symlink("/dev/null", place.path("null")).unwrap();
    for path in ["/dev/null", &place.arg("null"), &place.arg("source")] {
        run(&["read", &image, "--state", path]).code(1).complains_of(&["regular file"]);
        run(&["snapshot", "save", &image, path]).code(1).complains_of(&["regular file"]);
    }
    use std::os::unix::fs::FileTypeExt;
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    fs::create_dir(place.path("kept")).unwrap();
    symlink("kept/state.json", place.path("state")).unwrap();
    run(&["read", &image, "--state", &place.arg("state")]).code(0);
    assert!(place.path("state").is_symlink() && place.path("kept/state.json").is_file());
}
