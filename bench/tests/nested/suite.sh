#!/usr/bin/env bash
# The end-to-end tests on KVM with hardware semantics (see nested.sh). Where that cannot be set up, says why and
# passes nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../../.."

"$here/nested.sh" setup || {
    code=$?
    ((code == 4)) || exit "$code"
    echo "test-nested: skipped, not tested: see the line above"
    exit 0
}
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$here/nested.sh run --timeout 900"
exec cargo test --package haltkick-vmm --test guests
