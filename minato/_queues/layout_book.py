"""The layouts a pool knows, in shared memory: the first worker to see a layout registers it, all others find it."""

from __future__ import annotations

from typing import Any

from . import codec, messages
from .arena import Arena, Stretch
from .board import NO_LAYOUT
from .control import ControlBlock
from .fields import Header
from .layout import Layout, is_of, learn

MOST_LAYOUTS = 64  # a dataset with more shapes than this is better served by the heap than by ever new columns


class LayoutBook:
    """This process's view of the registered layouts. A layout is named by a word: its number plus one, or NO_LAYOUT."""

    def __init__(self, control: ControlBlock, arena: Arena) -> None:
        self._control = control
        self._arena = arena
        self._layouts: list[Layout] = []
        self._words: dict[Layout, int] = {}
        self._offsets: dict[tuple[int, int], list[int]] = {}
        self._latest = 0
        """The word of the sample asked about last; 0: it had none."""

    def layout(self, word: int) -> Layout:
        """The layout a word names."""
        if word > len(self._layouts):
            with self._control.lock:
                self._refresh()
        return self._layouts[word - 1]

    def offsets(self, word: int, rows: int) -> list[int]:
        """`Layout.offsets` of the layout a word names: worked out once, since it is asked for with every batch."""
        offsets = self._offsets.get((word, rows))
        if offsets is None:
            offsets = self._offsets[word, rows] = self.layout(word).offsets(rows)
        return offsets

    def word_for(self, sample: Any) -> int:
        """The word for the layout of `sample`, registering it if it is new; NO_LAYOUT if it has none."""
        if self._latest and is_of(self._layouts[self._latest - 1], sample):
            return self._latest  # most datasets have one layout
        self._latest = max(0, self._word_for(learn(sample)))
        return self._latest or NO_LAYOUT

    def _word_for(self, layout: Layout | None) -> int:
        if layout is None or not _hashable(layout):
            return NO_LAYOUT
        word = self._words.get(layout)
        return word if word is not None else self._register(layout)

    def _register(self, layout: Layout) -> int:
        try:
            packed = codec.pack(layout)
        except Exception:  # a namedtuple class that cannot be pickled: the ordinary way says so to the user
            return NO_LAYOUT
        with self._control.lock:
            self._refresh()
            if layout in self._words:
                return self._words[layout]
            count = self._control.words[Header.LAYOUTS]
            if count == MOST_LAYOUTS:
                return NO_LAYOUT
            messages.put(self._arena, Stretch.LAYOUT, count, packed)
            self._control.words[Header.LAYOUTS] = count + 1
            self._refresh()
        return self._words[layout]

    def _refresh(self) -> None:
        """Read what others registered. Called under the lock."""
        for number in range(len(self._layouts), self._control.words[Header.LAYOUTS]):
            layout: Layout = messages.get(self._arena, Stretch.LAYOUT, number)
            self._layouts.append(layout)
            self._words[layout] = number + 1


def _hashable(layout: Layout) -> bool:
    """Dictionary keys of samples are part of a layout, and pickled with it: only plain ones qualify."""
    return all(type(key) in (str, int) for key in _keys(layout.root))


def _keys(node: Any) -> list[Any]:
    return [*getattr(node, "keys", ()), *(k for child in getattr(node, "children", ()) for k in _keys(child))]
