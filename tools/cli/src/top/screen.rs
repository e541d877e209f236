//! The terminal: raw mode and the alternate screen while the page is shown, and keys. The terminal is
//! restored at the end, also after a panic or a signal.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use dlfs::{Error, ErrorKind};

use super::draw::{View, draw};
use super::fleet::{self, Answer, Fleet, MetricsAddress};
use super::report::Report;
use crate::exit::{Failure, GRACE, Outcome, Stop};

/// Shows the page until the user quits.
///
/// # Errors
/// There is no terminal for keys, or the terminal has gone.
pub(crate) fn show(addresses: Vec<MetricsAddress>, interval: Duration) -> Result<Outcome, Failure> {
    let mut page = Page {
        fleet: Fleet::new(&addresses, interval, Instant::now()),
        answers: fleet::start(addresses, interval)?,
        view: View::default(),
        shown: Report::default(),
        has_colour: std::env::var_os("NO_COLOR").is_none(),
    };
    let stop = Stop::on_signals(GRACE, || {
        ratatui::restore();
        Outcome::Done
    })?;
    let shown = on_terminal(|terminal| page.run(terminal, &stop))?;
    shown.map_err(no_terminal)?;
    Ok(Outcome::Done)
}

/// Runs `work` with the terminal in raw mode and on its alternate screen. A panic restores the terminal
/// before it prints its message.
fn on_terminal<T>(work: impl FnOnce(&mut DefaultTerminal) -> T) -> Result<T, Failure> {
    let terminal = ratatui::try_init();
    let worked = terminal.map(|mut terminal| work(&mut terminal));
    ratatui::restore();
    worked.map_err(no_terminal)
}

fn no_terminal(error: io::Error) -> Failure {
    let failed = Error::new(ErrorKind::Io, "the terminal cannot be used").source(error);
    Failure::Error(failed.hint("--once prints the page as text"))
}

struct Page {
    fleet: Fleet,
    answers: Receiver<Answer>,
    view: View,
    /// The report on the screen; while paused, the report at the moment of the pause.
    shown: Report,
    has_colour: bool,
}

impl Page {
    fn run(&mut self, terminal: &mut DefaultTerminal, stop: &Stop) -> io::Result<()> {
        let mut is_old = true;
        let mut drawn = Instant::now();
        while !stop.is_set() {
            for answer in self.answers.try_iter() {
                self.fleet.take(answer);
                is_old = true;
            }
            // Also without an answer, to show how long an address has been silent, and a changed size of the
            // screen.
            if is_old || drawn.elapsed() >= REDRAW {
                if !self.view.is_paused {
                    self.shown = self.fleet.report(Instant::now());
                }
                terminal.draw(|frame| draw(frame, &self.shown, &mut self.view, self.has_colour))?;
                (is_old, drawn) = (false, Instant::now());
            }
            is_old |= wait_for_input(LOOK)?;
            while event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()?
                    && self.view.quits_at(key)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Waits for keys or a signal, such as a resize; returns whether there is one.
///
/// # Errors
/// The terminal has gone: Crossterm would read its end of file for ever.
fn wait_for_input(limit: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut fds, Some(&limit)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    let found = fds[0].revents();
    if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "it has gone"));
    }
    Ok(found.contains(PollFlags::IN))
}

/// Interval of checks for answers; a key is handled at once.
const LOOK: Duration = Duration::from_millis(100);
const REDRAW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::tcgetattr;

    use super::*;

    /// Runs itself on a pseudoterminal, where it panics.
    #[test]
    fn a_panic_leaves_the_page_before_it_says_why() {
        if std::env::var_os(PANIC).is_some() {
            let _ = on_terminal(|_| panic!("in the middle"));
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let main = openpt(flags).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let side = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let before = tcgetattr(&main).unwrap().local_modes;
        let end = || Stdio::from(side.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = std::thread::current().name().unwrap().to_owned();
        command.args(["--exact", &test, "--nocapture"]).env(PANIC, "1");
        let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        drop((command, side));
        let mut main = File::from(main);
        let mut text = Vec::new();
        let mut bytes = [0; 4096];
        // The read fails with EIO once no process has the other end open.
        while let Ok(len @ 1..) = main.read(&mut bytes) {
            text.extend_from_slice(&bytes[..len]);
        }
        assert!(!child.wait().unwrap().success());
        let text = String::from_utf8_lossy(&text);
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what:?}: {text}"));
        let entered = place("\x1b[?1049h");
        let left = place("\x1b[?1049l");
        assert!(entered < left && left < place("in the middle"), "{text}");
        assert_eq!(tcgetattr(&main).unwrap().local_modes, before, "raw mode is over");
    }

    const PANIC: &str = "DLFS_TEST_PANIC_ON_A_TERMINAL";
}
