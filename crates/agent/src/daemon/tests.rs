//! The agent beside processes of its own.

use super::told::BURST_WINDOW;
use super::*;
use crate::events::Event;
use crate::stage::{Sleeper, Stage};

/// An agent that asks nobody for help, and that nobody tells of new programs.
fn agent(stage: &Stage) -> Agent {
    let (socket, disks) = (stage.journal(), stage.disks());
    let options = Options { way: None, priorities: true, socket, disks };
    let mut agent = Agent::new(options, stage.proc());
    agent.events = Err("not in a test".to_owned());
    agent
}

#[test]
fn what_a_child_inherits_is_given_back_though_nobody_tells_of_forks() {
    let (stage, parent) = (Stage::new("forks"), Sleeper::new());
    let mut agent = agent(&stage);
    let start = clock::now();
    stage.process(parent.id(), 1, "parent");
    agent.scan(start, true);
    agent.look(start);
    assert_eq!(IoPrio::of(parent.id()).expect("it runs"), IoPrio::HIGH);
    let child = parent.beget();
    stage.process(child.id(), parent.id(), "child");
    agent.scan(start, true);
    agent.look(start + Duration::from_secs(1));
    agent.look(start + Duration::from_secs(20));
    for sleeper in [&parent, &child] {
        assert_eq!(IoPrio::of(sleeper.id()).expect("it runs"), IoPrio(0));
    }
}

/// An agent that is told of events.
fn told(stage: &Stage) -> Agent {
    let mut agent = agent(stage);
    agent.next_scan = Duration::MAX;
    agent
}

#[test]
fn who_begins_a_program_by_a_thread_that_is_not_the_first_goes_on() {
    let (stage, process) = (Stage::new("thread"), Sleeper::new());
    let (mut agent, pid, now) = (told(&stage), process.id(), clock::now());
    stage.process(pid, 1, "before");
    agent.handle(now, &[Event::Exec { pid }]);
    agent.look(now);
    assert_eq!(IoPrio::of(pid).expect("it runs"), IoPrio::HIGH);
    // Its first thread ends, and it takes that one's place.
    stage.program(pid, 1, "after", 9);
    agent.handle(now, &[Event::Exit { pid }, Event::Exec { pid }]);
    assert_eq!(agent.processes[&pid].name, "after");
    assert_eq!(agent.processes[&pid].watched.level(), Level::Interactive);
    // Its first thread ends, and it goes on with the others, and ends.
    stage.dead(pid, 2);
    agent.handle(now, &[Event::Exit { pid }]);
    assert!(agent.processes.contains_key(&pid) && agent.raised.has(pid));
    stage.dead(pid, 1);
    agent.handle(now, &[Event::Exit { pid }]);
    assert!(!agent.processes.contains_key(&pid) && !agent.raised.has(pid));
}

#[test]
fn what_is_given_back_after_another_program_is_what_was_before_the_first() {
    let (stage, process) = (Stage::new("twice"), Sleeper::new());
    let (mut agent, pid, now) = (told(&stage), process.id(), clock::now());
    stage.process(pid, 1, "before");
    agent.handle(now, &[Event::Exec { pid }]);
    agent.look(now);
    agent.handle(now, &[Event::Exit { pid }, Event::Exec { pid }]);
    agent.look(now);
    agent.look(now + Duration::from_secs(20));
    assert_eq!(IoPrio::of(pid).expect("it runs"), IoPrio(0));
}

#[test]
fn programs_that_have_ended_already_make_a_job_too() {
    let (stage, process) = (Stage::new("job"), Sleeper::new());
    let (mut agent, pid, now) = (told(&stage), process.id(), clock::now());
    stage.process(pid, 7, "last");
    let begun = |child| [Event::Fork { parent: 7, child }, Event::Exec { pid: child }];
    for ended in 0..8 {
        let child = u32::MAX - ended;
        // Not always told together.
        let (fork, rest) = ([begun(child)[0]], [begun(child)[1], Event::Exit { pid: child }]);
        agent.handle(now, &fork);
        agent.handle(now, &rest);
    }
    let level = |agent: &Agent| agent.processes[&pid].watched.level();
    agent.handle(now + BURST_WINDOW, &begun(pid));
    assert_eq!(level(&agent), Level::None);
    // Those are long ago then.
    agent.handle(now + 2 * BURST_WINDOW, &[Event::Exec { pid }]);
    assert_eq!(level(&agent), Level::Interactive);
    assert_eq!(agent.parents.len(), 1, "of those who live");
}

#[test]
fn who_only_reads_is_urgent_for_four_seconds() {
    let (stage, process) = (Stage::new("reads"), Sleeper::new());
    let (mut agent, pid, start) = (told(&stage), process.id(), clock::now());
    stage.process(pid, 1, "reader");
    agent.handle(start, &[Event::Exec { pid }]);
    let mut end = None;
    for looks in 1..500 {
        let now = start + looks * Duration::from_millis(20);
        stage.has_read(pid, u64::from(looks) * 4096);
        agent.look(now);
        if agent.processes[&pid].watched.level() == Level::None {
            end = end.or(Some(now - start));
        }
    }
    assert_eq!(end, Some(Duration::from_secs(4)));
    assert_eq!(IoPrio::of(pid).expect("it runs"), IoPrio(0));
}

