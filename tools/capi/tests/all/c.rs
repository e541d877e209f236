//! C programs, built as users build them and run plainly and under AddressSanitizer; with `DLFS_LONG_TESTS` also with
//! the static library and in valgrind.
//!
//! Tools that the machine lacks are skipped and reported.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::slice;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Options};
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ColumnsFrom, ImportOptions, PlacementOrder, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};

use crate::common::ports::free_ports;
use crate::common::{How, Program, Source, has, here, prefix, run};

#[test]
fn every_function_works_when_used_right_and_fails_when_used_wrong() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    fs::create_dir(source.path("other")).unwrap();
    fs::write(source.path("other/one"), "1").unwrap();
    source.import("other", "other.dlfs");
    let target = source.serve();
    let other = source.path("other.dlfs");
    let folder = source.temp.path();
    let other = other.to_str().unwrap();
    let folder = folder.to_str().unwrap();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/api.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address, other, folder]);
        }
    }
}

#[test]
fn blocks_of_a_namespace_are_written_and_read_without_a_data_set() {
    let Some(prefix) = prefix() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("blocks");
    let served = folder.path().join("served");
    for path in [&file, &served] {
        fs::write(path, vec![0; 1 << 20]).unwrap();
    }
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let device = qpair::open(&Address::from_path(served), &connect).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:blocks".parse().unwrap();
    let options = TargetOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        writable: true,
        ..TargetOptions::new(nqn)
    };
    let target = Target::bind(options, vec![device]).unwrap();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/blocks.c"), how);
        for address in [file.to_str().unwrap(), &target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            // A child leaves the parent's queue pair alone, and so leaks it.
            run(program.command(&[address]).env("VALGRIND_OPTS", "--leak-check=no"));
        }
    }
}

#[test]
fn a_damaged_sample_costs_what_the_caller_says() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    damage(&source.path("train.dlfs"), SampleId(100));
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/damage.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[&address, "100"]);
        }
    }
}

#[test]
fn warnings_reach_the_log_callback() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let bad = source.path("bad.dlfs");
    fs::copy(source.path("train.dlfs"), &bad).unwrap();
    damage(&bad, SampleId(100));
    let copy = source.path("copy.dlfs");
    let mut bytes = fs::read(source.path("train.dlfs")).unwrap();
    bytes[100] ^= 1; // in the copy that generation 1 does not use
    fs::write(&copy, bytes).unwrap();
    for how in How::all() {
        println!("{how:?}");
        let program = Program::build(prefix, &here().join("tests/c/log.c"), how);
        // A child leaks its parent's state.
        let mut command =
            program.command(&[&source.address(), bad.to_str().unwrap(), copy.to_str().unwrap()]);
        run(command.env("VALGRIND_OPTS", "--leak-check=no"));
    }
}

/// Flips a bit of the sample `id`.
fn damage(path: &Path, id: SampleId) {
    let image = Image::open(&[Address::from_path(path)], &OpenOptions::default()).unwrap();
    let extent = image.directory().extent(id).unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[extent.offset_bytes as usize + 7] ^= 4;
    fs::write(path, bytes).unwrap();
}

/// SPDK's host reads our target; the library itself needs no SPDK.
#[cfg(feature = "spdk")]
#[test]
fn programs_read_by_spdks_host_too() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    let address = format!("spdk:{}", target.address(Nsid(1)));
    let example = Program::build(prefix, &here().join("../../examples/read.c"), How::Plain);
    let said = example.run(&[&address]);
    assert_eq!(said, example.run(&[&source.address()]), "an epoch by SPDK and from the file");
    let leave = Program::build(prefix, &here().join("tests/c/leave.c"), How::Plain);
    (0..3).for_each(|_| drop(leave.run(&[&address])));
}

