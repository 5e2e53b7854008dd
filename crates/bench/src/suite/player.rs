//! Soft real time: somebody plays a film in a guest while others read there and beside it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};

use super::guest::GuestScene;
use super::rows::{Names, mean, report, rounded, table};
use super::scene::{Scene as _, Stage, Until};
use super::{Measured, Options, Scenario, Where, html, names, progress};
use crate::stats::{Summary, percentile};

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Film {
    /// What it needs, in megabytes (10^6 bytes) per second.
    pub mb_s: f64,
    /// How long one piece may take to come, and lasts, in milliseconds.
    pub deadline_ms: u32,
    /// How long it lasts.
    pub seconds: u32,
}

impl Film {
    /// Returns how many pieces it has.
    pub(super) fn pieces(self) -> u64 {
        u64::from(self.seconds) * 1000 / u64::from(self.deadline_ms)
    }

    pub(super) fn period(self) -> Duration {
        Duration::from_millis(self.deadline_ms.into())
    }

    /// Returns the size of a piece, in bytes: whole pages.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some megabytes")]
    pub(super) fn piece_bytes(self) -> u64 {
        let bytes = self.mb_s * 1e6 * self.period().as_secs_f64();
        (bytes.max(1.0) as u64).next_multiple_of(4096)
    }

    fn is_late(self, wait_ms: f64) -> bool {
        wait_ms > f64::from(self.deadline_ms)
    }
}

/// A film in one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct PlayerRow {
    scenario: Scenario,
    film: Film,
    /// How long each piece was waited for in each run, without the first, which starts the clock.
    runs: Vec<Measured>,
    /// What all readers got meanwhile, by run.
    readers_mb_s: Vec<f64>,
}

/// What `evenkeel bench player` has measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Player {
    /// One row per scenario.
    pub rows: Vec<PlayerRow>,
}

/// Plays a film in each scenario, with cold caches. `say` is told one line for each film.
///
/// # Errors
///
/// It is to be played on the host, the lab is not set up, or a guest or the daemon fails. A late
/// piece is no error.
pub fn player(options: &Options, film: Film, say: &mut dyn FnMut(&str)) -> Result<Player> {
    ensure!(options.repeats > 0 && film.pieces() > 1, "nothing to measure");
    ensure!(
        options.place == Where::Guest,
        "--where {}: films are played in guests; leave it out",
        options.place
    );
    let (mut scene, scenarios) = options.open_guest(Stage::Film, say)?;
    let mut rows = Vec::new();
    for scenario in &scenarios {
        scene.switch(scenario)?;
        let mut tell = progress(say, rows.len() + 1, scenarios.len(), scenario);
        let mut row = PlayerRow::new(scenario, film);
        for repeat in 1..=options.repeats {
            let loads = scene.start_loads(Until::Settled)?;
            let samples = play(&scene, film)?;
            let (guest, beside) = loads.stop()?;
            scene.rest()?;
            row.add(Measured { samples, ..Measured::default() }, guest + beside);
            let (late, pieces) = row.late();
            tell(&format!("repeat {repeat}: {late} of {pieces} pieces late so far"));
        }
        rows.push(row);
    }
    Box::new(scene).close()?;
    Ok(Player { rows })
}

/// Returns how long each piece but the first was waited for, in milliseconds.
fn play(scene: &GuestScene, film: Film) -> Result<Vec<f64>> {
    let text = scene.play(film)?;
    waits(&text).with_context(|| format!("the player said {text:?}"))
}

/// Reads nanoseconds between spaces; returns milliseconds without the first.
fn waits(text: &str) -> Option<Vec<f64>> {
    let all = text.split_whitespace().map(|word| word.parse::<f64>().ok());
    let all = all.collect::<Option<Vec<f64>>>()?;
    all.get(1..)
        .filter(|waits| !waits.is_empty())
        .map(|waits| waits.iter().map(|nanos| nanos / 1e6).collect())
}

