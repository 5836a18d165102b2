"""wr.SampleList of trees: the same batches as wr.collate of the list, leaf by leaf; items, slices, a ring buffer."""

import gc
import random
import weakref
import time
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import pytest

import windrow as wr
from helpers import assert_same, assert_tensor, memory, paint, refusal, rss_bytes
from windrow import _nodes

Pair = namedtuple("Pair", "left right")


@dataclass
class Item:
    image: object
    name: object


class Node:
    def __init__(self, **children):
        self.__dict__.update(children)


@pytest.fixture
def registered():
    wr.register_node(Node, lambda node: dict(vars(node)), lambda children: Node(**children))
    yield Node
    del _nodes._registered[Node]


def array(seed, shape=(3,), name="float32"):
    return paint(shape, name, 11 * seed)


def transition(i):
    return {
        "state": array(i, (17,)),
        "action": array(i, (6,), "float64"),
        "reward": i / 2,
        "done": i % 3 == 0,
        "next": array(i + 1, (17,)),
    }


def nested(i):
    return {
        "camera": {"front": array(i, (2, 3), "uint8"), "rear": [array(i), (array(i, (4,), "int16"), Pair(array(i), i))]},
        "meta": Item(array(i, (5,), "int32"), f"name {i}"),
        "raw": bytes([i]),
        "ordered": OrderedDict(a=np.float32(i)),
        "ids": [i, i + 1, i + 2],
    }


def assert_same_tree(got, want):
    """Containers of the same types around batches of the same bytes, and the same texts."""
    assert type(got) is type(want)
    if isinstance(want, wr.Batch):
        for name in ("data", "lengths", "offsets", "mask"):
            ours, theirs = getattr(got, name), getattr(want, name)
            assert (ours is None) == (theirs is None)
            if theirs is not None:
                assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
                assert_same(memory(ours), memory(theirs))
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same_tree(got[key], want[key])
    elif is_dataclass(want):
        for field in fields(want):
            assert_same_tree(getattr(got, field.name), getattr(want, field.name))
    elif isinstance(want, Node):
        assert_same_tree(vars(got), vars(want))
    elif isinstance(want, (list, tuple)) and not all(isinstance(item, (str, bytes)) for item in want):
        assert len(got) == len(want)
        for ours, theirs in zip(got, want):
            assert_same_tree(ours, theirs)
    else:
        assert got == want


def makers(registered):
    return {
        "transition": transition,
        "nested": nested,
        "tuple of arrays": lambda i: (array(i), i),
        "list": lambda i: [array(i), [array(i, (2,))]],
        "namedtuple": lambda i: Pair(array(i), float(i)),
        "dataclass": lambda i: Item(array(i), "x"),
        "mapping": lambda i: OrderedDict(x=array(i)),
        "registered": lambda i: Node(a=array(i), b={"c": i}),
        "number first": lambda i: (i, array(i)),
        "empty containers": lambda i: {"x": array(i), "none": {}, "nil": []},
    }


@pytest.mark.parametrize("kind", makers(None))
def test_batches_are_those_of_collate(kind, registered):
    make = makers(registered)[kind]
    plain = [make(i) for i in range(7)]
    samples = wr.SampleList(plain)
    assert len(samples) == 7
    assert_same_tree(wr.collate(samples), wr.collate(plain))
    for ids in ([3], [6, 0, 0, 5], np.array([-1, 2], np.int32), range(1, 7, 2)):
        chosen = [plain[i] for i in ids]
        assert_same_tree(wr.collate(samples.take(ids)), wr.collate(chosen))
        assert_same_tree(wr.collate(samples.take(ids).take([0, -1])), wr.collate([chosen[0], chosen[-1]]))
    for part in (slice(2, 5), slice(None, None, -2), slice(-3, None)):
        assert_same_tree(wr.collate(samples[part]), wr.collate(plain[part]))
    assert_same_tree(wr.collate([samples[i] for i in (1, 4)]), wr.collate([plain[1], plain[4]]))