/// Also of a process that has a priority of its own, which is left alone.
#[test]
fn threads_are_searched_for_after_a_tenth_of_a_second_and_then_once_a_second() {
    let (stage, leader) = (Stage::new("search"), Sleeper::new());
    let (mut agent, pid, start) = (told(&stage), leader.id(), clock::now());
    IoPrio(2 << 13 | 6).set(pid).expect("best effort is allowed");
    stage.process(pid, 1, "leader");
    agent.handle(start, &[Event::Exec { pid }]);
    agent.look(start);
    let mut found = Vec::new();
    for (first, last) in [(20, 100), (120, 1_100), (1_120, 2_100)] {
        let thread = Sleeper::new();
        stage.thread(pid, thread.id());
        for ms in (first..=last).step_by(20) {
            stage.has_read(pid, ms * 4096);
            agent.look(start + Duration::from_millis(ms));
            if IoPrio::of(thread.id()).expect("it runs") == IoPrio::HIGH {
                found.push(ms);
                break;
            }
        }
        stage.ended(pid, thread.id());
    }
    assert_eq!(found, [100, 1_100, 2_100]);
}

#[test]
fn whom_nobody_can_watch_is_told_of() {
    let (stage, seen, unseen) = (Stage::new("unseen"), Sleeper::new(), Sleeper::new());
    let mut agent = agent(&stage);
    stage.process(seen.id(), 1, "seen");
    agent.scan(clock::now(), true);
    assert_eq!(agent.status().counters, "all are read");
    stage.process(unseen.id(), 1, "unseen");
    stage.uncounted(unseen.id());
    for _ in 0..2 {
        agent.scan(clock::now(), true);
        let counters = agent.status().counters;
        assert!(
            counters.starts_with("processes not to be read, nor helped: 1, last: "),
            "{counters}"
        );
    }
    let peer = Peer { pid: unseen.id(), uid: 7 };
    let mark = Request::Mark { level: Level::Interactive };
    let Reply::Refused(why) = agent.answer(clock::now(), peer, mark) else {
        panic!("it cannot be watched");
    };
    assert!(why.contains("cannot be watched: "), "{why}");
    stage.exited(unseen.id());
    agent.scan(clock::now(), true);
    assert_eq!(agent.status().counters, "all are read");
}

#[test]
fn a_refused_priority_is_told_of_until_the_end() {
    let (stage, first, second) = (Stage::new("refused"), Sleeper::new(), Sleeper::new());
    let mut agent = agent(&stage);
    // There is no such class.
    agent.high = IoPrio(5 << 13);
    let start = clock::now();
    stage.process(first.id(), 1, "first");
    agent.scan(start, true);
    for tenths in 0..20 {
        agent.look(start + Duration::from_millis(100 * tenths));
    }
    let why = "Invalid argument (os error 22)";
    assert_eq!(agent.status().priorities, format!("not allowed: {why} (processes refused: 1)"));
    agent.high = IoPrio::HIGH;
    stage.process(second.id(), 1, "second");
    agent.scan(start, true);
    agent.look(start + Duration::from_secs(3));
    let expected = format!("best effort 0; processes refused: 1, last: {why}");
    assert_eq!(agent.status().priorities, expected);
}

#[test]
fn who_is_not_root_marks_processes_of_his_own() {
    let (stage, process) = (Stage::new("owner"), Sleeper::new());
    let mut agent = agent(&stage);
    stage.process(process.id(), 1, "process");
    let mut mark = |uid| {
        let peer = Peer { pid: process.id(), uid };
        agent.answer(clock::now(), peer, Request::Mark { level: Level::Interactive })
    };
    let why = format!("process {} belongs to user 7, and user 8 asks", process.id());
    assert_eq!(mark(8), Reply::Refused(why));
    assert_eq!([mark(7), mark(0)], [Reply::Marked, Reply::Marked]);
}

#[test]
fn a_player_that_was_marked_by_hand_stays_one_by_any_name_until_it_ends() {
    let (stage, player) = (Stage::new("player"), Sleeper::new());
    let mut agent = agent(&stage);
    stage.process(player.id(), 1, "run");
    let peer = Peer { pid: player.id(), uid: 7 };
    let start = clock::now();
    let marked = agent.answer(start, peer, Request::Mark { level: Level::SoftRealTime });
    assert_eq!(marked, Reply::Marked);
    for (name, seconds) in [("player", 20), ("main", 40)] {
        stage.program(player.id(), 1, name, 9);
        // With and without word from the kernel.
        agent.scan(start + Duration::from_secs(seconds), seconds == 20);
        agent.look(start + Duration::from_secs(seconds + 19));
        let urgent = agent.status().urgent;
        let [urgent] = urgent.as_slice() else { panic!("one is urgent: {urgent:?}") };
        assert_eq!((urgent.level, urgent.reason.as_str()), (Level::SoftRealTime, BY_HAND));
        assert_eq!(IoPrio::of(player.id()).expect("it runs"), IoPrio::HIGH);
    }
    // Another one has got its number.
    stage.program(player.id(), 1, "main", 10);
    agent.scan(start + Duration::from_secs(60), false);
    assert_eq!(agent.status().urgent, []);
}

#[test]
fn another_scheduler_of_the_guest_is_followed() {
    let stage = Stage::new("schedulers");
    stage.scheduler("vda", "none [mq-deadline] bfq\n");
    stage.scheduler("vdb", "[none]\n");
    let mut agent = agent(&stage);
    let mut seen = vec![agent.high];
    for (schedulers, minutes) in [("none [bfq]\n", 1), ("[none] bfq\n", 2)] {
        stage.scheduler("vda", schedulers);
        agent.scan(clock::now() + Duration::from_secs(60 * minutes), true);
        seen.push(agent.high);
    }
    assert_eq!(seen, [IoPrio::HIGH, IoPrio::FIRST, IoPrio::HIGH]);
}
