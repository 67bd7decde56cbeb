//! System calls that a process may make once it runs guests, in its main thread and in helper threads: those of threads that run
//! vCPUs, and these.

use std::ffi::c_uint;

use kvm_bindings::{
    KVMIO, kvm_cpuid2, kvm_device_attr, kvm_enable_cap, kvm_irqfd, kvm_mp_state, kvm_msrs, kvm_regs,
    kvm_signal_mask, kvm_sregs, kvm_userspace_memory_region,
};
use libc::PROT_EXEC;
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

use super::Needs;
use super::rules::{SandboxRule, is, rule, runner_rules, with, without};

// bpf(2).
const BPF_MAP_CREATE: u64 = 0;
const BPF_MAP_UPDATE_ELEM: u64 = 2;
const BPF_PROG_LOAD: u64 = 5;
const BPF_RAW_TRACEPOINT_OPEN: u64 = 17;
/// PERF_EVENT_IOC_ENABLE and _DISABLE: _IO('$', 0) and _IO('$', 1).
const PERF_ENABLE: u64 = 0x2400;
const PERF_DISABLE: u64 = 0x2401;
/// Flags that open a file for changes.
const WRITES: u64 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u64;
/// PR_GET_AUXV.
const GET_AUXV: u64 = 0x4155_5856;

const SWAPS: c_uint = _IOC_READ | _IOC_WRITE;

/// One of KVM's requests, for which the kernel reads or writes a `T`, or both.
const fn kvm<T>(direction: c_uint, number: c_uint) -> u64 {
    ioctl_expr(direction, KVMIO, number, size_of::<T>() as c_uint)
}

/// Rules for threads that run no vCPUs, in a process with `needs`: calls beyond [`runner_rules`], or with fewer
/// restrictions.
#[must_use]
pub fn process_rules(needs: &Needs) -> Vec<SandboxRule> {
    let opens = vec![rule(libc::SYS_open, [], "openat, as musl has it")];
    let groups = [
        (true, [machines(), threads(), files()].concat()),
        (cfg!(target_env = "musl"), opens),
        (needs.switches, switches()),
        (needs.counters, counters()),
        (needs.foreign_code, foreign_code()),
    ];
    groups.into_iter().filter(|(is_needed, _)| *is_needed).flat_map(|(_, rules)| rules).collect()
}

/// All that the process's filter lets pass, KVM_RUN before other requests: a filter is gone through in order.
pub(super) fn all(process: u32, needs: &Needs) -> Vec<SandboxRule> {
    [runner_rules(process, None), process_rules(needs)].concat()
}

fn machines() -> Vec<SandboxRule> {
    let ioctl = |request, why| rule(libc::SYS_ioctl, [is(1, request)], why);
    vec![
        ioctl(kvm::<()>(_IOC_NONE, 0x00), "KVM_GET_API_VERSION: asks whether this is KVM"),
        ioctl(kvm::<()>(_IOC_NONE, 0x01), "KVM_CREATE_VM: makes a machine"),
        ioctl(kvm::<()>(_IOC_NONE, 0x03), "KVM_CHECK_EXTENSION: asks what KVM can do"),
        ioctl(kvm::<()>(_IOC_NONE, 0x04), "KVM_GET_VCPU_MMAP_SIZE: how much of a vCPU there is to map"),
        ioctl(kvm::<kvm_cpuid2>(SWAPS, 0x05), "KVM_GET_SUPPORTED_CPUID: asks what vCPUs can be"),
        ioctl(kvm::<()>(_IOC_NONE, 0x41), "KVM_CREATE_VCPU: makes a vCPU"),
        ioctl(
            kvm::<kvm_userspace_memory_region>(_IOC_WRITE, 0x46),
            "KVM_SET_USER_MEMORY_REGION: gives memory",
        ),
        ioctl(kvm::<()>(_IOC_NONE, 0x47), "KVM_SET_TSS_ADDR: where VMX keeps pages of its own"),
        ioctl(kvm::<()>(_IOC_NONE, 0x60), "KVM_CREATE_IRQCHIP: interrupt controllers of a Linux guest"),
        ioctl(kvm::<kvm_irqfd>(_IOC_WRITE, 0x76), "KVM_IRQFD: the interrupt of its serial port"),
        ioctl(kvm::<kvm_regs>(_IOC_WRITE, 0x82), "KVM_SET_REGS: where a vCPU starts"),
        ioctl(kvm::<kvm_sregs>(_IOC_READ, 0x83), "KVM_GET_SREGS: in which state"),
        ioctl(kvm::<kvm_sregs>(_IOC_WRITE, 0x84), "KVM_SET_SREGS: the same"),
        ioctl(kvm::<kvm_msrs>(SWAPS, 0x88), "KVM_GET_MSRS: who keeps the record of stolen time"),
        ioctl(kvm::<kvm_msrs>(_IOC_WRITE, 0x89), "KVM_SET_MSRS: where that record is"),
        ioctl(kvm::<kvm_signal_mask>(_IOC_WRITE, 0x8b), "KVM_SET_SIGNAL_MASK: kicks end KVM_RUN"),
        ioctl(kvm::<kvm_cpuid2>(_IOC_WRITE, 0x90), "KVM_SET_CPUID2: what a vCPU is"),
        ioctl(kvm::<kvm_mp_state>(_IOC_WRITE, 0x99), "KVM_SET_MP_STATE: a vCPU starts by itself"),
        ioctl(kvm::<kvm_enable_cap>(_IOC_WRITE, 0xa3), "KVM_ENABLE_CAP: halts, polls, interrupt controllers"),
        ioctl(kvm::<()>(_IOC_NONE, 0xa3), "KVM_GET_TSC_KHZ: how fast its clock is"),
        ioctl(kvm::<()>(_IOC_NONE, 0xce), "KVM_GET_STATS_FD: what KVM counted"),
        rule(libc::SYS_pread64, [], "reads that"),
        rule(libc::SYS_mbind, [], "places memory on NUMA nodes, where there are several").elsewhere(),
        ioctl(kvm::<kvm_device_attr>(_IOC_WRITE, 0xe1), "KVM_SET_DEVICE_ATTR: its clock is the host's"),
        rule(libc::SYS_eventfd2, [], "interrupts of the serial port of a Linux guest"),
    ]
}

