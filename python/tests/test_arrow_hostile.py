"""Arrow structs that lie, streams that fail or are used up, schemas that are of something else: refused before memory is read."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_void_p, cast, pointer, sizeof

import numpy as np
import pytest

import windrow as wr
from helpers import refusal

pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")

_RELEASE = CFUNCTYPE(None, c_void_p)
_NEW = ctypes.pythonapi.PyCapsule_New
_NEW.restype, _NEW.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype, _POINTER.argtypes = c_void_p, [ctypes.py_object, c_char_p]


class Schema(Structure):
    _fields_ = [("format", c_char_p), ("name", c_char_p), ("metadata", c_void_p), ("flags", c_int64), ("n_children", c_int64)]
    _fields_ += [("children", c_void_p), ("dictionary", c_void_p), ("release", c_void_p), ("private_data", c_void_p)]


class Array(Structure):
    _fields_ = [(name, c_int64) for name in "length null_count offset n_buffers n_children".split()]
    _fields_ += [(name, c_void_p) for name in "buffers children dictionary release private_data".split()]


_GET_SCHEMA, _GET_NEXT = CFUNCTYPE(c_int, c_void_p, POINTER(Schema)), CFUNCTYPE(c_int, c_void_p, POINTER(Array))
_GET_ERROR = CFUNCTYPE(c_void_p, c_void_p)


class Stream(Structure):
    _fields_ = [(name, c_void_p) for name in "get_schema get_next get_last_error release private_data".split()]


def address(function):
    return cast(function, c_void_p).value


class Producer:
    """A stream of what a list of pyarrow arrays exports, whose callbacks may be missing or give codes."""

    def __init__(self, arrays, schema=None, text=b"out of paper", **other):
        self.left, self.schema, self.released = list(arrays), schema or arrays[0].type, 0
        self.text = text and ctypes.create_string_buffer(text)
        self.calls = {
            "get_schema": _GET_SCHEMA(self.get_schema),
            "get_next": _GET_NEXT(self.get_next),
            "get_last_error": _GET_ERROR(lambda stream: self.text and ctypes.addressof(self.text)),
            "release": _RELEASE(self.release),
            **other,
        }
        self.stream = Stream(**{name: call and address(call) for name, call in self.calls.items()})

    def get_schema(self, stream, out):
        pa.field("", self.schema)._export_to_c(ctypes.addressof(out.contents))
        return 0

    def get_next(self, stream, out):
        if self.left:
            self.left.pop(0)._export_to_c(ctypes.addressof(out.contents))
        else:
            ctypes.memset(out, 0, sizeof(Array))
        return 0

    def release(self, stream):
        self.released += 1
        Stream.from_address(stream).release = None

    def __arrow_c_stream__(self, requested_schema=None):
        return _NEW(ctypes.addressof(self.stream), b"arrow_array_stream", None)


class Pair:
    """``__arrow_c_array__`` of two capsules."""

    def __init__(self, schema, array):
        self.pair = schema, array

    def __arrow_c_array__(self, requested_schema=None):
        return self.pair


def changed(array, **fields):
    """Exports an array with other values in its struct. Children are not changed: pyarrow's own release reads them."""
    schema, capsule = array.__arrow_c_array__()
    struct = Array.from_address(_POINTER(capsule, b"arrow_array"))
    for name, value in fields.items():
        setattr(struct, name, value)
    return Pair(schema, capsule)


NUMBERS = pa.array(np.arange(5, dtype="int32"))
LISTS = pa.array([[1, 2], [], [3]], pa.list_(pa.int32()))


def test_streams_are_read_to_their_end_and_released_once():
    source = Producer([LISTS, LISTS.slice(0, 0), LISTS.slice(1)])
    assert [len(row) for row in wr.SampleList(source)] == [2, 0, 1, 0, 1]
    assert source.released == 1
    # Its capsule is given again: the stream is used up.
    refusal(lambda: wr.SampleList(source), wr.LayoutError, "an Arrow stream that is alive, got a released one")


