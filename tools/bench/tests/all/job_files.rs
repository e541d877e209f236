//! Job files that a fuzzer has found worth keeping: refused with a sentence, or understood.

#[path = "../../../../tests/fuzz/src/jobs.rs"]
mod jobs;

use std::fs;
use std::path::Path;

#[test]
fn every_job_file_of_the_corpus_is_refused_or_parsed() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/job_file");
    let files: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 10, "{} files", files.len());
    for file in files {
        println!("{}", file.display());
        jobs::job_file(&fs::read(&file).unwrap());
    }
}
