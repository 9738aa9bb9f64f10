"""Replicas over NCCL, as far as one GPU can show: one rank against an adapter without a group, and a second one that is lost.

NCCL takes one rank per GPU. So in the second test the other rank is a process on the CPU: it meets the first one in the roll
call, and never comes to NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import wildtta
from replica_processes import follow, lose_the_one_without_gpu, run_replicas, variant_options
from toy_networks import batches, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and dist.is_nccl_available()), reason="needs a CUDA device and NCCL"
    ),
]
STEPS = 20
TIMEOUT = 3.0
NAMES = ("sar2", "steady", "evidence", "sar", "tent", "relative recovery")
"""Methods and variants of replica_processes; ``evidence`` is Steady with its default rule."""


def near(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(
        found.double().cpu(), expected.double().cpu(), rtol=1e-9, atol=1e-9, equal_nan=True
    )


def on_gpu(kind: str) -> torch.nn.Module:
    return build(kind, dtype=torch.float64).cuda()


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meeting = f"file://{tmp_path_factory.mktemp('nccl')}/meeting"
    dist.init_process_group("nccl", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", ["gn_resnet", "ln_vit"])
@pytest.mark.parametrize("name", NAMES)
def test_one_rank_learns_as_an_adapter_without_a_group(name: str, kind: str) -> None:
    method, options = variant_options(name)
    stream = [batch.cuda() for batch in batches(kind, STEPS, 16, dtype=torch.float64)]
    stream[3][2, 0, 1, 1] = torch.nan
    group = wildtta.adapt(on_gpu(kind), method, group=True, **options)
    found = follow(group, stream)
    plain = wildtta.adapt(on_gpu(kind), method, **options)
    plain.cuda_graphs = False  # a recorded step makes passes that one without a recording may leave out
    alone = follow(plain, stream)
    for what in ("answers", "entropies", "masks", "totals"):
        for step, (one, other) in enumerate(zip(found[what], alone[what], strict=True)):
            assert near(one, other), f"{what} of batch {step}"
    assert [key for key, value in alone["state"].items() if not near(found["state"][key], value)] == []
    if name != "evidence":
        assert int(group.cost.learned) > STEPS / 2
    assert group.replicas == [0]
    links = group._lockstep.peers._links  # that logits and gradients went over NCCL, the roll call over gloo
    assert links is not None
    assert {kind: type(link).__name__ for kind, link in links.items()} == {
        "gloo": "ProcessGroupGloo",
        "nccl": "ProcessGroupNCCL",
    }
    group.unload()


def test_a_replica_that_never_comes_to_nccl_is_lost_after_the_timeout(tmp_path: Path) -> None:
    stopped, killed = run_replicas(2, lose_the_one_without_gpu, tmp_path / "stop", "stop", TIMEOUT, limit=60)
    assert [stopped["exitcode"], killed["exitcode"]] == [0, -9]
    assert "a replica of this adapter was lost" in stopped["said"]
    assert stopped["as_before"]
    assert stopped["paused"].shape == (4, 10)
    assert stopped["seconds"] < 2 * TIMEOUT + 10

    went_on, killed = run_replicas(2, lose_the_one_without_gpu, tmp_path / "continue", "continue", TIMEOUT, limit=60)
    assert [went_on["exitcode"], killed["exitcode"]] == [0, -9]
    alone = wildtta.adapt(on_gpu("ln_vit"), "tent", lr=0.01)
    expected = [alone(batch[:4].cuda()) for batch in batches("ln_vit", 4, 8, dtype=torch.float64)]
    assert all(near(one, other) for one, other in zip(went_on["answers"], expected, strict=True))
    assert all(near(went_on["state"][key], value) for key, value in alone.online_state().items())
