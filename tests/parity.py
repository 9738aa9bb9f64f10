"""Compare wildtta with recorded trajectories of the authors' code, in float64, through the public door.

    python tests/parity.py FOLDER [--match GLOB]

FOLDER has ``cases.json``, ``cases/``, ``models/`` and ``streams.npz`` (its README describes the format). One line per case:
``PASS|FAIL|SKIP case max|Δlogit| max relΔnorm``; the last line counts. Logits must agree to 1e-9, parameter norms to 1e-8
(relative), selections and resets exactly. Where wildtta decides otherwise than the recorded code, a case is compared
up to and including the first step at which the decision matters, and says so: ``(decided Dn)``.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from golden_cases import Folder, Outcome, recipe_for


def compare(folder: Folder, name: str) -> Outcome | None:
    """Run one case; None where the method does not exist (yet)."""
    recipe = recipe_for(folder, name)
    return None if recipe is None else recipe()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="*", help="only cases whose name fits this pattern")
    arguments = parser.parse_args()
    index = arguments.folder / "cases.json"
    if not index.is_file():
        parser.error(f"{arguments.folder} has no cases.json; expected a folder of recorded cases")
    torch.set_num_threads(1)
    folder = Folder(arguments.folder, json.loads(index.read_text()))
    passed = failed = skipped = 0
    names = [name for name in folder.cases if fnmatch.fnmatch(name, arguments.match)]
    if not names:
        parser.error(f"no case fits {arguments.match!r}")
    width = max(map(len, names))
    for name in names:
        try:
            outcome = compare(folder, name)
        except Exception as error:
            print(f"FAIL {name:{width}} {type(error).__name__}: {error}", flush=True)
            failed += 1
            continue
        if outcome is None:
            print(f"SKIP {name:{width}} no such method here", flush=True)
            skipped += 1
            continue
        ok = outcome.passes
        passed, failed = passed + ok, failed + (not ok)
        remark = f" (decided {outcome.decided})" if outcome.decided else ""
        remark += f" {'; '.join(outcome.complaints)}" if outcome.complaints else ""
        verdict = "PASS" if ok else "FAIL"
        print(f"{verdict} {name:{width}} {outcome.logits:.1e} {outcome.norms:.1e}{remark}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
