"""TensorBoard, Weights & Biases and whatever is like them: `wildtta.log_steps` follows an adapter.

python docs/examples/loggers.py
"""

from dataloader import noisy_glyphs
from torch.utils.tensorboard import SummaryWriter

import wildtta
from wildtta.glyphs import network


def follow(folder: str) -> None:
    model = wildtta.adapt(network("resnet_gn"))
    with SummaryWriter(folder) as writer:
        handle = wildtta.log_steps(model, writer, every=5)
        # Weights & Biases: wildtta.log_steps(model, wandb.init(project="…"))
        # Anything else: wildtta.log_steps(model, lambda values, step: print(step, values))
        for images, _ in noisy_glyphs():
            model(images)
        handle.remove()


if __name__ == "__main__":
    follow("runs/tensorboard-example")
    print("look at it with: tensorboard --logdir runs/tensorboard-example")
