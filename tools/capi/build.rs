//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name that programs look for when they start.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdlfs.so.0");
    // It stays where it is when a program that has loaded it as a plugin closes it: its threads and what
    // it does around forks may outlive that.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
