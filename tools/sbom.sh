#!/bin/sh
# Writes FOLDER/headgate.cdx.json: the distributions that the wheel in FOLDER brings, with the extra `grpc`,
# as in the image. Usage: tools/sbom.sh BIN FOLDER, in the root of the repository; BIN has python and
# cyclonedx-py.
set -eu

bin=$1
folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bin/python" -m venv "$work/venv"
sh tools/install.sh "$work/venv" constraints.txt "$(echo "$folder"/headgate-*.whl)" grpc
# What only installs is not part of it.
"$work/venv/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check setuptools pip
"$bin/cyclonedx-py" environment --of JSON --output-reproducible --pyproject pyproject.toml \
    --mc-type application --output-file "$folder/headgate.cdx.json" "$work/venv/bin/python"
echo "sbom: $folder/headgate.cdx.json"
