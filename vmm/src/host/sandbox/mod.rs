//! Walls around what runs guests: if a guest got hold of one of our threads, it could ask the kernel for little.
//!
//! A process that will run guests gives up what it does not need ([`Needs`]): new privileges, most of those that it has,
//! and files (`privileges`), system calls (`process_rules`). Threads that run vCPUs give up all privileges, and have a
//! filter of their own on top (`rules`), from when they have what they need until they end. A call that is not in a filter ends
//! the process, which says which it was, and of which thread (`refusal`). The process cannot be looked into by others of
//! the same user, and leaves no memory image behind.
#![expect(unsafe_code, reason = "seccomp and a signal's handler have no safe wrapper in rustix")]

pub(crate) mod privileges;
mod process_rules;
mod refusal;
mod rules;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, set_no_new_privs};
use seccompiler::{BpfProgram, SeccompAction};

use crate::host::cgroup;
use crate::host::error::{Known, RunError, system};
use crate::host::threads::lock;

pub use privileges::landlock_abi;
pub use process_rules::process_rules;
pub use rules::{Needed, SandboxRule, runner_rules};

static DISABLED: AtomicBool = AtomicBool::new(false);
static WALLS: OnceLock<Walls> = OnceLock::new();
/// The descriptor by which threads that run vCPUs interrupt a Linux guest.
static EVENT: AtomicU32 = AtomicU32::new(NO_EVENT);
const NO_EVENT: u32 = u32::MAX;

/// The sandbox around this process.
#[derive(Clone, Debug)]
pub struct Walls {
    /// Whether its system calls are filtered, or why not.
    pub calls: Known<()>,
    /// Which version of Landlock keeps it from other files, or why none does.
    pub files: Known<u32>,
}

/// Disables the sandbox from now on, for debugging of the sandbox itself.
pub fn disable_sandbox() {
    // Relaxed: said before a run begins.
    DISABLED.store(true, Ordering::Relaxed);
}

/// Whether threads that run guests are walled in.
#[must_use]
pub fn is_sandboxed() -> bool {
    !DISABLED.load(Ordering::Relaxed)
}

/// Returns the sandbox that is around this process by now.
#[must_use]
pub fn walls() -> Walls {
    let none = |why: &'static str| Walls { calls: Err(why.into()), files: Err(why.into()) };
    match WALLS.get() {
        Some(walls) => walls.clone(),
        None if is_sandboxed() => none("this process runs no guests"),
        None => none("--no-sandbox"),
    }
}

/// Whether this kernel can filter system calls.
///
/// # Errors
/// Why not, as the end of a sentence.
pub fn sandbox_filters() -> Known<()> {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_ulong = 2;
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: reads four bytes that live until it returns.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    if answer == 0 { Ok(()) } else { Err(format!("seccomp: {}", io::Error::last_os_error()).into()) }
}

/// Gives up all rights but `needs` for good; to be called before the process starts any thread. Features that the kernel lacks for it
/// are reported by [`walls`]. A second call changes nothing.
///
/// # Errors
/// What the kernel refuses.
pub fn confine_process(needs: &Needs) -> Result<(), RunError> {
    if needs.quota {
        cgroup::needs_quota()?;
    }
    if !is_sandboxed() || WALLS.get().is_some() {
        return Ok(());
    }
    refusal::explain();
    give_up_powers(needs).map_err(system("give up privileges (--no-sandbox keeps them)"))?;
    let walls = if needs.programs {
        let why = "another program is started, which would inherit it";
        Walls { calls: Err(why.into()), files: Err(why.into()) }
    } else {
        let files = privileges::wall_off(needs)?;
        // Last: what comes before makes calls that nothing makes afterwards.
        Walls { files, calls: filter_process(needs)? }
    };
    _ = WALLS.set(walls);
    Ok(())
}

/// Privileges, new ones, being looked into, a core.
fn give_up_powers(needs: &Needs) -> io::Result<()> {
    set_no_new_privs(true)?;
    if !needs.programs && !needs.looked_into {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    }
    // Cannot fail: lowering a limit needs no privilege.
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if needs.programs {
        return Ok(());
    }
    raise_the_most_open_files();
    let mut kept = CapabilitySet::empty();
    if needs.switches {
        kept |= CapabilitySet::BPF | CapabilitySet::PERFMON;
    }
    if needs.counters {
        kept |= CapabilitySet::PERFMON;
    }
    let paths = needs.reads.iter().chain(&needs.writes);
    let paths: Vec<&Path> = paths.map(PathBuf::as_path).collect();
    privileges::keep(kept, &paths)
}

