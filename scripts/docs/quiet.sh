#!/usr/bin/env bash
# Runs a command once the machine is quiet: the load of the last minute is below 0.3 of a core. Gives up after 20 minutes.
#
# usage: scripts/docs/quiet.sh COMMAND [ARGUMENT ...]
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# -gt 0 && ${1:-} != -* ]] || { echo "$0: see --help" >&2; exit 2; }

"${PYTHON:-python3}" -c 'import os, sys, time
end = time.monotonic() + 1200
while os.getloadavg()[0] >= 0.3:
    if time.monotonic() > end:
        sys.exit(f"the machine is not quiet: load {os.getloadavg()[0]:.2f}")
    time.sleep(5)'
exec "$@"