#[test]
fn tiers_of_a_mount_change_where_samples_come_from_and_nothing_else() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let file = source.path("tiers.toml");
    let toml =
        "[[tier]]\nbackend = \"memory\"\ncapacity = \"1M\"\nread = [{ threads = 1, mb_per_s = 9 }]";
    fs::write(&file, toml).unwrap();
    for how in How::all() {
        let folder = source.path(&format!("{how:?}"));
        fs::create_dir(&folder).unwrap();
        let tier = format!("file:{}:8M", folder.display());
        let program = Program::build(prefix, &here().join("tests/c/tiers.c"), how);
        program.run(&[&source.address(), &tier, file.to_str().unwrap()]);
    }
}

#[test]
fn ranks_in_c_read_through_each_others_tiers() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    let address = target.address(Nsid(1)).to_string();
    for (way, how) in How::all().into_iter().enumerate() {
        let program = Program::build(prefix, &here().join("tests/c/peers.c"), how);
        // All means once; that of the C interface alone in every way.
        let means: &[&str] =
            if way == 0 { &["functions", "folder", "auto"] } else { &["functions"] };
        for means in means {
            // Both may have read all before they are connected: Valgrind is always slow, a busy machine now and then.
            let reads_from_peers = (0..5).any(|attempt| {
                println!("{how:?} {means} {attempt}");
                let folder = source.path(&format!("{how:?}-{means}-{attempt}"));
                fs::create_dir(&folder).unwrap();
                // Ranks meet at the port after this one.
                let master_port = free_ports(2).to_string();
                let ranks: Vec<_> = (0..2)
                    .map(|rank| {
                        let node = format!("{how:?}-{means}-{attempt}-{rank}");
                        let rank = rank.to_string();
                        let folder = folder.to_str().unwrap();
                        let mut command = program.command(&[&address, &rank, &node, folder, means]);
                        command.env("MASTER_PORT", &master_port);
                        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                        command.spawn().unwrap()
                    })
                    .collect();
                let bytes = ends_together(ranks);
                how == How::Valgrind || bytes.into_iter().all(|bytes| bytes > 0)
            });
            assert!(reads_from_peers, "nothing came from a peer");
        }
    }
}

#[test]
fn ranks_in_c_keep_their_shares_and_exchange_samples() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    let address = target.address(Nsid(1)).to_string();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/store.c"), how);
        for kind in ["file", "ram"] {
            println!("{how:?} {kind}");
            let folder = source.path(&format!("{how:?}-{kind}"));
            fs::create_dir(&folder).unwrap();
            let store = match kind {
                "file" => format!("file:{}:64M", folder.display()),
                _ => "ram:64M".to_owned(),
            };
            let ranks: Vec<Child> = ["0", "1"]
                .into_iter()
                .map(|rank| {
                    let folder = folder.to_str().unwrap();
                    let mut command = program.command(&[&address, rank, folder, &store]);
                    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                    command.spawn().unwrap()
                })
                .collect();
            each_epoch_is_whole(ranks);
        }
    }
}

/// Each rank prints `EPOCH ID` for each sample; together they have every sample of each epoch once.
fn each_epoch_is_whole(ranks: Vec<Child>) {
    let mut read = Vec::new();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let lines = String::from_utf8(output.stdout).unwrap();
        read.extend(lines.lines().map(|line| {
            let (epoch, id) = line.split_once(' ').unwrap();
            (epoch.parse::<u64>().unwrap(), id.parse::<u64>().unwrap())
        }));
    }
    read.sort_unstable();
    let whole: Vec<(u64, u64)> =
        (0..3).flat_map(|epoch| (0..180).map(move |id| (epoch, id))).collect();
    assert_eq!(read, whole);
}

/// Each rank prints where its bytes came from when it has read all, and leaves when all have. Returns the bytes that
/// came from peers.
fn ends_together(mut ranks: Vec<Child>) -> Vec<u64> {
    let mut read = Vec::new();
    for rank in &mut ranks {
        let mut line = String::new();
        BufReader::new(rank.stdout.take().unwrap()).read_line(&mut line).unwrap();
        read.push(line);
    }
    let from_peers = ranks.into_iter().zip(read).map(|(rank, line)| {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !line.is_empty(), "{line}{said}");
        let peer = line.split("\"place\":\"peer\"").nth(1).unwrap_or_default();
        let bytes = peer.split("\"bytes\":").nth(1).and_then(|rest| rest.split(',').next());
        bytes.unwrap().parse().unwrap()
    });
    from_peers.collect()
}

