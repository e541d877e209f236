//! Writes the seeds of all targets into the folders of their corpora, which stand beside this package's
//! manifest: after a format has changed, what a corpus holds may reach nothing any more.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    for target in dlfs_fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            println!("{}/seed{number:02}: {} bytes", target.name, seed.len());
            fs::write(folder.join(format!("seed{number:02}")), seed)?;
        }
    }
    Ok(())
}
