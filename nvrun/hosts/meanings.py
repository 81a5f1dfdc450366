"""What findings about Slurm's job scripts and about the nodes of a step mean. Pure."""

from __future__ import annotations

from nvrun.meanings import means

_READ = "SLURM_* of the environment, and what this process may use of its host"
_STEP = "what the nodes of the step tell each other before their ranks start"
_SRUN, _SBATCH = "srun(1)", "sbatch(1)"

TRAPS = (
    ("slurm-variables-left-over", "SLURM_* of another job are in the environment",
     "nodes, ranks and addresses of a job that is not this one are taken for its own",
     "unset ${!SLURM_@}, or give --hosts", _SBATCH),
    ("slurm-one-cpu-per-task", "the step may use fewer CPUs than the job has",
     "srun gives a task one CPU unless told otherwise: data loaders and NCCL's threads share it",
     "srun --cpus-per-task=N: it is not taken over from sbatch since 22.05", _SRUN),
    ("slurm-few-cpus", "the job asked for too few CPUs", "data loaders and NCCL's threads wait for each other",
     "#SBATCH --cpus-per-task=N with one task a node, or --exclusive", _SBATCH),
    ("slurm-gpus-isolated", "a task sees only some of the job's GPUs on its node",
     "ranks of other tasks cannot be reached by P2P: NCCL copies through host memory",
     "one task a node with --gpus-per-node=N or --gres=gpu:N, without --gpus-per-task and --gpu-bind",
     "srun(1); NCCL issues 1066, 1948"),
    ("slurm-no-gpus-asked", "the job asked for no GPU, so Slurm hides them", "CUDA finds no device",
     "#SBATCH --gres=gpu:N or --gpus-per-node=N", _SBATCH),
    ("slurm-gpus-not-reserved", "the job asked for no GPU and can open them all the same",
     "another job may be given the same GPUs", "#SBATCH --gres=gpu:N or --gpus-per-node=N", _SBATCH),
    ("slurm-het-job", "a heterogeneous job", "SLURM_JOB_NODELIST names the nodes of one group only",
     "give --hosts, or start nvrun under srun --het-group=...", "heterogeneous jobs in Slurm's documentation"),
    ("slurm-requeued", "the job was requeued", "its nodes and the time left may differ from the first try",
     "the script should resume from its checkpoint", _SBATCH),
    ("slurm-export-none", "sbatch --export=NONE holds for the steps too", "they get no environment",
     "unset SLURM_EXPORT_ENV in the script, or export SLURM_EXPORT_ENV=ALL", _SBATCH),
    ("slurm-master-is-loopback", "several nodes are told to meet at a loopback address", "each waits for itself",
     "drop the address: nvrun takes the first node of the job, without scontrol",
     "torchrun's --rdzv-endpoint, --master-addr"),
    ("slurm-node-rank-expanded-early", "the node rank was expanded by the batch script's shell",
     "all nodes believe to be node 0",
     "drop --node-rank; or srun bash -c 'nvrun --node-rank $SLURM_NODEID ...' in single quotes", _SRUN),
    ("slurm-memlock-propagated", "the login shell's limit of locked memory holds in the job",
     "RDMA cannot register its buffers",
     "sbatch --propagate=NONE; for good: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf", "slurm.conf(5)"),
)  # fmt: skip
NODES = (
    ("node-not-heard", "a node of the step has not come, or the first one cannot be heard",
     "its ranks would be missing from the world: the others would wait until the rendezvous expires",
     "look at its lines in the step's output: it did not start, or a firewall drops ports 29600 to 29807"),
    ("node-not-understood", "what a node says is not understood", "it cannot be judged, so it must not take part",
     "install the same nvrun on all nodes"),
    ("node-command-differs", "a node was started with another command line", "ranks would run different programs",
     "srun starts the same command on all nodes: is it built from a variable?"),
    ("node-script-differs", "a node has another text of the program", "ranks would run different programs",
     "copy the program to all nodes, or keep it in a folder that they share"),
    ("node-world-differs", "a node believes in another world", "ranks would never meet",
     "give no --nnodes, --node-rank or endpoint under srun: nvrun sets them"),
    ("node-nvrun-differs", "a node has another nvrun", "they may decide differently from the same facts",
     "install the same nvrun on all nodes"),
)  # fmt: skip

for _code, _summary, _why, _remedy, _source in TRAPS:
    means(_code, _summary, read=_READ, why=_why, remedy=_remedy, source=_source)
for _code, _summary, _why, _remedy in NODES:
    means(_code, _summary, read=_STEP, why=_why, remedy=_remedy, source="nvrun/gather")
