//! Bar charts of the policies' times.

use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoFont, PathElement, RGBColor,
    Rectangle, SVGBackend, Text, WHITE,
};
use plotters::style::ShapeStyle;

use crate::policy::Policy;

/// A panel with one bar per policy.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The title above it.
    pub title: String,
    /// Name, simulated seconds, and the published seconds if there are any.
    pub bars: Vec<(String, f64, Option<f64>)>,
}

/// An SVG of `panels`, two in a row.
///
/// A bar is the simulated time, a black line across it the published one. The first bar of a panel,
/// the lower bound if it was simulated, continues as a thin line through the others. A legend is
/// below each panel.
///
/// # Errors
/// Errors of the drawing library.
pub fn svg(panels: &[Panel]) -> Result<String, String> {
    let columns = panels.len().clamp(1, 2);
    let rows = panels.len().div_ceil(columns).max(1);
    let bars = panels.iter().map(|panel| panel.bars.len()).max().unwrap_or(1) as u32;
    let size =
        (columns as u32 * PANEL_WIDTH, rows as u32 * (bars * BAR_PITCH + 110 + LEGEND_HEIGHT));
    let mut svg = String::new();
    draw(panels, (rows, columns), size, &mut svg).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw(
    panels: &[Panel],
    grid: (usize, usize),
    size: (u32, u32),
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    for (panel, area) in panels.iter().zip(root.split_evenly(grid)) {
        draw_panel(panel, &area)?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(
    panel: &Panel,
    panel_area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let values = panel.bars.iter().flat_map(|(_, seconds, printed)| [Some(*seconds), *printed]);
    let longest = values.flatten().fold(1e-9, f64::max);
    let (unit, divisor) = if longest >= 7_200.0 { ("h", 3_600.0) } else { ("s", 1.0) };
    let rows = panel.bars.len() as f64;
    let mut chart = ChartBuilder::on(panel_area)
        .caption(&panel.title, ("sans-serif", 20))
        .margin(10)
        .margin_right(30)
        .margin_bottom(10 + LEGEND_HEIGHT)
        .x_label_area_size(40)
        .y_label_area_size(LABEL_WIDTH)
        .build_cartesian_2d(0.0..longest / divisor * 1.15, rows..0.0)?;
    let mesh = &mut chart.configure_mesh();
    mesh.disable_y_mesh().disable_y_axis().y_labels(0).x_labels(6);
    mesh.x_desc(format!("time of the run, {unit}")).draw()?;
    let area = chart.plotting_area();
    let text = ("sans-serif", 14).into_font().color(&BLACK);
    for (row, (name, seconds, printed)) in panel.bars.iter().enumerate() {
        let top = row as f64;
        let value = seconds / divisor;
        area.draw(&Rectangle::new([(0.0, top + 0.15), (value, top + 0.85)], color(name).filled()))?;
        let printed = printed.map(|printed| printed / divisor);
        if let Some(printed) = printed {
            let line = [(printed, top + 0.05), (printed, top + 0.95)];
            area.draw(&PathElement::new(line.to_vec(), BLACK.stroke_width(2)))?;
        }
        let end = value.max(printed.unwrap_or(0.0)) + longest / divisor * 0.01;
        let label = format!("{value:.*}", if divisor > 1.0 || *seconds < 100.0 { 2 } else { 0 });
        area.draw(&Text::new(label, (end, top + 0.35), text.clone()))?;
        // Names are left of the axis, outside the plotted area.
        let (x, y) = area.map_coordinate(&(0.0, top + 0.35));
        let (left, above) = panel_area.get_base_pixel();
        let at = (x - left - LABEL_WIDTH as i32, y - above);
        panel_area.draw(&Text::new(name.clone(), at, text.clone()))?;
    }
    if let Some((_, bound, _)) = panel.bars.first().filter(|(name, ..)| is_bound(name)) {
        let line = vec![(bound / divisor, 0.0), (bound / divisor, rows)];
        area.draw(&PathElement::new(line, RED.stroke_width(1)))?;
    }
    draw_legend(panel, panel_area)
}

/// The legend, on the last line of the panel: a patch of each colour and a piece of each line.
fn draw_legend(
    panel: &Panel,
    panel_area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let has = |is: fn(&str) -> bool| panel.bars.iter().any(|(name, ..)| is(name));
    let has_printed = panel.bars.iter().any(|(_, _, printed)| printed.is_some());
    let entries = [
        (has(is_bound), "lower bound", GREY.filled()),
        (has(|name| !is_bound(name) && !is_ours(name)), "published", BLUE.filled()),
        (has(is_ours), "dlfs's own", GREEN.filled()),
        (has(is_bound), "bound of all", RED.stroke_width(1)),
        (has_printed, "printed in the thesis", BLACK.stroke_width(2)),
    ];
    let mut left = 10;
    let top = panel_area.dim_in_pixel().1 as i32 - 22;
    let font = ("sans-serif", 12).into_font().color(&BLACK);
    for (_, name, style) in entries.into_iter().filter(|(is_there, ..)| *is_there) {
        // Lines are as wide as in the panel; patches are wide enough to show their colour.
        let width = if style.filled { 12 } else { style.stroke_width as i32 };
        let style = ShapeStyle { filled: true, ..style };
        panel_area.draw(&Rectangle::new([(left, top), (left + width, top + 12)], style))?;
        panel_area.draw(&Text::new(name, (left + 17, top), font.clone()))?;
        left += 40 + 6 * name.len() as i32;
    }
    Ok(())
}

fn color(name: &str) -> RGBColor {
    match name {
        _ if is_bound(name) => GREY,
        _ if is_ours(name) => GREEN,
        _ => BLUE,
    }
}

fn is_bound(name: &str) -> bool {
    name == Policy::LowerBound.name()
}

fn is_ours(name: &str) -> bool {
    Policy::of_thesis().iter().all(|of| of.name() != name)
}

const GREY: RGBColor = RGBColor(0x90, 0x90, 0x90);
const BLUE: RGBColor = RGBColor(0x5b, 0x8f, 0xc7);
const GREEN: RGBColor = RGBColor(0x5f, 0xa8, 0x6c);
const RED: RGBColor = RGBColor(0xc0, 0x30, 0x30);

const PANEL_WIDTH: u32 = 620;
const LEGEND_HEIGHT: u32 = 20;
const BAR_PITCH: u32 = 26;
const LABEL_WIDTH: u32 = 170;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_names_every_bar_and_is_one_svg_document() {
        let bars =
            vec![("Lower bound".to_owned(), 10.0, Some(11.0)), ("Naive".to_owned(), 40.0, None)];
        let panels = ["One", "Two", "Three"]
            .map(|title| Panel { title: title.to_owned(), bars: bars.clone() });
        let svg = svg(&panels).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        for text in [
            "One",
            "Three",
            "Lower bound",
            "Naive",
            "10.00",
            "40.00",
            "time of the run, s",
            "published",
            "printed in the thesis",
        ] {
            assert!(svg.contains(text), "{text} is missing");
        }
        let blue = svg.matches("fill=\"#5B8FC7\"").count();
        assert_eq!(blue, 6, "a bar of Naive and a patch of the legend in each panel");
        assert!(!svg.contains("dlfs's own"), "the legend names what is there");
    }

    #[test]
    fn a_chart_of_nothing_is_empty_and_one_of_zeroes_can_be_drawn() {
        assert!(svg(&[]).unwrap().contains("</svg>"));
        let panel = Panel { title: String::new(), bars: vec![("none".to_owned(), 0.0, None)] };
        assert!(svg(&[panel]).unwrap().contains("none"));
    }
}
