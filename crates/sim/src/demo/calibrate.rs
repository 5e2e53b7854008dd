//! How fast the CPUs of a guest are, found from how long a start on the idle disk really took.
//!
//! The disk's part of such a start is modelled, so what is left is the CPU's. With it the simulator
//! predicts the starts under load, of which it was told nothing.

use evenkeel_sched::{Kind, Nanos};

use super::{Application, BEST, CpuModel, Scene, set_up, start};
use crate::ModelSpec;
use crate::world::Random;

/// Thousandths of the emulated CPU's times between which the CPU is looked for.
const SPEEDS: (u64, u64) = (0, 16_000);
/// Starts of which the mean is taken, and the chances that they have.
const STARTS: u64 = 20;
const SEED: u64 = 0x1d1e;

/// Returns the CPUs with which a start on the idle device takes `idle` on average; the fastest, if
/// the device alone takes up to a tenth longer than that.
///
/// # Errors
///
/// Returns the shortest and the longest mean that any CPU gives if `idle` is not between them.
///
/// # Panics
///
/// Panics if the device's parameters are out of range, which parsing them rules out.
pub fn calibrated(device: &ModelSpec, idle: Nanos) -> Result<CpuModel, (Nanos, Nanos)> {
    let (mut fast, mut slow) = SPEEDS;
    let mean = |permille| idle_mean(device, &CpuModel::EMULATED.scaled(permille));
    let range = (mean(fast), mean(slow));
    if idle < Nanos(range.0.0 / 10 * 9) || idle > range.1 {
        return Err(range);
    }
    while slow - fast > 1 {
        let middle = fast.midpoint(slow);
        if mean(middle) < idle {
            fast = middle;
        } else {
            slow = middle;
        }
    }
    Ok(CpuModel::EMULATED.scaled(slow))
}

/// Returns the mean of starts on the idle device.
fn idle_mean(device: &ModelSpec, cpu: &CpuModel) -> Nanos {
    // Nobody else is there to be scheduled.
    let scene = Scene { scheduler: Kind::Noop, device: device.clone(), starts: 1, cpu: *cpu };
    let mut random = Random::new(SEED);
    let (mut world, [guest, _]) = set_up(&scene, &mut random);
    let application = Application::new(cpu);
    let total: u64 = (0..STARTS)
        .map(|_| start(&mut world, guest, &application, BEST, &mut random))
        .map(|took| took.unwrap_or(super::LIMIT).0)
        .sum();
    Nanos(total / STARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_found_that_gives_the_start_that_was_measured() {
        let device: ModelSpec = "hdd".parse().unwrap();
        for millis in [620, 700, 870, 3_000] {
            let idle = Nanos::from_millis(millis);
            let found = idle_mean(&device, &calibrated(&device, idle).unwrap());
            assert!(found.0.abs_diff(idle.0) < idle.0 / 100, "{millis} ms: {} ns", found.0);
        }
    }

    #[test]
    fn what_no_cpu_explains_is_refused_with_what_would_be_possible() {
        let device: ModelSpec = "hdd".parse().unwrap();
        let (least, most) = calibrated(&device, Nanos::from_millis(5)).unwrap_err();
        assert!(least > Nanos::from_millis(100) && most > Nanos::from_secs(5));
        assert_eq!(calibrated(&device, most + Nanos(1)), Err((least, most)));
        let nearly = Nanos(least.0 / 20 * 19);
        assert_eq!(calibrated(&device, nearly), Ok(CpuModel::EMULATED.scaled(1)));
    }
}
