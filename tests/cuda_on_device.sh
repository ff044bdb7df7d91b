#!/usr/bin/env bash
# Regard on a real GPU, in one go, made to take under 8 minutes: builds it for the GPU that is there, runs the op cases
# and the tests of tests/cuda/ on it, some of them under compute-sanitizer, trains the same model on CPU and GPU, and
# times attention and training steps beside PyTorch's. What fails is said at the end, and stops nothing but what needs it.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'TEXT'
usage: tests/cuda_on_device.sh --prepare DIR
           where Debian's packages can be had (amd64): fetches into DIR, 14 MiB, what the build needs
       tests/cuda_on_device.sh [--packages DIR] [options]
           on the machine with the GPU: needs a C++20 compiler, nvcc, CMake, and for the last part PyTorch; all else is in
           DIR, or installed

  --only PART[,PART...]  of build, tests, sanitizer, parity, bench (all of them); build is needed by the others, once
  --build DIR            where to build (build/device)
  --limit SECONDS        for all parts together (460)
  --jobs N               compilers at once (as many as there are processors)

Results are files in $OUT, where that is set, else in the build folder's results/: summary.txt first. $CMAKE_ARGS is
passed on to CMake. Exit status 0: all parts that ran passed.
TEXT
}

# ---- What a bare machine lacks

# The packages that NAME depends on whose names begin with PREFIX: libboost-dev -> libboost1.74-dev.
needs_of() {
  apt-cache depends "$1" | awk -v prefix="$2" '$1 == "Depends:" && index($2, prefix) == 1 { print $2 }'
}

