//! The report as a table for people, which is Markdown as well, and as CSV.

use super::rows::{Report, Row};

const COLUMNS: [&str; 13] = [
    "figure",
    "device",
    "guest load",
    "host load",
    "guest",
    "host",
    "app",
    "told by",
    "start s",
    "x idle",
    "MB/s",
    "stated",
    "agrees",
];

impl Report {
    /// Returns the report as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} runs of each setup, seed {}; start-up times are means of means\n\n",
            self.runs, self.seed
        );
        text.push_str(&table(&self.rows));
        if !self.extra_rows.is_empty() {
            text.push_str(
                "\nNot in the document: other elevators, and Evenkeel with other help\n\n",
            );
            text.push_str(&table(&self.extra_rows));
        }
        let judged = self.rows.iter().filter_map(|row| row.agrees);
        let (agree, all) =
            judged.fold((0, 0), |(agree, all), agrees| (agree + u32::from(agrees), all + 1));
        text.push_str(&format!("\n{agree} of {all} statements about single bars agree\n"));
        text
    }

    /// Returns all rows as comma-separated values.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = "figure,device,guest_load,host_load,guest_scheduler,host_scheduler,\
                        coordination,host_path,guarded,startup_mean_s,idle_mean_s,ratio,failed,\
                        failed_runs,throughput_mb_s,ci95,deviation,min,max,stated,agrees,told_by,app\n"
            .to_owned();
        for row in self.rows.iter().chain(&self.extra_rows) {
            let over = row.over_runs;
            let figures = [
                number(row.startup_mean_s),
                number(row.idle_mean_s),
                number(row.ratio),
                row.failed.to_string(),
                row.failed_runs.to_string(),
                number(row.throughput_mb_s),
                number(over.map(|over| over.ci95)),
                number(over.map(|over| over.deviation)),
                number(over.map(|over| over.min)),
                number(over.map(|over| over.max)),
                row.stated.as_ref().map_or_else(String::new, |words| format!("\"{words}\"")),
                row.agrees.map_or_else(String::new, |agrees| agrees.to_string()),
                row.told_by.unwrap_or_default().to_owned(),
                row.app.to_owned(),
            ];
            let Row { figure, device, guest_load, host_load, .. } = row;
            let (guest, host) = (&row.guest_scheduler, &row.host_scheduler);
            text.push_str(&format!(
                "{figure},{device},{guest_load},{host_load},{guest},{host},{},{},{},{}\n",
                row.coordination,
                row.host_path,
                row.guarded,
                figures.join(",")
            ));
        }
        text
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.4}"))
}

/// Lays out rows so that the table is read in a terminal and by Markdown.
fn table(rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = vec![COLUMNS.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(cells));
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} |"));
        text.push('|');
        text.extend(cells);
        text.push('\n');
        if index == 0 {
            text.push('|');
            text.extend(widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))));
            text.push('\n');
        }
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let places = |value: Option<f64>, places: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
    };
    let start = if row.failed { "X".to_owned() } else { places(row.startup_mean_s, 2) };
    let host = match row.host_path {
        "evenkeel" => format!("evenkeel {}", row.host_scheduler),
        "kernel-threads" => format!("threads {}", row.host_scheduler),
        _ => row.host_scheduler.clone(),
    };
    vec![
        row.figure.to_string(),
        row.device.clone(),
        row.guest_load.clone(),
        row.host_load.clone(),
        row.guest_scheduler.clone(),
        host,
        row.app.to_owned(),
        row.told_by.unwrap_or("nobody").to_owned(),
        start,
        places(row.ratio, 2),
        places(row.throughput_mb_s, 2),
        row.stated.clone().unwrap_or_default(),
        row.agrees.map_or("", |agrees| if agrees { "yes" } else { "NO" }).to_owned(),
    ]
}
