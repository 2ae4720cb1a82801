#!/bin/sh
# quietly.sh WHAT COMMAND...: says `WHAT ...`, runs the command, and shows what it printed only if it failed.
what=$1
shift
echo "$what ..."
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM
"$@" >"$log" 2>&1 </dev/null
status=$?
[ "$status" -eq 0 ] && exit 0
# ninja's progress lines are noise beside the error that they end in
grep -v '^\[[0-9]*/[0-9]*\] ' "$log" >&2
echo "failed with status $status: $what" >&2
exit "$status"
