//! An experiment: its file, what the command line changes in it, and the plan of its cells.

mod booted;
mod contents;
mod file;
mod fit;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
pub(crate) mod measure;
pub(crate) mod outline;
pub(crate) mod overrides;
pub(crate) mod plan;
mod publication;
pub(crate) mod published;
mod reader;
mod robust;
pub(crate) mod schema;
mod source;
pub(crate) mod sweep;
pub(crate) mod workload_inside;

pub(crate) use booted::Boot;
pub(crate) use contents::{Experiment, MOST_RETRIES};
pub(crate) use file::{read_guest_set, summary};
pub(crate) use source::{BUILT_IN, Source};

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::contents::{Axis, Experiment};
    use super::measure::Measure;
    use super::overrides::Overrides;
    use super::schema::schema;
    use super::source::{BUILT_IN, Source};
    use super::sweep::{Sweep, Vary};
    use crate::measure::synthetic::{built_in, experiment, planned, settings};
    use crate::settings::choices::Ratio;
    use crate::text::exit::{Exit, Failure, Result};
    use crate::text::output::in_toml;

    const MINIMAL: &str = "format = 1\nname = 'x'\ntitle = 'X'\n";
    const ARM: &str = "[[arm]]\nname = 'a'\n";

    fn complaints(text: &str) -> Vec<String> {
        let file: Json = toml::from_str(text).unwrap();
        let validator = jsonschema::validator_for(&schema()).unwrap();
        validator.iter_errors(&file).map(|error| error.to_string()).collect()
    }

    #[test]
    fn every_built_in_experiment_keeps_to_the_schema_and_has_a_pair() {
        for (name, text) in BUILT_IN {
            assert_eq!(complaints(text), [""; 0], "{name}");
            let experiment = built_in(name);
            assert_eq!(experiment.name, name);
            let has_pair = experiment.control.is_some() || experiment.trial_blocks.is_some();
            assert!(has_pair, "{name} has no A/A pair");
        }
        let kernels = "[grid]\nkernel = ['a', 'b']\ncmdline = ['', 'c']\nnopvspin = [true, false]\n";
        assert_eq!(complaints(&format!("{MINIMAL}{kernels}{ARM}only = {{ kernel = 'a' }}\n")), [""; 0]);
    }

    /// Lines of files, behind the first three and before an arm `tas`, and how the complaint about them begins. Those before the empty line
    /// are against the schema, too.
    const REFUSED: &str = "\
blokcs = 5 => 4:1: unknown key 'blokcs'
blocks = 0 => 4:10: 'blocks' must be a whole number from 1 to 100000
retry-disturbed = -1 => 4:19: 'retry-disturbed' must be a whole number from 0 to 100
target-precision = '5' => 4:20: target-precision: write a percentage, such as 2%
max-time = '5' => 4:12: max-time: '5' has no unit: write 5ns, 5us, 5ms or 5s
[settings]|hodl = '1us' => 5:1: unknown key 'hodl': did you mean 'hold'?
[settings]|hold = 5 => 5:8: hold: '5' has no unit: write 5ns, 5us, 5ms or 5s
[settings]|hold = '5' => 5:8: hold: '5' has no unit
[settings]|vcpus = 'many' => 5:9: vcpus:
[settings]|sched = 'linux' => 5:9: sched:
[settings]|nopvspin = 'yes' => 5:12: nopvspin: 'yes' is neither true nor false
[[point]]|hodl = '1us' => 5:1: unknown key 'hodl'
[grid]|ratoi = [1] => 5:1: unknown key 'ratoi'
[grid]|ratio = 5 => 5:1: 'ratio' must be a list, such as [1, 2]
[grid]|ratio = [1, 1] => 5:13: 1 stands in the list twice
[grid]|kernel = [''] => 5:11: an empty text names nothing
[[arm]]|name = 'a'|lokc = 'tas' => 6:1: unknown key 'lokc'
[grid]|ratio = [1]|[[arm]]|name = 'a'|only = { ratoi = 1 } => 8:10: unknown key 'ratoi': did you mean 'ratio'?
[[compare]]|name = 'c'|arm = 'tas'|baseline = 'tas'|fo = 'lock-cpu' => 8:1: unknown key 'fo'
[[compare]]|name = 'c'|arm = 'tas'|baseline = 'tas'|of = 'figure:A' => 8:6: a name that is not
[control]|arm = 'tas'|ratoi = 1 => 6:1: unknown key 'ratoi'
[quick]|blokcs = 1 => 5:1: unknown key 'blokcs'
[robust]|pionts = 3 => 5:1: unknown key 'pionts'
[robust]|points = 3 => 5:10: 'points' must be a whole number from 4 to 200

