//! Where a sector is, and how long it takes to get there.
//!
//! Picture the disk as one long tape that is wound around the platters: [`Geometry::along`] is
//! the point of the tape, in nanoseconds of reading, at which a sector begins. A switch to the
//! next head or cylinder is a piece of blank tape exactly as long as the switch takes (that is
//! what skew is for), so streaming is a difference of two points, and the angle of a sector is its
//! point modulo one revolution.

use crate::ModelError;
use crate::disk::DiskParams;

/// Zones of a disk whose inner tracks hold less than its outer ones.
const ZONES: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Zone {
    first_sector: u64,
    first_track: u64,
    sectors_per_track: u64,
}

/// The mechanics of a disk; all times in nanoseconds.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub sectors: u64,
    /// One revolution.
    pub revolution: u64,
    heads: u64,
    cylinders: u64,
    head_switch: u64,
    /// The seek curve: `min + root * sqrt(d) + linear * d`, with d the distance behind the first
    /// cylinder as a part of the full stroke.
    seek_min: u64,
    seek_root: u64,
    seek_linear: u64,
    zones: Vec<Zone>,
}

impl Geometry {
    pub(crate) fn new(model: &'static str, params: &DiskParams) -> Result<Self, ModelError> {
        let (seek_root, seek_linear) = seek_curve(model, params)?;
        let revolution = 60_000_000_000 / params.rpm;
        let sectors = params.capacity_mb * 1_000_000 / 512;
        let (seek_min, head_switch) = (params.seek_min_us * 1_000, params.head_switch_us * 1_000);
        // What passes under the heads in one cylinder, switches included, at the sustained rate.
        let cylinder_time = params.heads * revolution + (params.heads - 1) * head_switch + seek_min;
        let cylinder_bytes = u128::from(params.rate_kbps) * u128::from(cylinder_time) / 1_000_000;
        let outer = u64::try_from(cylinder_bytes / (512 * u128::from(params.heads)))
            .expect("at most 10 GB/s for less than ten seconds");
        let zone_count = if params.inner_percent == 100 { 1 } else { ZONES };
        let per_track = |zone: u64| {
            let lost = outer * (100 - params.inner_percent) * zone / (100 * (ZONES - 1));
            (outer - lost).max(1)
        };
        let all: u64 = (0..zone_count).map(|zone| per_track(zone) * params.heads).sum();
        let zone_cylinders = sectors.div_ceil(all);
        let mut zones = Vec::new();
        let (mut first_sector, mut first_track) = (0, 0);
        for zone in 0..zone_count {
            let sectors_per_track = per_track(zone);
            zones.push(Zone { first_sector, first_track, sectors_per_track });
            first_track += zone_cylinders * params.heads;
            first_sector += zone_cylinders * params.heads * sectors_per_track;
        }
        let cylinders = (zone_cylinders * zone_count).max(2);
        let heads = params.heads;
        Ok(Self {
            sectors,
            revolution,
            heads,
            cylinders,
            head_switch,
            seek_min,
            seek_root,
            seek_linear,
            zones,
        })
    }

    fn zone_of(&self, sector: u64) -> &Zone {
        let behind = self.zones.partition_point(|zone| zone.first_sector <= sector);
        &self.zones[behind - 1]
    }

    /// Returns the cylinder of a sector of the disk.
    pub(crate) fn cylinder(&self, sector: u64) -> u64 {
        let zone = self.zone_of(sector);
        (zone.first_track + (sector - zone.first_sector) / zone.sectors_per_track) / self.heads
    }

    /// Returns the point of the tape at which a sector begins.
    pub(crate) fn along(&self, sector: u64) -> u64 {
        let zone = self.zone_of(sector);
        let inside = sector - zone.first_sector;
        let track = zone.first_track + inside / zone.sectors_per_track;
        let index = inside % zone.sectors_per_track;
        let cylinder = track / self.heads;
        track * self.revolution
            + cylinder * self.seek_min
            + (track - cylinder) * self.head_switch
            + index * self.revolution / zone.sectors_per_track
    }

    /// Returns the point of the tape at which a sector ends.
    pub(crate) fn along_end(&self, sector: u64) -> u64 {
        self.along(sector) + self.revolution / self.zone_of(sector).sectors_per_track
    }

