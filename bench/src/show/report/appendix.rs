//! The end of the page: how figures are made, and the manifest.

use maud::{Markup, html};

use super::scrolled;
use crate::results::manifest::Manifest;

pub(super) fn method() -> Markup {
    html! {
        details { summary { "Blocks, estimates, validity and the ideal" } (rules()) }
    }
}

fn rules() -> Markup {
    html! {
        ul {
            li {
                "A block is one pass over all cells in shuffled order. Arms are compared as ratios within a block, so that drift \
                 from block to block cancels."
            }
            li {
                "The estimate is that of Hodges and Lehmann; its 95 % interval inverts the signed-rank test (Student's t below \
                 six blocks). A difference is called one, by marks and findings alike, only if the interval excludes 1 and \
                 withstands Holm's correction over all settings of its comparison. The intervals themselves are not corrected."
            }
            li {
                "A ratio is not valid if more than 29 % of its pairs have an invalid run, and counts in no finding. Every record \
                 has the warnings that make a run invalid."
            }
            li {
                "The ideal is the lesser of the same cell's throughput without any lock, measured just before it, and locks / \
                 hold."
            }
            li { "Outliers and drift are marked, never removed. Every run is in runs.jsonl." }
        }
    }
}

/// The files that each arm booted.
pub(super) fn kernels(manifest: &Manifest) -> Markup {
    let table = html! {
        table.facts {
            thead {
                tr {
                    @for title in ["arm", "kernel", "initial RAM disk", "command line"] { th.name scope="col" { (title) } }
                }
            }
            tbody {
                @for it in &manifest.kernels {
                    tr {
                        th.name scope="row" { (it.name()) }
                        td.text { (it.kernel) " " small { (it.kernel_sha256) } }
                        td.text { (it.initrd.as_deref().unwrap_or("none")) " " small { (it.initrd_sha256.as_deref().unwrap_or("")) } }
                        td.text { (it.command_line) }
                    }
                }
            }
        }
    };
    scrolled("Kernels", &table)
}

/// The manifest, folded.
pub(super) fn manifest(manifest: &Manifest) -> Markup {
    let overrides = manifest.source.overrides.join(" ");
    html! {
        details {
            summary { "Experiment file" }
            p { "Changed by the command line: " (if overrides.is_empty() { "nothing" } else { &overrides }) }
            pre tabindex="0" { (manifest.source.text) }
        }
        details {
            summary { "Host, in " (manifest.facts.len()) " facts" }
            (scrolled("Facts about the host", &facts(manifest)))
        }
    }
}

fn facts(manifest: &Manifest) -> Markup {
    html! {
        table.facts {
            tbody {
                @for (name, fact) in &manifest.facts {
                    tr {
                        th.name scope="row" { (name) }
                        td.text {
                            @match &fact.value {
                                Some(value) => (value),
                                None => i { "not available: " (fact.why.as_deref().unwrap_or("no reason given")) },
                            }
                        }
                    }
                }
            }
        }
    }
}
