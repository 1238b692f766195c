#!/bin/sh
# Rewrites constraints.txt, below its heading, with the versions in the environment of PYTHON.
# Usage: tools/constraints.sh PYTHON, in the root of the repository.
set -eu

python=$1
new=constraints.txt.new
trap 'rm -f "$new"' EXIT

grep '^#' constraints.txt >"$new"
"$python" -m pip freeze --disable-pip-version-check --exclude-editable | LC_ALL=C sort -f >>"$new"
mv "$new" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"
