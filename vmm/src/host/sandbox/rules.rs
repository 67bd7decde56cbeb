//! What a thread that runs vCPUs may ask of the kernel: each rule with its reason. Everything else is refused.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use crate::host::signal;

/// KVM's requests (linux/kvm.h): _IO, _IOR(.., struct kvm_regs), _IOR(.., struct kvm_mp_state), _IO.
const KVM_RUN: u64 = 0xae80;
const KVM_GET_REGS: u64 = 0x8090_ae81;
const KVM_GET_MP_STATE: u64 = 0x8004_ae98;
const KVM_NMI: u64 = 0xae9a;
/// FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME, which come with any operation.
const FUTEX_FLAGS: u64 = 128 | 256;
/// BPF_MAP_UPDATE_ELEM.
const BPF_UPDATE: u64 = 2;
/// ARCH_SET_GS.
const SET_GS: u64 = 0x1001;
const STDERR: u64 = 2;
/// What an event descriptor is written.
const EVENT_BYTES: u64 = 8;

/// One argument of a call: its position, and what it must be where the mask has ones.
struct Argument(u8, u64, u64);

/// An argument that is this number.
const fn is(position: u8, value: u64) -> Argument {
    Argument(position, u32::MAX as u64, value)
}

/// Bits of an argument that must not be set.
const fn without(position: u8, bits: u64) -> Argument {
    Argument(position, bits, 0)
}

/// The calls, what their arguments must be, and why. Long: it is one table.
fn rules() -> Vec<(i64, Vec<Vec<Argument>>)> {
    let process = u64::from(std::process::id());
    let kick = signal::kick_signal() as u64;
    let writes = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
    let any = Vec::new;
    vec![
        // Runs a vCPU; looks where it stands and whether it has halted; makes it drop its translations.
        (
            libc::SYS_ioctl,
            [KVM_RUN, KVM_GET_REGS, KVM_GET_MP_STATE, KVM_NMI].map(|request| vec![is(1, request)]).into(),
        ),
        // Mutexes, condition variables, parking: waits and wake-ups.
        (
            libc::SYS_futex,
            [libc::FUTEX_WAIT, libc::FUTEX_WAKE, libc::FUTEX_WAIT_BITSET]
                .map(|operation| vec![Argument(1, u64::from(u32::MAX) & !FUTEX_FLAGS, operation as u64)])
                .into(),
        ),
        // Kicks threads of this process out of KVM_RUN; a panic within a panic ends the process.
        (
            libc::SYS_tgkill,
            vec![vec![is(0, process), is(2, kick)], vec![is(0, process), is(2, libc::SIGABRT as u64)]],
        ),
        // Takes its own kicks.
        (libc::SYS_rt_sigtimedwait, any()),
        // Threads of this process that run the image's code: their way in and out of it.
        (libc::SYS_rt_sigreturn, any()),
        (libc::SYS_arch_prctl, vec![vec![is(0, SET_GS)]]),
        (libc::SYS_sigaltstack, any()),
        // A thread's end blocks signals; a fault of our own goes to whoever was responsible before.
        (libc::SYS_rt_sigprocmask, any()),
        (libc::SYS_rt_sigaction, any()),
        // Slices, injections, samples.
        (libc::SYS_timer_settime, any()),
        (libc::SYS_timer_delete, any()),
        // The clocks, where the kernel does not map them into the process.
        (libc::SYS_clock_gettime, any()),
        (libc::SYS_clock_nanosleep, any()),
        (libc::SYS_restart_syscall, any()),
        // A yield under the host's scheduler; whether the thread is still where it was pinned to.
        (libc::SYS_sched_yield, any()),
        (libc::SYS_sched_getaffinity, any()),
        // Who it is, for a kick and for an abort.
        (libc::SYS_gettid, any()),
        (libc::SYS_getpid, any()),
        // Memory, none of it executable.
        (libc::SYS_mmap, vec![vec![without(2, libc::PROT_EXEC as u64)]]),
        (libc::SYS_mprotect, vec![vec![without(2, libc::PROT_EXEC as u64)]]),
        (libc::SYS_munmap, any()),
        (libc::SYS_mremap, any()),
        (libc::SYS_madvise, any()),
        (libc::SYS_brk, any()),
        (libc::SYS_getrandom, any()),
        // Its own statistics under /proc; and the names in a panic's backtrace, which are read from this program's file.
        (libc::SYS_openat, vec![vec![without(2, writes)]]),
        (libc::SYS_read, any()),
        (libc::SYS_pread64, any()),
        (libc::SYS_lseek, any()),
        (libc::SYS_close, any()),
        (libc::SYS_fstat, any()),
        (libc::SYS_newfstatat, any()),
        (libc::SYS_statx, any()),
        (libc::SYS_readlink, any()),
        (libc::SYS_readlinkat, any()),
        (libc::SYS_getcwd, any()),
        // A panic's message, and that of a refused call, with the thread's name.
        (libc::SYS_write, vec![vec![is(0, STDERR)], vec![is(2, EVENT_BYTES)]]),
        (libc::SYS_writev, vec![vec![is(0, STDERR)]]),
        (libc::SYS_prctl, vec![vec![is(0, libc::PR_GET_NAME as u64)]]),
        // Tells the BPF program which vCPU the thread runs.
        (libc::SYS_bpf, vec![vec![is(0, BPF_UPDATE)]]),
        // The thread's end, and the process's when a call is refused.
        (libc::SYS_exit, any()),
        (libc::SYS_exit_group, any()),
    ]
}

/// The filter.
pub(super) fn program() -> Result<BpfProgram, Error> {
    let rule = |arguments: Vec<Argument>| {
        let conditions = arguments.into_iter().map(|Argument(position, mask, value)| {
            SeccompCondition::new(position, Length::Dword, Compare::MaskedEq(mask), value)
        });
        SeccompRule::new(conditions.collect::<Result<_, _>>()?)
    };
    let rules = rules().into_iter().map(|(call, alternatives)| {
        let alternatives = alternatives.into_iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        Ok((call, alternatives))
    });
    let rules: BTreeMap<_, _> = rules.collect::<Result<_, seccompiler::BackendError>>()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}
