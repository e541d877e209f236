//! Reads the text of job files, with limits on length and time.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How much more may be read: one job file, its includes, and values of the environment.
pub(super) struct Budget(u64);

impl Default for Budget {
    fn default() -> Budget {
        Budget(MAX_BYTES)
    }
}

impl Budget {
    /// Reads the file or the pipe at `path`; `-` is standard input.
    ///
    /// # Errors
    /// It is neither, too long, not text, or a pipe that nobody writes to.
    pub(super) fn read(&mut self, path: &Path) -> Result<String, String> {
        if path == Path::new("-") {
            return self.text(std::io::stdin().lock());
        }
        let kind = std::fs::metadata(path).map_err(|error| error.to_string())?.file_type();
        if !kind.is_file() && !kind.is_fifo() {
            return Err("it is neither a regular file nor a pipe".to_owned());
        }
        // Without O_NONBLOCK, opening a pipe waits for a writer.
        let flags = libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| error.to_string())?;
        if kind.is_fifo() { self.text(Pipe(file)) } else { self.text(file) }
    }

    fn text(&mut self, from: impl Read) -> Result<String, String> {
        let mut text = String::new();
        let taken = from.take(self.0 + 1).read_to_string(&mut text);
        self.spend(taken.map_err(|error| error.to_string())?)?;
        Ok(text)
    }

    /// Counts `len` more bytes.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(super) fn spend(&mut self, len: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(len as u64).ok_or_else(|| {
            format!("a job file with what it includes has more than {MAX_BYTES} bytes")
        })?;
        Ok(())
    }
}

/// A non-blocking pipe, read with a time-out.
struct Pipe(File);

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let until = Instant::now() + READ_TIMEOUT;
        loop {
            // A read before the writer has opened the pipe would return the end of file.
            let left = until.saturating_duration_since(Instant::now());
            let limit =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&limit)) {
                Ok(0) if left.is_zero() => {
                    let what = format!("nobody wrote to this pipe for {READ_TIMEOUT:?}");
                    return Err(std::io::Error::new(ErrorKind::TimedOut, what));
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match self.0.read(buf) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// More than anybody writes by hand. Parsed sections take much more memory than their text.
const MAX_BYTES: u64 = 1 << 20;
/// How long to wait for a program that generates the job file.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
