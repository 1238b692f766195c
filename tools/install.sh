#!/bin/sh
# Installs Headgate into the environment VENV: every file has a hash that CONSTRAINTS names, and nothing
# that pip builds fetches anything. Usage: install.sh VENV CONSTRAINTS WHAT [EXTRA,...]. WHAT is a wheel, or
# a checkout, which is installed to be edited.
set -eu

python=$1/bin/python
constraints=$2
what=$3
extras=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

install() {
    "$python" -m pip install --quiet --disable-pip-version-check --no-input "$@"
}

# An older pip knows no hashes in constraints; setuptools builds what comes without a wheel.
sed -n '/^\(pip\|setuptools\)==/,/[^\\]$/p' "$constraints" >"$work/first"
install --require-hashes --requirement "$work/first"

if [ -d "$what" ]; then
    "$python" - "$what/pyproject.toml" "$extras" >"$work/wanted" <<'EOF'
import sys, tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = [project["optional-dependencies"][name] for name in sys.argv[2].split(",") if name]
print("\n".join(sum(extras, project["dependencies"])))
EOF
else
    where=$("$python" -c 'import pathlib, sys; print(pathlib.Path(sys.argv[1]).resolve().as_uri())' "$what")
    hash=$(sha256sum "$what" | cut -c -64)
    name=$(basename "$what" | cut -d - -f 1)
    echo "$name${extras:+[$extras]} @ $where --hash=sha256:$hash" >"$work/wanted"
fi
install --require-hashes --no-build-isolation --use-pep517 \
    --constraint "$constraints" --requirement "$work/wanted"
if [ -d "$what" ]; then
    install --no-deps --no-build-isolation --use-pep517 --editable "$what"
fi
