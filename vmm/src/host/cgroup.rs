//! The control groups that this process was started in, and the limits that they have. It never writes to one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::host::error::{Known, RunError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy of its own for a controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// Directories of this process's group for `controller` and of the groups above it, as far as they can be seen, the own one first. `root`
/// is `/` except in tests.
pub(crate) fn groups(root: &Path, controller: &str) -> Known<(Version, Vec<PathBuf>)> {
    let read = |path: &str| {
        // Another group's name may be in any encoding.
        let bytes = fs::read(root.join(path)).map_err(|error| format!("/{path} cannot be read: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (groups, mounts) = (read("proc/self/cgroup")?, read("proc/self/mountinfo")?);
    let Some((version, group)) = membership(&groups, controller) else {
        return Err(format!("this process is in no control group for {controller}").into());
    };
    let found = mounts.lines().find_map(|line| place(line, (version, controller), Path::new(group)));
    let Some((top, below)) = found else {
        return Err(format!("the own control group, {group}, is not mounted here").into());
    };
    let top = root.join(top.strip_prefix("/").unwrap_or(&top));
    Ok((version, below.ancestors().map(|below| top.join(below)).collect()))
}

/// The version and path of the group for `controller`, by `/proc/self/cgroup`: lines `number:controllers:path`.
fn membership<'a>(text: &'a str, controller: &str) -> Option<(Version, &'a str)> {
    let parsed = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    // A kernel with both versions has the controller in one of them.
    let has_it = |controllers: &str| controllers.split(',').any(|one| one == controller);
    let one = parsed().find(|(controllers, _)| has_it(controllers)).map(|(_, path)| (Version::One, path));
    let two =
        || parsed().find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| (Version::Two, path));
    one.or_else(two)
}

/// The mount point that a line of `/proc/self/mountinfo` tells of, and the way from there to `group`, if it lies there.
fn place(line: &str, (version, controller): (Version, &str), group: &Path) -> Option<(PathBuf, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (mounted, point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let is_it = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == controller),
        Version::Two => kind == "cgroup2",
    };
    let below = group.strip_prefix(mounted).ok().filter(|_| is_it)?;
    // A group outside of the own namespace is `/../elsewhere`.
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    is_plain.then(|| (point.into(), below.to_owned()))
}

/// A limit on CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// CPU time of all threads together in each period.
    pub run: Duration,
    /// Length of a period.
    pub period: Duration,
    /// CPU time of earlier periods that may be left for a later one.
    pub burst: Duration,
}

/// Throttling by the kernel's own quota: its counts of a group since that was made, or inside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelThrottled {
    /// Periods that ended in which the group had threads to run.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled_periods: u64,
    /// Time for which pCPUs were kept from running the group's threads, summed over pCPUs, in nanoseconds.
    pub pcpu_ns: u64,
}

/// The quota of CPU time that holds for this process.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub(crate) bandwidth: Bandwidth,
    version: Version,
    stat: File,
}

/// The tightest quota of this process's groups, found once: the file with its counts stays open, so that it can be read behind walls.
pub(crate) fn inherited() -> &'static Known<Inherited> {
    static FOUND: OnceLock<Known<Inherited>> = OnceLock::new();
    FOUND.get_or_init(|| Inherited::find(Path::new("/")))
}

/// Refuses to go on without such a quota.
pub(crate) fn needs_quota() -> Result<&'static Inherited, RunError> {
    inherited().as_ref().map_err(|why| {
        RunError::HostLacks(format!(
            "quota inherited: {why}: start haltkick in one, as by `systemd-run --scope -p CPUQuota=50% haltkick ...`"
        ))
    })
}

/// The tightest quota of CPU time of this process's control groups; `None`: they have none.
///
/// # Errors
/// Why it is not known.
pub fn inherited_quota() -> Known<Option<Bandwidth>> {
    quota(Path::new("/")).map(|(_, tightest)| tightest.map(|(bandwidth, _)| bandwidth))
}

fn quota(root: &Path) -> Known<(Version, Option<(Bandwidth, PathBuf)>)> {
    let (version, groups) = groups(root, "cpu")?;
    let limits = groups.into_iter().filter_map(|group| Some((limit(&group, version)?, group)));
    let share = |(limit, _): &(Bandwidth, PathBuf)| limit.run.as_secs_f64() / limit.period.as_secs_f64();
    Ok((version, limits.min_by(|one, other| share(one).total_cmp(&share(other)))))
}

fn limit(group: &Path, version: Version) -> Option<Bandwidth> {
    let text = |name: &str| fs::read_to_string(group.join(name)).ok();
    let micros = |text: &str| text.trim().parse().map(Duration::from_micros).ok();
    let (run, period, burst) = match version {
        Version::One => (text("cpu.cfs_quota_us")?, text("cpu.cfs_period_us")?, text("cpu.cfs_burst_us")),
        Version::Two => {
            let limit = text("cpu.max")?;
            let (run, period) = limit.split_once(' ')?;
            (run.into(), period.into(), text("cpu.max.burst"))
        }
    };
    // "max" and "-1" are no times. Older kernels have no burst.
    let burst = burst.and_then(|burst| micros(&burst)).unwrap_or_default();
    let period = micros(&period).filter(|period| !period.is_zero())?;
    Some(Bandwidth { run: micros(&run)?, period, burst })
}

