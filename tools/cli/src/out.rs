//! Standard output, for results only: buffered; the command ends quietly when the reader has gone. Progress on stderr:
//! a bar on a terminal, otherwise a line every few seconds. And numbers and names for people.

pub(crate) use dlfs::report::text::{bytes, count, duration, is_unsafe, percent, safe_text};

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::{Duration, Instant, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Serializer, Value, json};

use dlfs::Error;

use crate::exit::{Failure, Outcome};

/// The results of a command, on standard output.
pub(crate) struct Out {
    stdout: BufWriter<Stdout>,
    colour: bool,
}

impl Out {
    /// Standard output of this process; coloured on a terminal unless `NO_COLOR` is set.
    pub(crate) fn new() -> Out {
        let stdout = io::stdout();
        let colour = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Out { stdout: BufWriter::with_capacity(64 << 10, stdout), colour }
    }

    /// Writes one line of text. Quoted names and paths are escaped for the terminal.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.text(text.as_ref())?;
        self.bytes(b"\n")
    }

    /// Writes a string of several lines.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        if !self.colour {
            return self.bytes(safe_text(text).as_bytes());
        }
        // Our own styles stay; every other ESC character is escaped.
        let mut parts = text.split(ESCAPE);
        self.bytes(safe_text(parts.next().unwrap_or_default()).as_bytes())?;
        for part in parts {
            let style = STYLES.iter().find(|style| part.starts_with(**style));
            self.bytes(style.map_or("\\u{1b}", |_| "\x1b").as_bytes())?;
            self.bytes(safe_text(part).as_bytes())?;
        }
        Ok(())
    }

    /// Writes bytes unchanged.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(output_failed)
    }

    /// Writes one JSON value on a line of its own. Characters that could affect a terminal are written as
    /// `\uXXXX`, which is equivalent in JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let mut serializer = Serializer::with_formatter(&mut self.stdout, SafeJson);
        value.serialize(&mut serializer).map_err(|error| output_failed(error.into()))?;
        self.bytes(b"\n")
    }

    /// Flushes the buffer: called before a wait, and at the end.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(output_failed)
    }

    /// Flushes at the end of a command, and returns its outcome.
    pub(crate) fn end(mut self, outcome: Outcome) -> Result<Outcome, Failure> {
        self.flush()?;
        Ok(outcome)
    }

    /// Prints the result of a command that is done: `value` if it is wanted as JSON, else what `text` writes.
    pub(crate) fn answer(
        json: bool,
        value: &impl Serialize,
        text: impl FnOnce(&mut Out) -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        let mut out = Out::new();
        if json {
            out.json(value)?
        } else {
            text(&mut out)?
        }
        out.end(Outcome::Done)
    }

    /// `text` in bold if colours are enabled.
    pub(crate) fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    /// `text` in green if colours are enabled.
    pub(crate) fn green(&self, text: &str) -> String {
        self.styled("32;1", text)
    }

    /// `text` dimmed if colours are enabled.
    pub(crate) fn dim(&self, text: &str) -> String {
        self.styled("2", text)
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The object without its null fields.
pub(crate) fn known(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// Merges the fields of two objects into one.
pub(crate) fn joined(object: &impl Serialize, more: Value) -> Value {
    let mut object = json!(object);
    if let (Some(fields), Value::Object(more)) = (object.as_object_mut(), more) {
        fields.extend(more);
    }
    object
}

/// Formats JSON on one line and escapes characters that could affect a terminal.
struct SafeJson;

impl Formatter for SafeJson {
    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_unsafe) {
            let (safe, tail) = rest.split_at(at);
            writer.write_all(safe.as_bytes())?;
            let mut tail = tail.chars();
            for unit in tail.next().expect("found there").encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = tail.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

const ESCAPE: char = '\x1b';
/// The rest of our own styles' sequences, after ESC.
const STYLES: [&str; 4] = ["[0m", "[1m", "[2m", "[32;1m"];

fn output_failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        kind => {
            let kind = Error::from(io::Error::from(kind)).kind();
            Error::new(kind, "cannot write to standard output").source(error).into()
        }
    }
}

/// The progress of one task. Dropping it clears the bar: drop it before the next one is created, since the
/// terminal clears lines from the cursor's position.
pub(crate) struct Meter {
    bar: Option<ProgressBar>,
    label: &'static str,
    noun: &'static str,
    total: u64,
    started: Instant,
    last_line: Instant,
    quiet: bool,
}

impl Meter {
    /// A meter for `total` samples (0: unknown); silent if `quiet`.
    pub(crate) fn new(label: &'static str, total: u64, quiet: bool) -> Meter {
        let on_terminal = std::io::stderr().is_terminal();
        let bar = (on_terminal && !quiet).then(|| bar(label, total));
        let now = Instant::now();
        Meter { bar, label, noun: "sample", total, started: now, last_line: now, quiet }
    }

    /// Sets the noun for the counted items, if they are not samples.
    pub(crate) fn counting(mut self, noun: &'static str) -> Meter {
        self.noun = noun;
        self
    }

    /// Sets the progress to `done` items and `bytes`. Cheap: call it once per batch.
    pub(crate) fn update(&mut self, done: u64, bytes: u64) {
        if self.quiet {
            return;
        }
        let time = self.started.elapsed();
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}  {}", self::bytes(bytes), rate(bytes, time)));
            bar.set_position(done);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            let done = match self.total {
                0 => counted(done, self.noun),
                total => format!("{} of {}", count(done), counted(total, self.noun)),
            };
            eprintln!("{}", plain_line(self.label, &done, bytes, time));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn plain_line(label: &str, done: &str, bytes: u64, time: Duration) -> String {
    format!("{label}: {done}, {}, {}", self::bytes(bytes), rate(bytes, time))
}

fn bar(label: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style(total));
    bar.set_prefix(label);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(total: u64) -> ProgressStyle {
    let template = if total == 0 { SPINNER } else { BAR };
    ProgressStyle::with_template(template)
        .expect("the templates below are well-formed")
        .progress_chars("━╸ ")
}

/// The bar uses the columns that the text leaves free, so that the line never wraps.
const BAR: &str =
    "{prefix:>10.bold} {wide_bar:.green} {percent:>3}%  {human_pos}/{human_len}  {msg}  {eta} left";
const SPINNER: &str = "{prefix:>10.bold} {spinner} {human_pos}  {wide_msg}";
/// Often enough to show progress in a log file, rarely enough not to fill it.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// `"1 sample"`, `"2 samples"`, `"3 entries"`: `number` with its noun.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let count = count(number);
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("{count} {noun}"),
        Some(stem) => format!("{count} {stem}ies"),
        None if noun.ends_with("ch") => format!("{count} {noun}es"),
        None => format!("{count} {noun}s"),
    }
}

