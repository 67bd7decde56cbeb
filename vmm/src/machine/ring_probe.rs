//! Which ring does this host's KVM run natively? Measured, in the guest's own first vCPU before it starts.
//!
//! Hardware virtualization runs both rings natively. PVM, a software-only KVM, interprets ring 0 at under 2 million
//! instructions a second. A loop of known length with one exit at its end tells them apart; the cost of the exit is
//! taken off by a second loop of another length.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use haltkick_hypercalls::PORT_BOOTED;
use kvm_bindings::kvm_regs;

use crate::guest::memory::{Memory, PROBE_CODE};
use crate::host::clock::now_ns;
use crate::host::error::{RunError, system};
use crate::host::signal::{self, KickTimer};
use crate::machine::boot::START_FLAGS;
use crate::machine::vcpu::{Body as _, Exit, KvmVcpu};
use crate::machine::vm::Vm;
use crate::machine::{Ring, is_native};

/// Two instructions a round: 500 rounds take 0.6 ms where they are interpreted, 1 us where not.
const ROUNDS: u64 = 500;
/// When a loop is given up: a thousand times what it takes where it is interpreted.
const TIME_LIMIT: Duration = Duration::from_millis(700);
/// Times that each loop is timed.
const LOOKS: u32 = 3;
static RING0_RATE: OnceLock<f64> = OnceLock::new();

/// `dec rcx; jnz -5; mov dx, PORT_BOOTED; out dx, eax; jmp -3`
const CODE: [u8; 12] =
    [0x48, 0xff, 0xc9, 0x75, 0xfb, 0x66, 0xba, PORT_BOOTED as u8, (PORT_BOOTED >> 8) as u8, 0xef, 0xeb, 0xfd];

/// Instructions a second in ring 0, measured once in a process, by `vm`'s first vCPU. Leaves its registers changed.
pub(crate) fn ring0_rate(vm: &mut Vm) -> Result<f64, RunError> {
    match known_ring0_rate() {
        Some(rate) => Ok(rate),
        None => instructions_per_second(vm, Ring::Ring0).map(found_ring0_rate),
    }
}

/// Returns ring 0's rate, if it is known.
pub(crate) fn known_ring0_rate() -> Option<f64> {
    RING0_RATE.get().copied()
}

/// Ring 0's rate was measured just now. The first one stays.
pub(crate) fn found_ring0_rate(rate: f64) -> f64 {
    *RING0_RATE.get_or_init(|| rate)
}

/// Instructions a second in `ring`.
fn instructions_per_second(vm: &mut Vm, ring: Ring) -> Result<f64, RunError> {
    vm.set_system_registers(&vm.vcpus[0], ring)?;
    vm.memory.write(PROBE_CODE, &CODE);
    called_out(|| {
        let short = least(&vm.memory, &mut vm.vcpus[0], 1)?;
        let long = least(&vm.memory, &mut vm.vcpus[0], 1 + ROUNDS)?;
        Ok(2.0 * ROUNDS as f64 / long.saturating_sub(short).as_secs_f64().max(1e-9))
    })
}

/// Does `work` under a timer: a probe that does not come back (a KVM that makes its exit fault forever) must not hang
/// the VMM.
fn called_out<T>(work: impl FnOnce() -> Result<T, RunError>) -> Result<T, RunError> {
    signal::block_kick();
    let limit = KickTimer::new().map_err(system("create a timer for the ring probe"))?;
    limit.set(now_ns() + TIME_LIMIT.as_nanos() as u64, TIME_LIMIT.as_nanos() as u64);
    let done = work();
    drop(limit);
    signal::take_kick();
    done
}

/// The time of a loop without what disturbs a measurement: a cold first entry, or a host that takes the CPU away, only makes it longer.
fn least(memory: &Memory, vcpu: &mut KvmVcpu, rounds: u64) -> Result<Duration, RunError> {
    (0..LOOKS).try_fold(Duration::MAX, |least, _| Ok(least.min(timed(memory, vcpu, rounds)?)))
}

/// Measures with loops long enough for the clock, for rings that turn out to be native.
pub(crate) fn precise_instructions_per_second(vm: &mut Vm, ring: Ring) -> Result<f64, RunError> {
    const NATIVE_ROUNDS: u64 = 1_000_000;
    let rough = instructions_per_second(vm, ring)?;
    if !is_native(rough) {
        return Ok(rough);
    }
    called_out(|| {
        let best = least(&vm.memory, &mut vm.vcpus[0], NATIVE_ROUNDS)?;
        Ok(2.0 * NATIVE_ROUNDS as f64 / best.as_secs_f64())
    })
}

fn timed(memory: &Memory, vcpu: &mut KvmVcpu, rounds: u64) -> Result<Duration, RunError> {
    let stack = memory.stack_top(vcpu.id);
    let registers =
        kvm_regs { rip: PROBE_CODE, rcx: rounds, rsp: stack, rflags: START_FLAGS, ..Default::default() };
    vcpu.fd.set_regs(&registers).map_err(system("set registers for the ring probe"))?;
    let start = Instant::now();
    loop {
        match vcpu.run().map_err(system("run the ring probe"))? {
            Exit::Booted => return Ok(start.elapsed()),
            Exit::Interrupted => {
                signal::take_kick();
                if start.elapsed() > TIME_LIMIT {
                    let reason =
                        "the ring probe does not come back; this KVM cannot run the guest".to_owned();
                    return Err(RunError::HostLacks(reason));
                }
            }
            exit => {
                let reason = format!("the ring probe ended with {exit:?}; this KVM cannot run the guest");
                return Err(RunError::HostLacks(reason));
            }
        }
    }
}
