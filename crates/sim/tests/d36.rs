//! The shape of D3.6, on a few of its setups.

use evenkeel_sched::Kind;
use evenkeel_sim::d36::{
    Coordination, Device, Effort, GuestLoad, HostLoad, Metric, Setup, figures, measure,
};
use evenkeel_sim::world::App;

fn setup(guest_load: GuestLoad, host_load: u64, guest: Kind, coordination: Coordination) -> Setup {
    Setup {
        device: Device::Hdd,
        guest_load,
        host_load: HostLoad(host_load),
        guest,
        host: Kind::Bfq,
        coordination,
        guarded: true,
        app: App::Xterm,
    }
}

/// Returns the mean start-up time of two runs as a multiple of that without load; none if one of
/// them failed.
fn ratio(setup: Setup) -> Option<f64> {
    let mean = |setup: Setup| {
        let mut samples = Vec::new();
        for run in 0..2 {
            let outcome = measure(&setup, Metric::StartUp, Effort::QUICK, setup.seed(1, run));
            if outcome.failed {
                return None;
            }
            samples.extend(outcome.samples);
        }
        Some(samples.iter().sum::<f64>() / samples.len() as f64)
    };
    let ratio = mean(setup)? / mean(setup.idle()).expect("an idle device fails nobody");
    println!("{setup:?}: {ratio:.2}");
    Some(ratio)
}

#[test]
fn without_host_load_bfq_starts_applications_almost_as_if_idle_and_cfq_does_not() {
    let seq = |guest| setup(GuestLoad::readers(1, false), 0, guest, Coordination::None);
    assert!(ratio(seq(Kind::Bfq)).is_some_and(|ratio| ratio < 1.4));
    assert!(ratio(seq(Kind::Cfq)).is_none_or(|ratio| ratio > 3.0));
    let many = setup(GuestLoad::readers(5, false), 0, Kind::Cfq, Coordination::None);
    assert!(ratio(many).is_none_or(|ratio| ratio > 8.0));
}

#[test]
fn with_host_load_the_link_is_missing_and_help_closes_it() {
    let load = GuestLoad::readers(5, false);
    let one = ratio(setup(load, 1, Kind::Bfq, Coordination::None));
    assert!(one.is_some_and(|ratio| (2.5..10.0).contains(&ratio)), "{one:?}");
    let five = ratio(setup(load, 5, Kind::Bfq, Coordination::None));
    assert!(five.is_none_or(|ratio| ratio > 4.0), "{five:?}");
    let helped = ratio(setup(load, 5, Kind::Bfq, Coordination::Help));
    assert!(helped.is_some_and(|ratio| ratio < 2.2), "{helped:?}");
    for host_load in [0, 1, 5] {
        let marked = ratio(setup(load, host_load, Kind::Bfq, Coordination::Agent));
        assert!(marked.is_some_and(|ratio| ratio < 1.7), "{marked:?}");
    }
    let beside_random = setup(GuestLoad::readers(5, true), 5, Kind::Bfq, Coordination::Agent);
    assert!(ratio(beside_random).is_some_and(|ratio| ratio < 1.7));
}

#[test]
fn a_setup_gives_the_same_samples_whatever_else_is_run() {
    let setup = figures()[6].setups[3];
    let once = measure(&setup, Metric::StartUp, Effort::QUICK, setup.seed(1, 0));
    let again = measure(&setup, Metric::StartUp, Effort::QUICK, setup.seed(1, 0));
    assert_eq!(once, again);
    let other = measure(&setup, Metric::StartUp, Effort::QUICK, setup.seed(1, 1));
    assert_ne!(once.samples, other.samples);
}
