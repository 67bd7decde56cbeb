//! The JSON Schema of experiment files, for editors, and for the reader, which knows the same keys.
//!
//! It says what each key and value may be by itself. What concerns several of them, such as that a comparison names an arm
//! that there is, only the reader says.

use std::sync::LazyLock;

use serde_json::{Map, Value as Json, json};

use super::contents::{self, MOST_RETRIES};
use super::measure::Measure;
use super::robust::{MOST_POINTS, POINTS};
use super::source::FORMAT;
use crate::settings::schemas as settings;

pub(crate) fn schema() -> Json {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Experiment",
        "description": "An experiment file of Haltkick: what is compared, at which settings, how often",
        "type": "object",
        "properties": top(),
        "required": ["format", "name", "title", "arm"],
        "additionalProperties": false,
    })
}

/// The keys of a table that stands at `pointer` in the schema, such as `/properties/quick`: the reader refuses all others.
pub(super) fn known(pointer: &str) -> Vec<&'static str> {
    static SCHEMA: LazyLock<Json> = LazyLock::new(schema);
    let table = SCHEMA.pointer(pointer).expect("a table of the schema");
    table["properties"].as_object().expect("it has keys").keys().map(String::as_str).collect()
}

fn top() -> Map<String, Json> {
    let keys = json!({
        "format": { "const": FORMAT, "description": "Version of the file format" },
        "name": text("Name of the experiment, in records and in the name of the directory"),
        "title": text("First line of table and report"),
        "blocks": blocks("Passes over all cells [default: 10]"),
        "target-precision": {
            "type": "string", "pattern": "^[0-9.]+ *%$",
            "description": "Add blocks until each 95 % interval is this narrow",
        },
        "max-time": {
            "type": "string", "pattern": r"^[0-9]*\.?[0-9]+ *(ns|us|µs|ms|s|m|h)$",
            "description": "Begin no block that would end later than this",
        },
        "retry-disturbed": {
            "type": "integer", "minimum": 0, "maximum": MOST_RETRIES,
            "description": "How often a run that something else on the host disturbed is made again [default: 0]",
        },
        "trial-blocks": blocks("Blocks per trial, where verdicts are counted over many trials"),
        "without-ideal": flag("Run no lock-free cells: there is no efficiency then"),
        "lock-costs": flag("Report the cost of each lock without contention"),
        "settings": table("Settings of every cell", with_boot(settings()), &[]),
        "point": {
            "type": "array", "items": table("Settings that vary together", with_boot(settings()), &[]),
            "description": "Each is one combination of settings",
        },
        "grid": table("Settings that vary independently: every combination is run", grid(), &[]),
        "arm": {
            "type": "array", "minItems": 1, "items": arm(), "description": "The things to compare",
        },
        "compare": { "type": "array", "items": comparison(), "description": "The ratios to report" },
        "control": control(),
        "robust": table(
            "Tell of each comparison on a simulated machine whether it is robust against what is guessed of the machine",
            robust(), &[],
        ),
        "quick": quick(),
        "publication": publication(),
        "published": { "type": "array", "items": published(), "description": "Published figures to put next to ours" },
    });
    object(keys)
}

fn arm() -> Json {
    let only =
        table("Values of what varies at which this arm is run; without it, all", with_boot(settings()), &[]);
    let mut keys = with_boot(settings());
    keys.extend(object(json!({ "name": text("Name in tables"), "only": only })));
    table("One of the things to compare: what makes it different", keys, &["name"])
}

fn comparison() -> Json {
    let mut of = Measure::schema();
    of["description"] =
        "What is compared; of kernels figure:NAME, what they print [default: throughput]".into();
    let keys = json!({
        "name": text("Name in tables"),
        "arm": text("Name of the arm above the line"),
        "baseline": text("Name of the arm below the line"),
        "of": of,
    });
    table("A ratio to report", object(keys), &["name", "arm", "baseline"])
}

fn control() -> Json {
    let mut keys = with_boot(settings());
    keys.insert("arm".into(), text("Name of the arm that runs twice in each block"));
    table("The A/A pair; settings that vary pick where it runs", keys, &["arm"])
}

