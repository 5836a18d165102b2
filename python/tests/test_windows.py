"""Windows of an array and crops of images, beside NumPy's slices."""

import random

import numpy as np
import pytest

import windrow as wr
from helpers import refusal


@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("shape", [(40,), (40, 3)])
def test_windows_are_slices(shape, step):
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)[::step]
    starts = np.array([0, 5, 5, len(array) - 7], np.uint16)
    windows = wr.windows(array, starts, 7)
    wanted = np.stack([array[s : s + 7] for s in starts])
    assert np.array_equal(wr.stack(windows).numpy(), wanted)
    assert np.array_equal(wr.stack(windows.take([3, 0])).numpy(), wanted[[3, 0]])
    assert len(wr.windows(array, [], 7)) == 0 and wr.windows(array, [len(array)], 0)[0].shape == (0, *shape[1:])


def test_windows_keep_their_array_and_follow_what_it_holds():
    array = np.zeros(10)
    windows = wr.windows(array, [2], 3)
    array[3] = 5
    del array
    assert windows[0].numpy().tolist() == [0, 5, 0]


def test_windows_of_a_memory_map(tmp_path):
    np.arange(1000, dtype=np.float32).tofile(tmp_path / "sound")
    sound = np.memmap(tmp_path / "sound", np.float32, "r")
    clips = wr.stack(wr.windows(sound, [3, 900], 100))
    assert np.array_equal(clips.numpy(), [sound[3:103], sound[900:1000]])
    with pytest.raises((wr.LayoutError, ValueError, BufferError)):
        wr.windows(sound, [0], 4)[0].numpy()[:] = 0


def images_of(sizes, channels_first=False):
    images = [np.random.default_rng(i).integers(0, 255, (h, w, 3), np.uint8) for i, (h, w) in enumerate(sizes)]
    return [np.ascontiguousarray(image.transpose(2, 0, 1)) for image in images] if channels_first else images


def test_torch_has_no_flipped_views():
    crop = wr.crops([np.arange(12).reshape(3, 4)], [(0, 0, 2, 3)], flip=True)[0]
    refusal(crop.torch, wr.LayoutError, "expected strides from 0 on, as torch has them, got a stride of -1; wr.stack of it copies it")
    # Along a dim of one place nothing is flipped.
    column = wr.asarray(np.arange(6).reshape(2, 3)[:, :1][:, ::-1])
    assert column.torch().tolist() == [[0], [3]]


@pytest.mark.parametrize("flip", [None, True, [False, True, True]])
def test_random_crops_are_slices(flip):
    images = images_of([(20, 30), (16, 16), (9, 40)])
    boxes, wanted = [], []
    for i, image in enumerate(images):
        left, top = random.Random(i).randint(0, image.shape[1] - 8), random.Random(i + 9).randint(0, image.shape[0] - 8)
        boxes.append([left, top, left + 8, top + 8])
        crop = image[top : top + 8, left : left + 8]
        mirrored = flip is True or (isinstance(flip, list) and flip[i])
        wanted.append(crop[:, ::-1] if mirrored else crop)
    batch = wr.stack(wr.crops(images, np.array(boxes), flip=flip))
    assert np.array_equal(batch.numpy(), np.stack(wanted))
    flags = None if flip is None else np.broadcast_to(flip, 3)
    again = wr.stack(wr.crops(wr.SampleList(images), np.array(boxes, np.int32), flip=flags), dtype="float32")
    assert np.array_equal(again.numpy(), np.stack(wanted).astype(np.float32))


def test_crops_of_other_dims_and_sizes():
    images = images_of([(12, 10), (8, 6)], channels_first=True)
    crops = wr.crops(images, [[1, 2, 9, 12], [0, 0, 6, 8]], dims=(1, 2), flip=[True, False])
    assert np.array_equal(crops[0].numpy(), images[0][:, 2:12, 1:9][:, :, ::-1])
    assert np.array_equal(wr.pad(crops, dims=(1, 2))[1].numpy(), images[1])
    assert wr.crops(images, [[0] * 4] * 2, dims=(-2, -1))[0].shape == (3, 0, 0)
    for dims in ([1, 2], np.array([1, 2]), range(1, 3)):
        assert np.array_equal(wr.crops(images, [[1, 2, 9, 12], [0, 0, 6, 8]], dims=dims)[1].numpy(), images[1])
    assert len(wr.crops([], [])) == 0