@pytest.mark.parametrize("name", ["get_schema", "get_next"])
def test_streams_without_callbacks(name):
    source = Producer([LISTS], **{name: None})
    refusal(lambda: wr.SampleList(source), wr.LayoutError, "an Arrow stream that is alive")
    assert source.released == 1


@pytest.mark.parametrize("name, kind", [("get_schema", _GET_SCHEMA), ("get_next", _GET_NEXT)])
def test_streams_that_fail(name, kind):
    failing = kind(lambda stream, out: 5)
    for other, text in (
        ({}, "got out of paper"),
        ({"text": None}, "the error 5 without a reason"),
        ({"get_last_error": None}, "the error 5 without a reason"),
        ({"text": b"not \xff UTF-8"}, "got not \N{REPLACEMENT CHARACTER} UTF-8"),
    ):
        source = Producer([LISTS], **{name: failing}, **other)
        refusal(lambda: wr.collate(source), wr.LayoutError, text)
        assert source.released == 1 and len(source.left) == 1


def test_streams_that_give_nothing():
    """A schema or arrays that are released already: no rows, or a refusal."""
    empty = _GET_SCHEMA(lambda stream, out: 0)
    refusal(lambda: wr.SampleList(Producer([LISTS], get_schema=empty)), wr.LayoutError, "alive, got a released one")
    assert len(wr.SampleList(Producer([], schema=pa.int32()))) == 0
    refusal(lambda: wr.stack(Producer([], schema=pa.int32())), ValueError, "an empty list")


@pytest.mark.parametrize("wrong", [NUMBERS, pa.array(["a", "b"]), pa.array([[1.0]] * 3, pa.list_(pa.float64(), 1)), pa.array([{"a": 1}])])
def test_arrays_of_another_type_than_the_schema(wrong):
    """Buffers and children tell the type; nothing tells how wide an element is."""
    refusal(lambda: wr.SampleList(Producer([LISTS, wrong])), wr.LayoutError, "sample 3: expected ")
    schema, _ = LISTS.__arrow_c_array__()
    _, array = wrong.__arrow_c_array__()
    refusal(lambda: wr.SampleList(Pair(schema, array)), wr.LayoutError, "sample 0: expected ")


def test_tables_of_other_columns():
    table = pa.table({"a": [1, 2], "b": [[1], [2]]})
    fewer = table.select(["a"]).to_batches()[0].to_struct_array()
    source = Producer([fewer], schema=table.to_batches()[0].to_struct_array().type)
    refusal(lambda: wr.collate(source, {"b": wr.Ragged()}), wr.LayoutError, 'sample 0 at "a": expected as many children as its type has, 2, got 1', path="a")


@pytest.mark.parametrize(
    "array, fields, text",
    [
        (NUMBERS, {"length": -1}, "length -1 from offset 0"),
        (NUMBERS, {"offset": 2**63 - 1}, "length 5 from offset"),
        (NUMBERS, {"null_count": 9}, "a null count up to the length of 5, got 9"),
        (NUMBERS, {"null_count": 1}, "a bitmap of nulls, got NULL for 1 nulls"),
        (NUMBERS, {"n_buffers": 1}, "an Arrow array of 2 buffers"),
        (NUMBERS, {"buffers": None}, "an Arrow array of 2 buffers"),
        (LISTS, {"n_children": 0}, "as many children as its type has, 1, got 0"),
        (LISTS, {"length": 2**60}, None),
        (pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)), {"length": 4}, "sample 3: expected a child with 8 entries, got one of length 6"),
        (pa.array(["a", "bc"]), {"n_buffers": 2}, "an Arrow array of 3 buffers"),
        (pa.array(["a", "bc"], pa.string_view()), {"n_buffers": 2}, "an Arrow array of 3 buffers"),
        (pa.array(["a", "bc"], pa.string_view()), {"n_buffers": -(2**63)}, "an Arrow array of 3 buffers"),
        (pa.array([b"ab"], pa.large_binary()), {"n_buffers": 4}, "an Arrow array of 3 buffers"),
        (pa.array([[1], [2, 3]], pa.list_view(pa.int32())), {"n_buffers": 2}, "an Arrow array of 3 buffers"),
    ],
)
def test_structs_that_contradict_their_type(array, fields, text):
    if text is None:
        # No memory holds so many offsets: they are not allocated one after the other first.
        with pytest.raises((MemoryError, wr.LayoutError)):
            wr.collate(changed(array, **fields))
        return
    refusal(lambda: wr.collate(changed(array, **fields)), wr.LayoutError, text)


