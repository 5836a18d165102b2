"""wr.collate: a list of trees to one tree of batches."""

import fnmatch
import functools
import re
import sys
from collections import ChainMap, OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_same, assert_tensor, assert_values, paint, refusal
from windrow import _windrow

Pair = namedtuple("Pair", "left right")


@dataclass
class Item:
    image: object
    label: object


@dataclass(frozen=True)
class Frozen:
    image: object
    name: str


def leaf(i, shape=(3, 4), name="uint8"):
    return paint(shape, name, 10 * i)


def stacked(n, *args):
    return np.stack([leaf(i, *args) for i in range(n)])


def test_a_pattern_whose_leaves_have_other_entries():
    spec = {"tokens.*": wr.Pad(), "tokens.ids": wr.Ragged()}
    refusal(lambda: wr.collate([{"tokens": {"ids": [1]}}], spec), ValueError, 'spec "tokens.*" is used for no leaf: "tokens.ids"')


def test_dict():
    tree = wr.collate([{"a": leaf(i), "b": leaf(i, (2,), "float32")} for i in range(4)])
    assert type(tree) is dict and list(tree) == ["a", "b"]
    assert isinstance(tree["a"], wr.Batch)
    assert_tensor(tree["a"], stacked(4))
    assert_tensor(tree["b"], stacked(4, (2,), "float32"))


def test_a_spec_that_changes_while_it_is_read():
    spec = {}

    class Growing(wr.Stack):
        @property
        def form(self):
            spec.update({f"more{i}": wr.Stack() for i in range(100)})
            return "stack"

    growing = Growing()
    spec.clear()
    spec.update(a=growing, b=wr.Stack())
    tree = wr.collate([{"a": leaf(i), "b": leaf(i)} for i in range(3)], spec)
    assert_tensor(tree["a"], stacked(3))
    assert len(spec) == 102


def test_order_of_keys_is_that_of_the_first_sample():
    tree = wr.collate([{"b": leaf(0), "a": leaf(0)}, {"a": leaf(1), "b": leaf(1)}])
    assert list(tree) == ["b", "a"]
    assert_tensor(tree["a"], stacked(2))


def test_other_mappings_keep_their_type():
    tree = wr.collate([OrderedDict(a=leaf(i)) for i in range(2)])
    assert type(tree) is OrderedDict
    assert_tensor(tree["a"], stacked(2))


def test_keys_that_are_not_strings():
    tree = wr.collate([{1: leaf(i), "x": leaf(i)} for i in range(2)])
    assert_tensor(tree[1], stacked(2))


def test_list_and_tuple():
    for kind in (list, tuple):
        tree = wr.collate([kind([leaf(i), leaf(i, (5,))]) for i in range(3)])
        assert type(tree) is kind and len(tree) == 2
        assert_tensor(tree[0], stacked(3))
        assert_tensor(tree[1], stacked(3, (5,)))


def test_namedtuple():
    tree = wr.collate([Pair(leaf(i), leaf(i, (2,))) for i in range(3)])
    assert type(tree) is Pair
    assert_tensor(tree.left, stacked(3))
    assert_tensor(tree.right, stacked(3, (2,)))


def test_dataclass():
    tree = wr.collate([Item(leaf(i), i) for i in range(3)])
    assert type(tree) is Item
    assert_tensor(tree.image, stacked(3))
    assert_tensor(tree.label, np.arange(3))
    frozen = wr.collate([Frozen(leaf(i), f"n{i}") for i in range(2)])
    assert type(frozen) is Frozen and frozen.name == ["n0", "n1"]
    assert_tensor(frozen.image, stacked(2))


def test_a_bare_leaf():
    batch = wr.collate([leaf(i) for i in range(3)])
    assert isinstance(batch, wr.Batch)
    assert_tensor(batch, stacked(3))


def test_nested():
    trees = [
        {"camera": {"front": leaf(i), "rear": [leaf(i), (leaf(i), Pair(leaf(i), i))]}, "meta": Item(leaf(i), float(i))}
        for i in range(3)
    ]
    tree = wr.collate(trees)
    assert_tensor(tree["camera"]["front"], stacked(3))
    rear = tree["camera"]["rear"]
    assert type(rear) is list and type(rear[1]) is tuple and type(rear[1][1]) is Pair
    assert_tensor(rear[1][1].left, stacked(3))
    assert_tensor(rear[1][1].right, np.arange(3))
    assert_tensor(tree["meta"].label, np.arange(3.0))


