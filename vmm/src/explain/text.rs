//! An explanation as people read it: one paragraph per lock and per group of vCPUs.

use std::fmt::{self, Display, Formatter};

use super::{Census, Explanation, Group, Location, LockState, Queue, Registered, place_name};
use crate::observe::Where;

/// Most numbers of vCPUs in one line.
const LONGEST_LIST: usize = 12;

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.verdict.text)?;
        if let Some(meeting) = &self.meeting {
            write!(f, "\n{meeting}")?;
        }
        self.locks.iter().try_for_each(|lock| write!(f, "\n{lock}"))?;
        let anybody_sleeps = self.vcpus.iter().any(|vcpu| vcpu.at == Where::Asleep);
        if let Some(sleepers) = &self.sleepers
            && (anybody_sleeps || !sleepers.entries.is_empty())
        {
            write!(f, "\n{sleepers}")?;
        }
        self.groups.iter().try_for_each(|group| write!(f, "\n{group}"))
    }
}

impl Display for LockState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "lock {}: ", self.lock)?;
        match (self.owner, self.last) {
            (Some(owner), _) => write!(f, "vCPU {owner} is inside now")?,
            (None, Some(last)) => write!(f, "no vCPU is inside now, vCPU {last} was last")?,
            (None, None) => write!(f, "no vCPU is inside now")?,
        }
        if let Some(left_ns) = self.left_ns {
            write!(f, " and left {} ago", duration(left_ns))?;
        }
        write!(f, ", {} sections entered by all vCPUs since boot", self.entered)?;
        let holders = if self.owner.is_none() { &self.holders[..] } else { &[] };
        if !holders.is_empty() {
            write!(f, "; just acquired or not yet released by vCPU {}", vcpu_list(holders))?;
        }
        for (what, vcpus) in [("first in the queue", &self.heads), ("waiting", &self.waiters)] {
            if !vcpus.is_empty() {
                write!(f, "; {what}: vCPU {}", vcpu_list(vcpus))?;
            }
        }
        writeln!(f)?;
        match &self.word {
            Some(word) => {
                writeln!(f, "  word {:#010x} at {:#x}: {}", word.value, word.address, word.meaning)?
            }
            None => {
                writeln!(f, "  word not decoded: the guest does not say where it lies and what it means")?
            }
        }
        self.queue.as_ref().filter(|queue| !queue.vcpus.is_empty()).map_or(Ok(()), |queue| queue.fmt(f))
    }
}

impl Display for Queue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "  queue: ")?;
        if !self.from_head {
            write!(f, "(perhaps others, not linked yet) ")?;
        }
        let mut vcpus: Vec<_> = self.vcpus.iter().map(ToString::to_string).collect();
        let between = LONGEST_LIST..vcpus.len() - 1;
        if !between.is_empty() {
            let more = format!("... ({} more)", between.len());
            _ = vcpus.splice(between, [more]);
        }
        writeln!(f, "vCPU {}", vcpus.join(", "))
    }
}

impl Display for Census {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "registered as asleep, for unlock to kick: {} of {} entries",
            self.entries.len(),
            self.capacity
        )?;
        self.entries.iter().take(LONGEST_LIST).try_for_each(|entry| entry.fmt(f))?;
        match self.entries.len().saturating_sub(LONGEST_LIST) {
            0 => Ok(()),
            more => writeln!(f, "  ... ({more} more)"),
        }
    }
}

impl Display for Registered {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.lock {
            Some(lock) => write!(f, "  lock {lock}: ")?,
            None => write!(f, "  {:#x}, which is no lock of this run: ", self.address)?,
        }
        match self.vcpu {
            Some(vcpu) => write!(f, "vCPU {vcpu}")?,
            None => write!(f, "no vCPU")?,
        }
        match self.ticket {
            Some(ticket) => writeln!(f, ", with ticket {ticket}"),
            None => writeln!(f),
        }
    }
}

