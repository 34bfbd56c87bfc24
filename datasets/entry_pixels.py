"""One photo of a manifest as pixels: the same for the cache and for live decoding."""

import hashlib

import numpy as np
import numpy.typing as npt

from datasets.decode import Resize, UnreadableImageError, decode, read_file, resize
from datasets.errors import DataError
from datasets.manifest import Manifest


def decode_entry(
    manifest: Manifest, index: int, image_size: int, how: Resize
) -> npt.NDArray[np.uint8]:
    """Read, check and decode a photo to uint8 (image_size, image_size, 3).

    Raises:
        DataError: the file has gone or has other bytes than the manifest says.
    """
    path = manifest.root / manifest.paths[index]
    try:
        data = read_file(path)
        if hashlib.sha256(data).digest() != manifest.digests[index].tobytes():
            raise UnreadableImageError("its bytes have changed since the scan")
        return resize(decode(data).rgb, image_size, how)
    except UnreadableImageError as error:
        raise DataError(f"{path}: {error}; scan the data again") from error
