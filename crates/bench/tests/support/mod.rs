//! What the tests with guests share: one lab, one turn at a time, a fresh binary.

#![allow(clippy::allow_attributes, dead_code, reason = "no test uses all of it")]
#![allow(clippy::unwrap_used, reason = "this is test code, outside of a test function")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use evenkeel_bench::lab::{Evenkeel, Guest, Lab};

/// Waits for this test's turn: emulated guests side by side would starve each other of CPU.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed in its turn leaves nothing behind that the next one could stumble over.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab whose guests have what is in every guest.
pub(crate) fn lab() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| Lab::prepare(&Lab::default_dir().unwrap()).unwrap())
}

/// A lab whose guests also have fio; with its libraries it needs 512 MiB of memory.
pub(crate) fn lab_with_fio() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| Lab::prepare_with(&Lab::default_dir().unwrap(), &["fio"]).unwrap())
}

/// Fails if the guest's kernel has complained about its disk.
#[track_caller]
pub(crate) fn assert_no_disk_errors(guest: &Guest) {
    let complaints = "dmesg | grep -iE 'error|not a head|timed? ?out|hung task|blocked for more'";
    let output = guest.run(complaints).unwrap();
    assert_eq!((output.status, output.text().as_str()), (1, ""), "{}", guest.console());
}

/// The next number of a seeded sequence (xorshift64); print the seed.
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// An `evenkeel serve` of the sources as they are now.
pub(crate) fn evenkeel() -> Evenkeel {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        if std::env::var_os("EVENKEEL_BIN").is_some() {
            return;
        }
        // `cargo test` builds the program only for tests of its own package.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "evenkeel", "--bin", "evenkeel"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "evenkeel does not build");
    });
    Evenkeel::new().unwrap()
}

/// A directory for a test's images, on a real disk (O_DIRECT), removed when the test has passed.
pub(crate) struct Space(PathBuf);

impl Space {
    pub(crate) fn new(name: &str) -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// Runs a program of this machine and returns what it printed; it must succeed.
pub(crate) fn host(program: &str, args: &[&str], image: &Path) -> String {
    let output = Command::new(program).args(args).arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}\n{text}{errors}", output.status);
    text
}
