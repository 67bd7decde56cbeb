//! Recorded schedules: when each vCPU of a guest was off its pCPU against its will.
//!
//! Read from what this project's own VMM recorded (`perfetto`), or from the text of `perf script` and `trace-cmd report` (`text`).
//! A vCPU that went to sleep did so for its lock: that time is not in here, since another lock decides anew.

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed;
mod perfetto;
mod text;

/// Most vCPUs of a schedule.
const MOST_VCPUS: u32 = 1024;
/// Most absences of all vCPUs together.
const MOST_ABSENCES: usize = 1 << 21;

/// A time in which a vCPU was ready and had no pCPU, from the start of the schedule on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Since when.
    pub from_ns: u64,
    /// Until when.
    pub until_ns: u64,
}

/// Absences of the vCPUs of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    name: String,
    sha256: String,
    /// For each vCPU, in order and apart.
    absences: Vec<Vec<Absence>>,
    length_ns: u64,
}

impl Schedule {
    /// The schedule in a file of any of the known kinds.
    ///
    /// # Errors
    /// What is wrong with the file, in one line.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let spells = match std::str::from_utf8(bytes) {
            Ok(text) if text.contains("sched_switch:") => text::read(text)?,
            _ if perfetto::looks_like(bytes) => perfetto::read(bytes)?,
            _ => {
                return Err(
                    "no trace of `haltkick run --trace`, and no line of text that has sched_switch: in it"
                        .into(),
                );
            }
        };
        Ok(Self { name: name.to_owned(), ..spells.finish()? })
    }

    /// The name that it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// With the digest of its file, by which records tell it from another one of this name.
    #[must_use]
    pub fn with_sha256(self, sha256: String) -> Self {
        Self { sha256, ..self }
    }

    /// The digest of its file; empty if it was given none.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Number of vCPUs: one more than the largest number that the file names.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.absences.len() as u32
    }

    /// The time that was recorded.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.length_ns
    }

    /// Number of absences.
    #[must_use]
    pub fn count(&self) -> usize {
        self.absences.iter().map(Vec::len).sum()
    }

    /// Number of absences that begin before `until_ns`.
    #[must_use]
    pub fn begun_by(&self, until_ns: u64) -> u64 {
        let begun = |of_vcpu: &Vec<Absence>| of_vcpu.partition_point(|it| it.from_ns < until_ns) as u64;
        self.absences.iter().map(begun).sum()
    }

    /// The absence of `vcpu` that goes on at `now_ns`, or else the next one.
    #[must_use]
    pub fn next(&self, vcpu: u32, now_ns: u64) -> Option<Absence> {
        let absences = self.absences.get(vcpu as usize)?;
        absences.get(absences.partition_point(|it| it.until_ns <= now_ns)).copied()
    }

    /// The part of `from_ns..until_ns` in which `vcpu` is absent.
    #[must_use]
    pub fn absent_ns(&self, vcpu: u32, from_ns: u64, until_ns: u64) -> u64 {
        let Some(absences) = self.absences.get(vcpu as usize) else { return 0 };
        let first = absences.partition_point(|it| it.until_ns <= from_ns);
        let within = absences[first..].iter().take_while(|it| it.from_ns < until_ns);
        within.map(|it| it.until_ns.min(until_ns) - it.from_ns.max(from_ns)).sum()
    }
}

