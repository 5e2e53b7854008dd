//! The books against their definition, applied to each waiting request at each instant.

use proptest::prelude::*;

use super::*;

const VMS: u32 = 4;

fn books(most: usize) -> Blame {
    let mut blame = Blame::with_places(Nanos::ORIGIN, most);
    (1..=VMS).for_each(|vm| blame.add(GroupId(vm)));
    blame
}

fn at(time: u64) -> Nanos {
    Nanos::ORIGIN + us(time)
}

fn us(time: u64) -> Nanos {
    Nanos::from_micros(time)
}

fn cause(vm: u32, held_us: u64) -> Cause {
    Cause { vm: GroupId(vm), held: us(held_us) }
}

/// Lets a request of `vm` be at the device from `from` to `to` microseconds.
fn serve(blame: &mut Blame, vm: u32, from: u64, to: u64) {
    blame.wait(at(from), GroupId(vm), 1);
    blame.send(at(from), GroupId(vm), 1);
    blame.complete(at(to), GroupId(vm), 1);
}

#[test]
fn a_wait_is_blamed_on_those_at_the_device_and_on_whom_it_idles_for() {
    let (web, db, backup) = (GroupId(1), GroupId(2), GroupId(3));
    let mut blame = books(NAMED);
    blame.wait(at(0), db, 1);
    blame.send(at(0), db, 1);
    blame.wait(at(0), web, 2);
    // db alone for 100 µs, then db and backup (two commands) for 60 µs.
    blame.wait(at(100), backup, 2);
    blame.send(at(100), backup, 1);
    blame.send(at(100), backup, 1);
    blame.complete(at(160), db, 1);
    blame.complete(at(160), backup, 1);
    blame.complete(at(160), backup, 1);
    // Nobody for 10 µs: kept for backup. Then web itself for 5 µs.
    blame.send(at(170), web, 1);
    blame.complete(at(175), web, 1);
    blame.send(at(175), web, 1);
    blame.complete(at(180), web, 1);
    blame.check();
    let web = blame.explain(at(200), web);
    assert_eq!(web.waited, us(2 * 170 + 5));
    assert_eq!(web.served, us(10));
    assert_eq!((web.own, web.idled, web.kept), (us(5), us(20), us(0)));
    assert_eq!(web.causes, [cause(2, 240), cause(3, 80)]);
    assert_eq!(blame.explain(at(300), db).waited, Nanos::ZERO);
    assert_eq!(blame.explain(at(300), backup).kept, us(10), "two waited, but not for longer");
}

#[test]
fn who_is_in_its_own_way_or_over_a_limit_blames_nobody_else() {
    let (web, db) = (GroupId(1), GroupId(2));
    let mut blame = books(NAMED);
    blame.wait(at(0), db, 1);
    blame.send(at(0), db, 1);
    blame.wait(at(0), web, 2);
    blame.step_aside(at(0), web, Aside::Own, 1);
    blame.step_aside(at(10), web, Aside::Limit, 1);
    blame.check();
    blame.step_back(at(30), web, Aside::Own, 1);
    blame.complete(at(40), db, 1);
    let web = blame.explain(at(40), web);
    assert_eq!(web.waited, us(80));
    assert_eq!((web.own, web.limited), (us(30), us(30)));
    assert_eq!((web.causes, web.others), (vec![cause(2, 20)], Nanos::ZERO));
}

#[test]
fn what_was_waited_for_one_who_is_gone_is_blamed_on_nobody_by_name() {
    let (web, db) = (GroupId(1), GroupId(2));
    let mut blame = books(NAMED);
    blame.wait(at(0), web, 1);
    serve(&mut blame, 2, 0, 50);
    blame.remove(db);
    blame.add(db);
    blame.check();
    let explained = blame.explain(at(50), web);
    assert_eq!((explained.others, explained.causes), (us(50), vec![]));
    assert_eq!(blame.explain(at(50), db), Explanation::default());
    serve(&mut blame, 2, 50, 53);
    assert_eq!(blame.explain(at(53), web).causes, [cause(2, 3)]);
}

