"""`python -m windrow demo`: photographs, text and sound to batches, checked element by element and timed.

Everything comes from installed packages: two photographs of scikit-learn, the sources and the licence
of Python itself, a sound of pygame's examples.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import importlib.util
import sys
import sysconfig
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import windrow as wr
from windrow._measure import (
    MEAN,
    STD,
    Array,
    difference,
    format_seconds,
    format_table,
    interleave,
    machine,
    normalised,
    numpy_normalised,
    numpy_ragged,
    quartiles,
    to_numpy,
    torch_constants,
    torch_normalised,
    torch_padded,
    torch_ragged,
    transform,
)
from windrow._system import optional

torch = optional("torch")

SECONDS_PER_FORM = 1.0

Ways = Tuple[Tuple[str, ...], Callable[..., wr.Batch], Callable[..., Any], Callable[..., Any]]
"""The fields of a form, and the calls of windrow, NumPy and torch that give them."""


@dataclass
class Form:
    """One row of the table: samples, three ways to the same batch, and the values it must have."""

    name: str
    samples: List[Array]
    fields: Tuple[str, ...]
    windrow: Callable[[Sequence[Any]], wr.Batch]
    numpy: Callable[[List[Array]], Tuple[Array, ...]]
    torch: Callable[[List[Any]], Tuple[Any, ...]]
    # The exact values where NumPy's own chain of roundings is not the definition.
    exact: Optional[Callable[[List[Array]], Tuple[Array, ...]]] = None
    # How far that chain may be off.
    tolerance: float = 0.0


# Samples


def photographs() -> List[Any]:
    """Two photographs, 427 x 640, as Pillow images."""
    from PIL import Image

    datasets = importlib.import_module("sklearn.datasets")
    return [Image.fromarray(image) for image in datasets.load_sample_images().images]


def crops(photos: List[Any], sizes: Sequence[Tuple[int, int]], rng: np.random.Generator) -> List[Array]:
    """One window of a photograph for each size (height, width), scaled to it."""
    samples = []
    for i, (height, width) in enumerate(sizes):
        photo = photos[i % len(photos)]
        scale = rng.uniform(0.5, 1.0) * min(photo.height / height, photo.width / width)
        h, w = int(height * scale), int(width * scale)
        top, left = rng.integers(photo.height - h + 1), rng.integers(photo.width - w + 1)
        window = photo.resize((width, height), box=(left, top, left + w, top + h))
        samples.append(np.array(window))
    return samples


def paragraphs(count: int) -> List[Array]:
    """At most `count` pieces of the licence and sources of Python, cut at empty lines, as int32 byte tokens."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [str(builtins.copyright).encode()]
    texts += [path.read_bytes() for folder in (library, library.parent) for path in sorted(folder.glob("LICENSE*"))]
    rows: List[Array] = []
    for text in (*texts, *(path.read_bytes() for path in sorted(library.glob("*.py")))):
        pieces = (piece for piece in text.split(b"\n\n") if 16 <= len(piece) <= 2048)
        rows += [np.frombuffer(piece, np.uint8).astype(np.int32) for piece in pieces]
        if len(rows) >= count:
            break
    return rows[:count]


def sound() -> Optional[Array]:
    """Seven seconds of house music, 11 kHz, as float32 in -1..1; None without pygame's examples."""
    spec = importlib.util.find_spec("pygame")
    if spec is None or not spec.submodule_search_locations:
        return None
    # The module is found without an import: pygame prints a greeting when imported.
    path = Path(spec.submodule_search_locations[0], "examples", "data", "house_lo.wav")
    if not path.exists():
        return None
    with wave.open(str(path)) as file:
        frames = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    return (frames.astype(np.float32) - 128) / 128


def clips(frames: Array, lengths: Sequence[int], rng: np.random.Generator) -> List[Array]:
    """Pieces of the sound that begin anywhere."""
    starts = [int(rng.integers(len(frames) - length + 1)) for length in lengths]
    return [frames[start : start + length].copy() for start, length in zip(starts, lengths)]


