//! A line chart as SVG: axes, a grid, a legend.

use std::fmt::Write as _;

use super::report::escaped;

/// Lines over one horizontal axis.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// Of the horizontal axis; the vertical one is linear from 0.
    pub(super) scale: Scale,
    pub(super) series: Vec<Series>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
}

/// One line.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Chart<'_> {
    /// The chart; a sentence instead where there is nothing to draw.
    pub(super) fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        if points().next().is_none() {
            return format!("<p>{}: the run was too short for it.</p>\n", escaped(self.title));
        }
        let ends = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, 0.0_f64), |ends, v| (ends.0.min(v), ends.1.max(v)))
        };
        let (low, high) = ends(&mut points().map(|point| point.0));
        let (_, top) = ends(&mut points().map(|point| point.1));
        let x_ticks = match self.scale {
            Scale::Linear => ticks(high),
            Scale::Logarithmic => decades(low, high),
        };
        let y_ticks = ticks(top);
        let frame = Frame {
            left: if self.scale == Scale::Linear { 0.0 } else { x_ticks[0] },
            right: *x_ticks.last().unwrap_or(&1.0),
            top: *y_ticks.last().unwrap_or(&1.0),
            scale: self.scale,
        };
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" font-size=\"12\">\
             <title>{0}</title><text x=\"{LEFT}\" y=\"16\" font-weight=\"600\">{0}</text>\n",
            escaped(self.title)
        );
        self.grid(&frame, &x_ticks, &y_ticks, &mut out);
        self.lines(&frame, &mut out);
        out.push_str("</svg>\n");
        out
    }

    // Writing to a string does not fail, here and below.
    fn grid(&self, frame: &Frame, x_ticks: &[f64], y_ticks: &[f64], out: &mut String) {
        let (bottom, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for &tick in x_ticks {
            let x = frame.x(tick);
            let _ = writeln!(out, "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>");
            let (y, label) = (bottom + 16.0, number(tick));
            let _ =
                writeln!(out, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>");
        }
        for &tick in y_ticks {
            let y = frame.y(tick);
            let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#ddd\"/>");
            let (x, y, label) = (LEFT - 6.0, y + 4.0, number(tick));
            let _ =
                writeln!(out, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>");
        }
        let (middle, below) = ((LEFT + end) / 2.0, HEIGHT - 6.0);
        let (x, y) = (escaped(self.x), escaped(self.y));
        let _ =
            writeln!(out, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{x}</text>");
        let _ = writeln!(
            out,
            "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{y}</text>",
            (TOP + bottom) / 2.0
        );
    }

    fn lines(&self, frame: &Frame, out: &mut String) {
        for (at, series) in self.series.iter().enumerate() {
            let color = COLORS[at % COLORS.len()];
            let points: Vec<String> = series
                .points
                .iter()
                .map(|&(x, y)| format!("{:.1},{:.1}", frame.x(x), frame.y(y)))
                .collect();
            let _ = writeln!(
                out,
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>",
                points.join(" ")
            );
            if let [(x, y)] = series.points[..] {
                let (x, y) = (frame.x(x), frame.y(y));
                let _ =
                    writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>");
            }
            let x = WIDTH - RIGHT - 80.0 * (self.series.len() - at) as f64;
            let name = escaped(&series.name);
            let _ =
                writeln!(out, "<text x=\"{x}\" y=\"16\" fill=\"{color}\">&#9644; {name}</text>");
        }
    }
}

/// From values to places on the page.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    scale: Scale,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.left) / (self.right - self.left),
            Scale::Logarithmic => {
                (value.log10() - self.left.log10()) / (self.right.log10() - self.left.log10())
            }
        };
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value / self.top).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }
}

/// From 0 to at least `high`, in steps of 1, 2 or 5 times a power of ten.
fn ticks(high: f64) -> Vec<f64> {
    if high <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = high / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough * 0.999);
    let step = factor.unwrap_or(10.0) * power;
    (0..=(high / step).ceil() as u32).map(|at| f64::from(at) * step).collect()
}

/// Powers of ten around `low..=high`.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().floor() as i32;
    let last = (high.log10().ceil() as i32).max(first + 1);
    (first..=last).map(|power| 10_f64.powi(power)).collect()
}

fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 1.0 {
        format!("{value:.3}").trim_end_matches('0').to_owned()
    } else {
        format!("{value}")
    }
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;
const COLORS: [&str; 4] = ["#0b62c4", "#c2410c", "#15803d", "#7e22ce"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_all() {
        assert_eq!(ticks(9.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(decades(0.2, 40.0), [0.1, 1.0, 10.0, 100.0]);
        assert_eq!(decades(1.0, 1.0), [1.0, 10.0]);
    }

    #[test]
    fn a_line_lies_inside_its_frame_and_none_is_told_of() {
        let series = vec![Series { name: "read".into(), points: vec![(1.0, 0.0), (100.0, 50.0)] }];
        let chart = Chart { title: "t", x: "x", y: "y", scale: Scale::Logarithmic, series };
        let svg = chart.svg();
        assert!(svg.contains("points=\"70.0,278.0 880.0,30.0\""), "{svg}");
        let none = Chart { title: "t", x: "x", y: "y", scale: Scale::Linear, series: Vec::new() };
        assert!(none.svg().contains("too short"));
    }
}
