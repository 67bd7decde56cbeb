//! On which pCPU a vCPU is to run: pure functions, for runners and, as far as it has queues of that kind, for a simulated machine.

use crate::sched::idle::PcpuSet;

/// The pCPU of `idle` on which a vCPU wakes up that ran on `last`: that one if it is idle, since the vCPU's caches are warm there and its
/// thread stays what it is; else the first of those with the least `distance`.
pub(crate) fn wakes_on<D: Ord>(
    last: Option<u32>,
    idle: &PcpuSet,
    distance: impl Fn(u32) -> D,
) -> Option<u32> {
    let warm = last.filter(|last| idle.contains(*last));
    warm.or_else(|| idle.iter().min_by_key(|pcpu| distance(*pcpu)))
}

/// The queue that a pCPU looks at in addition to its `own` of `queues`, at its `n`-th look: each of the others in turn. pCPUs that look equally
/// often look at different ones, so each queue has about one look a slice, whatever their number. Looks that follow each other go far, since
/// neighbours tend to be alike: those of long queues have long queues, too, as vCPUs start.
pub(crate) fn looks_at(own: usize, n: usize, queues: usize) -> Option<usize> {
    let others = queues.checked_sub(1).filter(|others| *others > 0)?;
    Some((own + 1 + n % others * stride(others) % others) % queues)
}

/// A step by which one comes to each of `others` in turn: about the golden section, which spreads steps most evenly.
fn stride(others: usize) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = others * 89 / 144;
    (golden.max(1)..).find(|step| divisor(*step, others) == 1).expect("a prime number is in reach")
}

/// Whether a pCPU takes from another queue whose first vCPU has had `other_ns`, rather than what it has itself at `own_ns`: if that is
/// behind by more than the `credit_ns` within which a vCPU is preferred where it ran last.
pub(crate) fn is_behind(other_ns: u64, own_ns: u64, credit_ns: u64) -> bool {
    other_ns.saturating_add(credit_ns) < own_ns
}

/// The other queues for a pCPU that has nothing in its `own` of `queues`: nearest first, by number.
pub(crate) fn nearest_first(own: usize, queues: usize) -> impl Iterator<Item = usize> {
    let (before, after) = (own, queues - 1 - own);
    (1..=before.max(after)).flat_map(move |far| {
        let above = (far <= after).then(|| own + far);
        let below = (far <= before).then(|| own - far);
        above.into_iter().chain(below)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pcpus: &[u32]) -> PcpuSet {
        let set = PcpuSet::new(300);
        pcpus.iter().for_each(|&pcpu| set.insert(pcpu));
        set
    }

    #[test]
    fn a_set_has_what_was_put_in_and_not_taken_out() {
        let pcpus = set(&[300, 0, 64, 63, 64]);
        assert_eq!(pcpus.iter().collect::<Vec<_>>(), [0, 63, 64, 300]);
        assert!(pcpus.remove(64) && !pcpus.remove(64) && !pcpus.remove(5));
        assert_eq!(pcpus.iter().collect::<Vec<_>>(), [0, 63, 300]);
    }

    #[test]
    fn a_vcpu_wakes_on_its_last_pcpu_if_that_is_idle() {
        let wakes = |last: Option<u32>, idle: &[u32]| {
            wakes_on(last, &set(idle), |pcpu| last.map(|last| pcpu.abs_diff(last)))
        };
        assert_eq!(wakes(Some(200), &[0, 199, 200]), Some(200));
        assert_eq!(wakes(Some(200), &[0, 150, 255]), Some(150));
        assert_eq!(wakes(None, &[7, 9]), Some(7));
        assert_eq!(wakes(Some(3), &[]), None);
    }

    #[test]
    fn pcpus_that_look_equally_often_look_at_different_queues() {
        for queues in [2, 3, 16, 256] {
            for n in 0..2 * queues {
                let mut seen = vec![false; queues];
                for own in 0..queues {
                    let other = looks_at(own, n, queues).expect("there are others");
                    assert!(other != own && !std::mem::replace(&mut seen[other], true));
                }
            }
        }
        assert_eq!(looks_at(0, 5, 1), None);
    }

    #[test]
    fn a_search_goes_through_all_others_nearest_first() {
        let found = |own, queues| nearest_first(own, queues).collect::<Vec<_>>();
        assert_eq!(found(1, 5), [2, 0, 3, 4]);
        assert_eq!(found(4, 5), [3, 2, 1, 0]);
        assert!(found(0, 1).is_empty());
    }
}
