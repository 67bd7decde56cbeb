#!/usr/bin/env bash
# Runs programs, such as the end-to-end tests, against a KVM with hardware semantics (AMD SVM with nested
# paging) on any x86-64 Linux host: Debian's kernel boots inside QEMU's emulator. The host's /dev/kvm is
# never used. Behaviour is that of hardware; times mean nothing. Known exceptions of QEMU 7.2: port I/O in
# ring 3 by the I/O bitmap of a task marked busy faults (IOPL 3 works), and there is no PAUSE filter.
#
#   nested.sh setup        install what is missing (Debian packages; the kernel is unpacked into target/)
#   nested.sh available    exit 0 if `run` can work here, else say why in one line and exit 4
#   nested.sh run [OPTION...] PROGRAM [ARG...] [-- PROGRAM [ARG...]]...
#       --smp N               CPUs of the machine (2)
#       --nodes N             its NUMA nodes, a socket each, which share CPUs and memory evenly (1)
#       --emulator THREADS    one thread for all of them (single), or one each (multi) (single; see below)
#       --memory MB           its memory, which also holds the programs (1024)
#       --timeout SECONDS     for everything, boot included (600)
#       --modparam M.P=V      a parameter for a module, as in --modparam kvm_amd.npt=0; repeatable
#       --file SRC[:DST]      copy a file or directory too, to DST or to its own absolute path; repeatable
#       --kernel-log FILE     keep the log of the machine's kernel
#
# QEMU 7.2 now and then leaves a CPU standing inside a nested guest until another CPU interrupts it. With one thread for all
# CPUs that is over within seconds, and costs a test at most; with a thread each it may never be, and the machine hangs.
# Where nested guests wake each other by interrupts the former happens so often that the latter is better.
#
# Programs run one after the other as root, each at its own absolute path with the shared libraries that it
# needs, in the caller's working directory (created empty). Variables HALTKICK_*, RUST_*,
# CARGO_BIN_EXE_* and CARGO_MANIFEST_DIR are passed on and HALTKICK_NESTED=1 is added. What programs write,
# to stdout or stderr, goes to stdout; they see no terminal.
#
# Exit code: 0 if all programs succeeded, else that of the first that failed (128 + N: killed by signal N);
# 2 usage, 4 something is missing here, 124 timeout, 125 the machine died or never came up.
#
# It fits cargo, which names the package's own commands in CARGO_BIN_EXE_*; those are copied too:
# CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/bench/tests/nested/nested.sh run"
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-$here/../../../target}")/nested
kernel=$cache/kernel
kernel_package=linux-image-cloud-amd64

say() { echo "nested.sh: $*" >&2; }
usage() { say "$*; see the head of $0"; exit 2; }
lacking() { say "$*"; exit 4; }

# --- setup, available -------------------------------------------------------------------------------------

missing_packages() {
    command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    # Only the static busybox can run alone in an initramfs.
    if ! busybox=$(command -v busybox) || ldd "$busybox" >/dev/null 2>&1; then echo busybox-static; fi
}

available() {
    [[ $(uname -sm) == "Linux x86_64" ]] || lacking "needs x86-64 Linux, this is $(uname -sm)"
    local missing
    missing=$(missing_packages | xargs)
    [[ -z $missing ]] || lacking "missing: $missing; get it with 'apt-get install $missing' or '$0 setup' as root"
    [[ -e $kernel/modules ]] || lacking "no kernel unpacked yet; get it with '$0 setup' (needs apt and a network)"
}

setup() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    if (available 2>/dev/null); then return; fi
    [[ $(uname -sm) == "Linux x86_64" ]] || available

    local missing
    missing=$(missing_packages | xargs)
    local get_by_hand="get these Debian packages by hand: $missing $kernel_package"
    command -v apt-get >/dev/null || lacking "no apt-get here; $get_by_hand"
    if [[ -n $missing ]]; then
        [[ $EUID == 0 ]] || lacking "not root; run 'apt-get install $missing' as root, then '$0 setup' again"
        # shellcheck disable=SC2086  # a list of words
        { quiet_apt_get update && quiet_apt_get install --yes --no-install-recommends $missing; } ||
            lacking "apt-get could not install $missing (no network? see $cache/apt.log)"
    fi
    [[ -e $kernel/modules ]] || fetch_kernel
}

quiet_apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o APT::Sandbox::User= "$@" \
        </dev/null >"$cache/apt.log" 2>&1 9>&-
}

