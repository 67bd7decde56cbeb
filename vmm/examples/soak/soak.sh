#!/usr/bin/env bash
# Makes the runs of `soak` for hours, in processes that are killed at random moments and go on, and judges them.
#   soak.sh SOAK for HOURS | SOAK attacks RUNS | SOAK plants      SOAK: the program
# A line of target/soak.log or target/attacks.log is a run, by which the next call goes on. A run that a kill cut off is made again in
# a process that is not killed before it has ended, and no run is killed that takes unusually long: whatever hangs is reported.
set -euo pipefail
soak=$1 what=$2 limit=${3:-}
# Stacks of threads that have ended are given back, instead of up to 40 MiB being kept: what is left is a leak.
export GLIBC_TUNABLES=glibc.pthread.stack_cache_size=0
mkdir -p target

# One line for each fault of the log, or, with `table`, what became of each kind of run. Shares count for twenty runs together: a single
# one is short, and hosts are busy.
judge() {
    awk -F '\t' -v table="${1:-}" '
        { runs[$2]++; acquisitions[$2] += $3; starved[$2] += $5; if ($6 != "") ended[$2 "\t" $6]++ }
        $7 != "" { wrong[$2]++; if (!table) print $2 ": " $7 " (" $1 ")" }
        $4 != "" {
            all[$2] += $4; shares[$2]++; sum[$2] += $4
            if (++open[$2] == 20) {
                mean = sum[$2] / 20; sum[$2] = open[$2] = 0
                if (!($2 in least) || mean < least[$2]) least[$2] = mean
                if (mean < 950 && !table) print $2 ": " mean " thousandths of its share in 20 runs together (" $1 ")"
            }
        }
        END {
            if (!table) exit
            print "| runs of | runs | made again | wrong | acquisitions | share of the CPU time, mean and least of 20 runs | the other one ended with |"
            print "| --- | --- | --- | --- | --- | --- | --- |"
            for (it in runs) {
                share = shares[it] ? sprintf("%.1f %%", all[it] / shares[it] / 20) : ""
                if (it in least) share = share sprintf(", %.1f", least[it] / 20)
                others = ""
                for (one in ended) if (split(one, name, "\t") && name[1] == it) others = others name[2] " " ended[one] " "
                print "| " it " | " runs[it] " | " starved[it] " | " wrong[it] + 0 " | " acquisitions[it] " | " share " | " others "|"
            }
        }' "$log"
}

# Makes runs of kind $1, with the fault $2 put in, in one process, until $3 says so, or for $4 seconds, or until it ends by itself or
# says nothing for longer than $5 seconds, which is wrong. $6 seconds are an unusually long run.
live() {
    local kind=$1 plant=$2 is_over=$3 life=$4 silence=$5 usual=$6 next born made how=
    next=$(tail -n 1 "$log" | cut -f 1)
    next=$((${next:--1} + 1))
    touch "$log"
    born=$SECONDS made=$(stat -c %s "$log")
    "$soak" runs "$kind" "$next" ${plant:+"$plant"} >>"$log" &
    while kill -0 $! 2>/dev/null; do
        sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
        local quiet=$(($(date +%s) - $(stat -c %Y "$log")))
        if ((quiet > silence)); then
            how=hung
        elif ((quiet <= usual && $(stat -c %s "$log") > made)) && { ((SECONDS - born >= life)) || $is_over; }; then
            how=killed
        fi
        [ -z "$how" ] || break
    done
    kill -KILL $! 2>/dev/null || true
    { wait $! && code=0 || code=$?; } 2>/dev/null
    [ "$how" = killed ] && return
    next=$(tail -n 1 "$log" | cut -f 1)
    # It would end the next process, too.
    printf '%s\tprocess\t0\t\t0\t\tit %s\n' "$((${next:--1} + 1))" "${how:-ended by itself with $code}" >>"$log"
}

time_is_up() { ((SECONDS >= limit)); }
enough_runs() { (($(wc -l <"$log") >= limit)); }
planted_is_found() { ((SECONDS - begun >= 180)) || [ -n "$(judge)" ]; }

# Most lives are short, so that many end in the middle of something; some long, so that what leaks is seen. A run that a guest keeps
# from its end has three phases, and ends at the latest ten seconds and four times its patience (60 s) after each began.
go_on() {
    local kind=$1 is_over=$2 lives=0
    log=target/$kind.log
    touch "$log"
    until $is_over; do
        lives=$((lives + 1))
        live "$kind" "" "$is_over" "$((lives % 8 == 0 ? 600 : RANDOM % 13))" 780 5
        echo "soak: $(wc -l <"$log") runs, $(judge | wc -l) wrong, $lives lives" >&2
    done
    judge table
    judge >"target/$kind.wrong"
    [ ! -s "target/$kind.wrong" ] || { cat "target/$kind.wrong" >&2; exit 1; }
}

case $what in
for) limit=$(awk "BEGIN { print int($limit * 3600) }") && go_on soak time_is_up ;;
attacks) go_on attacks enough_runs ;;
plants)
    missed=0
    while IFS=$'\t' read -r name kind says; do
        log=target/planted.log begun=$SECONDS
        : >"$log"
        live "$kind" "$name" planted_is_found 180 20 1 </dev/null
        said=$(judge)
        if [[ $said == *"$says"* ]]; then found="found "; else found=MISSED missed=1; fi
        echo "$found $name: $said"
    done < <("$soak" plants)
    exit $missed
    ;;
*) sed -n 2,3p "$0" >&2 && exit 2 ;;
esac
