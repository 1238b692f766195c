#!/bin/sh
# Builds the wheel of the Python client into FOLDER. Usage: tools/client_dist.sh PYTHON FOLDER, in the
# root of the repository. As tools/dist.sh, it fetches nothing and builds from a copy.
set -eu

python=$1
folder=$2
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

(cd clients/python && cp -R pyproject.toml README.md LICENSE headgate "$copy")
find "$copy" -name __pycache__ -type d -prune -exec rm -rf {} +
mkdir -p "$folder"
rm -f "$folder"/headgate_client-*.whl
"$python" -m pip wheel --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation \
    --wheel-dir "$folder" "$copy"
echo "client: $(ls "$folder"/headgate_client-*.whl)"
