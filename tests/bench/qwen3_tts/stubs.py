"""Empty stand-ins for packages that the peers import and that speaking with a named speaker never calls.

They are put in the place of what is not installed. Whoever calls one is told so: nothing is measured without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

UNUSED = ("gradio", "librosa", "onnxruntime", "sox", "soundfile", "torchaudio")
"""Reading, writing and resampling files, demos, and the codec of another family."""


class Stub(ModuleType):
    """A module, or whatever is in one."""

    def __getattr__(self, name: str) -> Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError(f"{self.__name__} is a stub: this path was taken to need no such package")


class Stubs(MetaPathFinder, Loader):
    """Finds the missing ones, and all below them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(name for name in names if find_spec(name) is None)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> Stub:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It is empty."""


def install() -> tuple[str, ...]:
    """From now on they can be imported; which ones are stubs."""
    stubs = Stubs(UNUSED)
    sys.meta_path.append(stubs)
    return stubs.names
