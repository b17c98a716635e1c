"""Pickling, processes, foreign arrays, intermediates, memory: what Python users expect of an object."""

import io
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rml_exec import Executor, GraphBuilder, InputError, load_graph, save_graph
from rml_exec.runtime.reference import run_reference
from tests.helpers.graphs import cnn_graph, mlp_graph, random_inputs

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


@pytest.fixture
def model(tmp_path):
    for path in DATA.glob("tiny_cnn.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "tiny_cnn"


def test_a_file_backed_executor_pickles_by_path(model):
    executor = Executor.create(load_graph(model), threads=1, fuse=False, numerics="exact")
    content = pickle.dumps(executor)
    assert len(content) < 2000
    restored = pickle.loads(content)
    assert (restored.threads, restored.numerics) == (1, "exact")
    assert restored.steps == executor.steps
    inputs = random_inputs(executor.graph)
    np.testing.assert_array_equal(restored.run(inputs)["y"], executor.run(inputs)["y"])


def test_a_pickle_of_a_model_that_changed_since_is_refused(model):
    content = pickle.dumps(Executor.create(load_graph(model)))
    save_graph(cnn_graph(size=10), model)
    with pytest.raises(InputError, match="must be the model that was pickled"):
        pickle.loads(content)


def test_an_executor_of_a_graph_in_memory_pickles_with_it():
    executor = Executor.create(mlp_graph())
    restored = pickle.loads(pickle.dumps(executor))
    inputs = random_inputs(executor.graph)
    np.testing.assert_array_equal(restored.run(inputs)["y"], executor.run(inputs)["y"])


def test_a_graph_changed_after_loading_is_not_taken_for_its_file(model):
    graph = load_graph(model)
    changed = graph.with_nodes(tuple(replace(node, metadata={}) for node in graph.nodes))
    assert len(pickle.dumps(Executor.create(changed))) > len(pickle.dumps(Executor.create(graph)))


def _run(executor, seed):
    return executor.run(random_inputs(executor.graph, seed))["y"]


# Each in a process of its own: the test process may hold frameworks whose threads do not survive a fork.
_POOLS = """
import multiprocessing, sys
import numpy as np
from concurrent.futures import ProcessPoolExecutor
from rml_exec import Executor, load_graph
from tests.runtime.test_at_home_in_python import _run

if __name__ == "__main__":
    executor = Executor.create(load_graph(sys.argv[1]), threads=2)
    want = [_run(executor, seed) for seed in range(4)]  # the worker threads have run in this process
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(sys.argv[2])) as pool:
        got = list(pool.map(_run, [executor] * 4, range(4), timeout=120))
    assert all(np.array_equal(one, other) for one, other in zip(got, want))
"""

_FORKS = """
import os, sys
import numpy as np
from rml_exec import Executor, load_graph
from tests.runtime.test_at_home_in_python import _run

executor = Executor.create(load_graph(sys.argv[1]), threads=2)
want = _run(executor, 0)
for _ in range(100):
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(_run(executor, 0), want) else 1)  # the child makes its own worker threads
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(_run(executor, 0), want)
"""

# What a server does that loads its model before it forks: several workers at once, each with threads of its own, one that is replaced, and
# the parent goes on, in the middle of a run of another thread whenever it forks.
_PRELOADED = """
import os, sys, threading
import numpy as np
from rml_exec import Executor, load_graph
from tests.runtime.test_at_home_in_python import _run

executor = Executor.create(load_graph(sys.argv[1]), threads=2)
want = [_run(executor, seed) for seed in range(4)]
stopped, good = threading.Event(), [True]

def serve(seed, runs):
    while runs and not stopped.is_set():
        good[0] &= np.array_equal(_run(executor, seed), want[seed])
        runs -= 1

def worker():
    child = os.fork()
    if child:
        return child
    callers = [threading.Thread(target=serve, args=(seed, 20)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    os._exit(0 if good[0] else 1)

parent = threading.Thread(target=serve, args=(0, -1))
parent.start()
workers = [worker() for _ in range(4)]
for served in range(12):
    assert os.waitstatus_to_exitcode(os.waitpid(workers.pop(0), 0)[1]) == 0
    workers.append(worker())
for child in workers:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stopped.set()
parent.join()
assert good[0]
"""


def _script(text, tmp_path, *arguments):
    path = tmp_path / "script.py"
    path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    subprocess.run([sys.executable, str(path), *map(str, arguments)], check=True, timeout=240, cwd=ROOT, env=environment)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_it_crosses_process_pools(model, tmp_path, method):
    _script(_POOLS, tmp_path, model, method)


def test_a_forked_child_uses_its_parents_executor_with_threads(model, tmp_path):
    _script(_FORKS, tmp_path, model)


def test_workers_forked_from_a_server_that_has_loaded_and_runs(model, tmp_path):
    _script(_PRELOADED, tmp_path, model)


def test_it_runs_in_a_thread_pool(model):
    executor = Executor.create(load_graph(model))
    want = [_run(executor, seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(lambda seed: _run(executor, seed), range(16)), want, strict=True):
            np.testing.assert_array_equal(one, other)


def test_graphs_load_from_bytes_and_file_objects(model):
    json, weights = model.with_suffix(".json").read_bytes(), model.with_suffix(".safetensors").read_bytes()
    inputs = random_inputs(load_graph(model))
    want = Executor.create(load_graph(model)).run(inputs)["y"]
    for graph in (load_graph(json, weights), load_graph(io.BytesIO(json), io.BytesIO(weights))):
        np.testing.assert_array_equal(Executor.create(graph).run(inputs)["y"], want)


class _DLPackOnly:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack_and_buffers_are_taken_without_a_copy():
    b = GraphBuilder("first")
    x = b.input("x", "f32", (4,))
    b.output("y", b.add("neg", [x]))
    executor = Executor.create(b.build())
    array = np.arange(4, dtype=np.float32)
    from rml_exec.runtime.binding import Signature, bind_inputs

    for foreign in (_DLPackOnly(array), memoryview(array)):
        (taken,) = bind_inputs(Signature(executor.input_types), [foreign])
        assert np.shares_memory(taken, array)
        np.testing.assert_array_equal(executor.run([foreign])["y"], -array)


def test_wanted_intermediates_come_with_the_outputs():
    graph = cnn_graph(batch=2)
    executor, inputs = Executor.create(graph), random_inputs(graph)
    ends = {step.covers[-1] for step in executor.steps if step.covers}  # what comes before within a step is swallowed
    names = [value.name for node in graph.nodes for value in node.outputs if node.name in ends][:-1]
    assert len(names) > 2
    want = run_reference(graph, inputs, precision="f32", want=names)
    got = executor.run(inputs, want=names)
    assert list(got) == ["y", *names]
    for name, array in got.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(executor.run(inputs)["y"], got["y"])


def test_a_value_that_a_fusion_swallowed_is_an_error_naming_the_step():
    b = GraphBuilder("swallow")
    x = b.input("x", "f32", (4,))
    b.output("y", b.add("relu", [b.add("neg", [x], outputs=["inside"])]))
    graph = b.build()
    array = np.array([1, -2, 3, -4], np.float32)
    with pytest.raises(InputError, match=r"fused\(neg,relu\)"):
        Executor.create(graph).run([array], want=["inside"])
    np.testing.assert_array_equal(Executor.create(graph, fuse=False).run([array], want=["inside"])["inside"], -array)


@pytest.mark.parametrize(("name", "text"), [("nothing", "has no such value"), ("y", "names an output")])
def test_a_name_that_cannot_be_wanted_is_refused(name, text):
    b = GraphBuilder("want")
    b.output("y", b.add("neg", [b.input("x", "f32", (4,))], outputs=["value"]))
    with pytest.raises(InputError, match=text):
        Executor.create(b.build()).run([np.zeros(4, np.float32)], want=[name])


def test_trim_gives_idle_arenas_back():
    graph = cnn_graph()
    executor = Executor.create(graph)
    executor.run(random_inputs(graph))
    assert executor.pool.bytes_held > 0
    executor.trim()
    assert executor.pool.bytes_held == 0
    executor.run(random_inputs(graph))


def test_packed_weights_are_shared_by_executors_of_one_graph():
    from rml_exec.ir import derived

    graph = mlp_graph(sizes=(31, 37, 41))
    first = Executor.create(graph)
    count = len(derived._entries)
    second = Executor.create(graph, fuse=False)
    assert len(derived._entries) == count
    del first, second
    assert len(derived._entries) < count


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_run_opens_no_socket_and_writes_nothing(model):
    code = (
        "import os, numpy as np\n"
        "from rml_exec import Executor, load_graph\n"
        f"executor = Executor.create(load_graph({str(model)!r}), threads=2)\n"
        "for _ in range(3): executor.run([np.zeros(t.shape, np.float32) for t in executor.input_types.values()])\n"
    )
    log = model.with_name("log")
    done = subprocess.run(
        ["strace", "-f", "-o", str(log), "-e", "trace=%network,write,pwrite64,writev,openat,creat,unlink,rename", sys.executable, "-B", "-c", code],
        capture_output=True, check=True, env=os.environ,
    )  # fmt: skip
    assert done.stdout == done.stderr == b""
    lines = log.read_text().splitlines()
    assert any("tiny_cnn.json" in line for line in lines)
    assert [
        line
        for line in lines
        if any(call in line for call in ("socket(", "connect(", "write", "creat(", "O_WRONLY", "O_RDWR", "unlink(", "rename("))
    ] == []


def _save(op, path):
    b = GraphBuilder("one")
    b.output("y", b.add(op, [b.input("x", "f32", (3,))]))
    save_graph(b.build(), path)


def test_a_pickle_is_of_the_model_that_was_loaded_wherever_and_whenever_it_is_made(tmp_path, monkeypatch):
    ones = [np.ones(3, np.float32)]
    for folder, op in (("a", "neg"), ("b", "exp")):
        (tmp_path / folder).mkdir()
        _save(op, tmp_path / folder / "m")
    monkeypatch.chdir(tmp_path / "a")
    executor = Executor.create(load_graph("m"))
    monkeypatch.chdir(tmp_path / "b")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(executor)).run(ones)["y"], [-1, -1, -1])
    _save("exp", tmp_path / "a" / "m")  # the file is another model now, the executor is not
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(executor)).run(ones)["y"], [-1, -1, -1])


