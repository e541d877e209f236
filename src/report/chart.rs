//! Charts as SVG that stretches to any width; their labels are HTML beside them, so that they keep their size.

use std::fmt::Write;
use std::time::Duration;

use super::text::{duration, escaped};
use super::timeline::{Counts, Timeline};

/// A part of a run as a column of a chart.
pub(super) struct Column {
    pub(super) begin: Duration,
    pub(super) len: Duration,
    pub(super) counts: Counts,
}

/// A layer of a chart: a class that colours it, and a height for each column.
pub(super) struct Layer {
    pub(super) class: &'static str,
    pub(super) heights: Vec<f64>,
}

/// The columns of a run: few enough that each has several batches, and at most 240.
pub(super) fn columns(timeline: &Timeline) -> Vec<Column> {
    let buckets: Vec<_> = timeline.buckets().collect();
    let batches = usize::try_from(timeline.total().batches).unwrap_or(usize::MAX);
    let wanted = (batches / BATCHES_A_COLUMN).clamp(MIN_COLUMNS, MAX_COLUMNS);
    let of_column = buckets.len().div_ceil(wanted).max(1);
    let mut columns: Vec<Column> = buckets
        .chunks(of_column)
        .map(|buckets| Column {
            begin: buckets[0].0,
            len: buckets.iter().map(|(_, len, _)| *len).sum(),
            counts: buckets.iter().fold(Counts::default(), |sum, (.., counts)| sum.plus(counts)),
        })
        .collect();
    // A rate over a short rest says little.
    if let [.., before, last] = &columns[..]
        && last.len < before.len / 2
        && let Some(last) = columns.pop()
        && let Some(before) = columns.last_mut()
    {
        before.len += last.len;
        before.counts = before.counts.plus(&last.counts);
    }
    columns
}

/// Layers that stand on each other, up to `top`. `tell` describes a column to who points at it.
pub(super) fn stacked(
    columns: &[Column],
    layers: &[Layer],
    top: f64,
    label: &str,
    tell: impl Fn(&Column) -> String,
) -> String {
    let end = columns.last().map_or(0.0, |last| (last.begin + last.len).as_secs_f64()).max(1e-9);
    let x = |time: Duration| time.as_secs_f64() / end * WIDTH;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        escaped(label)
    );
    for line in [0.0, 0.5, 1.0] {
        let y = line * HEIGHT;
        let _ = write!(svg, "<path class=\"grid\" d=\"M0 {y}H{WIDTH}\"/>"); // writing to a string cannot fail
    }
    let mut floor = vec![0.0; columns.len()];
    for layer in layers.iter().filter(|layer| layer.heights.iter().any(|height| *height > 0.0)) {
        let mut up = String::new();
        let mut back = String::new();
        for ((column, height), floor) in columns.iter().zip(&layer.heights).zip(&mut floor) {
            let left = x(column.begin);
            let right = x(column.begin + column.len);
            let ceiling = *floor + height;
            let y = |value: f64| HEIGHT * (1.0 - (value / top.max(1e-9)).min(1.0));
            let _ = write!(up, "{}{left:.2} {:.2}H{right:.2}", link(&up), y(ceiling));
            back = format!("L{right:.2} {:.2}H{left:.2}{back}", y(*floor));
            *floor = ceiling;
        }
        let _ = write!(svg, "<path class=\"{}\" d=\"{up}{back}Z\"/>", layer.class);
    }
    for column in columns {
        let left = x(column.begin);
        let width = x(column.len);
        let _ = write!(
            svg,
            "<rect class=\"hover\" x=\"{left:.2}\" width=\"{width:.2}\" y=\"0\" height=\"{HEIGHT}\"><title>{}</title>\
             </rect>",
            escaped(&tell(column))
        );
    }
    svg + "</svg>"
}

/// A chart with the labels of its axes.
pub(super) fn framed(svg: &str, y_labels: [String; 3], end: Duration) -> String {
    let [top, middle, bottom] = y_labels;
    let x: String = (0..=4_u32)
        .map(|quarter| match quarter {
            0 => "<span>0</span>".to_owned(),
            _ => format!("<span>{}</span>", duration(end * quarter / 4)),
        })
        .collect();
    format!(
        "<div class=\"plot\"><div class=\"y\"><span>{top}</span><span>{middle}</span><span>{bottom}</span></div>\
         {svg}<div class=\"x\">{x}</div></div>"
    )
}

/// A bar that is divided among shares of a whole, each with its class and what it says.
pub(super) fn bar(shares: &[(&'static str, f64, String)], label: &str) -> String {
    let mut html = format!("<div class=\"bar\" role=\"img\" aria-label=\"{}\">", escaped(label));
    for (class, share, tell) in shares.iter().filter(|(_, share, _)| *share > 0.0) {
        let _ = write!(
            html,
            "<span class=\"{class}\" style=\"width:{:.3}%\" title=\"{}\"></span>",
            100.0 * share,
            escaped(tell)
        );
    }
    html + "</div>"
}

/// The next larger number of the form 1, 2, 2.5 or 5 times a power of ten.
pub(super) fn nice(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let found = steps.into_iter().find(|step| step * power >= value * (1.0 - 1e-9));
    found.unwrap_or(10.0) * power
}

/// `M` begins a path, `L` goes on.
fn link(path: &str) -> &'static str {
    if path.is_empty() { "M" } else { "L" }
}

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 200.0;
const MAX_COLUMNS: usize = 240;
const MIN_COLUMNS: usize = 12;
const BATCHES_A_COLUMN: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::cause::Stalls;
    use super::super::timeline::Delivered;
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        for (value, top) in [(0.0, 1.0), (1.0, 1.0), (3.1, 5.0), (991.0, 1000.0), (0.021, 0.025)] {
            assert!((nice(value) - top).abs() < 1e-9, "{value}: {}", nice(value));
        }
    }

    #[test]
    fn columns_cover_the_run_and_have_several_batches_each() {
        for batches in [1, 50, 2000] {
            let mut timeline = Timeline::new();
            for number in 1..=batches {
                let at = Duration::from_millis(21 * number);
                let samples = 5;
                let bytes = 50;
                let stalls = Stalls::default();
                timeline.batch(&Delivered { asked: at, at, epoch: 0, samples, bytes, stalls });
            }
            let columns = columns(&timeline);
            assert!(columns.len() <= MAX_COLUMNS, "{} for {batches}", columns.len());
            let samples: u64 = columns.iter().map(|column| column.counts.samples).sum();
            let time: Duration = columns.iter().map(|column| column.len).sum();
            assert_eq!((samples, time), (5 * batches, timeline.time()));
        }
    }
}
