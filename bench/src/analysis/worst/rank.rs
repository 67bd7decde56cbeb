//! The ranking: each line of the lock with its worst instruction in its worst situation.

use std::collections::BTreeMap;

use super::{Heat, Parts, Placebo, Row, Situation, SourcePlace, Tried, Tries};
use crate::analysis::pairs::{Averages, Ranked as _};
use crate::analysis::statistics::{Estimate, interval, median};

impl Tries {
    /// Effects of an exit alone.
    pub(crate) fn placebo(&self) -> Option<Placebo> {
        let mut sorted = self.placebo.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |share: f64| sorted[(share * last as f64).round() as usize];
        Some(Placebo { n: sorted.len(), median: at(0.5), band: [at(0.025), at(0.975)] })
    }

    /// Lines of the lock, the worst first, where `place` says where an instruction stands.
    pub(crate) fn rows(&self, place: &mut impl FnMut(u64) -> SourcePlace) -> Vec<Row> {
        let noise = self.placebo().map_or(0.0, |placebo| placebo.band[1]);
        let mut of_lines: BTreeMap<String, Vec<(u64, SourcePlace)>> = BTreeMap::new();
        let mut rips: Vec<u64> = self.preempted.iter().map(|tried| tried.rip).collect();
        rips.sort_unstable();
        rips.dedup();
        for rip in rips {
            let place = place(rip);
            let line = if place.line.is_some() { place.lines() } else { format!("{rip:#x}") };
            of_lines.entry(line).or_default().push((rip, place));
        }
        let groups = self.groups();
        let mut rows: Vec<Row> =
            of_lines.into_values().filter_map(|line| self.row(&groups, line, noise)).collect();
        let by_loss = |a: &Row, b: &Row| b.lost.hodges_lehmann.total_cmp(&a.lost.hodges_lehmann);
        // Two attempts that differ by much have a large mean, and show nothing.
        rows.sort_by(|a, b| b.beyond_noise.cmp(&a.beyond_noise).then(by_loss(a, b)));
        rows.iter_mut().zip(1..).for_each(|(row, rank)| row.rank = rank);
        rows
    }

    /// Notes the largest loss at each instruction of `map`.
    pub(crate) fn heat(&self, map: &mut [Heat]) {
        let groups = self.groups();
        for heat in map {
            let losses = of(&groups, heat.address).filter_map(|(_, tried)| estimate(&losses(tried)));
            heat.lost = losses.map(|lost| lost.hodges_lehmann).max_by(f64::total_cmp);
        }
    }

    /// Attempts by instruction and situation.
    fn groups(&self) -> Groups<'_> {
        let mut groups = Groups::new();
        for (index, tried) in self.preempted.iter().enumerate() {
            groups.entry((tried.rip, tried.situation)).or_default().push((index, tried));
        }
        groups
    }

    fn row(&self, groups: &Groups<'_>, line: Vec<(u64, SourcePlace)>, noise: f64) -> Option<Row> {
        let cells: Vec<_> = line.iter().flat_map(|(rip, _)| of(groups, *rip)).collect();
        let each = cells.iter().filter_map(|(key, tried)| Some((**key, *tried, estimate(&losses(tried))?)));
        // One attempt may be chance: those with more come first.
        let (key, tried, lost) = each.max_by(|a, b| {
            let rank = |it: &Estimate| (it.n >= self.seeds.min(3) as usize, it.hodges_lehmann);
            let (a, b) = (rank(&a.2), rank(&b.2));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        })?;
        let expected = line.iter().map(|(rip, _)| self.expected(groups, *rip)).sum();
        let exposure = line.iter().map(|(rip, _)| self.exposure_of(*rip)).sum();
        let middle = |figure: fn(&Tried) -> f64| {
            median(&tried.iter().map(|(_, tried)| figure(tried)).collect::<Vec<_>>())
        };
        let heals = middle(|tried| tried.effect.heals_ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e3));
        let (example, _) = *tried.iter().min_by(|a, b| {
            let off = |tried: &Tried| (tried.lost - lost.median).abs();
            off(a.1).total_cmp(&off(b.1))
        })?;
        Some(Row {
            rank: 0,
            address: key.0,
            place: line.into_iter().find(|(rip, _)| *rip == key.0)?.1,
            situation: key.1,
            beyond_noise: lost.interval.map_or(lost.hodges_lehmann, |interval| interval.low) > noise,
            lost,
            held_out: held_out(&cells),
            parts: Parts::mean(tried.iter().map(|(_, tried)| tried.parts)),
            longest_wait_us: middle(|tried| beyond_us(tried.effect.longest_wait_ns)),
            blocked_us: middle(|tried| beyond_us(tried.effect.blocked_ns)),
            heals_us: heals.is_finite().then_some(heals),
            exposure,
            expected,
            state: self.preempted[example].state.clone(),
            replay: None,
            example,
        })
    }

    fn exposure_of(&self, rip: u64) -> f64 {
        self.exposure.get(&rip).map_or(0.0, |sum| sum / f64::from(self.seeds.max(1)))
    }

    /// Expected loss that an instruction adds, by a preemption at a random moment: its situations count as often as they came by.
    fn expected(&self, groups: &Groups<'_>, rip: u64) -> f64 {
        let (mut sum, mut weight) = (0.0, 0.0);
        for ((_, situation), tried) in of(groups, rip) {
            let seen = self.seen.get(&(rip, *situation)).map_or(0.0, |seen| *seen as f64);
            let losses = losses(tried);
            sum += seen * losses.iter().sum::<f64>() / losses.len() as f64;
            weight += seen;
        }
        if weight > 0.0 { self.exposure_of(rip) * sum / weight } else { 0.0 }
    }
}

