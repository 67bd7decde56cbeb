//! Which ring does this host's KVM run natively? Measured, in the guest's own first vCPU before it starts.
//!
//! Hardware virtualization runs both rings natively. PVM, a software-only KVM, interprets ring 0 at under 2 million
//! instructions a second. A loop of known length with one exit at its end tells them apart; the cost of the exit is
//! taken off by a second loop of another length.

use std::sync::OnceLock;
use std::time::Duration;

use haltkick_hypercalls::PORT_BOOTED;
use kvm_bindings::kvm_regs;

use crate::guest::memory::PROBE_CODE;
use crate::host::error::{RunError, system};
use crate::machine::vcpu::Exit;
use crate::machine::vm::{Vm, expect, set_start};
use crate::machine::{Ring, is_native};

/// Two instructions a round: 500 rounds take 0.6 ms where they are interpreted, 1 us where not.
const ROUNDS: u64 = 500;
/// When a loop is given up: a thousand times what it takes where it is interpreted.
const TIME_LIMIT: Duration = Duration::from_millis(700);
const LOOKS: u32 = 3;
/// Instructions a second in ring 0, once they were measured.
pub(crate) static RING0_RATE: OnceLock<f64> = OnceLock::new();

/// `dec rcx; jnz -5; mov dx, PORT_BOOTED; out dx, eax; jmp -3`
const CODE: [u8; 12] =
    [0x48, 0xff, 0xc9, 0x75, 0xfb, 0x66, 0xba, PORT_BOOTED as u8, (PORT_BOOTED >> 8) as u8, 0xef, 0xeb, 0xfd];

/// Instructions a second in ring 0, measured once in a process, by `vm`'s first vCPU. Leaves its registers changed.
pub(crate) fn ring0_rate(vm: &mut Vm) -> Result<f64, RunError> {
    if let Some(rate) = RING0_RATE.get() {
        return Ok(*rate);
    }
    let rate = instructions_per_second(vm, Ring::Ring0)?;
    Ok(*RING0_RATE.get_or_init(|| rate))
}

/// Instructions a second in `ring`.
fn instructions_per_second(vm: &mut Vm, ring: Ring) -> Result<f64, RunError> {
    vm.set_system_registers(&vm.vcpus[0], ring)?;
    vm.memory.write(PROBE_CODE, &CODE);
    let (short, long) = (least(vm, 1)?, least(vm, 1 + ROUNDS)?);
    Ok(2.0 * ROUNDS as f64 / long.saturating_sub(short).as_secs_f64().max(1e-9))
}

/// Measures with loops long enough for the clock, for rings that turn out to be native.
pub(crate) fn precise_instructions_per_second(vm: &mut Vm, ring: Ring) -> Result<f64, RunError> {
    const NATIVE_ROUNDS: u64 = 1_000_000;
    let rough = instructions_per_second(vm, ring)?;
    if !is_native(rough) {
        return Ok(rough);
    }
    Ok(2.0 * NATIVE_ROUNDS as f64 / least(vm, NATIVE_ROUNDS)?.as_secs_f64())
}

/// The time of a loop without what disturbs a measurement: a cold first entry, or a host that takes the CPU away, only makes it longer.
fn least(vm: &mut Vm, rounds: u64) -> Result<Duration, RunError> {
    (0..LOOKS).try_fold(Duration::MAX, |least, _| Ok(least.min(timed(vm, rounds)?)))
}

fn timed(vm: &mut Vm, rounds: u64) -> Result<Duration, RunError> {
    let vcpu = &mut vm.vcpus[0];
    let registers = kvm_regs { rip: PROBE_CODE, rcx: rounds, ..Default::default() };
    set_start(&vm.memory, vcpu, registers).map_err(system("set registers for the ring probe"))?;
    // A KVM that makes its exit fault forever must not hang the VMM.
    let otherwise = || "the ring probe does not end as it should; this KVM cannot run the guest".into();
    expect(vcpu, Exit::Booted, TIME_LIMIT, otherwise).map_err(|why| RunError::HostLacks(why.to_string()))
}
