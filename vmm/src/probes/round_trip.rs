//! Cost of waking a sleeper and being woken by it: `pv_kick`, the wake-up, `pv_wait`, and the same on the way back.
//!
//! Two vCPUs on one pCPU pass a token to and fro, each asleep until it comes. Timed twice, in turns: in a run as any other, with
//! all that a guest and its VMM do around an exit, and bare: the same exits of a guest of ten instructions, whose VMM is two
//! threads that park and unpark each other. The difference is what Haltkick itself costs.

use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use haltkick_hypercalls::{PORT_BOOTED, PORT_KICK, PORT_WAIT, Results, VcpuArea};
use kvm_bindings::kvm_regs;

use crate::engines::run;
use crate::guest::memory::{Memory, PROBE_CODE};
use crate::host::error::{RunError, system};
use crate::host::{cpus, signal};
use crate::image::file::Image;
use crate::machine::in_kernel::{EAX, EDX, mov};
use crate::machine::vcpu::{Body as _, Exit, KvmVcpu};
use crate::machine::vm::{Vm, expect, set_start};
use crate::machine::{PvBackend, Ring, in_kernel};
use crate::observe::Instruments;
use crate::run::asked::{Guest, Ours, Run, System};

/// Round trips before a bare measurement begins, when caches and page tables are warm, and the longest that it waits for them.
const WARM: u64 = 32;
const WARMUP: Duration = Duration::from_millis(200);

/// Time for a vCPU to start, a thousand times what it takes.
const START_LIMIT: Duration = Duration::from_millis(500);

/// How long a round trip takes, two measurements one after the other.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// How vCPUs slept and were woken.
    pub backend: PvBackend,
    /// Through a run as any other.
    pub through: Duration,
    /// By the same exits and wake-ups alone.
    pub bare: Duration,
}

impl RoundTrip {
    /// Times it through the scheduler and the back end of `like`, on its first pCPU, and bare.
    ///
    /// # Errors
    /// As [`run`]; [`RunError::NoProgress`] if the token did not come back in time.
    ///
    /// # Panics
    /// If `like` boots Linux.
    pub fn measure(like: &Run, image: &Image) -> Result<Self, RunError> {
        let ours = Ours {
            lock: "none".into(),
            workload: "hand-off".into(),
            hold: Duration::ZERO,
            preempted_hint: false,
            ..like.our(0).ours.clone()
        };
        let guests =
            vec![Guest { vcpus: 2, pv: false, system: System::Ours(ours), ..like.guests[0].clone() }];
        let hand_off = Run { cpus: like.cpus[..1].to_vec(), attribution: false, guests, ..like.clone() };
        let outcome = run(&hand_off, image, &Instruments::default(), &AtomicBool::new(false))?.outcome()?;
        // Each way counts as one.
        let ways: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions).sum();
        let through = duration_of_one(outcome.window, ways / 2)?;
        let mut vm = bare(image, outcome.pv_backend, outcome.ring)?;
        let bare = measure(&mut vm, &hand_off.cpus, hand_off.window)?;
        Ok(Self { backend: outcome.pv_backend, through, bare })
    }
}

fn duration_of_one(all: Duration, count: u64) -> Result<Duration, RunError> {
    match u32::try_from(count) {
        Ok(0) | Err(_) => {
            Err(RunError::NoProgress("the token of two vCPUs that wake each other did not come back".into()))
        }
        Ok(count) => Ok(all / count),
    }
}

/// Handles of a thread for the other one, and for the thread that ends it.
struct Peer {
    thread: thread::Thread,
    kick: signal::Thread,
}

/// The guest of ten instructions.
fn bare(image: &Image, backend: PvBackend, ring: Ring) -> Result<Vm, RunError> {
    let in_kernel = matches!(backend, PvBackend::Kvm | PvBackend::Ipi);
    let vm = Vm::small(image, 2, in_kernel)?;
    let amd = in_kernel::is_amd(&vm.cpuid);
    for vcpu in &vm.vcpus {
        let address = PROBE_CODE + u64::from(vcpu.id) * 0x100;
        vm.memory.write(address, &code(backend, amd, vcpu.id));
        vm.set_system_registers(vcpu, ring)?;
        let rdi = vm.memory.area_address(vcpu.id).0 + COUNT;
        let registers = kvm_regs { rip: address, rdi, ..Default::default() };
        set_start(&vm.memory, vcpu, registers).map_err(system("set registers"))?;
    }
    Ok(vm)
}

