//! Findings about this host's KVM, kept from one process to the next: `$XDG_CACHE_HOME/haltkick/kvm`, or `~/.cache/haltkick/kvm`.
//!
//! A process that will run guests on KVM reads the file before its walls close, and replaces it at its end by one that holds what it has
//! found out in addition. A file of another host, kernel, microcode or version of this program is none, nor is one that is damaged, not
//! this user's alone, or no plain file: it is replaced.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use haltkick_vmm::{KvmFindings, Needs, PvBackend};
use rustix::fs::{CWD, Mode, OFlags, mkdir, openat, renameat};
use serde::{Deserialize, Serialize};

use crate::host::probe;

const FORMAT: u32 = 1;
const NAME: &str = "kvm";
/// The name of a file that is not complete.
const NEW: &str = "kvm.new";
/// The longest file that is read: ten times what one holds.
const MOST_BYTES: u64 = 64 << 10;

static DISABLED: AtomicBool = AtomicBool::new(false);
/// The file of this process, once it has been looked for.
static OPENED: OnceLock<Option<Cache>> = OnceLock::new();

/// Leaves the file alone from now on.
pub(crate) fn disable() {
    // Relaxed: said before a command begins.
    DISABLED.store(true, Ordering::Relaxed);
}

/// Gives the findings of earlier processes to this one, if it needs KVM. What it may find out in addition is kept at its end, for which
/// `needs` are extended.
pub(crate) fn recall(needs: &Needs) -> Needs {
    let mut needs = needs.clone();
    if needs.kvm
        && let Some(cache) = opened()
    {
        cache.findings.give();
        if !cache.findings.are_complete() {
            needs.replaces.push(cache.path.clone());
        }
    }
    needs
}

/// Finds everything out anew in this process, and keeps it.
pub(crate) fn renew() {
    opened();
}

/// Keeps what this process has found out. It is a cache: if that fails, the next process finds it out again.
pub(crate) fn keep() {
    let Some(Some(cache)) = OPENED.get() else { return };
    let found = KvmFindings::of_process();
    if found != KvmFindings::default() && found != cache.findings {
        _ = cache.write(&found);
    }
}

fn opened() -> Option<&'static Cache> {
    // Relaxed: as in `disable`.
    if DISABLED.load(Ordering::Relaxed) {
        return None;
    }
    OPENED.get_or_init(|| Cache::open(&base()?, this_host()).ok()).as_ref()
}

/// The directory of this user's caches.
fn base() -> Option<PathBuf> {
    // As the XDG Base Directory Specification has it: a relative path is as good as none.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}

/// Contents of the file.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Contents {
    format: u32,
    /// Facts, all of which must be as they were.
    host: Vec<String>,
    ring0_instructions_per_second: Option<f64>,
    working_backends: Vec<Backend>,
}

/// A back end that works.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Backend {
    name: String,
    hlt_exits: bool,
}

/// The file, by its directory, which is open.
#[derive(Debug)]
struct Cache {
    path: PathBuf,
    directory: OwnedFd,
    host: Vec<String>,
    /// Its findings; none if it is no good.
    findings: KvmFindings,
}

impl Cache {
    /// Opens the cache of `host`, in a directory of its own within `base`.
    fn open(base: &Path, host: Vec<String>) -> io::Result<Self> {
        make(base);
        own_directory(base)?;
        let path = base.join("haltkick");
        make(&path);
        let directory = own_directory(&path)?;
        let findings = read(&directory, &host).unwrap_or_default();
        Ok(Self { path, directory, host, findings })
    }

