//! The machines that are built in.

use super::Machine;

/// A machine that is built in.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All of them, the oldest first.
        #[must_use]
        pub const fn presets() -> &'static [Preset] {
            &[$(Preset { name: $name, text: include_str!(concat!("../../machines/", $name, ".toml")) }),*]
        }
    };
}

presets![
    "nehalem-2s",
    "numaconnect-512",
    "westmere-ex-8s",
    "westmere-ex-4s",
    "opteron-2s",
    "sandybridge-2s",
    "ivybridge-ex-4s",
    "haswell-2s",
    "broadwell-2s",
    "skylake-8s",
    "skylake-2s",
    "cascadelake-2s",
    "cascadelake-2s-96",
    "icelake-2s",
    "icelake-2s-72",
    "milan-1s",
    "genoa-2s",
    "sapphirerapids-2s",
    "sapphirerapids-8s",
];

impl Preset {
    /// The machine.
    ///
    /// # Panics
    /// If its file is bad: a test reads all of them.
    #[must_use]
    pub fn machine(&self) -> Machine {
        Machine::parse(self.name, self.text).expect("the files of the presets are tested")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_machine_of_its_own_name() {
        for preset in presets() {
            let machine = preset.machine();
            assert_eq!(machine.name, preset.name);
            assert!(machine.costs.pause_ps > 0 && machine.topology.cpus() > 1, "{}", preset.name);
        }
    }
}
