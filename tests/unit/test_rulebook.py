"""The admin's file: its content, and one sentence for each thing that it cannot say."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import fields

from jupyter_gpushare.broker.admin import rulebook as r
from jupyter_gpushare.broker.admin import rulebook_file
from jupyter_gpushare.broker.admin.rulebook import Limit, Reservation, Rulebook, Zone
from jupyter_gpushare.broker.admin.rulebook_file import RulebookFile
from jupyter_gpushare.errors import InvalidValue

from ..violations import ROOT, expect_none

RULES = """
contact = "gpu@example.org"
admins = ["ada"]

[groups.physics]
members = ["ann", "bob"]
teachers = ["tim"]
weight = 2
trusted = true

[groups.students]
unix_group = "students"
hub_group = "course-1"

[users.ann]
weight = 3

[quotas]
persistent = "4 GiB"
sessions = 3
[quotas.users.ann]
persistent = 1000
[quotas.groups.students]
device_seconds_per_day = "2 h"
"""


# --- groups and roles -----------------------------------------------------------------------------


def test_a_user_is_in_the_first_group_that_lists_them() -> None:
    rules = rulebook_file.read(RULES)
    for user, groups, group in (
        ("ann", (), "physics"),
        ("ann", ("students",), "physics"),  # the first of the file
        ("eve", ("students",), "students"),
        ("eve", ("course-1", "others"), "students"),
        ("eve", ("physics",), ""),  # it is no Unix group of that name
        ("eve", ("",), ""),
        ("tim", (), ""),  # a teacher need not be a member
    ):
        assert rules.group_of(user, groups) == group, (user, groups)


def test_only_a_trusted_group_shares_memory() -> None:
    rules = rulebook_file.read(RULES)
    assert rules.domain_of("ann", "physics") == rules.domain_of("bob", "physics")
    assert rules.domain_of("eve", "students") != rules.domain_of("pat", "students")
    assert rules.domain_of("eve", "") != rules.domain_of("pat", "")
    assert rules.domain_of("ann", "physics") != rules.domain_of("group:physics", "")


def test_a_user_that_is_not_named_has_no_weight_of_their_own() -> None:
    rules = rulebook_file.read(RULES)
    assert rules.group_weights == {"physics": 2.0, "students": 1.0}
    assert rules.user_weights == {"ann": 3.0}


def test_a_users_quota_goes_before_everybodys_and_a_groups_stands_beside_it() -> None:
    seconds = "device_seconds_per_day"
    of_a_group = Limit(7200, f"{seconds} in [quotas.groups.students]", "students", True)
    rules = rulebook_file.read(RULES)
    for key, user, group, limits in (
        ("sessions", "ann", "physics", [Limit(3, "sessions in [quotas]", "ann", False)]),
        ("persistent", "ann", "", [Limit(1000, "persistent in [quotas.users.ann]", "ann", False)]),
        ("persistent", "bob", "", [Limit(4 << 30, "persistent in [quotas]", "bob", False)]),
        (seconds, "eve", "students", [of_a_group]),
        ("lane", "ann", "physics", []),
    ):
        assert list(rules.limits(key, user, group)) == limits, (key, user)


# --- errors ---------------------------------------------------------------------------------------

RESERVED = "[groups.a]\n[groups.b]\n" + 2 * "[[reservations]]\n{}\n"


ERRORS = (
    ("admins = ", "this is no TOML: Invalid value (at end of document)"),
    ("colour = 1", "colour is not known; contact, admins, "),
    ("notebook_names = 'no'", "notebook_names = 'no' is wrong; right is \"everybody\" or"),
    ("time_zone = 'Mars'", "time_zone = 'Mars' is wrong; right is the name of a time zone"),
    ("groups = 1", "groups has tables in it, as [groups.NAME], not 1"),
    ("[groups.'']", "a table in [groups] has no name"),
    ("[groups]\na = 1", "[groups.a] is a table, not 1"),
    ("[groups.a]\nwieght = 1", "wieght in [groups.a] is not known; members, "),
    ("[groups.a]\nweight = 0", "weight in [groups.a] = 0 is wrong; right is a number from 0.001"),
    ("[groups.a]\ntrusted = 1", "trusted in [groups.a] = 1 is wrong; right is true or false"),
    ("[quotas]\nlane = '3 GB'", "lane in [quotas] = '3 GB' is wrong; right is a size in bytes"),
    ("[quotas.users.a]\nsessions = 1.5", "sessions in [quotas.users.a] = 1.5 is wrong; right"),
    ("[quotas.groups.x]", "[quotas.groups] names the group 'x'; [groups] has none"),
    ("[idle]\ncull_after = 'soon'", "cull_after in [idle] = 'soon' is wrong; right is seconds"),
    ("[accounting]\nretention_days = 0", "retention_days in [accounting] = 0 is wrong"),
    ("[reservations]", "reservations is a list of tables, each under [[reservations]]"),
    (
        "[[reservations]]\ngroup = 'x'\nfrom = '10:00'\nto = '12:00'",
        "[reservations] names the group 'x'; [groups] has none",
    ),
    (
        "[groups.a]\n[[reservations]]\ngroup = 'a'\nto = '12:00'",
        "from in [[reservations]] number 1 is missing; right is a time of the day",
    ),
    (
        RESERVED.format("group = 'a'\nfrom = '10:00'\nto = '12:00'", "group = 'a'\nday = 1"),
        "day in [[reservations]] number 2 is not known; group, from, to, device, share, days",
    ),
    (
        RESERVED.format("group = 'a'\nfrom = '10:60'\nto = '12:00'", ""),
        "from in [[reservations]] number 1 = '10:60' is wrong; right is a time of the day",
    ),
    (
        RESERVED.format(
            "group = 'a'\nfrom = '10:00'\nto = '12:00'",
            "group = 'b'\nfrom = '11:59'\nto = '12:30'\nshare = 0.5",
        ),
        "of a from 10:00 and of b from 11:59, meet and are more than the whole device together",
    ),
    (
        RESERVED.format(
            "group = 'a'\nfrom = '22:00'\nto = '01:00'\ndays = ['sunday']",
            "group = 'b'\nfrom = 00:30:00\nto = '02:00'\ndays = ['monday']",
        ),
        "of a from 22:00 and of b from 00:30, meet",
    ),
)


def test_an_error_names_table_key_and_what_would_be_right() -> None:
    said = [(text, sentence, error_of(text)) for text, sentence in ERRORS]
    expect_none(
        f"{text!r} is answered by {error!r}"
        for text, sentence, error in said
        if sentence not in error or "\n" in error
    )


def error_of(text: str) -> str:
    try:
        rulebook_file.read(text)
    except InvalidValue as error:
        return str(error)
    return "no error"


def test_reservations_that_do_not_meet_stand_beside_each_other() -> None:
    first = "group = 'a'\nfrom = '10:00'\nto = '12:00'\ndevice = 'cuda:0'\ndays = ['monday']"
    for second in (
        "group = 'b'\nfrom = '12:00'\nto = '14:00'",
        "group = 'b'\nfrom = '10:00'\nto = '12:00'\ndevice = 'cuda:1'",
        "group = 'b'\nfrom = '10:00'\nto = '12:00'\ndays = ['sunday']",
    ):
        assert len(rulebook_file.read(RESERVED.format(first, second)).reservations) == 2, second


# --- reservations in time -------------------------------------------------------------------------


def reservation(**keys: str) -> Reservation:
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    (found,) = rulebook_file.read(
        f"[groups.a]\n[[reservations]]\ngroup = 'a'\n{lines}"
    ).reservations
    return found


def unix(zone: str, *when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo(zone)).timestamp()  # type: ignore[arg-type, misc]


def test_a_reservation_is_the_active_one_or_the_next() -> None:
    tuesdays = reservation(**{"from": "'10:00'", "to": "'12:00'", "days": "['tuesday']"})
    berlin = Zone("Europe/Berlin")
    first, last = unix(berlin, 2026, 11, 24, 10), unix(berlin, 2026, 11, 24, 12)
    for now in (unix(berlin, 2026, 11, 17, 12), unix(berlin, 2026, 11, 23, 1), first, last - 1):
        assert tuesdays.span(now, berlin) == (first, last)
    week = 7 * 86400
    assert tuesdays.span(last, berlin) == (first + week, last + week)


def test_one_that_ends_before_it_begins_ends_on_the_next_day() -> None:
    nights = reservation(**{"from": "'22:00'", "to": "'06:00'"})
    midnight = unix("UTC", 2026, 11, 24)
    assert nights.span(midnight, Zone("UTC")) == (midnight - 2 * 3600, midnight + 6 * 3600)


def test_a_reservation_is_at_the_same_hour_before_and_after_clocks_are_changed() -> None:
    mornings, berlin = reservation(**{"from": "'10:00'", "to": "'12:00'"}), Zone("Europe/Berlin")
    begins = [mornings.span(unix("UTC", 2026, 10, day), berlin).begins for day in (24, 25, 26)]
    hours = [datetime.fromtimestamp(at, timezone.utc).hour for at in begins]
    assert hours == [8, 9, 9]


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


@pytest.mark.parametrize(("content", "sentence"), [(None, "No such file"), (b"\xff", "UTF-8")])
def test_a_file_that_cannot_be_read_is_reported(
    path: Path, content: bytes | None, sentence: str
) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidValue, match=sentence):
        RulebookFile(str(path))


def test_a_file_is_read_again_when_it_has_changed_and_not_before(path: Path) -> None:
    file = RulebookFile(str(path))
    before = file.rules
    assert not file.follow(0.0)
    assert file.rules is before
    path.write_text("admins = ['bob']")
    assert file.follow(0.0)
    assert (file.rules.admins, file.error) == (["bob"], "")


def test_a_file_that_takes_the_place_of_another_is_seen(path: Path) -> None:
    """Same time and same size, as editors and configuration tools leave it."""
    file = RulebookFile(str(path))
    other = path.with_suffix(".new")
    other.write_text(RULES.replace("ada", "bob"))
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert file.follow(0.0)
    assert file.rules.admins == ["bob"]


@pytest.mark.parametrize("content", ["admins = 3", None])
def test_a_wrong_file_leaves_the_old_rules_in_force_and_is_reported_once(
    path: Path, content: str | None
) -> None:
    file = RulebookFile(str(path))
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    assert file.follow(0.0)
    assert str(path) in file.error
    assert file.error.endswith("; the rules before it stay in force")
    assert file.rules.admins == ["ada"]
    assert not file.follow(0.0)
    path.write_text("admins = ['bob']")
    assert file.follow(0.0)
    assert (file.rules.admins, file.error) == (["bob"], "")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_that_is_empty_for_a_moment_lifts_no_rules(path: Path, content: str) -> None:
    """It may be being saved, or on a full disk; a file with a comment in it is intended."""
    file = RulebookFile(str(path))
    path.write_text(content)
    assert file.follow(0.0)
    assert "is empty" in file.error
    assert file.rules.admins == ["ada"]
    path.write_text("# none any more")
    assert file.follow(0.0)
    assert (file.rules, file.error) == (Rulebook(), "")
    path.write_text("")
    assert file.follow(0.0)
    assert (file.rules, file.error) == (Rulebook(), "")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_path_that_becomes_no_plain_file_is_not_waited_for(
    path: Path, make: Callable[[Path], None]
) -> None:
    file = RulebookFile(str(path))
    path.unlink()
    make(path)
    assert file.follow(0.0)
    assert "is no plain file" in file.error
    assert file.rules.admins == ["ada"]


STRANGER = 54322


def by_a_link_in_a_folder_for_all(path: Path) -> None:
    path.rename(kept := path.parent.parent / "rules.toml")
    path.symlink_to(kept)
    path.parent.chmod(0o777)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda path: os.chown(path, STRANGER, STRANGER), "belongs to another user"),
        (lambda path: os.chown(path.parent, STRANGER, STRANGER), "belongs to another user"),
        (lambda path: path.chmod(0o664), "a group may write"),
        (lambda path: path.parent.chmod(0o777), "everybody may write"),
        (lambda path: path.parent.chmod(0o775), "a group may write"),
        (by_a_link_in_a_folder_for_all, "everybody may write"),
    ],
    ids=["owner", "folder's owner", "group", "folder for all", "folder of a group", "link"],
)
def test_rules_that_others_could_make_are_not_followed(
    tmp_path: Path, made: Callable[[Path], None], sentence: str
) -> None:
    path = tmp_path / "own" / "rules.toml"
    path.parent.mkdir(mode=0o755)
    path.write_text(RULES)
    file = RulebookFile(str(path))
    made(path)
    path.touch()
    assert file.follow(0.0)
    assert sentence in file.error
    assert file.rules.admins == ["ada"]
    with pytest.raises(InvalidValue, match=sentence):
        RulebookFile(str(path))


@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_the_remedy_that_an_error_names_mends_it(tmp_path: Path, is_folder: bool) -> None:
    path = tmp_path / "own" / "rules.toml"
    path.parent.mkdir(mode=0o755)
    path.write_text(RULES)
    file = RulebookFile(str(path))
    (shared := path.parent if is_folder else path).chmod(0o777)
    path.write_text("admins = ['bob']")
    assert file.follow(0.0)
    assert f"`chmod go-w {shared}`" in file.error
    assert not file.follow(2.0), "it is reported once"
    shared.chmod(0o755)
    assert file.follow(4.0)
    assert (file.rules.admins, file.error) == (["bob"], "")


def test_a_folder_in_which_no_other_can_take_away_a_file_will_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (path := tmp_path / "rules.toml").write_text(RULES)
    path.chmod(0o644)
    assert RulebookFile(str(path)).rules.admins == ["ada"]


def test_a_draft_may_be_anybodys_and_lie_anywhere(path: Path) -> None:
    path.parent.chmod(0o777)
    assert rulebook_file.load(path).admins == ["ada"]


# --- docs -----------------------------------------------------------------------------------------

DOCS = (ROOT / "docs" / "how-to" / "rulebook.md").read_text()


def test_the_example_of_the_docs_is_right_and_has_every_table() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    rules, names = rulebook_file.read(example), Rulebook.__struct_fields__
    assert all(getattr(rules, name) != getattr(Rulebook(), name) for name in names)
    assert rules.reservations[0].days == ("tuesday",)


def test_the_docs_have_every_key() -> None:
    kinds = (r.Group, r.User, r.Quota, Reservation, r.Idle, r.Overdue, r.Accounting)
    keys = [row.encode_name for kind in kinds for row in fields(kind)]
    expect_none(key for key in keys if not re.search(rf"^\|.*`{key}`.*\|", DOCS, re.MULTILINE))
