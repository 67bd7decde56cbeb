# Haltkick: a lab for locks on overcommitted virtual CPUs. `just` lists the recipes.

haltkick := "cargo run --release --package haltkick --"
nested := "cargo run --quiet --package haltkick-nested --"
# The file in which tests note on which hosts and engines they ran.
export HALTKICK_RAN_ON := justfile_directory() / "target/ran-on"

# List the recipes.
default:
    @just --list --unsorted

# Add the guest's target, where rustup has not added it by rust-toolchain.toml.
setup:
    @rustup target list --installed | grep -qx x86_64-unknown-none || rustup target add x86_64-unknown-none

# Build the `haltkick` command with the guest inside.
build: setup
    cargo build --release --package haltkick

# Check that each library crate can be packaged, with all that it needs and nothing of the others.
package:
    cargo package --locked --package haltkick-hypercalls --package haltkick-locks --package haltkick-mm --package haltkick-grants

# An initial RAM disk for Linux guests, target/linux-guest/initrd.cpio: four loops that print figures, and static PROGRAMS of your own (docs/linux-guest.md). Needs a C compiler.
linux-initrd *PROGRAMS:
    @bench/linux-guest/initrd.sh target/linux-guest/initrd.cpio {{ PROGRAMS }}

# An archive to give away, target/dist/*.tar.gz: a static haltkick, man pages, completions, licences, checksum. Needs Python.
dist: setup
    @bench/dist.sh

# A container image of it, `haltkick`, with nothing else inside: `podman run --rm --device /dev/kvm haltkick doctor`. Needs podman, buildah or docker.
oci: dist
    @tool=$(command -v podman || command -v buildah || command -v docker) || { echo "just oci: there is no podman, buildah or docker: install one" >&2; exit 4; }; "$tool" build --tag haltkick --file bench/Containerfile target/dist/haltkick-*-x86_64-linux

