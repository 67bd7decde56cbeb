//! Sandbox rules, and the system calls that a thread that runs vCPUs may make: each rule with its reason. All others are refused.

use std::collections::BTreeMap;

use libc::{PROT_EXEC, SIGABRT};
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use crate::host::signal;

/// KVM's requests to a vCPU (linux/kvm.h): _IO, _IOR(.., struct kvm_regs), _IOR(.., struct kvm_mp_state), _IO.
const KVM_RUN: u64 = 0xae80;
const KVM_GET_REGS: u64 = 0x8090_ae81;
const KVM_GET_MP_STATE: u64 = 0x8004_ae98;
const KVM_NMI: u64 = 0xae9a;
/// FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME, which come with any operation.
const FUTEX_FLAGS: u64 = 128 | 256;
/// ARCH_SET_GS.
const SET_GS: u64 = 0x1001;
const STDERR: u64 = 2;
/// Bytes that an event descriptor is written.
const EVENT_BYTES: u64 = 8;

/// One argument of a call: its position, and what it must be where the mask has ones.
#[derive(Clone, Debug)]
pub(super) struct Argument(u8, u64, u64);

/// An argument that is this number in its lower half, of which the kernel takes no more.
pub(super) const fn is(position: u8, value: u64) -> Argument {
    Argument(position, u32::MAX as u64, value)
}

/// Bits of an argument that must be set.
pub(super) const fn with(position: u8, bits: u64) -> Argument {
    Argument(position, bits, bits)
}

/// Bits of an argument that must not be set.
pub(super) const fn without(position: u8, bits: u64) -> Argument {
    Argument(position, bits, 0)
}

/// A futex operation, with whatever flags.
const fn futex(operation: i32) -> Argument {
    Argument(1, u32::MAX as u64 & !FUTEX_FLAGS, operation as u64)
}

/// When a rule is needed, and so how a test finds out that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// In runs that tests make: `tests/command/walls.rs` follows every call of them.
    InRuns,
    /// When a thread panics: a test takes each of these rules away, and something of the message is missing.
    InPanics,
    /// On other hosts than those of tests, or when something has gone wrong that no test brings about.
    Elsewhere,
}

/// A call that a thread may make.
#[derive(Clone, Debug)]
pub struct SandboxRule {
    /// Its number.
    pub call: i64,
    arguments: Vec<Argument>,
    /// Why it is made.
    pub why: &'static str,
    /// When.
    pub needed: Needed,
}

impl SandboxRule {
    /// Whether it lets `call` pass with these arguments.
    #[must_use]
    pub fn allows(&self, call: i64, arguments: &[u64]) -> bool {
        let is_met = |argument: &Argument| {
            let Argument(position, mask, value) = *argument;
            arguments.get(usize::from(position)).is_some_and(|given| given & mask == value)
        };
        self.call == call && self.arguments.iter().all(is_met)
    }

    pub(super) fn in_panics(self) -> Self {
        Self { needed: Needed::InPanics, ..self }
    }

    pub(super) fn elsewhere(self) -> Self {
        Self { needed: Needed::Elsewhere, ..self }
    }
}

pub(super) fn rule<const N: usize>(
    call: libc::c_long,
    arguments: [Argument; N],
    why: &'static str,
) -> SandboxRule {
    SandboxRule { call, arguments: arguments.into(), why, needed: Needed::InRuns }
}