#[test]
fn fields_of_a_sample_are_told_apart() {
    let Some(prefix) = prefix() else { return };
    if !has("tar") {
        println!("SKIPPED: tar is needed");
        return;
    }
    let source = Source::new();
    let image = import_fields(&source);
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/fields.c"), how);
        program.run(&[image.to_str().unwrap()]);
    }
}

#[test]
fn the_type_of_a_field_says_what_its_bytes_are() {
    let Some(prefix) = prefix() else { return };
    if !has("tar") {
        println!("SKIPPED: tar is needed");
        return;
    }
    let source = Source::new();
    import_fields(&source);
    let image = source.path("typed.dlfs");
    let field_types = vec!["cls:i64".parse().unwrap(), "txt:u8[5]".parse().unwrap()];
    let options = ImportOptions { field_types, ..ImportOptions::default() };
    let to = Address::from_path(image.clone());
    let shard = [source.path("shard.tar")];
    import(&shard, &[to], &options, &ConnectOptions::default(), &mut ()).unwrap();
    let plain = source.path("fields.dlfs");
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/field_type.c"), how);
        program.run(&[image.to_str().unwrap(), plain.to_str().unwrap()]);
    }
}

#[test]
fn a_part_of_a_large_sample_costs_its_pieces() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    fs::create_dir(source.path("large")).unwrap();
    let bytes: Vec<u8> = (0..(6u64 << 20) + 5).map(|i| ((i >> 12) * 31 + i) as u8).collect();
    fs::write(source.path("large/one"), bytes).unwrap();
    source.import("large", "large.dlfs");
    let image = source.path("large.dlfs");
    let device = qpair::open(&Address::from_path(&image), &ConnectOptions::default()).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:large".parse().unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = TargetOptions { listen, ..TargetOptions::new(nqn) };
    let target = Target::bind(options, vec![device]).unwrap();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/ranges.c"), how);
        for address in [image.to_str().unwrap(), &target.address(Nsid(1)).to_string()] {
            println!("{how:?} {address}");
            program.run(&[address]);
        }
    }
}

/// An image of three samples with two fields each, of which one has only the first.
fn import_fields(source: &Source) -> PathBuf {
    let folder = source.path("shard");
    fs::create_dir(&folder).unwrap();
    for (name, bytes) in
        [("a.cls", "4"), ("a.txt", "hello"), ("b.cls", "5"), ("c.cls", "6"), ("c.txt", "hello")]
    {
        fs::write(folder.join(name), bytes).unwrap();
    }
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(source.path("shard.tar")).arg("-C").arg(&folder);
    run(tar.args(["a.cls", "a.txt", "b.cls", "c.cls", "c.txt"]));
    source.import("shard.tar", "fields.dlfs");
    source.path("fields.dlfs")
}

#[test]
fn several_data_sets_are_read_as_one_sequence() {
    let Some(prefix) = prefix() else { return };
    if !has("tar") {
        println!("SKIPPED: tar is needed");
        return;
    }
    let source = Source::new();
    source.import("files", "other.dlfs");
    let other = source.path("other.dlfs");
    let fields = import_fields(&source);
    let other = other.to_str().unwrap();
    let fields = fields.to_str().unwrap();
    let target = source.serve();
    for how in How::all() {
        let program = Program::build(prefix, &here().join("tests/c/mixture.c"), how);
        println!("{how:?}");
        program.run(&[&target.address(Nsid(1)).to_string(), other, fields]);
    }
}

#[test]
fn weights_and_budgets_of_tokens_are_kept_and_bad_ones_refused() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    for how in How::all() {
        println!("{how:?}");
        let program = Program::build(prefix, &here().join("tests/c/batches.c"), how);
        program.run(&[&source.address()]);
    }
}

