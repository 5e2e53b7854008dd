//! The application of the demonstration: what it reads, in which order, and what that costs.

use evenkeel_sched::Nanos;

use crate::world::{File, Random, Startup};

/// How fast the CPUs of a guest are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CpuModel {
    /// From a request in the guest to the daemon.
    pub kick: Nanos,
    /// From the daemon's answer to the guest's handler.
    pub interrupt: Nanos,
    /// From there to the next instruction of who waited.
    pub wakeup: Nanos,
    /// A system call, and what a program does with its result.
    pub call: Nanos,
    /// Copying, and looking at, 4 KiB.
    pub page: Nanos,
    /// Least and most that a program computes after code came into memory: running it for the first
    /// time, so translating it where the CPU is emulated.
    pub fault: (Nanos, Nanos),
    /// Opening, checking and closing a file.
    pub file: Nanos,
    /// Making a program's threads.
    pub threads: Nanos,
}

impl CpuModel {
    /// Returns the CPU that QEMU emulates (TCG) on one shared core of a 2-core cloud machine: medians
    /// of five traces of idle starts recorded there on 2026-11-22.
    ///
    /// A random reader asks again 1.6 ms after an answer, a sequential one copies 128 KiB in 2 ms,
    /// faults of the program lie 2 to 22 ms apart, libraries of 100 KiB 9 ms, two threads together
    /// load a small file each millisecond, and 26 ms pass before the first of them.
    pub const EMULATED: Self = Self {
        kick: Nanos::from_micros(300),
        interrupt: Nanos::from_micros(600),
        wakeup: Nanos::from_micros(300),
        call: Nanos::from_micros(400),
        page: Nanos::from_micros(50),
        fault: (Nanos::from_micros(1_000), Nanos::from_micros(20_000)),
        file: Nanos::from_micros(1_500),
        threads: Nanos::from_millis(25),
    };

    /// Returns a CPU on which everything takes so many thousandths of the time.
    #[must_use]
    pub fn scaled(&self, permille: u64) -> Self {
        let scale = |time: Nanos| Nanos(time.0.saturating_mul(permille) / 1000);
        let (least, most) = self.fault;
        Self {
            kick: scale(self.kick),
            interrupt: scale(self.interrupt),
            wakeup: scale(self.wakeup),
            call: scale(self.call),
            page: scale(self.page),
            fault: (scale(least), scale(most)),
            file: scale(self.file),
            threads: scale(self.threads),
        }
    }

    /// Returns what a read of so many sectors costs its reader.
    #[must_use]
    pub const fn of_read(&self, sectors: u64) -> Nanos {
        Nanos(self.call.0 + sectors.div_ceil(BLOCK) * self.page.0)
    }

    /// Returns what loading a file of so many sectors costs: reading, and a check of every byte
    /// that costs as much as copying it.
    const fn of_file(&self, sectors: u64) -> Nanos {
        Nanos(self.file.0 + 2 * sectors.div_ceil(BLOCK) * self.page.0)
    }
}

/// A block of a file system, in sectors.
const BLOCK: u64 = 8;
/// What a fault reads, in sectors: 128 KiB around it.
const AROUND: u64 = 256;
/// Where the application lies on its guest's disk, and its program, in sectors.
const START: u64 = 67_848;
const PROGRAM: u64 = 2_960;
/// Faults of the program until it runs.
const FAULTS: u32 = 20;
/// Files in the order in which the file system laid them out: directory, files, least and most
/// bytes. Libraries are loaded first, then plug-ins, theme and settings.
const CONF: (u32, u64, u64) = (80, 200, 4 << 10);
const LIB: (u32, u64, u64) = (4, 60 << 10, 200 << 10);
const PLUGINS: (u32, u64, u64) = (16, 8 << 10, 48 << 10);
const THEME: (u32, u64, u64) = (104, 1 << 10, 8 << 10);

/// The application: a program, four libraries loaded one after another, and 200 small files.
#[derive(Clone, Debug)]
pub struct Application {
    faults: Vec<File>,
    libraries: Vec<File>,
    small: Vec<File>,
    cpu: CpuModel,
}