[settings => 4:
target-precision = '0%' => 4:20: target-precision: '0%' is no percentage above 0
target-precision = 'x%' => 4:20: target-precision: 'x%' is no percentage above 0
[settings]|hold = [1] => 5:8: a number, or a text in quotes, is expected here
[settings]|vcpus = 12|ratio = 2 => 6:1: ratio stands against vcpus: both say how many vCPUs there are
[settings]|ratio = 8|[grid]|ratio = [1, 2] => 5:1: ratio is in [grid] too
[settings]|vcpus = 8|[grid]|ratio = [1, 2] => 5:1: vcpus stands against ratio: both say how many vCPUs there are, in [grid]
[settings]|kernel = 'old'|[grid]|kernel = ['new'] => 5:1: kernel is in [grid] too
[settings]|hold = '1us'|[[point]]|hold = '1us' => 5:1: hold is in [[point]] too
[settings]|\"\\u0007\" = 1 => 5:1: a control character, which no name or value has
[[point]]|hold = '1us'|[[point]]|think = '1us' => 6:1: all [[point]]s must set the same settings, in the same order
[[point]]|ratio = 1|[grid]|ratio = [1] => 4:1: ratio is in [grid] too
[[point]]|initrd = 'initrd' => 4:1: this is for arms that have a 'kernel'
[grid]|vcpus = [2, 4]|ratio = [1] => 6:10: ratio stands against vcpus: both say how many vCPUs there are
[grid]|guests = [2, 4]|vm = ['lock=tas'] => 6:7: vm stands against guests: both say how many guests there are
[grid]|cmdline = ['a', 'b'] => 5:12: this is for arms that have a 'kernel'
[[arm]]|name = \"a\\u001b]0;b\" => 5:8: a control character, which no name or value has
[[arm]]|lock = 'tas' => 4:1: 'name' is missing here
[[arm]]|name = 'a'|[[arm]]|name = 'a' => 7:8: two arms are called 'a'
[[arm]]|name = 'Lock free' => 5:8: 'Lock free' is the name of cells without a lock: give the arm another
[[arm]]|name = 'a'|initrd = 'initrd' => 6:1: this is for arms that have a 'kernel'
[[arm]]|name = 'a'|nopvspin = true => 6:1: this is for arms that have a 'kernel'
[[arm]]|name = 'a'|kernel = 'old' => 8:8: arm 'tas' has no kernel, where others have one
[grid]|ratio = [1]|[[arm]]|name = 'a'|only = { ratio = 2 } => \
8:18: ratio = 2 is in no [grid] or [[point]], so that there is no such cell
[grid]|ratio = [1]|[[arm]]|name = 'a'|[control]|arm = 'a'|ratio = 2 => 10:9: ratio = 2 is in no [grid] or [[point]]
[[arm]]|name = 'a'|vm = 'lock=tas; name=b,lock=tas'|[control]|arm = 'a / b' => 8:7: unknown arm 'a / b': there is a, tas
[[compare]]|name = 'c'|arm = 'tsa'|baseline = 'tas' => 6:7: unknown arm 'tsa': did you mean 'tas'?
[[compare]]|name = 'c'|arm = 'tas'|baseline = 'tas'|[[compare]]|name = 'c'|arm = 'tas'|baseline = 'tas' => \
1:1: two [[compare]] are called 'c'
[[compare]]|name = 'c'|arm = 'tas'|baseline = 'tas'|of = 'figure:x' => \
1:1: comparison 'c': only arms with a 'kernel' print figures
[settings]|kernel = 'k'|[[compare]]|name = 'c'|arm = 'tas'|baseline = 'tas' => \
1:1: comparison 'c': of kernels, figures are compared
[grid]|ratio = [1]|[[arm]]|name = 'a'|[quick]|ratio = 4 => 9:1: ratio is in [grid] too
[grid]|ratio = [1]|[[arm]]|name = 'a'|[quick]|grid = { ratio = [1, 3] } => \
9:22: ratio = 3 is not in [grid], of which --quick takes a part
{ROW}|vaule = 2 => 21:1: unknown key 'vaule': did you mean 'value'?
{ROW}|value = 0|compare = 'a/a'|at = { ratio = 2 } => 21:9: 'value' must be a number above 0
{ROW}|value = 2|like = 'yes'|compare = 'a/a'|at = { ratio = 2 } => 17:1: like: write three letters
{ROW}|value = 2|compare = 'a/b'|at = { ratio = 2 } => 17:1: unknown comparison 'a/b'
{ROW}|value = 2|compare = 'a/a' => 17:1: ratio is open: several points of the grid have that figure
{ROW}|value = 2|compare = 'a/a'|at = { ratio = 4 } => 23:16: ratio = 4 is in no [grid] or [[point]]
{ROW}|value = 2|arm = 'b'|at = { ratio = 2 }|over = { ratio = 1 } => 17:1: unknown arm 'b'
[quick]|arms = ['tsa'] => 5:9: unknown arm 'tsa': did you mean 'tas'?
[quick]|arms = [1] => 5:8: 'arms' must be a list of names
";

    /// The beginning of a published row that is compared with a ratio.
    const ROW: &str = "[grid]|ratio = [1, 2]|[[arm]]|name = 'a'|[[compare]]|name = 'a/a'|arm = 'a'|baseline = 'a'|\
    [publication]|source = 's'|machine = 'm'|page = 'p'|like = 'LA-'|[[published]]|name = 'r'|figure = 'f'|why = 'w'";

    #[test]
    fn what_the_reader_refuses_is_located_and_against_the_schema() {
        let (both, reader_alone) = REFUSED.split_once("\n\n").expect("two parts");
        let rows = both.lines().map(|row| (row, true)).chain(reader_alone.lines().map(|row| (row, false)));
        for (row, is_against_schema) in rows {
            let (lines, expected) = row.split_once(" => ").expect("a row has two parts");
            let rest = format!("{}\n[[arm]]\nname = 'tas'\n", lines.replace("{ROW}", ROW).replace('|', "\n"));
            let message = experiment(&rest).unwrap_err().message;
            assert!(message.starts_with(&format!("x.toml:{expected}")), "{row}\n{message}");
            if is_against_schema {
                assert_ne!(complaints(&format!("{MINIMAL}{rest}")), [""; 0], "{row}");
            }
        }
        assert_ne!(complaints(MINIMAL), [""; 0]);
        for (text, expected) in [
            (MINIMAL, "1:1: no [[arm]]: an experiment compares at least one"),
            ("format = 2\n", "1:10: another format than 1, the one this version reads"),
            ("name = 'x'\n", "1:1: no 'format': begin the file with format = 1"),
        ] {
            let source = Source { origin: "x.toml".into(), text: text.into() };
            assert_eq!(Experiment::parse(source).unwrap_err().message, format!("x.toml:{expected}"));
        }
    }

    /// The experiment of these lines, behind the first three, after changes by the command line.
    fn changed(lines: &str, flags: &str) -> Result<Experiment> {
        let words: Vec<String> = flags.split_whitespace().map(String::from).collect();
        let mut it = experiment(&lines.replace('|', "\n"))?;
        it.apply(&Overrides::from_arguments(&words).expect("flags"))?;
        Ok(it)
    }

    /// An experiment in a line: what varies, the arms, the comparisons, and where the A/A pair runs.
    fn told(it: &Experiment) -> String {
        let axis = |axis: &Axis| {
            let values: Vec<&str> = axis.values.iter().map(|(value, _)| value.as_str()).collect();
            format!("{}={}", axis.key, values.join(","))
        };
        let axes: Vec<String> = it.varying().iter().map(axis).collect();
        let comparisons: Vec<&str> = it.comparisons.iter().map(|it| it.name.as_str()).collect();
        let pair = it.control.as_ref().map(|pair| {
            let at = pair.setting.iter().map(|(key, value)| format!("{key}={value}"));
            std::iter::once(format!("A/A {}", pair.arm)).chain(at).collect::<Vec<_>>().join(" ")
        });
        let mut parts = vec![axes.join(" "), it.arms_and_beside().join(", "), comparisons.join(", ")];
        parts.extend(pair);
        parts.retain(|part| !part.is_empty());
        parts.join(" | ")
    }

    /// Lines of files, flags, and what comes of them: an experiment, or how its refusal begins.
    const CHANGED: &str = "\
[grid]|vcpus = [0b11, 0x1_0]|{A} =>  => vcpus=3,16 | a
[grid]|guests = [1, 3]|{A} =>  => guests=1,3 | a, a / b, a / c
[grid]|vm = ['lock=tas', 'lock=tas; lock=ticket']|{A} =>  => vm=lock=tas,lock=tas; lock=ticket | a, a / b
[grid]|hold = ['1us']|{A} =>  => hold=1us | a
[grid]|vcpus = [32, 60]|{A} => --ratios=1,2 => ratio=1,2 | a
[grid]|ratio = [2, 1, 8]|hold = ['1us', '2us']|[[arm]]|name = 'c'|[[arm]]|name = 'b'|{A}|\
    [[compare]]|name = 'b/a'|arm = 'b'|baseline = 'a'|[[compare]]|name = 'c/a'|arm = 'c'|baseline = 'a'|\
    [control]|arm = 'c'|ratio = 8|hold = '2us'|[quick]|grid = { ratio = [1, 2] }|arms = ['c', 'a'] => \
    --quick => ratio=2,1 hold=1us,2us | c, a | c/a | A/A c hold=2us
{SIM}|{NEHALEM}|[robust]|points = 4|{A} =>  => {LIKE} | a
{SIM}|[robust]|points = 4|[grid]|machine = ['milan-1s', 'nehalem-2s']|{A} =>  => machine=milan-1s,milan-1s~1/4,milan-1s~2/4,\
    milan-1s~3/4,milan-1s~4/4,nehalem-2s,nehalem-2s~1/4,nehalem-2s~2/4,nehalem-2s~3/4,nehalem-2s~4/4 | a
{SIM}|{NEHALEM}|[robust]|points = 5|{A}|[quick]|blocks = 1 => --quick => a
{SIM}|{NEHALEM}|{A}|{SELF} => --robust=4 => {LIKE} | a | a/a
{SIM}|{NEHALEM}|[robust]|points = 5|{A}|{SELF}|[quick]|blocks = 1 => --quick --blocks=5 --robust=4 => {LIKE} | a | a/a
blocks = 5|[settings]|{NEHALEM}|[robust]|{A} =>  => x.toml:7:1: [robust]: only simulated machines have guesses
{SIM}|{NEHALEM}|[robust]|{A} => --blocks=4 => x.toml:8:1: [robust]: 4 blocks are too few seeds: at least 5
{SIM}|[robust]|{A} =>  => x.toml:7:1: [robust]: set a machine in [settings]
{SIM}|{NEHALEM}|[robust]|{A}|{NEHALEM} =>  => x.toml:8:1: [robust]: all arms need the same machine: arm 'a' sets it itself
blocks = 5|[robust]|{A}|{SELF} => --robust=4 => --robust: only simulated machines have guesses: --set engine=sim
{SIM}|{A}|{SELF} => --robust=4 => --robust: --set machine=NAME
{SIM}|{NEHALEM}|{A} => --robust=4 => --robust: this experiment compares nothing
{SIM}|{NEHALEM}|{A}|{SELF} => --robust=4 --blocks=4 => --robust: 4 blocks are too few seeds: at least 5
{SIM}|{A}|{NEHALEM}|{SELF} => --robust=4 => --robust: all arms need the same machine: arm 'a' sets it itself
";

    #[test]
    fn the_command_line_changes_what_a_file_says() {
        let words = [
            ("{A}", "[[arm]]|name = 'a'"),
            ("{SIM}", "blocks = 5|[settings]|engine = 'sim'"),
            ("{NEHALEM}", "machine = 'nehalem-2s'"),
            ("{LIKE}", "machine=nehalem-2s,nehalem-2s~1/4,nehalem-2s~2/4,nehalem-2s~3/4,nehalem-2s~4/4"),
            ("{SELF}", "[[compare]]|name = 'a/a'|arm = 'a'|baseline = 'a'"),
        ];
        for row in CHANGED.lines() {
            let row = words.into_iter().fold(row.to_owned(), |row, (word, text)| row.replace(word, text));
            let parts: Vec<&str> = row.split(" => ").collect();
            let [lines, flags, expected] = parts[..] else { panic!("{row} has not three parts") };
            match changed(lines, flags) {
                Ok(it) => assert_eq!(told(&it), expected, "{row}"),
                Err(Failure { exit, message }) => {
                    assert!(message.starts_with(expected), "{row}\n{message}");
                    let of_flag = expected.starts_with("--");
                    assert_eq!(exit, if of_flag { Exit::Usage } else { Exit::BadExperiment }, "{row}");
                }
            }
        }
    }

    #[test]
    fn an_axis_that_the_command_line_displaces_limits_no_arm() {
        let cells = |flags: &str| -> Vec<String> {
            let only = "[[arm]]|name = 'b'|only = { ratio = 8, hold = '1us' }|";
            let it = changed(&format!("[grid]|ratio = [8, 1]|hold = ['2us', '1us']|{only}"), flags).unwrap();
            let plan = planned(&it).unwrap();
            plan.cells().filter(|cell| cell.arm == "b").map(|cell| cell.id.clone()).collect()
        };
        assert_eq!(cells(""), ["b_ratio-8_hold-1us"]);
        assert_eq!(cells("--set=vcpus=6"), ["b_hold-1us_vcpus-6"]);
    }

    #[test]
    fn overrides_survive_the_manifest() {
        let all = Overrides {
            quick: true,
            sets: vec![("hold".into(), "5us".into()), ("preempted-hint".into(), "off".into())],
            ratios: Some(vec!["1.5".parse().unwrap(), Ratio::whole(32)]),
            cpus: Some("0,2-3".parse().unwrap()),
            sched: Some("host".into()),
            window: Some("50ms".parse().unwrap()),
            with: vec!["a.o".into(), "b/c.a".into()],
            blocks: Some(7),
            robust: Some(16),
            seed: Some(42),
        };
        assert_eq!(Overrides::from_arguments(&all.to_arguments()).unwrap(), all);
        assert_eq!(Overrides::from_arguments(&[]).unwrap(), Overrides::default());
    }

    fn varied(text: &str) -> Vec<Vary> {
        text.split(' ').map(|vary| vary.parse().unwrap()).collect()
    }

    fn sweep(vary: &str, given: &str, baseline: Option<&str>) -> Source {
        let given: Vec<_> = given.split(' ').filter_map(|word| word.split_once('=')).collect();
        let (vary, settings) = (&varied(vary)[..], &settings(&given));
        let sweep = Sweep { vary, settings, baseline, of: &[], blocks: 7, robust: None };
        sweep.source(false).unwrap()
    }

    #[test]
    fn a_sweep_compares_settings_of_the_lock_or_the_last_one() {
        for (vary, given, baseline, expected) in [
            ("ratio=2,8 slice=100us,1ms", "", None, "ratio=2,8 | slice 100us, slice 1ms | A/A slice 100us"),
            (
                "lock=qspinlock,ticket pv=on,off",
                "",
                Some("ticket off"),
                "qspinlock pv on, qspinlock pv off, ticket pv on, ticket pv off | qspinlock pv on/ticket pv off, \
             qspinlock pv off/ticket pv off, ticket pv on/ticket pv off | A/A qspinlock pv on",
            ),
            // Values with commas are separated by semicolons.
            (
                "deschedule=none;holder,rate=100,for=5ms",
                "cpus=0-1 seed=7",
                None,
                "deschedule none, deschedule holder,rate=100,for=5ms | A/A deschedule none",
            ),
        ] {
            let it = Experiment::parse(sweep(vary, given, baseline)).unwrap();
            assert_eq!(told(&it), expected, "{vary} {given}");
            let (_, last) = it.arms[1].patch.settings.all_given().last().expect("an arm sets something");
            assert!(it.arms[1].name.ends_with(&last.to_string()), "{vary}: {last}");
        }
        assert_eq!(in_toml("a \"b\" \\ c"), r#""a \"b\" \\ c""#);
    }

    #[test]
    fn a_sweep_compares_kernels_and_command_lines_by_each_measure() {
        let vary = varied("kernel=old/vmlinux,new/vmlinux cmdline=;a=1,2 slice=1ms ratio=2,4 nopvspin=true");
        let of = &["page-loop", "copy-loop"].map(|name| Measure::Printed(name.into()));
        let (vary, settings) = (&vary[..], &settings(&[("initrd", "initrd.cpio"), ("cmdline", "quiet")]));
        let sweep = Sweep { vary, settings, baseline: Some(""), of, blocks: 7, robust: None };
        let source = sweep.source(false).unwrap();
        let it = Experiment::parse(source.clone()).unwrap();
        let arms = "kernel old/vmlinux no cmdline nopvspin true, kernel old/vmlinux cmdline a=1,2 nopvspin true, \
                kernel new/vmlinux no cmdline nopvspin true, kernel new/vmlinux cmdline a=1,2 nopvspin true";
        assert!(told(&it).starts_with(&format!("slice=1ms ratio=2,4 | {arms} | ")), "{}", told(&it));
        let of: Vec<_> = it.comparisons.iter().filter_map(|it| it.of.figure()).collect();
        assert_eq!(of, [["page-loop"; 3], ["copy-loop"; 3]].concat());
        // A guest ends when it has done its work.
        assert!(!source.text.contains("window"), "{}", source.text);
    }

    #[test]
    fn windows_are_left_alone_where_something_else_ends_them() {
        for (given, expected) in [
            ("hold=5us", "hold = \"5us\"\nwindow = \"200ms\""),
            ("window=1s", "window = \"1s/0\""),
            ("window=1s/3", "window = \"1s/3\""),
            ("work=1s", "work = \"1s\""),
            ("engine=sim", "engine = \"sim\""),
        ] {
            let text = sweep("lock=ticket,mcs", given, None).text;
            let has_default = text.contains("200ms");
            assert!(text.contains(expected) && has_default == (given == "hold=5us"), "{given}: {text}");
        }
    }
}
