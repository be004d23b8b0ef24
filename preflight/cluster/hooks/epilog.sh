#!/bin/bash
# Slurm Epilog: what the job has left on this node: processes, files in /dev/shm, GPU memory. It reports to syslog
# (journalctl -t preflight), and drains nothing.
#   slurm.conf: Epilog=THIS_FILE
export PATH=@PATH@
limit_s=20

dir=$(mktemp -d) || exit 0
trap 'rm -rf "$dir"' EXIT
timeout -k 2 "$limit_s" preflight --level quick --only node.leftovers,gpu.health --deadline 15 --report "$dir" \
    --set "node.leftovers.job=$SLURM_JOB_ID" --set "node.leftovers.uid=$SLURM_JOB_UID" > "$dir/screen" 2>&1
if ! grep -q '"verdict": "pass"' "$dir/report.json"; then
    { echo "job $SLURM_JOB_ID: after its end:"; cat "$dir/screen"; } | timeout 5 logger -t preflight
fi
exit 0
