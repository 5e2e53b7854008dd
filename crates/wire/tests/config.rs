//! What an operator meets: a file goes in, a configuration or all of its mistakes come out.

use std::path::PathBuf;

use evenkeel_wire::{
    Block, Config, DevicePriority, Disk, Document, Poll, Problem, Profile, Responses, Rotational,
    Scheduler, Source, Trust, Tunables,
};

fn read(text: &str) -> Result<Config, Vec<Problem>> {
    Document::read(text).finish().map_err(|problems| problems.iter().cloned().collect())
}

fn problems(text: &str) -> Vec<Problem> {
    read(text).expect_err("the text has mistakes")
}

/// The one problem of a disk in an otherwise correct file, as (path, value, problem).
fn problem_of_disk(fields: &str) -> (String, String, String) {
    let all = problems(&format!("[pools.main.disks.web]\n{fields}\n"));
    assert_eq!(all.len(), 1, "{all:#?}");
    let one = &all[0];
    assert!(!one.remedy.is_empty(), "{one:?} has a remedy");
    assert!(one.line.is_some(), "{one:?} has a line");
    (one.path.clone(), one.value.clone(), one.problem.clone())
}

#[test]
fn a_disk_needs_nothing_but_a_path() {
    let config = read("[pools.main.disks.web]\npath = \"web.img\"\n").unwrap();
    let pool = &config.pools["main"];
    assert_eq!(pool.disks["web"], Disk::new(Source::Path(PathBuf::from("web.img"))));
    assert_eq!((pool.scheduler(), pool.rotational), (Scheduler::Bfq, Rotational::Auto));
    assert_eq!((pool.block, pool.responses), (Block::Dynamic, Responses::Each));
    assert_eq!((pool.depth, &pool.tunables), (None, &Tunables::default()));
    assert_eq!(pool.all_vms()["web"].weight, 100);
}

#[test]
fn every_field_is_read() {
    let config = read(include_str!("every-field.toml")).unwrap();
    assert_eq!(config.socket_dir, Some(PathBuf::from("/run/evenkeel")));
    assert_eq!(config.api, Some(PathBuf::from("/run/evenkeel/api.sock")));
    assert_eq!(config.log.as_deref(), Some("info"));
    let pool = &config.pools["main"];
    assert_eq!((pool.scheduler(), pool.profile), (Scheduler::Deadline, Some(Profile::Batch)));
    assert_eq!((pool.depth, pool.model.as_deref()), (Some(8), Some("hdd:rpm=5400")));
    assert_eq!((pool.block, pool.responses), (Block::Static(4), Responses::Subset(2)));
    assert_eq!((pool.poll, pool.sqpoll_ms), (Poll::AtMost(70), Some(20)));
    assert!(pool.iopoll);
    assert_eq!(pool.cpus.as_ref().map(ToString::to_string).as_deref(), Some("0-1"));
    assert_eq!(pool.trace, Some(PathBuf::from("/var/log/evenkeel/main.trace")));
    assert_eq!((pool.rotational, pool.streams), (Rotational::Yes, Some(false)));
    for (field, value) in [
        ("slice_idle", 7_500_000),
        ("back_seek_max", 1),
        ("back_seek_penalty", 3),
        ("fifo_expire_sync", 4_000_000),
        ("max_budget", 0),
        ("low_latency", 0),
        ("strict_guarantees", 1),
    ] {
        assert_eq!(pool.tunables.get("bfq", field), Some(value), "{field}");
    }
    for (field, value) in [("read_expire", 1_000_000), ("writes_starved", 3), ("front_merges", 0)] {
        assert_eq!(pool.tunables.get("deadline", field), Some(value), "{field}");
    }
    assert_eq!(pool.tunables.get("kyber", "read_lat_nsec"), Some(1_000_000));
    assert_eq!(pool.tunables.get("anticipatory", "antic_expire"), Some(3_000_000));
    for tunable in evenkeel_wire::TUNABLES {
        let value = pool.tunables.get(tunable.table, tunable.name);
        assert!(value.is_some(), "{}.{} is read", tunable.table, tunable.name);
    }
    let shop = &pool.vms["shop"];
    assert_eq!((pool.trust, shop.trust), (Trust::Interactive, Some(Trust::SoftRealTime)));
    assert_eq!((shop.help_seconds_per_minute, shop.help_mib_per_minute), (Some(15), Some(512)));
    assert_eq!(shop.vsock, Some(PathBuf::from("/run/shop.vsock")));
    let order: Vec<&str> = pool.groups_top_down().iter().map(|(name, _)| *name).collect();
    assert_eq!(order, ["tenants", "gold"]);
    assert_eq!(pool.groups["gold"].weight, 300);
    assert_eq!(pool.vms["shop"].group.as_deref(), Some("gold"));
    assert_eq!(pool.vm_of("web"), "shop");
    assert_eq!(pool.vm_of("scratch"), "scratch");
    assert_eq!(pool.all_vms()["scratch"].weight, 20);
    let web = &pool.disks["web"];
    assert_eq!((web.create_bytes, web.preallocate), (Some(10 << 30), true));
    assert_eq!((web.queues, web.block_bytes), (4, 4096));
    assert_eq!((web.serial.as_deref(), web.write_cache), (Some("WEB-1"), false));
    assert_eq!(pool.disks["scratch"].source, Source::Null { size_bytes: 1 << 40 });
    assert!(pool.disks["boot"].read_only);
}