/// Rules of threads that run vCPUs, in process `process`; `event` is the descriptor by which they interrupt a Linux guest.
#[expect(clippy::too_many_lines, reason = "it is one table")]
#[must_use]
pub fn runner_rules(process: u32, event: Option<u32>) -> Vec<SandboxRule> {
    let process = u64::from(process);
    let kick = signal::kick_signal() as u64;
    let writes = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
    let mut rules = vec![
        rule(libc::SYS_ioctl, [is(1, KVM_RUN)], "runs a vCPU"),
        rule(libc::SYS_ioctl, [is(1, KVM_GET_REGS)], "looks where a vCPU stands"),
        rule(libc::SYS_ioctl, [is(1, KVM_GET_MP_STATE)], "looks whether a vCPU has halted"),
        rule(libc::SYS_ioctl, [is(1, KVM_NMI)], "makes a vCPU drop its translations"),
        rule(libc::SYS_futex, [futex(libc::FUTEX_WAIT_BITSET)], "mutexes and condition variables: waits"),
        rule(libc::SYS_futex, [futex(libc::FUTEX_WAIT)], "the C library's own locks").elsewhere(),
        rule(libc::SYS_futex, [futex(libc::FUTEX_WAKE)], "wakes who waits so"),
        rule(libc::SYS_tgkill, [is(0, process), is(2, kick)], "kicks threads of this process out of KVM_RUN"),
        rule(libc::SYS_tgkill, [is(0, process), is(2, SIGABRT as u64)], "a panic within a panic").elsewhere(),
        rule(libc::SYS_rt_sigtimedwait, [], "takes its own kicks"),
        rule(libc::SYS_rt_sigreturn, [], "the way out of a kick's handler, and of an image's code"),
        rule(libc::SYS_arch_prctl, [is(0, SET_GS)], "the way into it"),
        rule(libc::SYS_sigaltstack, [], "its signals have a stack of their own; a thread that ends has none"),
        rule(libc::SYS_rt_sigprocmask, [], "a thread opens the kick; its end blocks signals"),
        rule(libc::SYS_timer_settime, [], "slices, injections, samples"),
        rule(libc::SYS_timer_delete, [], "their timers end with the thread"),
        rule(libc::SYS_clock_gettime, [], "all clocks, where the kernel maps none into the process")
            .elsewhere(),
        rule(libc::SYS_restart_syscall, [], "goes on sleeping when a stopped process goes on").elsewhere(),
        rule(libc::SYS_sched_yield, [], "a yield under the host's scheduler"),
        rule(libc::SYS_sched_getaffinity, [], "whether it is still where it was pinned to"),
        rule(libc::SYS_gettid, [], "who it is, for a kick"),
        rule(libc::SYS_getpid, [], "whose thread it is, for a kick"),
        rule(libc::SYS_mmap, [without(2, PROT_EXEC as u64)], "memory, none of it executable").in_panics(),
        rule(libc::SYS_mprotect, [without(2, PROT_EXEC as u64)], "more of it").elsewhere(),
        rule(libc::SYS_munmap, [], "gives it back"),
        rule(libc::SYS_mremap, [], "a long list grows").elsewhere(),
        rule(libc::SYS_madvise, [], "a thread that ends gives back its stack"),
        rule(libc::SYS_brk, [], "memory, where malloc has no arena of the thread's own").elsewhere(),
        rule(libc::SYS_getrandom, [], "the keys of a hash table").elsewhere(),
        rule(libc::SYS_openat, [without(2, writes)], "reads its own statistics under /proc"),
        rule(libc::SYS_read, [], "reads them"),
        rule(libc::SYS_close, [], "is done with them"),
        rule(libc::SYS_statx, [], "how long a file is"),
        rule(libc::SYS_fstat, [], "the same of a file that is open").elsewhere(),
        rule(libc::SYS_newfstatat, [], "the same under its older name").elsewhere(),
        rule(libc::SYS_lseek, [], "where in a file it is").in_panics(),
        rule(libc::SYS_getcwd, [], "shortens paths in a backtrace").in_panics(),
        rule(libc::SYS_write, [is(0, STDERR)], "says what went wrong").in_panics(),
        rule(libc::SYS_writev, [is(0, STDERR)], "a message of several parts").elsewhere(),
        rule(libc::SYS_prctl, [is(0, libc::PR_GET_NAME as u64)], "whose call was refused").elsewhere(),
        rule(libc::SYS_exit, [], "the thread's end"),
        rule(libc::SYS_exit_group, [], "the process's, after a panic or a refused call").elsewhere(),
    ];
    if let Some(event) = event {
        // The kernel takes all bits of a length.
        let arguments = [is(0, event.into()), Argument(2, u64::MAX, EVENT_BYTES)];
        rules
            .push(rule(libc::SYS_write, arguments, "a Linux kernel's serial port interrupts it").elsewhere());
    }
    if cfg!(target_env = "musl") {
        // The static program's C library makes these calls in place of others that are allowed anyway.
        rules.extend([
            rule(libc::SYS_open, [without(1, writes)], "openat, as musl has it"),
            rule(libc::SYS_stat, [], "statx, as musl has it"),
            rule(libc::SYS_lstat, [], "the same of a link"),
            rule(libc::SYS_fcntl, [is(1, libc::F_SETFD as u64)], "says again that a file is closed on exec"),
        ]);
    }
    rules
}

/// A filter that does `matched` for calls that one of `rules` lets pass, and `otherwise` for all others.
pub(super) fn program(
    rules: impl IntoIterator<Item = SandboxRule>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, Error> {
    let mut by_call: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut whatever = Vec::new();
    for SandboxRule { call, arguments, .. } in rules {
        let alternatives = by_call.entry(call).or_default();
        if arguments.is_empty() {
            whatever.push(call);
            continue;
        }
        let conditions = arguments.into_iter().map(|Argument(position, mask, value)| {
            let length = if mask > u32::MAX.into() { Length::Qword } else { Length::Dword };
            SeccompCondition::new(position, length, Compare::MaskedEq(mask), value)
        });
        alternatives.push(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?);
    }
    // No alternatives: any arguments will do.
    whatever.iter().for_each(|call| _ = by_call.insert(*call, vec![]));
    Ok(SeccompFilter::new(by_call, otherwise, matched, TargetArch::x86_64)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_security_page_counts_the_requests_to_kvm() {
        const PAGE: &str = include_str!("../../../../SECURITY.md");
        let rules = runner_rules(1, None);
        let requests = rules.iter().filter(|rule| rule.call == libc::SYS_ioctl).count();
        let words = ["no", "one", "two", "three", "four", "five"];
        let said = format!("KVM_RUN and {} other requests to KVM", words[requests - 1]);
        assert!(PAGE.split_whitespace().collect::<Vec<_>>().join(" ").contains(&said), "{said}");
    }
}
