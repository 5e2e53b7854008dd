//! Who slows whom, as an operator of a running daemon is told.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_bench::client::IoOp;
use evenkeel_bench::client::load::{Loader, Pattern, Shape, drive};
use evenkeel_server::Daemon;
use evenkeel_server::api::{Api, Client, Control};
use evenkeel_wire::Document;
use evenkeel_wire::status::VmExplain;

const DISK_BYTES: u64 = 64 << 20;

/// Lets `web` read one block after the other beside `flood`, which always has 64 requests waiting
/// for a modelled hard disk, and returns what the daemon says about both.
fn flooded() -> [VmExplain; 2] {
    let dir = std::env::temp_dir().join(format!("evenkeel-explain-{}", std::process::id()));
    let _absent = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let disk = |name: &str| {
        let path = dir.join(format!("{name}.img"));
        format!("[pools.p.disks.{name}]\npath = {path:?}\ncreate = \"{DISK_BYTES}\"\n")
    };
    let pool = "[pools.p]\nscheduler = \"none\"\nmodel = \"hdd\"\n";
    let text = format!("socket_dir = {dir:?}\n{pool}{}{}", disk("web"), disk("flood"));
    let daemon = Arc::new(Daemon::start(&Document::read(&text).finish().unwrap(), &dir).unwrap());
    let api = Api::start(&dir.join("api.sock"), Arc::clone(&daemon) as Arc<dyn Control>).unwrap();
    let loader = |name: &str, depth| {
        let socket: PathBuf = dir.join(format!("{name}.sock"));
        let shape = Shape { op: IoOp::Read, pattern: Pattern::Random, block_bytes: 4096, depth };
        Loader::connect(&socket, shape, 1, 7, 0).unwrap()
    };
    let mut loaders = [loader("web", 1), loader("flood", 64)];
    drive(&mut loaders, Duration::from_secs(3)).unwrap();
    assert!(loaders.iter().all(|loader| loader.requests > 0));
    loaders.into_iter().for_each(|loader| loader.leave().unwrap());
    let mut explain = Client::new(&dir.join("api.sock")).explain().unwrap();
    drop(api);
    daemon.shutdown();
    fs::remove_dir_all(&dir).unwrap();
    let vms = explain.pools.remove(0).vms;
    let vm = |name: &str| vms.iter().find(|vm| vm.name == name).unwrap().clone();
    ["web", "flood"].map(vm)
}

fn sum_of_parts(vm: &VmExplain) -> u64 {
    let VmExplain { others_ns, own_ns, limited_ns, idled_ns, gathered_ns, .. } = vm;
    let blames = vm.blames.iter().map(|blame| blame.held_ns).sum::<u64>();
    blames + others_ns + own_ns + limited_ns + idled_ns + gathered_ns
}

#[test]
fn the_waits_of_a_quiet_vm_are_blamed_on_the_neighbour_that_floods() {
    let [web, flood] = flooded();
    println!("{web:#?}\n{flood:#?}");
    for vm in [&web, &flood] {
        assert_eq!(sum_of_parts(vm), vm.waited_ns, "the parts add up");
        assert!(vm.served_ns > 0 && vm.disks[0].requests > 0);
        assert_eq!((vm.limited_ns, vm.gathered_ns, vm.others_ns), (0, 0, 0));
    }
    let [blame] = &web.blames[..] else { unreachable!("there is one neighbour: {web:?}") };
    assert_eq!(blame.vm, "flood");
    assert!(blame.held_ns * 10 >= web.waited_ns * 9, "nine tenths at least: {web:?}");
    // The neighbour waits for itself, above all.
    assert!(flood.own_ns * 10 >= flood.waited_ns * 9, "{flood:?}");
    // What the disk's histogram says of each request adds up to the same.
    let total_ns = web.disks[0].queue_time.total_us * 1e3;
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let waited_ns = web.waited_ns as f64;
    assert!((total_ns - waited_ns).abs() <= waited_ns * 1e-6 + 1e3, "{total_ns} and {waited_ns}");
}
