#!/usr/bin/env bash
# Keeps the figures of a results directory that pages quote, small enough for the repository: docs/results/NAME.
# Usage: keep-results.sh DIR NAME HALTKICK... (the last words start the command). `just docs` reads the result.
set -euo pipefail

directory=$1 kept=docs/results/$2
shift 2
mkdir -p "$kept"

# 7: the headline is invalid, which the box of the page says.
"$@" report --verbose "$directory" > "$kept/table.txt" || test $? -eq 7

# Attempts that another one replaced do not count.
counted='([.[].place.replaces // [] | .[]] | map({(.): 1}) | add // {}) as $replaced | map(select($replaced[.run_id] | not))'

jq --slurp --slurpfile manifest "$directory/manifest.json" "$counted"' |
    def values(f): map(f) | unique | map(select(. != null));
    $manifest[0] as $m | ($m.facts["kvm.parameters_" + ($m.host.kvm_module // "")].value // "") as $parameters
    | {
        experiment: $m.outline.experiment, started: $m.started, commit: $m.facts["tool.git_commit"].value,
        cpu: $m.host.cpu_model, kernel: $m.host.kernel, kvm_module: $m.host.kvm_module, nested: $m.host.nested,
        engine: values(.settings.engine), machine: values(.settings.machine), pcpus: values(.settings.cpus | length),
        ring: values(.settings.ring), sched: values(.settings.sched),
        slice_ns: map(select(.settings.sched == "vmm")) | values(.settings.slice_ns),
        pause_loop_exits: ($parameters | test("(ple_gap|pause_filter_count)=[1-9]")),
        runs: length, invalid: map(select(.trusted | not)) | length
    }' "$directory/runs.jsonl" > "$kept/record.json"

# Name, setting, value, low, high. Six digits are more than any page prints.
six='def six: if type != "number" or . == 0 then . else (fabs | log10 | floor) as $e | if $e > 4 then round
    else . * pow(10; 5 - $e) | round / pow(10; 5 - $e) end end;
    def setting: to_entries | map("\(.key)=\(.value)") | join(" ");'
{
    jq -r "$six"'
        def line($name; $at; it): it | select(. != null)
            | [$name, $at, (.hodges_lehmann, .interval.low, .interval.high | six)] | @tsv;
        (.rows[] | (.arm + if .role == "control" then " (control)" else "" end) as $arm | (.setting | setting) as $at |
            (.figures | map_values(.estimate)) as $of |
            line("throughput of \($arm)"; $at; $of.acquisitions_per_second),
            line("efficiency of \($arm)"; $at; $of.efficiency),
            line("fairness of \($arm)"; $at; $of.jain),
            line("long waits of \($arm)"; $at; $of.wait_half_of_time_ns),
            line("completion of \($arm)"; $at; $of.completion_ns),
            line("lock share of \($arm)"; $at; $of.lock_cpu_share),
            line("lost of \($arm)"; $at; $of.lost_ns),
            line("lost by a holder of \($arm)"; $at; $of.lost_per_holder_ns),
            line("lost by a head of \($arm)"; $at; $of.lost_per_head_ns)),
        ((.together // [])[] | .arm as $arm | (.setting | setting) as $at |
            (.figures | map_values(.estimate)) as $of |
            line("all guests of \($arm)"; $at; $of.all_guests_per_second),
            line("slowest guest of \($arm)"; $at; $of.slowest_guest_per_second),
            line("slowest vCPU of \($arm)"; $at; $of.slowest_vcpu_per_second),
            line("p99 of \($arm)"; $at; $of.worst_guest_wait_p99_ns)),
        (.comparisons[] | line(.name; .setting | setting; .ratio)),
        (.control // empty | line("A/A"; .setting | setting; .ratio)),
        ((.published // [])[] | line(.published.name; ""; .ours))' "$directory/summary.json"
    jq -r --slurp "$six $counted"' | map(select(.place.role == "arm"))
        | group_by([.place.arm, .place.setting])[]
        | .[0].place as $place | ($place.setting | setting) as $at
        | (map(.figures | [.preemptions_holder, .preemptions_head, .preemptions_waiter, .preemptions_other] | add) | add // 0) as $ended
        | ((map(.figures.preempted_holder_ns) | add // 0) / (map(.figures.window_ns) | add)) as $off
        | (map(.figures.preemptions_holder) | add // 0) as $inside
        | (map(.figures.grace_granted) | add // 0) as $graces | (map(.figures.grace_expired) | add // 0) as $expired
        | (select($ended > 0) | ["holders off of \($place.arm)", $at, ($off | six)],
            ["slices ended of \($place.arm)", $at, $ended],
            ["slices ended inside of \($place.arm)", $at, ($inside / $ended | six)]),
          (select($graces > 0) | ["extensions of \($place.arm)", $at, $graces],
            ["extensions expired of \($place.arm)", $at, ($expired / $graces | six)]),
          ((map(.lock_events.pgfault) | add // 0) as $faults
            | select($faults > 0 and any(.lock_events.speculative_pgfault > 0))
            | (first.lock_events | keys[] | select(test("^spf_|^speculative"))) as $event
            | ["\($event) per fault of \($place.arm)", $at, ((map(.lock_events[$event]) | add) / $faults | six)])
        | @tsv' "$directory/runs.jsonl"
} > "$kept/figures.tsv"