/// Keys that rows of `[[published]]` may have in common.
fn publication() -> Json {
    let keys = json!({
        "source": text("Author, subject, list and month"),
        "machine": text("Machine that it was measured on"),
        "pcpus": { "type": "integer", "minimum": 1, "description": "Its CPUs" },
        "ratio": { "type": "number", "exclusiveMinimum": 0, "description": "vCPUs for each of them" },
        "like": { "type": "string", "pattern": "^[L?-][A?-][W?-]$", "description": "Lock, arrangement and work as there" },
        "page": text("Page that has more"),
    });
    table("What the rows of [[published]] have in common", object(keys), &[])
}

fn published() -> Json {
    let at = json!({ "type": "object", "description": "A value for each axis of the grid" });
    let figure = json!({ "type": "number", "exclusiveMinimum": 0 });
    let mut keys = publication()["properties"].take();
    for (key, schema) in object(json!({
        "name": text("Name in tables"),
        "figure": text("The comparison there, and its measure"),
        "value": {
            "anyOf": [figure, { "type": "array", "minItems": 1, "items": figure }],
            "description": "The published ratio or share, of each run",
        },
        "within": { "type": "string", "description": "Our whole interval must lie within this share of it [default: 25%]" },
        "needs-pcpus": { "type": "integer", "minimum": 1, "description": "pCPUs without which there is nothing to compare" },
        "compare": text("Our figure: this [[compare]]"),
        "arm": text("Or one of this arm: how many times as long as at `over` it takes, or a share"),
        "share": text("The share: lock-cpu, waiting, or an event"),
        "among": text("The event that counts the occasions for it"),
        "at": at,
        "over": at,
        "control": table("A comparison that should be near 1", object(json!({
            "compare": text("Its name"), "at": at, "value": figure,
        })), &["compare"]),
        "why": text("Why the two figures are alike or not"),
    })) {
        keys[key] = schema;
    }
    table("A published figure", object(keys), &["name", "figure", "value", "why"])
}

fn object(keys: Json) -> Map<String, Json> {
    let Json::Object(keys) = keys else { unreachable!("written as an object") };
    keys
}

fn quick() -> Json {
    let mut keys = settings();
    keys.extend(object(json!({
        "blocks": blocks("Passes over all cells"),
        // Which keys and values there are is said by the file's own grid.
        "grid": {
            "type": "object", "additionalProperties": { "type": "array", "minItems": 1 },
            "description": "Values of the grid that are left",
        },
        "arms": {
            "type": "array", "minItems": 1, "items": text("Name of an arm"), "description": "Arms that are left, with their comparisons",
        },
    })));
    table("What --quick changes", keys, &[])
}

fn robust() -> Map<String, Json> {
    let (least, most) = MOST_POINTS.into_inner();
    let description = format!("Machines like each one that are simulated, too [default: {POINTS}]");
    object(json!({
        "points": { "type": "integer", "minimum": least, "maximum": most, "description": description },
    }))
}

/// With what boots a kernel: [`contents::BOOT`].
fn with_boot(mut keys: Map<String, Json>) -> Map<String, Json> {
    keys.extend(object(json!({
        "kernel": text("Boot this kernel instead of our own guest; relative to this file"),
        "initrd": text("Its initial RAM disk; relative to this file"),
        (contents::CMDLINE): text("Words for its command line; those of [settings] come first, then the grid's, then the arm's"),
        (contents::NOPVSPIN): flag("Whether the kernel is told not to use paravirtual spin locks"),
        "marker": text("A piece of a line of its console that says: user space is there [default: Run /]"),
        (contents::WORKLOAD_INSIDE): text("Run this workload on it, `run` and settings of that, and make a RAM disk for it"),
    })));
    keys
}

fn grid() -> Map<String, Json> {
    let list = |schema| json!({ "type": "array", "minItems": 1, "uniqueItems": true, "items": schema });
    let keys = with_boot(settings()).into_iter();
    let mut grid: Map<String, Json> = keys.map(|(key, schema)| (key, list(schema))).collect();
    // No words for a command line are a choice.
    grid[contents::CMDLINE]["items"]["minLength"] = 0.into();
    grid
}

