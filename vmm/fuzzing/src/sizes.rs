//! Long inputs: an input of four times the length may take about four times as long, not sixteen.

use std::fs;
use std::time::Duration;

use crate::Target;

/// Length of the shorter inputs.
const BYTES: usize = 16 << 10;
/// How many times as long the longer ones are.
const LONGER: usize = 4;
/// Most time for the longer input, in times of the shorter one. Linear is 4, quadratic 16.
const MOST: u32 = 9;
/// A shorter time is no measure.
const LEAST: Duration = Duration::from_millis(50);
/// Bytes of which a long input consists.
const BEHIND: &[u8] = b"[{(\"'a0,.=#- \n\\";
/// Lines of a seed that are tried alone.
const LINES: usize = 16;

impl Target {
    /// Executes on long inputs that look like the seeds: their text again and again, one line of it, one byte. Panics where
    /// time grows faster than length.
    pub fn grow(&self) {
        let mut shapes = 0;
        for (number, seed) in (self.seeds)().iter().enumerate().filter(|(_, seed)| seed.len() > 8) {
            for (what, [start, repeated]) in shapes_of(seed) {
                let took = [BYTES, BYTES * LONGER].map(|length| {
                    let mut input = start.to_vec();
                    input.extend(repeated.iter().cycle().take(length));
                    cpu_time_of(|| (self.execute)(&input))
                });
                let most = took[0].max(LEAST) * MOST;
                assert!(
                    took[1] <= most,
                    "{}: seed {number}, {what}: {BYTES} bytes take {:?}, {LONGER} times as many {:?}",
                    self.name,
                    took[0],
                    took[1]
                );
                shapes += 1;
            }
        }
        println!("{}: {shapes} shapes of {BYTES} and of {} bytes", self.name, BYTES * LONGER);
    }
}

/// Shapes of long inputs: a name, the beginning, and what is repeated after it.
fn shapes_of(seed: &[u8]) -> impl Iterator<Item = (String, [&[u8]; 2])> {
    let half = &seed[..seed.len() / 2];
    let lines = seed.split_inclusive(|byte| *byte == b'\n').filter(|line| line.len() > 1).take(LINES);
    let line = |line| (format!("{:?} again and again", String::from_utf8_lossy(line)), [&seed[..0], line]);
    let behind = move |byte: usize| {
        (format!("half of it and {:?}", char::from(BEHIND[byte])), [half, &BEHIND[byte..=byte]])
    };
    let whole = ("all of it again and again".to_owned(), [&seed[..0], seed]);
    std::iter::once(whole).chain(lines.map(line)).chain((0..BEHIND.len()).map(behind))
}

/// CPU time of this thread alone, which other work does not lengthen.
fn cpu_time_of(execute: impl FnOnce()) -> Duration {
    let now = || {
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
        Duration::from_nanos(ns.expect("Linux says how long a thread has run"))
    };
    let began = now();
    execute();
    now().saturating_sub(began)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "4 times as many")]
    fn time_that_grows_with_the_square_is_found() {
        let execute = |input: &[u8]| {
            let equal = |at: usize| input[..at].iter().filter(|byte| **byte == input[at]).count();
            std::hint::black_box((0..input.len()).step_by(16).map(equal).sum::<usize>());
        };
        let seeds = || vec![b"a line of text\nanother one\n".to_vec()];
        Target { name: "itself", most_bytes: 16, seeds, execute }.grow();
    }
}
