//! The live view of a run: rates from two frames, and the table.

pub(crate) mod table;

use crate::results::live::{Vcpu, View};

/// `frame`, with rates since `earlier` if that is of the same run.
pub(crate) fn with_rates(earlier: Option<&View>, frame: &View, off_the_cpus: bool) -> View {
    let mut view = View { off_the_cpus, ..frame.clone() };
    let Some(earlier) = earlier.filter(|earlier| earlier.run == frame.run && earlier.at_ns < frame.at_ns)
    else {
        return view;
    };
    let passed_ns = frame.at_ns - earlier.at_ns;
    view.rates_over_ns = Some(passed_ns);
    for (guest, before) in view.guests.iter_mut().zip(&earlier.guests) {
        for (vcpu, before) in guest.vcpus.iter_mut().zip(&before.vcpus) {
            rate(vcpu, before, passed_ns);
        }
    }
    view
}

fn rate(vcpu: &mut Vcpu, before: &Vcpu, passed_ns: u64) {
    // A guest can set its counts back.
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 * 1e9 / passed_ns as f64;
    let known = |now: Option<u64>, before: Option<u64>| Some(rate(now?, before?));
    vcpu.sections_per_second = Some(rate(vcpu.sections, before.sections));
    vcpu.exits_per_second = Some(rate(vcpu.exits, before.exits));
    vcpu.kicks_per_second = known(vcpu.kicks, before.kicks);
    vcpu.sleeps_per_second = known(vcpu.sleeps, before.sleeps);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(super) fn frame(at_ns: u64, run: u64, sections: u64) -> View {
        let vcpu = |number: u32, state: &str, doing: &str, lock: Option<u32>, since_ns: Option<u64>| {
            json!({
                "vcpu": number, "state": state, "since_ns": since_ns, "doing": doing, "lock": lock,
                "sections": sections, "exits": 2 * sections, "kicks": sections, "sleeps": 0,
            })
        };
        let ago = Some(at_ns - 3_000_000);
        let vcpus = [
            vcpu(0, "running", "waiter", Some(0), None),
            vcpu(1, "preempted", "holder", Some(0), ago),
            vcpu(2, "asleep", "head", Some(0), ago),
            vcpu(3, "ready", "other", None, ago),
        ];
        let guest = json!({
            "name": "guest", "lock": "ticket", "pv": false, "workload": "critical-section", "locks": 1,
            "vcpus": vcpus,
        });
        let frame = json!({
            "schema": "haltkick.top", "schema_version": 1, "process": 77, "run": run, "phase": "window",
            "at_ns": at_ns, "virtual_time": false, "sched": "vmm", "cpus": [0, 1], "guests": [guest],
        });
        View::of_line(frame.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn rates_are_of_two_frames_of_one_run() {
        let before = frame(1_000_000_000, 1, 1000);
        let shown = with_rates(Some(&before), &frame(3_000_000_000, 1, 5000), true);
        let vcpu = &shown.guests[0].vcpus[0];
        assert_eq!((vcpu.sections_per_second, vcpu.exits_per_second), (Some(2000.0), Some(4000.0)));
        let next_run = with_rates(Some(&before), &frame(3_000_000_000, 2, 5000), true);
        assert_eq!(next_run.guests[0].vcpus[0].sections_per_second, None);
        assert_eq!(with_rates(Some(&before), &before, true).rates_over_ns, None, "no time has passed");
        let back = with_rates(Some(&before), &frame(3_000_000_000, 1, 0), true);
        assert_eq!(back.guests[0].vcpus[0].sections_per_second, Some(0.0), "a guest that counts backwards");
    }

    #[test]
    fn kicks_that_the_kernel_delivers_are_not_known_and_not_zero() {
        let mut later = frame(3_000_000_000, 1, 5000);
        later.guests[0].vcpus[0].kicks = None;
        let shown = with_rates(Some(&frame(1_000_000_000, 1, 1000)), &later, true);
        let vcpu = &shown.guests[0].vcpus[0];
        assert_eq!((vcpu.kicks_per_second, vcpu.sleeps_per_second), (None, Some(0.0)));
    }
}