fn table(description: &str, keys: Map<String, Json>, required: &[&str]) -> Json {
    json!({
        "type": "object", "description": description, "properties": keys, "required": required,
        "additionalProperties": false,
    })
}

fn text(description: &str) -> Json {
    json!({ "type": "string", "minLength": 1, "description": description })
}

fn flag(description: &str) -> Json {
    json!({ "type": "boolean", "description": description })
}

fn blocks(description: &str) -> Json {
    let (least, most) = contents::BLOCKS.into_inner();
    json!({ "type": "integer", "minimum": least, "maximum": most, "description": description })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use toml::de::{DeTable, DeValue};

    use super::*;
    use crate::experiment::overrides::Overrides;
    use crate::experiment::plan::Plan;
    use crate::experiment::source::BUILT_IN;
    use crate::experiment::{Experiment, Source};
    use crate::measure::synthetic::{Scratch, built_in, planned};
    use crate::record::place::Role;
    use crate::text::exit::{Exit, Failure, Result};

    const MINIMAL: &str = "format = 1\nname = 'x'\ntitle = 'X'\n";
    const ARM: &str = "[[arm]]\nname = 'a'\n";

    fn json_of(value: &DeValue<'_>) -> Json {
        match value {
            DeValue::String(text) => text.as_ref().into(),
            DeValue::Integer(number) => number.as_str().parse::<i64>().expect("a decimal number").into(),
            DeValue::Boolean(flag) => (*flag).into(),
            DeValue::Array(items) => items.iter().map(|item| json_of(item.get_ref())).collect(),
            DeValue::Table(table) => json_of_table(table),
            DeValue::Float(float) => json!(float.as_str().parse::<f64>().unwrap()),
            other => panic!("no experiment file holds {other:?}"),
        }
    }

    fn json_of_table(table: &DeTable<'_>) -> Json {
        let pairs = table.iter().map(|(key, value)| (key.get_ref().to_string(), json_of(value.get_ref())));
        Json::Object(pairs.collect())
    }

    fn complaints(text: &str) -> Vec<String> {
        let file = json_of_table(DeTable::parse(text).unwrap().get_ref());
        let validator = jsonschema::validator_for(&schema()).unwrap();
        validator.iter_errors(&file).map(|error| error.to_string()).collect()
    }

    #[test]
    fn every_built_in_experiment_keeps_to_schema_with_pair_and_published_figures() {
        let mut published = BTreeSet::new();
        for (name, text) in BUILT_IN {
            assert_eq!(complaints(text), [""; 0], "{name}");
            let mut experiment = built_in(name);
            assert_eq!(experiment.name, name);
            let has_pair = experiment.control.is_some() || experiment.trial_blocks.is_some();
            assert!(has_pair, "{name} has no A/A pair");
            experiment.apply(&Overrides { quick: true, ..Overrides::default() }).unwrap();
            for row in &experiment.published {
                assert_eq!(experiment.without_a_figure(row), None, "{}: with --quick", row.name);
                assert!(row.control.is_some() || experiment.control.is_some(), "{}: no control", row.name);
                let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(&row.page);
                assert!(page.is_file(), "{}: {} is missing", row.name, row.page);
                assert!(published.insert(row.name.clone()), "two rows are called {}", row.name);
            }
        }
        assert!(published.len() > 60, "{published:?}");
        let kernels = "[grid]\nkernel = ['a', 'b']\ncmdline = ['', 'c']\nnopvspin = [true, false]\n";
        assert_eq!(complaints(&format!("{MINIMAL}{kernels}{ARM}only = {{ kernel = 'a' }}\n")), [""; 0]);
    }

    /// Lines of files, behind the first three and before an arm `tas`, and how the complaint about them begins: with a place in the file,
    /// or, behind ` ++ ` and options of the command line, with what these said. Those before the empty line are against the schema, too.
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
[settings]|nopvspin = 'yes' => 5:12: 'nopvspin' must be true or false
[[point]]|hodl = '1us' => 5:1: unknown key 'hodl'
[grid]|ratoi = [1] => 5:1: unknown key 'ratoi'
[grid]|ratio = 5 => 5:1: 'ratio' must be a list, such as [1, 2]
[grid]|ratio = [1, 1] => 5:13: 1 stands in the list twice
[grid]|kernel = [''] => 5:11: 'kernel' must be a text in quotes
[grid]|kernel = [3] => 5:11: 'kernel' must be a text in quotes
[grid]|nopvspin = ['true'] => 5:13: 'nopvspin' must be true or false
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
[settings]|kernel = 'old'|[grid]|kernel = ['new'] => 5:10: kernel is in [grid] too
[settings]|hold = '1us'|[[point]]|hold = '1us' => 5:1: hold is in [[point]] too
[settings]|\"\\u0007\" = 1 => 5:1: a control character, which no name or value has
[settings]|workload-inside = 'bench' => 5:19: 'workload-inside': it begins
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
[[arm]]|name = 'a'|initrd = 'initrd' => 6:10: this is for arms that have a 'kernel'
[[arm]]|name = 'a'|nopvspin = true => 6:12: this is for arms that have a 'kernel'
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
[quick]|arms = [1] => 5:9: 'arms' must be a list of names
blocks = 5|[settings]|machine = 'nehalem-2s'|[robust] => 7:1: [robust]: only simulated machines have guesses
blocks = 4|{SIM}|machine = 'nehalem-2s'|[robust] => 8:1: [robust]: 4 blocks are too few seeds
blocks = 5|{SIM}|[robust] => 7:1: [robust]: set a machine in [settings]
{ROBUST}|[[arm]]|name = 'c'|machine = 'nehalem-2s' => \
    8:1: [robust]: all arms need the same machine: arm 'c' sets it itself
blocks = 5|{COMPARED} ++ --robust=4 => --robust: only simulated machines have guesses: --set engine=sim
blocks = 5|{SIM}|{COMPARED} ++ --robust=4 => --robust: --set machine=NAME
blocks = 5|{SIM}|machine = 'nehalem-2s' ++ --robust=4 => --robust: this experiment compares nothing
blocks = 4|{SIM}|machine = 'nehalem-2s'|{COMPARED} ++ --robust=4 => --robust: 4 blocks are too few seeds: at least 5
blocks = 5|{SIM}|machine = 'nehalem-2s'|{COMPARED}|[[arm]]|name = 'c'|machine = 'nehalem-2s' ++ --robust=4 => \
    --robust: all arms need the same machine: arm 'c' sets it itself
[settings]|kernel = 'none' => 5:10: none: No such file
[settings]|kernel = '.' => 5:10: . is no file
[grid]|kernel = ['none'] => 5:11: none: No such file
{OLD}|initrd = 'none' => 6:10: none: No such file
{OLD}|initrd = 'initrd'|workload-inside = 'run' => 7:19: a RAM disk is made for it
{OLD}|workload-inside = 'run --lock x' => 6:19: --lock: unknown lock
{OLD}|hold = '1us' => 6:1: arm 'tas': hold: this is for our own guest
{OLD}|[grid]|think = ['1us'] => 7:10: arm 'tas': think: this is for our own guest
{OLD}|deschedule = 'holder,rate=5,for=1ms' => 6:1: arm 'tas': deschedule: it is not known what a vCPU
{OLD} ++ --set=kernel=old => kernel: old: No such file
{OLD}|[[arm]]|name = 'a'|kernel = 'new' ++ --set=kernel=x => --set kernel: arm 'a' sets it itself
[[point]]|kernel = 'old'|[[point]]|kernel = 'new' ++ --set=kernel=x => --set kernel: the points of this experiment set it
 ++ --set=initrd=x => initrd: this is for arms that have a 'kernel'
{OLD} ++ --set=nopvspin=yes => --set nopvspin: 'nopvspin' must be true or false
{OLD} ++ --set=kernle=x => --set kernle: unknown setting 'kernle': did you mean 'kernel'?
{COMPARED} ++ --set=kernel=x => 1:1: comparison 'c': of kernels, figures are compared
";

    const WORDS: [(&str, &str); 6] = [
        ("{ROBUST}", "blocks = 0x0_5|{SIM}|machine = 'nehalem-2s'|[robust]"),
        ("{OF_FOUR}", "nehalem-2s~1/4 nehalem-2s~2/4 nehalem-2s~3/4 nehalem-2s~4/4"),
        ("{SIM}", "[settings]|engine = 'sim'"),
        ("{OLD}", "[settings]|kernel = 'old'"),
        ("{COMPARED}", "[[compare]]|name = 'c'|arm = 'tas'|baseline = 'tas'"),
        // The beginning of a published row that is compared with a ratio.
        (
            "{ROW}",
            "[grid]|ratio = [1, 2]|[[arm]]|name = 'a'|[[compare]]|name = 'a/a'|arm = 'a'|baseline = 'a'|\
             [publication]|source = 's'|machine = 'm'|page = 'p'|like = 'LA-'|[[published]]|name = 'r'|figure = 'f'|why = 'w'",
        ),
    ];

    /// A row's two parts, of which the first is the rest of a file, and options.
    fn parts(row: &str) -> (String, String, String) {
        let whole = WORDS.into_iter().fold(row.to_owned(), |row, (word, text)| row.replace(word, text));
        let (given, expected) = whole.split_once(" => ").expect("a row has two parts");
        let (lines, options) = given.split_once(" ++ ").unwrap_or((given, ""));
        let rest = format!("{}\n[[arm]]\nname = 'tas'\n", lines.replace('|', "\n"));
        (rest, options.into(), expected.into())
    }

    /// The plan of a file in a directory of the test's own, with a kernel and an initial RAM disk. Complaints name it `x.toml`.
    fn plan(test: &str, rest: &str, options: &str) -> Result<Plan> {
        let directory = Scratch::new(test);
        ["old", "initrd"].iter().for_each(|file| directory.put(file, file));
        let origin = directory.path().join("x.toml").display().to_string();
        let text = format!("{MINIMAL}{rest}");
        let options: Vec<String> = options.split_whitespace().map(String::from).collect();
        let plan = Experiment::parse(Source { origin, text }).and_then(|mut experiment| {
            experiment.apply(&Overrides::from_arguments(&options).unwrap())?;
            planned(&experiment)
        });
        let here = format!("{}/", directory.path().display());
        plan.map_err(|Failure { exit, message }| Failure { exit, message: message.replace(&here, "") })
    }

    #[test]
    fn what_the_reader_refuses_is_located_and_against_the_schema() {
        let (both, reader_alone) = REFUSED.split_once("\n\n").expect("two parts");
        let rows = both.lines().map(|row| (row, true)).chain(reader_alone.lines().map(|row| (row, false)));
        for (row, is_against_schema) in rows {
            let (rest, options, expected) = parts(row);
            let Failure { exit, message } =
                plan("experiment-refused", &rest, &options).map(|it| it.outline).unwrap_err();
            let is_located = expected.starts_with(|first: char| first.is_ascii_digit());
            let place = if is_located { "x.toml:" } else { "" };
            assert!(message.starts_with(&format!("{place}{expected}")), "{row}\n{message}");
            assert_eq!(exit, if is_located { Exit::BadExperiment } else { Exit::Usage }, "{row}");
            if is_against_schema {
                assert_ne!(complaints(&format!("{MINIMAL}{rest}")), [""; 0], "{row}");
            }
        }
        let none = plan("experiment-refused", "", "").map(|it| it.outline).unwrap_err().message;
        assert_eq!(none, "x.toml:1:1: no [[arm]]: an experiment compares at least one");
        assert_ne!(complaints(MINIMAL), [""; 0]);
        for (text, begin) in
            [("format = 2", "1:10: another format than 1"), ("name = 'x'", "1:1: no 'format': begin")]
        {
            let source = Source { origin: "x.toml".into(), text: text.into() };
            let message = Experiment::parse(source).map(|it| it.name).unwrap_err().message;
            assert!(message.starts_with(&format!("x.toml:{begin}")), "{message}");
        }
    }

    /// Lines and options like these; how many cells the plan's arms have, its arms, axes, comparisons and A/A pair.
    const PLANNED: &str = "\
[grid]|ratio = [2, 1, 8]|hold = ['1us', '2us']|[[arm]]|name = 'c'|[[arm]]|name = 'b'|[[arm]]|name = 'a'|\
    [[compare]]|name = 'b/a'|arm = 'b'|baseline = 'a'|[[compare]]|name = 'c/a'|arm = 'c'|baseline = 'a'|\
    [control]|arm = 'c'|ratio = 8|hold = '2us'|[quick]|grid = { ratio = [1, 2] }|arms = ['c', 'a'] ++ --quick => \
    8 of c, a; ratio 2 1; hold 1us 2us; c/a; A/A at ratio 2, hold 2us
[grid]|ratio = [8, 1]|hold = ['2us', '1us']|[[arm]]|name = 'b'|only = { ratio = 8, hold = '1us' } => \
    5 of b, tas; ratio 8 1; hold 2us 1us
[grid]|ratio = [8, 1]|hold = ['2us', '1us']|[[arm]]|name = 'b'|only = { ratio = 8, hold = '1us' } ++ --set=vcpus=6 => \
    3 of b, tas; hold 2us 1us; vcpus 6
[grid]|vcpus = [0b11, 0x1_0] => 2 of tas; vcpus 3 16
[[point]]|kernel = 'old'|ratio = 1|[[point]]|kernel = 'initrd'|ratio = 2 => 2 of tas; kernel old initrd; ratio 1 2
[grid]|vcpus = [32, 60] ++ --ratios=1,2 => 2 of tas; ratio 1 2
[grid]|hold = ['1us'] => 1 of tas; hold 1us
[grid]|guests = [1, 3] => 2 of tas, tas / b, tas / c; guests 1 3
[grid]|vm = ['lock=tas', 'lock=tas; lock=ticket'] => 2 of tas, tas / b; vm lock=tas lock=tas; lock=ticket
{ROBUST}|points = 4 => 5 of tas; machine nehalem-2s {OF_FOUR}
{ROBUST}|points = 4|[quick]|blocks = 1 ++ --quick => 1 of tas
{ROBUST} => 13 of tas; machine nehalem-2s nehalem-2s~1/12 nehalem-2s~2/12 nehalem-2s~3/12 nehalem-2s~4/12 nehalem-2s~5/12 \
    nehalem-2s~6/12 nehalem-2s~7/12 nehalem-2s~8/12 nehalem-2s~9/12 nehalem-2s~10/12 nehalem-2s~11/12 nehalem-2s~12/12
blocks = 5|{SIM}|[robust]|points = 4|[grid]|machine = ['milan-1s', 'nehalem-2s'] => \
    10 of tas; machine milan-1s milan-1s~1/4 milan-1s~2/4 milan-1s~3/4 milan-1s~4/4 nehalem-2s {OF_FOUR}
blocks = 5|{SIM}|machine = 'nehalem-2s'|{COMPARED} ++ --robust=4 => 5 of tas; machine nehalem-2s {OF_FOUR}; c
{ROBUST}|points = 5|{COMPARED}|[quick]|blocks = 1 ++ --quick --robust=4 --blocks=5 => 5 of tas; machine nehalem-2s {OF_FOUR}; c
";

    #[test]
    fn a_plan_is_what_file_and_options_say_together() {
        for row in PLANNED.lines() {
            let (rest, options, expected) = parts(row);
            let plan = plan("experiment-planned", &rest, &options).unwrap();
            let (outline, cells) =
                (&plan.outline, plan.cells().filter(|cell| cell.role == Role::Arm).count());
            let axes = outline.axes.iter().map(|axis| format!("{} {}", axis.key, axis.values.join(" ")));
            let compared = outline.comparisons.iter().map(|it| it.name.clone());
            let pair = outline.control.iter().map(|it| format!("A/A at {}", outline.name(&it.setting)));
            let arms = std::iter::once(format!("{cells} of {}", outline.arms.join(", ")));
            let told: Vec<String> = arms.chain(axes).chain(compared).chain(pair).collect();
            assert_eq!(told.join("; "), expected, "{row}");
        }
    }
}
