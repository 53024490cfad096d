"""Budgets as users write them: each form, and for what is none an error that names the forms and what was found."""

import math
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidArgument
from lowtide.ortmodule.budget import EXPECTED, UNITS, Budget, format_bytes, machine_bytes, parse_budget

HAS = 1 << 40


@pytest.mark.parametrize(
    ("written", "budget"),
    [
        (600_000_000, Budget(bytes=600_000_000)),
        (numpy.int64(4096), Budget(bytes=4096)),
        (1, Budget(bytes=1)),
        ("1", Budget(bytes=1)),
        ("1_000_000", Budget(bytes=1_000_000)),
        (" 600MiB ", Budget(bytes=600 << 20)),
        ("600 mib", Budget(bytes=600 << 20)),
        ("0.6GB", Budget(bytes=600_000_000)),
        ("0.1KiB", Budget(bytes=102)),
        ("17 B", Budget(bytes=17)),
        ("1TiB", Budget(bytes=1 << 40)),
        ("75%", Budget(fraction=0.75)),
        ("12.5 %", Budget(fraction=0.125)),
        ("100%", Budget(fraction=1.0)),
        (0.75, Budget(fraction=0.75)),
        (1.0, Budget(fraction=1.0)),
        (numpy.float32(0.5), Budget(fraction=0.5)),
        ("0.5", Budget(fraction=0.5)),
    ],
)
def test_forms(written, budget):
    assert parse_budget(written, has=HAS) == budget


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("-1", "not a budget"),
        (-1, "no size"),
        (0, "no size"),
        ("0", "no size"),
        ("0MiB", "no size"),
        ("0.0001B", "no size"),
        ("12 apples", "unknown unit 'apples'"),
        ("12M", "unknown unit 'M'"),
        ("", "empty"),
        ("  ", "empty"),
        ("MiB", "not a budget"),
        ("1__000", "not a budget"),
        ("1e9", "not a budget"),
        ("1,5GB", "not a budget"),
        ("٣MiB", "not a budget"),
        ("nan", "not a budget"),
        ("NaN%", "not a budget"),
        ("0%", "between 0 and 1"),
        ("101%", "between 0 and 1"),
        ("1.5", "between 0 and 1"),
        (0.0, "between 0 and 1"),
        (-0.5, "between 0 and 1"),
        (1.5, "between 0 and 1"),
        (6e8, "between 0 and 1"),
        (math.nan, "between 0 and 1"),
        (math.inf, "between 0 and 1"),
        (True, "a bool"),
        (b"600MiB", "a bytes"),
        ([1], "a list"),
        (1j, "a complex"),
        (HAS + 1, "more than this machine's 1.00 TiB"),
        ("2TiB", "more than this machine's 1.00 TiB"),
        (10**300, "more than this machine's 1.00 TiB"),
        ("9" * 5000, "not a budget"),
        ("9" * 400 + ".0", "not a budget"),
    ],
)
def test_mistakes_name_the_forms_and_what_was_found(written, why):
    with pytest.raises(InvalidArgument) as raised:
        parse_budget(written, "LOWTIDE_MEMORY_BUDGET", has=HAS)
    text = str(raised.value)
    assert text.startswith("LOWTIDE_MEMORY_BUDGET is ") and why in text and text.endswith(f"expected {EXPECTED}")
    assert len(text) < 500


def test_the_machine_is_asked_where_nobody_says_what_it_has():
    assert parse_budget(machine_bytes()) == Budget(bytes=machine_bytes())
    with pytest.raises(InvalidArgument, match="more than this machine's"):
        parse_budget(machine_bytes() + 1)


@given(st.integers(1, HAS))
def test_an_int_means_itself_with_or_without_quotes(count):
    assert {parse_budget(written, has=HAS) for written in (count, str(count), f"{count:_}", f"{count}B")} == {
        Budget(bytes=count)
    }


@given(st.decimals(0, 2000, places=3), st.sampled_from(sorted(UNITS)))
def test_a_unit_multiplies_exactly(number, unit):
    exact = int(Fraction(number) * UNITS[unit])
    if exact == 0:
        with pytest.raises(InvalidArgument):
            parse_budget(f"{number:f}{unit}", has=1 << 60)
    else:
        assert parse_budget(f"{number:f}{unit}", has=1 << 60) == Budget(bytes=exact)


@given(st.floats(0, 1, exclude_min=True))
def test_a_part_is_what_was_written(part):
    assert parse_budget(part) == Budget(fraction=part)


@given(st.one_of(st.text(max_size=12), st.from_regex(r"[0-9._]*\s*[%A-Za-z]{0,4}", fullmatch=True)))
def test_any_text_is_a_budget_or_the_users_mistake(text):
    try:
        budget = parse_budget(text, has=HAS)
    except InvalidArgument as error:
        assert repr(text)[:40] in str(error)
    else:
        assert 0 < budget.bytes <= HAS or 0 < budget.fraction <= 1


def test_budgets_in_words():
    assert [format_bytes(count) for count in (1023, 1024, 600 << 20, 5 << 40)] == [
        "1023 B",
        "1.0 KiB",
        "600.0 MiB",
        "5.00 TiB",
    ]
    assert str(Budget(bytes=600 << 20)) == "600.0 MiB"
    assert str(Budget(fraction=0.75)) == "0.75 of the plan without a budget"
