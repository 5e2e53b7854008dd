//! Line charts as SVG.

use plotters::prelude::*;

/// One line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// In ascending order of the first coordinate.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart with both axes from 0.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) x_label: &'static str,
    pub(crate) y_label: &'static str,
    pub(crate) lines: Vec<Line>,
}

const SIZE: (u32, u32) = (860, 420);
const WORKS: &str = "drawing into a string cannot fail";

impl Chart {
    /// Returns the chart as an `svg` element.
    pub(crate) fn svg(&self) -> String {
        let mut text = String::new();
        self.draw(&SVGBackend::with_string(&mut text, SIZE).into_drawing_area());
        text
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let right = points().map(|point| point.0).fold(1.0, f64::max) * 1.02;
        let top = points().map(|point| point.1).fold(1.0, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .right_y_label_area_size(0)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .expect(WORKS);
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .draw()
            .expect(WORKS);
        for (index, line) in self.lines.iter().enumerate() {
            let colour = Palette99::pick(index).to_rgba();
            let style = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style))
                .expect(WORKS)
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            let dots = line.points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots).expect(WORKS);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .expect(WORKS);
        area.present().expect(WORKS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_labels_and_a_dot_for_each_point() {
        let lines = vec![
            Line { name: "one".to_owned(), points: vec![(1.0, 2.0), (2.0, 3.0)] },
            Line { name: "two".to_owned(), points: vec![(1.0, 1.0)] },
        ];
        let chart = Chart { x_label: "threads", y_label: "kIOPS", lines };
        let svg = chart.svg();
        for label in ["threads", "kIOPS", "one", "two"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
    }
}
