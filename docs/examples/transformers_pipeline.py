"""Hugging Face: a pipeline whose model learns while it answers. Preparing and reading out stay the pipeline's.

    python docs/examples/transformers_pipeline.py

Here with a small random network, so that nothing is fetched; put `pipeline("image-classification", model="…")` in place of
`small_pipeline()`.
"""

import numpy as np
from PIL import Image
from transformers import ImageClassificationPipeline, ViTConfig, ViTForImageClassification, ViTImageProcessor

import wildtta


def small_pipeline() -> ImageClassificationPipeline:
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    return ImageClassificationPipeline(model=ViTForImageClassification(config).eval(), image_processor=processor)


def pictures(count: int) -> list[Image.Image]:
    values = np.random.default_rng(0).integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)
    return [Image.fromarray(value) for value in values]


if __name__ == "__main__":
    pipe = small_pipeline()
    pipe.model = wildtta.adapt(
        pipe.model, "tent", lr=1e-3
    )  # what the adapter lacks (config, device …) is the network's
    for answer in pipe(pictures(16), batch_size=8):
        print(answer[0])
    print(pipe.model.last)
    pipe.model = pipe.model.unload()
