#!/bin/bash
# Slurm prolog: preflight's quick checks, one process on this node, no torch. Ends with 1, for which Slurm drains the
# node, only for a failure that it has read in the report. No preflight, a full disk, a hang: the job is not held.
export PATH=/opt/preflight/bin:/usr/bin:/bin # Slurm gives a prolog none; the first is where preflight is installed
limit_s=20

dir=$(mktemp -d) || exit 0
trap 'rm -rf "$dir"' EXIT
timeout -k 5 "$limit_s" preflight --level quick --deadline 15 --report "$dir" > "$dir/screen" 2>&1

read_code='import json, sys; r = json.load(open(sys.argv[1])); print(r["exit_code"] if r["schema"] == 1 else "?")'
code=$(timeout 5 python3 -I -c "$read_code" "$dir/report.json" 2> /dev/null)
if [ "$code" = 0 ]; then exit 0; fi

if [ "$code" = 1 ]; then word="failure, node drained"; else word="no verdict (exit_code '$code'), job not held"; fi
{ echo "job $SLURM_JOB_ID: $word"; cat "$dir/screen"; } | timeout 5 logger -t preflight
if [ "$code" = 1 ]; then exit 1; fi
exit 0