impl Inherited {
    fn find(root: &Path) -> Known<Self> {
        let (version, tightest) = quota(root)?;
        let Some((bandwidth, group)) = tightest else {
            return Err("no control group that this process is in has a quota".into());
        };
        let path = group.join("cpu.stat");
        let stat = File::open(&path).map_err(|error| format!("open {}: {error}", path.display()))?;
        Ok(Self { bandwidth, version, stat })
    }

    pub(crate) fn counts(&self) -> io::Result<KernelThrottled> {
        let mut bytes = [0; 1024];
        let length = self.stat.read_at(&mut bytes, 0)?;
        counts(&String::from_utf8_lossy(&bytes[..length]), self.version)
            .ok_or_else(|| io::Error::other("cpu.stat has no counts of throttling"))
    }
}

/// Counts in `cpu.stat`: version 1 has nanoseconds, version 2 microseconds.
fn counts(text: &str, version: Version) -> Option<KernelThrottled> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line?.trim().parse::<u64>().ok()
    };
    let pcpu_ns = match version {
        Version::One => value("throttled_time")?,
        Version::Two => value("throttled_usec")?.saturating_mul(1000),
    };
    Some(KernelThrottled {
        periods: value("nr_periods")?,
        throttled_periods: value("nr_throttled")?,
        pcpu_ns,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use vmm_sys_util::tempdir::TempDir;

    use super::*;

    const BOTH: &str = "31 23 0:28 / /cg rw,relatime - tmpfs tmpfs rw,mode=755\n\
                        33 31 0:30 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n\
                        32 31 0:29 / /cg/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                        41 31 0:38 / /cg/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const TWO: &str = "1 1 0:1 / /cg rw - cgroup2 cgroup2 rw";

    /// A directory in place of `/`, removed on drop.
    pub(crate) struct Tree(TempDir);

    impl Tree {
        pub(crate) fn new(mounts: &str, groups: &str) -> Self {
            let tree = Self(TempDir::new().unwrap());
            tree.put("proc/self/mountinfo", mounts);
            tree.put("proc/self/cgroup", groups);
            tree
        }

        pub(crate) fn root(&self) -> &Path {
            self.0.as_path()
        }

        pub(crate) fn put(&self, path: &str, text: &str) {
            let path = self.root().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_group_of_either_version_is_found_where_it_is_mounted() {
        for (mounts, listed, expected) in [
            // Both versions: the controller decides, and `cpuset` is another one. The mount's name may order controllers otherwise.
            (BOTH, "3:cpuset:/x\n2:cpuacct,cpu:/a/b\n0::/c", Some("/cg/cpu,cpuacct/a/b")),
            (BOTH, "3:cpuset:/x\n0::/c", Some("/cg/unified/c")),
            (TWO, "0::/user.slice/a", Some("/cg/user.slice/a")),
            // A container sees its own group only.
            ("1 1 0:1 /docker/1 /cg rw - cgroup2 cgroup2 rw", "0::/docker/1/a", Some("/cg/a")),
            ("1 1 0:1 /docker/1 /cg rw - cgroup2 cgroup2 rw", "0::/elsewhere", None),
            (TWO, "0::/../elsewhere", None),
            ("1 1 0:1 / /tmp rw - tmpfs tmpfs rw", "0::/", None),
            (BOTH, "9:name=systemd:/", None),
        ] {
            let tree = Tree::new(mounts, listed);
            let found = groups(tree.root(), "cpu").ok().map(|(_, groups)| groups[0].clone());
            let expected = expected.map(|path| tree.root().join(&path[1..]));
            assert_eq!(found, expected, "{listed}");
        }
    }

    #[test]
    fn the_tightest_quota_above_this_process_holds_with_its_counts() {
        let tree = Tree::new(TWO, "0::/a/b");
        tree.put("cg/a/cpu.max", "50000 100000\n");
        tree.put("cg/a/b/cpu.max", "15000 20000\n");
        tree.put("cg/a/cpu.stat", "usage_usec 7\nnr_periods 9\nnr_throttled 4\nthrottled_usec 350\n");
        let found = Inherited::find(tree.root()).unwrap();
        let ms = Duration::from_millis;
        assert_eq!(found.bandwidth, Bandwidth { run: ms(50), period: ms(100), burst: ms(0) });
        let counts = KernelThrottled { periods: 9, throttled_periods: 4, pcpu_ns: 350_000 };
        assert_eq!(found.counts().unwrap(), counts);

        let tree = Tree::new(BOTH, "2:cpuacct,cpu:/v1\n0::/x");
        tree.put("cg/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        tree.put("cg/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        assert!(Inherited::find(tree.root()).unwrap_err().0.ends_with("has a quota"));
        tree.put("cg/cpu,cpuacct/v1/cpu.cfs_quota_us", "20000\n");
        tree.put("cg/cpu,cpuacct/v1/cpu.cfs_period_us", "40000\n");
        tree.put("cg/cpu,cpuacct/v1/cpu.cfs_burst_us", "5000\n");
        tree.put("cg/cpu,cpuacct/v1/cpu.stat", "nr_periods 53\nnr_throttled 41\nthrottled_time 119861308\n");
        let found = Inherited::find(tree.root()).unwrap();
        assert_eq!(found.bandwidth, Bandwidth { run: ms(20), period: ms(40), burst: ms(5) });
        let counts = KernelThrottled { periods: 53, throttled_periods: 41, pcpu_ns: 119_861_308 };
        assert_eq!(found.counts().unwrap(), counts);
    }
}
