#!/bin/bash -eu
# Builds what csrc/tests has for libFuzzer, as the base image wants it: in $OUT a program and a corpus for each. SANITIZER
# is address or undefined. Its flags aren't taken from CFLAGS, since the programs of pid 1 have no library that they need:
# meson knows which targets to leave out.

case ${SANITIZER:?} in
address | undefined) ;;
*) echo "no target is built for the sanitizer $SANITIZER" >&2; exit 1 ;;
esac
unset CFLAGS CXXFLAGS

# It is started in the tree: the Dockerfile's WORKDIR.
build=${WORK:?}/build
rm -rf "$build"
meson setup "$build" -Dcore_only=true -Dfuzz=true -Dbuildtype=debugoptimized -Db_lundef=false -Dwerror=false \
    "-Db_sanitize=$SANITIZER" -Dc_args=-fno-sanitize-recover=all
meson compile -C "$build"

for target in csrc/fuzz_bwrap:corpus-bwrap csrc/fuzz_plan:corpus csrc/fuzz_relay:corpus-relay csrc/proxy/fuzz_proxy:corpus-proxy; do
    program=${target%:*}
    cp "$build/$program" "${OUT:?}/"
    python3 -m zipfile -c "$OUT/$(basename "$program")_seed_corpus.zip" "csrc/tests/${target#*:}/"*
done
