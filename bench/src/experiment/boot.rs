//! What an experiment file says of the Linux guest that an arm boots.

use super::source::At;

/// What a file says of the kernel that an arm boots, or all arms; with the places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boot {
    pub(super) kernel: Option<(String, At)>,
    pub(super) initrd: Option<(String, At)>,
    pub(super) cmdline: Option<(String, At)>,
    pub(super) nopvspin: Option<(bool, At)>,
    pub(super) marker: Option<(String, At)>,
}

impl Boot {
    /// `self` where it says something, `below` elsewhere; but of the command line both, that of `below` first.
    pub(super) fn over(&self, below: &Self) -> Self {
        let cmdline = match (&self.cmdline, &below.cmdline) {
            (Some((words, at)), Some((first, _))) => Some((format!("{first} {words}"), at.clone())),
            (cmdline, first) => cmdline.clone().or_else(|| first.clone()),
        };
        Self {
            kernel: self.kernel.clone().or_else(|| below.kernel.clone()),
            initrd: self.initrd.clone().or_else(|| below.initrd.clone()),
            cmdline,
            nopvspin: self.nopvspin.clone().or_else(|| below.nopvspin.clone()),
            marker: self.marker.clone().or_else(|| below.marker.clone()),
        }
    }

    /// Where it says anything.
    pub(super) fn place(&self) -> Option<&At> {
        let texts = [&self.kernel, &self.initrd, &self.cmdline, &self.marker];
        let of_text = texts.into_iter().find_map(|text| text.as_ref().map(|(_, at)| at));
        of_text.or(self.nopvspin.as_ref().map(|(_, at)| at))
    }
}
