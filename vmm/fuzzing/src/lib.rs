//! Executions of a part of the program on arbitrary bytes.
//!
//! A [`Target`] says what is executed and what to begin with. Its unit test makes inputs up from a seed, repeatably: a
//! few in every test run, any number with the variables that [`Target::run`] names. The same targets are guided by
//! coverage in `fuzz/`, which begins with the inputs that the unit tests leave in HALTKICK_FUZZ_CORPUS. Their inputs
//! are short: [`Target::grow`] makes long ones.

mod sizes;

use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of inputs by default.
const FEW: u64 = 50;

/// A part of the program that takes bytes which may be anything.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name on the command line.
    pub name: &'static str,
    /// The longest input that is made up here.
    pub most_bytes: u64,
    /// Inputs that get in: what is wrong is best looked for near what is right. May be none.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// One execution. Panics if something does not hold.
    pub execute: fn(&[u8]),
}

fn given(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

impl Target {
    /// Executes on the seeds, and on what is made up: HALTKICK_FUZZ_EXECUTIONS times, or for HALTKICK_FUZZ_SECONDS, from execution
    /// HALTKICK_FUZZ_FROM of HALTKICK_FUZZ_SEED on. With HALTKICK_FUZZ_CORPUS, a directory, leaves some of the inputs there.
    pub fn run(&self) {
        let (seed, from) =
            (given("HALTKICK_FUZZ_SEED").unwrap_or(1), given("HALTKICK_FUZZ_FROM").unwrap_or(0));
        let time = given("HALTKICK_FUZZ_SECONDS").map(Duration::from_secs);
        let most = given("HALTKICK_FUZZ_EXECUTIONS").unwrap_or(if time.is_some() { u64::MAX } else { FEW });
        let seeds = (self.seeds)();
        seeds.iter().for_each(|seed| (self.execute)(seed));
        if let Some(corpus) = std::env::var_os("HALTKICK_FUZZ_CORPUS") {
            self.leave(Path::new(&corpus), &seeds, seed);
        }
        let began = Instant::now();
        let mut done = 0;
        while done < most && time.is_none_or(|time| began.elapsed() < time) {
            let number = from + done;
            let input = self.input(&seeds, seed, number);
            if let Err(panic) = catch_unwind(|| (self.execute)(&input)) {
                let name = self.name;
                eprintln!(
                    "{name}: HALTKICK_FUZZ_SEED={seed} HALTKICK_FUZZ_FROM={number} HALTKICK_FUZZ_EXECUTIONS=1"
                );
                resume_unwind(panic);
            }
            done += 1;
        }
        println!("{}: {done} executions in {:.1} s, seed {seed}", self.name, began.elapsed().as_secs_f64());
    }

    /// Input `number` of `seed`: any bytes, or a seed that was changed.
    fn input(&self, seeds: &[Vec<u8>], seed: u64, number: u64) -> Vec<u8> {
        let mut random = Random(Random(seed).draw() ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        let any = |random: &mut Random, most: u64| -> Vec<u8> {
            let length = random.draw() % (most + 1);
            (0..length).map(|_| random.draw() as u8).collect()
        };
        match seeds.get(random.draw() as usize % (seeds.len() * 8).max(1) / 7) {
            Some(whole) => {
                let edits = any(&mut random, 64);
                edited(whole, &edits, 0)
            }
            None => any(&mut random, self.most_bytes),
        }
    }

    /// Leaves inputs in `corpus`, in a directory of the target's own.
    fn leave(&self, corpus: &Path, seeds: &[Vec<u8>], seed: u64) {
        let directory = corpus.join(self.name);
        std::fs::create_dir_all(&directory).expect("the corpus can be written");
        let made_up: Vec<_> = (0..FEW).map(|number| self.input(seeds, seed, number)).collect();
        for (number, input) in seeds.iter().chain(&made_up).enumerate() {
            std::fs::write(directory.join(format!("seed-{number}")), input)
                .expect("the corpus can be written");
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, uniform in all of 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// `whole` with some of its bytes from `from` on changed, as `edits` say: three bytes for a place, one for how much, and what is
/// written there.
pub fn edited(whole: &[u8], edits: &[u8], from: usize) -> Vec<u8> {
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

/// Numbers out of bytes, as long as there are any, then zeros.
#[derive(Debug)]
pub struct Script<'s>(&'s [u8]);

impl<'s> Script<'s> {
    /// The numbers in `bytes`.
    pub fn new(bytes: &'s [u8]) -> Self {
        Self(bytes)
    }

    /// Whether only zeros will come.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'s [u8] {
        self.0
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Any number; small ones often.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::from_le_bytes([0; 8].map(|_: u8| self.byte())),
            253 => u64::from(self.byte()) << 56,
            252 => u64::from(self.byte()) << 20,
            small => u64::from(small),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_seeds_that_were_changed_and_now_and_then_anything() {
        let seeds = vec![vec![b'x'; 100], vec![b'y'; 100]];
        let target = Target { name: "itself", most_bytes: 16, seeds: Vec::new, execute: |_| () };
        let inputs_of = |seed| (0..1000).map(|number| target.input(&seeds, seed, number)).collect::<Vec<_>>();
        let inputs = inputs_of(1);
        assert!(inputs == inputs_of(1) && inputs != inputs_of(2), "they depend on the seed alone");
        let near = |letter: u8| {
            let is_near = |input: &&Vec<u8>| input.iter().filter(|byte| **byte == letter).count() > 40;
            inputs.iter().filter(is_near).count()
        };
        let (x, y) = (near(b'x'), near(b'y'));
        assert!(x > 300 && y > 300 && x + y < 1000, "{x} and {y} of 1000");
    }
}