type Groups<'a> = BTreeMap<(u64, Situation), Vec<(usize, &'a Tried)>>;
/// An instruction in a situation, with the attempts there.
type Cell<'g, 'a> = (&'g (u64, Situation), &'g Vec<(usize, &'a Tried)>);

impl Situation {
    const FIRST: Self = Self { waiting: 0, asleep: false };
    const LAST: Self = Self { waiting: u32::MAX, asleep: true };
}

/// Attempts at an instruction, by situation.
fn of<'g, 'a>(groups: &'g Groups<'a>, rip: u64) -> impl Iterator<Item = Cell<'g, 'a>> {
    groups.range((rip, Situation::FIRST)..=(rip, Situation::LAST))
}

/// Estimate of losses, which may have either sign.
fn estimate(values: &[f64]) -> Option<Estimate> {
    (!values.is_empty()).then(|| Estimate {
        n: values.len(),
        median: median(values),
        hodges_lehmann: Averages::of(values).median(),
        interval: interval(values),
    })
}

/// Fewest seeds that a loss is held out of.
const FEWEST_HELD_OUT: usize = 3;

/// The loss of a line in seeds that have not chosen its worst cell: each seed's loss in the cell that is worst by the others' mean, if
/// it was tried in that cell; the mean over seeds.
fn held_out(cells: &[Cell<'_, '_>]) -> Option<f64> {
    let mut seeds: Vec<u64> =
        cells.iter().flat_map(|(_, tried)| tried.iter().map(|(_, tried)| tried.seed)).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let of_seed = |seed: &u64| {
        let parted = cells.iter().filter_map(|(_, tried)| {
            let (own, others): (Vec<&Tried>, Vec<&Tried>) =
                tried.iter().map(|(_, tried)| *tried).partition(|tried| tried.seed == *seed);
            (own.len() == 1 && others.len() + 1 >= FEWEST_HELD_OUT.min(seeds.len())).then(|| {
                (others.iter().map(|tried| tried.lost).sum::<f64>() / others.len() as f64, own[0].lost)
            })
        });
        parted.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, own)| own)
    };
    let held: Vec<f64> = seeds.iter().filter_map(of_seed).collect();
    (held.len() >= FEWEST_HELD_OUT).then(|| held.iter().sum::<f64>() / held.len() as f64)
}

fn losses(tried: &[(usize, &Tried)]) -> Vec<f64> {
    tried.iter().map(|(_, tried)| tried.lost).collect()
}

/// Microseconds of a figure that go beyond the one without the preemption.
fn beyond_us([with, without]: [u64; 2]) -> f64 {
    (with as f64 - without as f64) / 1e3
}

#[cfg(test)]
mod tests {
    use haltkick_vmm::worst::Effect;