#[test]
fn the_priority_below_may_be_a_class_or_a_flag() {
    let priority = |value: &str| {
        let text =
            format!("[pools.p]\ndevice_priority = {value}\n[pools.p.disks.a]\npath = \"a\"\n");
        read(&text).map(|config| config.pools["p"].device_priority)
    };
    for (value, expected) in [
        ("false", DevicePriority::None),
        ("true", DevicePriority::BestEffort),
        ("\"none\"", DevicePriority::None),
        ("\"best-effort\"", DevicePriority::BestEffort),
        ("\"real-time\"", DevicePriority::RealTime),
    ] {
        assert_eq!(priority(value), Ok(expected), "{value}");
    }
    for wrong in ["\"idle\"", "1"] {
        let problems = priority(wrong).expect_err(wrong);
        assert_eq!(problems[0].path, "pools.p.device_priority");
        assert!(problems[0].remedy.contains("best-effort"), "{problems:?}");
    }
}

#[test]
fn a_depth_is_a_number_or_left_to_a_governor() {
    let depth = |value: &str| {
        let text = format!("[pools.p]\ndepth = {value}\n[pools.p.disks.web]\npath = \"web.img\"\n");
        read(&text).map(|config| (config.pools["p"].depth, config.pools["p"].governor))
    };
    assert_eq!(depth("\"auto\""), Ok((None, true)));
    assert_eq!(depth("16"), Ok((Some(16), false)));
    for wrong in ["\"8\"", "\"many\"", "0", "true"] {
        let problems = depth(wrong).expect_err(wrong);
        assert_eq!(problems[0].path, "pools.p.depth");
        assert!(problems[0].remedy.contains("whole number from 1 to 1024"), "{problems:?}");
    }
}

#[test]
fn a_block_larger_than_the_depth_is_refused_with_both_figures() {
    let all = problems(
        "[pools.main]\ndepth = 4\nblock = \"static 8\"\nresponses = \"subset 5\"\n\
         [pools.main.disks.web]\npath = \"web.img\"\n\
         [pools.next]\nblock = \"static 0\"\nresponses = \"all\"\n\
         [pools.next.disks.db]\npath = \"db.img\"\n",
    );
    let mut found: Vec<(&str, &str, Option<u64>)> =
        all.iter().map(|one| (one.path.as_str(), one.value.as_str(), one.line)).collect();
    found.sort_unstable();
    let expected = [
        ("pools.main.block", "\"static 8\"", Some(3)),
        ("pools.main.responses", "\"subset 5\"", Some(4)),
        ("pools.next.block", "\"static 0\"", Some(8)),
        ("pools.next.responses", "\"all\"", Some(9)),
    ];
    assert_eq!(found, expected);
    assert!(all.iter().any(|one| one.problem.contains("depth = 4")), "{all:?}");
    assert!(all.iter().any(|one| one.remedy.contains("subset N")), "{all:?}");
}

