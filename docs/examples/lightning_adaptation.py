"""Lightning: a callback that adapts the network while `trainer.test` or `trainer.predict` runs, and then gives it back.

python docs/examples/lightning_adaptation.py
"""

from typing import Any

import lightning
import torch
from dataloader import noisy_glyphs
from torch import Tensor

import wildtta
from wildtta.glyphs import network


class TestTimeAdaptation(lightning.Callback):
    """Adapts the attribute ``name`` of the module during test and predict.

    Lightning runs these without gradients and in inference mode; the adapter works inside both.
    """

    def __init__(self, name: str = "model", method: str | wildtta.Method = "steady", **options: Any) -> None:
        self.name, self.method, self.options = name, method, options

    def on_test_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        setattr(pl_module, self.name, wildtta.adapt(getattr(pl_module, self.name), self.method, **self.options))

    def on_test_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        adapter = getattr(pl_module, self.name)
        if isinstance(adapter, wildtta.Adapter):
            setattr(pl_module, self.name, adapter.unload())

    on_predict_start, on_predict_end = on_test_start, on_test_end


class Classifier(lightning.LightningModule):
    """Any module of yours with a network in it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network("resnet_gn")

    def test_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        images, labels = batch
        accuracy = (self.model(images).argmax(1) == labels).float().mean()
        self.log("accuracy", accuracy, batch_size=len(labels))


def accuracy(*callbacks: lightning.Callback) -> float:
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    (result,) = trainer.test(Classifier(), noisy_glyphs(), verbose=False)
    return result["accuracy"]


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(f"without: {accuracy():.1%}, with: {accuracy(TestTimeAdaptation()):.1%}")
