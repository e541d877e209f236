//! Limits of hosts, groups and namespaces: from the file, by `dlfs ctl limit`, and by reloads.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{TestDir, run};
use crate::service_support::{Service, one, reader, stop, wait_until, write};

const HOST: &str = "nqn.2026-11.io.dlfs:job";

fn reads(service: &Service) -> u64 {
    service.asked(&["list-hosts"])[0]["reads"].as_u64().unwrap_or(0)
}

/// Seconds until the host has read `count` times.
fn seconds_of(service: &Service, count: u64) -> f64 {
    let begin = Instant::now(); // first: what is read meanwhile would count in no time
    let before = reads(service);
    wait_until("the job reads", || reads(service) >= before + count);
    begin.elapsed().as_secs_f64()
}

#[test]
fn limits_come_from_the_file_and_change_while_a_job_reads() {
    let dir = TestDir::with_image();
    let served = one("127.0.0.1:0", &[(1, "train.dlfs")], "");
    write(&dir, &format!("{served}\n[[host]]\nnqn = \"{HOST}\"\nread_iops = 20\n"));
    let service = Service::start(&dir, 1, |_| {});
    let job = reader(&dir, &service.address(1), HOST);
    wait_until("the job has read", || {
        service.asked(&["list-hosts"]).as_array().is_some_and(|hosts| !hosts.is_empty())
            && reads(&service) > 5
    });
    let took = seconds_of(&service, 30);
    assert!(took >= 28.0 / 20.0 - 0.1, "{took} s");
    let host = service.asked(&["list-hosts"])[0].clone();
    assert_eq!(host["limits"], json!([{ "read_iops": 20, "burst_ms": 10 }]), "{host}");
    assert!(host["throttled_s"].as_f64() > Some(0.5) && host["weight"] == 100, "{host}");

    service.asked(&["limit", HOST]);
    seconds_of(&service, 2000);
    service.asked(&["limit", "--namespace", "1", "--read-iops", "20"]);
    let listed = service.asked(&["list-subsys"]);
    assert_eq!(listed[0]["namespaces"][0]["limits"]["read_iops"], 20, "{listed}");
    std::thread::sleep(Duration::from_millis(300)); // what is on its way arrives
    let took = seconds_of(&service, 30);
    assert!(took >= 28.0 / 20.0 - 0.1, "{took} s");
    service.asked(&["limit", "--namespace", "1"]);

    for (asked, named) in [
        (&["limit", "nqn.*x", "--read-iops", "1"][..], "its beginning and a *"),
        (&["limit", HOST, "--read-bytes", "0"], "leave it out for no limit"),
        (&["limit", "nqn.nobody"], "no limits of its own"),
        (&["limit", "jbos", "--weight", "9"], "no group jbos"),
        (&["limit", "--namespace", "9", "--read-iops", "1"], "no namespace 9"),
    ] {
        service.ctl(asked).code(1).complains_of(&[named]);
    }

    let group = "[[group]]\nname = \"jobs\"\nhosts = [\"nqn.2026-11*\"]\nweight = 7\n";
    write(&dir, &format!("{served}\n{group}"));
    let line = service.reload();
    assert!(line.contains("limits of hosts or namespaces change"), "{line}");
    let weight = || -> Value { service.asked(&["list-hosts"])[0]["weight"].clone() };
    assert_eq!(weight(), 7);
    service.asked(&["limit", "jobs", "--weight", "9"]);
    assert_eq!(weight(), 9);
    let closed = one("127.0.0.1:0", &[(1, "train.dlfs")], &format!("allow_hosts = [\"{HOST}\"]"));
    let other = TestDir::with_image();
    write(&other, &closed);
    let closed = Service::start(&other, 1, |_| {});
    closed
        .ctl(&["limit", "nqn.2026-11.io.dlfs:jbo", "--weight", "9"])
        .code(1)
        .complains_of(&["jbo"]);
    closed.asked(&["limit", HOST, "--weight", "9"]);
    let text = run(&["ctl", "--socket", &service.socket, "list-hosts"]).code(0);
    assert!(text.text().contains("weight=9"), "{}", text.text());
    stop(job);
}