def test_every_argument_of_collate():
    plain = [{"x": array(i, (2 + i % 3, 3)), "ids": [1] * (1 + i), "pair": (array(i), "t"), "y": array(i, (4,))} for i in range(6)]
    samples, ids = wr.SampleList(plain), [4, 1, 1, 5]
    chosen = [plain[i] for i in ids]
    spec = {"x": wr.Pad(value=-1, mask="real"), "ids": wr.Ragged(), "pair/*": wr.Stack(dtype="float64")}
    want = wr.collate(chosen, spec, sep="/")
    assert_same_tree(wr.collate(samples.take(ids), spec, sep="/"), want)
    assert_same_tree(wr.collate(samples.take(ids), spec, sep="/", arena=True), want)
    rest = [{"y": sample["y"], "pair": sample["pair"]} for sample in plain]
    out = {"y": np.empty((6, 4), "f4"), "pair": (np.empty((6, 3), "f4"), None)}
    wr.collate(wr.SampleList(rest), out=out)
    assert_same(out["y"], np.stack([sample["y"] for sample in plain]))
    names = wr.explain(samples.take(ids), "collate", spec=spec, sep="/").names
    assert names == wr.explain(chosen, "collate", spec=spec, sep="/").names
    lists = [{"ids": [i, i]} for i in range(3)]
    assert_same_tree(wr.collate(wr.SampleList(lists)), wr.collate(lists))
    assert_same_tree(wr.collate(wr.SampleList(lists), {"ids": wr.Stack()}), wr.collate(lists, {"ids": wr.Stack()}))


def test_a_list_of_arrays_is_one_leaf():
    rows = [array(i) for i in range(4)]
    assert_tensor(wr.collate(wr.SampleList(rows).take([2, 0])), np.stack([rows[2], rows[0]]))
    assert_tensor(wr.collate(wr.SampleList(np.stack(rows)), dtype="float64"), np.stack(rows).astype("f8"))


def test_a_sample_is_a_tree_of_tensors(registered):
    plain = [nested(i) for i in range(3)]
    sample = wr.SampleList(plain)[-1]
    assert_tensor(sample["camera"]["front"], plain[2]["camera"]["front"])
    assert sample["camera"]["front"].data_ptr() == plain[2]["camera"]["front"].ctypes.data
    assert type(sample["camera"]["rear"]) is list and type(sample["camera"]["rear"][1]) is tuple
    pair = sample["camera"]["rear"][1][1]
    assert type(pair) is Pair and int(pair.right) == 2
    assert type(sample["meta"]) is Item and sample["meta"].name == "name 2"
    assert type(sample["ordered"]) is OrderedDict and sample["raw"] == b"\2" and sample["ids"] == [2, 3, 4]
    assert_tensor(wr.SampleList([Node(a=array(i)) for i in range(2)])[1].a, array(1))
    sample["ids"].append(9)
    sample["camera"]["front"] = None
    assert_same_tree(wr.collate(wr.SampleList(plain)), wr.collate(plain))


def test_what_is_done_to_the_trees_later_is_not_done_to_the_list():
    plain = [{"x": array(i), "ids": [i]} for i in range(3)]
    samples = wr.SampleList(plain)
    want = wr.collate([dict(sample, ids=list(sample["ids"])) for sample in plain])
    plain[1]["x"] = None
    plain[1]["ids"].append(5)
    del plain[2]["x"], plain[0]
    assert_same_tree(wr.collate(samples), want)


@pytest.mark.parametrize("start", ["list", "empty", "take", "slice"])
def test_a_random_walk_is_that_of_a_plain_list(start, torch):
    chance = random.Random(start)

    def make(seed):
        leaf = chance.choice([lambda: np.full(3, seed), lambda: torch.full((3,), seed), lambda: wr.asarray(np.full(3, seed))])
        return {"x": leaf(), "n": seed, "s": f"{seed}", "row": [seed] * (seed % 3), "t": (np.full((2, 2), seed / 2), seed % 2 == 0)}

    plain = [make(i) for i in range(9)] if start != "empty" else []
    ours = wr.SampleList(plain) if start != "empty" else wr.SampleList()
    if start == "take":
        ours, plain = ours.take(range(9)), plain[:]
    if start == "slice":
        ours, plain = ours[2:], plain[2:]
    spec, snapshots = {"row": wr.Ragged()}, []
    for step in range(250):
        what = chance.random()
        if not plain or what < 0.1:
            plain.append(make(step))
            ours.append(plain[-1])
        elif what < 0.6:
            index = chance.randrange(-len(plain), len(plain))
            ours[index] = plain[index] = make(step)
        elif what < 0.7:
            source, target = chance.randrange(len(plain)), chance.randrange(len(plain))
            ours[target] = ours[source]
            plain[target] = plain[source]
        elif what < 0.8:
            more = [make(step), make(step + 1)][: chance.randrange(3)]
            ours.extend(more)
            plain += more
        elif what < 0.85:
            indices = [chance.randrange(len(plain)) for _ in range(2)]
            ours.extend(ours.take(indices))
            plain += [plain[index] for index in indices]
        else:
            indices = [chance.randrange(-len(plain), len(plain)) for _ in range(5)]
            snapshots.append((ours.take(np.array(indices)), [plain[index] for index in indices]))
            del snapshots[:-4]
        if step % 25 == 0:
            gc.collect()
            assert_same_tree(wr.collate(ours, spec), wr.collate(plain, spec))
            for taken, chosen in snapshots:
                assert_same_tree(wr.collate(taken, spec), wr.collate(chosen, spec))
    assert_same_tree(wr.collate(ours, spec), wr.collate(plain, spec))


