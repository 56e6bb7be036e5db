#!/bin/bash

# Parameters
#SBATCH --comment='clusterddp toy/20261130-195954-f72a #0001'
#SBATCH --cpus-per-task=1
#SBATCH --job-name=toy
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=/shared/ada/runs/toy/20261130-195954-f72a/submitit/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@90
#SBATCH --time=10

# command
export SUBMITIT_EXECUTOR=slurm
exec /shared/venv/bin/python -u -m submitit.core._submit /shared/ada/runs/toy/20261130-195954-f72a/submitit
