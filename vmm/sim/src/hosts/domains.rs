//! CPUs by what they share, and how often one of them has pulled tasks without success.

use std::sync::Arc;

use crate::hosts::policy::Host;
use crate::machine::Topology;

/// Attempts after which recent success is counted anew.
const WINDOW: u32 = 1024;

/// CPUs by what they share: one level per line, narrow ones first.
#[derive(Clone, Debug)]
pub(super) struct Domains {
    /// For each CPU its domains: SMT siblings, those of its cache, of its socket, all. Each holds the CPU itself.
    pub(super) of: Vec<[Vec<usize>; 4]>,
}

impl Domains {
    pub(super) fn new(topology: &Arc<Topology>, cpus: &[u32]) -> Self {
        let place = |cpu: usize| topology.place(cpus[cpu]);
        let all = 0..cpus.len();
        let where_same = |same: &dyn Fn(usize) -> bool| all.clone().filter(|cpu| same(*cpu)).collect();
        let of = all.clone().map(|cpu| {
            let own = place(cpu);
            [
                where_same(&|other| place(other).core == own.core),
                where_same(&|other| place(other).cluster == own.cluster),
                where_same(&|other| place(other).socket == own.socket),
                where_same(&|_| true),
            ]
        });
        Self { of: of.collect() }
    }

    pub(super) fn core(&self, cpu: usize) -> &[usize] {
        &self.of[cpu][0]
    }

    pub(super) fn cache(&self, cpu: usize) -> &[usize] {
        &self.of[cpu][1]
    }
}

/// One CPU's attempts to pull tasks.
#[derive(Clone, Debug)]
pub(super) struct Odds {
    attempts: u32,
    successes: u32,
    /// When it balances next, within its cache and among all.
    pub(super) due_ns: [u64; 2],
    /// Balances in a row that found one task more elsewhere.
    pub(super) found_one: u32,
    by_chance: bool,
}

impl Odds {
    pub(super) fn new(host: &Host) -> Self {
        Self { attempts: 1, successes: 1, due_ns: [0; 2], found_one: 0, by_chance: host.balance.by_chance }
    }

    /// Whether an attempt is made. `random` is any number.
    pub(super) fn tries(&self, random: u64) -> bool {
        !self.by_chance || random % u64::from(self.attempts) < u64::from(self.successes.max(1))
    }

    pub(super) fn tried(&mut self, is_success: bool) {
        self.attempts += 1;
        self.successes += u32::from(is_success);
        if self.attempts >= WINDOW {
            (self.attempts, self.successes) = (self.attempts / 2, self.successes / 2);
        }
    }
}