def test_strings_and_bytes_pass_through():
    tree = wr.collate([{"key": f"k{i}", "raw": bytes([i]), "x": leaf(i)} for i in range(3)])
    assert tree["key"] == ["k0", "k1", "k2"]
    assert tree["raw"] == [b"\0", b"\1", b"\2"]
    assert_tensor(tree["x"], stacked(3))


def test_strings_of_unequal_length_and_only_strings():
    assert wr.collate([{"a": "x"}, {"a": "longer"}]) == {"a": ["x", "longer"]}


def test_numbers():
    tree = wr.collate([{"i": i, "f": i / 2, "b": i == 1} for i in range(3)])
    assert_tensor(tree["i"], np.arange(3))
    assert_tensor(tree["f"], np.arange(3) / 2)
    assert_tensor(tree["b"], np.array([False, True, False]))


def test_numpy_scalars_and_torch_leaves(torch):
    tree = wr.collate([{"n": np.float32(i), "t": torch.full((2,), i)} for i in range(3)])
    assert_tensor(tree["n"], np.arange(3, dtype=np.float32))
    assert_tensor(tree["t"], np.repeat(np.arange(3), 2).reshape(3, 2))


def test_empty_containers():
    assert wr.collate([{"a": {}, "b": [], "c": ()}] * 2) == {"a": {}, "b": [], "c": ()}


def holding_itself(kind):
    if kind == "list":
        tree = [1.0]
        tree.append(tree)
    elif kind == "tuple":
        inner = []
        tree = (inner,)
        inner.append(tree)
    elif kind == "dict":
        tree = {"x": 1.0}
        tree["y"] = tree
    elif kind == "mapping":
        tree = UserDict(x=1.0)
        tree["y"] = tree
    elif kind == "dataclass":
        tree = Item(1.0, None)
        tree.label = tree
    else:
        tree = type("Itself", (list,), {"__getitem__": lambda self, _: self})([1])
    return tree


@pytest.mark.parametrize("kind", ["list", "tuple", "dict", "mapping", "dataclass", "__getitem__"])
def test_containers_that_hold_themselves(kind, torch):
    import windrow.torch

    tree = holding_itself(kind)
    calls = [lambda: wr.collate([tree] * 3), lambda: wr.explain([tree], "collate"), lambda: wr.collate([tree], {"x": wr.Pad()})]
    if kind not in ("dataclass", "__getitem__"):
        calls += [lambda: windrow.torch.collate_fn()([tree] * 2), lambda: windrow.torch.collate_fn({"*": wr.Pad()})([tree] * 2)]
    for call in calls:
        refusal(call, RecursionError, "holds itself", "sample 0")
    assert wr.collate([1.0, 2.0]).shape == (2,)


def test_deep_trees():
    def deep(levels):
        tree = np.ones(3)
        for level in range(levels):
            tree = [tree] if level % 2 else {"x": tree}
        return tree

    batch = wr.collate([deep(255)] * 2)
    for level in reversed(range(255)):
        batch = batch[0] if level % 2 else batch["x"]
    assert_tensor(batch, np.ones((2, 3)))
    for levels in (256, 257, 100_000):
        refusal(lambda: wr.collate([deep(levels)] * 2), RecursionError, "256 levels")


def test_one_sample():
    assert_tensor(wr.collate([{"a": leaf(0)}])["a"], stacked(1))


# spec


def test_spec_names_leaves():
    trees = [{"tokens": paint(3 + i, "int32", i), "image": paint((4, 4 + i)), "label": i, "x": leaf(i)} for i in range(3)]
    spec = {
        "tokens": wr.Ragged(offsets_dtype="int32", batch_index=True),
        "image": wr.Pad(dims=1, multiple_of=4, mask="pad", value=9),
        "label": wr.Stack(dtype="float32"),
    }
    tree = wr.collate(trees, spec)
    want = oracle.ragged([t["tokens"] for t in trees], "int32")
    assert_tensor(tree["tokens"], want.data)
    assert_values(tree["tokens"].offsets, want.offsets)
    assert tree["tokens"].offsets.dtype == "int32"
    assert_values(tree["tokens"].batch_index, want.batch_index)
    want = oracle.pad([t["image"] for t in trees], "uint8", 9, dims=1, multiple_of=4, mask="pad")
    assert_tensor(tree["image"], want.data)
    assert_same(tree["image"].mask.numpy(), want.mask)
    assert_values(tree["image"].lengths, want.lengths)
    assert_tensor(tree["label"], np.arange(3, dtype=np.float32))
    assert_tensor(tree["x"], stacked(3))