/// Spells of vCPUs while a file is read.
#[derive(Default)]
struct Spells {
    absences: Vec<Vec<Absence>>,
    /// Since when each vCPU has been absent.
    open: Vec<Option<u64>>,
    count: usize,
    /// Range of time that counts.
    window_ns: Option<(u64, u64)>,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Spells {
    /// Something was seen at `at_ns`.
    fn passes(&mut self, at_ns: u64) {
        self.first_ns = Some(self.first_ns.map_or(at_ns, |first| first.min(at_ns)));
        self.last_ns = self.last_ns.max(at_ns);
    }

    /// `vcpu` has become absent at `at_ns`, or is so no longer.
    fn is_absent(&mut self, vcpu: u32, at_ns: u64, absent: bool) -> Result<(), String> {
        if vcpu >= MOST_VCPUS {
            return Err(format!("it names vCPU {vcpu}, and a guest has {MOST_VCPUS} at most"));
        }
        let index = vcpu as usize;
        if index >= self.absences.len() {
            self.absences.resize_with(index + 1, Vec::new);
            self.open.resize(index + 1, None);
        }
        self.passes(at_ns);
        match (self.open[index], absent) {
            (None, true) => self.open[index] = Some(at_ns),
            (Some(from_ns), false) => {
                self.open[index] = None;
                self.add(index, from_ns, at_ns)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, index: usize, from_ns: u64, until_ns: u64) -> Result<(), String> {
        let before_ns = self.absences[index].last().map_or(0, |last| last.until_ns);
        if until_ns < from_ns || from_ns < before_ns {
            return Err(format!("vCPU {index} goes back in time at {} us", from_ns / 1000));
        }
        if until_ns > from_ns {
            self.count += 1;
            self.absences[index].push(Absence { from_ns, until_ns });
        }
        if self.count > MOST_ABSENCES {
            return Err(format!("it has more than {MOST_ABSENCES} absences: record a shorter time"));
        }
        Ok(())
    }

    /// The schedule, from the start of the window on.
    fn finish(mut self) -> Result<Schedule, String> {
        for index in 0..self.open.len() {
            if let Some(from_ns) = self.open[index].take() {
                self.add(index, from_ns, self.last_ns.max(from_ns))?;
            }
        }
        let (from_ns, until_ns) = self.window_ns.unwrap_or((self.first_ns.unwrap_or(0), self.last_ns));
        let within = |it: &Absence| {
            let (from, until) = (it.from_ns.max(from_ns), it.until_ns.min(until_ns));
            (from < until).then(|| Absence { from_ns: from - from_ns, until_ns: until - from_ns })
        };
        let absences: Vec<Vec<_>> =
            self.absences.iter().map(|of_vcpu| of_vcpu.iter().filter_map(within).collect()).collect();
        let length_ns = until_ns.saturating_sub(from_ns);
        let schedule = Schedule { absences, length_ns, ..Schedule::default() };
        if schedule.count() == 0 {
            return Err("no vCPU was off its pCPU against its will in it".into());
        }
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::fuzzed::{PERF, TRACE_CMD};
    use super::*;

    fn at(from_us: u64, until_us: u64) -> Absence {
        Absence { from_ns: from_us * 1000, until_ns: until_us * 1000 }
    }

    #[test]
    fn both_programs_tell_of_the_same_schedule() {
        let (perf, trace_cmd) =
            (Schedule::parse("x", PERF.as_bytes()), Schedule::parse("x", TRACE_CMD.as_bytes()));
        let schedule = perf.expect("perf's text");
        assert_eq!(Ok(&schedule), trace_cmd.as_ref());
        // vCPU 1 slept, was woken and waited; what it slept is no absence. vCPU 0 is away when the recording ends.
        let expected = vec![vec![at(0, 50), at(80, 100)], vec![at(70, 75)]];
        assert_eq!((schedule.absences.clone(), schedule.length_ns()), (expected, 100_000));
        assert_eq!((schedule.vcpus(), schedule.count()), (2, 3));
        assert_eq!(schedule.next(0, 49_999), Some(at(0, 50)));
        assert_eq!((schedule.next(0, 50_000), schedule.next(0, 100_000)), (Some(at(80, 100)), None));
        assert_eq!((schedule.next(2, 0), schedule.absent_ns(2, 0, 9)), (None, 0));
        assert_eq!(schedule.absent_ns(0, 40_000, 90_000), 20_000);
    }

    #[test]
    fn a_vcpu_that_is_woken_while_it_runs_is_not_absent() {
        let woken = "\
           a b-9     [002]   100.000060: sched_wakeup:         CPU 0/KVM:1234 [120] CPU:002
           a b-9     [002]   100.000070: sched_wakeup:         CPU 1/KVM:1235 [120] CPU:003
";
        let (before, after) =
            TRACE_CMD.split_at(TRACE_CMD.find("       CPU 0/KVM-1234  [002]   100.000070").unwrap());
        let schedule = Schedule::parse("x", [before, woken, after].concat().as_bytes());
        assert_eq!(schedule, Schedule::parse("x", TRACE_CMD.as_bytes()));
    }

    #[test]
    fn what_is_no_schedule_is_refused_in_one_line() {
        let refused = |text: &str, expected: &str| {
            let error = Schedule::parse("x", text.as_bytes()).expect_err(text);
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        };
        refused("", "no trace of");
        refused("hello", "no trace of");
        refused(&PERF.replace("CPU ", "cpu "), "none of its threads");
        refused(&PERF.replace("100.000050:", "then"), "line 3: no time");
        refused(&PERF.replace("100.000050", "90.0"), "line 3: vCPU 0 goes back in time");
        refused(
            &PERF.replace("prev_state=R", "prev_state=S").replace("sched_wakeup", "other"),
            "no vCPU was off",
        );
        refused(&PERF.replace("CPU 1/KVM", "CPU 0/KVM"), "threads 1234 and 1235 are both");
        refused(&PERF.replace("CPU 1/KVM", "CPU 9999/KVM"), "it names vCPU 9999");
        refused(&PERF.replace("==>", "to"), "line 2: a switch without ==>");
        refused("\n\u{1}\u{2}", "in the midst of a packet");
    }
}
