#!/bin/sh
# setup.sh PART...: puts in place what the other commands need. Each part first looks whether its result is there, so a
# second run does nothing. `./run help setup` names the parts.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
python=$root/.venv/bin/python

packages_of() {
	case $1 in
	build) echo meson ninja-build pkg-config gcc libc6-dev libcmocka-dev libevent-dev libssl-dev libxxhash-dev \
		libjansson-dev libutf8proc-dev python3 python3-venv ca-certificates ;;
	bench) echo redis-server ;;
	lint) echo clang-format clang-tidy git ;;
	clang) echo clang libclang-rt-14-dev llvm ;;
	esac
}

fail() {
	printf 'setup: %s\n' "$@" >&2
	exit 1
}

is_installed() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_packages() {
	missing=
	for package in $(packages_of "$1"); do
		is_installed "$package" || missing="$missing $package"
	done
	[ -n "$missing" ] || return 0

	command -v apt-get >/dev/null || fail "this needs Debian 12's packages:$missing" \
		"there is no apt-get here; install their equivalents and see that dpkg-query knows them, or use Debian 12"
	sudo=
	if [ "$(id -u)" -ne 0 ]; then
		sudo='sudo'
		command -v sudo >/dev/null || fail "these Debian packages are missing:$missing" \
			"become root and run: apt-get install$missing"
	fi
	apt="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300"
	# sudo may ask for a password: let it do so before its output is captured
	[ -z "$sudo" ] || sudo -v || fail "sudo refused; become root and run: apt-get install$missing"
	if ! "$root/scripts/quietly.sh" "reading Debian's package lists" $apt update ||
		! "$root/scripts/quietly.sh" "installing Debian packages:$missing" \
			$apt install -y --no-install-recommends $missing; then
		fail "Debian packages could not be installed:$missing" \
			"is the network up? apt-get's own words are above"
	fi
}

create_environment() {
	! "$python" -m pip --version >/dev/null 2>&1 || return 0
	rm -rf "$root/.venv"
	base_python=/usr/bin/python3
	[ -x "$base_python" ] || base_python=python3
	"$root/scripts/quietly.sh" "creating the Python environment .venv" "$base_python" -m venv "$root/.venv" ||
		fail "the Python environment could not be created; see above"
	# Only so that the model's download can be continued: Debian's pip does the rest as well, so a failure is none.
	"$python" -m pip install --disable-pip-version-check -q -r "$root/python/requirements-pip.txt" \
		>/dev/null 2>&1 </dev/null || true
}

# The environment keeps one stamp per requirements file: that file's content when it was last installed.
install_python() {
	requirements=$root/python/requirements-$1.txt
	stamp=$root/.venv/installed-$1.txt
	create_environment
	! cmp -s "$requirements" "$stamp" || return 0
	"$root/scripts/quietly.sh" "installing Python packages for $1" \
		"$python" -m pip install --disable-pip-version-check -q -r "$requirements" ||
		fail "the Python packages of ${requirements#"$root"/} could not be installed; is the network up?"
	cp "$requirements" "$stamp"
}

install_model() {
	create_environment
	if [ -n "${ORBITKV_MODEL:-}" ]; then
		[ -r "$ORBITKV_MODEL" ] || fail "ORBITKV_MODEL names $ORBITKV_MODEL, which cannot be read"
		return 0
	fi
	"$python" "$root/scripts/fetch_model.py"
}

for part in "$@"; do
	case $part in
	build | lint | clang) install_packages "$part" ;;
	bench) install_packages bench && install_python bench ;;
	test) install_python test ;;
	model) install_model ;;
	all) "$0" build model test bench lint clang ;;
	*) fail "no part '$part'; there are build, model, test, bench, lint, clang and all" ;;
	esac
done
