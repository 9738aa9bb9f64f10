"""``recovery="relative"``: a threshold that fits any number of classes."""

from __future__ import annotations

import pytest
import torch

import wildtta
from toy_networks import batches, build, images, same_bits, snapshot


def _certain() -> torch.nn.Module:
    """A network whose predictions have an entropy far below 0.2 nats, as with two easy classes."""
    network = build("ln_mlp", dtype=torch.float64)
    head = [module for module in network.modules() if isinstance(module, torch.nn.Linear)][-1]
    with torch.no_grad():
        head.weight.mul_(40.0)
    return network


@pytest.mark.parametrize("method", ["sar", "sar2"])
def test_a_certain_network_is_left_to_learn(method: str) -> None:
    warm = {} if method == "sar" else {"warmup": 1}
    papers = wildtta.adapt(_certain(), method, lr=1e-6, **warm)
    relative = wildtta.adapt(_certain(), method, lr=1e-6, recovery="relative", **warm)
    for batch in batches("ln_mlp", 10, 16, dtype=torch.float64):
        papers(batch)
        relative(batch)
    assert float(papers.last.entropy) < 0.2
    assert papers.cost.resets >= 9
    assert relative.cost.resets == 0


def test_it_resets_when_the_moving_entropy_falls_below_a_fifth_of_the_first() -> None:
    """The recurrence of the moving entropy by hand, over the same batch again and again."""
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "tent", lr=0.2, recovery="relative")
    before = snapshot(adapter.network)
    batch = images("ln_mlp", 32, dtype=torch.float64)
    average, first = None, None
    for _ in range(300):
        adapter(batch)
        entropy = float(adapter.last.entropy)
        first = entropy if average is None else first
        average = entropy if average is None else 0.9 * average + 0.1 * entropy
        assert first is not None
        assert adapter.cost.resets == int(average < 0.2 * first)
        if average < 0.2 * first:
            assert same_bits(snapshot(adapter.network), before) == []
            return
    raise AssertionError("the entropy never fell so far, so nothing was tested")


def test_the_reference_is_saved_and_measured_anew_after_a_reset(tmp_path: object) -> None:
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "tent", lr=1e-3, recovery="relative")
    first, second = batches("ln_mlp", 2, 16, dtype=torch.float64)
    adapter(first)
    reference = float(adapter.online_state()["memory/e_first"])
    assert reference == pytest.approx(float(adapter.last.entropy), rel=1e-12)
    adapter(second)
    assert float(adapter.online_state()["memory/e_first"]) == reference
    adapter.reset()
    adapter(second)
    assert float(adapter.online_state()["memory/e_first"]) != reference