/// As long as this may be privileged to do so: runs raise the limit itself when they need to.
fn raise_the_most_open_files() {
    /// As many as kernels allow by default (fs.nr_open).
    const MOST: u64 = 1 << 20;
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(MOST));
    // Without privilege the limit stays as it is.
    _ = setrlimit(Resource::Nofile, Rlimit { current: limit.current, maximum });
}

/// Around all threads of the process, of which there is one. `Err`: this kernel has no filters.
fn filter_process(needs: &Needs) -> Result<Known<()>, RunError> {
    if let Err(why) = sandbox_filters() {
        return Ok(Err(why));
    }
    // The C library then takes the call whose flags can be seen.
    let no_clone3 = rules::program(
        [rules::rule(libc::SYS_clone3, [], "")],
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
    );
    let program = trapping(process_rules::all(std::process::id(), needs))?;
    seccompiler::apply_filter(&no_clone3.map_err(refused)?).map_err(refused)?;
    seccompiler::apply_filter(&program).map_err(refused)?;
    Ok(Ok(()))
}

/// Threads that run vCPUs and are confined from now on write this event. Relaxed: it is said before they are started.
pub(crate) fn will_write(event: &impl std::os::fd::AsRawFd) {
    EVENT.store(event.as_raw_fd().cast_unsigned(), Ordering::Relaxed);
}

/// The calling thread runs vCPUs from now on, and does nothing else until it ends. Its kernel may have no filters: records and
/// `doctor` say so.
pub(crate) fn confine_runner() -> Result<(), RunError> {
    /// The last one that was made, and for which event: all threads of a run have the same.
    static PROGRAM: Mutex<Option<(u32, Arc<BpfProgram>)>> = Mutex::new(None);
    if !is_sandboxed() {
        return Ok(());
    }
    // Relaxed: said before this thread was started.
    let event = EVENT.load(Ordering::Relaxed);
    let mut program = lock(&PROGRAM);
    let made = match &*program {
        Some((of, made)) if *of == event => Arc::clone(made),
        _ => {
            let known = Some(event).filter(|&event| event != NO_EVENT);
            Arc::new(trapping(runner_rules(std::process::id(), known))?)
        }
    };
    *program = Some((event, Arc::clone(&made)));
    drop(program);
    confine_runner_to(&made)
}

/// A filter that ends the process at all that `rules` do not let pass.
fn trapping(rules: Vec<SandboxRule>) -> Result<BpfProgram, RunError> {
    rules::program(rules, SeccompAction::Trap, SeccompAction::Allow).map_err(refused)
}

fn confine_runner_to(program: &BpfProgram) -> Result<(), RunError> {
    privileges::keep(CapabilitySet::empty(), &[])
        .map_err(system("give up a thread's privileges (--no-sandbox keeps them)"))?;
    if sandbox_filters().is_err() {
        return Ok(());
    }
    refusal::explain();
    seccompiler::apply_filter(program).map_err(refused)
}

fn refused(why: seccompiler::Error) -> RunError {
    system("filter the system calls of a thread (--no-sandbox leaves them)")(io::Error::other(
        why.to_string(),
    ))
}

/// The resources that a process that will run guests still needs; it gives up all others.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// It starts other programs, which inherit its walls: it keeps its files, its system calls and its privileges.
    pub programs: bool,
    /// Others of its user may look into it: those programs, or a profiler that was asked for.
    pub looked_into: bool,
    /// It runs an image's code itself.
    pub foreign_code: bool,
    /// It attaches BPF programs to the host's scheduler.
    pub switches: bool,
    /// It counts cache events.
    pub counters: bool,
    /// Files that it has yet to read.
    pub reads: Vec<PathBuf>,
    /// Directories that it will write to.
    pub writes: Vec<PathBuf>,
    /// The kernel keeps a quota of it, whose counts it reads.
    pub quota: bool,
}

#[cfg(test)]
pub(in crate::host) mod tests {
    use std::os::fd::AsRawFd as _;
    use std::process::Command;

    use super::*;

    /// In the environment of a process of this program's: the part of a test that it is to do.
    const PART: &str = "HALTKICK_TEST_PART";

