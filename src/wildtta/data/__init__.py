"""Images and labels: one pipeline from file to batch.

1. :mod:`~wildtta.data.sources`: a folder, a zip or a tar is a tree of files.
2. :mod:`~wildtta.data.image_files`: files with labels, decoded to uint8 RGB. The readers list them:
   :mod:`~wildtta.data.class_folders`, :mod:`~wildtta.data.imagenet_sets`, :mod:`~wildtta.data.shards`
   (:mod:`~wildtta.data.cifar` reads arrays); :mod:`~wildtta.data.image_lists` has published parts;
   :mod:`~wildtta.data.catalogue` finds a reader by its name.
3. :mod:`~wildtta.data.image_set`: what every set looks like; images in memory; a set under a corruption.
4. :mod:`~wildtta.data.preprocessing`: resize, crop and normalise by a named protocol.
5. :mod:`~wildtta.data.loading`: the batches of a stream on the device, read by workers
   (:mod:`~wildtta.data.batch_reading`) or kept there (:mod:`~wildtta.data.device_cache`).

:mod:`~wildtta.data.write_corrupted` writes a corrupted copy of a data set.
"""

from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from wildtta.data.catalogue import DATA_NAMES, open_data, open_domains
from wildtta.data.cifar import cifar_c
from wildtta.data.class_folders import folder
from wildtta.data.classes import require_classes, restrict_classes
from wildtta.data.errors import BrokenImage, DataError
from wildtta.data.image_files import EncodedImages
from wildtta.data.image_lists import IMAGE_LISTS, listed
from wildtta.data.image_set import ArrayImages, Corrupted, ImageSet
from wildtta.data.imagenet_sets import corruptions_in, imagenet_c, imagenet_classes, potpourri
from wildtta.data.loading import LoadedBatch, Loader, StreamLoader
from wildtta.data.preprocessing import PROTOCOLS, InputProtocol, input_protocol, preprocess
from wildtta.data.shards import shards

__all__ = [
    "CORRUPTIONS",
    "DATA_NAMES",
    "EXTRA_CORRUPTIONS",
    "IMAGE_LISTS",
    "PROTOCOLS",
    "ArrayImages",
    "BrokenImage",
    "Corrupted",
    "DataError",
    "EncodedImages",
    "ImageSet",
    "InputProtocol",
    "LoadedBatch",
    "Loader",
    "StreamLoader",
    "cifar_c",
    "corrupt",
    "corruptions_in",
    "folder",
    "imagenet_c",
    "imagenet_classes",
    "input_protocol",
    "listed",
    "open_data",
    "open_domains",
    "potpourri",
    "preprocess",
    "require_classes",
    "restrict_classes",
    "shards",
]
