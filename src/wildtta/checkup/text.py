"""A checkup for a person to read."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wildtta.checkup.advice import DEFAULT, signed
from wildtta.checkup.trials import Trial

if TYPE_CHECKING:
    from wildtta.checkup.result import Checkup

WIDTH = 110


def as_text(checkup: Checkup) -> str:
    """Network, answers as they are, gains, recommendation: the recommendation last, where a terminal leaves the eye."""
    parts = [_network(checkup), _inputs(checkup)]
    if checkup.trials:
        parts.append(_trials(checkup))
    parts.append(_advice(checkup))
    return "\n\n".join(parts)


def _network(checkup: Checkup) -> str:
    network = checkup.network
    norms = ", ".join(f"{number} {kind}" for kind, number in network.norms.items()) or "none"
    if network.batch_norm:
        learning = "none learns by gradients: steady follows their statistics"
    else:
        numbers = f"{network.learning_values:,} of {network.parameters:,} numbers"
        learning = f"{network.learning_norms} of them may learn with steady ({numbers})"
    lines = [
        f"{network.name}, {network.family}: {network.classes} classes, head {network.head!r}, "
        f"{network.feature_width} features",
        f"norm layers: {norms}" + (f"; {learning}" if network.norms else ""),
        f"{checkup.images:,} images, {'labelled' if checkup.labelled else 'unlabelled'}",
        *checkup.notes,
    ]
    return "\n".join(_wrapped(line) for line in lines)


def _inputs(checkup: Checkup) -> str:
    heading = ["the network as it is", "accuracy", "agreement", "confidence", "entropy/ln C", "top class"]
    rows = [
        [
            each.name,
            _percent(each.score) if checkup.labelled else "–",
            _percent(each.agreement),
            _percent(each.confidence),
            f"{each.entropy:.3f}",
            _percent(each.top_class),
        ]
        for each in checkup.inputs
    ]
    note = "Agreement: share of images that get the answer of their clean version. Top class: share of the commonest answer."
    return "\n".join([*_columns([heading, *rows]), _wrapped(note)])


def _trials(checkup: Checkup) -> str:
    shifts = list(checkup.trials[0].by_shift)
    what = "accuracy" if checkup.labelled else "agreement with the network's answers on the clean images"
    # Two lines of headings: gaussian_noise-3 is wider than its numbers.
    named = [shift.replace("-", " ").rpartition("_") for shift in shifts]
    headings = [
        ["", "", "", "all", *(first for first, _, _ in named)],
        ["method", "stream", "clean", "shifts", *(last for _, _, last in named)],
    ]
    ordered = sorted(checkup.trials, key=lambda result: _place(result.trial))
    rows = [
        [
            result.trial.method,
            result.trial.stream.replace("batches of ", ""),
            signed(result.clean),
            signed(result.shifted),
            *(signed(result.by_shift[shift]) for shift in shifts),
        ]
        for result in ordered
    ]
    title = f"Gain over no adaptation, points of {what} ± 95 % interval (paired, over images):"
    missing = "; ".join(map(str, checkup.left_out))
    ending = [_wrapped(f"Not tried, for want of time: {missing}. Give more --minutes.")] if missing else []
    return "\n".join([_wrapped(title), *_columns([*headings, *rows], left=2), *ending])


def _place(trial: Trial) -> tuple[bool, str, bool, bool]:
    """The default method first; of each method large batches before single images, shuffled before class order."""
    return trial.method != DEFAULT, trial.method, trial.batch_size == 1, trial.order != "shuffled"


def _advice(checkup: Checkup) -> str:
    found = checkup.advice
    bullets = [
        textwrap.fill(reason, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for reason in found.reasons
    ]
    caveat = (
        "These shifts are artificial, and the streams are short. Yours may differ: watch model.last, or use a guard."
    )
    return "\n".join([f"Recommendation. {found.headline}", *bullets, _wrapped(caveat)])


def _columns(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows with columns of one width each, the first ``left`` flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
