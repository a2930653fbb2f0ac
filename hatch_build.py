"""The wheel's build hook: compiles the modules on every request's way to extension modules, where that can be done.

    pip install .                         compiled where there are a C compiler and Python.h; else, or if it fails, not
    LBPROXY_COMPILE=1 pip install .       compiled; what stands in the way of that is an error
    LBPROXY_COMPILE=0 pip install .       not compiled

"auto" is another word for the first. pip shows what is said meanwhile with `-v` only; `lbproxy version` says afterwards
which it is.

mypyc makes C of the typed sources as they stand; there is no second version of anything. The sources stay in the wheel
beside the extension modules, which Python prefers, and serve for tracebacks. An editable install is never compiled: it
is there for changing the sources.

Run as a program, this file does the compiling itself: `python hatch_build.py DIRECTORY`, from the top of the sources,
writes the extension modules into DIRECTORY. The hook runs it as a process of its own, because mypyc leaves the
interpreter when it finds an error.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "LBPROXY_COMPILE"
DEFAULT = "auto"
CHOICES = ("0", "1", "auto")

ON_THE_WAY = ("lbproxy/core/*.py", "lbproxy/dataplane/*.py", "lbproxy/observe/lines.py")
LEFT_OUT = (
    "lbproxy/core/spec.py",  # travels to the workers as pickles, and a compiled frozen dataclass cannot be unpickled
    "lbproxy/core/health.py",  # copies its objects, which a compiled class does not allow; no request passes it
    # No request passes these.
    "lbproxy/core/forge.py",
    "lbproxy/core/hosts.py",
    "lbproxy/core/moves.py",
    "lbproxy/core/pace.py",
    "lbproxy/core/pieces.py",
    "lbproxy/core/rings.py",
    # A compiled coroutine passes an exception on to what it awaits in a way that is deprecated since Python 3.12.
    "lbproxy/dataplane/connecting.py",
)
# The minor version of mypy is the one that all tests have been run with: compilers differ in what they get wrong.
REQUIREMENTS = ("mypy==2.4.*", "setuptools>=65.5")
# The compiler sees all modules at once when it links, and no other library takes the place of a function of ours: small
# GETs take 1 to 2 % less CPU, and 4 % less on cores that others use too. A compiler that cannot do this does without.
LINK_TIME = ["-flto=auto", "-fno-semantic-interposition"]
# Where all compiled code goes; a module's own extension is only an entrance.
LIBRARY = "lbproxy.compiled"


def wish() -> str:
    """What the environment asks for: one of CHOICES."""
    said = os.environ.get(VARIABLE) or DEFAULT
    if said not in CHOICES:
        raise SystemExit(f"{VARIABLE} is {said!r}, not one of {', '.join(CHOICES)}")
    return said


def obstacle() -> str:
    """What is missing for compiling, or ""."""
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, not for {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no global lock, with which alone compiled modules have been tested"
    compiler = c_compiler()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}"
    headers = Path(sysconfig.get_path("include"))
    return "" if (headers / "Python.h").exists() else f"there is no Python.h in {headers}"


def c_compiler() -> list[str]:
    """The command that setuptools will use."""
    return (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()


def takes(flags: Sequence[str]) -> bool:
    """Whether the compiler makes a library with these flags."""
    with tempfile.TemporaryDirectory(prefix="lbproxy-compile-") as directory:
        source, library = Path(directory, "one.c"), Path(directory, "one.so")
        source.write_text("int one(void) { return 1; }\n")
        command = [*c_compiler(), "-O2", "-fPIC", "-shared", *flags, str(source), "-o", str(library)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def sources(top: Path) -> list[str]:
    """The modules to be compiled, as paths from the top of the sources."""
    found = [path for pattern in ON_THE_WAY for path in top.glob(pattern) if path.name != "__init__.py"]
    return sorted({str(path.relative_to(top)) for path in found} - set(LEFT_OUT))


def extension_modules(directory: Path) -> list[Path]:
    """What has been made there."""
    return sorted(directory.glob("lbproxy/**/*" + sysconfig.get_config_var("EXT_SUFFIX")))


class CompiledBuildHook(BuildHookInterface[Any]):
    """Puts the extension modules into the wheel and says for which Python and machine it is then."""

    _workshop: Path | None = None

    def dependencies(self) -> list[str]:
        """What pip must install for the build, and only if something is to be compiled."""
        asked = wish()
        return list(REQUIREMENTS) if asked == "1" or (asked == "auto" and not obstacle()) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        asked = wish()
        if asked == "0" or version == "editable":
            return
        problem = obstacle() or self._compile(build_data)
        if problem and asked == "1":
            self.app.abort(f"lbproxy: cannot be compiled: {problem}")
        elif problem:
            self.app.display_warning(f"lbproxy: WARNING: not compiled, and slower for it: {problem}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._workshop is not None:
            shutil.rmtree(self._workshop, ignore_errors=True)

    def _compile(self, build_data: dict[str, Any]) -> str:
        """Compile and tell the wheel of it; returns what went wrong, or ""."""
        self._workshop = Path(tempfile.mkdtemp(prefix="lbproxy-compile-"))
        self.app.display_waiting("lbproxy: compiling; this takes about a minute")
        start = time.monotonic()
        command = [sys.executable, os.path.abspath(__file__), str(self._workshop)]
        done = subprocess.run(  # noqa: S603  # ourselves
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            self.app.display_error(done.stdout)
            return f"mypyc or the C compiler failed (status {done.returncode}), see above"
        made = extension_modules(self._workshop)
        for path in made:
            build_data["force_include"][str(path)] = str(path.relative_to(self._workshop))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        took_s = time.monotonic() - start
        self.app.display_success(f"lbproxy: compiled {len(made) - 1} modules in {took_s:.0f} s")
        return ""


def compile_into(directory: Path) -> None:
    """Make C of the sources, and extension modules of that, in `directory`."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    generated = directory / "c"
    # Without explicit bases an __init__.py in a directory above would give all modules longer names.
    options = [
        "--config-file=",
        "--explicit-package-bases",
        f"--cache-dir={directory / 'cache'}",
        "--ignore-missing-imports",
    ]
    extensions = mypycify(
        [*options, *sources(Path.cwd())],
        opt_level="2",  # 3 takes longer and gains nothing that could be measured
        debug_level="0",
        multi_file=True,
        target_dir=str(generated),
        group_name=LIBRARY,
    )
    link_time = LINK_TIME if takes(LINK_TIME) else []
    for extension in extensions:
        extension.include_dirs.append(str(generated / Path(*LIBRARY.split(".")[:-1])))
        # What another compiler than ours finds fault with in generated code is no reason to go without it.
        extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        extension.extra_compile_args += link_time
        extension.extra_link_args += link_time
    build = build_ext(Distribution({"name": "lbproxy", "ext_modules": extensions}))
    build.build_lib = str(directory)
    build.build_temp = str(directory / "objects")
    build.ensure_finalized()
    build_extensions = build.build_extensions

    def build_in_parallel() -> None:
        """setuptools compiles the files of one extension one after the other; nearly all of ours are of one."""
        compile_some = build.compiler.compile

        def compile_all(files: Sequence[str], *args: Any, **options: Any) -> list[str]:
            done = threads.map(lambda file: compile_some([file], *args, **options), files)
            return [made for some in done for made in some]

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            build.compiler.compile = compile_all
            build_extensions()

    build.build_extensions = build_in_parallel
    build.run()
    for path in extension_modules(directory):
        ctypes.PyDLL(str(path), os.RTLD_NOW)  # an OSError now, and not when somebody starts the proxy


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]).resolve())
