#!/usr/bin/env bash
# From text to a model that answers, in a few minutes on two CPU cores: builds a
# vocabulary and TFRecords from the novels in examples/, pre-trains a small ELECTRA by a
# recipe for few steps (docs/measurements/experiments.md, the quickstart), evaluates it
# on text it has not seen, shows which replaced words its discriminator catches,
# fine-tunes it to tell two authors apart, exports that as a SavedModel and asks it in a
# process that has TensorFlow only.
#
#   ./quickstart.sh [OUTPUT_DIR]
#
# Run again, it goes on where it was interrupted. Fails if the discriminator's AUC on the
# held-out text is below 0.75 or if the authors are told apart no better than by chance.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out="${1:-quickstart_output}"
name=quickstart

source ./venv.sh
use_venv ""
started=$SECONDS

heading() {  # what the step does, in a few words and in one line
  printf '\n\033[1m%s\033[0m\n%s\n' "$1" "$2"
}

run() {  # shows the command that one would type, and runs it
  local word shown="python3"
  for word in "$@"; do
    [[ $word == *[[:space:]]* ]] && shown+=" '$word'" || shown+=" $word"
  done
  echo "\$ $shown"
  python3 "$@"
}

heading "1/9  Vocabulary" \
  "Chooses the words and pieces of words (tokens) that the model reads text in."
if [[ -e "$out/vocab.txt" ]]; then
  echo "$out/vocab.txt is there."
else
  mkdir -p "$out"
  run build_vocab.py --corpus-dir examples/corpus --vocab-size 8192 \
    --output-file "$out/vocab.txt"
fi

heading "2/9  TFRecords" \
  "Turns four novels into sequences of 32 tokens to learn from, part of a fifth to test on."
for part in corpus:pretrain heldout:heldout; do
  records="$out/${part#*:}_tfrecords"
  if [[ -e "$records/manifest.json" ]]; then
    echo "$records is there."
  else
    run build_pretraining_dataset.py --corpus-dir "examples/${part%:*}" \
      --vocab-file "$out/vocab.txt" --output-dir "$records" --max-seq-length 32 \
      --packing full --num-processes 2
  fi
done

heading "3/9  Pre-training" \
  "Fills masks with likely words (gen); learns which are wrong (disc, recall) and what stood there (token, acc)."
run run_pretraining.py --data-dir "$out" --model-name $name \
  --config examples/quickstart.json

heading "4/9  Evaluation" \
  "Measures it on the fifth novel, which it has not read."
run run_pretraining.py --data-dir "$out" --model-name $name \
  --config examples/quickstart.json --hparams "{\"do_train\": false, \"do_eval\": true, \
\"eval_tfrecords\": \"$out/heldout_tfrecords/pretrain_data.tfrecord*\"}"

heading "5/9  A look at it" \
  "One token in seven is replaced; colours show what was caught."
passage="$out/passage.txt"
sed -n '571,575p' examples/heldout/lost_world_opening.txt > "$passage"
FORCE_COLOR=1 run run_inference.py detect --data-dir "$out" --model-name $name \
  --input "$passage" --corrupt --mask-prob 0.15

heading "6/9  Report" \
  "Writes the same, the evaluation and the loss curves into one HTML page."
run run_inference.py report --data-dir "$out" --model-name $name --input "$passage" \
  --mask-prob 0.15
echo "Loss curves: $out/models/$name/loss_curves.png"

heading "7/9  Fine-tuning" \
  "The discriminator learns from labelled sentences which of two authors wrote them."
run examples/author_task.py "$out"
run run_finetuning.py --data-dir "$out" --model-name $name \
  --hparams examples/author_task.json

heading "8/9  Export" \
  "Writes tokenizer and fine-tuned model as one SavedModel, and compares it with them."
if [[ -d "$out/exports/author" ]]; then
  echo "$out/exports/author is there."
else
  run export_model.py --data-dir "$out" --model-name $name --format saved_model \
    --what author --output-dir "$out/exports"
fi

heading "9/9  Asking it" \
  "Loads the SavedModel in a new process, with TensorFlow and without electra_tf."
notices="$out/tensorflow_notices.txt"  # such as that this machine has no GPU
run examples/ask_saved_model.py "$out/exports/author/1" \
  "It is a capital mistake to theorize before one has data." 2> "$notices" ||
  { cat "$notices" >&2; exit 1; }

printf '\n%d seconds without the installation.\n' $((SECONDS - started))
python3 - "$out/models/$name/results" <<'PYTHON'
import json, sys
def results(name):
    with open(f"{sys.argv[1]}/{name}_results.json") as f:
        return json.load(f)
auc = results("unsup")["metrics"]["disc_auc_tokens"]
accuracy = results("author")["trials"][0]["scores"]["author"]["accuracy"]
print(f"AUC of the discriminator on held-out text: {auc:.3f} (chance: 0.5).")
print(f"Right author of sentences from other novels: {accuracy:.1f} % (chance: 50 %).")
if auc < 0.75 or accuracy < 60:
    sys.exit("error: an AUC >= 0.75 and an accuracy >= 60 % were expected.")
PYTHON
echo "To go on with commands of your own: source ${VENV:-.venv}/bin/activate"
