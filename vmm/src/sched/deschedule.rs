//! Deschedules vCPUs on purpose: which, when, and for how long.
//!
//! Every thread that runs vCPUs has an [`Injector`] of its own with its share of the rate. Arrivals are a Poisson process
//! from the run's seed. An arrival waits for the first vCPU on that thread that does what the policy asks for: the
//! thread looks at every exit, and calls its vCPU out at random moments until one fits. It cannot see more: what a
//! running vCPU does is known for sure only once it has stopped.
//!
//! At a point (`at=`) the vCPU comes out by itself, through a doorbell, and there is nothing to search.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::guest::Activity;
use crate::host::error::Refused;
use crate::host::random::SplitMix;
use crate::image::file::{Entry, Image};
use crate::image::object::MOST_POINTS;

/// The vCPUs to take off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The owner of a lock.
    Holder,
    /// The first in a lock's queue.
    Head,
    /// Anyone else who waits.
    Waiter,
    /// Any vCPU.
    Random,
}

impl Target {
    /// All, with their names on the command line.
    pub const NAMES: [(&'static str, Self); 4] =
        [("holder", Self::Holder), ("head", Self::Head), ("waiter", Self::Waiter), ("random", Self::Random)];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, target)| *target == self).map_or("", |(name, _)| name)
    }

    /// The activity of a vCPU that passes `point`, if the point tells.
    #[must_use]
    pub fn of_point(point: &Entry) -> Option<Self> {
        let passes = Activity::said(point.flags);
        let mut targets = Self::NAMES.into_iter().map(|(_, target)| target);
        targets.find(|target| *target != Self::Random && target.fits(passes))
    }

    pub(crate) fn fits(self, activity: Activity) -> bool {
        match self {
            Self::Holder => activity == Activity::Holder,
            Self::Head => activity == Activity::Head,
            Self::Waiter => activity == Activity::Waiter,
            Self::Random => true,
        }
    }
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HowOften {
    /// This many times a second in the whole guest, at random moments.
    PerSecond(f64),
    /// With this probability in each slice of each pCPU; at a point, each time that it is passed.
    Probability(f64),
}

/// Deliberate descheduling.
#[derive(Clone, Debug, PartialEq)]
pub struct Deschedule {
    /// The vCPUs to deschedule.
    pub target: Target,
    /// How often.
    pub how_often: HowOften,
    /// For how long at least: after that the vCPU is ready, and waits for its turn.
    pub length: Duration,
    /// The name of a point in the lock's slow path; `None`: anywhere.
    pub at: Option<String>,
}

/// Shortest and longest time that a vCPU can be taken off for.
const LENGTHS: RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_secs(10);

