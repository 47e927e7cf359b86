#!/bin/sh
# Debian's Chromium and its driver, for the tests of the TensorBoard tab. Does nothing where they
# are; says so where they cannot be had.
command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
run=
[ "$(id -u)" -eq 0 ] || run='sudo -n'
if command -v apt-get >/dev/null && $run true 2>/dev/null; then
  $run apt-get update -q >/dev/null
  $run env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qy --no-install-recommends chromium chromium-driver >/dev/null && exit 0
fi
echo "no browser could be installed: the tests of the TensorBoard tab need chromium and chromedriver" >&2
exit 1
