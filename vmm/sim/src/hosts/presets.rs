//! The hosts that are built in.

use crate::hosts::policy::Host;

/// A host that is built in.
#[derive(Clone, Copy, Debug)]
pub struct HostPreset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All built-in hosts, the newest first.
        #[must_use]
        pub const fn presets() -> &'static [HostPreset] {
            &[$(HostPreset { name: $name, text: include_str!(concat!("../../hosts/", $name, ".toml")) }),*]
        }
    };
}

presets!["linux-7.3", "linux-6.12", "cfs-2019", "cfs-2015"];

impl HostPreset {
    /// The host.
    ///
    /// # Panics
    /// If its file is bad: a test reads all of them.
    #[must_use]
    pub fn host(&self) -> Host {
        Host::parse(self.name, self.text).expect("the files of the presets are tested")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_host_of_its_own_name() {
        for preset in presets() {
            assert_eq!(preset.host().name, preset.name);
        }
    }
}
