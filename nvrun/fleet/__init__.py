"""How hosts are reached: local, ssh, srun, any command; one session over all of them."""
