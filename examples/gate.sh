#!/bin/bash
# Runs a preflight command, and ends with 1 only for a failure that it has read in the report. A preflight that is
# missing, broken or stuck holds no job: the gate says so, and ends with 0.
#   bash gate.sh torchrun --standalone --nproc-per-node 8 -m preflight && torchrun --standalone --nproc-per-node 8 train.py
# GATE_REPORT: a new folder for the report; where the command runs on several nodes, one that they share.
# GATE_LIMIT_S: more than preflight's own deadline, which is 900 s with --all.

trap 'exit 130' INT TERM # no training after Ctrl-C
dir=${GATE_REPORT:-$(mktemp -d preflight-XXXXXX || mktemp -d)}
mkdir -p "$dir" || { echo "gate: no folder for the report, so nothing is checked and the job is not held" >&2; exit 0; }
timeout --foreground -k 30 "${GATE_LIMIT_S:-1000}" "$@" --report "$dir" && exit 0

for _ in {1..10}; do # rank 0 may be on another node, and writing still
    if [ -z "$GATE_REPORT" ] || [ -e "$dir/report.json" ]; then break; fi
    sleep 1
done
read_code='import json, sys; r = json.load(open(sys.argv[1])); print(r["exit_code"] if r["schema"] == 1 else "?")'
code=$(timeout 10 python3 -I -c "$read_code" "$dir/report.json" 2> /dev/null)
if [ "$code" = 1 ]; then
    bad=$(paste -sd, "$dir/bad_nodes.txt")
    echo "gate: preflight found a failure; bad nodes: ${bad:-none is named}" >&2
    exit 1
fi
echo "gate: no failure was read (exit_code '$code' in $dir/report.json), so the job is not held" >&2
exit 0