def test_samples_of_any_shapes_and_dtypes():
    samples = wr.SampleList([{"x": array(0)}, {"x": array(1, (2, 2), "int8")}])
    samples.append({"x": 3.0})
    samples[0] = {"x": array(0, (2, 2), "int8")}
    refusal(lambda: wr.collate(samples), wr.ShapeError, 'sample 2 at "x"', index=2, path="x")
    assert_tensor(wr.collate(samples.take([0, 1]))["x"], np.stack([array(0, (2, 2), "int8"), array(1, (2, 2), "int8")]))


def test_namedtuples_of_numbers_are_trees():
    Pair = namedtuple("Pair", "n x")
    plain = [Pair(i, i + 0.5) for i in range(4)]
    samples = wr.SampleList(plain[:2])
    samples.extend(plain[2:3])
    samples.append(plain[3])
    assert_same_tree(wr.collate(samples), wr.collate(plain))
    assert samples[1] == plain[1] and type(samples[1]) is Pair
    assert_same_tree(wr.collate(samples.take([2, 0]), {"n": wr.Stack(dtype="int8")}), wr.collate([plain[2], plain[0]], {"n": wr.Stack(dtype="int8")}))
    refusal(lambda: wr.stack(samples), TypeError, "the samples of this list are trees")
    for wrap in (lambda pair: [pair], lambda pair: {"t": pair}, lambda pair: {"t": {"u": (pair, "s")}}):
        trees = list(map(wrap, plain))
        samples = wr.SampleList(trees[:2])
        samples.append(trees[2])
        samples.extend(trees[3:])
        samples[0] = trees[0]
        assert_same_tree(wr.collate(samples), wr.collate(trees))
        assert [samples[i] for i in range(4)] == trees
        assert str(samples[1]) == str(trees[1]), "a Pair of numbers, not a tuple"


def test_struct_sequences_are_trees():
    """Tuples of C with names, such as `time.struct_time`, keep their class as `collate` does."""
    plain = [time.gmtime(1000 * i) for i in range(3)]
    samples = wr.SampleList(plain[:2])
    samples.append(plain[2])
    assert type(wr.collate(samples)) is time.struct_time and type(samples[1]) is time.struct_time and samples[1] == plain[1]
    assert_same_tree(wr.collate(samples), wr.collate(plain))
    assert_same_tree(wr.collate(wr.SampleList([{"t": own} for own in plain])), wr.collate([{"t": own} for own in plain]))


@pytest.mark.parametrize("empty", [[], ()])
def test_lists_without_numbers_before_arrays_in_trees(empty):
    plain = [{"a": empty}, {"a": np.arange(3, dtype="i2")}, {"a": empty}, {"a": [4]}]
    spec = {"a": wr.Ragged()}
    for count in (2, 3):
        assert_same_tree(wr.collate(wr.SampleList(plain[:count]), spec), wr.collate(plain[:count], spec))
    refusal(lambda: wr.SampleList([{"a": (1, np.ones(2))}, {"a": np.ones(2)}]), TypeError, 'sample 1 at "a": expected tuple')


