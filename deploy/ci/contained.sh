#!/bin/sh
# Installs a project's dependencies in one sandbox, and runs its tests in a second one. In the project:
#
#     INDEX=index.example FILES=files.example PIP_INDEX_URL=https://index.example/simple/ sh contained.sh DIRECTORY
#
# INDEX and FILES are all that the installation may connect to: the package index, and the host of its files.
# DIRECTORY must not be there yet, nor lie in the project. It gets source/, packages/, audit/ and reports/. Further
# arguments are pytest's. You can also set, each with words that spaces separate:
#
#     INSTALL   what pip installs (default: -r requirements.txt), such as: -e .[test]
#     REPORTS   files and directories that the tests write below source/, to be copied to reports/
#     OPTIONS   more options of `nsbox run`, for both steps: --env CI --timeout 600
#
# The exit status is that of the tests; 20 if the installation failed; 21 if the tests passed and a report is missing.
# 2 is a mistake in the call, 124 a test run that took too long, 125 a sandbox that can't be made.
set -euf
: "${INDEX:?}" "${FILES:?}" "${PIP_INDEX_URL:?}" "${1:?which directory?}"
if [ -e "$1" ] || [ -L "$1" ]; then
    echo "contained.sh: $1 is there already: remove it, or name another directory" >&2
    exit 2
fi

mkdir -m 700 "$1" "$1/audit" "$1/packages" "$1/reports" "$1/source"
job=$(cd "$1" && pwd -P)
shift
# What git tracks, and nothing that merely lies there: no .env, no credentials of other steps.
git ls-files -z --recurse-submodules >"$job/files"
tar --null -T "$job/files" -cf - | tar -xf - -C "$job/source"

# For each step. A later option wins, so OPTIONS may say another amount.
limits="--timeout 1800 --file-size 2G --tmp-size 2G --processes 2000 ${OPTIONS-}"

# Packages run code of their own while they are built, and so does the project. Nothing of theirs leaves these directories.
status=0
nsbox run $limits --audit "$job/audit/install.jsonl" -w "$job/source" --write "$job/packages" \
    --allow-net "$INDEX" --allow-net "$FILES" --env PIP_INDEX_URL -- \
    sh -ec 'python3 -I -m venv ../packages/venv; ../packages/venv/bin/pip install "$@"' sh \
    ${INSTALL--r requirements.txt} || status=$?
if [ "$status" != 0 ]; then
    echo "contained.sh: the installation failed with status $status; the tests weren't started" >&2
    exit 20
fi

nsbox run $limits --audit "$job/audit/tests.jsonl" -w "$job/source" --read "$job/packages" -- \
    "$job/packages/venv/bin/python" -m pytest "$@" || status=$?

# A report may be a link to a file of yours. It leads nowhere in a sandbox, and no link is copied.
if [ -n "${REPORTS-}" ] && ! nsbox run $limits -w "$job/reports" --read "$job/source" -- \
    sh -c 'cd ../source && exec find "$@" -type f -exec cp --parents -t ../reports {} +' sh $REPORTS; then
    echo "contained.sh: not every report of \"$REPORTS\" is in $job/reports" >&2
    [ "$status" != 0 ] || status=21
fi
exit "$status"
