//! The live view of a run: states, holders and rates, from two frames.

pub(crate) mod table;

use haltkick_vmm::{Activity, LiveFrame, LiveGuest, LivePhase, LiveVcpu, printable};
use schemars::JsonSchema;
use serde::Serialize;

/// Name of the format.
const SCHEMA: &str = "haltkick.top";
/// Version of the format.
const SCHEMA_VERSION: u32 = 1;

/// Output of `haltkick top --format json`, a line each time.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct View {
    /// "haltkick.top".
    pub(crate) schema: String,
    /// Version of this format.
    pub(crate) schema_version: u32,
    /// The process that runs the guests.
    pub(crate) process: u32,
    /// Runs that it has begun, this one included.
    pub(crate) run: u64,
    /// How far the run is: "between" two runs, "starts", "warms-up", "window", "closed" or "ended".
    pub(crate) phase: String,
    /// When this was, by the clock of the run.
    pub(crate) at_ns: u64,
    /// Time that the rates are of; null: there is one frame of this run.
    pub(crate) rates_over_ns: Option<u64>,
    /// The machine is simulated: time is virtual.
    pub(crate) virtual_time: bool,
    /// "vmm" or "host".
    pub(crate) sched: String,
    /// The pCPUs.
    pub(crate) cpus: Vec<u32>,
    /// Whether what reads this runs on other CPUs than those.
    pub(crate) off_the_cpus: bool,
    /// The guests.
    pub(crate) guests: Vec<Guest>,
}

/// A guest.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Guest {
    /// Its name.
    pub(crate) name: String,
    /// Its lock.
    pub(crate) lock: String,
    /// Whether in the paravirtual form.
    pub(crate) pv: bool,
    /// Its workload.
    pub(crate) workload: String,
    /// Locks that its sections are spread over.
    pub(crate) locks: u32,
    /// Its vCPUs.
    pub(crate) vcpus: Vec<Vcpu>,
}

/// A vCPU. Rates are per second.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Vcpu {
    /// Its index.
    pub(crate) vcpu: u32,
    /// "not-started", "running", "runnable" (on a pCPU or waiting for one: the host's scheduler knows), "ready", "preempted",
    /// "asleep" or "left".
    pub(crate) state: String,
    /// Beginning, by the clock of the run; null: unknown.
    pub(crate) since_ns: Option<u64>,
    /// Activity that it announces: "holder", "head", "waiter" or "other".
    pub(crate) doing: String,
    /// The lock that it holds or waits for.
    pub(crate) lock: Option<u32>,
    /// Sections that it has entered, and how many a second.
    pub(crate) sections: u64,
    pub(crate) sections_per_second: Option<f64>,
    /// Exits to the VMM.
    pub(crate) exits: u64,
    pub(crate) exits_per_second: Option<f64>,
    /// Exits that were kicks; null: the kernel delivers them.
    pub(crate) kicks: Option<u64>,
    pub(crate) kicks_per_second: Option<f64>,
    /// Exits that asked for sleep; null: the kernel puts vCPUs to sleep.
    pub(crate) sleeps: Option<u64>,
    pub(crate) sleeps_per_second: Option<f64>,
}

/// `frame`, with rates since `earlier` if that is of the same run.
pub(crate) fn view(earlier: Option<&LiveFrame>, frame: &LiveFrame, off_the_cpus: bool) -> View {
    let earlier = earlier.filter(|earlier| earlier.run == frame.run && earlier.at_ns < frame.at_ns);
    let since = earlier.map(|earlier| (earlier, frame.at_ns - earlier.at_ns));
    let guest = |(index, guest): (usize, &LiveGuest)| {
        let before = since.and_then(|(earlier, passed)| Some((earlier.guests.get(index)?, passed)));
        of_guest(before, guest)
    };
    View {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        process: frame.process,
        run: frame.run,
        phase: phase(frame.phase).into(),
        at_ns: frame.at_ns,
        rates_over_ns: since.map(|(_, passed)| passed),
        virtual_time: frame.virtual_time,
        sched: if frame.host_schedules { "host" } else { "vmm" }.into(),
        cpus: frame.cpus.clone(),
        off_the_cpus,
        guests: frame.guests.iter().enumerate().map(guest).collect(),
    }
}

fn of_guest(before: Option<(&LiveGuest, u64)>, guest: &LiveGuest) -> Guest {
    let vcpu = |(index, vcpu): (usize, &LiveVcpu)| {
        let before = before.and_then(|(guest, passed)| Some((guest.vcpus.get(index)?, passed)));
        of_vcpu(before, index as u32, vcpu, guest.kicks_seen)
    };
    Guest {
        name: printable(&guest.name),
        lock: printable(&guest.lock),
        pv: guest.pv,
        workload: printable(&guest.workload),
        locks: guest.locks,
        vcpus: guest.vcpus.iter().enumerate().map(vcpu).collect(),
    }
}

