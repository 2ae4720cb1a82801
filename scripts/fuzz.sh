#!/bin/sh
# fuzz.sh [TARGET [SECONDS]]: builds with libFuzzer and runs one target, or each of them.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
targets=$(cd "$root" && ls src/*/fuzz/fuzz_*.c 2>/dev/null | sed 's|.*/fuzz_||; s|\.c$||')
seconds=${2:-60}

case $seconds in
'' | *[!0-9]*)
	echo "fuzz: '$seconds' is not a number of seconds" >&2
	exit 2
	;;
esac
if [ $# -eq 0 ]; then
	echo 'targets:' $targets
	set -- $targets
elif echo "$targets" | grep -qx -- "$1"; then
	set -- "$1"
else
	echo "fuzz: no target '$1'; there are:" $targets >&2
	exit 2
fi
[ $# -gt 0 ] || exit 0

"$root/scripts/setup.sh" build
"$root/scripts/build.sh" fuzz $(printf 'fuzz_%s ' "$@")
failed=
for target in "$@"; do
	found=$root/build-fuzz/corpus/$target
	mkdir -p "$found" "$root/build-fuzz/crashes"
	echo "fuzzing $target for $seconds s ..."
	log=$root/build-fuzz/$target.log
	if "$root/build-fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 -verbosity=0 \
		-artifact_prefix="$root/build-fuzz/crashes/$target-" "$found" "$root/tests/corpus/$target" \
		>"$log" 2>&1 </dev/null; then
		sed -n 's/^stat::number_of_executed_units: */  inputs tried: /p' "$log"
	else
		cat "$log" >&2
		failed="$failed $target"
	fi
done
if [ -n "$failed" ]; then
	echo "fuzz: failed:$failed; the inputs are in build-fuzz/crashes" >&2
	exit 1
fi
