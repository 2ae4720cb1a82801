"""What `meson install` leaves, used as a stranger to this repo would use it."""
import os
import shutil
import subprocess

import pytest

PROGRAM = r"""
#include <orbitkv/client.h>
#include <stdio.h>

int main(void)
{
	static struct orbitkv_client_options options;
	struct orbitkv_client *client;
	char problem[200] = "";

	options.socket_path = "nowhere";
	options.name = "stranger";
	options.key = "no key";
	options.key_size = 6;
	printf("%d ", (int)orbitkv_client_open(ORBITKV_CLIENT_VERSION, &options, &client, problem, sizeof(problem)));
	puts(problem);
	return 0;
}
"""


@pytest.fixture(scope="module")
def installed(orbitkv, build, tmp_path_factory):
    if build != "release":
        pytest.skip("a library with a sanitizer in it is not for strangers")
    root = tmp_path_factory.mktemp("root")
    subprocess.run(["meson", "install", "-C", orbitkv.parent, "--no-rebuild", "--destdir", root], check=True,
                   capture_output=True)
    return root


def one(folder, name):
    found = list(folder.rglob(name))
    assert len(found) == 1, found
    return found[0]


def test_a_program_builds_with_the_installed_header_and_library_alone(installed, tmp_path):
    source = tmp_path / "stranger.c"
    source.write_text(PROGRAM)
    library = one(installed, "liborbitkv-client.so").parent
    environment = {**os.environ, "PKG_CONFIG_PATH": str(one(installed, "orbitkv-client.pc").parent),
                   "PKG_CONFIG_SYSROOT_DIR": str(installed)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "orbitkv-client"], env=environment, check=True,
                           capture_output=True, text=True).stdout.split()
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    compilers = [["gcc", "-std=c99"]] + [[name, "-std=c++11", "-x", "c++"] for name in ("g++", "clang")
                                         if shutil.which(name)]
    for number, compiler in enumerate(compilers):
        subprocess.run([*compiler, *warnings, "-fsyntax-only", *flags[:1], source], check=True)
        if number > 0:
            continue
        subprocess.run([*compiler, *warnings, source, "-o", tmp_path / "stranger", *flags], check=True)
        said = subprocess.run([tmp_path / "stranger"], env={**os.environ, "LD_LIBRARY_PATH": str(library)}, check=True,
                              capture_output=True, text=True).stdout
        assert said.startswith("1 ") and "key" in said


def test_only_the_client_has_a_header(installed):
    assert [path.name for path in installed.rglob("*.h")] == ["client.h"]


def test_the_cache_manager_is_also_a_program_of_its_own(installed):
    program = one(installed, "orbitkv-cache-manager")
    said = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    assert "--pool-size" in said
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    assert version == subprocess.run([program.with_name("orbitkv"), "--version"], check=True, capture_output=True,
                                     text=True).stdout
