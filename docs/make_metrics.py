# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/metrics.md, of all metrics and all alarms."""

from electra_tf.pretrain.metrics import ALARMS, ALL_METRICS
from electra_tf.train.reporting import STEP_METRICS

print("| name | meaning | healthy |\n|---|---|---|")
for metric in (*ALL_METRICS, *STEP_METRICS):
    print(f"| `{metric.name}` | {metric.label} | {metric.healthy} |")
print("\n| alarm | raised by |\n|---|---|")
for alarm in ALARMS:
    print(f"| {alarm.name} | {alarm.meaning} |")
