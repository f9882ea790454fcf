"""`jupyter gpushare report`: days in, sums out."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import datetime

import pytest

from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.tools import usage_report as report
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client

from .test_cli import gpushare


def local(*moment: int) -> float:
    return datetime(*moment).timestamp()  # type: ignore[arg-type]


def test_a_day_is_whole_and_included_and_times_are_this_machines() -> None:
    asked = report.question("2026-11-01", "2026-11-02")
    assert (asked.start, asked.end) == (local(2026, 11, 1), local(2026, 11, 3))
    asked = report.question("2026-11-01T10:00", "2026-11-01T12:30", "hour")
    assert (asked.start, asked.end) == (local(2026, 11, 1, 10), local(2026, 11, 1, 12, 30))


def test_without_days_it_is_this_month_until_now() -> None:
    asked = report.question()
    began = datetime.fromtimestamp(asked.start)
    assert (began.day, began.hour, began.minute) == (1, 0, 0)
    assert asked.start <= time.time() <= asked.end + 1


@pytest.mark.parametrize(
    "text", ["soon", "2026-02-30", "1.11.2026", "2026-11-01T25:00", "10000-01-01"]
)
def test_a_wrong_date_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"a date is written 2026-11-01 or .*, not"):
        report.question(text)


@pytest.mark.parametrize("text", ["9999-12-31", "9999-12-31T23:59-10:00", "0001-01-01"])
def test_a_day_before_or_after_which_none_comes_is_refused(text: str) -> None:
    sentence = f"there are no accounts of the year {int(text[:4])}"
    for asked in ((text, ""), ("", text)):
        with pytest.raises(InvalidValue, match=sentence):
            report.question(*asked)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_name_is_no_formula_of_a_spreadsheet(name: str) -> None:
    asked = report.question("2026-11-01")
    rows = [m.AccountRow(one, 1.5, 0.5, 3.0, 4.0, 7) for one in (name, "ann")]
    titles, formula, plain = csv.reader(io.StringIO(report.as_csv(asked, rows), newline=""))
    assert titles == [asked.by, *m.AccountRow.__struct_fields__[1:]]
    assert (formula[0], plain[0]) == (f"'{name}", "ann")
    assert formula[1:] == plain[1:]


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.system
def test_the_report_is_a_table_a_spreadsheet_or_json(holder: Client) -> None:
    table = gpushare("report", "--by", "notebook")
    assert (table.returncode, table.stderr) == (0, "")
    assert "cnn.ipynb" in table.stdout
    sheet = gpushare("report", "--by", "notebook", "--csv").stdout
    (_, (name, seconds, *_)) = csv.reader(io.StringIO(sheet))
    assert name.endswith(": cnn.ipynb")
    assert float(seconds) > 0
    (row,) = json.loads(gpushare("report", "--json").stdout)
    assert row["turns"] == 1
    assert row["device_seconds"] > float(seconds)


def test_a_report_of_jobs_is_by_user_job_or_day() -> None:
    asked = report.question_of_jobs("2026-11-01", "2026-11-02", "day")
    assert (asked.start, asked.end, asked.by) == (local(2026, 11, 1), local(2026, 11, 3), "day")
    with pytest.raises(InvalidValue, match="a report of jobs is by user, job or day, not 'group'"):
        report.question_of_jobs(by="group")