#[test]
fn all_mistakes_come_together_in_the_order_of_the_file() {
    let all = problems(
        "sockets = \"x\"\n\
         [pools.main]\n\
         scheduler = \"bqf\"\n\
         [pools.main.groups.a]\n\
         parent = \"b\"\n\
         weight = 1001\n\
         [pools.main.groups.b]\n\
         parent = \"a\"\n\
         [pools.main.disks.web]\n\
         path = \"a.img\"\n\
         vm = \"nobody\"\n\
         [pools.main.disks.db]\n\
         path = \"./a.img\"\n",
    );
    let found: Vec<_> =
        all.iter().map(|problem| (problem.line.unwrap(), problem.path.as_str())).collect();
    let expected = [
        (1, "sockets"),
        (3, "pools.main.scheduler"),
        (5, "pools.main.groups.a.parent"),
        (6, "pools.main.groups.a.weight"),
        (10, "pools.main.disks.web.path"),
        (11, "pools.main.disks.web.vm"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn broken_syntax_gives_its_line_and_column_and_nothing_else() {
    let all = problems("log = \"info\"\n[pools.main.disks.web]\npath = \n");
    assert_eq!(all.len(), 1, "{all:#?}");
    let one = &all[0];
    assert_eq!(one.line, Some(3));
    assert!(one.problem.starts_with("column "), "{one}");
}

#[test]
fn a_key_that_stands_twice_is_reported() {
    let all = problems("[pools.main.disks.web]\npath = \"a\"\npath = \"b\"\n");
    assert_eq!(all.iter().map(|problem| problem.line).collect::<Vec<_>>(), [Some(3)]);
}

#[test]
fn an_unknown_key_brings_the_nearest_known_one() {
    let all = problems(
        "[pools.main.disks.web]\npath = \"a\"\nread-only = true\nzzzzzzzzzz = 1\n\
         [pools.main.bfq]\nslice_idel = 1\n",
    );
    let remedies: Vec<&str> = all.iter().map(|problem| problem.remedy.as_str()).collect();
    assert_eq!(remedies[0], "did you mean read_only?");
    assert!(remedies[1].starts_with("possible here: path, create"), "{}", remedies[1]);
    assert_eq!(remedies[2], "did you mean slice_idle?");
}

#[test]
fn every_scheduler_can_be_chosen_and_is_offered_when_another_name_is_given() {
    let with = |name: &str| {
        read(&format!("[pools.main]\nscheduler = \"{name}\"\n[pools.main.disks.a]\npath = \"a\"\n"))
    };
    let problems = with("fair").unwrap_err();
    for scheduler in Scheduler::ALL {
        let name = scheduler.as_str();
        assert_eq!(with(name).unwrap().pools["main"].scheduler(), scheduler);
        assert!(problems[0].remedy.contains(&format!("\"{name}\"")), "{problems:?}");
        assert!("fair".parse::<Scheduler>().unwrap_err().contains(name));
    }
    assert_eq!(with("as").unwrap().pools["main"].scheduler(), Scheduler::Anticipatory);
}

#[test]
fn a_value_of_the_wrong_type_is_named() {
    let kinds = [
        ("path = 5", "path", "5", "not a text"),
        ("path = \"\"", "path", "\"\"", "empty"),
        ("path = \"a\"\nread_only = \"yes\"", "read_only", "\"yes\"", "neither true nor false"),
        ("path = \"a\"\nqueues = \"4\"", "queues", "\"4\"", "not a whole number"),
        ("path = \"a\"\nqueues = 0", "queues", "0", "out of range"),
        ("path = \"a\"\nqueues = 257", "queues", "257", "out of range"),
        ("path = \"a\"\nweight = 0", "weight", "0", "out of range"),
        ("path = \"a\"\nweight = 1_001", "weight", "1_001", "out of range"),
        ("path = \"a\"\nweight = -1", "weight", "-1", "out of range"),
        ("path = \"a\"\ncreate = true", "create", "true", "not a size"),
        ("path = \"a\"\ncreate = \"10X\"", "create", "\"10X\"", "not a size"),
        ("path = \"a\"\ncreate = 0", "create", "0", "a size of zero"),
        ("path = \"null:x\"", "path", "\"null:x\"", "not one of the possible values"),
        ("", "path", "", "missing"),
    ];
    for (fields, key, value, problem) in kinds {
        let found = problem_of_disk(fields);
        let path = format!("pools.main.disks.web.{key}");
        assert_eq!(found, (path, value.to_owned(), problem.to_owned()), "{fields}");
    }
}

#[test]
fn fields_that_contradict_one_another_are_named() {
    let kinds = [
        ("path = \"a\"\ncreate = \"1G\"\nread_only = true", "create"),
        ("path = \"null:1G\"\ncreate = \"1G\"", "create"),
        ("path = \"a\"\npreallocate = true", "preallocate"),
        ("path = \"a\"\ncreate = 1000", "create"),
        ("path = \"null:512\"\nblock_bytes = 4096", "path"),
        ("path = \"a\"\nblock_bytes = 1024", "block_bytes"),
        ("path = \"a\"\nserial = \"more than twenty bytes\"", "serial"),
        ("path = \"a\"\nvm = \"nobody\"", "vm"),
    ];
    for (fields, key) in kinds {
        let (path, ..) = problem_of_disk(fields);
        assert_eq!(path, format!("pools.main.disks.web.{key}"), "{fields}");
    }
}

#[test]
fn a_weight_belongs_to_one_place_only() {
    let named = problems(
        "[pools.main.vms.shop]\n[pools.main.disks.web]\npath = \"a\"\nvm = \"shop\"\nweight = 5\n",
    );
    assert_eq!(named[0].path, "pools.main.disks.web.weight");
    let same_name = problems(
        "[pools.main.vms.web]\nweight = 7\n[pools.main.disks.web]\npath = \"a\"\nweight = 5\n",
    );
    assert_eq!(same_name[0].path, "pools.main.disks.web.weight");
}

#[test]
fn slice_idle_may_be_written_in_one_unit_only() {
    let disk = "[pools.main.disks.web]\npath = \"a\"\n";
    let all = problems(&format!("{disk}[pools.main.bfq]\nslice_idle = 8\nslice_idle_us = 8000\n"));
    assert_eq!(all[0].path, "pools.main.bfq.slice_idle_us");
    let config = read(&format!("{disk}[pools.main.bfq]\nslice_idle = 8\n")).unwrap();
    assert_eq!(config.pools["main"].tunables.get("bfq", "slice_idle"), Some(8_000_000));
}

#[test]
fn what_is_written_wins_over_the_profile_and_the_profile_over_the_defaults() {
    let disk = "[pools.main.disks.web]\npath = \"a\"\n";
    let profile = "[pools.main]\nprofile = \"enterprise-storage\"\n";
    let config = read(&format!("{profile}{disk}[pools.main.cfq]\nslice_idle = 3\n")).unwrap();
    let pool = &config.pools["main"];
    assert_eq!(pool.scheduler(), Scheduler::Cfq);
    let tunables = pool.effective_tunables();
    assert_eq!(tunables.get("cfq", "quantum"), Some(32));
    assert_eq!(tunables.get("cfq", "slice_idle"), Some(3_000_000));
    assert_eq!(tunables.get("cfq", "group_idle"), None);
    let config = read(&format!("{profile}scheduler = \"bfq\"\n{disk}")).unwrap();
    assert_eq!(config.pools["main"].scheduler(), Scheduler::Bfq);
    let all = problems(&format!("[pools.main]\nprofile = \"games\"\n{disk}"));
    assert!(all[0].remedy.contains("\"database\""), "{all:?}");
}

#[test]
fn a_tunable_outside_its_range_brings_the_range() {
    let disk = "[pools.main.disks.web]\npath = \"a\"\n";
    for tunable in evenkeel_wire::TUNABLES {
        let text = format!("{disk}[pools.main.{}]\n{} = -1\n", tunable.table, tunable.name);
        let all = problems(&text);
        let path = format!("pools.main.{}.{}", tunable.table, tunable.name);
        assert_eq!((all.len(), &all[0].path, all[0].line), (1, &path, Some(4)), "{all:?}");
        let high = text.replace("-1", &(tunable.max + 1).to_string());
        let all = problems(&high);
        assert_eq!((all.len(), &all[0].path), (1, &path), "{all:?}");
    }
}

#[test]
fn the_guide_names_every_tunable_and_every_profile() {
    let guide = include_str!("../../../docs/guide/configuration.md");
    for tunable in evenkeel_wire::TUNABLES {
        let (_, section) =
            guide.split_once(&format!("#### `[pools.NAME.{}]`", tunable.table)).unwrap();
        let section = section.split("\n###").next().unwrap();
        assert!(section.contains(&format!("`{}`", tunable.name)), "{tunable:?}");
    }
    for profile in Profile::ALL {
        assert!(guide.contains(&format!("| `{profile}` |")), "{profile}");
    }
}

#[test]
fn names_that_cannot_name_a_file_are_refused() {
    for name in ["\"\"", "\"a b\"", "\"../x\"", "\".hidden\"", "\"-x\"", "\"ä\"", &"n".repeat(65)]
    {
        let all = problems(&format!("[pools.main.disks.{name}]\npath = \"x\"\n"));
        assert_eq!(all.len(), 1, "{name}: {all:#?}");
        assert_eq!(all[0].line, Some(1), "{name}: {all:#?}");
    }
    for name in ["web", "\"web.1\"", "W_e-b", &"n".repeat(64)] {
        let config = read(&format!("[pools.main.disks.{name}]\npath = \"x\"\n"));
        assert_eq!(config.map(|config| config.pools.len()), Ok(1), "{name}");
    }
}

#[test]
fn a_disk_of_the_same_name_in_another_pool_is_refused() {
    let all = problems("[pools.a.disks.web]\npath = \"1\"\n[pools.b.disks.web]\npath = \"2\"\n");
    assert_eq!(all[0].path, "pools.b.disks.web");
    assert!(all[0].problem.contains("pools.a.disks.web"), "{}", all[0]);
}

#[test]
fn an_image_may_be_shared_by_readers_only() {
    let share = |first: &str, second: &str| {
        read(&format!(
            "[pools.a.disks.x]\npath = \"/i/base.img\"\n{first}\n\
             [pools.b.disks.y]\npath = \"/i/./base.img\"\n{second}\n"
        ))
        .map_err(|all| all.len())
        .map(drop)
    };
    assert_eq!(share("read_only = true", "read_only = true"), Ok(()));
    assert_eq!(share("read_only = true", ""), Err(1));
    assert_eq!(share("", "read_only = true"), Err(1));
    assert_eq!(share("", ""), Err(1));
}

#[test]
fn groups_must_exist_and_must_not_run_in_a_circle() {
    let disk = "[pools.p.disks.web]\npath = \"a\"\n";
    let unknown = problems(&format!("{disk}[pools.p.groups.a]\nparent = \"b\"\n"));
    assert_eq!(unknown[0].problem, "no such group");
    let vm = problems(&format!("{disk}[pools.p.vms.v]\ngroup = \"b\"\n"));
    assert_eq!(vm[0].path, "pools.p.vms.v.group");
    let own = problems(&format!("{disk}[pools.p.groups.a]\nparent = \"a\"\n"));
    assert_eq!(own[0].problem, "a circle: a -> a");
    // Two groups below the circle are not part of it and are not blamed.
    let three = problems(&format!(
        "{disk}[pools.p.groups]\na.parent = \"b\"\nb.parent = \"c\"\nc.parent = \"b\"\nd.parent = \"a\"\n"
    ));
    assert_eq!(three.len(), 1, "{three:#?}");
    assert_eq!(three[0].problem, "a circle: b -> c -> b");
}

#[test]
fn a_socket_whose_path_would_be_too_long_is_refused() {
    let text = |length: usize| {
        format!("socket_dir = \"/{}\"\n[pools.p.disks.web]\npath = \"a\"\n", "d".repeat(length - 1))
    };
    // 107 bytes in all: the directory, a slash, "web.sock".
    assert_eq!(read(&text(98)).map(|config| config.pools.len()), Ok(1));
    assert_eq!(problems(&text(99))[0].path, "pools.p.disks.web");
}

#[test]
fn a_file_without_disks_is_refused() {
    assert_eq!(problems("")[0].problem, "no disk to serve");
    assert_eq!(problems("[pools.main]\n")[0].problem, "no disk to serve");
}

#[test]
fn what_should_be_a_table_and_is_not_is_named() {
    let all = problems("[pools.main]\nbfq = 3\n[pools.main.disks]\nweb = \"web.img\"\n");
    let paths: Vec<&str> = all.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(paths, ["pools", "pools.main.bfq", "pools.main.disks.web"]);
}

#[test]
fn problems_of_the_caller_get_their_line_too() {
    let mut document =
        Document::read("[pools.main]\nmodel = \"tape\"\n[pools.main.disks.web]\npath = \"a\"\n");
    document.problems.push(Problem::new("pools.main.model", "\"tape\"", "no such model", "x"));
    let problems = document.finish().expect_err("one problem was added");
    assert_eq!(
        problems.to_string(),
        "1 mistake in the configuration\n  line 2: pools.main.model = \"tape\": no such model; x"
    );
}

#[test]
fn no_disk_may_take_the_socket_of_the_api() {
    let text = "[pools.p.disks.api]\npath = \"null:1G\"\n";
    assert_eq!(problems(text)[0].path, "pools.p.disks.api");
    assert_eq!(problems(&format!("socket_dir = \"/run/ek\"\n{text}")).len(), 1);
    assert_eq!(read(&format!("api = \"/run/ek/control.sock\"\n{text}")).err(), None);
    let long = format!("api = \"/{}\"\n[pools.p.disks.web]\npath = \"null:1G\"\n", "a".repeat(107));
    assert_eq!(problems(&long)[0].path, "api");
}

#[test]
fn a_null_disk_of_half_a_block_is_quoted_as_it_was_written() {
    let problem = &problems("[pools.p.disks.n]\npath = \"null:700\"\n")[0];
    assert_eq!(
        (problem.path.as_str(), problem.value.as_str()),
        ("pools.p.disks.n.path", "\"null:700\"")
    );
}

#[test]
fn a_trace_that_would_overwrite_another_or_an_image_is_refused() {
    let pool = |name: &str, trace: &str| {
        format!(
            "[pools.{name}]\ntrace = \"{trace}\"\n[pools.{name}.disks.{name}]\npath = \"{name}.img\"\n"
        )
    };
    let twice = problems(&[pool("a", "x.trace"), pool("b", "./x.trace")].concat());
    assert_eq!(
        twice[0].to_string(),
        "line 6: pools.b.trace = \"./x.trace\": pools.a.trace is the same file; give each trace a \
         file of its own"
    );
    let image = problems(&[pool("a", "b.img"), pool("b", "x.trace")].concat());
    assert_eq!((image.len(), image[0].path.as_str()), (1, "pools.a.trace"));
}

#[test]
fn a_vsock_is_of_one_vm_that_is_believed() {
    let all = problems(
        "[pools.main]\ntrust = \"interactive\"\n\
         [pools.main.disks.web]\npath = \"a.img\"\n[pools.main.disks.db]\npath = \"b.img\"\n\
         [pools.main.disks.old]\npath = \"c.img\"\n\
         [pools.main.vms.web]\nvsock = \"/run/v\"\n\
         [pools.main.vms.db]\nvsock = \"/run/v\"\n\
         [pools.main.vms.old]\ntrust = \"vm\"\nvsock = \"/run/w\"\n",
    );
    let told: Vec<_> = all.iter().map(|one| (one.path.as_str(), one.problem.as_str())).collect();
    assert_eq!(
        told,
        [
            ("pools.main.vms.web.vsock", "db has the same"),
            ("pools.main.vms.old.vsock", "its agent is not heard, since it is not believed"),
        ]
    );
    assert!(all.iter().all(|one| !one.remedy.is_empty() && one.line.is_some()));
}
