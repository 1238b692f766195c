#!/bin/sh
# How long a stranger waits: from the wheel in FOLDER to the first record that is read back, without
# Spark. Prints the seconds of each step, and leaves nothing.
#
#   sh tools/first_record.sh PYTHON FOLDER
set -eu
python=$1
wheel=$(echo "$2"/headgate-*.whl)
here=$(dirname "$0")
work=$(mktemp -d)
daemon=
finish() {
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" || true
    fi
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM

seconds() { # since the nanosecond $1
    awk -v from="$1" -v to="$(date +%s%N)" 'BEGIN { printf "%.1f", (to - from) / 1e9 }'
}
begin=$(date +%s%N)
last=$begin
step() {
    printf '%6s s  %s\n' "$(seconds "$last")" "$1"
    last=$(date +%s%N)
}

"$python" -m venv "$work/venv"
step 'a virtual environment'
sh "$here/install.sh" "$work/venv" "$here/../constraints.txt" "$wheel" >"$work/pip"
step 'pip install'
headgate="$work/venv/bin/headgate"
"$headgate" serve --data "$work/data" --listen 127.0.0.1:0 2>"$work/log" &
daemon=$!
url=
while [ -z "$url" ]; do
    if ! kill -0 "$daemon" 2>/dev/null; then
        cat "$work/log" >&2
        exit 1
    fi
    sleep 0.05
    url=$(sed -n 's/.* ready on \(http:[^ ]*\) .*/\1/p' "$work/log")
done
step 'headgate serve, until it is ready'
curl --silent --show-error --fail -H 'Content-Type: application/json' "$url/v0/topics/orders" \
    -d '{"records": [{"key": "A-1", "data": {"status": "placed"}}]}' >"$work/answer"
step 'curl: a record is durable'
HEADGATE_URL=$url "$headgate" read orders >"$work/read"
step 'headgate read'
[ "$(cat "$work/read")" = '{"status": "placed"}' ]
printf '%6s s  from the wheel to the first record read back\n' "$(seconds "$begin")"