def test_joined_lists():
    first, second = [{"a": array(i), "b": f"{i}"} for i in range(3)], [{"b": f"{i}", "a": array(i)} for i in range(3, 5)]
    samples = wr.SampleList(first)
    samples.extend(wr.SampleList(second))
    samples.extend(wr.SampleList())
    samples.extend(second)
    samples.extend(samples)
    assert_same_tree(wr.collate(samples), wr.collate((first + second + second) * 2))
    empty = wr.SampleList()
    empty.extend(samples)
    empty[0] = second[0]
    assert_same_tree(wr.collate(samples.take([0])), wr.collate(first[:1]))
    assert_same_tree(wr.collate(wr.SampleList(samples)), wr.collate(samples))


# The structure is that of the first sample


@pytest.mark.parametrize(
    "bad, kind, text",
    [
        ({"x": array(1)}, KeyError, r'sample {} at "t": the key is missing'),
        ({"x": array(1), "t": (array(1), 1), "s": "", "more": 1}, KeyError, r'sample {} at "more": a key that'),
        ({"x": array(1), "y": (array(1), 1), "s": ""}, KeyError, r'sample {} at "t": the key is missing|sample {} at "y": a key'),
        ({"x": array(1), "t": (array(1), 1, 2), "s": ""}, ValueError, r'sample {} at "t": expected 2 entries, got 3'),
        ({"x": array(1), "t": array(1), "s": ""}, TypeError, r'sample {} at "t": expected tuple, got .*ndarray'),
        ({"x": array(1), "t": (array(1), None), "s": ""}, TypeError, r'sample {} at "t\.1": .*NoneType'),
        ({"x": array(1), "t": (array(1), 1), "s": 5}, TypeError, r'sample {} at "s": expected str.*, got int'),
        ({"x": "a", "t": (array(1), 1), "s": ""}, TypeError, r'sample {} at "x": expected an array-like, got str'),
        ({"x": {}, "t": (array(1), 1), "s": ""}, TypeError, r'sample {} at "x": .*got dict'),
        (array(1), TypeError, r"sample {}: expected dict, got .*ndarray"),
        ([array(1)], TypeError, r"sample {}: expected dict, got list"),
        (None, TypeError, r"sample {}: expected dict, got NoneType"),
        ("text", TypeError, r"sample {}: expected dict, got str"),
    ],
)
def test_another_structure_is_refused(bad, kind, text):
    def good(i):
        return {"x": array(i), "t": (array(i), i), "s": "s"}

    plain = [good(i) for i in range(4)]
    samples = wr.SampleList(plain)

    def put(index, sample):
        samples[index] = sample

    refusal(lambda: put(2, bad), kind, text.replace("{}", "2"))
    refusal(lambda: put(-1, bad), kind, text.replace("{}", "3"))
    refusal(lambda: samples.append(bad), kind, text.replace("{}", "4"))
    refusal(lambda: samples.extend([good(5), bad]), kind, text.replace("{}", "5"))
    refusal(lambda: wr.SampleList([good(0), bad]), kind, text.replace("{}", "1"))
    assert_same_tree(wr.collate(samples), wr.collate(plain))


def test_lists_of_another_structure_are_refused():
    trees, rows = wr.SampleList([{"x": array(0)}]), wr.SampleList([array(0)])
    for other in ([{"y": array(0)}], [{"x": "a"}], [{"x": [array(0)]}], [[array(0)]], [{"x": array(0), "y": 1}]):
        refusal(lambda: trees.extend(wr.SampleList(other)), TypeError, "differ in structure")
    refusal(lambda: trees.extend(rows), TypeError, "all array-likes or all trees")
    refusal(lambda: rows.extend(trees), TypeError, "all array-likes or all trees")
    refusal(lambda: rows.append({"x": array(0)}), TypeError, "sample 1: expected an array-like, got dict")
    refusal(lambda: wr.SampleList([array(0), {"x": array(0)}]), TypeError, "sample 1: expected an array-like, got dict")
    assert (len(trees), len(rows)) == (1, 1)


class CountedKey(str):
    """A key that counts comparisons."""

    num_compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedKey.num_compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("order", [list, reversed])