#[test]
fn a_mixture_is_cut_by_tokens_and_goes_on_between_any_two_batches() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let other = source.path("again.dlfs"); // the same samples under another id
    source.import("files", "again.dlfs");
    for how in How::all() {
        println!("{how:?}");
        let program = Program::build(prefix, &here().join("tests/c/mixed_batches.c"), how);
        program.run(&[&source.address(), other.to_str().unwrap()]);
    }
}

#[test]
fn documents_fill_rows_of_tokens_and_runs_go_on() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    // Document i has (i * 37) % 120 tokens: see `c/tokens.c`.
    let mut lines = String::new();
    for id in 0..60 {
        let tokens = (0..id * 37 % 120).map(|at| ((id * 31 + at) % 500).to_string());
        lines += &format!("{{\"tok\": [{}]}}\n", tokens.collect::<Vec<_>>().join(","));
    }
    fs::write(source.path("text.jsonl"), lines).unwrap();
    let images = ["text.dlfs", "again.dlfs"].map(|name| source.path(name));
    for image in &images {
        let field_types = vec!["tok:u16[*]".parse().unwrap()];
        let placement = PlacementOrder::Source; // ids in the order of lines
        let options = ImportOptions { field_types, placement, ..ImportOptions::default() };
        let from = [source.path("text.jsonl")];
        let to = [Address::from_path(image.clone())];
        import(&from, &to, &options, &ConnectOptions::default(), &mut ()).unwrap();
    }
    for how in How::all() {
        println!("{how:?}");
        let program = Program::build(prefix, &here().join("tests/c/tokens.c"), how);
        program.run(&images.each_ref().map(|image| image.to_str().unwrap()));
    }
}

#[test]
fn samples_are_deleted_and_their_space_is_freed() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    for how in How::all() {
        println!("{how:?}");
        let image = source.path(&format!("edit-{how:?}.dlfs"));
        fs::copy(source.path("train.dlfs"), &image).unwrap();
        let program = Program::build(prefix, &here().join("tests/c/edit.c"), how);
        program.run(&[image.to_str().unwrap()]);
    }
}

#[test]
fn parts_of_a_data_set_are_data_sets() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    for how in How::all() {
        println!("{how:?}");
        let program = Program::build(prefix, &here().join("tests/c/view.c"), how);
        program.run(&[&source.address(), source.temp.path().to_str().unwrap()]);
    }
}

#[test]
fn shards_are_read_without_an_import() {
    let Some(prefix) = prefix() else { return };
    let folder = tempfile::tempdir().unwrap();
    let lines = here().join("../../tests/rows/lines.jsonl");
    for how in How::all() {
        println!("{how:?}");
        let index = folder.path().join(format!("{how:?}"));
        let program = Program::build(prefix, &here().join("tests/c/shards.c"), how);
        program.run(&[lines.to_str().unwrap(), index.to_str().unwrap(), "40"]);
    }
}

#[test]
fn typed_columns_are_read_from_memory() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let image = source.path("columns.dlfs");
    // The first 90 samples have values: see `c/column.c`.
    let mut table = "file,n,x,lang,good\n".to_owned();
    for id in 0..90 {
        let class = id / 60;
        let n = id * 3 - 100;
        let x = f64::from(id) / 4.0;
        let lang = ["de", "en"][id as usize % 2];
        let good = id % 2 == 0;
        table += &format!("class{class}/{:04},{n},{x:?},{lang},{good}\n", id % 60);
    }
    let path = source.path("table.csv");
    fs::write(&path, table).unwrap();
    let columns = Some(ColumnsFrom { path, key: None, only: Vec::new() });
    let options = ImportOptions { chunk_size_bytes: 64 << 10, columns, ..ImportOptions::default() };
    let to = Address::from_path(image.clone());
    import(&[source.path("files")], &[to], &options, &ConnectOptions::default(), &mut ()).unwrap();
    for how in How::all() {
        println!("{how:?}");
        let program = Program::build(prefix, &here().join("tests/c/column.c"), how);
        program.run(&[image.to_str().unwrap()]);
    }
}

