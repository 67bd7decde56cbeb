//! Executions of a program on arbitrary bytes, repeatable from a seed: a few in every test run, and as many as somebody has time
//! for (`just fuzz`). Not guided by coverage: the targets see to it that bytes get in.

use std::time::{Duration, Instant};

use crate::host::random::SplitMix;

/// So many where nobody says otherwise.
const FEW: u64 = 50;

fn given(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Says which execution it was that panicked.
struct Named<'t> {
    target: &'t str,
    seed: u64,
    number: u64,
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { target, seed, number } = self;
            eprintln!(
                "{target}: HALTKICK_FUZZ_SEED={seed} HALTKICK_FUZZ_FROM={number} HALTKICK_FUZZ_EXECUTIONS=1"
            );
        }
    }
}

/// Executes `execute` on arbitrary bytes, `most_bytes` at most: HALTKICK_FUZZ_EXECUTIONS times, or for HALTKICK_FUZZ_SECONDS, from
/// execution HALTKICK_FUZZ_FROM of HALTKICK_FUZZ_SEED on.
pub(crate) fn fuzz(target: &str, most_bytes: u64, execute: impl Fn(&[u8])) {
    let (seed, from) = (given("HALTKICK_FUZZ_SEED").unwrap_or(1), given("HALTKICK_FUZZ_FROM").unwrap_or(0));
    let time = given("HALTKICK_FUZZ_SECONDS").map(Duration::from_secs);
    let most = given("HALTKICK_FUZZ_EXECUTIONS").unwrap_or(if time.is_some() { u64::MAX } else { FEW });
    let began = Instant::now();
    let mut done = 0;
    while done < most && time.is_none_or(|time| began.elapsed() < time) {
        let number = from + done;
        let named = Named { target, seed, number };
        let mut random = SplitMix::stream(seed, number);
        let length = random.next() % (most_bytes + 1);
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        execute(&bytes);
        drop(named);
        done += 1;
    }
    println!("{target}: {done} executions in {:.1} s, seed {seed}", began.elapsed().as_secs_f64());
}

/// `whole` with some of its bytes changed, as `edits` say: three or four bytes for a place, and what is written there.
pub(crate) fn edited(whole: &[u8], edits: &[u8], from: usize) -> Vec<u8> {
    const INTERESTING: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, 1 << 63, u64::MAX];
    let mut bytes = whole.to_vec();
    for edit in edits.chunks_exact(8) {
        let place = u32::from_le_bytes([edit[0], edit[1], edit[2], 0]) as usize;
        let at = from + place % whole.len().saturating_sub(from).max(1);
        let value = match edit[3] % 3 {
            0 => INTERESTING[usize::from(edit[4] % 8)].wrapping_sub(u64::from(edit[5] % 4)),
            _ => u64::from(u32::from_le_bytes([edit[4], edit[5], edit[6], edit[7]])),
        };
        let length = [1, 2, 4, 8][usize::from(edit[3] >> 6)];
        for (slot, byte) in bytes[at..].iter_mut().zip(value.to_le_bytes()).take(length) {
            *slot = byte;
        }
    }
    bytes
}
