#!/bin/sh
# Installs a project's dependencies in one sandbox, and runs its tests in a second one. In the project:
#
#     INDEX=index.example FILES=files.example PIP_INDEX_URL=https://index.example/simple/ sh contained.sh DIRECTORY
#
# INDEX and FILES are all that the installation may connect to: the package index, and the host of its files.
# DIRECTORY must not be there yet, nor lie in the project. It gets source/, packages/ and audit/. Further arguments are
# pytest's.
set -eu
: "${INDEX:?}" "${FILES:?}" "${PIP_INDEX_URL:?}" "${1:?which directory?}"
if [ -e "$1" ]; then
    echo "contained.sh: $1 is there already: remove it, or name another directory" >&2
    exit 2
fi

mkdir -m 700 "$1" "$1/audit" "$1/packages" "$1/source"
job=$(cd "$1" && pwd -P)
shift
# What git tracks, and nothing that merely lies there: no .env, no credentials of other steps.
git ls-files -z --recurse-submodules >"$job/files"
tar --null -T "$job/files" -cf - | tar -xf - -C "$job/source"

# Packages run code of their own while they are built. It sees the source, and can change nothing but packages/.
nsbox run --audit "$job/audit/install.jsonl" -w "$job/packages" --read "$job/source" \
    --allow-net "$INDEX" --allow-net "$FILES" --env PIP_INDEX_URL \
    -c 'python3 -m venv venv && venv/bin/pip install -r ../source/requirements.txt'

nsbox run --audit "$job/audit/tests.jsonl" -w "$job/source" --read "$job/packages" -- \
    "$job/packages/venv/bin/python" -m pytest "$@"