def test_keys_of_wide_trees_are_not_compared_with_all_others(order):
    num = 2000

    def tree(*more):
        """A sample with keys of its own."""
        return {CountedKey(key): j for j, key in enumerate([*(f"k{j}" for j in range(num)), *more])}

    samples, other = wr.SampleList([tree()]), wr.SampleList([dict(order(tree().items()))])
    out = {key: np.zeros(1, "int64") for key in tree("more")}
    CountedKey.num_compared = 0
    samples.extend(other)
    refusal(lambda: wr.collate([tree(), tree("more")]), KeyError, "sample 1 at \"more\": a key that sample 0 does not have")
    refusal(lambda: wr.collate([tree()], out=out), KeyError, "out at \"more\": the samples have no such key")
    assert CountedKey.num_compared < 20 * num
    sample = samples[1]
    assert [int(sample[key]) for key in tree()] == [*range(num)]


def test_leaves_that_are_no_tensors():
    rows = wr.SampleList([{"ids": [1, 2], "s": "a"}])

    def put(sample):
        rows[0] = sample

    for bad in (np.array([1]), [1, "a"], "12", 5):
        refusal(lambda: put({"ids": bad, "s": "a"}), TypeError, 'sample 0 at "ids": expected a list of Python numbers')
    put({"ids": (3.5,), "s": b"b"})
    assert rows[0] == {"ids": (3.5,), "s": b"b"}
    refusal(lambda: wr.SampleList([{"s": "a"}, {"s": 1}]), TypeError, 'sample 1 at "s": expected str, got int')
    refusal(lambda: wr.SampleList([{"x": None}]), TypeError, 'sample 0 at "x"', "NoneType")
    refusal(lambda: wr.SampleList([{"ids": [1, 2]}, {"ids": [1, None]}]), TypeError, 'sample 1 at "ids.1"')


def test_indices_are_those_of_other_lists():
    samples = wr.SampleList([transition(i) for i in range(5)])
    for bad in (5, -6):
        refusal(lambda: samples[bad], IndexError, f"index {bad} in a list of 5 samples")
        refusal(lambda: samples.take([0, bad]), IndexError, f"index {bad} in a list of 5 samples")
    for bad in ([1, 2], 1.0, None):
        refusal(lambda: samples[bad], TypeError, "an int or a slice")
    refusal(lambda: samples.take([0.5]), TypeError)
    assert len(samples.take([])) == 0
    refusal(lambda: wr.collate(samples.take([])), ValueError, "empty list")
    kept = samples.take([])
    kept.append(transition(1))
    assert_same_tree(wr.collate(kept), wr.collate([transition(1)]))
    refusal(lambda: kept.append(array(0)), TypeError, "sample 1: expected dict")
    assert repr(samples) == "SampleList(5 trees, 5 leaves)"


@pytest.mark.parametrize("call", [wr.stack, wr.pad, wr.concat, wr.ragged, wr.explain])
def test_calls_for_array_likes_say_collate(call):
    samples = wr.SampleList([transition(i) for i in range(3)])
    refusal(lambda: call(samples), TypeError, r"trees \(dict\); use wr.collate")
    refusal(lambda: samples.stack([0, 1]), TypeError, r"trees \(dict\); use wr.collate")
    refusal(lambda: wr.crops(samples, [[0, 0, 1, 1]] * 3), TypeError, "use wr.collate")


def test_trees_are_not_known_on_a_device():
    samples = wr.SampleList([transition(i) for i in range(3)])
    refusal(lambda: samples.to_device("cuda"), TypeError, "trees", "a SampleList of each leaf")


# Memory


class Held(np.ndarray):
    """An array that a weak reference can watch."""


def held(value):
    return np.full(4, value, np.float32).view(Held)


@pytest.mark.parametrize("start", ["list", "append"])
def test_replaced_samples_are_let_go_of(start):
    first = [{"a": held(i), "b": {"c": held(i)}, "n": i} for i in range(6)]
    dead = [weakref.ref(array) for sample in first for array in (sample["a"], sample["b"]["c"])]
    samples = wr.SampleList(first if start == "list" else None)
    if start == "append":
        for sample in first:
            samples.append(sample)
    del first
    sample = None
    for turn in range(3):
        for index in range(6):
            sample = {"a": held(turn), "b": {"c": held(index)}, "n": 10 * turn + index}
            dead += [weakref.ref(sample["a"]), weakref.ref(sample["b"]["c"])]
            samples[index] = sample
        sample = None
        gc.collect()
        assert [ref() is not None for ref in dead] == [False] * (len(dead) - 12) + [True] * 12, turn
    taken, item = samples.take([0, 5]), samples[1]
    for index in range(6):
        samples[index] = {"a": held(7), "b": {"c": held(8)}, "n": 9}
    gc.collect()
    assert sum(ref() is not None for ref in dead) == 6
    assert wr.collate(taken)["n"].numpy().tolist() == [20, 25] and item["a"].numpy()[0] == 2
    del taken, item
    gc.collect()
    assert sum(ref() is not None for ref in dead) == 0


