//! The main workflow on a controller that another process plays over vfio-user: import onto it, read, verify, export,
//! and serve it to other hosts.

#[path = "../../../../tests/support/nvme_model.rs"]
#[allow(dead_code, unreachable_pub)] // the library's tests use the rest
mod nvme_model;
#[path = "../../../../tests/support/vfio_user_server.rs"]
#[allow(dead_code, unreachable_pub)] // the library's tests use the rest
mod vfio_user_server;

use nvme_model::{Model, SUBNQN};
use vfio_user_server::{Abilities, VfioUserServer};

use crate::common::{Served, TestDir, random, run};

#[test]
fn the_main_job_works_end_to_end_on_a_controller_of_another_process() {
    let abilities = Abilities { maps_doorbells: true, max_regions: 16 };
    let server = VfioUserServer::start(Model::new(32 << 20, 4096), abilities);
    let address = &server.address().to_string();
    let dir = TestDir::with_image();
    let image = &dir.arg("train.dlfs");
    run(&["import", &dir.arg("source"), address, "--force"]).code(0);
    let stat = run(&["stat", address, "--json"]).code(0).json();
    assert_eq!(stat["namespaces"][0]["engine"], "pcie (vfio-user)");
    assert_eq!(run(&["verify", address, "--json"]).code(0).json()["verified"], true);
    for order in ["grouped", "global"] {
        let samples = |image: &str| {
            let read = ["read", image, "--order", order, "--epochs", "2", "--json"];
            run(&read).code(0).json()["samples"].clone()
        };
        assert_eq!(samples(address), samples(image));
    }
    run(&["export", address, &dir.arg("out")]).code(0);
    assert_eq!(dir.files("out"), dir.files("source"));
    let served = Served::start(address, &["--nqn", SUBNQN]);
    assert_eq!(run(&["verify", &served.address, "--json"]).code(0).json()["verified"], true);
    let cat = |image: &str| run(&["cat", image, "dog/031.bin", "newt/099.bin"]).code(0).stdout;
    assert_eq!(cat(&served.address), cat(image));
    let info = run(&["info"]).code(0);
    assert!(info.text().contains("trtype:VFIOUSER"), "{}", info.text());
}
