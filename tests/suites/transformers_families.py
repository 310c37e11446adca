"""Which models of Hugging Face transformers run on heed: a small model of every type with random weights, with
attn_implementation="eager" and then "heed".

    python tests/suites/transformers_families.py [TYPE ...] [--rows rows.json] [--write docs/transformers.md]

Compared are all outputs (with padding where there is a mask), gradients of all weights, and for those that generate:
greedy, beams and a static cache. A type is equal, refused (heed says why), different, has no attention through the interface
(none at all, or code of its own that asks nobody), or was not tried: the small model could not be made or run without
heed either.

--rows keeps what came of each type in a file, and types that are in it already are not run again: an hour's work can be done
in parts (--most so many types at a time).
"""

import argparse
import collections
import datetime
import inspect
import json
import pathlib
import re
import signal
import sys
import textwrap
import warnings

import torch
import transformers
from transformers.models.auto import modeling_auto

import heed.torch

from transformers_small import WAYS, inputs_of, is_small, make, small_config

CPU_SECONDS = 30


class TookTooLong(BaseException):
    pass


def stop(*_):
    raise TookTooLong


def tensors(output):
    """All that a model returned, by name, caches and weights apart: some return those of eager attention unasked."""
    for name, value in output.items():
        if name.endswith("attentions"):
            continue
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield name, value
        elif isinstance(value, transformers.utils.ModelOutput):  # of a part
            yield from ((f"{name}.{inner}", x) for inner, x in tensors(value))
        elif isinstance(value, (list, tuple)):
            for n, x in enumerate(value):
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    yield f"{name}.{n}", x


def results(model, given):
    """Everything that is compared, by name."""
    torch.manual_seed(2)
    output = model(**given)
    there = given.get("attention_mask")
    found = {}
    for name, value in tensors(output):
        rows = value.dim() == 3 and there is not None and value.shape[:2] == there.shape
        found[name] = value[there.bool()] if rows else value
    total = sum(value.double().sin().sum() for value in found.values() if value.requires_grad)
    model.zero_grad()
    total.backward()
    found = {name: value.detach() for name, value in found.items()}
    found.update({f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None})
    return found


def generated(model, given, **how):
    prompt = {name: value for name, value in given.items() if name != "decoder_input_ids"}
    if "attention_mask" in prompt:
        prompt["attention_mask"] = prompt["attention_mask"].flip(1)  # padding in front
    if model.config.is_encoder_decoder:
        how["decoder_start_token_id"] = 1
    torch.manual_seed(3)
    found = model.generate(**prompt, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0, **how)
    return found if isinstance(found, torch.Tensor) else found.sequences


GENERATION = {"greedy": {}, "beams": {"num_beams": 2}, "static cache": {"cache_implementation": "static"}}


def differences(expected, got):
    """Relative to the largest number, of all gradients where one is itself next to nothing (those of key biases are 0)."""
    steepest = max((float(x.abs().max()) for name, x in expected.items() if x.numel() and "gradient" in name), default=0)
    for name, value in expected.items():
        least = 1e-3 * steepest if "gradient" in name else 1e-3
        scale = max(least, float(value.abs().max())) if value.numel() else 1.0
        error = float((got[name] - value).abs().max()) / scale if value.numel() else 0.0
        if not error < 2e-3 and not (value.isnan().any() and torch.equal(value.isnan(), got[name].isnan())):
            yield f"{name} by {error:.1g}"


def differences_in_double(kind, config, given):
    """What is left of them once rounding is: some models make much of little."""
    wide = {name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in given.items()}
    both = (results(make(kind, config, which).double(), wide) for which in ("eager", "heed"))
    return list(differences(*both))


def compare_generation(eager, ours, given):
    """(what agrees, what differs); what fails without heed is left out."""
    same, other = [], []
    for name, how in GENERATION.items():
        try:
            expected = generated(eager, given, **how)
        except Exception:  # noqa: BLE001
            continue
        (same if torch.equal(expected, generated(ours, given, **how)) else other).append(name)
    return same, other


class Counted:
    """heed's function, and how often it was called."""

    calls = 0

    def __call__(self, *arguments, **keywords):
        self.calls += 1
        return heed.torch.transformers_attention(*arguments, **keywords)


counted = Counted()


def runnable(model_type, name):
    """A model that runs without heed, what it takes and gives; the first of the ways that lead to one."""
    why = ""
    for number, way in enumerate(WAYS):
        for turned in (False, True):
            try:
                kind = getattr(transformers, name)
                config = small_config(model_type, kind.config_class, way)
                if number > 0 and not is_small(kind, config):
                    break
                eager = make(kind, config, "eager")
                given = inputs_of(model_type, eager, turned)
                return kind, config, eager, given, results(eager, given)
            except Exception as error:  # noqa: BLE001
                why = why or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:100]
    raise NotImplementedError(why)


NO_ATTENTION, NOT_RUN = "no attention through the interface", "not run"
KINDS = {
    "equal": "Equal",
    "refused": "Refused, by name",
    "different": "Different",
    NO_ATTENTION: "No attention through the interface",
    "not tried": "Not tried: the small model could not be made or run without heed either",
    NOT_RUN: "Not run this time, and what was said before",
}


def parts_of(config_class):
    """The classes of a configuration and of all of its parts."""
    yield config_class
    for part in (getattr(config_class, "sub_configs", None) or {}).values():
        if inspect.isclass(part) and part is not config_class and issubclass(part, transformers.PreTrainedConfig):
            yield from parts_of(part) if part is not transformers.AutoConfig else ()