prepare() {
  if [[ $(dpkg --print-architecture) != amd64 ]]; then
    echo "cuda_on_device.sh: --prepare is for amd64, this is $(dpkg --print-architecture)" >&2
    return 1
  fi
  mkdir -p "$1" || return 1
  apt-cache show libblis-serial-dev >/dev/null 2>&1 || apt-get update || return 1
  local names
  mapfile -t names < <(
    printf '%s\n' libblis-serial-dev libhwy-dev nlohmann-json3-dev catch2 libutf8proc-dev libbenchmark-dev ninja-build
    needs_of libhwy-dev libhwy
    needs_of libbenchmark-dev libbenchmark
    needs_of libboost-dev libboost
    needs_of libboost-context-dev libboost-context
    needs_of libboost-program-options-dev libboost-program-options
  )
  rm -f "$1"/*.deb
  (cd "$1" && apt-get download "${names[@]}") || return 1
  if (($(find "$1" -name '*.deb' | wc -l) != ${#names[@]})); then
    echo "some of ${names[*]} are missing" >&2
    return 1
  fi
  du -sh "$1"
}

# Packages as they are, .deb files, into a folder; without dpkg too.
unpack() {
  local deb
  rm -rf "$2" && mkdir -p "$2" || return 1
  for deb in "$1"/*.deb; do
    [[ -e $deb ]] || { echo "no packages in $1: run $0 --prepare $1 where Debian's can be had" >&2; return 1; }
    if command -v dpkg >/dev/null; then
      dpkg -x "$deb" "$2" || return 1
    else
      ar p "$deb" data.tar.xz | tar -xJ -C "$2" || return 1
    fi
  done
}

# ---- Reports

begun=$SECONDS
failed=0
say() { echo "$*" | tee -a "$out/summary.txt"; }
left() { echo $((limit - (SECONDS - begun) > 1 ? limit - (SECONDS - begun) : 1)); }
least() { echo $(($1 < $2 ? $1 : $2)); }
verdict() {  # passed|failed|skipped NAME TEXT
  [[ $1 == failed ]] && failed=1
  verdicts+=("$(printf '%-8s %-10s %4s s  %s' "$1" "$2" $((SECONDS - part_begun)) "$3")")
  echo "== ${verdicts[-1]}"
}
part() { part_begun=$SECONDS; echo "== $1"; }
wanted() { [[ ,$only, == *,$1,* ]]; }

machine() {
  say "$(date -u '+%Y-%m-%d %H:%M') UTC, $(uname -m), $(nproc) processors, $(grep MemTotal /proc/meminfo | tr -s ' ')"
  say "$(nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>&1 | head -4)"
  say "$(c++ --version 2>&1 | head -1); $(cmake --version 2>&1 | head -1); nvcc at ${nvcc:-nowhere}:" \
      "$("${nvcc:-nvcc}" --version 2>&1 | grep release)"
  say "$(python3 -c 'import torch; print("torch", torch.__version__, "GPU:", torch.cuda.is_available())' 2>&1 | tail -1)"
}

# ---- The build

find_nvcc() {
  local path
  for path in "${CUDACXX:-}" "$(command -v nvcc)" /usr/local/cuda{,-*}/bin/nvcc /opt/cuda/bin/nvcc; do
    [[ -x $path ]] && { echo "$path"; return; }
  done
}

# cuBLASLt, which PyTorch brings along, where the toolkit has none: sets `arguments`.
find_cublas() {
  local toolkit found header
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  found=$(find -L "$toolkit" -name 'libcublasLt.so' 2>/dev/null | head -1)
  header=$(find -L "$toolkit" -name cublasLt.h 2>/dev/null | head -1)
  [[ -n $found && -n $header ]] && return
  local folders
  folders=$(python3 -c 'import sys; print(*[p + "/nvidia" for p in sys.path if p.endswith("-packages")])' 2>/dev/null)
  # shellcheck disable=SC2086
  [[ -n $found ]] || found=$(find -L $folders -name 'libcublasLt.so*' 2>/dev/null | head -1)
  # shellcheck disable=SC2086
  [[ -n $header ]] || header=$(find -L $folders -name cublasLt.h 2>/dev/null | head -1)
  [[ -n $found && -n $header ]] || { echo "cuBLASLt was not found, in $toolkit or Python's packages"; return; }
  echo "cuBLASLt: $found, $header"
  mkdir -p "$build/cublas"
  ln -sfn "$(dirname "$header")"/cublas*.h "$build/cublas/"
  arguments+=("-DCUDA_cublasLt_LIBRARY=$found" "-DCMAKE_CUDA_FLAGS=-I$build/cublas" "-DCMAKE_CXX_FLAGS=-I$build/cublas")
}

build_all() {
  part build
  local arguments=(-S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DREGARD_CUDA=ON -DREGARD_INSTALL=OFF
    -DREGARD_WERROR=OFF "-DCMAKE_CUDA_COMPILER=$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=$architectures")
  local log=$out/build.log keep_going=-k
  : >"$log"
  if [[ -n $packages ]]; then
    local there=$build/packages usr=$build/packages/usr
    local lib=$usr/lib/x86_64-linux-gnu
    if ! unpack "$packages" "$there" >>"$log" 2>&1; then
      tail -3 "$log"
      verdict failed build "packages: see build.log"
      return
    fi
    arguments+=("-DCMAKE_PREFIX_PATH=$usr" "-Dhwy_DIR=$lib/cmake/hwy" "-Dbenchmark_DIR=$lib/cmake/benchmark"
      "-Dnlohmann_json_DIR=$usr/share/cmake/nlohmann_json" "-DCatch2_DIR=$usr/lib/cmake/Catch2"
      "-DBoost_DIR=$(echo "$lib"/cmake/Boost-*)" -DBoost_USE_STATIC_LIBS=ON
      "-DBLIS_INCLUDE_DIR=$usr/include/x86_64-linux-gnu/blis-serial" "-DBLIS_LIBRARY=$lib/blis-serial/libblis.a"
      "-DUTF8PROC_INCLUDE_DIR=$usr/include" "-DUTF8PROC_LIBRARY=$lib/libutf8proc.a")
    command -v ninja >/dev/null || PATH=$PATH:$usr/bin
  fi
  if command -v ninja >/dev/null && ninja --version >/dev/null 2>&1; then
    arguments+=(-G Ninja)
    keep_going=-k0
  fi
  find_cublas >>"$log" 2>&1
  # shellcheck disable=SC2206
  arguments+=(${CMAKE_ARGS:-})
  {
    echo cmake "${arguments[@]}"
    timeout "$(left)" cmake "${arguments[@]}"
  } >>"$log" 2>&1 || { grep -A8 -m3 'CMake Error' "$log"; verdict failed build "CMake: see build.log"; return; }
  timeout "$(($(left) > 240 ? $(left) - 180 : $(left)))" cmake --build "$build" -j "$jobs" \
    --target regard_gpu_tests train_sequence regard_worker -- "$keep_going" >>"$log" 2>&1
  local status=$? warnings
  warnings=$(grep -c 'warning:\|warning #' "$log")
  if ((status)); then
    grep -m12 -A3 'error:\|error \|FAILED\|undefined reference\|No rule' "$log"
    verdict failed build "status $status, $warnings warnings: see build.log"
  else
    verdict passed build "$jobs at once, $warnings warnings"
  fi
}

# Whether a program was built; a verdict where not.
built() {
  [[ -x $build/$2 ]] && return
  verdict failed "$1" "$2 was not built"
  return 1
}

# ---- Tests

run_tests() {
  part tests
  built tests tests/regard_gpu_tests || return
  local log=$out/tests.log
  # Several programs share the GPU: most of a test's time is the CPU's, which computes what is right.
  timeout "$(least 170 "$(left)")" ctest --test-dir "$build" -L '^gpu$' -j "$(least "$jobs" 8)" --timeout 140 \
    --output-on-failure >"$log" 2>&1
  local status=$? passed bad
  passed=$(grep -c ' Passed ' "$log")
  bad=$(grep -oE 'gpu_[a-z_0-9]+ \.*\**(Failed|Timeout|Exception|SEGFAULT|Not Run|Subprocess aborted)' "$log" |
    sed 's/ \.*\**/ /' | tr '\n' ',')
  grep -h '^op cases, ' "$build"/Testing/Temporary/LastTest.log 2>/dev/null | sort -u >>"$log"
  grep -E -m30 '^ *[0-9]+% tests|FAILED:|REQUIRE|CHECK|due to a fatal|error:' "$log" | cut -c1-200
  if grep -q '\*\*\*Skipped' "$log"; then
    verdict failed tests "$("$build/tests/regard_gpu_tests" | head -1)"
  elif ((status == 124)); then
    verdict failed tests "$passed files passed; not finished in time; $bad"
  elif ((status || passed == 0)); then
    verdict failed tests "$passed files passed; failed: ${bad:-see tests.log}"
  else
    verdict passed tests "$passed files"
  fi
}

