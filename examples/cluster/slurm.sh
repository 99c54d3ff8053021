#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pre-training on two nodes, a task each: sbatch examples/cluster/slurm.sh
#
# The job requeues itself while tasks end with 42, 69 or by a signal. srun returns the
# highest code of all tasks, so a task with another code leaves a file.
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4
#SBATCH --time=24:00:00 --signal=TERM@120 --requeue
export FAILED=$PWD/failed.$SLURM_JOB_ID
rm -f "$FAILED"
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export WORKERS=$(printf '"%s:23456", ' $nodes)
srun bash -c '
  export TF_CONFIG="{\"cluster\": {\"worker\": [${WORKERS%, }]},
    \"task\": {\"type\": \"worker\", \"index\": $SLURM_PROCID}}"
  trap : TERM
  python3 run_pretraining.py --data-dir D --model-name M
  code=$?
  case $code in 0|42|69|129|130|137|142|143) ;; *) echo "$SLURM_PROCID: $code" >> "$FAILED" ;; esac
  exit $code'
case $? in 42|69|129|130|137|142|143) [[ -e $FAILED ]] || scontrol requeue "$SLURM_JOB_ID" ;; esac
