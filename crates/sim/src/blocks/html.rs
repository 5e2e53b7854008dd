//! The figures drawn, on one page without anything from elsewhere.

use std::fmt::Write as _;

use super::{BlocksReport, BlocksRow, Claim};
use crate::chart::{Chart, Line};

/// What a chart shows of the rows.
struct Figure {
    title: &'static str,
    x_label: &'static str,
    y_label: &'static str,
    wanted: fn(&BlocksRow) -> bool,
    name: fn(&BlocksRow) -> String,
    x: fn(&BlocksRow) -> f64,
    y: fn(&BlocksRow) -> f64,
    note: &'static str,
}

const FIGURES: [Figure; 8] = [
    Figure {
        title: "Figure 5: throughput by block size",
        x_label: "descriptors in a block",
        y_label: "kIOPS",
        wanted: |row| row.figure == "5",
        name: |row| format!("{}, {}, {} DMA", row.op, row.response, row.dma_engines),
        x: |row| f64::from(row.block),
        y: |row| row.kiops,
        note: "The driver always has more than a block. Stated: rising; reads above writes; one \
               answer for the block above one for each command; a second engine between them.",
    },
    Figure {
        title: "Figure 6: static blocks, reads",
        x_label: "threads",
        y_label: "kIOPS",
        wanted: |row| row.figure == "6" && row.op == "read",
        name: |row| format!("block of {}", row.block),
        x: |row| f64::from(row.threads),
        y: |row| row.kiops,
        note: "Stated: nothing below as many threads as the block; the maximum only with more; \
               flat from there.",
    },
    Figure {
        title: "Figure 6: static blocks, writes",
        x_label: "threads",
        y_label: "kIOPS",
        wanted: |row| row.figure == "6" && row.op == "write",
        name: |row| format!("block of {}", row.block),
        x: |row| f64::from(row.threads),
        y: |row| row.kiops,
        note: "As for reads.",
    },
    Figure {
        title: "Figure 7: dynamic blocks",
        x_label: "threads",
        y_label: "kIOPS",
        wanted: |row| row.figure == "7",
        name: |row| format!("{}, answers {}", row.op, row.response),
        x: |row| f64::from(row.threads),
        y: |row| row.kiops,
        note: "Stated: the maximum for every load.",
    },
    Figure {
        title: "Figure 7: latency against throughput",
        x_label: "kIOPS",
        y_label: "mean latency in us",
        wanted: |row| row.figure == "7",
        name: |row| format!("{}, answers {}", row.op, row.response),
        x: |row| row.kiops,
        y: |row| row.latency_mean_us,
        note: "Stated: latency rises steeply once the load exceeds the device's capability.",
    },
    Figure {
        title: "Figure 8: throughput by size of requests, reads",
        x_label: "KiB in a request",
        y_label: "thousand pages per second",
        wanted: |row| row.figure == "8" && row.op == "read",
        name: threads,
        x: kib,
        y: |row| row.kiops,
        note: "Stated: one thread gains throughput with large requests. Below 4 KiB the rest of \
               the page is padding.",
    },
    Figure {
        title: "Figure 8: latency by size of requests, reads",
        x_label: "KiB in a request",
        y_label: "mean latency in us",
        wanted: |row| row.figure == "8" && row.op == "read",
        name: threads,
        x: kib,
        y: |row| row.latency_mean_us,
        note: "Stated: and latency increases too.",
    },
    Figure {
        title: "The announced enhancement: prefetching the next block's first commands",
        x_label: "threads",
        y_label: "kIOPS",
        wanted: |row| row.figure == "prefetch",
        name: |row| {
            let with = if row.prefetch > 0 { "with" } else { "without" };
            format!("{}, Gen {}, {with}", row.op, row.pcie_generation)
        },
        x: |row| f64::from(row.threads),
        y: |row| row.kiops,
        note: "Stated: it improves the interface, especially with Gen 3. Dynamic blocks, two \
               engines.",
    },
];

fn threads(row: &BlocksRow) -> String {
    format!("{} threads", row.threads)
}

#[expect(clippy::cast_precision_loss, reason = "at most 128 KiB")]
fn kib(row: &BlocksRow) -> f64 {
    row.request_bytes as f64 / 1_024.0
}

/// Returns the whole page.
pub(super) fn page(report: &BlocksReport) -> String {
    let mut text = HEAD.to_owned();
    for figure in &FIGURES {
        let svg = chart(figure, &report.rows).svg();
        let Figure { title, note, .. } = figure;
        let _infallible = write!(text, "<h2>{title}</h2>\n{svg}<p>{note}</p>\n");
    }
    text += "<h2>Statements of the paper</h2>\n<table>\n\
             <tr><th>where</th><th>statement</th><th>simulated</th><th></th></tr>\n";
    for Claim { source, statement, simulated, holds } in &report.claims {
        let verdict = if *holds { "holds" } else { "differs" };
        let _infallible = writeln!(
            text,
            "<tr><td>{source}</td><td>{statement}</td><td>{simulated}</td><td>{verdict}</td></tr>"
        );
    }
    text + "</table>\n</body>\n</html>\n"
}

fn chart(figure: &Figure, rows: &[BlocksRow]) -> Chart {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows.iter().filter(|row| (figure.wanted)(row)) {
        let name = (figure.name)(row);
        let point = ((figure.x)(row), (figure.y)(row));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    Chart { x_label: figure.x_label, y_label: figure.y_label, lines }
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<title>Adaptive blocks</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; }
td, th { border-bottom: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top; }
</style>
</head>
<body>
<h1>Adaptive blocks</h1>
<p>A model of the device of Bougioukou et al., \"Prototyping and Performance Evaluation of a
Dynamically Adaptable Block Device Driver for PCIe-based SSDs\", 2014, driven by the block policy
of the engine. The paper's text states relations, not figures; they stand below each chart.
<code>docs/devices.md</code> lists the parameters, <code>docs/results/blocks.md</code> discusses
the results.</p>
";
