"""The version of squeezing that squeezes nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ....wire.demand import SqueezeOption

if TYPE_CHECKING:
    import torch

    from ...options import Wanted


class NoSqueeze:
    """The version for iterations whose tensors are not counted one by one; `why_not` tells
    people."""

    is_active = is_held = is_needed = has_news = is_futile = False
    target = math.inf
    wanted: Wanted = "off"
    granted = floor = 0
    squeezing = None
    how = progress = ""

    def __init__(self, why_not: str) -> None:
        self.why_not = why_not

    def want(self, wanted: Wanted) -> None: ...

    def grant(self, granted: int) -> None: ...

    def begin(self, may_learn: bool) -> None: ...

    def lack_room(self, lacks: bool) -> None: ...

    def is_learning(self) -> bool:
        return False

    def retire(self) -> None: ...

    def forget_options(self) -> None: ...

    def options(self, ephemeral: int) -> tuple[SqueezeOption, ...]:
        return ()

    def end(self) -> None: ...

    def abandon(self) -> None: ...

    def learn(self, ephemeral: int, needed: int) -> None: ...

    def is_outdated(self, ephemeral: int) -> bool:
        return False

    def note(self, ephemeral: int, was_recorded: bool) -> bool:
        return False

    def look_again(self) -> None: ...

    def adapt(self, ephemeral: int) -> bool:
        return False

    def forward_begins(self, module: torch.nn.Module) -> None: ...

    def forward_ends(self) -> None: ...

    def forward_left(self) -> None: ...

    def step_begins(self) -> None: ...
