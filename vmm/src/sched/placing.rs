//! On which pCPU a vCPU that wakes is to run: pure, for runners and for a simulated machine alike.

/// Some pCPUs, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PcpuSet {
    words: Vec<u64>,
    len: usize,
}

impl PcpuSet {
    /// Adds `pcpu`.
    pub(crate) fn insert(&mut self, pcpu: u32) {
        let (word, bit) = (pcpu as usize / 64, 1 << (pcpu % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.len += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    /// Removes `pcpu`, if it is there.
    pub(crate) fn remove(&mut self, pcpu: u32) {
        if self.contains(pcpu) {
            self.words[pcpu as usize / 64] &= !(1 << (pcpu % 64));
            self.len -= 1;
        }
    }

    /// Whether `pcpu` is there.
    pub(crate) fn contains(&self, pcpu: u32) -> bool {
        self.words.get(pcpu as usize / 64).is_some_and(|word| word >> (pcpu % 64) & 1 != 0)
    }

    /// The number of pCPUs.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let bits = |(word, at): (&u64, u32)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        };
        self.words.iter().zip(0..).filter(|(word, _)| **word != 0).flat_map(bits)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pcpus: &[u32]) -> PcpuSet {
        let mut set = PcpuSet::default();
        pcpus.iter().for_each(|&pcpu| set.insert(pcpu));
        set
    }

    #[test]
    fn a_set_has_what_was_put_in_and_not_taken_out() {
        let mut pcpus = set(&[300, 0, 64, 63, 64]);
        assert_eq!((pcpus.len(), pcpus.iter().collect::<Vec<_>>()), (4, vec![0, 63, 64, 300]));
        [64, 5, 4000].into_iter().for_each(|pcpu| pcpus.remove(pcpu));
        assert_eq!((pcpus.len(), pcpus.iter().collect::<Vec<_>>()), (3, vec![0, 63, 300]));
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
}
