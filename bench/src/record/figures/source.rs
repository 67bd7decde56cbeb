//! Sources of figures: what a run was asked and what came of it, and figures that several rows are made of.

use std::collections::BTreeMap;

use haltkick_vmm::{
    ByActivity, Found, Ideal, Known, LinuxOutcome, OurGuest, Outcome, Rules, Sched, Share, VcpuOutcome,
    node_of_cpu,
};

use super::Members;
use super::times::Times;

pub(crate) struct OfOurs<'a> {
    pub(super) asked: OurGuest<'a>,
    pub(super) outcome: &'a Outcome,
    pub(super) found: &'a Found,
    pub(super) lock_free: Known<f64>,
    pub(crate) times: Vec<Times<'a>>,
}

pub(crate) struct OfLinux<'a> {
    pub(crate) outcome: &'a LinuxOutcome,
    pub(crate) found: &'a Found,
    /// Whether vCPUs were to be taken off on purpose.
    pub(crate) is_injected: bool,
}

/// Fewer sections per vCPU than this say nothing of fairness: nine sections among 64 vCPUs cannot be spread evenly.
const FAIRNESS_NEEDS: f64 = 2.0;

impl<'a> OfOurs<'a> {
    /// `lock_free`: throughput of the same cell without a lock, or why there is none.
    pub(crate) fn new(
        asked: OurGuest<'a>,
        outcome: &'a Outcome,
        found: &'a Found,
        lock_free: Known<f64>,
    ) -> Self {
        let lock_free = lock_free.and_then(|per_second| match per_second > 0.0 {
            true => Ok(per_second),
            false => Err("the lock-free run completed no section inside its window".into()),
        });
        Self { asked, outcome, found, lock_free, times: Times::all(outcome) }
    }

    pub(super) fn per_second(&self) -> f64 {
        self.outcome.acquisitions() as f64 / self.outcome.window.as_secs_f64()
    }

    /// The most that any lock lets through, if the workload has such a bound: lock-free throughput, and at most locks / hold where
    /// all sections are of one length.
    pub(super) fn ideal(&self) -> Known<f64> {
        let lock_free = self.lock_free.clone()?;
        let ours = self.asked.ours;
        match self.outcome.ideal {
            Ideal::Serial => {
                let hold = ours.shape.mean_hold(ours.hold).as_secs_f64();
                let serial = if hold > 0.0 { f64::from(ours.lock_count) / hold } else { f64::INFINITY };
                Ok(lock_free.min(serial))
            }
            Ideal::LockFree => Ok(lock_free),
            Ideal::Unknown => Err(format!(
                "workload {} has no ideal: its operations are neither sections of one known length nor the same without a lock",
                ours.workload
            )
            .into()),
        }
    }

