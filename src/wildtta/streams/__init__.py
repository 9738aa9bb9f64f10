"""Which image comes when: streams of indices from labels, scenario and seed alone; images are read later.

`mild`, `single`, `label_shift`, `dirichlet`, `runs`, `one_class` and `stored` order the images of one domain (int64 arrays
of positions); `separate`, `mixed`, `continual`, `gradual` and `comes_and_goes` arrange domains into a `Stream`; `build`
makes one by the scenario's name. `learning_turns` says which batches a method of some cost has time to learn from.
"""

from wildtta.streams.domains import comes_and_goes, continual, gradual, mixed, separate, severity_ramp
from wildtta.streams.label_shift import label_shift
from wildtta.streams.labels import balanced_subset
from wildtta.streams.orders import dirichlet, mild, one_class, runs, single, stored
from wildtta.streams.pace import learning_turns
from wildtta.streams.scenarios import SCENARIOS, build, scenario_options
from wildtta.streams.stream import Batch, Domain, Stream, given

__all__ = [
    "SCENARIOS",
    "Batch",
    "Domain",
    "Stream",
    "balanced_subset",
    "build",
    "comes_and_goes",
    "continual",
    "dirichlet",
    "given",
    "gradual",
    "label_shift",
    "learning_turns",
    "mild",
    "mixed",
    "one_class",
    "runs",
    "scenario_options",
    "separate",
    "severity_ramp",
    "single",
    "stored",
]