/// A number of bytes in the largest binary unit that divides it: `4 MiB`, `64 KiB`.
pub(crate) fn binary_size(number: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(bits, _)| number > 0 && number.trailing_zeros() >= *bits);
    unit.map_or_else(|| format!("{number} B"), |(bits, unit)| format!("{} {unit}", number >> bits))
}

/// A rate of bytes per time: `1.42 GB/s`.
pub(crate) fn rate(number: u64, time: Duration) -> String {
    format!("{}/s", bytes(per_second(number, time) as u64))
}

/// Items per second; 0 if no time has passed.
pub(crate) fn per_second(number: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { number as f64 / seconds } else { 0.0 }
}

/// Microseconds as `850 µs`, `12.3 ms` or `1.50 s`.
pub(crate) fn micros(us: u64) -> String {
    duration(Duration::from_micros(us))
}

/// Seconds since 1970 as `2026-11-20 11:40:07 UTC`.
pub(crate) fn utc(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// The last second of the year 9999: a time from media may be any number.
const LAST_SECOND: u64 = 253_402_300_799;

/// A name on one line that cannot move the cursor, change the terminal's colours or imitate another name.
///
/// Control and direction characters become `\n`, `\t`, `\r`, `\u{..}`; bytes that are not UTF-8 become
/// `\xNN`; backslashes are doubled, so that the result is unambiguous.
pub(crate) fn safe_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                character if is_unsafe(character) => text.extend(character.escape_default()),
                character => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("writing to a String does not fail");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes_characters_that_could_harm_a_terminal() {
        let names = ["a\u{7f}b", "\u{9b}31m", "x\u{202e}gpj", "\u{e0041}", "größe\n\u{1b}", ""];
        for name in names {
            let mut written = Vec::new();
            let mut serializer = Serializer::with_formatter(&mut written, SafeJson);
            name.serialize(&mut serializer).unwrap();
            let text = std::str::from_utf8(&written).unwrap();
            assert!(!text.contains(is_unsafe), "{text:?}");
            assert_eq!(serde_json::from_str::<String>(text).unwrap(), name);
        }
    }

    #[test]
    fn a_plain_line_says_how_much_of_what_and_how_fast() {
        let line = plain_line("writing", "1 sample", 2_000_000, Duration::from_secs(2));
        assert_eq!(line, "writing: 1 sample, 2.00 MB, 1.00 MB/s");
    }

    #[test]
    fn the_bar_templates_are_well_formed() {
        style(0);
        style(5);
    }

    #[test]
    fn counts_have_their_noun() {
        assert_eq!(counted(1, "sample"), "1 sample");
        assert_eq!(counted(1000, "sample"), "1,000 samples");
        assert_eq!(
            (counted(1, "entry"), counted(0, "entry")),
            ("1 entry".into(), "0 entries".into())
        );
    }

    #[test]
    fn binary_sizes_are_whole_numbers_of_their_unit() {
        assert_eq!(binary_size(4 << 20), "4 MiB");
        assert_eq!(binary_size(64 << 10), "64 KiB");
        assert_eq!(binary_size((1 << 20) + 1), "1048577 B");
        assert_eq!(binary_size(0), "0 B");
    }

    #[test]
    fn times_are_dates_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_795_000_000), "2026-11-18 11:06:40 UTC");
        assert_eq!(utc(4_102_444_799), "2099-12-31 23:59:59 UTC");
    }

    #[test]
    fn a_rate_over_no_time_is_zero() {
        assert_eq!(per_second(5, Duration::ZERO), 0.0);
        assert_eq!(rate(2_000_000, Duration::from_secs(2)), "1.00 MB/s");
    }

    #[test]
    fn a_hostile_name_prints_as_one_harmless_line() {
        assert_eq!(safe_name(b"cat/1.jpg"), "cat/1.jpg");
        assert_eq!(safe_name("größe é".as_bytes()), "größe é");
        assert_eq!(safe_name(b"a\nb\x1b[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(safe_name(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(safe_name(b"a\\nb"), "a\\\\nb");
        assert_eq!(safe_name("evil\u{202e}gpj".as_bytes()), "evil\\u{202e}gpj");
    }

    #[test]
    fn two_names_never_print_alike() {
        assert_ne!(safe_name(b"\xff"), safe_name(b"\\xff"));
        assert_ne!(safe_name(b"\n"), safe_name(b"\\n"));
    }
}
