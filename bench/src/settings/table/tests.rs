//! The table says what it should of each setting.

use super::*;
use crate::settings::Value;
use crate::settings::row::Apply;

#[test]
fn every_value_is_written_as_it_is_read() {
    for setting in all() {
        let examples: &[&str] = match &setting.kind {
            Kind::Name | Kind::Text => &["ticket"],
            Kind::Words => &["", "quiet x=1"],
            Kind::Flag => &["true", "false"],
            Kind::Word(words) => &[words.offered()[0].get_name().to_owned().leak()],
            Kind::Number | Kind::LargeNumber | Kind::Seed | Kind::Arrivals => &["7", "1000000"],
            Kind::Time => &["0s", "1.5ms", "60s"],
            Kind::Memory => {
                &["64MiB", "3GiB", "64 MiB -> 64MiB", "64M -> 64MiB", "64G -> 64GiB", "100K -> 100KiB"]
            }
            Kind::Cpus => &["0", "0-1", "1,3,5-7", "all", "cores", "no-smt", "node:1", "llc:12", "isolated"],
            Kind::Numa => &["local", "interleave", "1"],
            Kind::Share => &["0%", "90%"],
            Kind::Exponent => &["0", "0.99", "2.5"],
            Kind::Ratio => &["1", "1.50 -> 1.5", "32"],
            Kind::SpinThreshold => &["5us", "linux"],
            Kind::PauseLoops => &["gap=256", "window=8192", "gap=128,window=4096", "target=holder"],
            Kind::Quota => {
                &["none", "inherited", "200us/1ms", "1ms/10ms+500us", "50ms / 100ms + 1ms -> 50ms/100ms+1ms"]
            }
            Kind::Fold => &[
                "off",
                "oracle",
                "governor -> governor/1s/2%/5%",
                "governor/20ms -> governor/20ms/2%/5%",
                "governor / 20ms / 0.5% / 5% -> governor/20ms/0.5%/5%",
            ],
            Kind::Deschedule => &[
                "none",
                "holder -> holder,rate=100,for=1ms",
                "random, prob=0.25, for=500us -> random,prob=0.25,for=500us",
                "waiter,at=before-sleep,rate=2000 -> waiter,rate=2000,for=1ms,at=before-sleep",
            ],
            Kind::Guests => &["lock=tas; name=second, lock=ticket -> lock=tas; name=second,lock=ticket"],
        };
        for example in examples {
            let (read, written) = example.split_once(" -> ").unwrap_or((example, example));
            for text in [read, written] {
                let value = setting.read(text).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
                assert_eq!(value, written, "{}", setting.name);
                // It is applied in the notation in which it was read.
                let mut run = Run::default();
                match setting.apply {
                    Apply::Run(apply) => apply(&mut run, Value(&value)),
                    Apply::Ours(apply) => apply(run.guests[0].ours_mut().unwrap(), Value(&value)),
                    Apply::Combined => {}
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_what_to_write() {
    for (key, texts, says) in [
        ("read-share", "90 101% -1% x%", "is no share: write whole percent, such as 90%"),
        ("zipf", "-1 5 nan x", "is no exponent from 0 to 4, such as 0.99"),
        ("ratio", "-1 1e7 nan x", "is no ratio: write vCPUs per pCPU, such as 8 or 1.5"),
        ("memory", "64 64MB MiB -1MiB 99999999999999GiB", "such as 64MiB"),
        ("arrivals", "0 x", "is no rate: write sections per second and vCPU"),
        ("quota", "50%", "'50%' is no quota: write RUN/PERIOD, such as 200us/1ms, none or inherited"),
        ("quota", "1/10ms", "'1' has no unit"),
        ("quota", "1ms/", "a number"),
        ("fold", "on off/20ms governor/20ms/2%/5%/1", "governor/INTERVAL/LOW%/HIGH%"),
        ("fold", "", "governor/INTERVAL/LOW%/HIGH%"),
        ("fold", "governor/20ms/2%", "needs a high one"),
        ("fold", "governor/20ms/2/5%", "'2' is no threshold"),
        ("spin-threshold", "32768", "; or 'linux'"),
        ("deschedule", "owner", "unknown policy 'owner': there is holder, head, waiter, random"),
        ("deschedule", "holdr", "did you mean 'holder'? There is holder, head, waiter, random"),
        ("deschedule", "", "unknown policy '': there is holder, head, waiter, random"),
        ("deschedule", "holder,often", "write rate=N, prob=P, for=TIME or at=POINT"),
        ("deschedule", "holder,rat=1", "unknown option 'rat': did you mean 'rate'?"),
        ("deschedule", "holder,rate=0", "'0' is no number above 0 and at most 1000000"),
        ("deschedule", "holder,rate=NaN", "'NaN' is no number above 0 and at most 1000000"),
        ("deschedule", "holder,prob=2", "'2' is no number above 0 and at most 1"),
        ("deschedule", "holder,for=5", "'5' has no unit: write 5ns, 5us, 5ms or 5s"),
        ("deschedule", "holder,rate=1,prob=1", "'prob=1' says a second time how often"),
        ("kernel", "", "an empty text names nothing"),
        ("nopvspin", "yes", "'yes' is neither true nor false"),
        ("ple", "4096", "write gap=N, window=N or target=WHICH"),
        ("ple", "gap=0", "out of range"),
        ("ple", "widow=1", "did you mean 'window'?"),
        ("ple", "gap=1,gap=2", "a second time"),
        ("ple", "gap=few", "no whole number"),
        ("ple", "target=owner", "unknown target 'owner'"),
    ] {
        for text in texts.split(' ') {
            let error = find(key).unwrap().read(text).unwrap_err();
            assert!(error.contains(says), "{key} = {text}: {error}");
        }
    }
}
