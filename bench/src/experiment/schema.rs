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
use crate::settings::table::CMDLINE;

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

/// The schema that the reader keeps to, made once.
pub(super) static SCHEMA: LazyLock<Json> = LazyLock::new(schema);

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
        "settings": table("Settings of every cell", settings(true), &[]),
        "point": {
            "type": "array", "items": table("Settings that vary together", settings(true), &[]),
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
    let only = table("Values of what varies at which this arm is run; without it, all", settings(true), &[]);
    let mut keys = settings(true);
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
    let mut keys = settings(true);
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
    let mut keys = settings(false);
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

fn grid() -> Map<String, Json> {
    let list = |schema| json!({ "type": "array", "minItems": 1, "uniqueItems": true, "items": schema });
    let keys = settings(true).into_iter();
    let mut grid: Map<String, Json> = keys.map(|(key, schema)| (key, list(schema))).collect();
    // No words for a command line are a choice.
    grid[CMDLINE]["items"]["minLength"] = 0.into();
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