#[test]
fn images_are_written_sample_by_sample() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    for how in How::all() {
        println!("{how:?}");
        let image = source.path("written.dlfs");
        let program = Program::build(prefix, &here().join("tests/c/writer.c"), how);
        program.run(&[image.to_str().unwrap()]);
        fs::remove_file(image).unwrap();
    }
}

#[test]
fn one_image_is_imported_and_written_by_parts() {
    let Some(prefix) = prefix() else { return };
    for how in How::all() {
        println!("{how:?}");
        let folder = tempfile::tempdir().unwrap();
        for (folder_name, count) in [("first", 120), ("later", 40)] {
            fs::create_dir(folder.path().join(folder_name)).unwrap();
            for number in 0..count {
                let path = folder.path().join(format!("{folder_name}/{folder_name}-{number:03}"));
                fs::write(path, vec![number as u8; number * 97]).unwrap();
            }
        }
        let program = Program::build(prefix, &here().join("tests/c/parts.c"), how);
        program.run(&[folder.path().to_str().unwrap()]);
    }
}

#[test]
fn the_examples_do_what_they_say() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let bytes: usize = (0..180).map(|id| id * 37 % 5000).sum();
    let target = source.serve();
    for how in How::all() {
        let epoch = Program::build(prefix, &here().join("../../examples/read.c"), how);
        let files = Program::build(prefix, &here().join("examples/files.c"), how);
        for address in [source.address(), target.address(Nsid(1)).to_string()] {
            let state = source.path("run.json");
            let out = epoch.run(&[&address, "50", "2", state.to_str().unwrap()]);
            let line = format!("180 samples, {bytes} bytes\n");
            assert_eq!(out.matches(&line).count(), 2, "{out}");
            let again = epoch.run(&[&address, "50", "2", state.to_str().unwrap()]);
            assert_eq!(again, "", "the state says that all is read");
            fs::remove_file(&state).unwrap();
            stop_and_go_on(&epoch, &address, &state);
            let out = files.run(&[&address, "class1"]);
            assert!(out.starts_with("class1/0000 has 2220 bytes\n60 samples, "), "{out}");
        }
    }
}

/// Ctrl-C in the middle of an endless run; then one more epoch from the state.
fn stop_and_go_on(epoch: &Program, address: &str, state: &Path) {
    let arguments = [address, "7", "0", state.to_str().unwrap()];
    let mut child = epoch.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap(); // it reads
    run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let last = lines.last().unwrap().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(last.starts_with("stopped: "), "{last}");
    let numbers = last.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<u64>>();
    let [left, at] = numbers[..] else { panic!("{last}") };
    let out = epoch.run(&[address, "7", &(at + 1).to_string(), state.to_str().unwrap()]);
    // 25 batches of 7 and one of 5; if it stopped between two epochs, all 26 of the next are left.
    let samples = if left == 0 { 0 } else { (left - 1) * 7 + 5 };
    let line = format!("epoch {at}: {samples} samples, ");
    assert!(samples > 0 && out.starts_with(&line) && out.lines().count() == 1, "{last}\n{out}");
    fs::write(state, "{}").unwrap();
    let refused = epoch.command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("not a reading state"), "{said}");
    fs::remove_file(state).unwrap();
}

