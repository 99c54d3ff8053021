#!/usr/bin/env bash
# From text to a trained ELECTRA in a few minutes on two CPU cores: builds a vocabulary
# and TFRecords from the novels in examples/, pre-trains a small model, evaluates it on
# text it has not seen and shows which replaced tokens its discriminator catches.
#
#   ./quickstart.sh [OUTPUT_DIR]
#
# Run again, it goes on where it was interrupted. Fails if the discriminator's AUC on the
# held-out text is below 0.75.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out="${1:-quickstart_output}"
name=quickstart

source ./venv.sh
use_venv ""
started=$SECONDS

heading() { printf '\n\033[1m%s\033[0m\n' "$*"; }

run() {  # shows the command that one would type, and runs it
  echo "\$ python3 $*"
  python3 "$@"
}

heading "1/6  Vocabulary"
if [[ -e "$out/vocab.txt" ]]; then
  echo "$out/vocab.txt is there."
else
  mkdir -p "$out"
  run build_vocab.py --corpus-dir examples/corpus --vocab-size 1024 \
    --output-file "$out/vocab.txt"
fi

heading "2/6  TFRecords"
for part in corpus:pretrain heldout:heldout; do
  records="$out/${part#*:}_tfrecords"
  if [[ -e "$records/manifest.json" ]]; then
    echo "$records is there."
  else
    run build_pretraining_dataset.py --corpus-dir "examples/${part%:*}" \
      --vocab-file "$out/vocab.txt" --output-dir "$records" --max-seq-length 32 \
      --num-processes 2
  fi
done

heading "3/6  Pre-training"
run run_pretraining.py --data-dir "$out" --model-name $name \
  --config examples/quickstart.json

heading "4/6  Evaluation on the held-out text"
run run_pretraining.py --data-dir "$out" --model-name $name \
  --config examples/quickstart.json --hparams "{\"do_train\": false, \"do_eval\": true,
  \"eval_tfrecords\": \"$out/heldout_tfrecords/pretrain_data.tfrecord*\"}"

heading "5/6  Which replaced tokens does the discriminator catch?"
passage="$out/passage.txt"
sed -n '40,46p' examples/heldout/lost_world_opening.txt > "$passage"
FORCE_COLOR=1 run run_inference.py detect --data-dir "$out" --model-name $name \
  --input "$passage" --corrupt

heading "6/6  Report"
run run_inference.py report --data-dir "$out" --model-name $name --input "$passage"
echo "Loss curves: $out/models/$name/loss_curves.png"

printf '\n%d seconds without the installation. ' $((SECONDS - started))
python3 - "$out/models/$name/results/unsup_results.json" <<'PYTHON'
import json, sys
auc = json.load(open(sys.argv[1]))["metrics"]["disc_auc_tokens"]
print(f"AUC of the discriminator on held-out text: {auc:.3f} (chance: 0.5).")
if auc < 0.75:
    sys.exit("error: an AUC of at least 0.75 was expected.")
PYTHON
echo "To go on with commands of your own: source ${VENV:-.venv}/bin/activate"
