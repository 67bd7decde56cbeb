//! Whether an emulator is alive. QEMU 7.2 hangs like this where nested guests send each other interrupts: the threads
//! of the emulated CPUs go on forever, and the main thread, which has QEMU's timers and devices, never runs again.
//! (Seen by sampling the threads of six machines once a second or two, of which three hung: within a minute the CPU
//! time of the main thread did not grow by a hundredth of a second, that of each of the others by 30 to 40 seconds.
//! Before, it grew all the time.)

use std::path::Path;
use std::time::Duration;

/// The emulated CPUs have had so much CPU time since the main thread last ran. Its share of a host may be small, and it waits
/// for hundredths of a second at most: timers of the emulated machine end that.
const TOO_LONG: Duration = Duration::from_secs(15);

/// CPU time of an emulator's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) main: Duration,
    pub(crate) others: Duration,
}

/// The last time that the main thread was seen to have run.
#[derive(Default)]
pub(crate) struct Pulse(Option<Ran>);

impl Pulse {
    /// Whether the main thread has not run for too long.
    pub(crate) fn has_stopped(&mut self, now: Ran) -> bool {
        match self.0 {
            Some(last) if last.main == now.main => now.others.saturating_sub(last.others) >= TOO_LONG,
            _ => {
                self.0 = Some(now);
                false
            }
        }
    }
}

/// Returns the CPU time of the emulator below this process, if there is one and the kernel tells.
pub(crate) fn below(script: u32) -> Option<Ran> {
    let emulator = descendants(script).into_iter().find(|process| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
        // The kernel cuts names after 15 letters.
        name.is_ok_and(|name| name.starts_with("qemu-system"))
    })?;
    let tasks = std::fs::read_dir(format!("/proc/{emulator}/task")).ok()?;
    let mut ran = Ran { main: Duration::ZERO, others: Duration::ZERO };
    for task in tasks.flatten() {
        // A thread may have ended since.
        let Some(time) = ran_for(&task.path()) else { continue };
        let is_main = *task.file_name() == *emulator.to_string();
        *if is_main { &mut ran.main } else { &mut ran.others } += time;
    }
    (ran.main > Duration::ZERO).then_some(ran)
}

/// The first of the three numbers of `schedstat`: nanoseconds on a CPU.
fn ran_for(task: &Path) -> Option<Duration> {
    let numbers = std::fs::read_to_string(task.join("schedstat")).ok()?;
    numbers.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn descendants(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    let mut next = 0;
    while let Some(process) = found.get(next) {
        // Reads the child of a script: it has one thread.
        let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        found.extend(
            children.unwrap_or_default().split_ascii_whitespace().filter_map(|id| id.parse::<u32>().ok()),
        );
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(main: f64, others: f64) -> Ran {
        Ran { main: Duration::from_secs_f64(main), others: Duration::from_secs_f64(others) }
    }

    #[test]
    fn a_main_thread_that_runs_now_and_then_is_alive() {
        let mut pulse = Pulse::default();
        assert!((0..100).all(|i| !pulse.has_stopped(ran(0.3 + 1e-6 * f64::from(i), 14.0 * f64::from(i)))));
    }

    #[test]
    fn a_main_thread_idle_for_fifteen_seconds_of_the_others_hangs() {
        let mut pulse = Pulse::default();
        assert!(!pulse.has_stopped(ran(0.3, 100.0)));
        assert!(!pulse.has_stopped(ran(0.3, 114.9)));
        assert!(pulse.has_stopped(ran(0.3, 115.1)));
    }

    #[test]
    fn a_machine_that_waits_for_its_host_does_not_hang() {
        let mut pulse = Pulse::default();
        assert!((0..1000).all(|_| !pulse.has_stopped(ran(0.3, 20.0))));
    }

    #[test]
    fn the_emulators_main_thread_is_found_below_a_script() {
        let folder = std::env::temp_dir().join(format!("haltkick-pulse-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let emulator = folder.join("qemu-system-x");
        // Its only thread is busy: what it has is the main thread's.
        std::fs::copy("/bin/bash", &emulator).unwrap();
        let script = format!("timeout 20 {} -c 'while :; do :; done' & wait", emulator.display());
        let mut script = std::process::Command::new("bash").args(["-c", &script]).spawn().unwrap();
        let found = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            below(script.id())
        });
        for process in descendants(script.id()) {
            let id = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw).unwrap();
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
        script.wait().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(found.map(|ran| ran.others), Some(Duration::ZERO));
    }
}
