#!/bin/bash
# Slurm Prolog: preflight's quick checks of this machine, one process, no torch. A node with a failure is drained with
# one reason, and Slurm runs the job elsewhere. No preflight, a full disk, a hang: nothing is drained.
#   slurm.conf: Prolog=THIS_FILE, PrologFlags=Alloc, SchedulerParameters=nohold_on_prolog_fail (else the job is held)
export PATH=/opt/preflight/bin:/usr/bin:/bin # Slurm gives a prolog none
prefix=preflight: limit_s=15
options=() # of preflight run, such as --config /etc/preflight/preflight.toml

dir=$(mktemp -d) || exit 0
trap 'rm -rf "$dir"' EXIT
said=$(timeout -k 2 "$((limit_s + 3))" preflight gate --limit "$limit_s" --reason "$prefix" --report "$dir" -- \
    preflight --level quick --only node,gpu,net --deadline 10 "${options[@]}" 2> "$dir/screen")
case $said in
    "ok "*) exit 0 ;;
    "$prefix"*) word="$said: node drained" status=1 ;;
    *) word="no verdict: job not held" status=0 ;;
esac
{ echo "job $SLURM_JOB_ID: $word"; cat "$dir/screen"; } | timeout 5 logger -t preflight
if [ "$status" = 1 ]; then timeout 5 scontrol update "NodeName=$SLURMD_NODENAME" State=DRAIN "Reason=$said"; fi
exit "$status"
