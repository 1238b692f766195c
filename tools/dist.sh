#!/bin/sh
# Builds the wheel into FOLDER. Usage: tools/dist.sh PYTHON FOLDER, in the root of the repository.
#
# It builds with the setuptools that `make setup` installed, and fetches nothing. It builds from a copy of
# the files that belong in the wheel, so that no other file of the checkout gets in.
set -eu

python=$1
folder=$2
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

cp -R pyproject.toml setup.py README.md LICENSE headgate_server cli.py ledger shards uploader delivery compaction daemon commands \
    "$copy"
find "$copy" -name __pycache__ -type d -prune -exec rm -rf {} +
mkdir -p "$folder"
rm -f "$folder"/headgate-*.whl
"$python" -m pip wheel --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation \
    --wheel-dir "$folder" "$copy"
echo "dist: $(ls "$folder"/headgate-*.whl)"