#[test]
fn with_more_vms_than_places_a_late_flooder_is_told_apart_and_the_former_one_remembered() {
    let web = GroupId(1);
    let mut blame = books(1);
    blame.wait(at(0), web, 1);
    serve(&mut blame, 2, 0, 1_000_000);
    // The fourth has no place at first; it earns that of the second once it holds more.
    for second in 1..6 {
        serve(&mut blame, 3, 1_000_000 * second, 1_000_000 * second + 1);
        serve(&mut blame, 4, 1_000_000 * second + 1, 1_000_000 * (second + 1));
        blame.check();
    }
    let explained = blame.explain(at(6_000_000), web);
    assert_eq!(explained.causes[0], cause(2, 1_000_000));
    let [_, flooder] = explained.causes[..] else { unreachable!("two are told apart") };
    assert_eq!(flooder.vm, GroupId(4));
    assert!(flooder.held >= Nanos::from_secs(2), "{explained:?}");
    let told = flooder.held.0 + Nanos::from_secs(1).0;
    assert_eq!(explained.others.0, explained.waited.0 - told, "the parts add up");
}

#[test]
fn a_thousand_vms_that_wait_for_each_other_take_a_bounded_row_each() {
    let mut blame = Blame::new(Nanos::ORIGIN);
    (1..=1000).for_each(|vm| blame.add(GroupId(vm)));
    (1..=1000).for_each(|vm| blame.wait(at(0), GroupId(vm), 1));
    for turn in 0..20_000 {
        let vm = GroupId(1 + turn % 1000);
        let now = 1000 * u64::from(turn);
        blame.send(at(now), vm, 1);
        blame.complete(at(now + 1000), vm, 1);
        blame.wait(at(now + 1000), vm, 1);
    }
    blame.check();
    let most = blame.accounts.iter().map(|account| account.row.len().max(account.kept.len()));
    assert_eq!((blame.named.vms().len(), most.max()), (NAMED, Some(NAMED)));
}

#[test]
fn books_that_are_turned_off_say_nothing() {
    let mut blame = books(NAMED);
    blame.turn(false);
    blame.wait(at(0), GroupId(1), 1);
    serve(&mut blame, 2, 0, 50);
    assert_eq!(blame.explain(at(60), GroupId(1)), Explanation::default());
    blame.check();
}

#[derive(Clone, Debug)]
enum Step {
    Wait { vm: u32, requests: u32 },
    Send { vm: u32, requests: u32 },
    Complete { which: usize },
    Aside { vm: u32, own: bool },
    Back { vm: u32, own: bool },
    Gather { gathers: bool },
    Pass { ns: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let vm = 1..=VMS;
    let aside = (vm.clone(), any::<bool>());
    prop_oneof![
        3 => (vm.clone(), 1..4_u32).prop_map(|(vm, requests)| Step::Wait { vm, requests }),
        3 => (vm, 1..4_u32).prop_map(|(vm, requests)| Step::Send { vm, requests }),
        1 => aside.clone().prop_map(|(vm, own)| Step::Aside { vm, own }),
        1 => aside.prop_map(|(vm, own)| Step::Back { vm, own }),
        3 => (0..8_usize).prop_map(|which| Step::Complete { which }),
        1 => any::<bool>().prop_map(|gathers| Step::Gather { gathers }),
        4 => (1..1_000_000_000_u32).prop_map(|ns| Step::Pass { ns }),
    ]
}

const LEN: usize = VMS as usize + 1;

/// The definition.
#[derive(Default)]
struct Model {
    now: u64,
    waiting: [u32; LEN],
    aside: [[u32; LEN]; 2],
    at_device: Vec<(u32, u32)>,
    last: usize,
    gathers: bool,
    gathered: [u64; LEN],
    /// By VM: while limited, and while in its own way.
    set_aside: [[u64; LEN]; 2],
    waited: [u64; LEN],
    held: [[f64; LEN]; LEN],
    idled: [u64; LEN],
    kept: [u64; LEN],
    slack: f64,
}

impl Model {
    fn now(&self) -> Nanos {
        Nanos::ORIGIN + Nanos(self.now)
    }

