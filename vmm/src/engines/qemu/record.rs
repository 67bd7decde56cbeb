//! Records the guest's output on QEMU's debug console in the memory where our own guests have it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::guest::memory::Memory;
use crate::host::error::{RunError, system};
use crate::host::text::printable;
use crate::run::asked::OurGuest;

/// QEMU's exit codes for the guest's exit codes 0x10 and 0x11.
const DONE: i32 = 0x21;
const FAILED: i32 = 0x23;
/// Longest line of the guest's record, and how many may wait to be looked at.
const LONGEST_LINE: u64 = 4096;
const LINES_AT_ONCE: usize = 1024;
/// As much of the guest's own text is kept.
const CONSOLE_BYTES: usize = 64 << 10;
/// Time for everything but the window, however slow emulation is.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Said {
    pub(super) window_ticks: u64,
    pub(super) tsc_khz: u64,
    pub(super) by_hypercall: bool,
    pub(super) preempted_seen: bool,
    pub(super) ended: bool,
    pub(super) failed: Option<(bool, u32)>,
    /// It ended in another way than a guest should.
    pub(super) broke: Option<RunError>,
    pub(super) console: String,
    pub(super) start_up: Duration,
    pub(super) cpu_at_open: Duration,
    pub(super) cpu_at_close: Duration,
}

/// Takes down what the guest says, until QEMU ends.
pub(super) fn listen(
    qemu: &mut Child,
    memory: &Memory,
    asked: OurGuest<'_>,
    start: Instant,
    stop: &AtomicBool,
) -> Result<Said, RunError> {
    let lines = lines_of(qemu);
    let words = words_of(qemu);
    let mut said = Said::default();
    let mut refusal = None;
    let limit = asked.run.watchdog.unwrap_or(PATIENCE) + asked.run.warmup + asked.run.window;
    loop {
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => match line.strip_prefix("haltkick: ") {
                Some(line) => {
                    if let Some(reason) = take_down(line, &mut said, memory, qemu.id(), start) {
                        refusal = Some(reason);
                    }
                }
                None if said.console.len() < CONSOLE_BYTES => said.console.extend([&line, "\n"]),
                None => {}
            },
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        // Relaxed: polled; nothing else is read on the strength of it.
        if stop.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        if start.elapsed() > limit {
            let seconds = start.elapsed().as_secs_f64();
            said.broke =
                Some(RunError::NoProgress(format!("QEMU's guest has not ended after {seconds:.1} s")));
            return Ok(said);
        }
    }
    let status = qemu.wait().map_err(system("wait for QEMU"))?;
    if let Some(reason) = refusal {
        return Err(RunError::HostLacks(format!("--engine qemu: the guest says: {}", printable(&reason))));
    }
    match status.code() {
        // The machine resets itself when it has no handler for a fault, and QEMU was told to end then.
        Some(0) => {
            let reason = "it reset its machine (a fault without a handler) under QEMU".into();
            said.broke = Some(RunError::GuestFailed { vcpu: 0, reason });
            Ok(said)
        }
        Some(DONE) if said.ended && said.tsc_khz > 0 && said.window_ticks > 0 => Ok(said),
        Some(FAILED) if said.failed.is_some_and(|(_, vcpu)| vcpu < asked.guest.vcpus) => Ok(said),
        _ => Err(died(&words, &status.to_string())),
    }
}

fn lines_of(qemu: &mut Child) -> Receiver<String> {
    let output = qemu.stdout.take().expect("QEMU's output is a pipe");
    let (sender, receiver) = sync_channel(LINES_AT_ONCE);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(1..) if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_ok() => {}
                _ => return,
            }
        }
    });
    receiver
}

/// Returns QEMU's own first words, once it has closed that pipe. All is read as it comes, or QEMU would stop when the pipe
/// is full.
pub(super) fn words_of(qemu: &mut Child) -> Receiver<String> {
    let mut errors = qemu.stderr.take().expect("QEMU's errors are a pipe");
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut first = Vec::new();
        _ = errors.by_ref().take(LONGEST_LINE).read_to_end(&mut first);
        _ = std::io::copy(&mut errors, &mut std::io::sink());
        let lines = String::from_utf8_lossy(&first).lines().map(printable).collect::<Vec<_>>();
        _ = sender.send(lines.join("\n"));
    });
    receiver
}