#[test]
fn a_c_program_reads_what_rust_reads_also_stopped_and_gone_on_by_two_ranks() {
    let Some(prefix) = prefix() else { return };
    let source = Source::new();
    let target = source.serve();
    let address = target.address(Nsid(1));
    let dataset = Dataset::open(slice::from_ref(&address), &Options::default(), &mut ()).unwrap();
    let kind = OrderKind::Grouped { lanes: 8, group: 4 };
    let options = LoaderOptions::new(OrderSpec { kind, seed: 11 }, 8, 2);
    let loader = dataset.loader(options).unwrap();
    let mut wanted = Vec::new();
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        for sample in batch.iter() {
            let label = sample.label.unwrap();
            let len = sample.bytes.len();
            let sum = sample.bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            wanted.push(format!("{} {} {label} {len} {sum}", batch.epoch().0, sample.id.0));
        }
    }
    assert_eq!(wanted.len(), 360);
    let address = address.to_string();
    let state = source.path("same.json");
    let program = Program::build(prefix, &here().join("tests/c/same.c"), How::Plain);
    let read = |most: &str, rank: &str, world: &str| {
        let out = program.run(&[&address, state.to_str().unwrap(), most, rank, world]);
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // 56 samples by one rank, up to the middle of the epoch; the rest by two ranks.
    let mut found = read("7", "0", "1");
    assert_eq!(found, wanted[..56]);
    let ranks = [read("100", "1", "2"), read("100", "0", "2")]; // rank 0 writes the state: last
    assert!(ranks.iter().all(|rank| rank.len() == (360 - 56) / 2));
    for (one, zero) in ranks[0].iter().zip(&ranks[1]) {
        found.extend([zero.clone(), one.clone()]);
    }
    assert_eq!(found, wanted, "ranks take turns, from where the run stopped");
    assert!(read("1", "0", "1").is_empty(), "the state says that all is read");
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let Some(prefix) = prefix() else { return };
    if !has("c++") {
        println!("SKIPPED: c++ is needed");
        return;
    }
    let source = Source::new();
    Program::build(prefix, &here().join("tests/c/plus.cpp"), How::Plain).run(&[&source.address()]);
}

#[test]
fn the_header_stands_alone_in_every_standard() {
    for (compiler, standards) in [
        ("gcc", &["c99", "c11", "gnu17"][..]),
        ("clang", &["c99", "c11", "gnu17"]),
        ("g++", &["c++11", "c++14", "c++17", "c++20"]),
        ("clang++", &["c++11", "c++14", "c++17", "c++20"]),
    ] {
        if !has(compiler) {
            println!("SKIPPED: {compiler} is not installed");
            continue;
        }
        let language = if compiler.ends_with("++") { "c++" } else { "c" };
        for standard in standards {
            let mut check = Command::new(compiler);
            check.arg(format!("-std={standard}")).args(["-fsyntax-only", "-x", language]);
            check.args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]);
            run(check.arg("-include").arg(here().join("dlfs.h")).arg("/dev/null"));
        }
    }
}

#[test]
fn the_program_in_the_readme_prints_what_the_readme_says() {
    let Some(prefix) = prefix() else { return };
    let readme = fs::read_to_string(here().join("README.md")).unwrap();
    let block = |language: &str| {
        let begin = readme.find(&format!("```{language}\n")).expect("a block") + 4 + language.len();
        let rest = &readme[begin..];
        rest[..rest.find("```").expect("its end")].to_owned()
    };
    let source = Source::new();
    let file = source.path("first.c");
    fs::write(&file, block("c")).unwrap();
    let out = Program::build(prefix, &file, How::Plain).run(&[&source.address()]);
    assert_eq!(out, block("text"));
}

/// Functions of other crates, and those whose version is not settled, are nobody's to call.
#[test]
fn the_library_exports_what_its_map_says_with_versions_and_nothing_else() {
    let Some(prefix) = prefix() else { return };
    if !has("nm") || cfg!(feature = "spdk") {
        println!("SKIPPED: nm is needed, and with SPDK symbols have no versions");
        return;
    }
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--format=posix"]).arg(prefix.join("lib/libdlfs.so"));
    let listed = run(&mut nm);
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    let found: BTreeSet<String> =
        names.filter(|name| !name.starts_with("DLFS_")).map(str::to_owned).collect();
    let map = fs::read_to_string(here().join("dlfs.map")).unwrap();
    let mut expected = BTreeSet::new();
    let mut node = "";
    for line in map.lines() {
        if let Some(name) = line.strip_suffix(" {") {
            node = name;
        }
        let name = line.trim().strip_suffix(';').filter(|name| name.starts_with("dlfs_"));
        expected.extend(name.map(|name| format!("{name}@@{node}")));
    }
    assert!(expected.len() > 80, "{expected:?}");
    assert_eq!(found, expected);
}
