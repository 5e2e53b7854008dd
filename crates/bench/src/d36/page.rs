//! The report as a page, laid out as the document: one picture for each figure.

use evenkeel_sim::d36::figures;
use evenkeel_sim::world::App;

use super::chart;
use super::rows::{Report, Row};

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:960px;margin:2em auto;padding:0 1em}\
    table{border-collapse:collapse;font-size:14px}td,th{padding:2px 8px;text-align:left;\
    border-bottom:1px solid #ddd}.no{color:#d55e00;font-weight:bold}figure{margin:2em 0}\
    figcaption{font-weight:bold}.key span{display:inline-block;width:1em;height:1em;margin:0 .3em \
    0 1em;vertical-align:-2px}";

const KEY: &str = "<p class=key>Guest's scheduler: <span style='background:#56b4e9'></span>BFQ\
    <span style='background:#e69f00'></span>CFQ<span style='background:#0072b2'></span>BFQ, and \
    an agent that asks the host for help. <span style='border:2px solid #d55e00'></span>what the document states in \
    words. X: not started within 60 s. Line: without any load.</p>";

impl Report {
    /// Returns the report as a page that needs nothing else.
    ///
    /// # Errors
    ///
    /// * A picture could not be drawn.
    pub fn html(&self) -> anyhow::Result<String> {
        let mut page = format!(
            "<!doctype html><html lang=en><meta charset=utf-8><title>D3.6 in virtual time</title>\
             <style>{STYLE}</style><h1>D3.6 in virtual time</h1><p>Every figure with measurements \
             of the deliverable D3.6 of the vIrtical project, repeated with modelled devices and \
             guests around Evenkeel's schedulers. {} runs of each setup, seed {}.</p>{KEY}",
            self.runs, self.seed
        );
        let pictures =
            figures().into_iter().flat_map(|figure| App::ALL.map(|app| (figure.clone(), app)));
        for (figure, app) in pictures {
            let shown = |row: &&Row| row.figure == figure.number && row.app == app.name();
            let rows: Vec<&Row> = self.rows.iter().filter(shown).collect();
            if rows.is_empty() {
                continue;
            }
            page.push_str(&format!(
                "<figure><figcaption>Figure {}. {}, {}</figcaption>{}</figure>{}",
                figure.number,
                figure.title,
                app.name(),
                chart::draw(&rows)?,
                table(&rows)
            ));
        }
        page.push_str("</html>\n");
        Ok(page)
    }
}

fn table(rows: &[&Row]) -> String {
    let mut text = "<details><summary>Figures</summary><table><tr><th>guest load<th>host load\
                    <th>guest<th>helped<th>measured<th>95 %<th>times idle<th>stated<th>agrees"
        .to_owned();
    for row in rows {
        let value = row.startup_mean_s.map(|value| format!("{value:.2} s"));
        let value = value.or_else(|| row.throughput_mb_s.map(|value| format!("{value:.2} MB/s")));
        let (class, agrees) = match row.agrees {
            Some(true) => ("", "yes"),
            Some(false) => (" class=no", "no"),
            None => ("", ""),
        };
        text.push_str(&format!(
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td{class}>{agrees}",
            row.guest_load,
            row.host_load,
            row.guest_scheduler,
            if row.coordination { "yes" } else { "no" },
            if row.failed { "X".to_owned() } else { value.unwrap_or_default() },
            row.over_runs.map_or_else(String::new, |over| format!("± {:.2}", over.ci95)),
            row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            row.stated.as_deref().unwrap_or_default(),
        ));
    }
    text + "</table></details>"
}