    fn apply(&mut self, blame: &mut Blame, step: &Step) {
        let now = self.now();
        let why = |own| if own { Aside::Own } else { Aside::Limit };
        match *step {
            Step::Wait { vm, requests } => {
                blame.wait(now, GroupId(vm), requests);
                self.waiting[vm as usize] += requests;
            }
            Step::Send { vm, requests } => {
                let requests = requests.min(self.waiting[vm as usize]);
                if requests > 0 {
                    blame.send(now, GroupId(vm), requests);
                    self.waiting[vm as usize] -= requests;
                    self.at_device.push((vm, requests));
                    self.last = vm as usize;
                }
            }
            Step::Complete { which } if which < self.at_device.len() => {
                let (vm, requests) = self.at_device.swap_remove(which);
                blame.complete(now, GroupId(vm), requests);
            }
            Step::Aside { vm, own } if self.waiting[vm as usize] > 0 => {
                blame.step_aside(now, GroupId(vm), why(own), 1);
                self.waiting[vm as usize] -= 1;
                self.aside[usize::from(own)][vm as usize] += 1;
            }
            Step::Back { vm, own } if self.aside[usize::from(own)][vm as usize] > 0 => {
                blame.step_back(now, GroupId(vm), why(own), 1);
                self.waiting[vm as usize] += 1;
                self.aside[usize::from(own)][vm as usize] -= 1;
            }
            Step::Complete { .. } | Step::Aside { .. } | Step::Back { .. } => {}
            Step::Gather { gathers } => {
                blame.gather(now, gathers);
                self.gathers = gathers;
            }
            Step::Pass { ns } => self.pass(u64::from(ns)),
        }
    }

    fn pass(&mut self, ns: u64) {
        let commands = self.at_device.len() as f64;
        if self.at_device.is_empty() && !self.gathers && self.waiting.iter().sum::<u32>() > 0 {
            self.kept[self.last] += ns;
        }
        for vm in 1..LEN {
            let waiting = u64::from(self.waiting[vm]);
            self.waited[vm] += waiting * ns;
            for (time, requests) in self.set_aside.iter_mut().zip(&self.aside) {
                let requests = u64::from(requests[vm]);
                time[vm] += requests * ns;
                self.waited[vm] += requests * ns;
            }
            for &(holder, _) in &self.at_device {
                self.held[vm][holder as usize] += (waiting * ns) as f64 / commands;
            }
            if self.at_device.is_empty() && self.gathers {
                self.gathered[vm] += waiting * ns;
            } else if self.at_device.is_empty() {
                self.idled[vm] += waiting * ns;
            }
            // Less than a nanosecond for each command is shared out in turn.
            self.slack += waiting as f64 * commands;
        }
        self.now += ns;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn blames_are_those_of_the_definition(
        most in 1..6_usize,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut blame = books(most);
        let mut model = Model::default();
        for step in &steps {
            model.apply(&mut blame, step);
            blame.check();
        }
        for vm in 1..=VMS {
            let explained = blame.explain(model.now(), GroupId(vm));
            let vm = vm as usize;
            let [limited, behind] = model.set_aside;
            prop_assert_eq!(explained.limited.0, limited[vm]);
            prop_assert_eq!(explained.waited.0, model.waited[vm]);
            prop_assert_eq!((explained.idled.0, explained.kept.0), (model.idled[vm], model.kept[vm]));
            prop_assert_eq!(explained.gathered.0, model.gathered[vm]);
            let slack = model.slack + 1.0;
            let own = (explained.own.0 - behind[vm]) as f64;
            prop_assert!((own - model.held[vm][vm]).abs() <= slack);
            let mut told = [0; LEN];
            for cause in &explained.causes {
                told[cause.vm.0 as usize] = cause.held.0;
            }
            let own = explained.own.0 + explained.idled.0 + explained.gathered.0;
            let all = told.iter().sum::<u64>() + own + limited[vm] + explained.others.0;
            prop_assert_eq!(all, explained.waited.0, "the parts add up");
            let others = (1..LEN).filter(|&other| other != vm);
            let is_everybody_told = most >= VMS as usize;
            for other in others {
                let (held, expected) = (told[other] as f64, model.held[vm][other]);
                prop_assert!(held <= expected + slack);
                prop_assert!(held >= expected - slack || !is_everybody_told);
            }
            // What could not be shared out stays there unless somebody else is to blame.
            let is_any_told = explained.own.0 > behind[vm] || told.iter().any(|&held| held > 0);
            prop_assert!(explained.others.0 as f64 <= slack || !is_everybody_told);
            prop_assert!(explained.others == Nanos::ZERO || !is_everybody_told || !is_any_told);
        }
    }
}
