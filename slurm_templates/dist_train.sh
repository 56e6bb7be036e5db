#!/bin/bash
# slurm_templates/dist_train.sh CONFIG GPUS [key=value ...]
#
# The classic local script: GPUS ranks on this machine through torchrun. PORT chooses
# the port; unset, torchrun takes a free one.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: [PORT=29500] slurm_templates/dist_train.sh CONFIG GPUS [key=value ...]" >&2
    exit 2
fi
config=$1
gpus=$2
shift 2

if [ -n "${PORT:-}" ]; then
    meeting=(--nnodes=1 --master-addr=127.0.0.1 --master-port="$PORT")
else
    meeting=(--standalone)
fi
exec "${PYTHON:-python}" -m torch.distributed.run "${meeting[@]}" \
    --nproc-per-node="$gpus" \
    -m clusterddp.train "$config" --launcher pytorch "$@"
