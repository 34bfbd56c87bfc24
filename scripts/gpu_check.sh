#!/usr/bin/env bash
# Trains ResNet-18 on one NVIDIA GPU with PyTorch, one change at a time, and prints a table.
#
#   scripts/gpu_check.sh                 about five minutes on one GPU
#   scripts/gpu_check.sh --device cpu    the same path on a CPU, tiny, to see that it works
#
# Needs python3 with torch, numpy, pillow, pandas and psutil. What else the harness imports is taken
# from the wheels in $WHEELS (default .whl) where that folder exists; fill it beforehand with:
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 -d .whl click rich \
#     pygments markdown-it-py mdurl pydantic pydantic-core annotated-types typing-inspection \
#     typing-extensions filelock platformdirs nvidia-ml-py zstandard
# The records lie in $OUT (default runs/gpu-check).
set -euo pipefail
cd "$(dirname "$0")/.."

device=cuda
[ "${1:-}" = --device ] && device=$2
out=${OUT:-runs/gpu-check}
wheels=${WHEELS:-.whl}
python=${PYTHON:-python3}
mkdir -p "$out"

if compgen -G "$wheels/*.whl" >/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi

if [ "$device" = cpu ]; then
  common=(--image-size 32 --batch-size 8 --steps 6 --warmup-steps 2)
else
  common=(--image-size 224 --batch-size 256 --steps 120 --warmup-steps 20)
  nvidia-smi --query-gpu=name,driver_version,power.limit,clocks.max.sm --format=csv,noheader || true
fi

run() { # name, then options of the run
  local name=$1
  shift
  "$python" -m harness --backend torch --device "$device" "${common[@]}" "$@" \
    --out "$out/$name" --json >"$out/$name.json" || echo "$name: exit code $?" >&2
}

run fp32          --input synthetic
run tf32          --input synthetic --tf32
run amp-float16   --input synthetic --amp
run amp-bfloat16  --input synthetic --amp --amp-dtype bfloat16
run fp32-nhwc     --input synthetic --layout nhwc
run amp-nhwc      --input synthetic --amp --layout nhwc
run amp-nhwc-sgd  --input synthetic --amp --layout nhwc --optimizer sgd --clip-norm 1
run amp-compiled  --input synthetic --amp --layout nhwc --compile on
# Real files through the cache: the batches must arrive while a step runs.
run photos-fp32   --batch-size 16 --steps 60
run photos-amp    --batch-size 16 --steps 60 --amp

"$python" - "$out" <<'PYTHON'
import json, pathlib, sys

columns = "{:14} {:12} {:9} {:>9} {:>9} {:>9} {:>8} {:>6} {:>7} {:>7}  {}"
print(columns.format("run", "status", "effective", "images/s", "alloc GiB", "resv GiB", "used GiB",
                     "wait %", "threads", "skipped", "loss"))
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/record.json"), key=lambda p: p.stat().st_mtime):
    record = json.loads(path.read_text())
    speed, memory = record["throughput"] or {}, record["memory"] or {}
    def gib(name):
        value = memory.get(name)
        return "-" if value is None else f"{value / 2**30:.2f}"
    def number(name, factor, digits):
        value = speed.get(name)
        return "-" if value is None else f"{value * factor:.{digits}f}"
    losses = record["steps"]["loss"]
    print(columns.format(
        path.parent.name, record["status"], str(record["precision"]["effective"]),
        number("images_per_s", 1, 1), gib("device_allocated_peak_bytes"),
        gib("device_reserved_peak_bytes"), gib("device_used_delta_bytes"),
        number("data_wait_fraction", 100, 1), number("threads_in_use", 1, 2),
        sum(record["steps"]["skipped"]), f"{float(losses[0]):.4f} -> {float(losses[-1]):.4f}" if losses else "-"))
    if record["reason"]:
        print(" " * 15 + record["reason"])
PYTHON
