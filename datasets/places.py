"""Where unpacked archives and pixel caches lie."""

import os
from pathlib import Path

CACHE_VARIABLE = "AMP_HARNESS_CACHE"


def cache_root(cache_dir: Path | None) -> Path:
    """Return the given folder, else that of AMP_HARNESS_CACHE, else the user's cache folder."""
    if cache_dir is None:
        import platformdirs  # only where data is prepared: a worker may run without it

        named = os.environ.get(CACHE_VARIABLE)
        cache_dir = Path(named) if named else platformdirs.user_cache_path("amp-harness")
    return Path(os.path.abspath(cache_dir.expanduser()))
