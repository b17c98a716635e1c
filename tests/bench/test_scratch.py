import os
import subprocess
import sys
import tempfile
import time

import pytest

from bench.scratch import scratch_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _age(folder, seconds=3600):
    then = time.time() - seconds
    os.utime(folder, (then, then))


def test_the_folder_goes_with_the_block(tmp_path):
    with scratch_folder() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    program = "from bench.scratch import scratch_folder\nwith scratch_folder() as f:\n    (f / 'x').touch(); print(f, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    left = process.stdout.readline().strip()
    _age(left)
    with scratch_folder():
        assert os.path.exists(left), "still in use"
    process.kill()
    process.communicate()
    with scratch_folder():
        assert not os.path.exists(left)


def test_young_folders_and_other_names_stay(tmp_path):
    with scratch_folder() as folder:
        young = tmp_path / f"{folder.name}x"
    other = tmp_path / "bench_frameworks.torchinductor.0.2.13"
    link = tmp_path / f"{folder.name}link"
    for name in (young, other):
        name.mkdir()
    link.symlink_to(other)
    _age(other)
    with scratch_folder():
        pass
    assert young.exists()
    assert other.exists()
    assert link.is_symlink()
