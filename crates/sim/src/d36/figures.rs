//! Which figure shows which setups.

use evenkeel_sched::Kind;

use super::setup::{Coordination, Device, GuestLoad, HostLoad, Setup};
use crate::world::App;

/// What is measured.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Metric {
    /// How long the application takes to start.
    StartUp,
    /// How much the guest's readers get.
    Throughput,
}

/// A figure of the document.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its number, 2 to 17.
    pub number: u32,
    /// What it shows.
    pub title: &'static str,
    /// What is measured.
    pub metric: Metric,
    /// The setups, guest loads outermost, then host loads, then schedulers.
    pub setups: Vec<Setup>,
}

const SEQ_1: GuestLoad = GuestLoad::readers(1, false);
const SEQ_5: GuestLoad = GuestLoad::readers(5, false);
const RAND_1: GuestLoad = GuestLoad::readers(1, true);
const RAND_5: GuestLoad = GuestLoad::readers(5, true);
/// The loads of most figures, in their order.
const READERS: [GuestLoad; 4] = [SEQ_1, SEQ_5, RAND_1, RAND_5];
const HOST: [HostLoad; 3] = [HostLoad(0), HostLoad(1), HostLoad(5)];

const TITLES: [&str; 16] = [
    "Throughput on the hard disk, first checks",
    "Start-up on the hard disk, BFQ without regard for jumping clocks",
    "Start-up on the hard disk, BFQ with regard for jumping clocks",
    "Throughput on the hard disk",
    "Throughput on the microSDHC card",
    "Throughput on the eMMC",
    "Start-up on the hard disk, BFQ in the host",
    "Start-up on the microSDHC card, BFQ in the host",
    "Start-up on the eMMC, BFQ in the host",
    "Start-up on the eMMC with writers, BFQ in the host",
    "Start-up on the hard disk, coordinated and BFQ",
    "Start-up on the hard disk, coordinated and CFQ",
    "Start-up on the microSDHC card, coordinated and BFQ",
    "Start-up on the microSDHC card, coordinated and CFQ",
    "Start-up on the eMMC, coordinated and BFQ",
    "Start-up on the eMMC, coordinated and CFQ",
];

/// A guest's elevator, and what passes to the host.
type Side = (Kind, Coordination);

const BFQ: Side = (Kind::Bfq, Coordination::None);
const CFQ: Side = (Kind::Cfq, Coordination::None);
const HELPED: Side = (Kind::Bfq, Coordination::Agent);

fn setups(device: Device, loads: &[GuestLoad], host: &[HostLoad], sides: &[Side]) -> Vec<Setup> {
    let mut setups = Vec::new();
    for &guest_load in loads {
        for &host_load in host {
            for &(guest, coordination) in sides {
                setups.push(Setup {
                    device,
                    guest_load,
                    host_load,
                    guest,
                    host: Kind::Bfq,
                    coordination,
                    guarded: true,
                    app: App::Xterm,
                });
            }
        }
    }
    setups
}

/// Returns every figure with measurements, 2 to 17.
#[must_use]
pub fn figures() -> Vec<Figure> {
    use Device::{Emmc, Hdd, Sdhc};
    use Metric::{StartUp, Throughput};
    let alone = &HOST[..1];
    let both = &[BFQ, CFQ];
    let mut unguarded = setups(Hdd, &READERS, alone, both);
    for setup in &mut unguarded {
        setup.guarded = false;
    }
    let writers = [SEQ_1, SEQ_5, RAND_5, GuestLoad::writers(false)];
    let coordinated = |device, other| (StartUp, setups(device, &READERS, &HOST, &[HELPED, other]));
    let all = [
        (Throughput, setups(Hdd, &READERS, alone, both)),
        (StartUp, unguarded),
        (StartUp, setups(Hdd, &READERS, alone, both)),
        (Throughput, setups(Hdd, &READERS, alone, both)),
        (Throughput, setups(Sdhc, &READERS, alone, both)),
        (Throughput, setups(Emmc, &READERS, alone, both)),
        (StartUp, setups(Hdd, &READERS, &HOST, both)),
        (StartUp, setups(Sdhc, &READERS, &HOST, both)),
        (StartUp, setups(Emmc, &READERS, &HOST, both)),
        (StartUp, setups(Emmc, &writers, &HOST, both)),
        coordinated(Hdd, BFQ),
        coordinated(Hdd, CFQ),
        coordinated(Sdhc, BFQ),
        coordinated(Sdhc, CFQ),
        coordinated(Emmc, BFQ),
        coordinated(Emmc, CFQ),
    ];
    (2..)
        .zip(TITLES)
        .zip(all)
        .map(|((number, title), (metric, setups))| Figure { number, title, metric, setups })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_the_figures_2_to_17_with_all_their_bars() {
        let figures = figures();
        let numbers: Vec<u32> = figures.iter().map(|figure| figure.number).collect();
        assert_eq!(numbers, (2..=17).collect::<Vec<u32>>());
        let bars: Vec<usize> = figures.iter().map(|figure| figure.setups.len()).collect();
        assert_eq!(bars, [8, 8, 8, 8, 8, 8, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24]);
    }
}