    /// Sections completed by each vCPU.
    pub(super) fn of_vcpus(&self) -> impl Iterator<Item = u64> + '_ {
        self.outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions)
    }

    pub(super) fn jain(&self) -> Known<f64> {
        let vcpus = self.outcome.vcpus.len();
        let sum: f64 = self.of_vcpus().map(|count| count as f64).sum();
        let squares: f64 = self.of_vcpus().map(|count| (count as f64).powi(2)).sum();
        match sum >= FAIRNESS_NEEDS * vcpus as f64 {
            true => Ok(sum * sum / (vcpus as f64 * squares)),
            false => {
                Err(format!("{sum} sections among {vcpus} vCPUs do not tell: a longer --window does").into())
            }
        }
    }

    pub(super) fn run_ns(&self) -> Known<f64> {
        let of_vcpus = self.outcome.vcpus.iter().map(|vcpu| vcpu.run_ns);
        let all = of_vcpus.sum::<Option<u64>>().map(|ns| ns as f64);
        all.ok_or_else(|| "it is not measured with this scheduler on this host".into())
    }

    /// Time of all vCPUs in acquiring and releasing locks.
    pub(super) fn lock_cpu_ns(&self) -> Known<f64> {
        let unmeasured = || "only the workload `mixed` measures it, with a lock, under --sched vmm".into();
        self.outcome.lock_cpu.map(|time| time.as_nanos() as f64).ok_or_else(unmeasured)
    }

    /// Counts by what the vCPU was doing, or why they are not known.
    pub(super) fn attributed(&self, values: Option<ByActivity>) -> Known<ByActivity> {
        values.ok_or_else(|| match &self.outcome.switches {
            _ if !self.asked.run.attribution => "not asked for (attribution off)".into(),
            Err(unseen) => format!(
                "the host's scheduler does not say what a vCPU was doing when it preempted it, and {}; per_vcpu counts how often",
                unseen.0
            )
            .into(),
            Ok(_) => "the host's scheduler does not say what a vCPU was doing when it preempted it".into(),
        })
    }

    pub(super) fn injected(&self) -> Known<ByActivity> {
        let reason = match self.asked.run.attribution {
            true => "no vCPU was to be descheduled on purpose",
            false => "not asked for (attribution off)",
        };
        self.outcome.injected.ok_or_else(|| reason.into())
    }

    /// Time that others lost by preemptions of one activity, over how many there were.
    pub(super) fn lost_per(&self, of: fn(&ByActivity) -> u64, who: &str) -> Known<f64> {
        let lost = self.attributed(self.outcome.lost_ns)?;
        match of(&self.attributed(self.outcome.preemptions)?) {
            0 => Err(format!("no {who} was preempted inside the window").into()),
            times => Ok(of(&lost) as f64 / times as f64),
        }
    }

    /// Speeds of the vCPUs' work, as shares of the promised one.
    pub(super) fn speeds(&self) -> Known<Vec<f64>> {
        let told: Vec<f64> = self.outcome.work.iter().flatten().map(|speed| speed.over_promised).collect();
        match told.is_empty() {
            true => Err("too few pieces of work were long enough, or done, to be timed".into()),
            false => Ok(told),
        }
    }

    /// A sum over the vCPUs that began on each NUMA node, by the node; of a simulated machine by the socket. Schedulers deal vCPUs
    /// out to the pCPUs in turn, and may move them.
    pub(super) fn of_nodes(&self, value: impl Fn(usize) -> Option<u64>) -> Members {
        let mut sums = BTreeMap::<u32, Option<u64>>::new();
        for (vcpu, node) in self.nodes().into_iter().enumerate() {
            let sum = sums.entry(node).or_insert(Some(0));
            *sum = sum.zip(value(vcpu)).map(|(sum, more)| sum.saturating_add(more));
        }
        if sums.len() < 2 {
            let one = "all pCPUs of the run are on one node, or the scheduler does not say where vCPUs began";
            return Err(one.into());
        }
        let unmeasured = || "it is not measured with this scheduler on this host".into();
        let known = |sum: Option<u64>| sum.map(|sum| sum as f64).ok_or_else(unmeasured);
        Ok(sums.into_iter().map(|(node, sum)| (node.to_string(), known(sum))).collect())
    }

    /// The node that each vCPU began on; none where that is not known.
    fn nodes(&self) -> Vec<u32> {
        let run = self.asked.run;
        let is_dealt_out = match run.rules {
            // Threads run where the kernel wants; a model starts each guest where it finds least.
            Rules { sched: Sched::Host, .. } => run.engine.is_simulated() && run.guests.len() == 1,
            Rules { share, .. } => share == Share::Vcpu || run.guests.len() == 1,
        };
        if !is_dealt_out {
            return vec![];
        }
        let before: u32 = run.guests[..self.asked.index].iter().map(|guest| guest.vcpus).sum();
        let node = |cpu: u32| match run.engine.machine() {
            Some(machine) => machine.topology.place(cpu).socket.into(),
            None => node_of_cpu(cpu),
        };
        let vcpus = 0..self.outcome.vcpus.len();
        vcpus.map(|vcpu| node(run.cpus[(before as usize + vcpu) % run.cpus.len()])).collect()
    }
}

impl OfLinux<'_> {
    pub(super) fn sum(&self, value: impl Fn(&VcpuOutcome) -> Option<u64>) -> Known<f64> {
        if self.outcome.vcpus.is_empty() {
            return Err("the vCPUs' threads are QEMU's".into());
        }
        let sum = self.outcome.vcpus.iter().map(value).sum::<Option<u64>>();
        sum.map(|sum| sum as f64).ok_or_else(|| "the kernel does not say".into())
    }
}
