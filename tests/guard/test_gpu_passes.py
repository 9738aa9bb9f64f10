"""The guard's passes on a GPU: recorded ones give what eager ones give, also after the weights moved on."""

from __future__ import annotations

import copy

import pytest
import torch

import wildtta
from toy_networks import batches, build
from wildtta.guard.comparison import Present

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.mark.parametrize("kind", ["gn_resnet", "ln_vit"])
def test_recorded_passes_follow_the_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Recorded and eager passes may take other convolutions, which TF32 rounds to three digits each in its own way.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    untouched = build(kind).cuda()
    model = wildtta.adapt(copy.deepcopy(untouched), "tent", lr=0.01, guard=wildtta.Guard(sample=8, memory=16))
    stream = [batch.cuda() for batch in batches(kind, 12, 16)]
    recorded, shadow, images = Present(recorded=True), model.guard._shadow, stream[0]
    for batch in stream:
        model(batch)
        with torch.no_grad():
            eager = model.network(images).softmax(1)
        torch.testing.assert_close(recorded.probabilities(model.engine, images), eager, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            shadow.logits(model.engine, images), untouched(images).detach(), rtol=1e-4, atol=1e-4
        )
    assert recorded._recorded is not None
    assert [found is not None for found in recorded._recorded._seen.values()] == [True]
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(images), model(images), rtol=1e-4, atol=1e-4)
