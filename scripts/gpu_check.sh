#!/usr/bin/env bash
# What mixed precision does to PyTorch on one NVIDIA GPU, in under eight minutes: the device's peaks,
# the verdict on AMP for ResNet-18 at 224 px with memory and energy, the ladder of settings, and the
# largest batches.
#
#   scripts/gpu_check.sh                 on one GPU
#   scripts/gpu_check.sh --device cpu    the same path on a CPU, tiny, to see that it works
#
# Needs python3 with torch, numpy, pillow, pandas, scipy and psutil. What else the harness imports is
# taken from the wheels in $WHEELS (default .whl) where that folder exists; fill it beforehand with
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 -d .whl \
#     altair annotated-types attrs click filelock jinja2 jsonschema jsonschema-specifications \
#     markdown-it-py markupsafe mdurl narwhals nvidia-ml-py platformdirs pydantic \
#     pydantic-core pygments referencing rich rpds-py typing-extensions typing-inspection \
#     vl-convert-python zstandard
# Records and reports lie in $OUT (default runs/gpu-check), which must not hold an earlier check.
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
  size=(--model lenet --image-size 32)
  compare=(--batch-size 8 --budget 20s)
  ladder=(--batch-size 8 --repeats 1 --budget 20s)
  max_batch=(--memory-limit 440M --step 256 --amp-dtype bfloat16)
else
  size=(--model resnet18 --image-size 224)
  compare=(--batch-size 64 --budget 60s)
  # Seven workers take most of it to start: a second pass would not fit.
  ladder=(--batch-size 256 --repeats 1 --budget 90s)
  # Each trial is a process of some 10 s. The largest batch in float32 is about four of these steps,
  # whatever the GPU, so that both precisions take ten to fourteen trials.
  mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1 || true)
  max_batch=(--step $((10 * ${mib:-16384} / 1024)))
  nvidia-smi --query-gpu=name,driver_version,power.limit,clocks.max.sm --format=csv,noheader || true
fi

part() { # name of its log, seconds it may take, then a command of the harness
  local log=$out/$1.log limit=$2
  shift 2
  printf '\n== %s (at %d s)\n' "$*" "$SECONDS"
  timeout -k 5 "$limit" "$python" -m harness "$@" 2>"$log" || {
    echo "exit code $? (124: cut off after $limit s); the end of $log:"
    tail -n 5 "$log"
  }
}

# All limits together: 470 s. What was measured before a limit lies in the part's folder.
part doctor 55 doctor --backend torch --device "$device" --measure-peak
part compare 105 compare --backend torch --device "$device" "${size[@]}" "${compare[@]}" \
  --out "$out/compare"
part ladder 175 compare --ladder --backend torch --device "$device" "${size[@]}" "${ladder[@]}" \
  --input synthetic --out "$out/ladder"
# Beside the comparison, whose report then shows what came of the claim "larger batch".
part max-batch 115 max-batch --backend torch --device "$device" "${size[@]}" "${max_batch[@]}" \
  --out "$out/compare"
part report-compare 10 report "$out/compare"
part report-ladder 10 report "$out/ladder"

printf '\n== memory and energy\n'
shopt -s nullglob
"$python" - "$out"/*/results.csv <<'PYTHON'
import csv, sys

GIB = ("device_allocated_peak_bytes", "device_reserved_peak_bytes", "device_used_delta_bytes",
       "host_peak_bytes")
row = "{:26} {:11} {:10} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9}  {}".format
print(row("arm", "status", "effective", "images/s", "joules", "alloc GiB", "resv GiB", "used GiB",
          "host GiB", "reason"))
for path in sys.argv[1:]:
    for arm in csv.DictReader(open(path, encoding="utf-8")):
        if arm["status"] == "left out":
            continue
        rate, joules = arm["window_median_images_per_s"], arm["energy_joules"]
        print(row(
            arm["arm"], arm["status"], arm["dtype_effective"] or "-",
            f"{float(rate):.1f}" if rate else "-", f"{float(joules):.0f}" if joules else "-",
            *(f"{float(arm[name]) / 2**30:.2f}" if arm[name] else "-" for name in GIB),
            arm["reason"],
        ))
PYTHON
echo "$SECONDS s in all; reports: $out/*/report.html"