impl Deschedule {
    /// Checks that this can be done to `lock` of `image` in `workload`. Returns the number of the point, if it is to be at one.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn check(&self, lock: &Entry, workload: &Entry, image: &Image) -> Result<Option<u32>, Refused> {
        let refuse_if = |is_wrong, message: String| Refused::when(is_wrong, "deschedule", message);
        let length = self.length;
        refuse_if(!LENGTHS.contains(&length), format!("for={length:?} is out of range: 1us to 10s"))?;
        let (is_out, message) = match self.how_often {
            HowOften::PerSecond(rate) => (
                !(rate > 0.0 && rate <= 1e6),
                format!("rate={rate} is out of range: above 0, at most 1000000 a second"),
            ),
            HowOften::Probability(chance) => (
                !(chance > 0.0 && chance <= 1.0),
                format!("prob={chance} is out of range: above 0, at most 1"),
            ),
        };
        refuse_if(is_out, message)?;
        let (what, is_random) = ("deschedule random vCPUs, or", self.target == Target::Random);
        let message = format!("no vCPU holds or awaits lock '{}': {what} take another lock", lock.name);
        refuse_if(lock.is_lock_free() && !is_random, message)?;
        // A point lies in a lock's slow path, which a workload without locks never reaches either.
        if !workload.takes_locks() && (!is_random || self.at.is_some()) {
            let all = image.workloads.iter().filter(|entry| entry.takes_locks() && !entry.is_selftest());
            let (name, all) = (&workload.name, names(all));
            let message =
                format!("no vCPU holds or awaits a lock in workload '{name}': {what} use one of {all}");
            return Err(Refused::new("deschedule", message));
        }
        let Some(at) = &self.at else { return Ok(None) };
        let Some(position) = image.points.iter().position(|point| point.name == *at) else {
            let message = format!("unknown point '{at}': there is {}", names(&image.points));
            return Err(Refused::new("deschedule", message));
        };
        let with = names(image.locks.iter().filter(|lock| lock.has_points()));
        refuse_if(!lock.has_points(), format!("lock '{}' has no points: use {with}", lock.name))?;
        if let Some(doing) = Target::of_point(&image.points[position]).filter(|_| !is_random) {
            let (wanted, passes) = (self.target.name(), doing.name());
            let message = format!("no {wanted} passes '{at}': use {passes} or random, or another point");
            refuse_if(self.target != doing, message)?;
        }
        let message = format!(
            "point '{at}' is number {position} of the image, whose locks can be stopped at the first {MOST_POINTS} only"
        );
        Refused::when(position >= MOST_POINTS, "", message)?;
        Ok(Some(position as u32))
    }

    /// Refuses what needs to be known of a vCPU of a Linux guest.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn check_for_linux(&self) -> Result<(), Refused> {
        let message = "it is not known what a vCPU of a Linux guest is doing: use random, without at=";
        Refused::when(self.target != Target::Random || self.at.is_some(), "deschedule", message)
    }
}

/// The names of these entries, as a list in a sentence.
pub(crate) fn names<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    entries.into_iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The descheduling of one run, with its names looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) length_ns: u64,
    /// Index of the point; `None`: anywhere.
    pub(crate) point: Option<u32>,
    /// Arrivals per nanosecond in the whole guest; 0: none, every passage of the point decides for itself.
    arrivals_per_ns: f64,
    /// Chance of each passage of the point, where there are no arrivals.
    chance: f64,
    seed: u64,
}

impl Plan {
    pub(crate) fn new(
        deschedule: &Deschedule,
        point: Option<u32>,
        pcpus: usize,
        slice: Duration,
        seed: u64,
    ) -> Self {
        let (arrivals_per_ns, chance) = match (deschedule.how_often, point) {
            (HowOften::PerSecond(rate), _) => (rate / 1e9, 0.0),
            (HowOften::Probability(chance), None) => (chance * pcpus as f64 / slice.as_nanos() as f64, 0.0),
            (HowOften::Probability(chance), Some(_)) => (0.0, chance),
        };
        let length_ns = deschedule.length.as_nanos() as u64;
        Self { target: deschedule.target, length_ns, point, arrivals_per_ns, chance, seed }
    }
}

/// One thread's share of a [`Plan`].
#[derive(Debug)]
pub(crate) struct Injector {
    plan: Plan,
    share: f64,
    random: SplitMix,
    /// When the next arrival comes, or came if it still waits for a vCPU that fits.
    due_ns: u64,
    look_ns: u64,
}

impl Injector {
    /// Thread number `thread` of `threads`, from `now_ns` on.
    pub(crate) fn new(plan: Plan, thread: u32, threads: usize, now_ns: u64) -> Self {
        let random = SplitMix::stream(plan.seed, u64::from(thread));
        let mut injector = Self { plan, share: 1.0 / threads as f64, random, due_ns: 0, look_ns: 0 };
        injector.next_arrival(now_ns);
        injector
    }

    /// When the vCPU on this thread is to be called out; `None`: points are where to look.
    pub(crate) fn alarm(&self) -> Option<u64> {
        self.plan.point.is_none().then_some(self.look_ns)
    }

