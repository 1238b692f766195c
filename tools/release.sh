#!/bin/sh
# Writes FOLDER/headgate-image.tar, what `docker build - < FOLDER/headgate-image.tar` needs, and
# FOLDER/SHA256SUMS of all that a release has. Usage: tools/release.sh FOLDER, in the root of the
# repository, after `make dist client spark-archive sbom`. It refuses a checkout with changes.
set -eu

folder=$1
changed=$(git status --porcelain)
if [ -n "$changed" ]; then
    echo "release: commit these changes first, a release is built from a commit:" >&2
    echo "$changed" >&2
    exit 1
fi
wheel=$(basename "$folder"/headgate-*.whl)
version=$(echo "$wheel" | cut -d - -f 2)
if ! grep -q "^## \[$version\]" CHANGELOG.md; then
    echo "release: CHANGELOG.md has no section [$version]: rename [Unreleased] when you tag v$version"
fi
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir -p "$context/dist" "$context/tools"
cp Dockerfile constraints.txt "$context"
cp tools/install.sh "$context/tools"
cp "$folder/$wheel" "$context/dist"
tar -C "$context" --sort=name --owner=0 --group=0 --mtime=@0 -cf "$folder/headgate-image.tar" .
cd "$folder"
sha256sum headgate-*.whl headgate_client-*.whl headgate-spark.zip headgate.cdx.json headgate-image.tar \
    >SHA256SUMS
echo "release: $version in $folder:"
cat SHA256SUMS
