//! A million names: mounting them, and listing them all.

use std::fs::File;
use std::io::BufWriter;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::places::{Mount, Places};
use crate::report::limited;
use crate::support::Options;

/// Mounts an image of that many samples, each time anew, and lists it with `find`.
pub(crate) fn names(places: &Places, options: &Options) {
    let tar = places.path("names.tar");
    let count = options.number("names");
    write_tar(&tar, count);
    let image = places.imported(&tar, "names.dlfs");
    std::fs::remove_file(&tar).expect("it is ours");
    let mut mounting = Vec::new();
    let mut first = Vec::new();
    let mut again = Vec::new();
    for round in 0..options.number("rounds") {
        let mount = Mount::dlfs(places, &image.to_string_lossy(), &format!("names-{round}"));
        mounting.push(mount.took.as_secs_f64());
        for seconds in [&mut first, &mut again] {
            let began = Instant::now();
            let mut command = Command::new("find");
            command.arg(&mount.folder).args(["-type", "f"]).stdout(Stdio::piped());
            let output = command.output().expect("find is installed").stdout;
            assert_eq!(output.iter().filter(|byte| **byte == b'\n').count() as u64, count);
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    let part = format!("{count} names");
    let line = |what: &str, seconds: &mut Vec<f64>, limit: f64| {
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        let worst = seconds[seconds.len() - 1];
        let figure = format!("{median:.2} s, at most {worst:.2} s");
        limited(&part, what, &figure, &format!("{limit} s"), median <= limit);
    };
    line("`dlfs mount` until it returns", &mut mounting, 1.0);
    line("`find`, the first after mounting", &mut first, 3.0);
    line("`find` again", &mut again, 3.0);
}

/// An archive of files of 100 bytes, a thousand to a folder.
fn write_tar(path: &std::path::Path, count: u64) {
    let file = BufWriter::with_capacity(1 << 20, File::create(path).expect("a new file"));
    let mut tar = tar::Builder::new(file);
    let mut header = tar::Header::new_ustar();
    header.set_size(100);
    header.set_mode(0o444);
    for number in 0..count {
        let name = format!("{:04}/{number:08}.bin", number / 1000);
        let bytes = [number as u8; 100];
        tar.append_data(&mut header, name, &bytes[..]).expect("room for the archive");
    }
    tar.finish().expect("room for the archive");
}