    /// The vCPU on this thread is out, since it has rung the bell of `point` or for another reason, and does `activity`: for how long it
    /// is to stay out, if it is.
    pub(crate) fn takes(&mut self, point: Option<u32>, activity: Activity, now_ns: u64) -> Option<u64> {
        let by_chance = self.plan.arrivals_per_ns == 0.0;
        if self.plan.point != point || (!by_chance && now_ns < self.due_ns) {
            return None;
        }
        let hit = self.plan.target.fits(activity) && (!by_chance || self.random.unit() < self.plan.chance);
        if hit && !by_chance {
            self.next_arrival(now_ns);
        } else if point.is_none() && now_ns >= self.look_ns {
            self.look_ns = now_ns + self.pause_ns();
        }
        hit.then_some(self.plan.length_ns)
    }

    /// Arrivals that came while an earlier one was waiting are dropped: they would come in bursts, which no rate means.
    fn next_arrival(&mut self, now_ns: u64) {
        let rate = self.plan.arrivals_per_ns * self.share;
        let gap_ns = if rate > 0.0 { -self.random.unit().ln() / rate } else { f64::INFINITY };
        // Saturates: a rate of almost nothing never comes.
        self.due_ns = now_ns.saturating_add(gap_ns as u64);
        self.look_ns = self.due_ns;
    }

    /// A random pause, so that it does not beat against the guest's own period; long enough that the guest gets on meanwhile.
    fn pause_ns(&mut self) -> u64 {
        20_000 + (self.random.unit() * 80_000.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of two threads' share of descheduling holders on two pCPUs with slices of 1 ms.
    fn injector(how_often: HowOften, point: Option<u32>) -> Injector {
        let length = Duration::from_millis(1);
        let deschedule = Deschedule { target: Target::Holder, how_often, length, at: None };
        Injector::new(Plan::new(&deschedule, point, 2, length, 1), 0, 2, 0)
    }

    #[test]
    fn a_thread_takes_its_share_of_the_rate_or_of_passages() {
        use HowOften::{PerSecond, Probability};
        for (how_often, point, passes, expected) in [
            // Within 5 standard deviations of half of 1000 a second, and of one in ten slices on one pCPU of two.
            (PerSecond(1000.0), None, None, 388..=612),
            (Probability(0.1), None, None, 50..=150),
            // Each passage of its point has this chance, or the next one after each arrival is taken.
            (Probability(0.25), Some(3), Some(3), 247_835..=252_165),
            (PerSecond(2e3), Some(3), Some(3), 842..=1158),
            // No vCPU is taken off at another point, or elsewhere.
            (Probability(0.25), Some(3), Some(2), 0..=0),
            (Probability(0.25), Some(3), None, 0..=0),
            (PerSecond(2e3), Some(3), None, 0..=0),
        ] {
            let mut injector = injector(how_often, point);
            assert_eq!(injector.alarm().is_some(), point.is_none());
            // A holder can be had at every microsecond of a second.
            let times = (0..1_000_000_u64).map(|us| injector.takes(passes, Activity::Holder, us * 1000));
            let taken = times.flatten().count();
            assert!(expected.contains(&taken), "{taken}: {how_often:?} at {point:?}, passes {passes:?}");
        }
    }

    #[test]
    fn an_arrival_waits_for_a_vcpu_that_fits_and_looks_again_soon() {
        let mut injector = injector(HowOften::PerSecond(1e6), None);
        let due = injector.alarm().unwrap();
        assert_eq!(injector.takes(None, Activity::Holder, due - 1), None);
        assert_eq!(injector.takes(None, Activity::Waiter, due), None);
        let again = injector.alarm().unwrap();
        assert!((due + 20_000..=due + 100_000).contains(&again), "{again}");
        let taken = injector.takes(None, Activity::Holder, due + 1);
        assert_eq!(taken, Some(1_000_000), "an exit for another reason will do");
        assert!(injector.alarm().unwrap() > due);
    }
}
