#!/bin/sh
# The kernel's own quota (cpu.max) of two pCPUs: quota-host.toml in a control group for each quota, and without one. As root, with systemd.
#   examples/experiments/quota-host.sh target/release/haltkick RESULTS [--quick]
set -eu
haltkick=$1 results=$2
shift 2
here=$(dirname "$0")
"$haltkick" bench "$here/quota-host.toml" --set quota=none --output "$results/none" "$@" || [ $? = 7 ]
for quota in 100:10ms 160:10ms 160:50ms; do
    percent=${quota%:*} period=${quota#*:}
    systemd-run --quiet --scope -p "CPUQuota=$percent%" -p "CPUQuotaPeriodSec=$period" \
        "$haltkick" bench "$here/quota-host.toml" --output "$results/$percent-$period" "$@" || [ $? = 7 ]
done
