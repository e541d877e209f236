//! Medians of rounds, and lines of the table.

/// The results of one side, one a round, in some unit of speed.
pub(crate) struct Rounds(pub(crate) Vec<f64>);

impl Rounds {
    /// The median.
    pub(crate) fn median(&self) -> f64 {
        median(self.0.clone())
    }

    /// The median of the rounds' ratios to `other`.
    pub(crate) fn ratio_to(&self, other: &Rounds) -> f64 {
        median(self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The head of the table.
pub(crate) fn header() {
    println!("| part | what | figure | beside | ratio | bar |");
    println!("|---|---|---|---|---|---|");
}

/// A line that stands for itself.
pub(crate) fn figure(part: &str, what: &str, figure: &str) {
    println!("| {part} | {what} | {figure} | | | |");
}

/// A line that is compared: `own` and `beside` with their names.
pub(crate) fn compared(
    part: &str,
    (what, own): (&str, &Rounds),
    (beside, other): (&str, &Rounds),
    (unit, bar): (&str, Option<f64>),
) {
    let ratio = own.ratio_to(other);
    let own = own.median();
    let other = other.median();
    let bar = bar.map_or_else(String::new, |bar| format!("{bar}{}", verdict(ratio >= bar)));
    println!("| {part} | {what} | {own:.0} {unit} | {beside}: {other:.0} | {ratio:.2} | {bar} |");
}

/// A line with a limit that is kept or not.
pub(crate) fn limited(part: &str, what: &str, figure: &str, limit: &str, is_met: bool) {
    println!("| {part} | {what} | {figure} | | | {limit}{} |", verdict(is_met));
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { ", met" } else { ", **missed**" }
}