    fn write(&self, found: &KvmFindings) -> io::Result<()> {
        let backend =
            |&(backend, hlt_exits): &(PvBackend, bool)| Backend { name: backend.name().into(), hlt_exits };
        let contents = Contents {
            format: FORMAT,
            host: self.host.clone(),
            ring0_instructions_per_second: found.ring0_instructions_per_second,
            working_backends: found.working_backends.iter().map(backend).collect(),
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, NEW, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(serde_json::to_string(&contents)?.as_bytes())?;
        Ok(renameat(&self.directory, NEW, &self.directory, NAME)?)
    }
}

/// Makes a directory of this user's alone, unless something is there.
fn make(path: &Path) {
    _ = mkdir(path, Mode::RWXU);
}

/// Opens a directory to which no other user can write.
fn own_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(openat(CWD, path, flags, Mode::empty())?);
    is_own(&directory.metadata()?)?;
    Ok(directory.into())
}

fn is_own(found: &std::fs::Metadata) -> io::Result<()> {
    if found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("another user may write it"))
}

/// Whether it is a file that can be a cache of this user's.
fn is_plain(found: &std::fs::Metadata) -> io::Result<()> {
    is_own(found)?;
    if found.is_file() && found.len() <= MOST_BYTES { Ok(()) } else { Err(io::Error::other("no cache")) }
}

/// The findings in the file of `directory`, if it is of `host`.
fn read(directory: &OwnedFd, host: &[String]) -> io::Result<KvmFindings> {
    // Without waiting: a pipe has no writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(directory, NAME, flags, Mode::empty())?);
    is_plain(&file.metadata()?)?;
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    let contents: Contents = serde_json::from_str(&text)?;
    if contents.format != FORMAT || contents.host != host {
        return Err(io::Error::other("of another host"));
    }
    let is_rate = |rate: &f64| rate.is_finite() && *rate > 0.0;
    let backend = |backend: Backend| {
        let known =
            [PvBackend::Kvm, PvBackend::Ipi].into_iter().find(|known| known.name() == backend.name)?;
        Some((known, backend.hlt_exits))
    };
    Ok(KvmFindings {
        ring0_instructions_per_second: contents.ring0_instructions_per_second.filter(is_rate),
        working_backends: contents.working_backends.into_iter().filter_map(backend).collect(),
    })
}

/// Facts that findings about KVM depend on: the program that tries, kernel, processor and its microcode, KVM's modules and their
/// parameters.
fn this_host() -> Vec<String> {
    let fingerprint = haltkick_vmm::ABI_FINGERPRINT;
    let mut facts = vec![format!("haltkick {} {fingerprint:016x}", env!("CARGO_PKG_VERSION"))];
    let mut text = |path: &str| facts.extend(probe::text(path).map(|text| format!("{path}: {text}")));
    text("/proc/sys/kernel/osrelease");
    text("/proc/sys/kernel/version");
    for module in probe::kvm_modules() {
        let directory = format!("/sys/module/{module}");
        text(&format!("{directory}/srcversion"));
        for parameter in probe::names(format!("{directory}/parameters")) {
            text(&format!("{directory}/parameters/{parameter}"));
        }
    }
    facts.extend(processor());
    facts
}

