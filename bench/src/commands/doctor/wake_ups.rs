//! The cost of a wake-up here: paravirtual locks pay it for the end of spinning, so it is what they have to save.

use std::time::Duration;

use haltkick_vmm::{Image, Known, Probe, PvBackend, RoundTrip, Rules, Run, Sched};

use super::{Finding, Level};
use crate::analysis::statistics::{Estimate, median};
use crate::host::cpulist;
use crate::settings::{Settings, Supply};
use crate::text::quantity::{significant, time_ns};

/// Pairs of measurements for each figure, and how long each one takes.
const PAIRS: usize = 8;
const WINDOW: Duration = Duration::from_millis(20);

/// Round trips through each back end that works, under each scheduler that it works with.
pub(super) fn finding(probe: &Result<Probe, String>) -> Finding {
    let why = "pv_kick, the wake-up, pv_wait and the same back, two vCPUs on one pCPU: the cost of a handoff to a sleeper, \
               twice; in brackets: over the same exits and wake-ups with nothing around them, with its 95 % interval";
    let figures = probe.as_ref().map_err(Clone::clone).and_then(figures);
    Finding::of_fact("wake-ups", figures, why, |_| (Level::Good, None))
}

fn figures(probe: &Probe) -> Result<String, String> {
    let image = Image::embedded();
    let allowed = cpulist::allowed().map_err(|failure| failure.message)?;
    let mut settings = Settings::default();
    settings.set("ratio", "1")?;
    let mut run = settings
        .resolve(Supply { image: &image, allowed: &allowed })
        .map_err(|wrong| format!("{}: {}", wrong.about, wrong.message))?;
    (run.window, run.warmup) = (WINDOW, WINDOW / 4);
    let in_kernel = |works: &Known<()>| probe.ring0_native && works.is_ok();
    let ways = [
        (in_kernel(&probe.kick_by_hypercall), PvBackend::Kvm, Sched::Host),
        (in_kernel(&probe.kick_by_interrupt), PvBackend::Ipi, Sched::Host),
        (true, PvBackend::Vmm, Sched::Host),
        (true, PvBackend::Vmm, Sched::Vmm),
    ];
    let figure = |(_, pv_backend, sched): (bool, PvBackend, Sched)| {
        let run = Run { pv_backend, rules: Rules { sched, ..run.rules }, ..run.clone() };
        let pairs: Result<Vec<_>, _> = (0..PAIRS).map(|_| RoundTrip::measure(&run, &image)).collect();
        let name = match sched {
            Sched::Host => format!("{}, sched host", pv_backend.name()),
            Sched::Vmm => format!("{}, sched vmm", pv_backend.name()),
        };
        match pairs {
            Ok(pairs) => format!("{name}: {}", in_words(&pairs)),
            Err(error) => format!("{name}: {error}"),
        }
    };
    Ok(ways.into_iter().filter(|(works, ..)| *works).map(figure).collect::<Vec<_>>().join("; "))
}

fn in_words(pairs: &[RoundTrip]) -> String {
    let through: Vec<f64> = pairs.iter().map(|pair| pair.through.as_nanos() as f64).collect();
    let ratios: Vec<f64> =
        pairs.iter().map(|pair| pair.through.as_secs_f64() / pair.bare.as_secs_f64()).collect();
    let time = time_ns(median(&through));
    let Some((ratio, interval)) = Estimate::of_positive(&ratios)
        .and_then(|estimate| Some((estimate.hodges_lehmann, estimate.interval?)))
    else {
        return time;
    };
    let [ratio, low, high] = [ratio, interval.low, interval.high].map(significant);
    format!("{time} ({ratio}, {low} to {high})")
}
