"""windrow.jax: lists of pytrees to pytrees of JAX arrays."""

import doctest
import enum
import os
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

import isolated
import oracle
import windrow as wr
from helpers import assert_same, paint, paint_values, refusal, run_examples

jax = pytest.importorskip("jax", reason="SKIP: jax is not installed")

import windrow.jax  # noqa: E402

Pair = namedtuple("Pair", "left right")


@jax.tree_util.register_pytree_node_class
class Box:
    """A node of the user's own."""

    def __init__(self, inside, label):
        self.inside, self.label = inside, label

    def tree_flatten(self):
        return (self.inside,), self.label

    @classmethod
    def tree_unflatten(cls, label, children):
        return cls(*children, label)


@dataclass
class Registered:
    image: object
    label: object


@dataclass
class Unknown:
    image: object


jax.tree_util.register_dataclass(Registered, data_fields=["image"], meta_fields=["label"])


@pytest.fixture(autouse=True)
def without_64_bits():
    """Switches 64 bits off, JAX's default; windrow.bench switches them on for its whole process."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", before)


def leaf(i, shape=(3, 4), name="uint8"):
    return paint(shape, name, 10 * i)


def stacked(n, *args):
    return np.stack([leaf(i, *args) for i in range(n)])


def assert_array(got, want, name=None):
    assert isinstance(got, jax.Array)
    if name == "bfloat16":
        got = jax.lax.bitcast_convert_type(got, "uint16")
    assert_same(np.asarray(got), want)


# Trees


def test_containers():
    trees = [{"a": leaf(i), "b": [leaf(i, (2,)), (leaf(i, (5,)), Pair(leaf(i, ()), None))]} for i in range(3)]
    got = windrow.jax.stack(trees)
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(trees[0])
    assert_array(got["a"], stacked(3))
    assert_array(got["b"][1][0], stacked(3, (5,)))
    assert_array(got["b"][1][1].left, stacked(3, ()))


def test_nodes_of_the_users_own():
    trees = [Box(OrderedDict(x=leaf(i), y=Registered(leaf(i, (2,)), "kept")), "label") for i in range(4)]
    got = windrow.jax.collate(trees)
    assert type(got) is Box and got.label == "label" and type(got.inside) is OrderedDict
    assert type(got.inside["y"]) is Registered and got.inside["y"].label == "kept"
    assert_array(got.inside["x"], stacked(4))
    assert_array(got.inside["y"].image, stacked(4, (2,)))


def test_samples_of_jax_arrays():
    rows = [paint((4, 3), "float32", i) for i in range(3)]
    assert_array(windrow.jax.stack([jax.numpy.asarray(row) for row in rows]), np.stack(rows))


def test_numbers_and_strings():
    got = windrow.jax.collate([{"f": i / 2, "i": i, "name": f"n{i}"} for i in range(3)])
    assert got["name"] == ["n0", "n1", "n2"]
    assert_array(got["f"], np.arange(3, dtype=np.float32) / 2)
    assert_array(got["i"], np.arange(3, dtype=np.int32))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_are_their_rows(library):
    frame = pytest.importorskip(library, reason=f"SKIP: {library} is not installed").DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    for call in (windrow.jax.collate, windrow.jax.stack):
        got = call(frame)
        assert_array(got["a"], np.array([1, 2], np.int32))
        assert_array(got["b"], np.array([0.5, 1.5], np.float32))


def test_a_tree_without_leaves():
    assert windrow.jax.collate([{"a": None, "b": ()}] * 2) == {"a": None, "b": ()}


# Forms


ROWS = [paint_values(n, "float32", n) for n in (3, 0, 5, 1)]


def test_pad():
    got = windrow.jax.pad(ROWS, value=-1, multiple_of=4, mask="real", dtype="bfloat16")
    want = oracle.pad(ROWS, "float32", -1, multiple_of=4, mask="real", dst="bfloat16")
    assert isinstance(got, windrow.jax.JaxBatch)
    assert_array(got.data, want.data, "bfloat16")
    assert_array(got.mask, want.mask)
    assert_array(got.lengths, np.array([3, 0, 5, 1], np.int32))
    assert got.offsets is None and got.batch_index is None and got.max_length is None


def test_ragged_and_concat():
    got = windrow.jax.ragged(ROWS, batch_index=True)
    assert_array(got.data, np.concatenate(ROWS))
    assert_array(got.offsets, np.array([0, 3, 3, 8, 9], np.int32))
    assert_array(got.batch_index, np.repeat(np.arange(4, dtype=np.int32), [3, 0, 5, 1]))
    assert type(got.max_length) is int and got.max_length == 5
    joined = windrow.jax.concat([{"x": row} for row in ROWS])["x"]
    assert_array(joined.data, np.concatenate(ROWS))
    assert_array(joined.offsets, np.array([0, 3, 3, 8, 9], np.int32))


def test_spec():
    trees = [{"ids": leaf(i, (1 + i,)), "box": Box(leaf(i, (2 + i,)), 0), "p": Pair(leaf(i), i), "y": i} for i in range(3)]
    spec = {"ids": wr.Pad(value=9), "box.*": wr.Ragged(), "p.left": wr.Stack(dtype="float32")}
    got = windrow.jax.collate(trees, spec)
    assert_array(got["ids"].data, oracle.pad([leaf(i, (1 + i,)) for i in range(3)], "uint8", 9).data)
    assert_array(got["box"].inside.offsets, np.array([0, 2, 5, 9], np.int32))
    assert_array(got["p"].left, stacked(3).astype(np.float32))
    got = windrow.jax.collate([{"a": {"b.c": ROWS[0]}}] * 2, {"a/b.c": wr.Ragged()}, sep="/")
    assert_array(got["a"]["b.c"].offsets, np.array([0, 3, 6], np.int32))


def test_keys_that_look_like_globs():
    trees = [{"a*": leaf(i, (1 + i,)), "ab": leaf(i), "[x]": leaf(i)} for i in range(2)]
    got = windrow.jax.collate(trees, {"a*": wr.Ragged(), "ab": wr.Pad(), "[x]": wr.Stack(dtype="int32")})
    assert_array(got["a*"].offsets, np.array([0, 1, 3], np.int32))
    assert_array(got["ab"].data, stacked(2))
    assert_array(got["[x]"], stacked(2).astype(np.int32))


def test_a_batch_goes_through_jit():
    batch = windrow.jax.pad(ROWS, mask="real")
    total = jax.jit(lambda batch: (batch.data * batch.mask).sum())(batch)
    assert float(total) == pytest.approx(float(sum(row.sum() for row in ROWS)))
    ragged = windrow.jax.ragged(ROWS)
    assert int(jax.jit(lambda batch: batch.max_length)(ragged)) == 5


# Memory and placement


def test_the_memory_is_shared_on_the_cpu_and_outlives_the_batch():
    if jax.default_backend() != "cpu":
        pytest.skip("SKIP: an accelerator has memory of its own")
    counts = wr.stats()["bytes_out"]
    got = windrow.jax.stack([leaf(i, (64, 64), "float32") for i in range(8)])
    others = [wr.stack([np.zeros((8, 64, 64), np.float32)]) for _ in range(8)]
    assert wr.stats()["bytes_out"] - counts == 9 * 8 * 64 * 64 * 4
    assert_array(got, stacked(8, (64, 64), "float32"))
    assert got.unsafe_buffer_pointer() not in [other.data_ptr() for other in others]


def run(code, **environment):
    """The output of a fresh interpreter."""
    done = isolated.python("-c", code, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


# The stand-in for an accelerator is a second device of the host: what JAX puts there is there.
PLACES = """
import numpy as np, jax, windrow.jax
first, second = jax.devices()[:2]
rows = [np.ones(8, np.float32)] * 2
def tell(tree):
    for array in jax.tree_util.tree_leaves(tree):
        print(*array.devices(), array.committed)
