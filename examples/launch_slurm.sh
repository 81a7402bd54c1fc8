#!/bin/bash
# Training on two nodes of eight ranks under Slurm: sbatch examples/launch_slurm.sh /shared/run
#
# A node that fails ends the step. --requeue has Slurm begin the script again, on the nodes that it finds then, and
# launch_torch.py goes on from the checkpoint.
#SBATCH --job-name=gpuload
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${nodes%%$'\n'*}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --kill-on-bad-exit=1 python examples/launch_torch.py "$1"
