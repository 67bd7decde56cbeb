//! Groups in made-up trees. A file there holds all that was ever written to it, one text in a line.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::group::{Bandwidth, Calls, Counts, Group, remove_leftovers};
use super::own::{Own, Version};

const ONE_STAT: &str =
    "nr_periods 53\nnr_throttled 41\nthrottled_time 119861308\nnr_bursts 0\nburst_time 0\n";
const TWO_STAT: &str = "usage_usec 7\nnr_periods 9\nnr_throttled 4\nthrottled_usec 350\n";

/// A directory in place of `/`, removed on drop.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("haltkick-cgroup-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&root);
        Self(root)
    }

    fn put(&self, path: &str, text: &str) {
        put(&self.0.join(path), text);
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Version 1, with this process in `/a`.
    fn one(name: &str) -> (Self, Own) {
        let tree = Self::new(name);
        tree.put("proc/self/cgroup", "3:cpuset:/\n1:cpu:/a\n0::/\n");
        tree.put("proc/self/mountinfo", "32 31 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu\n");
        tree.put("cg/cpu/a/tasks", "");
        let own = Own::find(&tree.0).unwrap();
        assert_eq!((own.version, &own.folder), (Version::One, &tree.0.join("cg/cpu/a")));
        (tree, own)
    }

    /// Version 2, with this process in `/a`, which has these controllers.
    fn two(name: &str, controllers: &str) -> (Self, Own) {
        let tree = Self::new(name);
        tree.put("proc/self/cgroup", "0::/a\n");
        tree.put("proc/self/mountinfo", "32 31 0:29 / /cg rw - cgroup2 cgroup2 rw\n");
        tree.put("cg/a/cgroup.controllers", controllers);
        tree.put("cg/a/cgroup.subtree_control", "");
        let own = Own::find(&tree.0).unwrap();
        assert_eq!((own.version, &own.folder), (Version::Two, &tree.0.join("cg/a")));
        (tree, own)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Makes and removes a directory with its files, as the kernel does.
const MADE_UP: Calls = Calls { make: made, remove: |path| fs::remove_dir_all(path) };

fn made(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    let is_one = folder.with_file_name("tasks").exists();
    let one = ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "tasks"];
    let two = ["cpu.max", "cpu.max.burst", "cgroup.type", "cgroup.threads"];
    (if is_one { one } else { two }).iter().for_each(|name| put(&folder.join(name), ""));
    fs::write(folder.join("cpu.stat"), if is_one { ONE_STAT } else { TWO_STAT })
}

/// The only group below `folder`.
fn child(tree: &Tree, folder: &str) -> Option<String> {
    let entries = fs::read_dir(tree.0.join(folder)).unwrap().flatten();
    let mut names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.find(|name| name.starts_with("haltkick-")).map(|name| format!("{folder}/{name}"))
}

fn bandwidth(run_ms: u64, period_ms: u64, burst_ms: u64) -> Bandwidth {
    let [run, period, burst] = [run_ms, period_ms, burst_ms].map(Duration::from_millis);
    Bandwidth { run, period, burst }
}

#[test]
fn a_group_of_version_1_is_limited_entered_counted_and_removed() {
    let (tree, own) = Tree::one("one");
    let group = Group::new(&own, MADE_UP).unwrap();
    let child = child(&tree, "cg/cpu/a").unwrap();
    group.limit(bandwidth(20, 40, 5)).unwrap();
    group.enter().unwrap();
    let text = |name: &str| tree.text(&format!("{child}/{name}"));
    // Without a limit first: the old one and the new period may be more than a parent allows.
    assert_eq!(text("cpu.cfs_quota_us"), "-1\n20000\n");
    assert_eq!(text("cpu.cfs_period_us"), "40000\n");
    assert_eq!(text("cpu.cfs_burst_us"), "0\n5000\n");
    assert_eq!(text("tasks"), "0\n", "the calling thread and no other");
    let counts = Counts { periods: 53, throttled_periods: 41, throttled_ns: 119_861_308 };
    assert_eq!(group.counts().unwrap(), counts);
    // The next run's.
    group.limit(bandwidth(3, 10, 0)).unwrap();
    assert_eq!(text("cpu.cfs_quota_us"), "-1\n20000\n-1\n3000\n");
    assert_eq!(text("cpu.cfs_burst_us"), "0\n5000\n0\n");
    drop(group);
    assert!(!tree.0.join(child).exists());
}

#[test]
fn a_group_of_version_2_is_threaded_limited_entered_and_removed() {
    let (tree, own) = Tree::two("two", "cpuset cpu memory\n");
    let group = Group::new(&own, MADE_UP).unwrap();
    let child = child(&tree, "cg/a").unwrap();
    group.limit(bandwidth(20, 40, 5)).unwrap();
    group.enter().unwrap();
    let text = |name: &str| tree.text(&format!("{child}/{name}"));
    assert_eq!(text("cgroup.type"), "threaded\n");
    assert_eq!((text("cpu.max"), text("cpu.max.burst")), ("20000 40000\n".into(), "0\n5000\n".into()));
    assert_eq!(text("cgroup.threads"), "0\n", "the calling thread and no other");
    let counts = Counts { periods: 9, throttled_periods: 4, throttled_ns: 350_000 };
    assert_eq!(group.counts().unwrap(), counts);
    drop(group);
    assert!(!tree.0.join(child).exists());
    assert_eq!(tree.text("cg/a/cgroup.subtree_control"), "+cpu\n-cpu\n", "as it was before");
}

#[test]
fn the_last_of_several_groups_takes_the_controller_back() {
    for first_goes_first in [true, false] {
        let (tree, own) = Tree::two("several", "cpu\n");
        let first = Group::new(&own, MADE_UP).unwrap();
        // The kernel shows it without the sign.
        tree.put("cg/a/cgroup.subtree_control", "cpu\n");
        let second = Group::new(&own, MADE_UP).unwrap();
        let taken_back = || tree.text("cg/a/cgroup.subtree_control").contains("-cpu");
        let (one, other) = if first_goes_first { (first, second) } else { (second, first) };
        drop(one);
        assert!(!taken_back());
        drop(other);
        assert!(taken_back(), "{first_goes_first}");
    }
}

#[test]
fn a_controller_that_another_group_uses_stays() {
    let (tree, own) = Tree::two("stays", "cpu\n");
    let group = Group::new(&own, MADE_UP).unwrap();
    fs::create_dir(own.folder.join("another")).unwrap();
    drop(group);
    assert_eq!(tree.text("cg/a/cgroup.subtree_control"), "+cpu\n");
    // The kernel shows it without the sign.
    tree.put("cg/a/cgroup.subtree_control", "cpu\n");
    drop(Group::new(&own, MADE_UP).unwrap());
    assert_eq!(tree.text("cg/a/cgroup.subtree_control"), "cpu\n");
}

#[test]
fn a_refusal_names_the_file_and_leaves_nothing() {
    let refused = |own: &Own, calls| Group::new(own, calls).unwrap_err().to_string();
    let (tree, own) = Tree::two("undelegated", "memory pids\n");
    let why = refused(&own, MADE_UP);
    assert!(why.ends_with("cg/a/cgroup.controllers: no cpu, which is not delegated to this group"), "{why}");
    assert_eq!(child(&tree, "cg/a"), None);

    let (tree, own) = Tree::one("refused");
    let denied = |_: &Path| Err(io::ErrorKind::PermissionDenied.into());
    let why = refused(&own, Calls { make: denied, ..MADE_UP });
    assert!(why.starts_with("mkdir ") && why.ends_with(": permission denied"), "{why}");
    // A directory without the kernel's files, which no kernel makes.
    let why = refused(&own, Calls { make: |path| fs::create_dir(path), ..MADE_UP });
    assert!(why.contains("cpu.cfs_quota_us: No such file"), "{why}");
    assert_eq!(child(&tree, "cg/cpu/a"), None, "a group that is not complete is removed");
}

#[test]
fn only_groups_of_dead_processes_are_removed_as_leftovers() {
    let (tree, own) = Tree::one("leftovers");
    let group = Group::new(&own, MADE_UP).unwrap();
    for name in ["haltkick-1-0", "haltkick-2-0", "another"] {
        made(&own.folder.join(name)).unwrap();
    }
    // Its process lives.
    let lock = File::open(own.folder.join("haltkick-2-0")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    remove_leftovers(&own, MADE_UP);
    let exists = |name: &str| own.folder.join(name).exists();
    assert_eq!(["haltkick-1-0", "haltkick-2-0", "another"].map(exists), [false, true, true]);
    assert!(group.counts().is_ok() && tree.0.join("cg/cpu/a/tasks").exists());
    drop(lock);
    remove_leftovers(&own, MADE_UP);
    assert!(!exists("haltkick-2-0"));
    assert!(child(&tree, "cg/cpu/a").is_some(), "the own group stays");
}

#[test]
fn a_kernel_without_bursts_refuses_them_alone() {
    let (_tree, own) = Tree::one("burst");
    let without =
        |folder: &Path| made(folder).and_then(|()| fs::remove_file(folder.join("cpu.cfs_burst_us")));
    let group = Group::new(&own, Calls { make: without, ..MADE_UP }).unwrap();
    assert!(group.limit(bandwidth(1, 10, 0)).is_ok());
    let why = group.limit(bandwidth(1, 10, 1)).unwrap_err().to_string();
    assert_eq!(why, "this kernel has no burst (Linux 5.14 and later)");
}

#[test]
fn the_kernel_itself_limits_the_thread_that_enters_a_group() {
    let folder = match super::control_groups() {
        Ok(folder) => folder,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let lent = super::Lent::new(bandwidth(20, 40, 0)).unwrap();
    let spin = || {
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(150) {}
    };
    spin();
    assert_eq!(lent.group().counts().unwrap().throttled_periods, 0, "only threads that enter are limited");
    let enters = || lent.group().enter().map(|()| spin());
    std::thread::scope(|scope| scope.spawn(enters).join().unwrap()).unwrap();
    let Counts { periods, throttled_periods, throttled_ns } = lent.group().counts().unwrap();
    assert!(
        (1..=periods).contains(&throttled_periods) && throttled_ns > 0,
        "{throttled_periods} of {periods}"
    );
    drop(lent);
    let ours = format!("haltkick-{}-", std::process::id());
    let names = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(&ours)).collect();
    assert!(left.is_empty(), "{left:?}");
}
