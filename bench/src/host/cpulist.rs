//! CPU lists as perf, taskset and cgroups write them: `0,2-3`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::host::probe;
use crate::text::exit::{Failure, Result};

/// Host CPUs, ascending, without repetition, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<u32>);

/// Larger numbers are typing errors, and a range up to them would be too.
const HIGHEST_CPU: u32 = CpuSet::MAX_CPU as u32 - 1;

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first, text)?, number(last, text)?);
            if first > last {
                return Err(format!("'{part}' in '{text}' runs backwards: write {last}-{first}"));
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl CpuList {
    pub(crate) fn read(path: &Path) -> std::result::Result<Self, String> {
        probe::text(path)?.parse::<Self>().map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn number(part: &str, whole: &str) -> std::result::Result<u32, String> {
    let cpu: u32 = part.parse().map_err(|_| format!("'{whole}' is no CPU list: write it as 0,2-3"))?;
    if cpu > HIGHEST_CPU {
        return Err(format!("CPU {cpu} in '{whole}' is beyond the highest CPU number, {HIGHEST_CPU}"));
    }
    Ok(cpu)
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |run: &[u32]| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run[0].to_string(),
        };
        let ranges: Vec<String> = self.0.chunk_by(|cpu, next| cpu + 1 == *next).map(range).collect();
        f.write_str(&ranges.join(","))
    }
}

/// The CPUs that this process may run on.
pub(crate) fn allowed() -> Result<CpuList> {
    let set = sched_getaffinity(None).map_err(|error| mask_unread(error, HIGHEST_CPU + 1))?;
    Ok(CpuList((0..=HIGHEST_CPU).filter(|cpu| set.is_set(*cpu as usize)).collect()))
}

/// Why the mask of this process cannot be had, where `room` CPUs have room in it.
fn mask_unread(error: Errno, room: u32) -> Failure {
    match error {
        Errno::INVAL => Failure::lacking(format!(
            "this kernel counts more than {room} possible CPUs, and haltkick knows {room}: boot it with nr_cpus={room}"
        )),
        error => Failure::internal(format!("sched_getaffinity of this process: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::exit::Exit;

    #[test]
    fn a_kernel_with_too_many_cpus_is_an_error() {
        let failure = mask_unread(Errno::INVAL, 1024);
        assert_eq!(failure.exit, Exit::HostLacks);
        assert!(failure.message.contains("more than 1024") && failure.message.contains("nr_cpus=1024"));
    }
}
