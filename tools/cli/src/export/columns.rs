//! The table of `--columns`: names and typed columns of all samples as CSV, for `dlfs import --columns`.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::Path;

use dlfs::directory::Directory;
use dlfs::{Error, ErrorKind};

use super::Unfinished;

/// Writes a new file: a line with the names and types of the columns, then a line for each sample with its name and its
/// values. Adds the file to `unfinished`.
///
/// # Errors
/// The file exists or cannot be written. `InvalidArgument`: the image has no typed columns, or a name is not
/// UTF-8.
pub(super) fn write_columns(
    directory: &Directory,
    path: &Path,
    unfinished: &Unfinished,
) -> Result<(), Error> {
    if directory.columns().is_empty() {
        let text = "the image has no typed columns: export without --columns";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let of_path = |error: std::io::Error| Error::from(error).path(path);
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(of_path)?;
    unfinished.add(path);
    let mut out = BufWriter::new(file);
    let mut line = String::from("name");
    for column in directory.columns() {
        line.push(',');
        quote(&format!("{}:{}", column.name(), column.kind()), &mut line);
    }
    let mut name = Vec::new();
    for rank in 0..directory.num_live() {
        writeln!(out, "{line}").map_err(of_path)?;
        line.clear();
        let id = directory.id_of_live(rank);
        directory.name_into(id, &mut name)?;
        let name = std::str::from_utf8(&name).map_err(|_| {
            let text = format!("the name {} is no UTF-8", name.escape_ascii());
            Error::new(ErrorKind::InvalidArgument, text).sample(id)
        })?;
        quote(name, &mut line);
        for column in directory.columns() {
            line.push(',');
            quote(&column.get(id.0).to_string(), &mut line);
        }
    }
    writeln!(out, "{line}").map_err(of_path)?;
    out.flush().map_err(of_path)
}

/// Appends a cell to a line, in quotation marks if CSV needs them or if blanks at its ends would be lost.
fn quote(text: &str, line: &mut String) {
    if text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        line.push('"');
        line.push_str(&text.replace('"', "\"\""));
        line.push('"');
    } else {
        line.push_str(text);
    }
}
