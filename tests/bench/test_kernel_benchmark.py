import json

import pytest

from bench.kernel_benchmark import main
from rml_exec import isa_info


def test_rows_say_what_was_measured_and_the_peak_of_the_same_run(capsys):
    assert main(["--filter", "gemm_packed 8x768x768", "--repeat", "1", "--block-ms", "1", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert {"kernel", "shape", "isa", "threads", "gflops", "peak_gflops", "fraction"} <= set(row)
    assert (row["kernel"], row["shape"], row["isa"], row["threads"]) == ("gemm_packed", "8x768x768", isa_info()["name"], 1)
    assert row["fraction"] == pytest.approx(row["gflops"] / row["peak_gflops"], rel=1e-2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--filter", "("],
        ["--filter", "nothing"],
        ["--repeat", "0"],
        ["--block-ms", "nan"],
        ["--threads", "0"],
        ["--threads", "x"],
        ["--isa", "mmx"],
    ],
)
def test_bad_usage_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--repeat", "1", "--block-ms", "1", *arguments] if arguments[0] != "--repeat" else arguments)
    assert caught.value.code == 2
