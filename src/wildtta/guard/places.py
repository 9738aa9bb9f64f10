"""A state for each kind of images: where the network has arrived for one kind, it comes back to with that kind.

What is learned for one corruption, camera or light harms the next. And somebody who wants to do harm can send images of
another kind than those that the network has settled on. So a method that asks for it has one *place* per kind: its weights
and its state there. Images of a kind that no place knows begin a new one; those of a known kind find theirs again.

**Which place.** From every 32 images, one window, it is measured how strange they are to each place (``strangeness`` in
``appearance.py``: 1 for its own images). The present one is left where two windows in a row are stranger than 4. Where an
older place knows them (at most 2) it is theirs, whatever the present one says: nobody can make a place that takes another's
images over, unless he sends more of them than there ever were. A paused network answers by the same rule.

**What a place knows** are 256 of its images by their kinds. A window is taken in when the one after it is known too, and
the state that is kept is the one before the first strange window: a change leaves no trace in the old place. A new place
takes in everything for its first thousand images: in class order, the first few hundred are no picture of their kind.

The answer of a window is read when the next one has come, so that nothing waits for the device; and a batch is measured once
its step is under way, so that the device does not wait either. Of a kind that has been there for a while, a random half of
the batches is measured: nobody can know which.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wildtta.guard.appearance import KNOWN, UNKNOWN, Neighbourhood, is_image, kind
from wildtta.guard.samples import Call
from wildtta.guard.snapshots import Snapshot
from wildtta.step.engine import Engine

WINDOW = 32
"""Images of which one window is made; of a larger batch as many, evenly spaced."""
_MOST = 4
"""Places. The one that saw the fewest images gives way."""
_SIZE, _ENOUGH = 256, 128
"""Images that a place knows, and from how many on it can be left."""
_TAKEN, _SELDOM = 8, 4
"""Images of a window that are taken in: of every window until the place is full, of every fourth later."""
_CLOSELY, _SHARE = 2500, 0.5
"""Images of a kind up to which every batch is measured, and the share of the batches later on, while nothing is strange."""
_RECENT_LOOKS = 8
"""Looks whose images say which kind is the usual one at present."""


class OnItsWay:
    """Small numbers on their way to the host: asked for now, read later."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = values
        if values.is_cuda:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()

    def __getstate__(self) -> dict[str, Any]:
        """An event belongs to its process."""
        return {"_event": None, "_host": torch.tensor(self.read())}


@dataclass(eq=False)
class Place:
    """One kind of images and the state that belongs to it."""

    known: Tensor | None = None
    """Of its images, [n, F]."""
    recent: deque[Tensor] = field(default_factory=lambda: deque(maxlen=_RECENT_LOOKS))
    """Of the images of its latest looks, [m, F] each."""
    state: Snapshot | None = None
    """While it is not the present one."""
    images: int = 0
    """That came while it was."""
    windows: int = 0
    _neighbourhood: Neighbourhood | None = None

    def strangeness(self, latest: Tensor) -> Tensor | None:
        """Of a window [n, F] to it; None where it knows no images with as many channels."""
        if self.known is None or self.known.shape[1:] != latest.shape[1:]:
            return None
        if self._neighbourhood is None:
            self._neighbourhood = Neighbourhood(self.known)
        return self._neighbourhood.strangeness(latest)

    @property
    def formed(self) -> bool:
        """Whether it knows enough to tell that images are strange to it."""
        return self.known is not None and len(self.known) >= _ENOUGH

    def take_in(self, kinds: Tensor, draw: random.Random) -> None:
        """A few of a window; once it is full they take the place of random ones."""
        self.windows += 1
        if self.known is None:
            self.known, self._neighbourhood = kinds[:_TAKEN], None
            return
        if len(self.known) >= _SIZE and self.windows % _SELDOM:
            return
        self._neighbourhood = None
        few = kinds[draw.sample(range(len(kinds)), min(_TAKEN, len(kinds)))]
        if len(self.known) < _SIZE:
            self.known = torch.cat([self.known, few])
        else:
            gone = draw.sample(range(len(self.known)), len(few))
            kept = sorted(set(range(len(self.known))).difference(gone))
            self.known = torch.cat([self.known[kept], few])


