//! One figure as a picture.

use std::collections::BTreeMap;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::rows::Row;
use super::stated::Stated;

const SIZE: (u32, u32) = (900, 360);
/// By guest's scheduler, and whether it is helped; after the palette of Okabe and Ito, 2008.
const HELPED: RGBColor = RGBColor(0, 114, 178);
const BFQ: RGBColor = RGBColor(86, 180, 233);
const CFQ: RGBColor = RGBColor(230, 159, 0);
const OTHER: RGBColor = RGBColor(153, 153, 153);
const STATED: RGBColor = RGBColor(213, 94, 0);

/// A row with its place on the axis: groups of bars by guest load, in them by host load.
#[derive(Clone, Copy, Debug)]
struct Bar<'a> {
    row: &'a Row,
    left: f64,
}

/// Draws the rows of one figure as SVG.
///
/// # Errors
///
/// * What the drawing library says; a picture in memory has no reason to fail.
pub(crate) fn draw(rows: &[&Row]) -> anyhow::Result<String> {
    let (bars, groups, width) = arrange(rows);
    let value = |row: &Row| row.startup_mean_s.or(row.throughput_mb_s);
    let idle = rows.iter().find_map(|row| row.idle_mean_s);
    let largest = rows.iter().filter_map(|row| value(row)).chain(idle).fold(0.1, f64::max);
    let top = largest * 1.15;
    let is_start = rows.iter().any(|row| row.idle_mean_s.is_some());
    let unit = if is_start { "start-up in s" } else { "throughput in MB/s" };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..width, 0.0..top)
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh().disable_x_axis().y_desc(unit).y_labels(6);
        mesh.light_line_style(TRANSPARENT).bold_line_style(BLACK.mix(0.12));
        mesh.draw().map_err(failed)?;
        for bar in &bars {
            let height = value(bar.row).unwrap_or(0.0);
            let corners = [(bar.left, 0.0), (bar.left + 0.9, height)];
            chart
                .draw_series([Rectangle::new(corners, colour(bar.row).filled())])
                .map_err(failed)?;
            if bar.row.failed {
                label(&mut chart, (bar.left + 0.45, top * 0.02), "X", 18)?;
            }
            mark(&mut chart, bar, idle, top)?;
        }
        if let Some(idle) = idle {
            let line = [(0.0, idle), (width, idle)];
            chart.draw_series([PathElement::new(line, BLACK.stroke_width(1))]).map_err(failed)?;
        }
        for (middle, name) in &groups {
            let (x, y) = chart.backend_coord(&(*middle, 0.0));
            let style = centred(if name.starts_with(' ') { 11 } else { 14 });
            let below = if name.starts_with(' ') { 4 } else { 20 };
            root.draw_text(name.trim(), &style, (x, y + below)).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

type Canvas<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// Marks what the document states: a frame from the least to the most that its words allow.
fn mark(
    chart: &mut Canvas<'_, '_>,
    bar: &Bar<'_>,
    idle: Option<f64>,
    top: f64,
) -> anyhow::Result<()> {
    let Some(idle) = idle else { return Ok(()) };
    let (least, most) = match bar.row.stated() {
        Some(Stated::Ratio { least, most, .. }) => (least * idle, most * idle),
        Some(Stated::RatioOrFails { least, .. }) => (least * idle, top),
        Some(Stated::Fails) => (top * 0.96, top),
        _ => return Ok(()),
    };
    let frame = [(bar.left + 0.05, least.min(top)), (bar.left + 0.85, most.min(top))];
    chart.draw_series([Rectangle::new(frame, STATED.stroke_width(2))]).map(|_| ()).map_err(failed)
}

fn label(chart: &mut Canvas<'_, '_>, at: (f64, f64), text: &str, size: i32) -> anyhow::Result<()> {
    let style =
        ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Bottom));
    chart.draw_series([Text::new(text.to_owned(), at, style)]).map(|_| ()).map_err(failed)
}

fn centred(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top))
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("cannot draw: {error}")
}

fn colour(row: &Row) -> RGBColor {
    match (row.coordination, row.guest_scheduler.as_str()) {
        (true, _) => HELPED,
        (false, "bfq") => BFQ,
        (false, "cfq") => CFQ,
        _ => OTHER,
    }
}

/// Returns the bars with their places, the names below the axis (those of host loads begin with a
/// space), and the width of all.
fn arrange<'a>(rows: &[&'a Row]) -> (Vec<Bar<'a>>, Vec<(f64, String)>, f64) {
    let mut order: BTreeMap<(usize, usize), Vec<&Row>> = BTreeMap::new();
    let (mut guests, mut hosts) = (Vec::new(), Vec::new());
    for row in rows {
        let guest = place(&mut guests, &row.guest_load);
        let host = place(&mut hosts, &row.host_load);
        order.entry((guest, host)).or_default().push(row);
    }
    let (mut bars, mut names) = (Vec::new(), Vec::new());
    let mut at = 0.5;
    let mut begin = at;
    let mut last = 0;
    for ((guest, host), rows) in order {
        if guest != last {
            names.push((f64::midpoint(begin, at - 0.5), guests[last].clone()));
            at += 1.0;
            begin = at;
            last = guest;
        }
        let from = at;
        for row in rows {
            bars.push(Bar { row, left: at });
            at += 1.0;
        }
        if hosts.len() > 1 {
            names.push((f64::midpoint(from, at), format!(" host {}", hosts[host])));
        }
        at += 0.5;
    }
    if let Some(name) = guests.get(last) {
        names.push((f64::midpoint(begin, at - 0.5), name.clone()));
    }
    (bars, names, at)
}

fn place(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}