# Leaves vmlinuz, kvm-amd.ko with what it depends on, and `modules`: their names in the order to load them.
fetch_kernel() {
    local work=$cache/unpack package
    rm -rf "$work" "$kernel"
    mkdir -p "$work/kernel"
    # The package of that name is empty and depends on the real one, which has the version in its name.
    real_package() { apt-cache depends "$kernel_package" 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }'; }
    package=$(real_package)
    if [[ -z $package && $EUID == 0 ]]; then
        quiet_apt_get update || true
        package=$(real_package)
    fi
    [[ -n $package ]] || lacking "apt knows no $kernel_package; run 'apt-get update' as root (Debian has it)"
    # An old package list names a version that the archive no longer has.
    (cd "$work" && { quiet_apt_get download "$package" ||
        { [[ $EUID == 0 ]] && quiet_apt_get update && quiet_apt_get download "$(real_package)"; }; }) ||
        lacking "cannot download $package (no network, or 'apt-get update' as root due? see $cache/apt.log)"
    dpkg-deb --extract "$work"/*.deb "$work"
    cp "$work"/boot/vmlinuz-* "$work/kernel/vmlinuz"
    add_module kvm-amd "$work" >"$work/kernel/modules"
    mv -T "$work/kernel" "$kernel"
    rm -rf "$work"
    say "unpacked the kernel of $package"
}

# add_module NAME UNPACKED: copies a module and prints its name, after all that it depends on.
add_module() {
    local name=$1 work=$2 found dependency
    if [[ -e $work/kernel/$name.ko ]]; then return; fi
    found=$(find "$work" -path "*/modules/*/$name.ko*" -print -quit)
    case $found in
        *.ko) cp "$found" "$work/kernel/$name.ko" ;;
        *.ko.xz) busybox xzcat "$found" >"$work/kernel/$name.ko" ;;
        *) lacking "$kernel_package has no module $name that this script can unpack" ;;
    esac
    for dependency in $(tr '\0' '\n' <"$work/kernel/$name.ko" | sed -n 's/^depends=//p' | tr ',_' ' -'); do
        add_module "$dependency" "$work"
    done
    echo "$name"
}

# --- run --------------------------------------------------------------------------------------------------

run() {
    local smp=2 nodes=1 emulator=single memory=1024 timeout=600 kernel_log=
    local modparams=() files=()
    while [[ ${1-} == -* ]]; do
        [[ $1 != -- ]] || { shift; break; }
        (($# >= 2)) || usage "$1 needs a value"
        case $1 in
            --smp) smp=$2 ;;
            --nodes) nodes=$2 ;;
            --emulator) emulator=$2 ;;
            --memory) memory=$2 ;;
            --timeout) timeout=$2 ;;
            --modparam) modparams+=("$2") ;;
            --file) files+=("$2") ;;
            --kernel-log) kernel_log=$2 ;;
            *) usage "unknown option $1" ;;
        esac
        shift 2
    done
    local number
    for number in "$smp" "$nodes" "$memory" "$timeout"; do
        [[ $number =~ ^[1-9][0-9]*$ ]] || usage "'$number' is no positive number"
    done
    ((smp % nodes == 0 && memory % nodes == 0)) || usage "$smp CPUs and $memory MB cannot be shared by $nodes nodes"
    [[ $emulator == single || $emulator == multi ]] || usage "--emulator is single or multi, not '$emulator'"
    (($# >= 1)) || usage "which program?"
    available

    # What a run that was killed left behind.
    find "$cache" -maxdepth 1 -name 'run.*' -mmin +1440 -exec rm -rf {} +

    # Not local: the trap runs after this function is gone.
    work=$(mktemp -d "$cache/run.XXXXXX")
    qemu=
    trap 'if [[ -n $qemu ]]; then kill "$qemu" 2>/dev/null && wait "$qemu" || true; fi; rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    mkdir "$work/root"
    pack "$work/root" "$@"
    (cd "$work/root" && find . | busybox cpio -o -H newc -R 0:0 2>/dev/null) >"$work/initramfs"

    local topology=() node
    for ((node = 0; node < nodes && nodes > 1; node++)); do
        topology+=(-object "memory-backend-ram,id=node$node,size=$((memory / nodes))M")
        topology+=(-numa "node,nodeid=$node,memdev=node$node,cpus=$((node * smp / nodes))-$(((node + 1) * smp / nodes - 1))")
    done

    # Serial ports, in this order: the kernel's console, what the programs print, one line per exit code.
    # tsc=reliable: the emulated TSC is good, but the kernel cannot know and would use a slow clock.
    # no_timer_check: on a busy host the timer would seem to be broken.
    timeout --kill-after=5 "$timeout" qemu-system-x86_64 \
        -accel tcg,thread="$emulator" -cpu max,+svm -smp "$smp,sockets=$nodes" -m "$memory" "${topology[@]}" \
        -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$kernel/vmlinuz" -initrd "$work/initramfs" \
        -append "console=ttyS0 loglevel=4 panic=-1 oops=panic tsc=reliable no_timer_check \
            mitigations=off cryptomgr.notests" \
        -serial "file:$work/kernel.log" -serial stdio -serial "file:$work/codes" </dev/null &
    qemu=$!
    local code=0
    wait "$qemu" || code=$?
    qemu=
    verdict "$code"
}

# pack ROOT PROGRAM...: fills the root directory of the machine. Uses the variables of `run`.
pack() {
    local root=$1 module modparam name file
    shift
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,root,nested} "$root$PWD"
    chmod 1777 "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    cp "$here/init" "$root/init"
    chmod 755 "$root/init"
    for file in "${files[@]}"; do
        if [[ $file == *:* ]]; then place "${file%%:*}" "${file#*:}"; else place "$file" "$(absolute "$file")"; fi
    done

    # What `init` sources: first the modules, then the environment, then the programs.
    exec 3>"$root/nested/job"
    for modparam in "${modparams[@]}"; do
        name=${modparam%%.*}
        grep -qx "${name//_/-}" "$kernel/modules" || usage "no module $name here, only $(xargs <"$kernel/modules")"
    done
    while read -r module; do
        cp "$kernel/$module.ko" "$root/nested/"
        local parameters=()
        for modparam in "${modparams[@]}"; do
            name=${modparam%%.*}
            if [[ ${name//_/-} == "$module" ]]; then parameters+=("${modparam#"$name".}"); fi
        done
        quote insmod "/nested/$module.ko" "${parameters[@]}" >&3
    done <"$kernel/modules"
    while read -r name; do
        case $name in
            HALTKICK_* | RUST_* | CARGO_BIN_EXE_* | CARGO_MANIFEST_DIR | LD_LIBRARY_PATH)
                quote export "$name=${!name}" >&3
                ;;
        esac
        if [[ $name == CARGO_BIN_EXE_* ]]; then place "${!name}" "${!name}"; fi
    done < <(compgen -e)
    quote cd "$PWD" >&3

    local command=()
    for word in "$@" --; do
        if [[ $word != -- ]]; then
            command+=("$word")
        elif ((${#command[@]})); then
            [[ -f ${command[0]} && -x ${command[0]} ]] || usage "${command[0]} is no program"
            command[0]=$(absolute "${command[0]}")
            place "${command[0]}" "${command[0]}"
            quote run "${command[@]}" >&3
            command=()
        fi
    done
    exec 3>&-
}

# place SRC DST: copies into the machine, with the shared libraries if it is a program.
place() {
    local source=$1 destination=$2 libraries library
    [[ -e $source ]] || usage "$source: no such file"
    [[ $destination == /* ]] || usage "$destination is no absolute path"
    mkdir -p "$root$(dirname "$destination")"
    cp -rLT "$source" "$root$destination"
    [[ -f $source && -x $source ]] || return 0
    libraries=$(ldd "$source" 2>/dev/null) || return 0 # static, or a script
    if [[ $libraries == *"not found"* ]]; then usage "$source: ${libraries%%not found*}not found"; fi
    while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done < <(sed -nE 's|^[^/]*(/[^ ]+).*|\1|p' <<<"$libraries")
}

absolute() { realpath --no-symlinks "$1"; }

# Prints a command so that any shell reads the same words.
quote() {
    local word
    for word in "$@"; do printf "'%s' " "${word//\'/\'\\\'\'}"; done
    echo
}

# verdict CODE: CODE is what QEMU (or `timeout`) ended with; exits with what the programs ended with.
verdict() {
    local codes code
    touch "$work/codes" "$work/kernel.log" # QEMU may have failed before it made them
    if [[ -n $kernel_log ]]; then cp "$work/kernel.log" "$kernel_log"; fi
    mapfile -t codes <"$work/codes"
    if [[ "${codes[*]}" == *end ]]; then
        for code in "${codes[@]}"; do
            if [[ $code != end && $code != 0 ]]; then exit "$code"; fi
        done
        exit 0
    fi
    if [[ -s $work/kernel.log ]]; then
        say "the last lines of the kernel:"
        tail -n 60 "$work/kernel.log" | tr -d '\r' >&2
    fi
    local finished="programs that had ended: ${#codes[@]}"
    case $1 in
        124 | 137) say "no end within $timeout s ($finished)"; exit 124 ;;
        *) say "the machine died ($finished, QEMU's exit code $1)"; exit 125 ;;
    esac
}

case ${1-} in
    setup | available) (($# == 1)) || usage "$1 takes no argument"; "$1" ;;
    run) shift; run "$@" ;;
    *) usage "setup, available or run?" ;;
esac