def test_specs_of_lists_and_tuples_are_equal():
    assert wr.Pad(dims=[0, 1]) == wr.Pad(dims=(0, 1)) != wr.Pad(dims=0)


def test_spec_with_concat_and_transform():
    trees = [{"a": paint((2, 3 + i), seed=i), "b": paint((4, 5, 3), seed=i)} for i in range(3)]
    t = oracle.T(scale=1 / 255, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], channel_dim=2, permute=(2, 0, 1))
    spec = {"a": wr.Concat(dim=1), "b": wr.Stack(dtype="float16", transform=wr.Transform(**t.arguments()))}
    tree = wr.collate(trees, spec)
    assert_tensor(tree["a"], oracle.concat([x["a"] for x in trees], "uint8", 1).data)
    assert_values(tree["a"].offsets, [0, 3, 7, 12])
    assert_tensor(tree["b"], oracle.stack([x["b"] for x in trees], "uint8", "float16", t).data)


def test_spec_with_globs():
    trees = [{"tokens": {"a": paint(2 + i), "b": paint(3 + i)}, "other": leaf(i)} for i in range(3)]
    tree = wr.collate(trees, {"tokens.*": wr.Ragged()})
    assert_values(tree["tokens"]["a"].offsets, [0, 2, 5, 9])
    assert_values(tree["tokens"]["b"].offsets, [0, 3, 7, 12])
    assert_tensor(tree["other"], stacked(3))


def test_spec_paths_of_list_and_tuple_items_fields_and_attributes():
    trees = [{"l": [leaf(i), paint(1 + i)], "p": Pair(paint(1 + i), leaf(i)), "d": Item(paint(1 + i), i)} for i in range(2)]
    tree = wr.collate(trees, {"l.1": wr.Ragged(), "p.left": wr.Pad(), "d.image": wr.Concat()})
    assert_values(tree["l"][1].offsets, [0, 1, 3])
    assert_values(tree["p"].left.lengths, [1, 2])
    assert_values(tree["d"].image.offsets, [0, 1, 3])


def test_spec_with_another_separator():
    trees = [{"a": {"b.c": paint(1 + i)}} for i in range(2)]
    tree = wr.collate(trees, {"a/b.c": wr.Ragged()}, sep="/")
    assert_values(tree["a"]["b.c"].offsets, [0, 1, 3])


def test_many_leaves():
    trees = [{f"k{k}": paint((1 + k, 2), "float32", i + k) for k in range(60)} for i in range(8)]
    tree = wr.collate(trees)
    for k in range(60):
        assert_tensor(tree[f"k{k}"], np.stack([t[f"k{k}"] for t in trees]))


# errors

ANY = (ValueError, TypeError, KeyError)


def names(path, index):
    """Patterns for a text that names a path and a sample."""
    return rf"[\"']{path}[\"']|\b{path}\b", rf"\bsample {index}\b|\b{index}\b"


def test_shape_error_names_path_and_sample():
    trees = [{"camera": {"front": paint((224, 224 if i != 3 else 200, 3))}} for i in range(5)]
    error = refusal(
        lambda: wr.collate(trees),
        wr.ShapeError,
        index=3,
        path="camera.front",
        expected=(224, 224, 3),
        got=(224, 200, 3),
    )
    start = 'sample 3 at "camera.front": expected shape (224, 224, 3), got (224, 200, 3)'
    assert str(error).startswith(start) and str(error).endswith('; spec={"camera.front": wr.Pad()} takes samples of different shapes')


def test_dtype_error_names_path_and_sample():
    trees = [{"a": [leaf(0), leaf(0, (2,), "int32" if i != 1 else "int64")]} for i in range(3)]
    refusal(lambda: wr.collate(trees), wr.DTypeError, r'sample 1 at "a\.1"', index=1, path="a.1", expected="int32", got="int64")


