//! The ranking: each line of the lock with its worst instruction in its worst situation.

use std::collections::BTreeMap;

use super::{Placebo, Row, Situation, SourcePlace, Tried, Tries};
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
        rows.sort_by(|a, b| b.lost.hodges_lehmann.total_cmp(&a.lost.hodges_lehmann));
        rows.iter_mut().zip(1..).for_each(|(row, rank)| row.rank = rank);
        rows
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
        let mut each = Vec::new();
        for (key, tried) in line.iter().flat_map(|(rip, _)| of(groups, *rip)) {
            each.extend(estimate(&losses(tried)).map(|lost| (*key, tried, lost)));
        }
        // One attempt may be chance: those with more come first.
        let (key, tried, lost) = each.into_iter().max_by(|a, b| {
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
            longest_wait_us: middle(|tried| beyond_us(tried.effect.longest_wait_ns)),
            blocked_us: middle(|tried| beyond_us(tried.effect.blocked_ns)),
            heals_us: heals.is_finite().then_some(heals),
            exposure,
            expected,
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

impl Situation {
    const FIRST: Self = Self { waiting: 0, asleep: false };
    const LAST: Self = Self { waiting: u32::MAX, asleep: true };
}

/// Attempts at an instruction, by situation.
fn of<'g, 'a>(
    groups: &'g Groups<'a>,
    rip: u64,
) -> impl Iterator<Item = (&'g (u64, Situation), &'g Vec<(usize, &'a Tried)>)> {
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
        Tried { rip, situation, seed: 1, vcpu: 0, instructions: 1, lost, effect: Effect::default() }
    }

    fn place(rip: u64) -> SourcePlace {
        SourcePlace { line: Some(format!("lock.rs:{}", rip / 10)), ..SourcePlace::default() }
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
    }
}