impl Application {
    /// Lays the application out. It is always the same one.
    #[must_use]
    pub fn new(cpu: &CpuModel) -> Self {
        let mut random = Random::new(0xde40);
        let mut at = START + BLOCK;
        let program = File { start: at, sectors: PROGRAM };
        at += PROGRAM;
        let mut lay = |(count, least, most): (u32, u64, u64)| -> Vec<File> {
            // The directory lies before its files.
            let sizes = (0..count).map(|_| random.within(least, most).div_ceil(4096) * BLOCK);
            std::iter::once(BLOCK)
                .chain(sizes)
                .map(|sectors| {
                    let start = at;
                    at += sectors;
                    File { start, sectors }
                })
                .collect()
        };
        let conf = lay(CONF);
        let mut libraries = lay(LIB);
        // Behind the directory of libraries: the list of everything, of 8 KiB.
        libraries.extend(lay((1, 8_192, 8_192)).pop());
        libraries.rotate_right(1);
        let mut small = lay(PLUGINS);
        small.extend(lay(THEME));
        small.extend(conf);
        let faults = fault(program, &mut random);
        Self { faults, libraries, small, cpu: *cpu }
    }

    /// Returns the part of its guest's disk where the application lies.
    #[must_use]
    pub const fn area() -> File {
        File { start: START, sectors: 8 * 2048 }
    }

    /// Returns how many files it opens, and of how many bytes together.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        let files = || self.libraries.iter().chain(&self.small).skip(1);
        (files().count(), files().map(|file| file.sectors * 512).sum())
    }

    /// Returns the main thread, up to where the others begin.
    #[must_use]
    pub fn main(&self, random: &mut Random) -> Startup {
        let (least, most) = self.cpu.fault;
        let directory = File { start: START, sectors: BLOCK };
        let mut reads = vec![(directory, self.cpu.call)];
        for &file in &self.faults {
            reads.push((file, Nanos(random.within(least.0, most.0))));
        }
        for &file in &self.libraries {
            reads.push((file, self.cpu.of_file(file.sectors)));
        }
        if let Some((_, think)) = reads.last_mut() {
            *think += self.cpu.threads;
        }
        Startup::of(Self::area(), &reads)
    }

    /// Returns the small files in the order in which the threads take them, with what each costs
    /// its thread: up to a fifth more or less.
    #[must_use]
    pub fn files(&self, random: &mut Random) -> Vec<(File, Nanos)> {
        let mut cost = |file: &File| {
            let think = self.cpu.of_file(file.sectors);
            Nanos(think.0 * random.within(800, 1_200) / 1_000)
        };
        self.small.iter().map(|file| (*file, cost(file))).collect()
    }
}

/// Returns what the faults of a program read: its header, then 128 KiB around pages that it has not
/// touched yet, in no order.
fn fault(program: File, random: &mut Random) -> Vec<File> {
    let end = program.start + program.sectors;
    let mut faults = vec![File { start: program.start, sectors: BLOCK }];
    let mut is_read = vec![false; usize::try_from(program.sectors / BLOCK).expect("it is small")];
    is_read[0] = true;
    while faults.len() < FAULTS as usize {
        let missing: Vec<u64> =
            (0..).zip(&is_read).filter(|(_, read)| !**read).map(|(page, _)| page).collect();
        let count = u64::try_from(missing.len()).expect("it is small");
        if count == 0 {
            break;
        }
        let chosen = usize::try_from(random.below(count)).expect("an index");
        let page = program.start + missing[chosen] * BLOCK;
        let start = page.saturating_sub(AROUND / 2).max(program.start);
        let file = File { start, sectors: AROUND.min(end - start) };
        let first = usize::try_from((start - program.start) / BLOCK).expect("it is small");
        let pages = usize::try_from(file.sectors / BLOCK).expect("it is small");
        is_read[first..first + pages].fill(true);
        faults.push(file);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_application_is_as_large_as_the_one_of_the_real_demonstration() {
        let application = Application::new(&CpuModel::EMULATED);
        let (files, bytes) = application.size();
        assert!((204..=210).contains(&files), "{files} files");
        assert!((1_500_000..2_400_000).contains(&bytes), "{bytes} bytes");
        assert!(application.faults.len() > 12);
        let area = Application::area();
        for file in application.faults.iter().chain(&application.libraries) {
            assert!(
                file.start >= area.start && file.start + file.sectors <= area.start + area.sectors
            );
        }
    }
}
