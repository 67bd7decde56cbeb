//! `report.html`: one file with everything that a reviewer asks for, readable without network, in light and dark,
//! on screen and on paper. All text is escaped, but for our own style sheets and pictures.

mod figures;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::analysis::findings::{self, Finding};
use crate::analysis::summary::{CheckOutcome, Summary};
use crate::record::Record;
use crate::results::manifest::Manifest;
use crate::show::plot::{self, Data, Picture};
use crate::show::{svg, table};

const STYLE: &str = include_str!("report.css");

/// The page's security policy: the page needs only what is on it, and the browser requests nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A part of the page: what links to it name, its title, and what it says.
type Section<'a> = (&'a str, &'a str, Markup);

pub(crate) fn page(manifest: &Manifest, summary: &Summary, records: &[Record]) -> String {
    let mut pictures = plot::pictures(&Data::new(summary, records));
    let first = pictures.iter().position(|picture| picture.svg.is_some()).map(|at| pictures.remove(at));
    let sections = sections((manifest, summary, records), &pictures);
    let content = html! {
        a.skip href="#findings" { "To the findings" }
        (headline(summary, first.as_ref()))
        (contents(&sections))
        @for (id, title, content) in &sections {
            section id=(id) aria-labelledby={ (id) "-title" } {
                h2 id={ (id) "-title" } { (title) }
                (content)
            }
        }
    };
    whole(&summary.outline.title, svg::STYLE, &content)
}

/// A page that loads nothing from elsewhere. `style` follows the style of all pages.
pub(in crate::show) fn whole(title: &str, style: &str, content: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body { main { h1 { (title) } (content) } }
        }
    };
    page.into_string() + "\n"
}

/// The beginning of the page: a sentence, and the picture that shows it.
fn headline(summary: &Summary, picture: Option<&Picture>) -> Markup {
    html! {
        @if let Some(finding) = findings::findings(summary).first() { p.lead { (told(finding)) } }
        @if let Some(picture) = picture { (drawn(picture)) }
        p.extent { (table::extent(summary)) }
    }
}

/// A finding, with a word before it if it is not valid.
fn told(finding: &Finding) -> Markup {
    html! { @if !finding.is_valid { b { "Not valid: " } } (finding.text) }
}

/// The page's sections, in their order; empty ones are left out.
fn sections<'a>(
    (manifest, summary, records): (&Manifest, &Summary, &[Record]),
    pictures: &'a [Picture],
) -> Vec<Section<'a>> {
    let before = [
        ("findings", "Findings", Some(findings(summary))),
        ("figures", "Figures", Some(html! { (warnings(summary)) (figures::figures(summary)) })),
        ("costs", "Cost of a lock without contention", figures::lock_costs(summary)),
        ("trials", "Verdicts over trials", figures::trials(summary)),
        ("comparisons", "Comparisons", figures::comparisons(summary)),
        ("published", "Published figures next to ours", figures::published(summary)),
        ("printed", "All that the kernels printed", figures::printed(summary)),
        ("kernels", "Kernels", summary.of_kernels.then(|| kernels(manifest))),
    ];
    let pictures = pictures.iter().map(|it| (it.name.as_str(), it.title.as_str(), Some(drawn(it))));
    let after = [
        ("events", "Lock events", figures::events(summary, records)),
        ("checks", "Checks", Some(checks(summary))),
        ("method", "How the figures are made", Some(method())),
        ("manifest", "Manifest", Some(html! { (origin(manifest, summary)) (appendix(manifest)) })),
    ];
    let all = before.into_iter().chain(pictures).chain(after);
    all.filter_map(|(id, title, content)| Some((id, title, content?))).collect()
}

