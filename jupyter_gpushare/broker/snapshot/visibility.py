"""Decides which names of notebooks, and which causes that notebooks gave, a person may see."""

from __future__ import annotations

from collections.abc import Mapping

from ...reasons import GONE
from ..access.permissions import Permission, Person, Resource
from ..admin.rules import RuleEngine
from ..peer import Peer
from ..sessions import SessionRecord, Sessions
from . import names
from .names import Namer

ALL_SEEING = Person("", is_admin=True)


class Visibility:
    """Decides by the rules and by the owners of sessions. Owns only a cache of the answers."""

    def __init__(self, rules: RuleEngine, sessions: Sessions) -> None:
        self._rules = rules
        self._sessions = sessions
        self._generation = sessions.generation  # of the cached answers
        self._visible: dict[Person, tuple[str, ...]] = {}

    def namer(self, person: Person) -> Namer:
        """Return a function that names notebooks as this person may see them."""

        def name(session: str) -> str:
            record = self._sessions.known(session)
            if record is not None and self._may_see(person, record):
                return record.name
            return self.hidden(session)

        return name

    def namer_for(self, peer: Peer) -> Namer:
        return self.namer(self._rules.person(peer))

    def hidden(self, session: str) -> str:
        record = self._sessions.known(session)
        return GONE if record is None else names.hidden(record.peer.user)

    def visible_to(self, person: Person) -> tuple[str, ...]:
        """Return the sessions whose names this person may see. The answer is cached, since it is
        read often and changes rarely."""
        if self._generation != self._sessions.generation:
            self._generation = self._sessions.generation
            self._visible.clear()
        if person not in self._visible:
            self._visible[person] = tuple(
                record.id for record in self._sessions.all_known() if self._may_see(person, record)
            )
        return self._visible[person]

    def causes(self, person: Person, causes: Mapping[str, str]) -> dict[str, str]:
        """Return the causes, by session, that this person may see."""
        return {id: cause for id, cause in causes.items() if self._may_see_cause(person, id)}

    def _may_see_cause(self, person: Person, session: str) -> bool:
        record = self._sessions.known(session)
        return record is not None and person.may(Permission.SEE_CAUSE, _resource(record))

    def _may_see(self, person: Person, record: SessionRecord) -> bool:
        shows_all = self._rules.rules.notebook_names == "everybody"
        return shows_all or person.may(Permission.SEE_NAME, _resource(record))


def _resource(record: SessionRecord) -> Resource:
    return Resource(record.peer.user, record.group)
