//! The report as one HTML page that needs nothing else: text, a picture with error bars, a table.

use std::fmt::Write as _;

use super::report::{Report, Row, whole_megabytes};

/// Renders the page.
pub(super) fn render(report: &Report) -> String {
    let mut notes = String::new();
    for note in &report.notes {
        let _ = writeln!(notes, "<li>{}</li>", escape(note));
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Evenkeel: application start-up under load</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<h1>How long does an application take to start while others hammer \
         the disk?</h1>\n<p>{}</p>\n{}\n{}\n<h2>What was measured</h2>\n<ul>\n\
         <li>The application reads {} files, {:.1} MB, and checks every byte. Guests ran on {}.\
         </li>\n{notes}</ul>\n</body>\n</html>\n",
        escape(&headline(report)),
        chart(&report.rows),
        table(&report.rows),
        report.application_files,
        whole_megabytes(report.application_bytes),
        match report.accelerator {
            "kvm" => "KVM",
            "tcg" => "an emulated CPU (TCG)",
            _ => "nothing: they are models, and time is virtual",
        },
    )
}

/// Says the result in one or two sentences.
fn headline(report: &Report) -> String {
    let mut text = format!("One disk, {}, two guests.", report.device);
    for row in &report.rows {
        let _ = write!(
            text,
            " With {}, start-up under load took {:.1} times as long as on the idle disk",
            row.scheduler, row.ratio
        );
        text.push_str(match row.failed_runs {
            0 => ".",
            1 => " (one start failed).",
            _ => " (several starts failed).",
        });
    }
    text
}

fn chart(rows: &[Row]) -> String {
    let longest = rows.iter().flat_map(bars).map(|bar| bar.mean_ms + bar.ci95_ms);
    let scale = Scale::up_to(longest.fold(0.0, f64::max) / 1e3);
    let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let bottom = TOP + f64::from(count) * GROUP;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Mean start-up times with 95 % \
         confidence intervals\">\n",
        bottom + 44.0
    );
    let mut tick = 0.0;
    while tick <= scale.end_s + scale.step_s / 2.0 {
        let x = scale.x(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
            bottom + 18.0
        );
        tick += scale.step_s;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">start-up time in seconds (mean, 95 % \
         confidence interval)</text>",
        (LEFT + WIDTH) / 2.0,
        bottom + 38.0
    );
    let mut y = TOP + 12.0;
    for row in rows {
        let _ = writeln!(
            svg,
            "<text class=\"name\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 12.0,
            y + BAR + 5.0,
            escape(&row.scheduler)
        );
        for (index, bar) in bars(row).into_iter().enumerate() {
            let top = if index == 0 { y } else { y + BAR + 2.0 };
            draw_bar(&mut svg, &scale, &bar, top);
        }
        y += GROUP;
    }
    svg.push_str("</svg>");
    svg
}

fn draw_bar(svg: &mut String, scale: &Scale, bar: &Bar, top: f64) {
    let (mean, ci) = (bar.mean_ms / 1e3, bar.ci95_ms / 1e3);
    let (low, high) = (scale.x((mean - ci).max(0.0)), scale.x(mean + ci));
    let (width, middle) = (scale.x(mean) - LEFT, top + BAR / 2.0);
    let _ = writeln!(
        svg,
        "<rect class=\"{0}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\"/>\
         <path class=\"error\" d=\"M{low:.1} {middle}H{high:.1}M{low:.1} {1}v8M{high:.1} {1}v8\"/>\
         <text x=\"{2:.1}\" y=\"{3}\">{mean:.2} s{4}</text>",
        bar.class,
        middle - 4.0,
        high.max(scale.x(mean)) + 8.0,
        middle + 4.5,
        bar.remark,
    );
}

struct Bar {
    class: &'static str,
    mean_ms: f64,
    ci95_ms: f64,
    remark: String,
}

fn bars(row: &Row) -> [Bar; 2] {
    let mut remark = format!(" under load ({:.1} ×)", row.ratio);
    if row.failed_runs > 0 {
        let _ = write!(remark, ", {} failed", row.failed_runs);
    }
    [
        Bar {
            class: "idle",
            mean_ms: row.idle_mean_ms,
            ci95_ms: row.idle_ci95_ms,
            remark: " on the idle disk".to_owned(),
        },
        Bar { class: "loaded", mean_ms: row.loaded_mean_ms, ci95_ms: row.loaded_ci95_ms, remark },
    ]
}

/// A linear axis from 0 with ticks at 1, 2 or 5 times a power of ten.
struct Scale {
    end_s: f64,
    step_s: f64,
}

impl Scale {
    fn up_to(longest_s: f64) -> Self {
        let longest_s = longest_s.max(0.1);
        let rough = longest_s / 6.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step_s = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step_s = step_s.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        Self { end_s: (longest_s / step_s).ceil() * step_s, step_s }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.end_s * (WIDTH - LEFT - RIGHT)
    }
}

fn table(rows: &[Row]) -> String {
    let mut html = String::from(
        "<table>\n<tr><th>scheduler</th><th>idle, s</th><th>under load, s</th><th>ratio</th>\
         <th>failed</th><th>sequential readers, MB/s</th><th>random readers, MB/s</th></tr>\n",
    );
    for row in rows {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{:.2} ± {:.2}</td><td>{:.2} ± {:.2}</td><td>{:.2}</td>\
             <td>{}</td><td>{:.2}</td><td>{:.3}</td></tr>",
            escape(&row.scheduler),
            row.idle_mean_ms / 1e3,
            row.idle_ci95_ms / 1e3,
            row.loaded_mean_ms / 1e3,
            row.loaded_ci95_ms / 1e3,
            row.ratio,
            row.failed_runs,
            row.sequential_readers_mb_s,
            row.random_readers_mb_s,
        );
    }
    html + "</table>"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 100.0;
/// Room for the words behind the longest bar.
const RIGHT: f64 = 230.0;
const TOP: f64 = 8.0;
const BAR: f64 = 20.0;
const GROUP: f64 = 66.0;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d2430; --paper: #fff; --faint: #d5dae2;
  --idle: #9aa7ba; --loaded: #2f6fb7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe5ee; --paper: #14181f; --faint: #343c4a; --idle: #66748a; --loaded: #5b9ae0; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
svg { width: 100%; height: auto; margin: 1rem 0; } svg text { font-size: 13px; fill: var(--ink); }
svg .name { font-weight: 600; font-size: 15px; } .grid { stroke: var(--faint); }
.idle { fill: var(--idle); } .loaded { fill: var(--loaded); }
.error { stroke: var(--ink); stroke-width: 1.5; fill: none; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::report::tests::sample;

    #[test]
    fn the_page_shows_every_row_and_needs_nothing_from_elsewhere() {
        let page = render(&sample());
        for row in &sample().rows {
            assert!(page.contains(&format!(">{}</text>", row.scheduler)));
            assert!(page.contains(&format!("({:.1} ×)", row.ratio)));
        }
        assert_eq!(page.matches("class=\"error\"").count(), 4);
        assert!(page.contains("is a model"));
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("NaN"));
    }

    #[test]
    fn the_axis_ends_at_a_round_tick_beyond_the_longest_bar() {
        let scale = Scale::up_to(41.0);
        assert_eq!((scale.step_s, scale.end_s), (10.0, 50.0));
        assert!(Scale::up_to(0.0).x(0.1) <= WIDTH - RIGHT);
    }
}