fn contents(sections: &[Section<'_>]) -> Markup {
    html! {
        nav.contents aria-label="Contents" {
            ul { @for (id, title, _) in sections { li { a href={ "#" (id) } { (title) } } } }
        }
    }
}

fn drawn(picture: &Picture) -> Markup {
    html! {
        @if let Some(svg) = &picture.svg {
            figure {
                (scrolled(&picture.title, &PreEscaped(svg.inline())))
                figcaption { (picture.caption) }
            }
        } @else {
            p { (picture.caption) }
        }
    }
}

/// A table that may be wider than the window: it scrolls for itself, by keys as well, and its edges show that there is more.
pub(in crate::show) fn scrolled(name: &str, table: &Markup) -> Markup {
    html! { div.wide role="region" aria-label=(name) tabindex="0" { (table) } }
}

fn origin(manifest: &Manifest, summary: &Summary) -> Markup {
    let host = &manifest.host;
    let or_unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
    let items = [
        ("experiment", summary.outline.experiment.clone()),
        ("begun", manifest.started.clone()),
        ("CPU", or_unknown(&host.cpu_model)),
        ("kernel", or_unknown(&host.kernel)),
        ("KVM", or_unknown(&host.kvm_module)),
        ("seed", manifest.seed.to_string()),
        ("haltkick", host.haltkick_version.clone()),
    ];
    facts("Origin", items.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

/// Warnings about figures, next to them.
fn warnings(summary: &Summary) -> Markup {
    html! {
        @if !summary.warnings.is_empty() {
            aside.warnings {
                h3 { "Before you believe a figure" }
                (list(&summary.warnings))
            }
        }
    }
}

fn checks(summary: &Summary) -> Markup {
    let checks = |outcome| summary.checks.iter().filter(move |check| check.outcome == outcome);
    html! {
        @for (class, outcome, title) in [
            ("failed", CheckOutcome::Failed, "Checked, and beyond limits"),
            ("quiet", CheckOutcome::Passed, "Checked, and within limits"),
            ("open", CheckOutcome::NotChecked, "Could not be checked"),
        ] {
            @if checks(outcome).next().is_some() {
                section class=(class) { h3 { (title) } (list(checks(outcome).map(|check| &check.text))) }
            }
        }
    }
}

/// A list, which scrolls if it is long.
fn list<'a>(lines: impl IntoIterator<Item = &'a String>) -> Markup {
    html! { ul.long tabindex="0" { @for line in lines { li { (line) } } } }
}

fn findings(summary: &Summary) -> Markup {
    html! {
        ul {
            @for finding in findings::findings(summary).iter().skip(1) {
                li.invalid[!finding.is_valid] { (told(finding)) }
            }
        }
    }
}

/// Rules by which figures are made.
const RULES: [&str; 5] = [
    "A block is one pass over all cells in shuffled order. Arms are compared as ratios within a block, so that drift from block to \
     block cancels.",
    "The estimate is that of Hodges and Lehmann; its 95 % interval inverts the signed-rank test (Student's t below six blocks). A \
     difference is called one, by marks and findings alike, only if the interval excludes 1 and withstands Holm's correction over \
     all settings of its comparison. The intervals themselves are not corrected.",
    "A ratio is not valid if more than 29 % of its pairs have an invalid run, and counts in no finding. Every record has the \
     warnings that make a run invalid.",
    "The ideal is the lesser of the same cell's throughput without any lock, measured just before it, and locks / hold.",
    "Outliers and drift are marked, never removed. Every run is in runs.jsonl.",
];

fn method() -> Markup {
    html! {
        details {
            summary { "Blocks, estimates, validity and the ideal" }
            ul { @for rule in RULES { li { (rule) } } }
        }
    }
}

/// The files that each arm booted.
fn kernels(manifest: &Manifest) -> Markup {
    let of_arm = manifest.kernels.iter().flat_map(|it| {
        let disk = [it.initrd.as_deref().unwrap_or("none"), it.initrd_sha256.as_deref().unwrap_or_default()];
        let booted = [
            ("kernel", format!("{} {}", it.kernel, it.kernel_sha256)),
            ("initial RAM disk", disk.join(" ")),
            ("command line", it.command_line.clone()),
        ];
        booted.map(|(what, text)| (format!("{}: {what}", it.name()), text))
    });
    facts("Kernels", of_arm)
}

/// The manifest, folded.
fn appendix(manifest: &Manifest) -> Markup {
    let overrides = manifest.source.overrides.join(" ");
    let of_host = manifest.facts.iter().map(|(name, fact)| {
        let why = fact.why.as_deref().unwrap_or("no reason given");
        (name.clone(), fact.value.clone().unwrap_or_else(|| format!("not available: {why}")))
    });
    html! {
        details {
            summary { "Experiment file" }
            p { "Changed by the command line: " (if overrides.is_empty() { "nothing" } else { &overrides }) }
            pre tabindex="0" { (manifest.source.text) }
        }
        details {
            summary { "Host, in " (manifest.facts.len()) " facts" }
            (facts("Facts about the host", of_host))
        }
    }
}

/// A table of names, and what is known of each.
fn facts(name: &str, facts: impl Iterator<Item = (String, String)>) -> Markup {
    let rows =
        html! { @for (name, text) in facts { tr { th.name scope="row" { (name) } td.text { (text) } } } };
    scrolled(name, &html! { table.facts { tbody { (rows) } } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::plan::Plan;
    use crate::measure::synthetic::{Sketch, World, assert_has, plain};

    /// The page about these records of a plan.
    fn page_of(plan: &Plan, records: &[Record]) -> String {
        page(&World::new(1).manifest(plan), &Summary::new(&plan.outline, records), records)
    }

    #[test]
    fn a_page_has_all_sections_and_no_text_leaves_its_element() {
        let plan = Sketch::new().axis("ratio", &["1", "8"]).arm("<script>", "tas").arm("b & c", "ticket");
        let plan = plan.compare("\"b\"", "b & c", "<script>").control("b & c").plan(6);
        let page = page_of(&plan, &World::new(1).records(&plan));
        for id in ["findings", "figures", "comparisons", "checks", "method", "manifest"] {
            let section = format!("<section id=\"{id}\" ");
            assert!(page.contains(&section) && page.contains(&format!("href=\"#{id}\"")), "{id}: {page}");
        }
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;") && page.contains("b &amp; c"));
        let (opened, closed) = (page.matches("<td").count(), page.matches("</td>").count());
        assert!(opened == closed && opened > 40, "{opened} cells are opened and {closed} closed");
    }

    #[test]
    fn only_passed_checks_are_green_and_invalid_figures_are_grey() {
        let plan = Sketch::two().compared().plan(6);
        let world = World::new(1).truth(|asked| if asked.ours.lock == "tas" { 1e5 } else { 2e5 });
        let mut records = world.records(&plan);
        let valid = page_of(&plan, &records);
        assert!(valid.contains("<td class=\"faster\">") && !valid.contains("<b>Not valid: </b>"), "{valid}");
        assert!(!valid.contains("over seeds only"), "{valid}");
        for record in &mut records {
            record.warn("busy-neighbour", "somebody".into());
            record.noise.others_share = Some(0.477);
        }
        let page = page_of(&plan, &records);
        let section = |class: &str| {
            let (_, rest) = page.split_once(&format!("<section class=\"{class}\">")).expect(class);
            rest.split_once("</section>").expect("its end").0.to_owned()
        };
        let (quiet, open) = (section("quiet"), section("open"));
        assert!(quiet.contains("the outer host took 0 %") && !quiet.contains("other processes"), "{quiet}");
        assert!(open.contains("this experiment has none"), "{open}");
        let lead = "<p class=\"lead\"><b>Not valid: </b>b/a: no finding, ";
        assert_has(&page, &["<td class=\"faint\">2.00x !", lead]);
        assert!(!page.contains("class=\"faster\""), "{page}");
    }

    #[test]
    fn every_column_of_a_figure_has_its_box_and_its_rule() {
        let plan = Sketch::two().compared().plan(6);
        let page = page_of(&plan, &World::new(1).records(&plan));
        let columns: BTreeSet<&str> =
            page.split("<th class=\"of-").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(columns.contains("lost_ns") && columns.contains("wait_p999_ns"), "{columns:?}");
        for name in columns {
            let rule = format!("section:has(#pick-{name}:not(:checked)) .of-{name}{{display:none}}");
            assert!(page.contains(&format!("id=\"pick-{name}\"")) && page.contains(&rule), "{name}");
            assert_eq!(page.matches(&format!("class=\"of-{name}\"")).count(), 1 + 3, "{name}: head and rows");
        }
    }

    /// The text of a page, without its elements.
    fn text_of(page: &str) -> String {
        let body = &page[page.find("<body").expect("a page has a body")..];
        let parts = body.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text));
        let text = parts.collect::<Vec<_>>().join(" ");
        text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
    }

    fn words(text: &str) -> BTreeSet<String> {
        let text = text.replace("+-", " \u{b1} ").to_lowercase();
        let bare = |word: &str| word.trim_matches([',', ';', ':', '(', ')', '.']).to_owned();
        text.split_whitespace().map(bare).filter(|word| !word.is_empty()).collect()
    }

    #[test]
    fn a_page_has_every_word_that_the_terminal_shows() {
        let sketch = Sketch::new().axis("ratio", &["1", "8"]).arm("a", "tas").control("a");
        let trials = sketch.clone().arm("b", "mcs").head("trial-blocks = 4").head("lock-costs = true");
        let fixed = "workload = 'mixed'\nwork = '1ms'\nlock = 'mcs'";
        // All guests that run at once have a line, where guests vary.
        let guests = Sketch::two().axis("guests", &["1", "2"]);
        for sketch in [trials, sketch.arm_with("b", fixed), guests] {
            let (plan, records) = sketch.compared().compare("a/b", "a", "b").measured(8);
            let summary = Summary::new(&plan.outline, &records);
            let shown = plain(&table::summary(&summary, table::Detail::Verbose));
            let mut told = words(&text_of(&page_of(&plan, &records)));
            // The page has a heading instead.
            told.insert("warning".into());
            assert_eq!(words(&shown).difference(&told).collect::<Vec<_>>(), [""; 0], "{shown}");
        }
    }
}