fn threads() -> Vec<SandboxRule> {
    let thread = (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u64;
    vec![
        rule(libc::SYS_clone, [with(0, thread)], "starts a thread"),
        rule(
            libc::SYS_clone3,
            [],
            "the same, whose flags no filter sees: another filter says that there is none",
        ),
        rule(libc::SYS_set_robust_list, [], "the C library's mutexes in a new thread"),
        rule(libc::SYS_rseq, [], "the C library asks to know the CPU of a new thread"),
        rule(libc::SYS_prctl, [is(0, libc::PR_SET_NAME as u64)], "a thread's name"),
        rule(libc::SYS_prctl, [is(0, GET_AUXV)], "rustix asks, once, how long a page is"),
        rule(libc::SYS_open, [without(1, WRITES)], "and reads it in /proc before Linux 6.4").elsewhere(),
        rule(libc::SYS_sched_setaffinity, [is(0, 0)], "a thread pins itself"),
        rule(libc::SYS_prlimit64, [is(0, 0)], "how many files may be open"),
        rule(
            libc::SYS_rt_sigaction,
            [],
            "catches Ctrl-C, and what ends the code of an image in this process",
        ),
        rule(libc::SYS_timer_create, [], "the timer of a runner"),
        rule(libc::SYS_capget, [], "the privileges that it gives up"),
        rule(libc::SYS_capset, [], "gives them up, or takes back what BPF needs for a moment").elsewhere(),
        rule(libc::SYS_prctl, [is(0, libc::PR_SET_NO_NEW_PRIVS as u64)], "comes with a filter"),
        rule(libc::SYS_seccomp, [], "the filter of a thread that runs vCPUs"),
    ]
}

/// Files: which, is the business of Landlock.
fn files() -> Vec<SandboxRule> {
    vec![
        rule(libc::SYS_openat, [], "writes records and reports"),
        rule(libc::SYS_write, [], "writes them, and what it says"),
        rule(libc::SYS_ftruncate, [], "cuts off what did not fit on the disk, or a live view that is long")
            .elsewhere(),
        rule(libc::SYS_fsync, [], "what is written outlasts a power cut").elsewhere(),
        rule(libc::SYS_rename, [], "a file appears complete or not at all"),
        rule(libc::SYS_unlink, [], "removes what is half a file").elsewhere(),
        rule(libc::SYS_rmdir, [], "removes the directory of an experiment of which nothing was measured")
            .elsewhere(),
        rule(libc::SYS_mkdir, [], "the directory of the next experiment").elsewhere(),
        rule(libc::SYS_getdents64, [], "lists directories"),
        rule(libc::SYS_readlink, [], "finds this program's file, whose hash is recorded"),
        rule(libc::SYS_ioctl, [is(1, libc::TCGETS as _)], "whether it speaks to a terminal"),
        rule(libc::SYS_ioctl, [is(1, libc::TIOCGWINSZ as _)], "how wide that is").elsewhere(),
        rule(libc::SYS_fcntl, [is(1, libc::F_GETFD as u64)], "a directory that is closed was open"),
        rule(libc::SYS_fcntl, [is(1, libc::F_DUPFD_CLOEXEC as u64)], "locks its records, and writes them")
            .elsewhere(),
        rule(libc::SYS_flock, [], "nobody else writes to them").elsewhere(),
        rule(libc::SYS_ppoll, [], "waits until what it says is taken"),
        rule(libc::SYS_clock_nanosleep, [], "looks after a run now and then"),
    ]
}

fn switches() -> Vec<SandboxRule> {
    let bpf = |command, why| rule(libc::SYS_bpf, [is(0, command)], why);
    vec![
        bpf(BPF_MAP_CREATE, "what the programs on switches share with this process"),
        bpf(BPF_PROG_LOAD, "loads them"),
        bpf(BPF_RAW_TRACEPOINT_OPEN, "attaches them"),
        bpf(BPF_MAP_UPDATE_ELEM, "tells them which thread runs which vCPU"),
    ]
}

fn counters() -> Vec<SandboxRule> {
    let ioctl = |request, why| rule(libc::SYS_ioctl, [is(1, request)], why);
    vec![
        rule(libc::SYS_perf_event_open, [], "counts cache events"),
        ioctl(PERF_ENABLE, "from the opening of the window").elsewhere(),
        ioctl(PERF_DISABLE, "to its close").elsewhere(),
    ]
}

fn foreign_code() -> Vec<SandboxRule> {
    vec![
        rule(libc::SYS_mmap, [with(2, PROT_EXEC as u64)], "an image's code").elsewhere(),
        rule(libc::SYS_mprotect, [with(2, PROT_EXEC as u64)], "makes it executable"),
    ]
}
