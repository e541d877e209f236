//! A forked child begins with an empty page of metrics, and sees what it opens itself. It does not keep the port.

use std::fs;

use crate::support::alone::ran_alone;
use crate::support::fork;
use crate::support::ports::is_kept_by_a_child;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, OnError, Options, Query};
use dlfs::exporter::{self, Exporter};
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::metrics::{BUILD, READ_COMMAND_SECONDS, READ_COMMANDS, Snapshot};
use dlfs::qpair::ConnectOptions;
use dlfs::units::SampleId;

#[test]
fn a_forked_child_counts_for_itself() {
    if ran_alone(a_forked_child_counts_for_itself) {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("files")).unwrap();
    for id in 0..10 {
        fs::write(temp.path().join(format!("files/{id}")), [id; 100]).unwrap();
    }
    let image = Address::from_path(temp.path().join("train.dlfs"));
    let options = ImportOptions { onto: Onto::Empty, ..ImportOptions::default() };
    let sources = [temp.path().join("files")];
    let images = std::slice::from_ref(&image);
    import(&sources, images, &options, &ConnectOptions::default(), &mut ()).unwrap();
    let read_one = || {
        let dataset = Dataset::open(images, &Options::default(), &mut ()).unwrap();
        dataset.read(Query::Ids(&[SampleId(3)]), OnError::Raise, &mut ()).unwrap();
        dataset
    };
    let counts = |snapshot: &Snapshot| {
        (
            snapshot.sum(&READ_COMMANDS),
            snapshot.sum(&READ_COMMAND_SECONDS),
            snapshot.series().count(),
        )
    };
    let inherited = read_one();
    let before = counts(&exporter::snapshot());
    assert_eq!((before.0, before.1), (1.0, 1.0));
    let child_is_right = fork::in_child(|| {
        let begun = exporter::snapshot();
        assert!(begun.sum(&BUILD) == 1.0 && begun.series().count() == 1, "{begun:?}");
        let own = read_one();
        assert_eq!(counts(&exporter::snapshot()).0, 1.0);
        drop(own);
        assert_eq!(counts(&exporter::snapshot()).0, 1.0);
        true
    });
    assert!(child_is_right);
    assert_eq!(counts(&exporter::snapshot()), before, "the child counts nothing here");
    drop(inherited);
    assert_eq!(exporter::snapshot().sum(&READ_COMMANDS), 1.0);
}

#[test]
fn a_forked_child_does_not_keep_the_port_of_metrics() {
    if ran_alone(a_forked_child_does_not_keep_the_port_of_metrics) {
        return;
    }
    let exporter = Exporter::serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = exporter.local_addr();
    assert!(!is_kept_by_a_child(address, || drop(exporter)));
}
