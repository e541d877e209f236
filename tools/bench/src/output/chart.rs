//! A line chart as SVG: axes, a grid, a legend.

use std::error::Error;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::report::escaped;

/// Lines over one horizontal axis.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// The scale of the horizontal axis; the vertical one is linear and begins at 0.
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
    /// The chart; a sentence instead if there is nothing to draw.
    pub(super) fn svg(&self) -> String {
        let title = escaped(self.title);
        let points = || self.series.iter().flat_map(|series| &series.points);
        if points().next().is_none() {
            return format!("<p>{title}: the run was too short for it.</p>\n");
        }
        let high = end(points().map(|point| point.0));
        let low = points().map(|point| point.0).fold(high, f64::min).max(high * 1e-12);
        let drawn = match self.scale {
            Scale::Linear => self.draw(0.0..high),
            Scale::Logarithmic => {
                let first = low.log10().floor() as i32;
                let last = (high.log10().ceil() as i32).max(first + 1);
                self.draw((10_f64.powi(first)..10_f64.powi(last)).log_scale())
            }
        };
        match drawn {
            // Embedded in a page it needs no XML namespace, whose name would look like a link.
            Ok(svg) => svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", " role=\"img\"", 1),
            Err(error) => format!("<p>{title}: {}</p>\n", escaped(&error.to_string())),
        }
    }

    fn draw<X>(&self, x: X) -> Result<String, Box<dyn Error + '_>>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let all = self.series.iter().flat_map(|series| &series.points);
        let top = end(all.map(|point| point.1));
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let mut chart = ChartBuilder::on(&area)
                .caption(self.title, (FONT, 16))
                .margin(10)
                .x_label_area_size(40)
                .y_label_area_size(70)
                .build_cartesian_2d(x, 0.0..top * 1.05)?;
            let mut mesh = chart.configure_mesh();
            mesh.light_line_style(TRANSPARENT).label_style((FONT, 12));
            mesh.x_desc(self.x).y_desc(self.y).draw()?;
            for (series, color) in self.series.iter().zip(COLORS.iter().cycle()) {
                let alone = u32::from(series.points.len() == 1);
                let line = LineSeries::new(series.points.iter().copied(), color.stroke_width(2));
                chart
                    .draw_series(line.point_size(3 * alone))?
                    .label(series.name.as_str())
                    .legend(|(x, y)| Rectangle::new([(x, y - 2), (x + 16, y + 2)], color.filled()));
            }
            chart
                .configure_series_labels()
                .label_font((FONT, 12))
                .background_style(WHITE)
                .position(SeriesLabelPosition::UpperRight)
                .draw()?;
            area.present()?;
        }
        Ok(svg)
    }
}

/// The end of an axis that begins at 0.
fn end(values: impl Iterator<Item = f64>) -> f64 {
    match values.fold(0.0, f64::max) {
        0.0 => 1.0,
        end => end,
    }
}

const SIZE: (u32, u32) = (900, 320);
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 2] = [RGBColor(0x0b, 0x62, 0xc4), RGBColor(0xc2, 0x41, 0x0c)];

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> String {
        let series = vec![Series { name: "read".into(), points }];
        Chart { title: "t", x: "x", y: "y", scale, series }.svg()
    }

    #[test]
    fn a_line_stays_inside_its_frame_and_a_missing_one_is_reported() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = chart(scale, vec![(1.0, 0.0), (100.0, 50.0)]);
            let line = svg.split("<polyline").find(|line| line.contains("stroke-width=\"2\""));
            let points = line.unwrap().split_once("points=\"").unwrap().1;
            let points = points.split('"').next().unwrap().split_whitespace();
            let points: Vec<(f64, f64)> = points
                .map(|point| point.split_once(',').unwrap())
                .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
                .collect();
            assert!(points.len() >= 2 && points[0].0 < points[1].0 && points[0].1 > points[1].1);
            assert!(
                points.iter().all(|p| (70.0..900.0).contains(&p.0) && (0.0..320.0).contains(&p.1))
            );
            assert!(!svg.contains("http"), "{svg}");
        }
        assert!(chart(Scale::Linear, Vec::new()).contains("too short"));
    }

    #[test]
    fn any_points_can_be_drawn() {
        for points in [vec![(0.0, 0.0)], vec![(1e-3, 0.0); 2], vec![(1e-3, 1e-9), (3.6e9, 1e18)]] {
            for scale in [Scale::Linear, Scale::Logarithmic] {
                let svg = chart(scale, points.clone());
                assert!(
                    svg.contains("<svg") && !svg.contains("NaN") && !svg.contains("inf"),
                    "{svg}"
                );
            }
        }
    }
}
