//! What an operator changes and reads of a running daemon.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use evenkeel_bench::client::IoOp;
use evenkeel_bench::client::load::{Loader, Pattern, Shape, drive};
use evenkeel_server::Daemon;
use evenkeel_server::api::{Api, Client, Control};
use evenkeel_wire::status::{GroupStatus, PoolStatus};
use evenkeel_wire::{Document, TunableValue};
use serde_json::{Value, json};

/// Changes of each terminal.
const CHANGES: u64 = 100;

/// A daemon with an API, in a directory that goes away with it.
struct Running {
    dir: PathBuf,
    daemon: Arc<Daemon>,
    api: Option<Api>,
}

impl Running {
    fn new(name: &str, pool: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        let _absent = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let text = format!("socket_dir = {dir:?}\n{pool}");
        let config = Document::read(&text).finish().unwrap();
        let daemon = Arc::new(Daemon::start(&config, &dir).unwrap());
        let control = Arc::clone(&daemon) as Arc<dyn Control>;
        let api = Some(Api::start(&dir.join("api.sock"), control).unwrap());
        Self { dir, daemon, api }
    }

    fn client(&self) -> Client {
        Client::new(&self.dir.join("api.sock"))
    }

    fn pool(&self) -> PoolStatus {
        self.client().status().unwrap().pool("p").unwrap().clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.api.take());
        self.daemon.shutdown();
        let _gone = fs::remove_dir_all(&self.dir);
    }
}

/// Changes one thing again and again, and sees after each change that it was made.
fn terminal(socket: &Path, change: impl Fn(u64) -> Value, read: impl Fn(&PoolStatus) -> Value) {
    let client = Client::new(socket);
    for round in 1..=CHANGES {
        let change = change(round);
        let pool = client.change_pool("p", &change).unwrap();
        let value = read(&pool);
        assert!(change.to_string().contains(&value.to_string()), "{change}, but {value}");
    }
}

#[test]
fn changes_from_several_terminals_at_once_keep_what_the_others_changed() {
    let running = Running::new(
        "terminals",
        "[pools.p]\nscheduler = \"bfq\"\n[pools.p.vms.shop]\n\
         [pools.p.disks.web]\npath = \"null:16M\"\nvm = \"shop\"\n",
    );
    let socket = running.dir.join("api.sock");
    let at = |value: &TunableValue| serde_json::to_value(value).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            terminal(
                &socket,
                |round| json!({ "bfq": { "slice_idle": round } }),
                |pool| at(&pool.tunables["bfq.slice_idle"]),
            );
        });
        scope.spawn(|| {
            terminal(
                &socket,
                |round| json!({ "bfq": { "timeout_sync": 100 + round } }),
                |pool| at(&pool.tunables["bfq.timeout_sync"]),
            );
        });
        scope.spawn(|| {
            terminal(&socket, |round| json!({ "depth": round }), |pool| json!(pool.depth));
        });
        scope.spawn(|| {
            terminal(
                &socket,
                |round| json!({ "vms": { "shop": { "weight": round } } }),
                |pool| json!(pool.vms[0].weight),
            );
        });
        scope.spawn(|| {
            terminal(
                &socket,
                |round| json!({ "disks": { "web": { "total_iops_sec": 1000 + round } } }),
                |pool| json!(pool.disks[0].limits.set["total_iops_sec"]),
            );
        });
    });
    let pool = running.pool();
    let tunables = serde_json::to_value(&pool.tunables).unwrap();
    assert_eq!(tunables["bfq.slice_idle"], json!(CHANGES));
    assert_eq!(tunables["bfq.timeout_sync"], json!(100 + CHANGES));
    assert_eq!(u64::from(pool.depth), CHANGES);
    assert_eq!(u64::from(pool.vms[0].weight), CHANGES);
    assert_eq!(pool.disks[0].limits.set["total_iops_sec"], 1000 + CHANGES);
}

/// Lets a disk write or read one block after the other for a moment; returns how many.
fn load(running: &Running, disk: &str, op: IoOp) -> u64 {
    let shape = Shape { op, pattern: Pattern::Random, block_bytes: 4096, depth: 1 };
    let socket = running.dir.join(format!("{disk}.sock"));
    let mut loaders = [Loader::connect(&socket, shape, 1, 7, 0).unwrap()];
    drive(&mut loaders, Duration::from_millis(300)).unwrap();
    let [loader] = loaders;
    let requests = loader.requests;
    assert!(requests > 0);
    loader.leave().unwrap();
    requests
}

fn group<'a>(groups: &'a [GroupStatus], name: &str) -> &'a GroupStatus {
    groups.iter().find(|group| group.name == name).unwrap()
}

#[test]
fn the_books_of_each_vm_and_each_group_are_told_and_outlive_a_change_of_the_scheduler() {
    let running = Running::new(
        "books",
        "[pools.p]\nscheduler = \"bfq\"\nmodel = \"ssd\"\n[pools.p.groups.gold]\n\
         [pools.p.vms.shop]\ngroup = \"gold\"\n\
         [pools.p.disks.web]\npath = \"null:16M\"\nvm = \"shop\"\n\
         [pools.p.disks.db]\npath = \"null:16M\"\n",
    );
    let reads = load(&running, "web", IoOp::Read);
    let writes = load(&running, "db", IoOp::Write);
    let pool = running.pool();
    let (shop, db) = (group(&pool.vms, "shop").io.unwrap(), group(&pool.vms, "db").io.unwrap());
    let (gold, all) = (group(&pool.groups, "gold").io.unwrap(), pool.io.unwrap());
    // The loader may have given up on requests that were still at the device.
    assert!(shop.read.serviced >= reads && shop.write.serviced == 0, "{shop:?}, {reads} reads");
    assert!(db.write.serviced >= writes && db.read.serviced == 0, "{db:?}, {writes} writes");
    assert_eq!(shop.read.service_bytes, shop.read.serviced * 4096);
    assert_eq!((shop.sync, shop.total), (shop.read, shop.read), "somebody waits for reads");
    assert!(shop.read.service_time_us > 0 && shop.queued == 0);
    assert_eq!(gold, shop, "a group has what its VMs have");
    assert_eq!(all.total.serviced, shop.total.serviced + db.total.serviced);

    running.client().change_pool("p", &json!({ "scheduler": "cfq" })).unwrap();
    let pool = running.pool();
    assert!(pool.io.is_none() && pool.vms.iter().all(|vm| vm.io.is_none()), "cfq keeps no books");
    running.client().change_pool("p", &json!({ "scheduler": "bfq" })).unwrap();
    let pool = running.pool();
    assert_eq!(group(&pool.vms, "shop").io.unwrap(), shop, "nothing is forgotten");
    assert_eq!((group(&pool.groups, "gold").io.unwrap(), pool.io.unwrap()), (gold, all));
}