    /// Returns the time that the arm needs from one cylinder to another.
    pub(crate) fn seek(&self, from: u64, to: u64) -> u64 {
        let Some(steps) = from.abs_diff(to).checked_sub(1) else { return 0 };
        let full = self.cylinders - 1;
        let root = u128::from(self.seek_root).pow(2) * u128::from(steps) / u128::from(full);
        let linear = u128::from(self.seek_linear) * u128::from(steps) / u128::from(full);
        let beyond = u64::try_from(root.isqrt() + linear).expect("at most a full stroke");
        self.seek_min + beyond
    }

    /// Returns the instant at which `sector` begins to pass under a head that stands on cylinder
    /// `from` at the instant `at`.
    pub(crate) fn arrive(&self, at: u64, from: u64, sector: u64) -> u64 {
        let there = at + self.seek(from, self.cylinder(sector));
        let angle = self.along(sector) % self.revolution;
        there + (angle + self.revolution - there % self.revolution) % self.revolution
    }
}

/// Solves the seek curve for its three figures.
///
/// Over random pairs of positions the mean of `sqrt(d)` is 8/15 and that of `d` is 1/3, so
/// `8/15 root + 1/3 linear = avg - min`; and `root + linear = max - min`.
fn seek_curve(model: &'static str, params: &DiskParams) -> Result<(u64, u64), ModelError> {
    let contradiction = ModelError::Contradiction {
        model,
        keys: &["seek_min_us", "seek_avg_us", "seek_max_us"],
        rule: "the average less the minimum must lie between 1/3 and 8/15 of the maximum less the \
               minimum",
    };
    let [min, avg, max] =
        [params.seek_min_us, params.seek_avg_us, params.seek_max_us].map(|us| us * 1_000);
    let solve = || {
        let span = max.checked_sub(min)?;
        let root = (avg.checked_sub(min)? * 15).checked_sub(span * 5)? / 3;
        Some((root, span.checked_sub(root)?))
    };
    solve().ok_or(contradiction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::PRESETS;

    fn hdd() -> Geometry {
        Geometry::new("hdd", &PRESETS[0].params).unwrap()
    }

    #[test]
    fn the_seek_curve_meets_the_figures_of_the_data_sheet() {
        let hdd = hdd();
        assert_eq!(hdd.seek(7, 7), 0);
        assert_eq!(hdd.seek(7, 8), 3_000_000);
        let full = hdd.seek(0, hdd.cylinders - 1);
        assert!(full.abs_diff(26_000_000) < 26_000, "{full}");
        // The mean over all pairs of 400 evenly spread positions; their coarseness costs 1/400.
        let positions: Vec<u64> = (0..400).map(|i| i * hdd.cylinders / 400).collect();
        let sum: u64 = positions
            .iter()
            .flat_map(|&a| positions.iter().map(move |&b| (a, b)))
            .map(|(a, b)| hdd.seek(a, b))
            .sum();
        let mean = sum / 160_000;
        assert!(mean.abs_diff(15_000_000) < 150_000, "{mean}");
    }

    #[test]
    fn the_tape_has_no_gap_but_the_switches() {
        let params = DiskParams { inner_percent: 50, ..PRESETS[0].params };
        for disk in [hdd(), Geometry::new("hdd", &params).unwrap()] {
            let mut blanks = [0; 3];
            for sector in (0..100_000).chain(disk.sectors - 10_000..disk.sectors - 1) {
                let gap = disk.along(sector + 1) - disk.along_end(sector);
                match gap {
                    0..=1 => blanks[0] += 1,
                    1_000_000..1_001_000 => blanks[1] += 1,
                    3_000_000..3_001_000 => blanks[2] += 1,
                    _ => panic!("a gap of {gap} ns behind sector {sector}"),
                }
            }
            assert!(blanks[1] > 2 * blanks[2] && blanks[2] > 50, "{blanks:?}");
            assert!(disk.cylinder(disk.sectors - 1) < disk.cylinders);
        }
    }

    #[test]
    fn a_head_that_stands_right_before_a_sector_does_not_wait_for_it() {
        let hdd = hdd();
        let at = hdd.revolution * 1_000_000 + hdd.along(5_000_000) % hdd.revolution;
        let cylinder = hdd.cylinder(5_000_000);
        assert_eq!(hdd.arrive(at, cylinder, 5_000_000), at);
        assert_eq!(hdd.arrive(at + 1, cylinder, 5_000_000), at + hdd.revolution);
    }
}