# Peers: each gives the fields of a form, in its order


def numpy_padded(samples: List[Array], dtype: str) -> Tuple[Array, Array]:
    """Zeros on the right in every dim, and a mask of the first two dims of a sample, True where data is."""
    shape = (len(samples), *np.max([sample.shape for sample in samples], axis=0))
    data, mask = np.zeros(shape, dtype), np.zeros(shape[:3], bool)
    for i, sample in enumerate(samples):
        real = tuple(slice(extent) for extent in sample.shape)
        data[i][real], mask[i][real[:2]] = sample, True
    return data, mask


def torch_padded_images(samples: List[Any]) -> Tuple[Any, Any]:
    shape = [len(samples), *(max(sample.shape[dim] for sample in samples) for dim in range(3))]
    data, mask = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape[:3], dtype=torch.bool)
    for i, sample in enumerate(samples):
        data[i, : sample.shape[0], : sample.shape[1]] = sample
        mask[i, : sample.shape[0], : sample.shape[1]] = True
    return data, mask


STACK: Ways = (("data",), wr.stack, lambda s: (np.stack(s),), lambda s: (torch.stack(s),))
RAGGED: Ways = (("data", "offsets"), wr.ragged, numpy_ragged, torch_ragged)


def forms(rng: np.random.Generator) -> List[Form]:
    """The rows of the table."""
    photos = photographs()
    squares = crops(photos, [(224, 224)] * 256, rng)
    several = crops(photos, [(int(h), int(w)) for h, w in rng.integers(12, 29, (128, 2)) * 8], rng)
    rows = paragraphs(4096)
    frames = sound()
    heard = []
    if frames is None:
        print("no sound: pygame-ce is not installed (pip install pygame-ce)")
    else:
        cut = clips(frames, [int(n) for n in rng.integers(2000, 20000, 512)], rng)
        short = clips(frames, [128] * 20000, rng)
        heard = [
            Form("stack sound frames", short, *STACK),
            Form("ragged sound clips", cut, *RAGGED),
        ]
    return [
        Form("stack photographs", squares, *STACK),
        Form(
            "normalise to float16 CHW",
            squares[:128],
            ("data",),
            lambda s: wr.stack(s, dtype="float16", transform=transform()),
            lambda s: (numpy_normalised(np.stack(s), "float16"),),
            lambda s: (torch_normalised(torch.stack(s), "float16", torch_constants()),),
            exact=lambda s: (np.stack(normalised(s, "float16")),),
            tolerance=3e-3,
        ),
        Form(
            "pad photographs, mask",
            several,
            ("data", "mask"),
            lambda s: wr.pad(s, mask="real"),
            lambda s: numpy_padded(s, "uint8"),
            torch_padded_images,
        ),
        Form(
            "pad text to int64, mask",
            rows,
            ("data", "mask"),
            lambda s: wr.pad(s, dtype="int64", mask="real"),
            lambda s: numpy_padded(s, "int64"),
            lambda s: torch_padded(s, "int64")[:2],
        ),
        Form("ragged text", rows, *RAGGED),
        *heard,
    ]


# Check and measure


def check(form: Form, tensors: Optional[List[Any]]) -> int:
    """Compares every element of every field; how many there were. Ends the demo if one differs."""
    peers = {"NumPy": form.numpy(form.samples)}
    if tensors is not None:
        peers["torch"] = tuple(to_numpy(field) for field in form.torch(tensors))
    exact = form.exact(form.samples) if form.exact else peers["NumPy"]
    wanted = [("its definition", exact, 0.0), *((who, fields, form.tolerance) for who, fields in peers.items())]
    for samples in filter(None, (form.samples, tensors)):
        batch = form.windrow(samples)
        for who, fields, tolerance in wanted:
            for name, want in zip(form.fields, fields):
                text = difference(getattr(batch, name), want, tolerance)
                if text:
                    raise SystemExit(f"{form.name}: {name} against {who}: {text}")
    return sum(want.size for want in exact)


