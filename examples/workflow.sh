#!/usr/bin/env bash
# The four steps of paper 003's workflow, MNIST playing the private data: see docs/workflow.md.
# bash examples/workflow.sh [folder]    needs MNIST and Fashion-MNIST (DISCREET_DATA, or they are downloaded)
set -euo pipefail
out="${1:-runs/workflow}"
run=(--model cnn --epochs 15 --batch-size 512 --momentum 0.9)

# 1. A model and a learning rate that work on a public benchmark that is like the private data.
discreet train --data fashion-mnist --noise 1 --model cnn --epochs 5 --batch-size 128 --momentum 0.9 \
    --learning-rate 0.05 --out "$out/1-benchmark"

# 2. The largest batch that is fast enough, and the learning rate in proportion (at_batch_size).
scaled=(--learning-rate 0.05 --set optimizer.at_batch_size=128)

# 3. The smallest noise at which nothing is memorised: no private data yet.
discreet check --data mnist "${run[@]}" "${scaled[@]}" --calibrate --check-epochs 60 --plain-learning-rate 0.0125 \
    --runs 2 --out "$out/3-checks" --json > "$out/3-smallest-noise.json"
noise="$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["noise"])' "$out/3-smallest-noise.json")"
echo "the smallest noise that passes: $noise"

# 4. Train on the private data with that noise and adaptive clipping, the paper's rule with its defaults.
discreet train --data mnist "${run[@]}" "${scaled[@]}" --method adaptive_clipping --set method.settings.rule=mean --set method.settings.alpha=1.0 \
    --noise "$noise" --out "$out/4-private"
