//! Prints a report as a table with a verdict of one line.

use std::fmt;

use super::{Compared, ShuffleReport};

/// One row of the table.
struct Row {
    name: String,
    compared: Option<Compared>,
    /// True for a statistic of classes, false for one of positions or chunks.
    is_of_classes: bool,
}

impl ShuffleReport {
    fn rows(&self) -> Vec<Row> {
        let positional =
            |name: &str, compared| Row { name: name.into(), compared, is_of_classes: false };
        let class = |name: String, compared| Row { name, compared, is_of_classes: true };
        let mut rows = vec![
            positional("displacement / samples", Some(self.displacement)),
            positional("serial correlation", Some(self.serial_correlation)),
            positional("chunks in a batch", self.chunks_per_batch),
            positional("runs of one chunk", Some(self.chunk_runs)),
        ];
        if let Some(classes) = &self.classes {
            let name = format!("classes in a batch, of {}", classes.num_classes);
            rows.push(class(name, classes.classes_per_batch));
            rows.push(class("chi-square of a batch's classes".into(), classes.chi_square));
            rows.push(class("runs of one class".into(), Some(classes.class_runs)));
        }
        if let Some(ranks) = &self.ranks {
            let name = format!("classes that a rank sees, of {}", ranks.num_classes);
            rows.push(class(name, ranks.classes_per_share));
            rows.push(class("chi-square of a rank's classes".into(), ranks.chi_square));
            rows.push(class("classes in a rank's batch".into(), ranks.classes_per_batch));
        }
        rows
    }

    /// The verdict: whether all statistics are within chance, and if not, which row deviates most.
    pub fn verdict(&self) -> String {
        let rows = self.rows();
        let worst = |of_classes: bool| {
            let unlike = rows.iter().filter_map(|row| {
                let deviations = row.compared?.deviations.abs();
                let is_unlike = row.is_of_classes == of_classes && deviations > AS_CHANCE;
                is_unlike.then_some((deviations, &row.name))
            });
            unlike.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
        };
        match (worst(true), worst(false)) {
            (Some(row), _) => format!("classes are not mixed as by chance ({row})"),
            (None, Some(row)) if self.classes.is_some() => {
                format!("classes are mixed as by chance, positions are not ({row})")
            }
            (None, Some(row)) => format!("positions are not mixed as by chance ({row})"),
            (None, None) => "mixed as by chance".to_owned(),
        }
    }
}

impl fmt::Display for ShuffleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} samples, {} whole batches of {}", self.samples, self.batches, self.batch)?;
        writeln!(f, "{:<34}{:>12}{:>12}{:>12}", "", "found", "chance", "deviations")?;
        for row in self.rows() {
            match row.compared {
                Some(compared) => write_row(f, &row.name, compared)?,
                None if self.batches == 0 => {
                    writeln!(f, "{:<34}{:>36}", row.name, "no whole batch")?
                }
                None => writeln!(f, "{:<34}{:>36}", row.name, "nothing to compare")?,
            }
        }
        if let Some(classes) = &self.classes {
            writeln!(f, "{:<34}{:>12}", "longest run of one class", classes.longest_run)?;
        }
        writeln!(f, "verdict: {}", self.verdict())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, name: &str, row: Compared) -> fmt::Result {
    // If chance hardly varies, any difference is many deviations, and their number means little.
    let deviations = match row.deviations {
        many if many >= 1000.0 => "> 999".to_owned(),
        many if many <= -1000.0 => "< -999".to_owned(),
        few => format!("{few:.1}"),
    };
    writeln!(f, "{name:<34}{:>12.4}{:>12.4}{deviations:>12}", row.found, row.chance)
}

/// The most standard deviations at which a statistic counts as random.
const AS_CHANCE: f64 = 3.0;
