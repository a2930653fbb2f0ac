"""Programs that some tests need besides Python packages: skipped where they are missing, a failure in CI.

A suite that skips in CI what it was meant to check says nothing; a person's laptop without promtool should still be
able to run the rest.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import lbproxy
from lbproxy.dataplane import relay

# Where programs are: beside the interpreter (a virtual environment's), on PATH, and where daemons are installed.
PLACES = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin")

# Where the package under test is imported from, which is the checkout or what is installed; for processes of tests.
PACKAGE_HOME = str(Path(lbproxy.__file__).parents[1])
IS_COMPILED = not str(relay.__file__).endswith(".py")

# For tests that replace what a compiled module has built in, such as a constant.
interpreted_only = pytest.mark.skipif(IS_COMPILED, reason="lbproxy is compiled, and its constants are built in")


def is_ci() -> bool:
    """Whether a missing tool is a failure."""
    return os.environ.get("CI") == "true"


def find_tool(name: str) -> str | None:
    """The path of a program, or None."""
    return shutil.which(name, path=os.pathsep.join(PLACES))


def require_tool(name: str) -> str:
    """The path of a program. Without it the test is skipped, and fails where `CI` is `true`."""
    found = find_tool(name)
    if found is None:
        missing(name)
    return found


def missing(name: str) -> NoReturn:
    """End the test because of something that is not here: skip it, or fail it in CI."""
    if is_ci():
        pytest.fail(f"{name} is not installed; .ci/run should have done that", pytrace=False)
    pytest.skip(f"{name} is not installed")