# ---- compute-sanitizer

sanitized() {  # TOOL FILE SECONDS: one file's tests under one tool
  local log=$build/sanitizer-$1-$2.log status exact=0
  # Blocks of the exact size, that go back at once: else memcheck sees the cache's blocks, not tensors.
  [[ $1 == memcheck ]] && exact=1
  REGARD_CUDA_EXACT_BLOCKS=$exact timeout "$3" "$sanitizer" --tool "$1" --error-exitcode 99 --report-api-errors no \
    --print-limit 20 "$build/tests/regard_gpu_tests" --filenames-as-tags "[#$2]~[.]" >"$log" 2>&1
  status=$?
  if ((status == 124)); then
    local errors
    errors=$(grep -c -E '========= (Invalid|Error|Warning: Race|Uninit|.*hazard)' "$log")
    ((errors == 0)) && echo "unfinished" >"$log.verdict" || echo "failed" >"$log.verdict"
  elif ((status == 0)) && grep -q 'All tests passed' "$log" && grep -q '^=========.*SUMMARY' "$log"; then
    echo passed >"$log.verdict"
  else
    echo "failed ($status)" >"$log.verdict"
  fi
}

run_sanitizer() {
  part sanitizer
  built sanitizer tests/regard_gpu_tests || return
  local path
  sanitizer=
  for path in "$(command -v compute-sanitizer)" "$(dirname "$nvcc")/compute-sanitizer" \
    /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    [[ -x $path ]] && sanitizer=$path && break
  done
  [[ -n $sanitizer ]] || { verdict failed sanitizer "compute-sanitizer was not found"; return; }
  local each what kind file text='' unfinished='' bad=0
  each=$(least 50 "$(($(left) / 2 + 1))")
  rm -f "$build"/sanitizer-*
  # At once: each is slow on the CPU.
  for what in memcheck:rows_test memcheck:attention_test memcheck:index_test memcheck:gemm_test memcheck:elementwise_test \
    memcheck:optimizer_test memcheck:random_test racecheck:rows_test racecheck:attention_test racecheck:index_test \
    synccheck:attention_test; do
    sanitized "${what%%:*}" "${what##*:}" "$each" &
  done
  wait
  : >"$out/sanitizer.log"
  for path in "$build"/sanitizer-*.log; do
    what=$(basename "$path" .log)
    kind=$(cat "$path.verdict" 2>/dev/null || echo "failed (no verdict)")
    what=${what#sanitizer-}
    [[ $kind == failed* ]] && bad=1 && text+=" $what $kind;"
    [[ $kind == unfinished ]] && unfinished+=" $what"
    {
      echo "==== $what: $kind"
      grep -v '^$' "$path" | head -40
      grep -v '^$' "$path" | tail -12
    } >>"$out/sanitizer.log"
  done
  file=$(find "$build" -maxdepth 1 -name 'sanitizer-*.verdict' -exec grep -l passed {} + | wc -l)
  [[ -n $unfinished ]] && text+=" no error in $each s, unfinished:$unfinished"
  if ((bad)); then
    verdict failed sanitizer "$file runs passed;$text"
    grep -h -m3 '^=========' "$build"/sanitizer-*.log | grep -v 'COMPUTE-SANITIZER\|SUMMARY: 0' | head -8
  elif ((file == 0)); then
    verdict failed sanitizer "no run was finished;$text"
  else
    verdict passed sanitizer "$file runs;$text"
  fi
}

# ---- The same training on both

run_parity() {
  part parity
  built parity examples/train_sequence || return
  local folder=$build/parity name device status
  rm -rf "$folder" && mkdir -p "$folder"
  : >"$out/parity.log"
  for name in cpu "${others[@]}"; do
    device=${name%_again}
    (cd "$folder" && timeout "$(least 40 "$(left)")" "$build/examples/train_sequence" --task reverse --seed 1 \
      --steps "$parity_steps" --device "$device" --name "$name") >>"$out/parity.log" 2>&1
    status=$?
    ((status == 0)) || { tail -3 "$out/parity.log"; verdict failed parity "--device $device: status $status"; return; }
  done
  local text
  text=$(python3 - "$folder/runs" "$parity_steps" "${others[@]}" 2>&1 <<'PY'
import json
import sys
from pathlib import Path

runs, steps, other, again = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]


def read(name):
    lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    right = [line["held_out_accuracy"] for line in lines if "held_out_accuracy" in line]
    return {line["step"]: line["loss"] for line in lines}, right[-1]  # of the first hundred steps, and every tenth


(cpu, right), (gpu, gpu_right), (twice, _) = read("cpu"), read(other), read(again)
wrong = []
if cpu.keys() != gpu.keys() or max(cpu) != steps:
    sys.exit(f"WRONG: steps up to {max(cpu)} and {max(gpu)}, not {steps}")
apart = {step: abs(cpu[step] - gpu[step]) for step in cpu}
# Roundings grow with the steps: at first there is next to nothing between the two, at the end both have learnt.
first = max(apart[step] / cpu[step] for step in apart if step <= 20)
largest, last = max(apart.values()), max(list(apart.values())[-10:])
if not first <= 1e-3:
    wrong.append(f"losses of the first 20 steps are up to {first:.1e} of themselves apart")
if not largest <= 0.1:
    wrong.append(f"losses are up to {largest:.2g} apart")
if not last <= 0.01:
    wrong.append(f"the last losses are up to {last:.2g} apart")
if gpu != twice:
    wrong.append("a second run on the GPU has other losses")
if abs(right - gpu_right) > 0.02 or min(right, gpu_right) < 0.95:
    wrong.append("accuracies differ, or are low")
for step in cpu:
    if step <= 20 or step % 20 == 0:
        print(f"  step {step}: {cpu[step]:.7f} on the CPU, {gpu[step]:.7f} on the GPU", file=sys.stderr)
print(f"{steps} steps; first 20 losses within {first:.1e} of themselves, all within {largest:.1e}, the last within "
      f"{last:.1e}; held-out symbols right: CPU {right:.2%}, GPU {gpu_right:.2%}" + "".join("; WRONG: " + x for x in wrong))
sys.exit(bool(wrong))
PY
  )
  status=$?
  echo "$text" >>"$out/parity.log"
  verdict "$( ((status)) && echo failed || echo passed)" parity "$(tail -1 <<<"$text")"
}