fn measure(vm: &mut Vm, cpus: &[u32], window: Duration) -> Result<Duration, RunError> {
    let (memory, vcpus) = (&vm.memory, &mut vm.vcpus);
    let stop = AtomicBool::new(false);
    let peers: [OnceLock<Peer>; 2] = Default::default();
    let start = Barrier::new(vcpus.len() + 1);
    thread::scope(|scope| {
        let (stop, peers, start) = (&stop, &peers, &start);
        let threads: Vec<_> = vcpus
            .iter_mut()
            .map(|vcpu| {
                scope.spawn(move || {
                    let (me, other) = (vcpu.id as usize, 1 - vcpu.id as usize);
                    signal::block_all();
                    let ready = cpus::pin_to(cpus).and_then(|()| get_ready(vcpu));
                    _ = peers[me].set(Peer { thread: thread::current(), kick: signal::Thread::current() });
                    start.wait();
                    let other = peers[other].get().expect("both are there behind the barrier");
                    ready.and_then(|()| serve(vcpu, &other.thread, stop))
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        while count(memory) < WARM && started.elapsed() < WARMUP {
            thread::sleep(Duration::from_millis(1));
        }
        let (before, begun) = (count(memory), Instant::now());
        thread::sleep(window);
        let (after, took) = (count(memory), begun.elapsed());
        // Release pairs with the acquire in `serve`: a vCPU that is kicked out sees it.
        stop.store(true, Ordering::Release);
        for peer in peers.iter().filter_map(OnceLock::get) {
            peer.kick.kick();
            peer.thread.unpark();
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread that only serves exits does not panic"))?;
        duration_of_one(took, after - before)
    })
}

/// Runs `vcpu` to where the other one may wake it.
fn get_ready(vcpu: &mut KvmVcpu) -> Result<(), RunError> {
    let otherwise = || "two vCPUs that wake each other do not start".into();
    expect(vcpu, Exit::Booted, START_LIMIT, otherwise)
        .map(drop)
        .map_err(|reason| RunError::HostLacks(reason.to_string()))
}

/// Runs `vcpu` until `stop`; it wakes `other`.
fn serve(vcpu: &mut KvmVcpu, other: &thread::Thread, stop: &AtomicBool) -> Result<(), RunError> {
    while !stop.load(Ordering::Acquire) {
        match vcpu.run().map_err(system("run a vCPU of two that wake each other"))? {
            Exit::Wait => thread::park(),
            Exit::Kick(_) => other.unpark(),
            Exit::Interrupted => signal::take_kick(),
            exit => {
                let reason = format!("two vCPUs that wake each other ended with {exit:?}");
                return Err(RunError::GuestFailed { vcpu: vcpu.id, reason });
            }
        }
    }
    Ok(())
}

/// Place of the count of round trips in a vCPU's area.
const COUNT: u64 = (offset_of!(VcpuArea, results) + offset_of!(Results, acquisitions)) as u64;

fn count(memory: &Memory) -> u64 {
    // Relaxed: a count, of which a moment's value is wanted.
    memory.area(0).results.acquisitions.load(Ordering::Relaxed)
}

/// Says that it is there; then wakes the other, sleeps, counts, forever. vCPU 0 has the token: the other one begins
/// with the sleep.
fn code(backend: PvBackend, amd: bool, me: u32) -> Vec<u8> {
    const OUT_DX_EAX: &[u8] = &[0xef];
    const INC_AT_RDI: &[u8] = &[0x48, 0xff, 0x07];
    const JMP: u8 = 0xeb;
    let other = 1 - me;
    let ring_at = |port: u16| [mov(EDX, port.into()), OUT_DX_EAX.into()].concat();
    let (accept, wake, sleep) = match backend {
        PvBackend::Vmm | PvBackend::Auto => {
            (&[][..], [mov(EAX, other), ring_at(PORT_KICK)].concat(), ring_at(PORT_WAIT))
        }
        PvBackend::Kvm | PvBackend::Ipi => {
            let (wake, sleep) = (in_kernel::wake(backend, amd, other), in_kernel::sleep(backend));
            (&in_kernel::ACCEPT_INTERRUPTS[..], wake, sleep.into())
        }
    };
    let mut code = [accept, &ring_at(PORT_BOOTED)].concat();
    if me != 0 {
        code.extend([JMP, wake.len() as u8]);
    }
    let round = [&wake, &sleep, INC_AT_RDI].concat();
    code.extend(&round);
    code.extend([JMP, (round.len() as u8 + 2).wrapping_neg()]);
    code
}