    /// Has `child`, a closure of the test that calls this, do `part` in a process of its own: how that ended, and what it said. `None`:
    /// this is that process, and it has done so.
    pub(in crate::host) fn apart<F: Fn(&str)>(part: &str, child: &F) -> Option<(Option<i32>, String)> {
        if let Ok(part) = std::env::var(PART) {
            child(&part);
            return None;
        }
        // Path of the crate, path of the test, name of the closure.
        let (_, test) = std::any::type_name::<F>().split_once("::").expect("a closure of this crate");
        let (test, _) = test.rsplit_once("::").expect("a closure of a test");
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(PART, part)
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();
        Some((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// As [`apart`]: the process has come to its end, and said this.
    fn said_apart<F: Fn(&str)>(part: &str, child: &F) -> Option<String> {
        let (code, said) = apart(part, child)?;
        assert_eq!(code, Some(0), "{part}: {said}");
        Some(said)
    }

    /// As [`apart`]: the process was ended by its filter, and has said why.
    fn is_refused_apart<F: Fn(&str)>(part: &str, child: &F, why: &str) {
        if let Some((code, said)) = apart(part, child) {
            assert_eq!(code, Some(1), "{part}: {said}");
            assert!(said.contains(why), "{part}: {said}");
        }
    }

    /// Has a runner do `work`. Whether it panicked.
    fn runner(work: impl FnOnce() + Send + 'static) -> bool {
        std::thread::Builder::new().name("pcpu7".into()).spawn(work).unwrap().join().is_err()
    }

    #[test]
    fn a_runner_writes_to_its_event_alone_and_other_calls_are_named() {
        if sandbox_filters().is_err() {
            return;
        }
        let writes = |part: &str| {
            let event = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
            will_write(&event);
            let (file, bytes) = match part {
                "as it should" => (event.as_raw_fd(), 8),
                "longer" => (event.as_raw_fd(), 8 | 1 << 32),
                _ => (1, 8),
            };
            runner(move || {
                confine_runner().unwrap();
                let one = 1_u64;
                // SAFETY: of more bytes than there are, the kernel reads eight: an event takes no more.
                unsafe { libc::write(file, (&raw const one).cast(), bytes) };
            });
        };
        said_apart("as it should", &writes);
        let why = format!("thread pcpu7 made system call {}", libc::SYS_write);
        ["longer", "elsewhere"].into_iter().for_each(|part| is_refused_apart(part, &writes, &why));
    }

    #[test]
    fn a_runner_sets_no_handler_and_no_thread_reaches_another_process() {
        let needs = Needs { foreign_code: true, switches: true, counters: true, ..Needs::default() };
        let runner = runner_rules(1, Some(9));
        let all = process_rules::all(1, &needs);
        let allows = |rules: &[SandboxRule], call, arguments: &[u64]| {
            rules.iter().any(|rule| rule.allows(call, arguments))
        };
        for signal in [libc::SIGUSR1, libc::SIGSYS, libc::SIGSEGV] {
            assert!(!allows(&runner, libc::SYS_rt_sigaction, &[signal as u64, 1, 0, 8]), "{signal}");
        }
        for (call, rest) in [(libc::SYS_prlimit64, 7), (libc::SYS_sched_setaffinity, 128)] {
            assert!(allows(&all, call, &[0, rest, 0, 0]), "{call} of its own");
            assert!(!allows(&all, call, &[1, rest, 0, 0]), "{call} of another process");
            assert!(!allows(&runner, call, &[0, rest, 0, 0]), "{call} of a runner");
        }
    }

    #[test]
    fn a_runner_that_panics_says_where_and_needs_all_that_it_may() {
        if sandbox_filters().is_err() {
            return;
        }
        let rules = || runner_rules(std::process::id(), None);
        let panics = move |part: &str| {
            let without = part.parse::<usize>().ok();
            assert!(runner(move || {
                let kept = rules().into_iter().enumerate().filter(|(index, _)| Some(*index) != without);
                confine_runner_to(&trapping(kept.map(|(_, rule)| rule).collect()).unwrap()).unwrap();
                // The command's own hook ends the process like this.
                let say = std::panic::take_hook();
                std::panic::set_hook(Box::new(move |panic| {
                    say(panic);
                    std::process::exit(0)
                }));
                panic!("behind the wall");
            }));
        };
        let Some(said) = said_apart("none", &panics) else { return };
        assert!(said.contains("behind the wall") && said.contains("sandbox/mod.rs"), "{said}");
        assert!(said.contains("{closure"), "no names in the backtrace: {said}");
        let is_redundant = |index: usize| apart(&index.to_string(), &panics).unwrap().0 == Some(0);
        let rules = rules().into_iter().enumerate();
        let redundant = rules.filter(|(index, rule)| rule.needed == Needed::InPanics && is_redundant(*index));
        let redundant: Vec<_> = redundant.map(|(_, rule)| (rule.call, rule.why)).collect();
        assert!(redundant.is_empty(), "no panic needs {redundant:?}");
    }

    #[test]
    fn a_sandboxed_process_says_where_it_panics_and_starts_no_other() {
        if sandbox_filters().is_err() {
            return;
        }
        let panics_or_starts = |part: &str| {
            confine_process(&Needs::default()).unwrap();
            if part == "panics" {
                let helper = std::thread::Builder::new().name("helper".into()).spawn(|| panic!("within"));
                assert!(helper.unwrap().join().is_err());
            } else {
                let nothing = [std::ptr::null()];
                // SAFETY: a live name, and lists that end where they begin.
                unsafe { libc::execve(c"/bin/true".as_ptr(), nothing.as_ptr(), nothing.as_ptr()) };
            }
        };
        let Some(said) = said_apart("panics", &panics_or_starts) else { return };
        assert!(said.contains("within") && said.contains("{closure"), "no names in the backtrace: {said}");
        let why = format!("made system call {}", libc::SYS_execve);
        is_refused_apart("starts a program", &panics_or_starts, &why);
    }

    #[test]
    fn a_process_behind_its_walls_opens_what_it_named_and_nothing_else() {
        if landlock_abi().is_err() {
            return;
        }
        let of_process = |process: u32| std::env::temp_dir().join(format!("haltkick-walls-{process}"));
        let opens = |_: &str| {
            let directory = of_process(std::os::unix::process::parent_id());
            let (named, other) = (directory.join("named"), directory.join("other"));
            let image = directory.join("image");
            [&named, &other].into_iter().for_each(|path| std::fs::create_dir_all(path).unwrap());
            std::fs::write(&image, "guest").unwrap();
            let needs = Needs { reads: vec![image.clone()], writes: vec![named.clone()], ..Needs::default() };
            let abi = landlock_abi();
            confine_process(&needs).unwrap();
            assert_eq!(walls().files, abi);
            // All that is done to results, and to what is read.
            for text in ["longer than a record", "record"] {
                std::fs::write(named.join("partial"), text).unwrap();
            }
            std::fs::rename(named.join("partial"), named.join("record")).unwrap();
            assert_eq!(std::fs::read_to_string(named.join("record")).unwrap(), "record");
            std::fs::create_dir(named.join("inner")).unwrap();
            std::fs::remove_dir(named.join("inner")).unwrap();
            assert_eq!(std::fs::read_to_string(&image).unwrap(), "guest");
            assert!(std::fs::read_to_string("/proc/stat").is_ok());
            let refused =
                |result: io::Result<()>| result.unwrap_err().kind() == io::ErrorKind::PermissionDenied;
            assert!(refused(std::fs::write(other.join("file"), "")));
            assert!(refused(std::fs::write(image, "")));
            assert!(refused(std::fs::write("/proc/self/comm", "x")));
            assert!(refused(std::fs::read_to_string("/etc/passwd").map(drop)));
            assert!(refused(std::fs::read_dir("/").map(drop)));
            std::fs::remove_file(named.join("record")).unwrap();
            std::fs::remove_dir(named).unwrap();
        };
        let Some((code, said)) = apart("opens", &opens) else { return };
        _ = std::fs::remove_dir_all(of_process(std::process::id()));
        assert_eq!(code, Some(0), "{said}");
    }

    #[test]
    fn a_process_without_its_privileges_has_none_and_leaves_no_core() {
        let gives_up = |_: &str| {
            give_up_powers(&Needs::default()).unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
            let none = CapabilitySet::empty();
            let sets = rustix::thread::capabilities(None).unwrap();
            assert_eq!((sets.permitted, sets.effective, sets.inheritable), (none, none, none));
            assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
            assert_eq!(rustix::process::getrlimit(Resource::Core).maximum, Some(0));
        };
        said_apart("gives up", &gives_up);
    }
}
