"""The notebook runs, and its pictures are there."""

import base64
import io
import os
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "examples" / "photographs.ipynb"


@pytest.fixture(scope="module")
def cells():
    nbformat = pytest.importorskip("nbformat", reason="SKIP: nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="SKIP: nbclient is not installed")
    for module in ("ipykernel", "PIL", "sklearn"):
        pytest.importorskip(module, reason=f"SKIP: {module} is not installed")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    # Its kernel is another process, without this one's simulated driver.
    environment = {key: value for key, value in os.environ.items() if key != "WINDROW_CUDA_DRIVER"}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(env=environment)
    if os.environ.get("WINDROW_NOTEBOOK"):
        nbformat.write(notebook, os.environ["WINDROW_NOTEBOOK"])
    return notebook.cells


def pictures(cells):
    image = pytest.importorskip("PIL.Image")
    found = [out["data"]["image/png"] for cell in cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    return [np.asarray(image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")) for text in found]


def test_every_picture_shows_something(cells):
    found = pictures(cells)
    assert [picture.shape[0] for picture in found] == [300, 150, 150, 150, 150]
    # Pictures of the photographs, pieces, planes and padded pieces; the mask is black and white.
    assert all(len(np.unique(picture)) > 100 for picture in found[:4]) and len(np.unique(found[4])) >= 2


def test_the_text_says_what_came_out(cells):
    text = "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", ()))
    for part in ("(8, 3, 224, 224) float16", "(4, 300, 260, 3)", "(4, 3, 320, 320) [0 1 0 1]", "sample 1"):
        assert part in text, (part, text)
    assert "stay on the host" in text or "cuda:0" in text