/// QEMU ended without a record: what it had to say about that.
pub(super) fn died(words: &Receiver<String>, status: &str) -> RunError {
    // A child of its own may keep the pipe open.
    let text = words.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    let reason = text.lines().find(|line| !line.contains("warning")).unwrap_or("it says nothing");
    RunError::HostLacks(format!("--engine qemu: QEMU ended with {status} before the guest did: {reason}"))
}

/// One line of the record; the reason, if it says that there was no run. See `guest/src/monitor/record.rs`.
fn take_down(line: &str, said: &mut Said, memory: &Memory, qemu: u32, start: Instant) -> Option<String> {
    let mut words = line.split(' ');
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok()).unwrap_or(0);
    let hexadecimal = |word: Option<&str>| u64::from_str_radix(word.unwrap_or(""), 16).ok();
    match words.next()? {
        "booted" => said.start_up = start.elapsed(),
        "open" => said.cpu_at_open = cpu_time_of(qemu),
        "close" => {
            said.window_ticks = number(words.next());
            said.cpu_at_close = cpu_time_of(qemu);
        }
        "tsc_khz" => said.tsc_khz = number(words.next()),
        "kick" => said.by_hypercall = words.next() == Some("kvm"),
        "preempted_seen" => said.preempted_seen = true,
        "word" => {
            let (structure, index) = (words.next()?, number(words.next()) as u32);
            let (offset, value) = (hexadecimal(words.next())?, hexadecimal(words.next())?);
            memory.deposit(structure, index, offset, value);
        }
        "failed" => said.failed = Some((words.next() == Some("panic"), number(words.next()) as u32)),
        "end" => said.ended = true,
        "error" => return line.split_once(' ').map(|(_, reason)| reason.to_owned()),
        _ => {}
    }
    None
}

pub(super) fn cpu_time_of(process: u32) -> Duration {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // After the name, which may hold anything: state is field 3, user and system time are 14 and 15.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
        Some(fields.next()?.ok()? + fields.next()?.ok()?)
    };
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(ticks().unwrap_or(0) as f64 / per_second as f64)
}

/// Lines that call themselves the record of a guest under QEMU.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use std::time::Instant;

    use haltkick_fuzzing::Target;

    use super::{Said, take_down};
    use crate::guest::memory::Memory;

    pub(crate) const TARGET: Target = Target { name: "qemu", most_bytes: 64, seeds, execute };

    const WORDS: [&str; 12] = [
        "word ",
        "vcpu ",
        "control ",
        "oracle ",
        "entries ",
        "failed ",
        "panic ",
        "close ",
        "kick ",
        "tsc_khz ",
        "ffffffffffffffff ",
        "18446744073709551615 ",
    ];

    thread_local! {
        static MEMORY: Memory = Memory::new(5 << 20, 2, 0, 0).expect("a small guest's memory");
    }

    fn seeds() -> Vec<Vec<u8>> {
        let lines = [
            "word vcpu 0 8 1",
            "word control 0 10 2a",
            "failed panic 1",
            "tsc_khz 2000000",
            "error so it goes",
        ];
        lines.iter().map(|line| line.as_bytes().to_vec()).collect()
    }

    /// A line of known words and small numbers, and one of any text: taken down within shared memory, or dropped.
    fn execute(bytes: &[u8]) {
        let word = |byte: &u8| match WORDS.get(usize::from(byte % 16)) {
            Some(word) => (*word).to_owned(),
            None => format!("{byte:x} "),
        };
        let of_words: String = bytes.iter().take(8).map(word).collect();
        MEMORY.with(|memory| {
            for line in [of_words.as_str(), &String::from_utf8_lossy(bytes)] {
                _ = take_down(line, &mut Said::default(), memory, 0, Instant::now());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_no_run_is_the_rest_of_its_line() {
        let memory = Memory::new(5 << 20, 2, 0, 0).unwrap();
        let told = take_down("error so it goes", &mut Said::default(), &memory, 0, Instant::now());
        assert_eq!(told.as_deref(), Some("so it goes"));
    }
}