def test_other_errors_name_their_path():
    wide = np.broadcast_to(np.zeros((), "u1"), (2**61, 2))
    for call in (
        lambda: wr.collate([{"a": {"b": leaf(0)}}, {"a": {"b": leaf(1)}}], copy=False),
        lambda: wr.collate([{"a": {"b": wide}}] * 2),
    ):
        refusal(call, ValueError, '"a.b"')


def test_path_uses_the_separator():
    trees = [{"a": {"b": leaf(0, (2 + i,))}} for i in range(2)]
    refusal(lambda: wr.collate(trees, sep="/"), wr.ShapeError, "a/b", path="a/b", index=1)


def test_missing_key():
    refusal(lambda: wr.collate([{"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}]), ANY, *names(r"a\.c", 2))


def test_key_that_only_a_later_sample_has():
    refusal(lambda: wr.collate([{"a": 1}, {"a": 1, "z": 2}]), ANY, r"\bz\b")


def test_the_first_sample_that_lacks_a_key_is_named():
    trees = [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "c": 2}, {"b": 2}]
    error = refusal(lambda: wr.collate(trees), KeyError, *names("b", 2))
    assert "3 of 4 samples have it" in str(error)


def test_mappings_of_several_types_with_their_own_lookup():
    class Shifted(dict):
        def __getitem__(self, key):
            return dict.__getitem__(self, key) + 1

    class Lazy(UserDict):
        def __getitem__(self, key):
            return leaf(7) if key == "a" else super().__getitem__(key)

    trees = [
        {"a": leaf(0), "b": leaf(1)},
        OrderedDict(b=leaf(3), a=leaf(2)),
        Shifted(a=leaf(4), b=leaf(5)),
        Lazy(a=None, b=leaf(6)),
        MappingProxyType({"a": leaf(8), "b": leaf(9)}),
        ChainMap({"a": leaf(10)}, {"a": leaf(11), "b": leaf(12)}),
    ]
    tree = wr.collate(trees)
    assert type(tree) is dict
    assert_tensor(tree["a"], np.stack([leaf(0), leaf(2), leaf(4) + 1, leaf(7), leaf(8), leaf(10)]))
    assert_tensor(tree["b"], np.stack([leaf(1), leaf(3), leaf(5) + 1, leaf(6), leaf(9), leaf(12)]))


@pytest.mark.parametrize("change", [dict.clear, lambda tree: tree.pop("b", None), lambda tree: tree.update(c=1)])
def test_a_lookup_that_changes_later_samples(change):
    class Meddling(dict):
        def __getitem__(self, key):
            change(trees[2])
            return dict.__getitem__(self, key)

    trees = [{"a": leaf(0), "b": leaf(1)}, Meddling(a=leaf(2), b=leaf(3)), {"a": leaf(4), "b": leaf(5)}]
    refusal(lambda: wr.collate(trees), KeyError, r"\bsample 2\b")


def test_samples_are_let_go_after_a_lookup_that_raises():
    class Broken(dict):
        def __getitem__(self, key):
            raise RuntimeError("no such luck")

    arrays = [leaf(i) for i in range(64)]
    before = [sys.getrefcount(array) for array in arrays]
    trees = [{"a": array, "b": array} for array in arrays] + [Broken(a=1, b=2)]
    with pytest.raises(RuntimeError, match="no such luck"):
        wr.collate(trees)
    del trees
    assert [sys.getrefcount(array) for array in arrays] == before


def test_leaves_dropped_from_the_samples_while_others_are_read():
    class Dropping:
        """An array-like that empties the tree of the sample before it."""

        def __init__(self, i):
            self.i = i

        @property
        def __array_interface__(self):
            if self.i:
                trees[self.i - 1].clear()
            return leaf(self.i).__array_interface__ | {"data": leaf(self.i).tobytes()}

    trees = [{"a": leaf(i), "b": Dropping(i)} for i in range(16)]
    tree = wr.collate(trees)
    assert_tensor(tree["a"], stacked(16))
    assert_tensor(tree["b"], stacked(16))


def test_none_leaf():
    refusal(lambda: wr.collate([{"a": {"b": 1}}, {"a": {"b": None}}]), ANY, *names(r"a\.b", 1))
    refusal(lambda: wr.collate([{"x": None}] * 2), ANY, *names("x", 0))


def test_uneven_lists():
    refusal(lambda: wr.collate([{"a": [1, 2]}, {"a": [1, 2]}, {"a": [1]}]), ANY, *names("a", 2))


def test_container_of_another_kind():
    refusal(lambda: wr.collate([{"a": [1, 2]}, {"a": {"b": 1}}]), ANY, *names("a", 1))
    refusal(lambda: wr.collate([{"a": leaf(0)}, {"a": {"b": 1}}]), ANY, *names("a", 1))


def test_leaf_that_is_no_array():
    refusal(lambda: wr.collate([{"a": leaf(0)}, {"a": object()}]), TypeError, "object", *names("a", 1))


def test_string_beside_a_tensor():
    refusal(lambda: wr.collate([{"a": leaf(0)}, {"a": "text"}]), ANY, *names("a", 1))


def test_empty_list():
    refusal(lambda: wr.collate([]), ValueError)


@pytest.mark.parametrize("spec", [{"a": 3}, {"a": "pad"}, 7])
def test_spec_that_is_none(spec):
    refusal(lambda: wr.collate([{"a": leaf(0)}], spec), (TypeError, ValueError))


# engine= in a spec


def engines(count):
    made = [wr.Engine(threads=1) for _ in range(count)]
    assert all(engine.stats()["batches"] == 0 for engine in made)
    return made


@pytest.mark.parametrize("size", [3, 70_000])
def test_the_engine_of_a_spec_is_used(size):
    first, second, of_call = engines(3)
    samples = [{"a": leaf(i, (size,)), "b": leaf(i, (i + 1,)), "c": i, "d": leaf(i, (2,))} for i in range(20)]
    want = wr.collate(samples, {"b": wr.Pad()})
    spec = {"a": wr.Stack(engine=first), "b": wr.Pad(engine=second), "d": wr.Stack(engine=first)}
    out = {key: np.empty(want[key].shape, want[key].dtype) for key in want}
    for given in ({}, {"out": out}):
        got = wr.collate(samples, spec, engine=of_call, **given)
        for key in want:
            assert_same(got[key].numpy(), want[key].numpy())
        assert got["b"].lengths.numpy().tolist() == want["b"].lengths.numpy().tolist()
    assert [engine.stats()["batches"] for engine in (first, second, of_call)] == [4, 2, 2]
    every = wr.collate([{"d": sample["d"]} for sample in samples], wr.Stack(engine=first), arena=True)
    assert every["d"].arena is not None and first.stats()["batches"] == 5
    refusal(lambda: wr.collate(samples, spec, arena=True), ValueError, "an arena is one allocation of one engine")


def test_no_engine_writes_before_all_leaves_are_checked():
    first, second = engines(2)
    samples = [{"a": leaf(i), "b": leaf(i, (i + 1,))} for i in range(3)]
    out = {"a": np.full((3, 3, 4), 7, "uint8"), "b": np.empty((3, 3), "uint8")}
    spec = {"a": wr.Stack(engine=first), "b": wr.Stack(engine=second)}
    refusal(lambda: wr.collate(samples, spec, out=out), wr.ShapeError, 'sample 1 at "b"', path="b", index=1)
    assert (out["a"] == 7).all() and first.stats()["batches"] == 0


def test_outputs_of_several_engines_are_apart():
    first, second = engines(2)
    table = np.arange(24, dtype="uint8").reshape(2, 3, 4)
    samples = [{"a": np.full((3, 4), 7, "uint8"), "b": row} for row in table]
    big = np.ones((3, 4096), "float64")
    apart, before = [{"a": row, "b": row} for row in big], table.copy()
    for spec in ({}, {"b": wr.Stack(engine=first)}, {"a": wr.Stack(engine=first), "b": wr.Stack(engine=second)}):
        other, both = np.empty_like(table), np.zeros_like(big)
        outs, same = {"a": table, "b": other}, {"a": both, "b": both}
        text = 'sample 0 at "b": expected memory apart from the output at "a"'
        refusal(lambda outs=outs, spec=spec: wr.collate(samples, spec, out=outs), wr.LayoutError, text, path="b", index=0)
        refusal(lambda outs=same, spec=spec: wr.collate(apart, spec, out=outs), wr.LayoutError, 'the output at "a"', path="b")
        assert (table == before).all() and not both.any()


def test_no_engine_writes_before_views_and_streams_are_checked():
    first, second = engines(2)
    samples = [{"a": leaf(i), "b": leaf(i)} for i in range(3)]
    out, a = {name: np.full((3, 3, 4), 7, "uint8") for name in "ab"}, wr.Stack(engine=first)
    spec = {"a": a, "b": wr.Stack(engine=second, copy=False)}
    refusal(lambda: wr.collate(samples, spec), ValueError, r'at "b".*copy=False')
    spec = {"a": a, "b": wr.Stack(engine=second)}
    refusal(lambda: wr.collate(samples, spec, out=out, stream=1), ValueError, "host memory has no streams")
    assert (out["a"] == 7).all() and first.stats()["batches"] == 0


def test_the_engine_of_a_spec_by_torchs_rules(torch):
    import windrow.torch

    (engine,) = engines(1)
    samples = [{"a": torch.full((3,), i), "b": torch.arange(i + 1)} for i in range(4)]
    for arena in (False, True):
        collate = windrow.torch.collate_fn({"b": wr.Pad(engine=engine)}, arena=arena)
        if arena:
            refusal(lambda: collate(samples), ValueError, "one engine")
        else:
            got = collate(samples)
            assert torch.equal(got["a"], torch.stack([sample["a"] for sample in samples])) and got["b"].data.shape == (4, 4)
            assert engine.stats()["batches"] == 1


# Wide trees and many patterns


def by_collate_fn(tree):
    pytest.importorskip("torch", reason="SKIP: torch is not installed")
    import windrow.torch

    return windrow.torch.collate_fn()([tree, tree])


WIDE = {
    "plain": lambda tree, out: wr.collate([tree]),
    "out": lambda tree, out: wr.collate([tree], out=out),
    "spec": lambda tree, out: wr.collate([tree], dict.fromkeys(tree, wr.Stack(dtype="float64"))),
    "list": lambda tree, out: wr.collate(wr.SampleList([tree])),
    "torch": lambda tree, out: by_collate_fn(tree),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", WIDE)
def test_trees_of_65536_leaves(how):
    """A call takes less than a second, and minutes if each leaf looks at all others."""
    tree = {f"k{i}": np.full(2, i, np.float32) for i in range(65_536)}
    batch = WIDE[how](tree, {key: np.empty((1, 2), np.float32) for key in tree})
    assert list(batch) == list(tree)
    assert all(np.array_equal(np.asarray(batch[key])[0], tree[key]) for key in tree)


ALPHABET = ["a", "b", ".", "*", "?", "[", "]", "!", "-", "^", "\\", "é"]


@pytest.mark.parametrize("seed", range(8))
def test_patterns_are_those_of_fnmatch(seed):
    """An exact name goes before a glob, an earlier glob before a later one."""
    chance = np.random.default_rng(seed)

    def word(most, letters):
        return "".join(chance.choice(letters, chance.integers(0, most)))

    patterns = list(dict.fromkeys([*(word(6, ALPHABET) for _ in range(60)), *(word(3, ["a", "b"]) + "*" + word(3, ["a", "."]) for _ in range(30))]))
    paths = [word(6, ["a", "b", ".", "é", "[", "^", "\\", "\n"]) for _ in range(300)]
    for count in (1, 5, len(patterns)):
        own = patterns[:count]
        want = [own.index(path) if path in own else next((i for i, glob in enumerate(own) if fnmatch.fnmatchcase(path, glob)), None) for path in paths]
        assert _windrow._patterns_of(own, paths) == want


def test_many_patterns():
    samples = [{f"k{j}": np.arange(3) + i + j for j in range(700)} for i in range(2)]
    for name in ("k{}", "k{}*", "*k{}", "?{}", "[k]{}"):
        spec = {name.format(j): wr.Stack(dtype="float32" if j % 2 else "int16") for j in reversed(range(10, 700))}
        got = wr.collate(samples, spec)
        for j in (10, 11, 98, 99, 333, 699):
            first = next(key for key in spec if fnmatch.fnmatchcase(f"k{j}", key))
            assert got[f"k{j}"].dtype == spec[first].kwargs["dtype"]
            assert_same(got[f"k{j}"].numpy(), np.stack([sample[f"k{j}"] for sample in samples]).astype(got[f"k{j}"].dtype))
    refusal(lambda: wr.collate(samples, {"k700": wr.Pad(), "k1": wr.Pad()}), ValueError, 'spec "k700" matches no leaf')


GLOBS = ["k{}_x", "k{}_*", "*k{}_*", "*k{}_?", "[k]{}_*", "?{}_*", "[jk]{}_*", "*[!j]{}_?", "[a-k]{}_*", "k*{}*_x", "k*_*{}_*"]


@pytest.mark.parametrize("glob", GLOBS)
def test_a_path_is_compared_with_few_of_many_patterns(glob, monkeypatch):
    """Each path with the patterns whose digits are in it, whatever the number of patterns. Globs with a range ask Python, which counts them."""
    num, most = 2000, 3 if "_*{}_" in glob else 15
    patterns = [glob.format(j) for j in range(num)]
    paths = [f"k_{j}_x" if "_*{}_" in glob else f"k{j}_x" for j in range(num)]
    trials, compiled = [], functools.lru_cache(None)(lambda pattern: re.compile(fnmatch.translate(pattern)))
    monkeypatch.setattr(fnmatch, "fnmatchcase", lambda path, pattern: trials.append(path) or bool(compiled(pattern).match(path)))
    found = _windrow._patterns_of([pattern + "[x-z]" for pattern in patterns], [path + "x" for path in paths])
    assert num <= len(trials) <= most * num
    assert _windrow._patterns_of(patterns, paths) == found
    for path in (0, 7, 10, 123, num - 1):
        assert found[path] == next(i for i, pattern in enumerate(patterns) if fnmatch.fnmatchcase(paths[path], pattern))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [4, 4000])
def test_outputs_that_share_memory_are_refused(seed, size):
    """Outputs and samples anywhere in one block: none may have a byte of an output in common with it."""
    chance = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(120):
        block = chance.integers(0, 255, 1 << 18 if size > 4 else 600, dtype=np.uint8)
        starts = chance.integers(0, len(block) - 2 * size, 8) if chance.random() < 0.5 else chance.permutation(len(block) // (2 * size))[:8] * 2 * size
        outs = {f"k{j}": block[start : start + 2 * size].reshape(2, size) for j, start in enumerate(starts[:4])}
        rows = [block[start : start + size] for start in starts[4:]]
        samples = [{f"k{j}": rows[(i + j) % len(rows)] if chance.random() < 0.5 else np.full(size, i + j, np.uint8) for j in range(4)} for i in range(2)]
        shared = any(np.shares_memory(out, other) for name, out in outs.items() for key, other in outs.items() if key != name)
        shared |= any(np.shares_memory(out, leaf) for out in outs.values() for sample in samples for leaf in sample.values())
        want = {key: np.stack([sample[key] for sample in samples]) for key in outs}
        before = block.copy()
        outcomes.add(shared)
        if shared:
            refusal(lambda: wr.collate(samples, out=outs), wr.LayoutError, "memory apart from")
            assert (block == before).all()
        else:
            wr.collate(samples, out=outs)
            for key in outs:
                assert_same(outs[key], want[key])
    assert outcomes == {False, True}


# NumPy's scalars


@pytest.mark.parametrize("name", ["bool_", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128"])
def test_numpy_scalars(name):
    scalars = [getattr(np, name)(value) for value in (0, 1, 1, 0, 100)]
    want = np.stack(scalars)
    for count in (1, 5):
        for batch in (wr.stack(scalars[:count]), wr.collate([{"x": scalar} for scalar in scalars[:count]])["x"], wr.stack(wr.SampleList(scalars[:count]))):
            assert_same(batch.numpy(), want[:count])
    assert_same(wr.asarray(scalars[4]).numpy(), np.asarray(scalars[4]))
    samples = wr.SampleList(scalars)
    samples[0] = scalars[4]
    samples.append(scalars[1])
    assert_same(wr.stack(samples).numpy(), np.stack([scalars[4], *scalars[1:], scalars[1]]))
    if name != "float64":
        refusal(lambda: wr.stack([scalars[0], 2.0]), wr.DTypeError, "sample 1: expected", index=1)


def test_other_scalars_of_numpy():
    class Own(np.float32):
        pass

    assert_same(wr.stack([Own(1.5), Own(2.5)]).numpy(), np.array([1.5, 2.5], "float32"))
    for scalar in (np.longdouble(1), np.datetime64("2020-01-01"), np.timedelta64(1, "s"), np.str_("a"), np.void(b"ab")):
        with pytest.raises((TypeError, ValueError, BufferError)):
            wr.stack([scalar])