def test_torch_storage_that_moved_is_noticed():
    torch = pytest.importorskip("torch")
    image = torch.zeros(8, 8, 3)
    crops = wr.crops([image], [[0, 0, 4, 4]])
    image.untyped_storage().resize_(4 * 8 * 8 * 3 * 100)
    with pytest.raises(wr.LayoutError, match="sample 0"):
        wr.stack(crops)


@pytest.mark.parametrize(
    "call, error, index, text",
    [
        (lambda: wr.windows(np.zeros(9), [0, 5], 5), wr.ShapeError, 1, "start from 0 to 4 for a length of 5"),
        (lambda: wr.windows(np.zeros(9), [-1], 5), wr.ShapeError, 0, "got -1"),
        (lambda: wr.windows(np.zeros(9), [0], 10), wr.ShapeError, 0, "length of 10"),
        (lambda: wr.windows(np.zeros(9), [0], 10), wr.ShapeError, 0, "got 9"),
        (lambda: wr.windows(np.zeros(9), [0], -1), ValueError, None, "length must be at least 0, got -1"),
        (lambda: wr.windows(np.zeros(9), [0], 1.5), TypeError, None, "length must be an int, got 1.5"),
        (lambda: wr.windows(np.zeros(9), [0], True), TypeError, None, "length must be an int, got True"),
        (lambda: wr.windows(np.zeros(9), [0], 2**70), ValueError, None, f"length={2**70} is beyond 64 bits"),
        (lambda: wr.windows(np.float64(9), [0], 1), wr.ShapeError, 0, "at least one dim"),
        (lambda: wr.windows(np.zeros(9), [0.5], 1), TypeError, None, ""),
        (lambda: wr.windows(np.zeros(9), [2**63 - 1], 2), wr.ShapeError, 0, ""),
        (lambda: wr.crops(np.zeros((2, 4, 4)), [[0, 0, 4, 4], [0, 0, 5, 4]]), wr.ShapeError, 1, "width 4 and height 4"),
        (lambda: wr.crops(np.zeros((1, 4, 4)), [[3, 0, 2, 4]]), wr.ShapeError, 0, "[3, 0, 2, 4]"),
        (lambda: wr.crops(np.zeros((2, 4, 4)), [[0, 0, 4, 4]]), wr.ShapeError, None, "shape (2, 4), one for each image"),
        (lambda: wr.crops(np.zeros((1, 4)), [[0, 0, 4, 4]]), ValueError, None, "two dims of sample 0"),
        (lambda: wr.crops(np.zeros((1, 4, 4)), [[0, 0, 4, 4]], dims=(1, 1)), ValueError, None, "two dims"),
        (lambda: wr.crops(np.zeros((1, 4, 4)), [[0, 0, 4, 4]], dims=[1]), ValueError, None, "two dims of the images, got [1]"),
        (lambda: wr.crops(np.zeros((1, 4, 4)), [[0, 0, 4, 4]], dims=[0, 1.5]), TypeError, None, "dims[1]=1.5; dims are ints"),
        (lambda: wr.crops(np.zeros((2, 4, 4)), [[0, 0, 4, 4]] * 2, flip=[True] * 3), ValueError, None, "3 entries for 2"),
        (lambda: wr.crops(np.zeros((2, 4, 4)), [[0, 0, 4, 4]] * 2, flip=[True]), ValueError, None, "1 entries for 2"),
        (lambda: wr.crops(np.zeros((1, 4, 4)), [[0, 0, 4, 4]], flip=np.ones(1)), TypeError, None, "float64"),
        (lambda: wr.crops(np.zeros((2, 4, 4)), [[0, 0, 4, 4]] * 2, flip=[True, 1]), TypeError, None, "flip[1]=1; flip are booleans"),
    ],
)
def test_bad_numbers_are_named(call, error, index, text):
    with pytest.raises(error) as found:
        call()
    assert text in str(found.value)
    if index is not None:
        assert found.value.index == index
