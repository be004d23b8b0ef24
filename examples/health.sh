#!/bin/bash
# Slurm HealthCheckProgram: the same checks without a job. It drains a node with a failure, and resumes what it has
# drained itself when the check that failed has measured again and found nothing. No verdict: it changes nothing.
#   slurm.conf: HealthCheckProgram=THIS_FILE, HealthCheckInterval=300, HealthCheckNodeState=ANY,CYCLE
export PATH=/opt/preflight/bin:/usr/bin:/bin conf=/etc/slurm/slurm.conf
if [ -e "$conf" ]; then export SLURM_CONF=$conf; fi # slurmd tells it to prologs, but not here
prefix=preflight-health: limit_s=30 # Slurm kills it after 60 s
options=() # of preflight run, such as --config /etc/preflight/preflight.toml

node=${SLURMD_NODENAME:-$(hostname -s)}
dir=$(mktemp -d) || exit 0
trap 'rm -rf "$dir"' EXIT
said=$(timeout -k 2 "$((limit_s + 3))" preflight gate --limit "$limit_s" --reason "$prefix" --report "$dir" -- \
    preflight --level quick --only node,gpu,net --deadline 20 "${options[@]}" 2> "$dir/screen")
IFS='|' read -r state reason < <(timeout 5 sinfo -h -N -n "$node" -o '%T|%E')
was=${reason#"$prefix"} was=${was%% *} # the code for which it was drained
word=
case $said in
    "ok "*)
        if [[ $state == drain* && $reason == "$prefix"* && " $said " == *" ${was%.*} "* ]]; then
            word="sound again, resumed (was $reason)"
            timeout 5 scontrol update "NodeName=$node" State=RESUME
        fi ;;
    "$prefix"*)
        if [ -z "$state" ]; then
            word="Slurm does not answer, nothing is changed: $said"
        elif [[ $state != drain* && $state != down* ]]; then
            word="drained: $said"
            timeout 5 scontrol update "NodeName=$node" State=DRAIN "Reason=$said"
        fi ;;
    *) word="no verdict: nothing is changed" ;;
esac
if [ -n "$word" ]; then { echo "$word"; cat "$dir/screen"; } | timeout 5 logger -t preflight; fi
exit 0