def buffers_of(array, **replaced):
    """The same array with other bytes at the start of its buffers, by their position, as ``b1``: after pyarrow has checked it."""
    memory = [None if buffer is None else np.frombuffer(buffer, np.uint8).copy() for buffer in array.buffers()]
    made = pa.Array.from_buffers(array.type, len(array), [None if part is None else pa.py_buffer(part) for part in memory])
    for name, values in replaced.items():
        new = np.frombuffer(values, np.uint8)
        memory[int(name[1:])][: len(new)] = new
    return made


TEXTS = pa.array(["ab", "c", "a text of more than twelve bytes"])
VIEWS = pa.array(["ab", "c", "a text of more than twelve bytes"], pa.string_view())


@pytest.mark.parametrize("column, index, text", [
    (buffers_of(TEXTS, b2=b"ab\xff"), 1, "expected a string in UTF-8, got other bytes"),
    (buffers_of(TEXTS, b1=np.array([0, 2, 1, 5], "int32")), 1, "an offset from 2 on, got 1"),
    (buffers_of(VIEWS, b1=np.array([1, 97, 0, 0, 1, 255, 0, 0, 0, 0, 0, 0], "int32")), 1, "a string in UTF-8"),
    (buffers_of(VIEWS, b1=np.array([1, 97, 0, 0, 1, 98, 0, 0, 99, 0, 0, 0], "int32")), 2, "a view within its buffer, got 99 bytes from 0 of 32"),
    (buffers_of(VIEWS, b1=np.array([1, 97, 0, 0, 13, 0, 0, 20, 1, 0, 0, 0], "int32")), 1, "got 13 bytes from 20 of 32"),
    (buffers_of(VIEWS, b1=np.array([1, 97, 0, 0, 13, 0, -1, 0, 1, 0, 0, 0], "int32")), 1, "got one in buffer -1 of 1"),
    (buffers_of(VIEWS, b1=np.array([-5, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], "int32")), 0, "a view within its buffer, got -5 bytes"),
])  # fmt: skip
def test_strings_and_views_that_lie_name_row_and_column(column, index, text):
    table = pa.table({"x": np.arange(3), "t": column})
    refusal(lambda: wr.collate(table), wr.LayoutError, f'sample {index} at "t": expected', text, index=index, path="t")
    nested = pa.table({"s": pa.StructArray.from_arrays([column], ["t"])})
    refusal(lambda: wr.collate(pa.concat_tables([nested.slice(0, 0), nested])), wr.LayoutError, f'sample {index} at "s.t"', index=index, path="s.t")


@pytest.mark.parametrize("array, position, text", [
    (TEXTS, 2, "a buffer of bytes, got NULL"),
    (TEXTS, 1, "a buffer of 3 entries, got NULL"),
    (VIEWS, 1, "a buffer of 3 entries, got NULL"),
    (VIEWS, 2, "a view within its buffer"),
    (VIEWS, 3, "a view within its buffer"),
    (NUMBERS, 1, "a buffer of 5 entries, got NULL"),
    (LISTS, 1, "a buffer of 3 entries, got NULL"),
    (pa.array([[1], [2]], pa.list_view(pa.int32())), 1, "a buffer of 2 entries, got NULL"),
    (pa.array([[1], [2]], pa.list_view(pa.int32())), 2, "a buffer of 2 entries, got NULL"),
])  # fmt: skip
def test_buffers_that_are_not_there(array, position, text):
    made = changed(array)
    struct = Array.from_address(_POINTER(made.pair[1], b"arrow_array"))
    (c_void_p * struct.n_buffers).from_address(struct.buffers)[position] = None
    refusal(lambda: wr.collate(made), wr.LayoutError, text)


