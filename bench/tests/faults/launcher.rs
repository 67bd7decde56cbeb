//! Starts a command whose system calls ask us first (seccomp's user notifications), counts them, and answers some with an error.
//!
//! A thread of ours gives itself the filter and starts the command, which inherits it; this thread, which has none,
//! answers. There is no preloading and no tracing: the command makes its calls as it always does.
#![expect(unsafe_code, reason = "seccomp's interface is one of structures and descriptors")]

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::calls::{Call, watched};

/// A command that has not ended by then hangs: it takes a second, and a busy host makes it take many.
const PATIENCE: Duration = Duration::from_secs(180);
const RECEIVE: u64 = 0xc050_2100;
const SEND: u64 = 0xc018_2101;

/// Which of the calls of a kind fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Times {
    /// This one, counted from 1.
    Only(u64),
    /// The second and every other one.
    EveryOther,
}

/// The call to fail, and its error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) call: Call,
    pub(crate) times: Times,
    pub(crate) error: i32,
}

impl Fault {
    fn strikes(&self, call: Call, number: u64) -> bool {
        let now = match self.times {
            Times::Only(time) => number == time,
            Times::EveryOther => number.is_multiple_of(2),
        };
        self.call == call && now
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.error);
        match self.times {
            Times::Only(time) => write!(f, "{} number {time}: {error}", self.call),
            Times::EveryOther => write!(f, "every other {}: {error}", self.call),
        }
    }
}

/// A command that has ended.
pub(crate) struct Launched {
    /// `None`: it hung, and was killed.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Calls from the beginning of `main` on.
    pub(crate) made: BTreeMap<Call, u64>,
    pub(crate) struck: u64,
}

impl Launched {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }
}

/// Runs `command`, whose words go to files in `directory`.
pub(crate) fn launch(mut command: Command, directory: &Path, fault: Option<Fault>) -> Launched {
    let words = ["stdout", "stderr"].map(|name| directory.join(name));
    let [stdout, stderr] = words.each_ref().map(|path| File::create(path).expect("a scratch file"));
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let (listener, launcher) = (AtomicI32::new(-1), AtomicI32::new(0));
    let child: Mutex<Option<Child>> = Mutex::new(None);
    let (status, answered) = std::thread::scope(|scope| {
        let starts = scope.spawn(|| {
            launcher.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
            let filtered = filter(&watched()).expect("seccomp's notifications were tried");
            // Release pairs with the acquire below.
            listener.store(filtered, Ordering::Release);
            let started = command.spawn().expect("haltkick can be started");
            *child.lock().expect("nobody panics with it") = Some(started);
        });
        let mut answers = Answers::new(listener_of(&listener), launcher.load(Ordering::Relaxed), fault);
        let status = answers.serve(&child, || starts.is_finished());
        (status, answers)
    });
    let [stdout, stderr] =
        words.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned());
    Launched { status, stdout, stderr, made: answered.made, struck: answered.struck }
}

/// Waits until the thread has its filter. (A channel would do, were its wake-up no system call.)
fn listener_of(listener: &AtomicI32) -> OwnedFd {
    loop {
        // Acquire pairs with the release of the thread, whose number was stored before.
        match listener.load(Ordering::Acquire) {
            -1 => std::thread::sleep(Duration::from_millis(1)),
            // SAFETY: the kernel has just made this descriptor for us, and it is not known elsewhere.
            fd => return unsafe { OwnedFd::from_raw_fd(fd) },
        }
    }
}

/// The thread that answers.
struct Answers {
    listener: OwnedFd,
    /// Our thread: its calls are not the command's.
    launcher: i32,
    fault: Option<Fault>,
    /// The command's `main` has begun.
    begun: bool,
    made: BTreeMap<Call, u64>,
    struck: u64,
}

impl Answers {
    fn new(listener: OwnedFd, launcher: i32, fault: Option<Fault>) -> Self {
        Self { listener, launcher, fault, begun: false, made: BTreeMap::new(), struck: 0 }
    }

    /// Answers until the command has ended.
    fn serve(&mut self, child: &Mutex<Option<Child>>, is_started: impl Fn() -> bool) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            while self.is_asked() {
                self.answer();
            }
            let mut child = child.lock().expect("nobody panics with it");
            let Some(child) = child.as_mut().filter(|_| is_started()) else { continue };
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            if began.elapsed() > PATIENCE {
                _ = child.kill();
                _ = child.wait();
                return None;
            }
        }
    }

    fn is_asked(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let mut waited = [PollFd::new(&self.listener, PollFlags::IN)];
        poll(&mut waited, Some(&limit)) == Ok(1) && waited[0].revents().contains(PollFlags::IN)
    }

    fn answer(&mut self) {
        // SAFETY: all zeros is what the kernel wants of this structure of numbers.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one such structure there. The calling thread may have gone meanwhile: then there is
        // nothing.
        if unsafe { libc::ioctl(self.listener.as_raw_fd(), RECEIVE, &raw mut asked) } != 0 {
            return;
        }
        let error = self.decide(&asked);
        let answer = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: -error,
            flags: if error == 0 { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 },
        };
        // SAFETY: the kernel reads one such structure. As above: the receiver may be gone.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), SEND, &raw const answer) };
    }

    /// The error that this call gets, or 0.
    fn decide(&mut self, asked: &libc::seccomp_notif) -> i32 {
        let number = i64::from(asked.data.nr);
        if asked.pid as i32 == self.launcher {
            return 0;
        }
        // The runtime's last preparation before `main`.
        if !self.begun {
            self.begun = number == libc::SYS_sigaltstack;
            return 0;
        }
        let call = Call::of(number, &asked.data.args);
        let made = self.made.entry(call).or_default();
        *made += 1;
        match self.fault.filter(|fault| fault.strikes(call, *made)) {
            Some(fault) => {
                self.struck += 1;
                fault.error
            }
            None => 0,
        }
    }
}

/// Whether this host has such notifications.
pub(crate) fn supported(calls: &[i64]) -> io::Result<()> {
    let filtered = std::thread::scope(|scope| {
        // A call that is never made: this thread is to end.
        scope.spawn(|| filter(&calls[..0])).join().expect("it does not panic")
    })?;
    // SAFETY: the kernel has just made this descriptor for us, and it is not known elsewhere.
    drop(unsafe { OwnedFd::from_raw_fd(filtered) });
    Ok(())
}

/// Gives the calling thread, and what it starts, a filter that asks about `calls` and the mark of a beginning. Who answers listens
/// at the descriptor.
fn filter(calls: &[i64]) -> io::Result<i32> {
    const NUMBER: u32 = 0;
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER)];
    let asked: Vec<i64> = match calls {
        [] => Vec::new(),
        _ => calls.iter().copied().chain([libc::SYS_sigaltstack]).collect(),
    };
    for (index, call) in asked.iter().enumerate() {
        let to_the_end = (asked.len() - index) as u8;
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_the_end, 0, *call as u32));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: no memory is passed.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, whose length is right, before it returns.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if listener < 0 { Err(io::Error::last_os_error()) } else { Ok(listener as i32) }
}
