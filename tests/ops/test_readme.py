"""The op table of the README is the one that ``python -m rml_exec.ops`` prints."""

from __future__ import annotations

from pathlib import Path

import rml_exec.ops
from rml_exec.ops.__main__ import op_table

README = Path(rml_exec.ops.__file__).with_name("README.md")


def test_readme_holds_the_printed_table():
    text = README.read_text(encoding="utf-8")
    table = text[text.index("| op |") :].partition("\n\n")[0].rstrip("\n") + "\n"
    assert table == op_table()


def test_every_row_has_as_many_cells_as_the_heading():
    rows = op_table().replace("\\|", "").splitlines()
    assert len(rows) == 2 + len(rml_exec.ops.all_ops())
    assert {row.count("|") for row in rows} == {7}
