//! The rows as a page: a table, and a bar for what counts.

use std::fmt::Write as _;

use serde_json::Value;

use super::rows::cell;

/// Renders the page; the lengths of the bars are those of `bars`.
pub(super) fn page(title: &str, report: &Value, columns: &[&str], bars: &str) -> String {
    let empty = Vec::new();
    let rows = report["rows"].as_array().unwrap_or(&empty);
    let length = |row: &Value| row[bars].as_f64().unwrap_or(0.0);
    let longest = rows.iter().map(length).fold(f64::MIN_POSITIVE, f64::max);
    let mut table = String::from("<tr>");
    for column in columns {
        let _infallible = write!(table, "<th>{}</th>", escape(column));
    }
    let _infallible = writeln!(table, "<th>{}</th></tr>", escape(bars));
    for row in rows {
        table.push_str("<tr>");
        for &column in columns {
            let _infallible = write!(table, "<td>{}</td>", escape(&cell(&row[column])));
        }
        let part = length(row) / longest * 100.0;
        let _infallible =
            writeln!(table, "<td class=\"bar\"><div style=\"width:{part:.1}%\"></div></td></tr>");
    }
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>{title}</title>\n<style>\n\
         body {{ font: 14px sans-serif; margin: 2em }}\n\
         table {{ border-collapse: collapse }}\n\
         td, th {{ padding: 3px 8px; text-align: right; border-bottom: 1px solid #ccc }}\n\
         .bar {{ width: 16em }}\n.bar div {{ background: #36c; height: 1em }}\n\
         </style>\n</head>\n<body>\n<h1>{title}</h1>\n<table>\n{table}</table>\n</body>\n</html>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