# Check that a second clone of this commit, in another folder, gives the same bytes as `just dist`: run that before.
dist-twice: setup
    @test -z "$(git status --porcelain)" || { echo "just dist-twice: commit your changes first: the second build is of the last commit" >&2; exit 1; }
    @test -e target/dist/*.sha256 || bench/dist.sh
    rm -rf target/dist-again && git clone --quiet . target/dist-again
    target/dist-again/bench/dist.sh
    cmp target/dist/*.sha256 target/dist-again/target/dist/*.sha256
    rm -rf target/dist-again

# Known vulnerabilities, licences and sources of all dependencies (deny.toml); installs cargo-deny, and fetches the advisories.
deny:
    @cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
    cargo deny check

# PV, test-and-set and three strict queues over overcommit ratios 1 to 32 (`--quick`: PV, test-and-set and the native queue over ratios 1 to 8, under a minute).
bench-overcommit *ARGS: setup
    @{{ haltkick }} bench overcommit {{ ARGS }}

# Any experiment of `haltkick list experiments`, or a file.
bench NAME *ARGS: setup
    @{{ haltkick }} bench {{ NAME }} {{ ARGS }}

# This host's figures next to those that `--engine sim` predicts from what doctor measures before and after them: the worse file first, then null predictors (`--quick`: one block).
bench-predict *ARGS: setup
    rm -rf target/predict && mkdir -p target/predict
    @{{ haltkick }} doctor --write-machine target/predict/before.toml
    @{{ haltkick }} bench predict --output target/predict/real {{ ARGS }} || test $? -eq 7
    @{{ haltkick }} doctor --write-machine target/predict/after.toml
    sed 's/^socket-ns = { value = [0-9.]*/socket-ns = { value = 0/' target/predict/after.toml > target/predict/no-lines.toml
    for machine in before after no-lines; do {{ haltkick }} bench predict --set engine=sim --set machine=target/predict/$machine.toml --output target/predict/$machine {{ ARGS }} || test $? -eq 7; done
    @{{ haltkick }} predict target/predict/real target/predict/before target/predict/after target/predict/no-lines

# Published figures that the model of hosts is to predict, simulated (docs/hosts-acceptance.md): minutes; `--quick`: two seeds.
accept-hosts *ARGS: setup
    @{{ haltkick }} bench bench/acceptance/own-host.toml {{ ARGS }} || test $? -eq 7
    @{{ haltkick }} bench bench/acceptance/preempted-hint.toml {{ ARGS }} || test $? -eq 7
    @{{ haltkick }} bench bench/acceptance/kernel-build.toml {{ ARGS }} || test $? -eq 7
    @{{ haltkick }} bench bench/acceptance/ebizzy.toml {{ ARGS }} || test $? -eq 7

# Cost of the sandbox around guests: an experiment with it, without it, and with it again as a control.
bench-walls *ARGS: setup
    @rm -rf target/walls
    @{{ haltkick }} bench overcommit {{ ARGS }} --output target/walls/with
    @{{ haltkick }} --no-sandbox bench overcommit {{ ARGS }} --output target/walls/without
    @{{ haltkick }} bench overcommit {{ ARGS }} --output target/walls/again
    -@{{ haltkick }} compare target/walls/with target/walls/again
    -@{{ haltkick }} compare target/walls/with target/walls/without

# Put the published figures of the reference studies next to ours, in fifteen minutes (`--quick`: in four, for a first look).
reproduce *ARGS: setup
    @{{ haltkick }} reproduce {{ ARGS }}

# Keep the figures of a results directory that pages quote, in docs/results/NAME (needs jq); `just docs` writes them into the pages.
keep-results DIR NAME: setup
    @bench/scripts/keep-results.sh {{ DIR }} {{ NAME }} {{ haltkick }}

# Write figures, tables and boxes of docs/results into the pages that name them, and the table of figures: `git diff` shows what changed (needs Python).
docs: setup
    cargo run --quiet --package haltkick -- list figures --format json > target/figures.json
    @bench/scripts/docs.py --figures target/figures.json

# Draw the pictures of docs/pictures again (needs Python).
pictures:
    @docs/pictures/draw.py

# Words, pictures and long sentences of each page, turns of phrase in sources, and the totals (needs Python).
prose:
    @bench/scripts/prose.py

# Say what this host can do, and what will spoil a measurement.
doctor: setup
    @{{ haltkick }} doctor

# Counts of the hot path of `--sched vmm`: system calls a slice and a wait (needs KVM and strace), and mutexes, clocks, allocations and time between two slices.
count-calls: setup
    cargo test --package haltkick --test command -- --nocapture calls::
    cargo test --release --package haltkick-vmm --lib -- --nocapture a_slice_boundary

# Everything that CI runs: unit tests, the command, guests on /dev/kvm, QEMU, threads, and on hardware-style KVM.
test: _before-test test-host
    @{{ nested }} --or-skip
    @bench/tests/ran-on.sh

# QEMU is there for all tests then, if it can be; `test-nested` says why if not.
_before-test:
    @rm -f "$HALTKICK_RAN_ON"
    @bench/tests/nested/nested.sh setup || true

# The first tier: unit tests and the locks on host threads, without a guest.
test-unit: setup
    cargo test --workspace --exclude haltkick-guest --lib --bins
    cargo test --package haltkick-locks --package haltkick-mm --package haltkick-grants --package haltkick-vmm --test host --test grants --test rooms --test folding

# Unit tests, the command, guests on /dev/kvm, under QEMU's emulator (skipped with a reason without), on threads.
test-host: setup
    cargo test --workspace --exclude haltkick-guest --no-fail-fast
    cargo test --package haltkick-locks --all-features --doc
    cargo test --package haltkick-locks --all-features --test host -- raw::

# Guests on simulated machines, which need no KVM: every lock on 64 CPUs, and the command with `--engine sim`.
test-simulated: setup
    cargo test --release --package haltkick-sim --package haltkick-vmm --test board --test machine --test simulated
    cargo test --release --package haltkick --test command -- simulated

# Lock objects: examples/locks by this machine's gcc and rustc, on every engine that is here; what is refused, and `haltkick check`.
test-objects: setup
    @gcc --version > /dev/null
    cargo test --package haltkick-vmm --test objects
    cargo test --package haltkick --test command -- objects::

# Build a guest whose code and zeroed data are linked in another order, for `--guest`: does a figure depend on the order?
shuffled-guest SEED="1": setup
    RUSTFLAGS="-Crelocation-model=static -Csymbol-mangling-version=v0 -Cllvm-args=-align-all-functions=6 -Clink-arg=--shuffle-sections=.text*={{ SEED }} -Clink-arg=--shuffle-sections=.bss*={{ SEED }}" cargo build --package haltkick-guest --profile guest --target x86_64-unknown-none --target-dir target/shuffled
    @echo "target/shuffled/x86_64-unknown-none/guest/haltkick-guest"

# Fuzzing guided by coverage needs a nightly toolchain with the guest's target, and cargo-fuzz. Comparisons are not traced: that took
# half of the time, and the seeds know the words.
_fuzzer: setup
    @rustup target list --toolchain nightly --installed | grep -qx x86_64-unknown-none || rustup target add --toolchain nightly x86_64-unknown-none
    @cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
    @HALTKICK_FUZZ_CORPUS={{ justfile_directory() }}/fuzz/corpus HALTKICK_FUZZ_EXECUTIONS=0 cargo test --quiet --package haltkick-vmm --package haltkick-sim --package haltkick --lib -- fuzz_ >/dev/null

# Fuzz one part of the program, guided by coverage (fuzz/corpus has a directory for each); options are libFuzzer's, such as -runs=1000000.
fuzz TARGET *OPTIONS: _fuzzer
    @mkdir -p fuzz/artifacts/{{ TARGET }}
    HALTKICK_FUZZ_TARGET={{ TARGET }} cargo +nightly fuzz run --sanitizer none --no-trace-compares any fuzz/corpus/{{ TARGET }} -- -artifact_prefix=fuzz/artifacts/{{ TARGET }}/ -max_len=4096 -timeout=60 {{ OPTIONS }}

# The same for all parts, or for these, each for MINUTES minutes.
fuzz-all MINUTES="1" *TARGETS: _fuzzer
    @targets="{{ TARGETS }}"; failed=; for target in ${targets:-$(ls fuzz/corpus)}; do just fuzz "$target" -max_total_time=$(({{ MINUTES }} * 60)) || failed="$failed $target"; done; [ -z "$failed" ] || { echo "did not hold:$failed; the inputs are in fuzz/artifacts" >&2; exit 1; }

# One part on EXECUTIONS random inputs from a seed, as in `cargo test`: no nightly toolchain, no coverage.
fuzz-seeds TARGET EXECUTIONS="1000000":
    HALTKICK_FUZZ_EXECUTIONS={{ EXECUTIONS }} cargo test --release --package haltkick-vmm --package haltkick-sim --package haltkick --lib -- fuzz_{{ TARGET }} --nocapture

# Every part for SECONDS seconds on random inputs, as in `cargo test`: what the workflow runs for every change.
fuzz-seconds SECONDS="10": setup
    HALTKICK_FUZZ_SECONDS={{ SECONDS }} cargo test --release --package haltkick-vmm --package haltkick-sim --package haltkick --lib -- fuzz_

# Texts of KIB KiB and of four times as many: time may grow with the length, not with its square.
fuzz-sizes KIB="1024": setup
    HALTKICK_FUZZ_KIB={{ KIB }} cargo test --release --package haltkick-sim --package haltkick --lib -- in_proportion_to_their_length --nocapture

# Let the system calls of the command fail, one in each run, with each error that a host may give. Needs strace.
faults: setup
    cargo build --package haltkick
    bench/scripts/faults.py target/debug/haltkick

# Random locks, ratios, injections, hostile neighbours and kills for HOURS hours; goes on where target/soak.log ends.
soak HOURS="1": setup
    cargo build --release --package haltkick-vmm --example soak
    vmm/examples/soak/soak.sh target/release/examples/soak for {{ HOURS }}

# Faults put into `soak` and `attacks` on purpose, each of which these must report: hangs, leaks, small shares, attacks that end early.
soak-plants: setup
    cargo build --release --package haltkick-vmm --example soak
    vmm/examples/soak/soak.sh target/release/examples/soak plants

# Run an honest guest next to an attacking one, until there are RUNS runs; goes on where target/attacks.log ends.
attacks RUNS="10000": setup
    cargo build --release --package haltkick-vmm --example soak
    vmm/examples/soak/soak.sh target/release/examples/soak attacks {{ RUNS }}

# Tests with guests that have assertions and overflow checks (`just test-host` runs guests as they are measured).
test-checked: setup
    HALTKICK_GUEST_CHECKED=1 cargo test --package haltkick-vmm --target-dir target/checked --test guests --test threads

# The end-to-end tests on hardware-style KVM (nested SVM) inside QEMU's emulator; TEXTS choose by name; --all adds repetitions of others. Installs the Debian packages that it needs.
test-nested *TEXTS: setup
    @{{ nested }} {{ TEXTS }}

# The locks' and the memory manager's tests on emulated AArch64; needs qemu-aarch64 (Debian: qemu-user).
test-aarch64:
    rustup target add aarch64-unknown-linux-musl
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64 \
        cargo test --release --package haltkick-locks --package haltkick-mm --lib --test host --target aarch64-unknown-linux-musl --target-dir target/aarch64

# Sixteen pCPUs on two nodes: tests of schedulers and memory on an emulated host with nested SVM (80 s).
test-many: setup
    @bench/tests/nested/nested.sh setup
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/bench/tests/nested/nested.sh run --smp 16 --nodes 2 --memory 2048" \
        cargo test --package haltkick --test command -- many:: --test-threads 1

# Cost of a preemption at each line of five locks, on four CPUs of a simulated machine: tables, and target/worst.
worst *ARGS: setup
    rm -rf target/worst && mkdir -p target/worst
    @for form in "qspinlock --pv on" "qspinlock-wc --pv on" "mutex" "rwsem" "owner-yield"; do \
        {{ haltkick }} worst --lock $form --machine skylake-8s --cpus 0-3 --ratio 2 --budget 2m --output "target/worst/${form%% *}" {{ ARGS }} || exit; \
        echo; \
    done

# Check that this tree's haltkick prints and writes the same as REV's, on simulated machines (--own-images: each with its own guest image); exit code 1 if not.
same-as REV *OPTIONS: setup
    @bench/scripts/same_as.py {{ REV }} {{ OPTIONS }}

# The locks are for targets without 64-bit atomics, too: one of those.
_narrow-target:
    @rustup target list --installed | grep -qx thumbv7m-none-eabi || rustup target add thumbv7m-none-eabi

# Formatting, lints, documentation, whether the models of the model checkers still compile, and pages against their records (needs Python).
check: setup _narrow-target
    cargo fmt --all --check
    cargo clippy --workspace --exclude haltkick-guest --all-targets -- -D warnings
    cargo clippy --package haltkick-locks --all-targets --all-features -- -D warnings
    cargo clippy --package haltkick-guest --target x86_64-unknown-none -- -D warnings
    cargo check --package haltkick-locks --target thumbv7m-none-eabi
    guest/mutants.sh --check
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --exclude haltkick-guest --features haltkick-locks/lock_api --no-deps --quiet
    RUSTFLAGS="--cfg loom" cargo clippy --package haltkick-locks --package haltkick-mm --package haltkick-grants --target-dir target/loom --test loom -- -D warnings
    RUSTFLAGS="--cfg shuttle" cargo clippy --package haltkick-locks --package haltkick-mm --package haltkick-grants --target-dir target/shuttle --test shuttle -- -D warnings
    RUSTFLAGS="--cfg liveness" cargo clippy --package haltkick-locks --target-dir target/liveness --test liveness -- -D warnings
    bench/scripts/test_docs.py
    bench/scripts/docs.py --check

# The locks under the model checkers (loom: memory order; shuttle: lost wake-ups with more CPUs; all states: progress and overtaking), the page faults, the grant tables.
model:
    RUSTFLAGS="--cfg loom" cargo test --release --package haltkick-locks --target-dir target/loom --test loom
    RUSTFLAGS="--cfg shuttle" cargo test --release --package haltkick-locks --target-dir target/shuttle --test shuttle
    RUSTFLAGS="--cfg loom" cargo test --release --package haltkick-mm --target-dir target/loom --test loom
    RUSTFLAGS="--cfg shuttle" cargo test --release --package haltkick-mm --target-dir target/shuttle --test shuttle
    RUSTFLAGS="--cfg loom" cargo test --release --package haltkick-grants --target-dir target/loom --test loom
    RUSTFLAGS="--cfg shuttle" cargo test --release --package haltkick-grants --target-dir target/shuttle --test shuttle
    RUSTFLAGS="--cfg liveness" cargo test --release --package haltkick-locks --target-dir target/liveness --test liveness

# The search of all states, further than in `just model`: minutes of CPU time, and some gigabytes. Prints what it finds.
model-deeper STATES="60000000":
    LIVENESS_DEEPER=1 LIVENESS_MOST={{ STATES }} RUSTFLAGS="--cfg liveness" cargo test --release --package haltkick-locks --target-dir target/liveness --test liveness -- --nocapture --test-threads 1

# Compare the interpreter with this CPU: every instruction form of the guest image in a million random states.
prove-sim STATES="1000000": setup
    HALTKICK_PROVE_STATES={{ STATES }} cargo test --release --package haltkick-sim --test prove -- --nocapture

# How long this host takes to simulate 80 and 512 pCPUs for a millisecond, by what they do (or only rows whose names contain TEXT).
bench-sim TEXT="": setup
    cargo run --release --package haltkick-vmm --example simulated -- "{{ TEXT }}"

# Millions of guest instructions a second that one simulated CPU executes on one core of this host.
bench-sim-cpu: setup
    cargo run --release --package haltkick-sim --example mips

# (Grant tables and some address spaces are never taken down, so what they lie in counts as a leak. Documentation examples and the
# model checkers' tests have nothing for Miri.)
# The tests of the locks, the memory manager and the grant tables under Miri, once for each seed (needs a nightly toolchain; adds miri to it).
miri SEEDS="0..4":
    @rustup component list --toolchain nightly --installed | grep -q ^miri || rustup component add --toolchain nightly miri rust-src
    MIRIFLAGS="-Zmiri-many-seeds={{ SEEDS }}" cargo +nightly miri test --package haltkick-locks --features lock_api --target-dir target/miri --lib --test host
    MIRIFLAGS="-Zmiri-ignore-leaks -Zmiri-many-seeds={{ SEEDS }}" cargo +nightly miri test --package haltkick-mm --target-dir target/miri --test host
    MIRIFLAGS="-Zmiri-ignore-leaks -Zmiri-many-seeds={{ SEEDS }}" cargo +nightly miri test --package haltkick-grants --target-dir target/miri --test grants

# 100 million operations on grant tables by host threads, next to a hostile granter; the order of all locks is checked.
stress-grant OPERATIONS="100000000":
    GRANT_OPERATIONS={{ OPERATIONS }} CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true cargo test --release \
        --package haltkick-grants --target-dir target/stress --test grants everything_comes_home -- --nocapture

# Whether KVM ranks the named points of the paravirtual qspinlock as the simulated machine does: about 12 minutes on two quiet CPUs (`--quick`: 2).
worst-order *ARGS: build
    mkdir -p target/worst-order && rm -f target/worst-order/here.toml
    @{{ haltkick }} doctor --write-machine target/worst-order/here.toml
    bench/scripts/worst_order.py target/release/haltkick --machine target/worst-order/here.toml {{ ARGS }}

# Faults put into locks that `haltkick worst --find-bugs` must find by itself, and sound code at which it must stay silent.
worst-mutants *NAMES: build
    guest/worst-mutants.sh {{ NAMES }}

# A search for a preemption that breaks a lock, in every form of the built-in locks (or of LOCKS): BUDGET for each, which must find nothing.
worst-bugs BUDGET="1m" *LOCKS: build
    bench/scripts/worst_bugs.py target/release/haltkick --budget {{ BUDGET }} {{ LOCKS }}

# One fault at a time in the locks, the memory manager and the grant tables: each must be caught by the test that guards its line.
mutants *NAMES:
    guest/mutants.sh {{ NAMES }}

# Every instruction of the lock objects deleted, one at a time (`--cpu 40`: on vCPU 40 alone): `haltkick check` must find each that matters. Needs gcc and Python.
mutants-objects *ARGS: build
    @bench/scripts/mutants_objects.py {{ ARGS }}

# What the house weighs: lines of Rust by room, files, crates, commands, settings, words. Whoever changes much says it before and after.
weigh:
    @bench/scripts/weigh.sh
