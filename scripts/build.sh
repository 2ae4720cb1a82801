#!/bin/sh
# build.sh KIND [NINJA-TARGET...]: configures build-KIND once and compiles it. Kinds: release, asan, tsan, fuzz.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
kind=${1:-release}
[ $# -eq 0 ] || shift
folder=$root/build-$kind

configure() {
	"$root/scripts/quietly.sh" "configuring build-$kind" meson setup "$@" "$folder" "$root"
}

case $kind in
asan | fuzz) "$root/scripts/setup.sh" clang ;;
esac
if [ ! -f "$folder/build.ninja" ]; then
	case $kind in
	release) configure ;;
	# clang, so that both compilers build everything, and its two sanitizers write into one report
	asan) CC=clang configure -Db_sanitize=address,undefined -Db_lundef=false ;;
	tsan) configure -Db_sanitize=thread -Db_lundef=false ;;
	fuzz) CC=clang configure -Dfuzzer=true -Db_sanitize=address,undefined -Db_lundef=false ;;
	*)
		echo "build: no kind '$kind'; there are release, asan, tsan and fuzz" >&2
		exit 2
		;;
	esac
fi

if ninja -C "$folder" -n "$@" | grep -q 'no work to do'; then
	exit 0
fi
if [ -t 1 ]; then
	ninja -C "$folder" "$@" # a terminal gets ninja's own one-line progress
else
	"$root/scripts/quietly.sh" "building build-$kind" ninja -C "$folder" "$@"
fi
