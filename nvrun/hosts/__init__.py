"""Where hosts come from: lists, hostfiles, Slurm, the environment that other launchers leave."""