impl PlayerRow {
    fn new(scenario: &Scenario, film: Film) -> Self {
        let (runs, readers_mb_s) = (Vec::new(), Vec::new());
        Self { scenario: scenario.clone(), film, runs, readers_mb_s }
    }

    fn add(&mut self, run: Measured, readers_mb_s: f64) {
        self.runs.push(run);
        self.readers_mb_s.push(readers_mb_s);
    }

    /// Returns how many pieces came late in all runs, and of how many.
    fn late(&self) -> (usize, usize) {
        let waits = || self.waits();
        (waits().filter(|&wait| self.film.is_late(wait)).count(), waits().count())
    }

    fn waits(&self) -> impl Iterator<Item = f64> {
        self.runs.iter().flat_map(|run| &run.samples).copied()
    }
}

#[derive(Debug, Serialize)]
struct Fields<'a> {
    #[serde(flatten)]
    names: Names<'a>,
    film_mb_s: f64,
    deadline_ms: u32,
    pieces: usize,
    late: usize,
    wait_mean_ms: Option<f64>,
    wait_p99_ms: Option<f64>,
    wait_max_ms: Option<f64>,
    readers_mb_s: Option<f64>,
}

impl Serialize for PlayerRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let waits: Vec<f64> = self.waits().collect();
        let summary = Summary::of(&waits);
        let (late, pieces) = self.late();
        Fields {
            names: Names::of(&self.scenario),
            film_mb_s: self.film.mb_s,
            deadline_ms: self.film.deadline_ms,
            pieces,
            late,
            wait_mean_ms: summary.map(|summary| rounded(summary.mean)),
            wait_p99_ms: percentile(&waits, 0.99).map(rounded),
            wait_max_ms: summary.map(|summary| rounded(summary.max)),
            readers_mb_s: mean(&self.readers_mb_s).map(rounded),
        }
        .serialize(serializer)
    }
}

report!(
    Player,
    "player",
    "ms",
    ("A film in a guest", &COLUMNS[..], "wait_max_ms"),
    |_row: &PlayerRow| "player".to_owned()
);

const COLUMNS: [&str; 12] = [
    "device",
    "guest_load",
    "host_load",
    "guest_scheduler",
    "scheduler",
    "coordination",
    "pieces",
    "late",
    "wait_mean_ms",
    "wait_p99_ms",
    "wait_max_ms",
    "readers_mb_s",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Coordination, GuestLoad};

    const FILM: Film = Film { mb_s: 4.0, deadline_ms: 250, seconds: 60 };

    #[test]
    fn a_film_of_a_minute_has_240_pieces_of_a_megabyte() {
        assert_eq!((FILM.pieces(), FILM.piece_bytes()), (240, 1_003_520));
    }

    #[test]
    fn pieces_that_take_longer_than_a_period_are_late_and_the_first_does_not_count() {
        let scenario = Scenario {
            place: Where::Guest,
            device: "hdd".to_owned(),
            guest_load: GuestLoad::readers(5, true),
            host_load: GuestLoad::NONE,
            guest_scheduler: "none".to_owned(),
            scheduler: "bfq".to_owned(),
            coordination: Coordination::All,
        };
        let mut row = PlayerRow::new(&scenario, FILM);
        let samples = waits("900000000 10000000 250000000 251000000\n").unwrap();
        assert_eq!(samples, [10.0, 250.0, 251.0]);
        row.add(Measured { samples, ..Measured::default() }, 2.0);
        let report = Player { rows: vec![row] };
        let json = serde_json::json!(report);
        assert_eq!((&json["rows"][0]["late"], &json["rows"][0]["pieces"]), (&1.into(), &3.into()));
        assert_eq!(json["rows"][0]["wait_max_ms"], 251.0);
        assert!(report.table().contains("5r-rand") && report.html().contains("<td>5r-rand</td>"));
        for wrong in ["", "12", "12 x"] {
            assert_eq!(waits(wrong), None, "{wrong}");
        }
    }
}