impl Display for Group {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.vcpus[..] {
            [vcpu] => write!(f, "vCPU {vcpu}: ")?,
            _ => write!(f, "{} vCPUs ({}): ", self.vcpus.len(), vcpu_list(&self.vcpus))?,
        }
        f.write_str(&place_name(self.place).replace('-', " "))?;
        if let Some(off_ns) = self.off_ns {
            write!(f, " for {}", range(off_ns))?;
        }
        if let Some(lock) = self.lock {
            let does = match self.activity {
                "holder" => "holds",
                "head" => "first in the queue of",
                _ => "waits for",
            };
            write!(f, ", {does} lock {lock}")?;
        }
        if let Some(asked_ns) = self.asked_ns {
            write!(f, ", asked {} ago", range(asked_ns))?;
        }
        writeln!(f)?;
        self.at.as_ref().map_or(Ok(()), |at| at.fmt_as("at", f))?;
        self.called_from.as_ref().map_or(Ok(()), |at| at.fmt_as("called from", f))
    }
}

impl Location {
    /// Writes the place behind a word that says how it is related to a vCPU.
    pub(super) fn fmt_as(&self, how: &str, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.symbol {
            Some(symbol) => writeln!(f, "  {how} {symbol} ({:#x})", self.address)?,
            None => writeln!(f, "  {how} {:#x}, outside the image's code", self.address)?,
        }
        let ours = self.frames.iter().skip_while(|frame| frame.is_library());
        for frame in ours {
            match &frame.function {
                Some(function) => writeln!(f, "     {frame} in {function}")?,
                None => writeln!(f, "     {frame}")?,
            }
        }
        for line in &self.code {
            let mark = if line.address == self.address { '>' } else { ' ' };
            writeln!(f, "   {mark} {:#x}  {}", line.address, line.text)?;
        }
        Ok(())
    }
}

fn range([least, most]: [u64; 2]) -> String {
    match (duration(least), duration(most)) {
        (least, most) if least == most => least,
        (least, most) => format!("{least} to {most}"),
    }
}

/// Nanoseconds in the unit that fits, to three digits.
pub(super) fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

/// Numbers in order, as `0-3,7`; cut where there are too many.
pub(super) fn vcpu_list(vcpus: &[u32]) -> String {
    let mut sorted = vcpus.to_vec();
    sorted.sort_unstable();
    let ranges = sorted.chunk_by(|one, next| one + 1 == *next).map(|range| match range {
        [first, .., last] => format!("{first}-{last}"),
        _ => range[0].to_string(),
    });
    let mut parts: Vec<_> = ranges.take(LONGEST_LIST + 1).collect();
    if let Some(more) = parts.get_mut(LONGEST_LIST) {
        *more = "...".into();
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_vcpus_are_short() {
        assert_eq!(vcpu_list(&[7, 0, 1, 2]), "0-2,7");
        assert_eq!(vcpu_list(&[]), "");
        let odd: Vec<u32> = (0..1024).step_by(2).collect();
        assert!(vcpu_list(&odd).len() < 60);
    }

    #[test]
    fn the_count_of_entries_is_not_given_for_the_vcpu_inside() {
        let (owner, holders) = (Some(3), vec![3]);
        let mut lock = LockState { owner, last: owner, holders, entered: 101, ..LockState::default() };
        let first = |lock: &LockState| lock.to_string().lines().next().unwrap().to_owned();
        assert_eq!(
            first(&lock),
            "lock 0: vCPU 3 is inside now, 101 sections entered by all vCPUs since boot"
        );
        lock.owner = None;
        lock.left_ns = Some(2_000_000_000);
        assert_eq!(
            first(&lock),
            "lock 0: no vCPU is inside now, vCPU 3 was last and left 2.00 s ago, 101 sections entered by all vCPUs since boot; \
             just acquired or not yet released by vCPU 3"
        );
    }

    #[test]
    fn durations_have_three_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_234, "1.23 us"),
            (999_999_999, "1000 ms"),
            (1_500_000_000, "1.50 s"),
            (12_340_000_000, "12.3 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }
}
