//! The control group of this process that shares out CPU time: its version and its directory.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::host::known::Known;

/// The version of the control groups' interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// A hierarchy of its own for the controller `cpu`.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// This process's own group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) version: Version,
    pub(super) folder: PathBuf,
}

impl Own {
    /// Finds the group by `/proc/self` below `root`, which is `/` except in tests.
    pub(super) fn find(root: &Path) -> Known<Self> {
        let read = |path: &str| {
            fs::read_to_string(root.join(path)).map_err(|error| format!("/{path} cannot be read: {error}"))
        };
        let (groups, mounts) = (read("proc/self/cgroup")?, read("proc/self/mountinfo")?);
        let Some((version, group)) = membership(&groups) else {
            return Err("this kernel has no control groups for CPU time".into());
        };
        match mounts.lines().find_map(|line| place(line, version, Path::new(group))) {
            Some(folder) => {
                Ok(Self { version, folder: root.join(folder.strip_prefix("/").unwrap_or(&folder)) })
            }
            None => Err(format!("the own control group, {group}, is not mounted here").into()),
        }
    }
}

/// The version and path of the group that shares out CPU time, by `/proc/self/cgroup`: lines `number:controllers:path`.
fn membership(text: &str) -> Option<(Version, &str)> {
    let parsed = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    // A kernel with both versions has the controller in one of them.
    let has_cpu = |controllers: &str| controllers.split(',').any(|controller| controller == "cpu");
    let one = parsed().find(|(controllers, _)| has_cpu(controllers)).map(|(_, path)| (Version::One, path));
    let two =
        || parsed().find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| (Version::Two, path));
    one.or_else(two)
}

/// The directory of `group` below the mount that a line of `/proc/self/mountinfo` tells of, if it lies there.
fn place(line: &str, version: Version, group: &Path) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (mounted, point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let is_it = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
        Version::Two => kind == "cgroup2",
    };
    let below = group.strip_prefix(mounted).ok().filter(|_| is_it)?;
    // A group outside of the own namespace is `/../elsewhere`.
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    is_plain.then(|| Path::new(point).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
                        33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn place_in(mounts: &str, groups: &str) -> Option<PathBuf> {
        let (version, group) = membership(groups)?;
        mounts.lines().find_map(|line| place(line, version, Path::new(group)))
    }

    #[test]
    fn a_group_of_either_version_is_found_where_it_is_mounted() {
        let of = |mounts, groups| place_in(mounts, groups).map(|path| path.display().to_string());
        let cases = [
            // Both versions: the controller decides, and `cpuset` is another one.
            (BOTH, "3:cpuset:/x\n2:cpu,cpuacct:/a/b\n0::/c", Some("/sys/fs/cgroup/cpu,cpuacct/a/b")),
            (BOTH, "3:cpuset:/x\n0::/c", Some("/sys/fs/cgroup/unified/c")),
            (
                "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
                "0::/user.slice/a",
                Some("/sys/fs/cgroup/user.slice/a"),
            ),
            // A container sees its own group only.
            ("1 1 0:1 /docker/1 /cg rw - cgroup2 cgroup2 rw", "0::/docker/1/a", Some("/cg/a")),
            ("1 1 0:1 /docker/1 /cg rw - cgroup2 cgroup2 rw", "0::/elsewhere", None),
            ("1 1 0:1 / /cg rw - cgroup2 cgroup2 rw", "0::/../elsewhere", None),
            ("1 1 0:1 / /tmp rw - tmpfs tmpfs rw", "0::/", None),
            (BOTH, "9:name=systemd:/", None),
        ];
        for (mounts, groups, expected) in cases {
            assert_eq!(of(mounts, groups).as_deref(), expected, "{groups}");
        }
    }
}
