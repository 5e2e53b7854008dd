//! Who waited for whom.
//!
//! A recording does not say it, but a guess is good enough for a guest as a whole: a request comes
//! when its guest has digested the last answer before it. How many requests a disk has outstanding
//! follows from that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_sched::Nanos;

use super::Workload;

/// What makes a request come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Trigger {
    /// The request whose answer it waits for, by position; none if nothing was answered before.
    pub(super) after: Option<usize>,
    /// How long after that, or after the beginning.
    pub(super) think: Nanos,
}

#[derive(Debug, Default)]
struct Disk {
    /// Requests that came already, by the instant of their answer.
    answers: BinaryHeap<Reverse<(Nanos, usize)>>,
    last: Option<(Nanos, usize)>,
}

/// Returns what makes each request come; `None` if no durations are known. Nobody waits for a
/// request whose end is not.
pub(super) fn triggers(workload: &Workload) -> Option<Vec<Trigger>> {
    let mut disks: Vec<Disk> = workload.disks.iter().map(|_| Disk::default()).collect();
    let mut triggers = Vec::with_capacity(workload.requests.len());
    for (index, request) in workload.requests.iter().enumerate() {
        let disk = &mut disks[request.disk as usize];
        while let Some(&Reverse(answer)) = disk.answers.peek()
            && answer.0 <= request.at
        {
            disk.last = Some(answer);
            disk.answers.pop();
        }
        let trigger = match disk.last {
            Some((at, after)) => Trigger { after: Some(after), think: request.at - at },
            None => Trigger { after: None, think: request.at },
        };
        triggers.push(trigger);
        if let Some(taken) = request.recorded {
            disk.answers.push(Reverse((request.at + taken.total(), index)));
        }
    }
    workload.requests.iter().any(|request| request.recorded.is_some()).then_some(triggers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoOp;
    use crate::replay::{Arrival, ReplayDisk, Taken};

    #[test]
    fn a_request_waits_for_the_last_answer_of_its_disk_before_it() {
        let disk = |name: &str| ReplayDisk {
            name: name.to_owned(),
            vm: name.to_owned(),
            weight: evenkeel_sched::Weight::default(),
            sectors: 1000,
            heeds_priority: true,
            write_through: false,
        };
        let request = |at, disk, service| Arrival {
            at: Nanos(at),
            disk,
            op: IoOp::Read,
            sector: 0,
            nr_sectors: 8,
            ioprio: 0,
            recorded: Some(Taken { wait: Nanos(1), service: Nanos(service) }),
        };
        let mut workload = Workload {
            disks: vec![disk("a"), disk("b")],
            // Answers: 10, 5, 8, 32.
            requests: vec![
                request(0, 0, 9),
                request(2, 0, 2),
                request(3, 1, 4),
                request(6, 0, 25),
                request(12, 0, 1),
                request(12, 1, 1),
            ],
            ..Workload::default()
        };
        let after = |after, think| Trigger { after: Some(after), think: Nanos(think) };
        let from_start = |think| Trigger { after: None, think: Nanos(think) };
        assert_eq!(
            triggers(&workload).unwrap(),
            [from_start(0), from_start(2), from_start(3), after(1, 1), after(0, 2), after(2, 4)]
        );
        workload.requests[0].recorded = None;
        assert_eq!(triggers(&workload).unwrap()[4], after(1, 7));
        workload.requests.iter_mut().for_each(|request| request.recorded = None);
        assert_eq!(triggers(&workload), None);
    }
}