fn of_vcpu(before: Option<(&LiveVcpu, u64)>, index: u32, vcpu: &LiveVcpu, kicks_seen: bool) -> Vcpu {
    // A guest can set its counts back.
    let rate = |of: fn(&LiveVcpu) -> u64| {
        before.map(|(before, passed)| of(vcpu).saturating_sub(of(before)) as f64 * 1e9 / passed as f64)
    };
    Vcpu {
        vcpu: index,
        state: vcpu.at.name().into(),
        since_ns: vcpu.since_ns,
        doing: vcpu.doing.name().into(),
        lock: (vcpu.doing != Activity::Other).then_some(vcpu.lock),
        sections: vcpu.sections,
        sections_per_second: rate(|vcpu| vcpu.sections),
        exits: vcpu.exits,
        exits_per_second: rate(|vcpu| vcpu.exits),
        kicks: kicks_seen.then_some(vcpu.kicks),
        kicks_per_second: rate(|vcpu| vcpu.kicks).filter(|_| kicks_seen),
        sleeps: kicks_seen.then_some(vcpu.sleeps),
        sleeps_per_second: rate(|vcpu| vcpu.sleeps).filter(|_| kicks_seen),
    }
}

fn phase(phase: LivePhase) -> &'static str {
    match phase {
        LivePhase::Between => "between",
        LivePhase::Starts => "starts",
        LivePhase::WarmsUp => "warms-up",
        LivePhase::Window => "window",
        LivePhase::Closed => "closed",
        LivePhase::Ended => "ended",
    }
}

#[cfg(test)]
mod tests {
    use haltkick_vmm::Where;

    use super::*;

    pub(super) fn frame(at_ns: u64, run: u64, sections: u64) -> LiveFrame {
        let vcpu = |at, doing, since_ns| LiveVcpu {
            at,
            since_ns,
            doing,
            lock: 0,
            sections,
            exits: 2 * sections,
            kicks: sections,
            sleeps: 0,
        };
        let ago = Some(at_ns - 3_000_000);
        LiveFrame {
            run,
            process: 77,
            phase: LivePhase::Window,
            at_ns,
            cpus: vec![0, 1],
            guests: vec![LiveGuest {
                name: "guest".into(),
                lock: "tick\u{1b}et".into(),
                workload: "critical-section".into(),
                locks: 1,
                kicks_seen: true,
                vcpus: vec![
                    vcpu(Where::Running, Activity::Waiter, None),
                    vcpu(Where::Preempted(Activity::Holder), Activity::Holder, ago),
                    vcpu(Where::Asleep, Activity::Head, ago),
                    vcpu(Where::Ready, Activity::Other, ago),
                ],
                ..LiveGuest::default()
            }],
            ..LiveFrame::default()
        }
    }

    #[test]
    fn rates_are_of_two_frames_of_one_run() {
        let before = frame(1_000_000_000, 1, 1000);
        let shown = view(Some(&before), &frame(3_000_000_000, 1, 5000), true);
        let vcpu = &shown.guests[0].vcpus[0];
        assert_eq!((vcpu.sections_per_second, vcpu.exits_per_second), (Some(2000.0), Some(4000.0)));
        let next_run = view(Some(&before), &frame(3_000_000_000, 2, 5000), true);
        assert_eq!(next_run.guests[0].vcpus[0].sections_per_second, None);
        assert_eq!(view(Some(&before), &before, true).rates_over_ns, None, "no time has passed");
        let back = view(Some(&before), &frame(3_000_000_000, 1, 0), true);
        assert_eq!(back.guests[0].vcpus[0].sections_per_second, Some(0.0), "a guest that counts backwards");
    }

    #[test]
    fn kicks_that_the_kernel_delivers_are_not_known_and_not_zero() {
        let mut later = frame(3_000_000_000, 1, 5000);
        later.guests[0].kicks_seen = false;
        let shown = view(Some(&frame(1_000_000_000, 1, 1000)), &later, true);
        let vcpu = &shown.guests[0].vcpus[0];
        assert_eq!((vcpu.kicks, vcpu.kicks_per_second, vcpu.sleeps), (None, None, None));
    }

    #[test]
    fn a_vcpu_outside_locks_shows_none_and_names_are_no_commands() {
        let shown = view(None, &frame(3_000_000_000, 1, 5000), true);
        let guest = &shown.guests[0];
        assert_eq!(
            guest.vcpus.iter().map(|vcpu| vcpu.lock).collect::<Vec<_>>(),
            [Some(0), Some(0), Some(0), None]
        );
        assert_eq!(guest.lock, "tick\u{fffd}et");
    }
}
