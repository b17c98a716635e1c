import doctest
from pathlib import Path

import rml_exec.plan


def test_the_readme_shows_what_happens():
    page = Path(rml_exec.plan.__file__).with_name("README.md")
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried >= 15) == (0, True)