class Places:
    """The places of one adapter. ``moved`` tells that the state was exchanged since the flag was last taken down."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.forget()

    def forget(self) -> None:
        """One place that knows nothing: the state is another one, or lies elsewhere."""
        self._places = [Place()]
        self.present = self._places[0]
        self.moved = False
        self._waiting: list[Tensor] = []
        self._last: Tensor | None = None
        """The window before this one, if it was known."""
        self._strange = False
        """Whether it was strange to the present place."""
        self._before: Snapshot | None = None
        """The state before the first strange window, or before the last one that was measured."""
        self._asked: tuple[OnItsWay, list[Place], Tensor] | None = None
        self._measures = True

    def __len__(self) -> int:
        return len(self._places)

    def follow(self, engine: Engine, images: int) -> str | None:
        """Before a batch: go where those before it belong. "new" or "back" where that is another place.

        Args:
            engine: whose state is exchanged.
            images: that came before.
        """
        done = self._decide(engine)
        closely = self._strange or self.present.images < _CLOSELY
        self._measures = closely or self._draw.random() < _SHARE
        if self._measures and not self._waiting and not self._strange:
            if self._before is not None and self._before.fits(engine):
                self._before.renew(engine, images)
            else:
                self._before = Snapshot.of(engine, images)
        return done

    def measure(self, batch: Tensor) -> None:
        """After it: what its images look like."""
        if not self._measures:
            self.present.images += len(batch)
            return
        kinds = _window(batch)
        if self._waiting and self._waiting[0].shape[1:] != kinds.shape[1:]:
            return
        self.present.images += len(batch)
        self._waiting.append(kinds)
        if sum(map(len, self._waiting)) >= WINDOW:
            latest = torch.cat(self._waiting)[-WINDOW:]
            self._waiting.clear()
            self._ask(latest)

    @contextlib.contextmanager
    def visited(self, engine: Engine, call: Call) -> Iterator[None]:
        """Within, the state of the place that the images of ``call`` belong to; what is changed there is lost."""
        place = self._home(call)
        if place is self.present or place.state is None:
            yield
            return
        back = Snapshot.of(engine, 0)
        engine.unfinished = functools.partial(back.restore, engine)
        place.state.restore(engine)
        yield
        engine.settle()

    # -- which place -----------------------------------------------------------------------------------------------------

    def _ask(self, latest: Tensor) -> None:
        """How strange a window is to each place; the answer comes later."""
        found = self._strangeness(latest)
        if self.present not in found:
            self.present.known = None  # images with other channels than before
            self.present.take_in(latest, self._draw)
            return
        self._asked = OnItsWay(torch.stack(list(found.values()))), list(found), latest

    def _decide(self, engine: Engine) -> str | None:
        """Act on the last window."""
        if self._asked is None:
            return None
        answer, places, latest = self._asked
        self._asked = None
        shares = dict(zip(places, answer.read(), strict=True))
        home = self._choose(shares)
        if home is self.present:
            self._strange = False
            self._remember(latest)
            return None
        self._last = None
        older = home is not None and home.images > self.present.images
        if not older and not self._strange:
            self._strange = True
            return None
        self._move(engine, home or Place(known=latest))
        return "new" if home is None else "back"

    def _choose(self, shares: dict[Place, float]) -> Place | None:
        """The place of images that are so strange to each; None: none of them."""
        known = [place for place, share in shares.items() if place.formed and share <= KNOWN]
        older = [place for place in known if place.images > self.present.images]
        if older:
            return max(older, key=lambda place: place.images)
        if not self.present.formed or shares.get(self.present, 0.0) <= UNKNOWN:
            return self.present
        return min(known, key=shares.__getitem__, default=None)

    def _home(self, call: Call) -> Place:
        """The place that a call's images belong to; the present one where none does."""
        if len(self._places) == 1 or not is_image(call):
            return self.present
        found = self._strangeness(_window(call))
        if not found:
            return self.present
        shares = torch.stack(list(found.values())).tolist()
        return self._choose(dict(zip(found, shares, strict=True))) or self.present

    def _strangeness(self, latest: Tensor) -> dict[Place, Tensor]:
        """Of a window [n, F] to each place that can tell."""
        found = ((place, place.strangeness(latest)) for place in self._places)
        return {place: strangeness for place, strangeness in found if strangeness is not None}

    def _remember(self, latest: Tensor) -> None:
        """Take in the window before ``latest``, which it was followed by."""
        if self._last is not None:
            self.present.take_in(self._last, self._draw)
        self._last = latest

    def _move(self, engine: Engine, place: Place) -> None:
        """Exchange the state for that of ``place``, as a whole or not at all."""
        with engine.all_or_nothing():
            if place.state is None:
                assert self._before is not None
                engine.method.begin_kind(engine, self._before.memory)
            else:
                place.state.restore(engine)
        self.present.state, self._before, place.state = self._before, None, None
        if place not in self._places:
            if len(self._places) == _MOST:
                self._places.remove(min(self._places, key=lambda kept: kept.images))
            self._places.append(place)
        self.present, self._strange, self.moved = place, False, True


def _window(images: Tensor) -> Tensor:
    """Kinds of at most 32 images of a batch, evenly spaced, [n, F]; a number that is none becomes 0."""
    some = images[:: max(1, len(images) // WINDOW)][:WINDOW]
    return torch.nan_to_num(kind(some), posinf=0.0, neginf=0.0)
