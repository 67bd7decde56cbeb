//! Guests that run at the same time: `--vm key=value,...` or the `[[vm]]` of a guest-set file.

use std::fmt;
use std::str::FromStr;

use super::{Settings, table};
use crate::text::nearest;

/// One guest: what it has other than the run's settings say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Vm {
    pub(crate) name: Option<String>,
    pub(crate) settings: Settings,
    pairs: Vec<(String, String)>,
}

impl Vm {
    /// Sets one setting.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if key == "name" {
            self.name = Some(value.into());
        } else {
            match table::find(key) {
                Some(setting) if setting.of_guest => self.settings.put(setting, setting.read(value)?),
                Some(_) => {
                    return Err(format!("{key} belongs to the run: give it as --{key}, for all guests"));
                }
                None => return Err(nearest::unknown("setting of a guest", key, &names())),
            }
        }
        self.pairs.push((key.into(), value.into()));
        Ok(())
    }
}

impl FromStr for Vm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut vm = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("'{pair}' is no KEY=VALUE, such as lock=ticket"))?;
            vm.set(key.trim(), value.trim())?;
        }
        Ok(vm)
    }
}

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&pairs.join(","))
    }
}

/// What can be said of each guest.
fn names() -> Vec<&'static str> {
    let of_guest = table::all().filter(|setting| setting.of_guest).map(|setting| setting.name);
    std::iter::once("name").chain(of_guest).collect()
}

/// Several, as one value of an experiment file: separated by semicolons.
pub(crate) fn several(text: &str) -> Result<Vec<Vm>, String> {
    let vms: Vec<Vm> = text.split(';').map(str::parse).collect::<Result<_, _>>()?;
    if vms.len() > 26 {
        Err(format!("{} guests are more than the 26 that can be told apart", vms.len()))
    } else {
        Ok(vms)
    }
}

/// What a guest without a name is called: a, b, and so on.
pub(crate) fn default_name(index: usize) -> String {
    char::from(b'a' + (index % 26) as u8).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::value::Value;

    #[test]
    fn a_guest_is_read_from_pairs_and_written_back() {
        let vm: Vm = "name=db, lock=ticket,vcpus=16,work=1s".parse().unwrap();
        assert_eq!((vm.name.as_deref(), vm.settings.given("vcpus")), (Some("db"), Some(&Value::Number(16))));
        assert_eq!(vm.to_string(), "name=db,lock=ticket,vcpus=16,work=1s");
        assert_eq!(several("lock=tas; lock=ticket").unwrap().len(), 2);
    }

    #[test]
    fn what_belongs_to_the_run_or_to_nobody_is_refused() {
        assert!("slice=1ms".parse::<Vm>().unwrap_err().contains("belongs to the run"));
        assert!("lokc=tas".parse::<Vm>().unwrap_err().contains("did you mean 'lock'?"));
        assert!("lock".parse::<Vm>().unwrap_err().contains("KEY=VALUE"));
    }
}
