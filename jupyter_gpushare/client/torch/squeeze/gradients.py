"""The gradients that a backward makes. No budget counts those that outlive the iteration."""

from __future__ import annotations

import weakref

import torch

from ..backwards import Backwards
from ..storages.tensors import storage_of


class Gradients:
    """The bytes of gradients that this iteration has made for the parameters of its modules.

    A gradient is read only in the thread that runs the backward, which writes it, and only while no
    other thread runs one, which may write it too.
    """

    def __init__(self, backwards: Backwards) -> None:
        self._backwards = backwards
        self._outlive = True  # the end of the last iteration
        self._forget()

    def _forget(self) -> None:
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._without: list[torch.nn.Parameter] | None = None  # None: not looked for yet
        self._with: list[torch.nn.Parameter] = []
        self._made = 0

    def end(self) -> None:
        """Note whether the gradients are still there at the end of the iteration. Nothing is held
        afterwards: the model may go."""
        with self._backwards.kept_out() as may_read:
            if self._with and may_read:
                self._outlive = any(parameter.grad is not None for parameter in self._with)
        self._forget()

    def expect(self, module: torch.nn.Module) -> None:
        """Note an outermost module of this iteration."""
        if id(module) not in self._modules:
            self._modules[id(module)] = weakref.ref(module)
            self._without = None

    def bytes(self) -> int:
        """Return the bytes so far of gradients that will outlive the iteration. Call this in a
        backward."""
        with self._backwards.kept_out() as may_read:
            if may_read:
                self._look()
        return self._made if self._outlive else 0

    def _look(self) -> None:
        if self._without is None:
            modules = [module for weak in self._modules.values() if (module := weak()) is not None]
            wanted = {p: None for module in modules for p in module.parameters() if p.requires_grad}
            self._without = [parameter for parameter in wanted if parameter.grad is None]
        without = [parameter for parameter in self._without if parameter.grad is None]
        if len(without) < len(self._without):
            made = [grad for p in self._without if (grad := p.grad) is not None]
            storages = [storage for grad in made if (storage := storage_of(grad)) is not None]
            self._made += sum(storage.nbytes() for storage in storages)
            self._with += [parameter for parameter in self._without if parameter.grad is not None]
            self._without = without
