#!/bin/sh
# Rewrites constraints.txt, below its heading, with the versions in the environment of PYTHON and the
# hashes of all their files. Usage: tools/constraints.sh PYTHON, in the root of the repository.
set -eu

python=$1
new=constraints.txt.new
installed=$(mktemp)
trap 'rm -f "$new" "$installed"' EXIT

"$python" -m pip freeze --all --disable-pip-version-check --exclude-editable >"$installed"
grep '^#' constraints.txt >"$new"
# For all platforms and all Pythons from the oldest one, whatever this machine has.
printf 'pip\nsetuptools\n' | "$python" -m uv pip compile --quiet --no-config --universal --python-version 3.11 \
    --all-extras --constraint "$installed" --generate-hashes --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links pyproject.toml - >>"$new"
mv "$new" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"
