#!/bin/bash
# node-problem-detector custom plugin: preflight's quick checks of this machine, one process, no torch. It ends with 0
# (no failure), 1 (a failure) or 2 (no verdict), and prints one line of at most 80 characters, the condition's message.
export PATH=@PATH@
prefix=preflight: limit_s=30
options=() # of preflight run, such as --config /etc/preflight/preflight.toml or --profile /etc/preflight/site.toml

dir=$(mktemp -d) || { echo "no folder for the report"; exit 2; }
trap 'rm -rf "$dir"' EXIT
said=$(timeout -k 2 "$((limit_s + 3))" preflight gate --limit "$limit_s" --reason "$prefix" --report "$dir" -- \
    preflight --level quick --only node,gpu,net --deadline 20 "${options[@]}" 2> "$dir/screen")
case $said in
    "ok "*) echo "no failure was found"; exit 0 ;;
    "$prefix"*) echo "${said:0:80}"; exit 1 ;;
    *) echo "no verdict"; exit 2 ;;
esac