# ---- Beside PyTorch

run_bench() {
  part bench
  built bench bench/regard_worker || return
  local more=()
  python3 -c 'import torch, numpy' 2>/dev/null || { verdict skipped bench "python3 has no PyTorch and NumPy"; return; }
  # shellcheck disable=SC2206
  more=(${BENCH_ARGS:-})
  timeout "$(left)" python3 "$root/bench/compare/gpu.py" --worker "$build/bench/regard_worker" --out "$out" \
    --seconds "$(($(left) > 70 ? $(left) - 45 : 25))" "${more[@]}" 2>&1 | tee "$out/bench.log"
  local status=${PIPESTATUS[0]}
  if ((status)); then
    verdict failed bench "status $status$( ((status == 124)) && echo ", out of time"): see gpu.md and bench.log"
  else
    verdict passed bench "gpu.md"
  fi
  [[ -e $out/gpu.md ]] && cat "$out/gpu.md"
}

# ---- Options

packages='' build=$root/build/device limit=460 jobs=$(nproc) only=build,tests,sanitizer,parity,bench
architectures=${REGARD_DEVICE_ARCHITECTURES:-native} others=(cuda cuda_again) parity_steps=600 verdicts=()
while (($#)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --prepare | --packages | --only | --build | --limit | --jobs)
      (($# > 1)) || { usage >&2; exit 2; }
      case $1 in
        --prepare) prepare "$2"; exit ;;
        --packages) packages=$(realpath -m "$2") ;;
        --only) only=$2 ;;
        --build) build=$(realpath -m "$2") ;;
        --limit) limit=$2 ;;
        --jobs) jobs=$2 ;;
      esac
      shift 2
      ;;
    *) usage >&2; exit 2 ;;
  esac
done
for name in ${only//,/ }; do
  case $name in
    build | tests | sanitizer | parity | bench) ;;
    *) echo "$0: --only knows no part '$name'" >&2; usage >&2; exit 2 ;;
  esac
done
[[ -n ${only//,/} ]] || { usage >&2; exit 2; }
out=$(realpath -m "${OUT:-$build/results}")
mkdir -p "$out" "$build" || exit 1
: >"$out/summary.txt"
nvcc=$(find_nvcc)
machine
if [[ -z $nvcc ]]; then
  part build
  verdict failed build "nvcc was not found"
else
  wanted build && build_all
  wanted tests && run_tests
  wanted sanitizer && run_sanitizer
  wanted parity && run_parity
  wanted bench && run_bench
fi
say ""
for line in "${verdicts[@]}"; do say "$line"; done
say "$((SECONDS - begun)) s in all; results in $out"
exit $failed
