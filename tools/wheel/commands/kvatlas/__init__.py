"""The programs of kvatlas: each of these functions becomes one of them, with the arguments of this process."""

import os
import sys
from pathlib import Path

_PROGRAMS = Path(__file__).resolve().parent / "lib"


def _become(name):
    os.execv(_PROGRAMS / name, [name, *sys.argv[1:]])


def kvatlas():
    _become("kvatlas")


def leaf():
    _become("kvatlas-leaf")


def hierarchy():
    _become("kvatlas-hierarchy")


def frontend():
    _become("kvatlas-frontend")


def relay():
    _become("kvatlas-relay")
