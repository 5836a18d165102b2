"""Signatures, docstrings and stubs agree, and editors show them."""

import ast
import inspect
import pydoc
from pathlib import Path

import pytest

import windrow as wr
from windrow import _windrow

PACKAGE = Path(wr.__file__).parent
SPECS = {"stack": wr.Stack, "concat": wr.Concat, "pad": wr.Pad, "ragged": wr.Ragged}


def keywords(call):
    parameters = inspect.signature(call).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize("form", SPECS)
def test_a_spec_has_the_signature_of_its_call(form):
    expected = {name: default for name, default in keywords(getattr(wr, form)).items() if name != "stream"}
    assert keywords(SPECS[form]) == keywords(SPECS[form].__init__) == expected
    assert list(inspect.signature(SPECS[form]).parameters) == list(expected)
    assert str(inspect.signature(SPECS[form])).removesuffix(" -> None") in pydoc.plain(pydoc.render_doc(SPECS[form]))


@pytest.mark.parametrize("form", [*SPECS, "collate"])
def test_defaults_are_what_a_call_does_without_them(form):
    call = getattr(wr, form)
    samples = [[1.5, 2.5], [3.5, 4.5]]
    given = keywords(call)
    if form == "pad":
        # A dtype of the mask is refused without a mask, as it would have no effect.
        given["mask"] = "real"
        assert keywords(call)["mask"] is None
    plain = call(samples, mask="real") if form == "pad" else call(samples)
    assert repr(call(samples, **given)) == repr(plain)
    if form in SPECS:
        del given["stream"]
        assert repr(wr.collate([{"x": row} for row in samples], {"x": SPECS[form](**given)})["x"]) == repr(plain)


@pytest.mark.parametrize("made", [wr.Transform, wr.Engine])
def test_defaults_of_classes_are_what_they_do_without_them(made):
    assert repr(made(**{name: each.default for name, each in inspect.signature(made).parameters.items()})) == repr(made())


@pytest.mark.parametrize("form", [*SPECS, "collate"])
def test_a_call_lists_the_arguments_of_its_signature(form):
    with pytest.raises(TypeError) as error:
        getattr(wr, form)([[1.5]], quux=1)
    assert str(error.value).endswith("it takes " + ", ".join(name for name in inspect.signature(getattr(wr, form)).parameters if name != "samples"))


def declared():
    """Each docstring of the stub of the compiled part, and the object that it is of."""
    tree = ast.parse((PACKAGE / "_windrow.pyi").read_text(encoding="utf-8"))
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_Supports"):
            continue
        owner = wr.Tensor if node.name == "_TensorLike" else getattr(_windrow, node.name, None)
        if node.name != "_TensorLike":
            yield node.name, owner, ast.get_docstring(node)
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                yield f"{node.name}.{inner.name}", getattr(owner, inner.name, None), ast.get_docstring(inner)


def test_docstrings_of_the_stub_are_those_of_the_module():
    slots = (type(object.__init__), type(object().__str__))
    seen = set()
    for name, found, doc in declared():
        own = found is not None and not isinstance(found, slots) and not name.endswith("__new__")
        if own and (doc or name not in seen):
            assert doc == (inspect.getdoc(found) if found.__doc__ else None), name
        seen.add(name)
    assert len(seen) > 100


def test_public_objects_have_docstrings():
    missing = [name for name in wr.__all__ if name != "__version__" and not getattr(wr, name).__doc__]
    for cls in (wr.Tensor, wr.Batch, wr.SampleList, wr.Engine, wr.Stats, wr.Packed, wr.Layout, wr.Staging):
        missing += [f"{cls.__name__}.{name}" for name, member in vars(cls).items() if not name.startswith("_") and callable(member) and not member.__doc__]
    assert not missing


def script(code):
    jedi = pytest.importorskip("jedi", reason="jedi did not install")
    return jedi.Script("import windrow as wr\n" + code, environment=jedi.InterpreterEnvironment())


@pytest.mark.parametrize("code, doc", [
    ("wr.pad", "Pads samples of equal rank to the largest."),
    ("wr.Pad", "Spec of a leaf that is padded."),
    ("wr.Pad().explain", "The plan of samples assembled as this spec says"),
    ("wr.pad([[1]]).lengths", "The real length of each sample"),
    ("wr.SampleList.take", "The samples at these positions"),
    ("wr.ShapeError", "A shape of samples or ``out`` does not fit."),
])
def test_an_editor_shows_docstrings(code, doc):
    (name,) = script(code).help(2, len(code))
    assert doc in name.docstring()


@pytest.mark.parametrize("call", ["wr.pad([[1]], ", "wr.Pad("])
def test_an_editor_shows_arguments(call):
    given = script(call)
    (signature,) = given.get_signatures(2, len(call))
    shown = signature.to_string()
    assert "side: " in shown and "=\"right\"" in shown.replace(" ", "") and "multiple_of" in shown
    assert {"side=", "mask=", "mask_dtype=", "engine="} <= {each.name for each in given.complete(2, len(call))}


def test_an_editor_completes_results():
    code = "wr.pad([[1]])."
    assert {"data", "lengths", "mask", "torch", "numpy", "shape"} <= {each.name for each in script(code).complete(2, len(code))}
    code = "wr.stats()."
    assert {"batches", "paths", "keys"} <= {each.name for each in script(code).complete(2, len(code))}
