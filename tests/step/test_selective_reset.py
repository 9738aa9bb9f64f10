"""ASR as a recovery: an independent loop beside it, and what it refuses."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

import wildtta
from toy_networks import CLASSES, batches, build, same_bits

NUMBERS = {"rate": 0.4, "penalty": 30.0, "start": 0.55, "kept": 0.9, "depth": 1.0}


def test_tent_with_asr_equals_a_plain_loop_through_several_resets() -> None:
    """Tent, SGD with momentum, ASR's rules written out once more; float64, GroupNorm."""
    lr, stream = 0.02, batches("gn_resnet", 14, 16, dtype=torch.float64)
    network = build("gn_resnet", dtype=torch.float64)
    adapter = wildtta.adapt(network, "tent", lr=lr, recovery=NUMBERS)

    plain = build("gn_resnet", dtype=torch.float64)
    source = copy.deepcopy(plain)
    names = adapter.learned_parameters
    mine, origin = dict(plain.named_parameters()), dict(source.named_parameters())
    parameters = [mine[name] for name in names]
    start = math.log(NUMBERS["start"] * CLASSES)
    threshold, steps, flips, resets = start, 0, 0.0, 0
    squares = weights = [torch.zeros_like(p) for p in parameters]
    fisher = anchor = None
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    for batch in stream:
        logits = plain(batch)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        squares = [s + g**2 for s, g in zip(squares, gradients, strict=True)]
        weights = [w + p.detach() for w, p in zip(weights, parameters, strict=True)]
        if fisher is not None:
            pull = sum((f * (p - a) ** 2).sum() for f, p, a in zip(fisher, parameters, anchor, strict=True))
            loss = loss + NUMBERS["penalty"] * flips**2 * pull
        optimizer.zero_grad()
        loss.backward(inputs=parameters)
        optimizer.step()
        steps += 1
        with torch.no_grad():
            mean = logits.mean(0)
            diversity = float(-(mean.softmax(0) * mean.log_softmax(0)).sum())
            flips = float((source(batch).argmax(1) != logits.argmax(1)).double().mean())
            if diversity < threshold:
                resets += 1
                fresh = [s / steps for s in squares], [w / steps for w in weights]
                if fisher is None:
                    fisher, anchor = fresh
                else:
                    fisher = [0.9 * a + 0.1 * b for a, b in zip(fisher, fresh[0], strict=True)]
                    anchor = [0.9 * a + 0.1 * b for a, b in zip(anchor, fresh[1], strict=True)]
                share = max(NUMBERS["kept"] - NUMBERS["depth"] * (threshold - diversity), 0)
                for number, name in enumerate(names):
                    if number >= share * len(names):
                        mine[name].copy_(origin[name])
                optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
                threshold, steps = start, 0
                squares = weights = [torch.zeros_like(p) for p in parameters]
            else:
                keep = NUMBERS["rate"] * flips + 1 - NUMBERS["rate"]
                threshold = keep * threshold + (1 - keep) * diversity
        torch.testing.assert_close(adapter(batch), logits.detach(), rtol=0, atol=1e-10)
        assert int(adapter.last.resets) == resets
    learned = dict(adapter.network.named_parameters())
    for name in names:
        torch.testing.assert_close(learned[name], mine[name], rtol=0, atol=1e-10)
    assert 2 <= resets < len(stream)
    assert adapter.cost.forwards == 2 * 16 * len(stream)  # the source network looks at every batch too


@pytest.mark.parametrize("method", ["sar", "steady", "roid", "cmf", "spa"])
def test_any_method_by_steps_takes_it_and_resumes_bit_for_bit(method: str, tmp_path: Path) -> None:
    def fresh() -> wildtta.Adapter:
        return wildtta.adapt(build("gn_resnet"), method, lr=0.01, recovery=wildtta.ASR(start=0.9, rate=0.5))

    adapter, stream = fresh(), batches("gn_resnet", 6, 16)
    for batch in stream[:3]:
        adapter(batch)
    adapter.save(tmp_path / "state.safetensors")
    answers = [adapter(batch) for batch in stream[3:]]
    assert int(adapter.last.resets) > 0
    twin = fresh()
    twin.load(tmp_path / "state.safetensors")
    assert all(torch.equal(twin(batch), answer) for batch, answer in zip(stream[3:], answers, strict=True))
    assert same_bits(twin.online_state(), adapter.online_state()) == []


def test_a_table_a_name_and_an_object_mean_the_same_and_are_part_of_the_identity() -> None:
    assert wildtta.Tent(recovery="asr") == wildtta.Tent(recovery=wildtta.ASR())
    assert wildtta.Tent(recovery={"rate": 0.3}) == wildtta.Tent(recovery=wildtta.ASR(rate=0.3))  # type: ignore[arg-type]
    assert wildtta.Tent(recovery="asr").identity(64)["recovery"]["rate"] is None
    assert wildtta.Tent(recovery=wildtta.ASR(rate=0.3)).identity(64) != wildtta.Tent(recovery="asr").identity(64)


@pytest.mark.parametrize("wrong", ["sar", {"speed": 3}, {}, [0.2]])
def test_another_recovery_is_refused_with_what_was_expected(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"recovery must be a number, 'relative', 'asr', wildtta\.ASR"):
        wildtta.Tent(recovery=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"recovery_keep=0\.5 has no effect with a selective reset"):
        wildtta.Tent(recovery="asr", recovery_keep=0.5)
    with pytest.raises(ValueError, match="rate of ASR must be a number at least 0"):
        wildtta.ASR(rate=-1)