def test_memory_that_moves_is_noticed(torch):
    samples = wr.SampleList([{"x": torch.full((4,), float(i)), "y": i} for i in range(5)])
    kept, moved = torch.full((4,), 7.0), torch.zeros(4)
    samples[1], samples[3] = {"x": kept, "y": 1}, {"x": moved, "y": 3}
    kept.data = torch.zeros(9)
    taken = samples.take([0, 3])
    assert wr.collate(samples)["x"].numpy()[:, 0].tolist() == [0, 7, 2, 0, 4]
    moved.resize_(1 << 20)
    calls = ((lambda: wr.collate(samples), 3), (lambda: wr.collate(taken), 1), (lambda: samples[3], 3))
    for call, index in calls:
        refusal(call, wr.LayoutError, 'at "x"', "moved or freed", index=index, path="x")
    samples[3] = {"x": torch.ones(4), "y": 3}
    assert wr.collate(samples)["x"].numpy()[:, 0].tolist() == [0, 7, 2, 1, 4]


def test_a_tensor_that_requires_grad_is_refused(torch):
    samples = wr.SampleList([{"x": torch.zeros(2)}])
    refusal(lambda: samples.append({"x": torch.zeros(2, requires_grad=True)}), wr.LayoutError, 'sample 1 at "x"', index=1)


def test_a_ring_buffer_grows_no_owner():
    count = 1000
    samples = wr.SampleList([transition(i % 50) for i in range(count)])
    for step in range(6 * count):
        if step == count:
            before = rss_bytes()
        samples[step % count] = transition(step % 50)
        taken = samples.take([step % count, 3])
        samples[(step + 7) % count] = samples[step % count]
    assert rss_bytes() - before < 8 << 20
    assert_same_tree(wr.collate(taken), wr.collate([transition(step % 50), samples[3]]))


# Classes whose children are those of a whole batch are kept as they are


def test_objects_that_a_whole_batch_takes_apart():
    class Graph:
        def __init__(self, nodes):
            self.nodes = nodes

    def flattener(samples, path, sep):
        children = [{"nodes": graph.nodes + 10 * number} for number, graph in enumerate(samples)]
        return _nodes.Flattened(children, lambda made: ("graphs", made["nodes"]), {"nodes": ("concat", {})})

    _nodes._registered[Graph] = flattener
    try:
        plain = [{"g": Graph(np.full(1 + i, i)), "n": i} for i in range(4)]
        samples = wr.SampleList(plain)
        assert_same_tree(wr.collate(samples), wr.collate(plain))
        assert_same_tree(wr.collate(samples.take([3, 1])), wr.collate([plain[3], plain[1]]))
        assert samples[2]["g"] is plain[2]["g"] and int(samples[2]["n"]) == 2
        samples[0] = plain[3]
        assert_same_tree(wr.collate(samples.take([0, 0])), wr.collate([plain[3], plain[3]]))
        refusal(lambda: samples.append({"g": np.zeros(2), "n": 1}), TypeError, 'sample 4 at "g": expected .*Graph, got .*ndarray')
        assert_same_tree(wr.collate(wr.SampleList([plain[1]["g"]])), wr.collate([plain[1]["g"]]))
    finally:
        del _nodes._registered[Graph]


def test_rows_of_an_arrow_table():
    pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    table = pa.table({"ids": [[1, 2], [3]], "name": ["a", "b"], "at": [{"x": 1.5}, {"x": 2.5}]})
    samples = wr.SampleList(table)
    spec = {"ids": wr.Pad()}
    assert_same_tree(wr.collate(samples, spec), wr.collate(table, spec))
    assert_same_tree(wr.collate(samples.take([1, 1]), spec), wr.collate(table.take([1, 1]), spec))
    samples.extend(table)
    assert len(samples) == 4 and samples[3]["name"] == "b"