tell(windrow.jax.stack(rows))
jax.config.update("jax_default_device", second)
tell(windrow.jax.stack(rows))
tell(windrow.jax.pad([{"a": np.ones(n)} for n in (1, 2)], mask="real"))
tell(jax.jit(lambda x: x + 1)(windrow.jax.stack(rows)))
tell(windrow.jax.stack(rows, device=first))
with jax.default_device(first):
    tell(windrow.jax.stack(rows))
sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array([first, second]), "x"), jax.sharding.PartitionSpec("x"))
print(len(windrow.jax.stack(rows, device=sharding).addressable_shards))
"""


@pytest.mark.slow
def test_arrays_lie_on_the_default_device():
    places = run(PLACES, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu")
    first, second = places[0].rsplit(" ", 1)[0], places[1].rsplit(" ", 1)[0]
    assert first != second
    assert places == [
        f"{first} False",
        f"{second} False",
        *[f"{second} False"] * 3,
        f"{second} False",
        f"{first} True",
        f"{first} False",
        "2",
    ]


@pytest.mark.slow
def test_with_64_bits():
    code = """
import numpy as np, jax, windrow.jax
jax.config.update("jax_enable_x64", True)
batch = windrow.jax.ragged([np.arange(3), np.arange(2)])
print(batch.data.dtype, batch.offsets.dtype, windrow.jax.stack([1.5, 2.5]).dtype)
"""
    assert run(code, JAX_PLATFORMS="cpu") == ["int64 int64 float64"]


def test_offsets_beyond_32_bits_are_refused(monkeypatch):
    monkeypatch.setattr(windrow.jax._collate, "_INT32_MAX", 8)
    rows = [{"x": paint(4)}, {"x": paint(5)}]
    refusal(lambda: windrow.jax.ragged(rows), ValueError, "'x'", "up to 9", "jax_enable_x64")
    assert_array(windrow.jax.ragged(rows[:1] * 2)["x"].offsets, np.array([0, 4, 8], np.int32))


def test_samples_on_a_device_are_assembled_there(driver):
    rows = [wr.stack([row], device="cuda") for row in paint((3, 4), "float32")]
    columns = windrow.jax._trees.flatten([{"x": row} for row in rows], ".")[0]
    assert wr.collate(columns)["x"].device == "cuda:0"


@pytest.mark.slow
def test_windrow_does_not_import_jax():
    assert run("import sys, windrow; print(sorted({'jax', 'grain', 'numpy'} & set(sys.modules)))") == ["[]"]


VIEWS = {
    "strided": lambda x: x[:, ::2],
    "reversed": lambda x: x[::-1],
    "transposed": lambda x: x.T,
    "broadcast": lambda x: np.broadcast_to(x[0], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype),
    "of JAX": lambda x: jax.numpy.asarray(x),
    "row-major": lambda x: x,
}


@pytest.mark.parametrize("view", VIEWS)
def test_arrays_of_views(view):
    base = VIEWS[view](paint_values((4, 16)))
    tensor = wr.asarray(base)
    array = tensor.jax()
    assert_array(array, np.asarray(base))
    assert view == "row-major" or array.unsafe_buffer_pointer() != tensor.data_ptr()


# Errors


def test_trees_that_differ():
    trees = [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}]
    refusal(lambda: windrow.jax.collate(trees), ValueError, "sample 2", "differs from sample 0's", "b")
    refusal(lambda: windrow.jax.collate([{"a": [1]}, {"a": (1,)}]), ValueError, "sample 1")
    refusal(lambda: windrow.jax.collate(trees), ValueError, index=2, path="")
    for node in (None, [1.0, 1.0], (1,), {"b": 1}):
        got = f"sample 1: .* {type(node).__name__} at 'a' in place of a leaf"
        refusal(lambda: windrow.jax.collate([{"a": np.ones(2)}, {"a": node}]), ValueError, got, index=1, path="a")
    refusal(lambda: windrow.jax.collate([]), ValueError, "empty")


def test_containers_that_are_no_pytrees():
    refusal(lambda: windrow.jax.collate([{"a": Unknown(leaf(0))}]), TypeError, "'a'", "Unknown", "register_dataclass")


def test_objects_that_only_collate_takes_apart():
    class Pair:
        def __init__(self, x):
            self.x = x

    wr.register_node(Pair, vars, lambda children: Pair(**children))
    refusal(lambda: windrow.jax.collate([{"p": Pair(1)}] * 2), TypeError, "sample 0 at 'p': Pair is not a pytree; register it", index=0, path="p")


def test_errors_name_the_leaf():
    trees = [{"a": [leaf(i, (2 + (i == 2),))]} for i in range(4)]
    refusal(lambda: windrow.jax.collate(trees), wr.ShapeError, "sample 2", r"a\.0", index=2, path="a.0")
    refusal(lambda: windrow.jax.collate([{"a": object()}]), TypeError, "object", "a")
    refusal(lambda: windrow.jax.collate(trees, {"b": wr.Pad()}), ValueError, "'b' matches no leaf", r"'a\.0'")
    refusal(lambda: windrow.jax.collate(trees, {"a": 3}), TypeError, "wr.Pad")
    refusal(lambda: windrow.jax.collate([{"a": {"b": 1}, "a.b": 2}]), ValueError, "two leaves", "sep=")


@pytest.mark.parametrize("name", ["out", "stream", "copy"])
def test_arguments_that_jax_has_no_use_for(name):
    refusal(lambda: windrow.jax.collate([1, 2], **{name: None}), TypeError, name)
    for form in (windrow.jax.stack, windrow.jax.concat, windrow.jax.pad, windrow.jax.ragged):
        refusal(lambda: form([np.ones(2)] * 2, **{name: None}), TypeError, f"{name}=")
    if name != "stream":
        refusal(lambda: windrow.jax.collate([{"a": np.ones(2)}] * 2, {"a": wr.Stack(**{name: None})}), TypeError, f"{name}= is not for JAX")


# Documentation


@pytest.mark.parametrize("name", ["collate", "stack", "pad"])
def test_the_examples_of_docstrings_run(name):
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(windrow.jax, name), name)
    assert found.examples and doctest.DocTestRunner(verbose=False).run(found).failed == 0


def test_the_recipe_runs():
    pytest.importorskip("grain", reason="SKIP: grain is not installed")
    run_examples("docs/recipes/jax.md")


def test_asarray_of_jax_takes_batches_and_tensors():
    rows = [paint(3, "float32", seed) for seed in range(2)]
    batch = wr.stack(rows)
    for tensor in (batch, batch.data):
        assert_same(np.asarray(jax.numpy.asarray(tensor)), np.stack(rows))
        assert_same(np.asarray(jax.numpy.array(tensor, dtype="float16")), np.stack(rows).astype(np.float16))


class Key(str, enum.Enum):
    X = "camera"
    Y = "lidar"


@pytest.mark.parametrize("make", [Key, np.str_])
def test_keys_that_equal_a_text_are_that_text(make):
    keys = [make("camera"), make("lidar")]
    samples = [{keys[0]: np.ones(2, "f4"), keys[1]: np.ones(i + 1, "f4")} for i in range(3)]
    for spec in ({"lidar": wr.Pad()}, {keys[1]: wr.Pad()}, {"li*": wr.Pad()}):
        got = windrow.jax.collate(samples, spec)
        assert got["camera"].shape == (3, 2) and got["lidar"].data.shape == (3, 3)
    refusal(lambda: windrow.jax.collate(samples), wr.ShapeError, 'sample 1 at "lidar"', path="lidar")
    refusal(lambda: windrow.jax.collate(samples, {1: wr.Pad()}), TypeError, "a key of spec must be a path")


def test_forms_take_the_separator_and_the_engine():
    samples = [{"a": {"b": np.ones(2, "f4")}}] * 2
    bad = [{"a": {"b": np.ones(2, "f4")}}, {"a": {"b": "text"}}]
    for form in (windrow.jax.stack, windrow.jax.concat, windrow.jax.pad, windrow.jax.ragged):
        engine = wr.Engine(threads=1)
        engine.stats()
        form(samples, sep="/", engine=engine)
        assert engine.stats()["batches"] == 1
        refusal(lambda: form(bad, sep="/"), TypeError, 'sample 1 at "a/b"')
