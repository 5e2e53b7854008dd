//! Where it is measured, and what there is not there.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};

use super::{Coordination, GuestLoad, Options};

/// Where it is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Where {
    /// In a guest of a daemon.
    Guest,
    /// On the host, without daemon and guest: the application and its load read from a loop device
    /// under one of the kernel's schedulers, which is named as that of the guest.
    Host,
}

impl Where {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Where {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::Guest, Self::Host]
            .into_iter()
            .find(|known| known.as_str() == name)
            .ok_or("no such place; there are guest and host")
    }
}

impl Options {
    /// Looks for what is asked for and not there where it is measured.
    ///
    /// # Errors
    ///
    /// The option, and what to write instead.
    pub fn check(&self) -> Result<()> {
        if self.place == Where::Guest {
            return Ok(());
        }
        for device in &self.devices {
            ensure!(
                device == "real",
                "--device {device}: the host's kernel has no modelled disk below it; leave it out, \
                 write real, or measure with --where guest"
            );
        }
        for load in &self.host_loads {
            ensure!(
                *load == GuestLoad::NONE,
                "--host-load {load}: on the host there is one load, beside the application; leave \
                 it out, and write its readers into --guest-load"
            );
        }
        for scheduler in &self.schedulers {
            ensure!(
                scheduler == "none",
                "--scheduler {scheduler}: there is no pool on the host; leave it out, and write the \
                 scheduler of the kernel into --guest-scheduler"
            );
        }
        for coordination in &self.coordinations {
            ensure!(
                *coordination == Coordination::Off,
                "--coordination {coordination}: on the host there are no two who could tell each \
                 other something; leave it out, or write off"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn on_host() -> Options {
        Options {
            place: Where::Host,
            evenkeel: PathBuf::new(),
            dir: PathBuf::new(),
            devices: vec!["real".to_owned()],
            guest_loads: vec![GuestLoad::readers(5, true)],
            host_loads: vec![GuestLoad::NONE],
            guest_schedulers: vec!["bfq".to_owned()],
            schedulers: vec!["none".to_owned()],
            coordinations: vec![Coordination::Off],
            repeats: 1,
        }
    }

    #[test]
    fn what_there_is_not_on_the_host_is_refused_by_its_name() {
        on_host().check().unwrap();
        let devices = vec!["real".to_owned(), "hdd".to_owned()];
        let schedulers = vec!["none".to_owned(), "cfq".to_owned()];
        let loads = vec![GuestLoad::readers(1, false)];
        let all = vec![Coordination::Off, Coordination::All];
        for (options, part) in [
            (Options { devices, ..on_host() }, "--device hdd:"),
            (Options { host_loads: loads, ..on_host() }, "--host-load 1r-seq:"),
            (Options { schedulers, ..on_host() }, "--scheduler cfq:"),
            (Options { coordinations: all, ..on_host() }, "--coordination all:"),
        ] {
            let problem = options.check().unwrap_err().to_string();
            assert!(problem.starts_with(part) && problem.contains("; leave it out"), "{problem}");
            Options { place: Where::Guest, ..options }.check().unwrap();
        }
    }

    #[test]
    fn places_survive_a_round_trip_and_others_are_refused() {
        for place in [Where::Guest, Where::Host] {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        assert!("here".parse::<Where>().unwrap_err().contains("guest and host"));
    }
}
