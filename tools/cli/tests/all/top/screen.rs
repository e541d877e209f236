//! A terminal that is emulated: `dlfs` on one end of a pseudoterminal, its screen and its keyboard on the other.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::common::{dlfs, signal, wait};

pub(crate) struct Screen {
    child: Child,
    main: Option<OwnedFd>,
    emulator: Arc<Emulator>,
    /// The local modes before `dlfs` began.
    modes: LocalModes,
    reader: Option<JoinHandle<()>>,
}

struct Emulator {
    parser: Mutex<vt100::Parser>,
    changed: Condvar,
    /// The terminal is to go away.
    hangs_up: AtomicBool,
}

impl Screen {
    /// Starts `dlfs ARGUMENTS` on a terminal of that size.
    pub(crate) fn start(
        columns: u16,
        rows: u16,
        arguments: &[&str],
        set: &[(&str, &str)],
    ) -> Screen {
        // No child of another test may have it, or it would not go away.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let main = openpt(flags).expect("a pseudoterminal");
        grantpt(&main).expect("ours");
        unlockpt(&main).expect("ours");
        let name = ptsname(&main, Vec::new()).expect("its name");
        let side = File::options().read(true).write(true).open(name.to_str().expect("ASCII"));
        let side = side.expect("the other end");
        tcsetwinsize(&main, size(columns, rows)).expect("a terminal has a size");
        let modes = tcgetattr(&main).expect("a terminal").local_modes;
        let end = || Stdio::from(side.try_clone().expect("a descriptor"));
        let mut command = dlfs();
        command.args(arguments).env("TERM", "xterm-256color").envs(set.iter().copied());
        command.stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().expect("dlfs starts");
        let parser = vt100::Parser::new(at_least_one(rows), at_least_one(columns), 0);
        let emulator = Arc::new(Emulator {
            parser: Mutex::new(parser),
            changed: Condvar::new(),
            hangs_up: AtomicBool::new(false),
        });
        let from = main.try_clone().expect("a descriptor");
        let to = Arc::clone(&emulator);
        let reader = Some(thread::spawn(move || to.take_all(from)));
        Screen { child, main: Some(main), emulator, modes, reader }
    }

    /// Waits until the rows of the screen are as `is_so` says, and returns them.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let until = Instant::now() + LIMIT;
        let mut parser = self.emulator.parser.lock().unwrap();
        loop {
            let rows = rows_of(&parser);
            if is_so(&rows) {
                if std::env::var_os("DLFS_TEST_SCREENS").is_some() {
                    eprintln!("--- {what}\n{}\n", rows.join("\n"));
                }
                return rows;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} did not come:\n{}", rows.join("\n"));
            parser = self.emulator.changed.wait_timeout(parser, left).unwrap().0;
        }
    }

    /// Presses keys, as the bytes that a terminal sends.
    pub(crate) fn press(&self, keys: &str) {
        let mut main = File::from(self.main().try_clone().expect("a descriptor"));
        main.write_all(keys.as_bytes()).expect("dlfs has the other end");
    }

    pub(crate) fn resize(&mut self, columns: u16, rows: u16) {
        let mut parser = self.emulator.parser.lock().unwrap();
        parser.screen_mut().set_size(at_least_one(rows), at_least_one(columns));
        tcsetwinsize(self.main(), size(columns, rows)).expect("a terminal has a size");
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// The terminal goes away, as when a window is closed; waits for the end of `dlfs`.
    pub(crate) fn hang_up(mut self) -> ExitStatus {
        self.emulator.hangs_up.store(true, Ordering::Relaxed);
        self.reader.take().expect("it runs").join().expect("it does not panic");
        drop(self.main.take());
        wait(&mut self.child)
    }

    fn main(&self) -> &OwnedFd {
        self.main.as_ref().expect("it is there until it hangs up")
    }

    /// Returns whether any character has a colour now.
    pub(crate) fn has_colour(&self) -> bool {
        let parser = self.emulator.parser.lock().unwrap();
        let (rows, columns) = parser.screen().size();
        let places =
            (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column)));
        let mut cells = places.filter_map(|(row, column)| parser.screen().cell(row, column));
        cells.any(|cell| {
            [cell.fgcolor(), cell.bgcolor()].iter().any(|colour| *colour != vt100::Color::Default)
        })
    }

    /// Waits for the end: exit code 0, and the terminal is as it was before.
    #[track_caller]
    pub(crate) fn ends_with_everything_restored(mut self) {
        let status = wait(&mut self.child);
        let rows = self.until("the first screen", |_| true);
        assert_eq!(status.code(), Some(0), "{}", rows.join("\n"));
        let modes = tcgetattr(self.main()).expect("a terminal").local_modes;
        assert_eq!(modes, self.modes, "raw mode is over");
        let until = Instant::now() + LIMIT;
        let mut parser = self.emulator.parser.lock().unwrap();
        // The last bytes may still be on their way.
        while parser.screen().alternate_screen() || parser.screen().hide_cursor() {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the other screen is left, and the cursor is shown");
            parser = self.emulator.changed.wait_timeout(parser, left).unwrap().0;
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill(); // the test has failed
            let _ = self.child.wait();
        }
    }
}

impl Emulator {
    fn take_all(&self, main: OwnedFd) {
        let mut main = File::from(main);
        let mut bytes = [0; 4096];
        let look = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while !self.hangs_up.load(Ordering::Relaxed) {
            let mut fds = [PollFd::new(&main, PollFlags::IN)];
            if poll(&mut fds, Some(&look)).unwrap_or(0) == 0 {
                continue;
            }
            // The read fails with EIO once no process has the other end open.
            let Ok(len @ 1..) = main.read(&mut bytes) else { return };
            self.parser.lock().unwrap().process(&bytes[..len]);
            self.changed.notify_all();
        }
    }
}

fn rows_of(parser: &vt100::Parser) -> Vec<String> {
    let columns = parser.screen().size().1.get();
    parser.screen().rows(0, columns).map(|row| row.trim_end().to_owned()).collect()
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn at_least_one(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("a terminal has a size")
}

/// Nothing takes this long, except on a heavily loaded machine.
const LIMIT: Duration = Duration::from_secs(120);
