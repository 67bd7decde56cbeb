# Haltkick: a lab for locks on overcommitted virtual CPUs. `just` lists the recipes.

haltkick := "cargo run --release --package haltkick --"
nested := "cargo run --quiet --package haltkick --example nested --"
# The file in which tests note on which hosts and engines they ran.
export HALTKICK_RAN_ON := justfile_directory() / "target/ran-on"

# Recipes for maintainers; without a name, their list.
mod maintain 'maintain.just'

# List the recipes.
default:
    @just --list --unsorted

# Add the guest's target, where rustup has not added it by rust-toolchain.toml.
setup:
    @rustup target list --installed | grep -qx x86_64-unknown-none || rustup target add x86_64-unknown-none

# Build the `haltkick` command with the guest inside.
build: setup
    cargo build --release --package haltkick

# An initial RAM disk for Linux guests, target/linux-guest/initrd.cpio: four loops that print figures, and static PROGRAMS of your own (docs/linux-guest.md). Needs a C compiler.
linux-initrd *PROGRAMS:
    @bench/linux-guest/initrd.sh target/linux-guest/initrd.cpio {{ PROGRAMS }}

# An archive to give away, target/dist/*.tar.gz: a static haltkick, man pages, completions, licences, checksum. Needs Python.
dist: setup
    @bench/dist.sh

# A container image of it, `haltkick`, with nothing else inside: `podman run --rm --device /dev/kvm haltkick doctor`. Needs podman, buildah or docker.
oci: dist
    @tool=$(command -v podman || command -v buildah || command -v docker) || { echo "just oci: there is no podman, buildah or docker: install one" >&2; exit 4; }; "$tool" build --tag haltkick --file bench/Containerfile target/dist/haltkick-*-x86_64-linux

# PV, test-and-set and three strict queues over overcommit ratios 1 to 32 (`--quick`: PV, test-and-set and the native queue over ratios 1 to 8, under a minute).
bench-overcommit *ARGS: setup
    @{{ haltkick }} bench overcommit {{ ARGS }}

# Any experiment of `haltkick list experiments`, or a file.
bench NAME *ARGS: setup
    @{{ haltkick }} bench {{ NAME }} {{ ARGS }}

# This host's figures next to those that `--engine sim` predicts from what doctor measures before and after them: the worse file first, then null predictors (`--quick`: one block). Needs Python.
bench-predict *ARGS: setup
    rm -rf target/predict && mkdir -p target/predict
    @{{ haltkick }} doctor --write-machine target/predict/before.toml
    @{{ haltkick }} bench bench/scripts/predict.toml --output target/predict/real {{ ARGS }} || test $? -eq 7
    @{{ haltkick }} doctor --write-machine target/predict/after.toml
    sed 's/^socket-ns = { value = [0-9.]*/socket-ns = { value = 0/' target/predict/after.toml > target/predict/no-lines.toml
    for machine in before after no-lines; do {{ haltkick }} bench bench/scripts/predict.toml --set engine=sim --set machine=target/predict/$machine.toml --output target/predict/$machine {{ ARGS }} || test $? -eq 7; done
    @bench/scripts/predict.py target/predict/real target/predict/before target/predict/after target/predict/no-lines

# Put the published figures of the reference studies next to ours, in fifteen minutes (`--quick`: in four, for a first look).
reproduce *ARGS: setup
    @{{ haltkick }} reproduce {{ ARGS }}

# Write figures, tables and boxes of docs/results into the pages that name them: `git diff` shows what changed (needs Python).
docs:
    @bench/scripts/docs.py

# Say what this host can do, and what will spoil a measurement.
doctor: setup
    @{{ haltkick }} doctor

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
    cargo test --package haltkick-locks --package haltkick-mm --package haltkick-grants --package haltkick-vmm --test host --test grants --test rooms --test guest_parts

# Unit tests, the command, guests on /dev/kvm, under QEMU's emulator (skipped with a reason without), on threads.
test-host: setup
    cargo test --workspace --exclude haltkick-guest --no-fail-fast
    cargo test --package haltkick-locks --all-features --doc

# Guests on simulated machines, which need no KVM: every lock on 64 CPUs, and the command with `--engine sim`.
test-simulated: setup
    cargo test --release --package haltkick-sim --package haltkick-vmm --test board --test simulated
    cargo test --release --package haltkick --test command -- simulated

# Build a guest whose code and zeroed data are linked in another order, for `--guest`: does a figure depend on the order?
shuffled-guest SEED="1": setup
    RUSTFLAGS="-Crelocation-model=static -Csymbol-mangling-version=v0 -Cllvm-args=-align-all-functions=6 -Clink-arg=--shuffle-sections=.text*={{ SEED }} -Clink-arg=--shuffle-sections=.bss*={{ SEED }}" cargo build --package haltkick-guest --profile guest --target x86_64-unknown-none --target-dir target/shuffled
    @echo "target/shuffled/x86_64-unknown-none/guest/haltkick-guest"

# The end-to-end tests on hardware-style KVM (nested SVM) inside QEMU's emulator; TEXTS choose by name; --all adds repetitions of others. Installs the Debian packages that it needs.
test-nested *TEXTS: setup
    @{{ nested }} {{ TEXTS }}

# Cost of a preemption at each line of five locks, on four CPUs of a simulated machine: tables, and target/worst.
worst *ARGS: setup
    rm -rf target/worst && mkdir -p target/worst
    @for form in "qspinlock --pv on" "qspinlock-wc --pv on" "mutex" "rwsem" "owner-yield"; do \
        {{ haltkick }} worst --lock $form --machine skylake-8s --cpus 0-3 --ratio 2 --budget 2m --output "target/worst/${form%% *}" {{ ARGS }} || exit; \
        echo; \
    done

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
    bench/scripts/test_predict.py
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

# One fault at a time in the locks, the memory manager and the grant tables: each must be caught by the test that guards its line.
mutants *NAMES:
    guest/mutants.sh {{ NAMES }}
