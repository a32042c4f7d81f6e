"""`minato.patch()`: try minato on code that imports torch's loader, without editing it."""

from __future__ import annotations

import sys
from contextlib import ContextDecorator
from types import ModuleType
from typing import Any

import torch.utils.data
import torch.utils.data.dataloader

from ._dataloader import DataLoader

_TORCH_LOADER = torch.utils.data.DataLoader
_WITH_TORCH_NAMES = ("torch.utils.data", "torch.utils.data.dataloader")


class patch(ContextDecorator):
    """While it lasts, `DataLoader` is minato's: in `torch.utils.data`, and in every loaded module that imported it.

        with minato.patch():
            train.main()

    `defaults` are given to every loader made meanwhile, unless its maker gives them: `minato.patch(in_order=True)`.
    Classes that were derived from torch's loader before stay what they are. Loaders made meanwhile stay minato's, and
    so does the name in modules that are first imported meanwhile. The names are one process's: nest, but do not use
    from two threads at once.
    """

    def __init__(self, **defaults: Any) -> None:
        self._loader = _with_defaults(defaults) if defaults else DataLoader
        self._replaced: list[tuple[ModuleType, str, object]] = []

    def __enter__(self) -> patch:
        for module in list(sys.modules.values()):
            if _is_patched(module):
                for name, value in list(vars(module).items()):
                    if value is _TORCH_LOADER and not name.startswith("_TORCH"):
                        self._replaced.append((module, name, value))
                        setattr(module, name, self._loader)
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, value in reversed(self._replaced):
            if getattr(module, name, None) is self._loader:
                setattr(module, name, value)
        self._replaced.clear()


def _is_patched(module: object) -> bool:
    """Torch's own modules need torch's class inside; minato derives from it. Some put other objects among modules."""
    if type(module) is not ModuleType:
        return False
    return module.__name__ in _WITH_TORCH_NAMES or module.__name__.partition(".")[0] not in ("torch", "minato")


def _with_defaults(defaults: dict[str, Any]) -> type[DataLoader[Any]]:
    """A loader class that fills in arguments its maker did not give."""

    class PatchedDataLoader(DataLoader[Any]):
        def __init__(self, *positional: Any, **given: Any) -> None:
            super().__init__(*positional, **{**defaults, **given})

    return PatchedDataLoader
