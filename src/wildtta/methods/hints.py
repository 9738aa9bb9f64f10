"""What people type for a method or an option that has another name here, and what to say about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

_METHODS = {
    **dict.fromkeys(("noadapt", "no-adapt", "no adaptation", "source", "baseline", "eval"), "none"),
    **dict.fromkeys(("sar²", "sar^2", "sar-2", "sar2-paper"), "sar2"),
    **dict.fromkeys(("sar²†", "sar2†"), "sar2-efficient"),
    **dict.fromkeys(("norm", "bn", "adabn", "bn-stats"), "bn-adapt"),
    **dict.fromkeys(("ours", "default", "sar2-single"), "steady"),
}
_OPTIONS = {
    **dict.fromkeys(("learning_rate", "learningrate", "step_size", "eta"), "lr"),
    **dict.fromkeys(("rho", "radius", "sam_rho"), "sharpness"),
    **dict.fromkeys(("alpha", "redundancy_weight"), "redundancy"),
    **dict.fromkeys(("beta", "inequity_weight"), "inequity"),
    **dict.fromkeys(("margin", "margin_e0", "e_margin", "entropy_threshold", "threshold"), "reliable"),
    **dict.fromkeys(("reset_constant", "reset_constant_em", "e0"), "recovery"),
    **dict.fromkeys(("zeta", "warm_up", "warmup_classes"), "warmup"),
    **dict.fromkeys(("num_steps", "n_steps", "iterations", "niter"), "steps"),
    **dict.fromkeys(("weight_decay", "l2", "wd"), "source_pull"),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "clip_grad_norm"), "clip_norm"),
    **dict.fromkeys(("n_views", "num_augmentations", "aug_times"), "views"),
}
"""Words of papers, of their code and of optimizers."""
_ABSENT = {
    "weight_decay": "Weights that decay to 0 would undo the network; source_pull of steady pulls them to the source",
    "optimizer": "Gradient methods here take steps of SGD: momentum, nesterov and lr shape them",
    "device": "The adapter follows the network: move that with .to(device)",
    "num_classes": "The number of classes is the head's",
    "epochs": "A stream is seen once; steps= takes several updates per batch",
}
"""What no option stands for, and what to do instead."""


def method_hint(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` where a method of that or a similar name is meant, else nothing."""
    return _suggestion(word, known, _METHODS)


def option_hint(word: str, known: Iterable[str], owners: Mapping[str, Sequence[str]] | None = None) -> str:
    """The option that is meant, or what to do where there is none; empty where nobody can tell.

    ``owners`` are the methods that have an option: where this one has not, they are named.
    """
    options = list(known)
    meant = _meant(word, _OPTIONS)
    absent = _ABSENT.get(word.lower())
    if absent is not None and meant not in options:
        return f" {absent}."
    name = word if owners and word in owners else meant
    if owners is not None and name is not None and name not in options and name in owners:
        called = "" if name == word else f" is called {name!r} here, and"
        return f" {word!r}{called} belongs to {', '.join(owners[name])}."
    return _suggestion(word, options, _OPTIONS)


def _meant(word: str, synonyms: dict[str, str]) -> str | None:
    """What a synonym stands for, also where it is misspelt."""
    near = difflib.get_close_matches(word.lower(), synonyms, n=1, cutoff=0.8)
    return synonyms[near[0]] if near else None


def _suggestion(word: str, known: Iterable[str], synonyms: dict[str, str]) -> str:
    choices = list(known)
    meant = _meant(word, synonyms)
    near = [meant] if meant in choices else difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