def metadata(*pairs):
    """Keys and values as the C data interface has them."""
    parts = [len(pairs).to_bytes(4, "little", signed=True)]
    for text in (text for pair in pairs for text in pair):
        parts += [len(text).to_bytes(4, "little"), text]
    return b"".join(parts)


NAME = b"ARROW:extension:name"
MORE = b"ARROW:extension:metadata"
PAIRS = pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2))


@pytest.mark.parametrize("data, error, text", [
    ((-1).to_bytes(4, "little", signed=True), wr.LayoutError, "sizes from 0 on in its metadata, got -1"),
    ((1).to_bytes(4, "little") + (-7).to_bytes(4, "little", signed=True), wr.LayoutError, "sizes from 0 on in its metadata, got -7"),
    (metadata((NAME, b"arrow.fixed_shape_tensor")), wr.LayoutError, "the shape of a tensor"),
    (metadata((NAME, b"arrow.fixed_shape_tensor"), (MORE, b'{"shape":[3]}')), wr.LayoutError, "as many elements as its storage"),
    (metadata((NAME, b"arrow.fixed_shape_tensor"), (MORE, b'{"shape":[2' + b"]" * 3 + b"}")), None, ""),
    (metadata((NAME, b"arrow.fixed_shape_tensor"), (MORE, b'{"shape":[' + b"1," * 80 + b"2]}")), wr.LayoutError, "the shape of a tensor"),
    (metadata((NAME, b"arrow.fixed_shape_tensor"), (MORE, b"\xff\xfe{" * 100)), wr.LayoutError, "the shape of a tensor"),
    (metadata((NAME, b"arrow.fixed_shape_tensor"), (MORE, b'{"shape":[18446744073709551618]}')), wr.LayoutError, "the shape of a tensor"),
    (metadata((NAME, b"arrow.variable_shape_tensor"), (MORE, b"")), wr.DTypeError, "the extension type"),
    (metadata((NAME, b"\xff\xfe")), wr.DTypeError, "the extension type"),
    (metadata((MORE, b"{"), (b"", b"")), None, ""),
    (metadata(), None, ""),
])  # fmt: skip
def test_metadata_that_lies(data, error, text):
    schema, array = PAIRS.__arrow_c_array__()
    memory = ctypes.create_string_buffer(data + bytes(16))
    struct = Schema.from_address(_POINTER(schema, b"arrow_schema"))
    before, struct.metadata = struct.metadata, ctypes.addressof(memory)
    try:
        if error is None:
            assert wr.stack(Pair(schema, array)).numpy().tolist() == [[1, 2]] * 3
        else:
            refusal(lambda: wr.stack(Pair(schema, array)), error, text)
    finally:
        struct.metadata = before


def test_arrays_and_schemas_that_are_released():
    schema, array = LISTS.__arrow_c_array__()
    assert len(wr.SampleList(Pair(schema, array))) == 3
    refusal(lambda: wr.SampleList(Pair(schema, array)), wr.LayoutError, "an Arrow array that is alive, got a released one")
    struct = Schema.from_address(_POINTER(schema, b"arrow_schema"))
    cast(struct.release, _RELEASE)(byref(struct))
    _, array = LISTS.__arrow_c_array__()
    refusal(lambda: wr.SampleList(Pair(schema, array)), wr.LayoutError, "one that is alive, got a released one")
    # Children that are released on their own, as the interface lets a consumer move one away.
    _, array = LISTS.__arrow_c_array__()
    parent = Array.from_address(_POINTER(array, b"arrow_array"))
    child = cast(parent.children, POINTER(POINTER(Array)))[0].contents
    cast(child.release, _RELEASE)(pointer(child))
    schema, _ = LISTS.__arrow_c_array__()
    refusal(lambda: wr.SampleList(Pair(schema, array)), wr.LayoutError, "got a released one")
