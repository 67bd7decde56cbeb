//! Recorded schedules: when each vCPU of a guest was off its pCPU against its will.
//!
//! Read from what this project's own VMM recorded (`perfetto`), or from the text of `perf script`, `trace-cmd report` and ftrace
//! (`text`, `lines`).
//! A vCPU that went to sleep did so for its lock: that time is not in here, since another lock decides anew.

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed;
mod lines;
pub mod perfetto;
#[cfg(test)]
mod tests;
mod text;

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
    /// The name that it was given.
    pub name: String,
    /// The digest of its file, by which records tell it from another one of this name; empty if it was given none.
    pub sha256: String,
    /// For each vCPU, in order and apart.
    absences: Vec<Vec<Absence>>,
    /// The time that was recorded.
    pub length_ns: u64,
    /// Reasons not to trust it: events that were lost or not recorded, and contradictions.
    pub doubts: Option<String>,
}

impl Schedule {
    /// The schedule in a file of any of the known kinds.
    ///
    /// # Errors
    /// What is wrong with the file, in one line.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, String> {
        // A thread's name may have any bytes.
        let text = String::from_utf8_lossy(bytes);
        let spells = if perfetto::TracePacket::begins(bytes) && !lines::has_switch(&text) {
            perfetto::read(bytes)?
        } else if text.contains("sched_switch") {
            text::read(&text)?
        } else {
            return Err(
                "no trace of `haltkick run --trace`, and no line of text that has sched_switch: in it".into(),
            );
        };
        Ok(Self { name: name.to_owned(), ..spells.finish()? })
    }

    /// Number of vCPUs: one more than the largest number that the file names.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.absences.len() as u32
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

/// A reason not to trust a file, and how often it was seen.
struct Doubt {
    what: &'static str,
    /// The first line that shows it; 0 if the file has no lines.
    line: usize,
    count: u64,
}

/// Spells of vCPUs while a file is read.
#[derive(Default)]
struct Spells {
    absences: Vec<Vec<Absence>>,
    count: usize,
    /// Range of time that counts.
    window_ns: Option<(u64, u64)>,
    first_ns: Option<u64>,
    last_ns: u64,
    doubts: Vec<Doubt>,
}

impl Spells {
    /// Counts `what`, which a line shows.
    fn doubt(&mut self, what: &'static str, line: usize, count: u64) {
        match self.doubts.iter_mut().find(|doubt| doubt.what == what) {
            Some(doubt) => doubt.count = doubt.count.saturating_add(count),
            None => self.doubts.push(Doubt { what, line, count }),
        }
    }

    /// All doubts in one line.
    fn doubts(&self) -> Option<String> {
        let told = |&Doubt { what, line, count }: &Doubt| match line {
            0 => format!("{what} ({count})"),
            _ => format!("line {line}: {what} ({count} in all)"),
        };
        (!self.doubts.is_empty()).then(|| self.doubts.iter().map(told).collect::<Vec<_>>().join("; "))
    }

    /// Something was seen at `at_ns`.
    fn passes(&mut self, at_ns: u64) {
        self.first_ns = Some(self.first_ns.map_or(at_ns, |first| first.min(at_ns)));
        self.last_ns = self.last_ns.max(at_ns);
    }

    /// `vcpu` was seen at `at_ns`.
    fn sees(&mut self, vcpu: u32, at_ns: u64) -> Result<(), String> {
        if vcpu >= MOST_VCPUS {
            return Err(format!("it names vCPU {vcpu}, and a guest has {MOST_VCPUS} at most"));
        }
        let seen = self.absences.len().max(vcpu as usize + 1);
        self.absences.resize_with(seen, Vec::new);
        self.passes(at_ns);
        Ok(())
    }

    /// `vcpu`, which was seen, was absent.
    fn add(&mut self, vcpu: u32, from_ns: u64, until_ns: u64) -> Result<(), String> {
        let absences = &mut self.absences[vcpu as usize];
        let before_ns = absences.last().map_or(0, |last| last.until_ns);
        if until_ns < from_ns || from_ns < before_ns {
            return Err(format!("vCPU {vcpu} goes back in time at {} us", from_ns / 1000));
        }
        if until_ns > from_ns {
            self.count += 1;
            absences.push(Absence { from_ns, until_ns });
        }
        if self.count > MOST_ABSENCES {
            return Err(format!("it has more than {MOST_ABSENCES} absences: record a shorter time"));
        }
        Ok(())
    }

    /// The schedule, from the start of the window on.
    fn finish(self) -> Result<Schedule, String> {
        let (from_ns, until_ns) = self.window_ns.unwrap_or((self.first_ns.unwrap_or(0), self.last_ns));
        let within = |it: &Absence| {
            let (from, until) = (it.from_ns.max(from_ns), it.until_ns.min(until_ns));
            (from < until).then(|| Absence { from_ns: from - from_ns, until_ns: until - from_ns })
        };
        let absences: Vec<Vec<_>> =
            self.absences.iter().map(|of_vcpu| of_vcpu.iter().filter_map(within).collect()).collect();
        let length_ns = until_ns.saturating_sub(from_ns);
        let schedule = Schedule { absences, length_ns, doubts: self.doubts(), ..Schedule::default() };
        if schedule.count() == 0 {
            let doubts = schedule.doubts.map_or(String::new(), |doubts| format!(": {doubts}"));
            return Err(format!("no vCPU was off its pCPU against its will in it{doubts}"));
        }
        Ok(schedule)
    }
}