def measure(form: Form) -> Tuple[List[str], int]:
    """The row of one form and the number of elements checked."""
    # The same memory for everyone. windrow gets torch's tensors, where torch is installed.
    tensors = [torch.from_numpy(sample) for sample in form.samples] if torch else None
    elements = check(form, tensors)
    samples: Sequence[Any] = tensors or form.samples
    calls: Dict[str, Callable[[], object]] = {
        "windrow": lambda: form.windrow(samples),
        "numpy": lambda: form.numpy(form.samples),
    }
    if tensors is not None:
        calls["torch"] = lambda: form.torch(tensors)
    medians = {name: quartiles(times)[1] for name, times in interleave(calls, SECONDS_PER_FORM).items()}
    ratio = min(medians[name] for name in medians if name != "windrow") / medians["windrow"]
    batch = form.windrow(samples)
    num_bytes = sum(getattr(batch, field).nbytes for field in form.fields)
    row = [form.name, f"{len(form.samples)}", f"{num_bytes / 1e6:.1f} MB"]
    row += [format_seconds(medians.get(name)) for name in ("windrow", "numpy", "torch")]
    return [*row, f"{ratio:.2f}"], elements


# The picture


def contact_sheet(path: Path, rng: np.random.Generator) -> None:
    """Draws samples out of an assembled batch: real parts of float16 CHW, de-normalised, on the padding."""
    from PIL import Image

    columns, cell = 8, 116
    sizes = [(96, 96)] * 16 + [(int(h), int(w)) for h, w in rng.integers(48, 113, (24, 2))]
    samples = crops(photographs(), sizes, rng)
    batch = wr.pad(samples, size=(112, 112, None), mask="real", dtype="float16", transform=transform())
    data, mask = to_numpy(batch.data).astype(np.float32), to_numpy(batch.mask)
    pictures = (data.transpose(0, 2, 3, 1) * np.array(STD) + np.array(MEAN)) * 255
    pictures = np.clip(np.rint(pictures), 0, 255).astype(np.uint8)
    pictures[~mask] = 208
    for sample, picture, real in zip(samples, pictures, mask):
        # float16 has 11 bits: half a step of 1/255 is left after the way there and back.
        assert np.abs(picture[real].reshape(sample.shape).astype(int) - sample).max() <= 1
    sheet = Image.new("RGB", (columns * cell + 4, len(samples) // columns * cell + 4), "white")
    for i, picture in enumerate(pictures):
        sheet.paste(Image.fromarray(picture), (i % columns * cell + 4, i // columns * cell + 4))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    print(f"{path}: {len(samples)} samples of one padded float16 CHW batch, de-normalised; padding is grey")


def run(out: str = "out/demo.png") -> int:
    """The whole demo; 0, or it ends with the first element that is wrong."""
    rng = np.random.default_rng(7)
    print(", ".join(f"{key} {value}" for key, value in machine("torch").items()))
    rows, elements = [], 0
    for form in forms(rng):
        row, count = measure(form)
        rows.append(row)
        elements += count
    print(format_table(["form", "samples", "bytes", "windrow", "NumPy", "torch", "ratio"], rows))
    peers = "NumPy and torch" if torch else "NumPy (torch is not installed)"
    print("Medians; ratio: the faster of the others / windrow.")
    print(f"All {elements:,} elements checked against {peers}: bit for bit, but for the normalised ones.")
    print("Those are checked bit for bit against their definition; the others' chains, which round at every step, come within 3e-3.")
    contact_sheet(Path(out), rng)
    return 0


def main(argv: List[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m windrow demo", description=__doc__)
    parser.add_argument("--out", default="out/demo.png", help="where the picture goes (default: %(default)s)")
    out = parser.parse_args(argv).out
    try:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {error}")
    return run(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
