//! pCPUs that have nothing to run: how a vCPU that becomes ready finds one, and how the last one notices that it is the last.
//!
//! No lock is common to both sides. A pCPU enters, then looks for ready vCPUs once more before it sleeps. A thread that has made a vCPU
//! ready looks for an idle pCPU afterwards. Between its write and its read each has a SeqCst fence, so one of them at least sees the
//! other; `tests/models.rs` has the tests, under the model checker.

use super::sync::{AtomicU64, Ordering, fence};

/// Some pCPUs, by number.
#[derive(Debug)]
pub(crate) struct PcpuSet(Vec<AtomicU64>);

impl PcpuSet {
    /// An empty set, with room for pCPUs 0 to `highest`.
    pub(crate) fn new(highest: u32) -> Self {
        Self((0..=highest / 64).map(|_| AtomicU64::new(0)).collect())
    }

    /// The word of `pcpu`, which there must be room for, and its bit.
    fn bit(&self, pcpu: u32) -> (&AtomicU64, u64) {
        (&self.0[pcpu as usize / 64], 1 << (pcpu % 64))
    }

    pub(crate) fn insert(&self, pcpu: u32) {
        let (word, bit) = self.bit(pcpu);
        // AcqRel, as in `remove`: a pCPU that is taken out has entered before.
        word.fetch_or(bit, Ordering::AcqRel);
    }

    /// Removes `pcpu`. Whether it was there: of several that remove it one has done so.
    pub(crate) fn remove(&self, pcpu: u32) -> bool {
        let (word, bit) = self.bit(pcpu);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    pub(crate) fn contains(&self, pcpu: u32) -> bool {
        let (word, bit) = self.bit(pcpu);
        // Relaxed, as in `iter`: what matters is removed, not looked at.
        word.load(Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.0.iter().zip(0..).map(|(word, at)| (word.load(Ordering::Relaxed), at));
        words.filter(|(word, _)| *word != 0).flat_map(|(word, at): (u64, u32)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        })
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

/// The idle pCPUs of a run, in cache lines of their own.
#[repr(align(128))]
pub(crate) struct Idle {
    /// Idle pCPUs for which no vCPU has been found yet.
    pub(crate) set: PcpuSet,
    pcpus: u64,
    /// The number of those that are idle by their own account, and above it how often one has become so.
    census: AtomicU64,
}

/// A state of the census: the same again if no pCPU has become idle meanwhile, or ceased to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Census(u64);

const NUMBER_BITS: u32 = 16;

impl Idle {
    /// No pCPU is idle, of this number of pCPUs, whose numbers end with `highest`.
    pub(crate) fn new(pcpus: usize, highest: u32) -> Self {
        assert!(pcpus < 1 << NUMBER_BITS, "the census has room for fewer pCPUs");
        Self { set: PcpuSet::new(highest), pcpus: pcpus as u64, census: AtomicU64::new(0) }
    }

    /// `pcpu` holds no vCPU and has found none. It looks once more after this.
    pub(crate) fn enter(&self, pcpu: u32) -> Census {
        self.set.insert(pcpu);
        let one_more = 1 + (1 << NUMBER_BITS);
        // AcqRel: who sees the last of them enter sees all that each has done before.
        let census = self.census.fetch_add(one_more, Ordering::AcqRel).wrapping_add(one_more);
        // Partner: `look`.
        fence(Ordering::SeqCst);
        Census(census)
    }

    /// `pcpu` looks for a vCPU again: it calls this before it takes one.
    pub(crate) fn leave(&self, pcpu: u32) {
        self.set.remove(pcpu);
        self.census.fetch_sub(1, Ordering::AcqRel);
    }

    /// The pCPUs that are idle, for a thread that has made a vCPU ready.
    pub(crate) fn look(&self) -> &PcpuSet {
        // Partner: `enter`.
        fence(Ordering::SeqCst);
        &self.set
    }

    pub(crate) fn were_all(&self, census: Census) -> bool {
        census.0 % (1 << NUMBER_BITS) == self.pcpus
    }

    pub(crate) fn is_as(&self, census: Census) -> bool {
        // Acquire: with what was read before this call.
        fence(Ordering::SeqCst);
        self.census.load(Ordering::Acquire) == census.0
    }
}