def test_a_pickle_keeps_weights_that_came_from_another_file(model):
    other = model.with_name("other.safetensors")
    content = bytearray(model.with_suffix(".safetensors").read_bytes())
    content[-400:] = bytes(400)
    other.write_bytes(content)
    executor = Executor.create(load_graph(model, other))
    inputs = random_inputs(executor.graph)
    restored = pickle.loads(pickle.dumps(executor))
    np.testing.assert_array_equal(restored.run(inputs)["y"], executor.run(inputs)["y"])
    assert not np.array_equal(restored.run(inputs)["y"], Executor.create(load_graph(model)).run(inputs)["y"])


@pytest.mark.parametrize("inputs", [None, 5, iter(())])
def test_what_is_no_set_of_inputs_is_refused(inputs):
    with pytest.raises(InputError, match="mapping by name or a sequence"):
        Executor.create(mlp_graph()).run(inputs)


def test_names_wanted_come_in_a_list():
    with pytest.raises(InputError, match="list of names"):
        Executor.create(mlp_graph()).run(random_inputs(mlp_graph()), want="fc0")
    with pytest.raises(InputError, match="out takes a mapping"):
        Executor.create(mlp_graph()).run(random_inputs(mlp_graph()), out=[np.empty((2, 4), np.float32)])