    use super::*;

    fn tried(rip: u64, waiting: u32, lost: f64) -> Tried {
        let situation = Situation { waiting, asleep: false };
        let (parts, effect) = (Parts { idle: lost, ..Parts::default() }, Effect::default());
        Tried { rip, situation, seed: 1, vcpu: 0, instructions: 1, lost, parts, effect, state: None }
    }

    fn place(rip: u64) -> SourcePlace {
        SourcePlace { line: Some(format!("lock.rs:{}", rip / 10)), ..SourcePlace::default() }
    }

    #[test]
    fn a_loss_within_the_noise_ranks_behind_all_that_are_not() {
        let mut tries = Tries { seeds: 2, placebo: vec![-0.1, 0.1], ..Tries::default() };
        for attempt in [0.0, 10.0] {
            tries.preempted.push(tried(10, 0, 2.0 + attempt));
            tries.preempted.push(tried(20, 0, 3.0 + attempt / 100.0));
        }
        let rows = tries.rows(&mut place);
        let ranked: Vec<_> = rows.iter().map(|row| (row.rank, row.address, row.beyond_noise)).collect();
        assert_eq!(ranked, [(1, 20, true), (2, 10, false)]);
    }

    #[test]
    fn a_line_ranks_by_its_worst_instruction_in_its_worst_situation() {
        let mut tries = Tries { seeds: 3, ..Tries::default() };
        for attempt in [0.0, 0.1, 0.2] {
            tries.preempted.push(tried(10, 0, 0.1 + attempt));
            tries.preempted.push(tried(11, 0, 0.2 + attempt));
            tries.preempted.push(tried(11, 2, 3.0 + attempt));
            tries.preempted.push(tried(20, 1, 1.0 + attempt));
        }
        // A single attempt does not beat three.
        tries.preempted.push(tried(10, 3, 9.0));
        tries.placebo = vec![-0.2, 0.0, 1.05];
        tries.seen = [
            ((11, Situation { waiting: 0, asleep: false }), 3),
            ((11, Situation { waiting: 2, asleep: false }), 1),
        ]
        .into();
        tries.exposure = [(11, 0.3)].into();
        let rows = tries.rows(&mut place);
        let ranked: Vec<_> = rows.iter().map(|row| (row.rank, row.address, row.situation.waiting)).collect();
        assert_eq!(ranked, [(1, 11, 2), (2, 20, 1)]);
        assert!((rows[0].lost.hodges_lehmann - 3.1).abs() < 1e-9, "{rows:?}");
        assert_eq!([rows[0].beyond_noise, rows[1].beyond_noise], [true, false]);
        // A tenth of the time at the instruction, times the mean of both situations by how often they came by.
        assert!((rows[0].exposure - 0.1).abs() < 1e-9);
        assert!((rows[0].expected - 0.1 * (3.0 * 0.3 + 3.1) / 4.0).abs() < 1e-9, "{}", rows[0].expected);
        assert_eq!(tries.preempted[rows[0].example].lost, 3.1);
        assert!((rows[0].parts.idle - 3.1).abs() < 1e-9 && rows[0].held_out.is_none(), "{rows:?}");
    }

    #[test]
    fn the_largest_of_equal_cells_is_no_larger_in_other_seeds() {
        // Ten cells of one line, each large in one seed of ten by chance alone.
        let mut tries = Tries { seeds: 10, ..Tries::default() };
        for seed in 0..10_u64 {
            for cell in 0..10 {
                let lost = if u64::from(cell) == seed { 10.0 } else { 1.0 };
                let mut tried = tried(10, cell, lost);
                tried.seed = seed;
                tries.preempted.push(tried);
            }
        }
        let rows = tries.rows(&mut place);
        // In the nine seeds that choose, the cells that were large there are the worst: never the held-out seed's own.
        assert_eq!(rows[0].held_out, Some(1.0), "{rows:?}");
        // A cell that is worse in all seeds stays so.
        let worse = tries.preempted.iter_mut().filter(|tried| tried.situation.waiting == 3);
        worse.for_each(|tried| tried.lost = 7.0);
        assert_eq!(tries.rows(&mut place)[0].held_out, Some(7.0));
    }
}