/// The first CPU as the kernel describes it. A read of all of them would take milliseconds on a big host.
fn processor() -> Vec<String> {
    const FIELDS: [&str; 7] =
        ["vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"];
    let mut block = [0; 4096];
    let read = File::open("/proc/cpuinfo").and_then(|mut file| file.read(&mut block)).unwrap_or(0);
    let text = String::from_utf8_lossy(&block[..read]);
    let of_first = text.lines().take_while(|line| !line.trim().is_empty());
    let is_fixed = |line: &&str| line.split_once(':').is_some_and(|(name, _)| FIELDS.contains(&name.trim()));
    of_first.filter(is_fixed).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::measure::synthetic::Scratch;

    fn host(kernel: &str) -> Vec<String> {
        vec![format!("kernel: {kernel}"), "microcode: 0x1".into()]
    }

    fn some() -> KvmFindings {
        KvmFindings {
            ring0_instructions_per_second: Some(3e9),
            working_backends: vec![(PvBackend::Ipi, true)],
        }
    }

    /// A cache of kernel 1 that holds something, and its file.
    fn kept(name: &str) -> (Scratch, PathBuf) {
        let scratch = Scratch::new(name);
        let cache = Cache::open(scratch.path(), host("1")).unwrap();
        assert_eq!(cache.findings, KvmFindings::default());
        cache.write(&some()).unwrap();
        let file = scratch.path().join("haltkick/kvm");
        (scratch, file)
    }

    /// The findings that a process on kernel `kernel` begins with.
    fn findings(scratch: &Scratch, kernel: &str) -> KvmFindings {
        Cache::open(scratch.path(), host(kernel)).unwrap().findings
    }

    #[test]
    fn findings_are_kept_for_the_same_host_and_no_other() {
        let (scratch, file) = kept("kvm-cache");
        assert_eq!(findings(&scratch, "1"), some());
        assert_eq!(findings(&scratch, "2"), KvmFindings::default());
        Cache::open(scratch.path(), host("2")).unwrap().write(&some()).unwrap();
        assert_eq!(findings(&scratch, "2"), some());
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
        assert!(!scratch.path().join("haltkick/kvm.new").exists());
    }

    #[test]
    fn a_damaged_file_is_none_and_is_replaced() {
        let (scratch, file) = kept("kvm-cache-damaged");
        let good = fs::read_to_string(&file).unwrap();
        let long = format!("{good}{}", " ".repeat(MOST_BYTES as usize));
        for bad in ["", "{", &good[..good.len() - 2], &good.replace("\"format\":1", "\"format\":2"), &long] {
            fs::write(&file, bad).unwrap();
            assert_eq!(findings(&scratch, "1"), KvmFindings::default(), "{bad}");
        }
        fs::write(&file, good.replace("3000000000.0", "-1.0").replace("\"ipi\"", "\"other\"")).unwrap();
        assert_eq!(findings(&scratch, "1"), KvmFindings::default());
        Cache::open(scratch.path(), host("1")).unwrap().write(&some()).unwrap();
        assert_eq!(findings(&scratch, "1"), some());
    }

    #[test]
    fn a_link_or_a_pipe_in_its_place_is_not_followed() {
        let (scratch, file) = kept("kvm-cache-link");
        let elsewhere = scratch.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert_eq!(findings(&scratch, "1"), KvmFindings::default());
        let before = fs::read(&elsewhere).unwrap();
        symlink(&elsewhere, scratch.path().join("haltkick/kvm.new")).unwrap();
        assert!(Cache::open(scratch.path(), host("1")).unwrap().write(&KvmFindings::default()).is_err());
        assert_eq!(fs::read(&elsewhere).unwrap(), before, "written through a link");
        fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(CWD, &file, Mode::RWXU).unwrap();
        assert!(is_plain(&fs::metadata(&file).unwrap()).is_err(), "a pipe");
        assert_eq!(findings(&scratch, "1"), KvmFindings::default());
        fs::remove_dir_all(scratch.path().join("haltkick")).unwrap();
        symlink(scratch.path(), scratch.path().join("haltkick")).unwrap();
        assert!(Cache::open(scratch.path(), host("1")).is_err(), "a link for the directory");
    }

    #[test]
    fn files_and_directories_that_others_may_write_are_not_used() {
        let (scratch, file) = kept("kvm-cache-others");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(findings(&scratch, "1"), KvmFindings::default());
        fs::set_permissions(scratch.path().join("haltkick"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Cache::open(scratch.path(), host("1")).is_err());
    }

    #[test]
    fn the_facts_of_this_host_have_its_kernel_and_processor() {
        let facts = this_host();
        let has = |part: &str| facts.iter().any(|fact| fact.contains(part));
        assert!(has("/proc/sys/kernel/osrelease: ") && has("/proc/sys/kernel/version: "), "{facts:?}");
        assert!(has("model name") && has("flags"), "{facts:?}");
        assert_eq!(facts, this_host(), "they change by themselves");
    }
}
