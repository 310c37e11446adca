"""Every public function has a docstring with an example, and the example is right."""

import doctest
import inspect

import numpy
import pytest

import heed


def has_documentation(value):
    return callable(value) and not inspect.isclass(value)


def examples():
    for name in sorted(vars(heed)):
        value = getattr(heed, name)
        if name.startswith("_") or inspect.ismodule(value) or not (value.__doc__ or ""):
            continue
        yield name, value.__doc__
        if inspect.isclass(value) and value.__module__.startswith("heed"):
            for member, attribute in sorted(vars(value).items()):
                text = getattr(attribute, "__doc__", None) or ""
                if not member.startswith("_") and ">>>" in text:
                    yield f"{name}.{member}", text


@pytest.mark.parametrize("name, text", list(examples()), ids=lambda value: value if len(value) < 40 else "")
def test_example(name, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(text, {"heed": heed, "numpy": numpy}, name, None, None)
    report = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert failed == 0, "".join(report)


def test_every_function_has_an_example():
    missing = [
        name
        for name in dir(heed)
        if not name.startswith("_")
        and has_documentation(getattr(heed, name))
        and ">>>" not in getattr(heed, name).__doc__
    ]
    assert missing == []
