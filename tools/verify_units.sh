#!/bin/sh
# Checks systemd/: the units load without any warning, and their exposure is at most 2.0.
# Usage: tools/verify_units.sh [FOLDER]. Needs systemd-analyze, but no running systemd.
set -eu

folder=${1:-systemd}
command -v systemd-analyze >/dev/null || {
    echo "verify-units: systemd-analyze is not installed (on Debian: apt install systemd)" >&2
    exit 1
}
# `verify` only warns about an unknown setting, which would have no effect; we refuse it.
if ! said=$(systemd-analyze verify --man=no "$folder"/*.service "$folder"/*.timer 2>&1) ||
    echo "$said" | grep -q headgate; then
    echo "$said" >&2
    exit 1
fi
for unit in "$folder"/*.service; do
    said=$(systemd-analyze security --offline=true --threshold=20 --no-pager "$unit") || {
        echo "$said" >&2
        exit 1
    }
    echo "$said" | grep 'Overall exposure'
done
