"""Names of variants and policies in the files of an experiment: any characters, one meaning."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pandas as pd
from matplotlib.figure import Figure

from experiments.runner.drawing import panels, svg
from experiments.runner.publication import csv_text, read_table

ACTING = "<b>&\"'|,`$x$]]>\n\r\x00\x1b[2J\u202e"
SHOWN = "<b>&\"'|,`$x$]]>" + r"\n\r\x00\x1b[2J\u202e"


def test_a_name_in_a_table_is_one_cell_of_one_line() -> None:
    table = pd.DataFrame({"policy": [ACTING, "plain"], "mean_s": [0.25, None]})
    text = csv_text(table)
    assert len(text.splitlines()) == 3
    assert all(line.isprintable() for line in text.splitlines())
    again = read_table(text)
    assert list(again["policy"]) == [SHOWN, "plain"]
    assert again["mean_s"].isna().tolist() == [False, True]
    assert csv_text(again) == text


def test_a_name_in_a_figure_is_text_and_the_file_is_xml() -> None:
    """The figure is made of the table as its file has it."""

    def figure(table: pd.DataFrame) -> Figure:
        drawn, (axis,) = panels()
        axis.plot([0, 1], [0, 1], label=table["policy"][0])
        axis.legend()
        return drawn

    table = read_table(csv_text(pd.DataFrame({"policy": [ACTING]})))
    root = ET.fromstring(svg(figure, table, "named"))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert SHOWN in texts