def may_ask(config_class):
    """Does any code beside these configurations ask transformers' AttentionInterface for a function? Also where a part
    is whatever its own configuration says."""
    for part in parts_of(config_class):
        if transformers.AutoConfig in (getattr(part, "sub_configs", None) or {}).values():
            return True
        folder = pathlib.Path(inspect.getfile(part)).parent
        if any("get_interface" in file.read_text() for file in folder.glob("modeling_*.py")):
            return True
    return False


def verdict(model_type, name):
    counted.calls = 0
    try:
        kind, config, eager, given, expected = runnable(model_type, name)
    except NotImplementedError as error:
        try:
            config_class = getattr(transformers, name).config_class
        except (AttributeError, ImportError):
            config_class = None
        if config_class is not None and not may_ask(config_class):
            return NO_ATTENTION, "by its source; not run"
        return "not tried", str(error)
    try:
        ours = make(kind, config, "heed")
        got = results(ours, given)
    except heed.Error as error:
        if "code of its own" not in str(error) and not may_ask(kind.config_class):
            return NO_ATTENTION, "refused by name"
        return "refused", str(error).partition(", got ")[2] or str(error)
    wrong = list(differences(expected, got))
    if wrong and any(bool(x.isnan().any()) for x in expected.values()):
        return "not tried", "eager attention gives NaN"
    if wrong:
        wrong = differences_in_double(kind, config, given)
    if not counted.calls and not wrong:
        return NO_ATTENTION, "ran, and heed was not called"
    what = ["outputs", "gradients"]
    if hasattr(eager, "generate") and eager.can_generate():
        same, other = compare_generation(eager, ours, given)
        what += same
        wrong += other
    return ("different", "; ".join(wrong[:3])) if wrong else ("equal", ", ".join(what))


def classes():
    """type: name of a class, the one that generates where there is one."""
    found = {}
    for names in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_MAPPING_NAMES,
    ):
        for model_type, name in names.items():
            found.setdefault(model_type, name[0] if isinstance(name, (tuple, list)) else name)
    return sorted(found.items())


def reason(error):
    """Why a model was not tried, in few words."""
    if error.startswith(("ImportError", "ModuleNotFoundError")):
        return "a package that is not installed"
    if re.search("missing|specify|inputs are|NoneType|unexpected keyword", error):
        return "other inputs than text, an image or sound, or settings without a default"
    return error if error.startswith(("took", "eager")) else "a small configuration does not fit together"


def said_before(text):
    """What an earlier page says of each type, and when it was made."""
    made = " ".join(re.findall(r"transformers [\d.]+|\d{4}-\d\d-\d\d", text.partition("| |")[0]))
    said = {}
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        for bullet in re.split(r"^- ", body, flags=re.M)[1:]:
            what, _, names = " ".join(bullet.split()).rpartition(": ")
            verdict = title.partition(",")[0].partition(":")[0].lower()
            said.update(dict.fromkeys(names.split(", "), f"{made}: {verdict}" + (f" ({what})" if verdict == "equal" else "")))
    return said


def page(rows, before=""):
    by = collections.defaultdict(list)
    for model_type, (kind, what) in rows.items():
        by[kind].append((model_type, what))
    earlier = said_before(before)
    left_out = [model_type for model_type, _ in classes() if model_type not in rows]
    by[NOT_RUN] = [(model_type, earlier.get(model_type, "never")) for model_type in left_out]
    lines = [
        "# Models of transformers on heed",
        "",
        f"Made by `tests/suites/transformers_families.py` with transformers {transformers.__version__} and PyTorch "
        f"{torch.__version__.split('+')[0]},",
        f"{datetime.date.today()}: a small model of every type with random weights, "
        '`attn_implementation="heed"` against `"eager"`.',
        "",
        "| | types |",
        "| --- | --- |",
        *(f"| {kind} | {len(by[kind])} |" for kind in KINDS if by[kind]),
    ]
    for kind, title in KINDS.items():
        if not by[kind]:
            continue
        lines += ["", f"## {title}", ""]
        groups = collections.defaultdict(list)
        for model_type, what in by[kind]:
            groups[reason(what) if kind == "not tried" else what].append(model_type)
        for what, names in sorted(groups.items(), key=lambda item: -len(item[1])):
            lines += textwrap.wrap(f"- {what}: {', '.join(names)}", 140, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def tried(model_type, name):
    """The verdict, within a time, and whatever else a model may do."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        return verdict(model_type, name)
    except TookTooLong:
        return "not tried", f"took more than {CPU_SECONDS} seconds"
    except Exception as error:  # noqa: BLE001
        return "different", f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--rows", type=pathlib.Path)
    parser.add_argument("--most", type=int)
    parser.add_argument("--write", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.AttentionInterface.register(heed.torch.register_transformers(), counted)
    signal.signal(signal.SIGPROF, stop)
    kept = arguments.rows is not None and arguments.rows.exists()
    rows = json.loads(arguments.rows.read_text()) if kept else {}
    wanted = [(t, name) for t, name in classes() if t not in rows and (not arguments.types or t in arguments.types)]
    for model_type, name in wanted[: arguments.most]:
        rows[model_type] = tried(model_type, name)
        print(model_type, *rows[model_type], flush=True)
        if arguments.rows:
            arguments.rows.write_text(json.dumps(rows, indent=0))
    if arguments.write:
        before = arguments.write.read_text() if arguments.write.exists() else ""
        arguments.write.write_text(page(dict(sorted(rows.items())), before))
    return 1 if any(kind == "different" for kind, _ in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
