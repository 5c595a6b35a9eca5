from __future__ import annotations

import pytest

from dlb_gym.printable import printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("global_six, Zürich 東京 <&\"'|$", "global_six, Zürich 東京 <&\"'|$"),
        ("two\nlines\r\ttab", r"two\nlines\r\ttab"),
        ("\x00\x1b[2J\x7f\x9b", r"\x00\x1b[2J\x7f\x9b"),
        ("a\u202egpj.exe", r"a\u202egpj.exe"),  # turns the line round
        ("\u200b\ufeff\u2028\u2029", r"\u200b\ufeff\u2028\u2029"),
        ("\ud800", r"\ud800"),  # a lone surrogate, which UTF-8 does not have
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_characters_that_act_are_written_out_and_others_stay(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert printable(shown) == shown
    shown.encode("utf-8")
