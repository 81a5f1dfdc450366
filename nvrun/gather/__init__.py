"""The nodes of one Slurm step find each other without ssh, judge the job together and end it together.

Every node runs nvrun (`srun --ntasks-per-node=1 nvrun train.py`). The first node's listens on a TCP port that follows
from the job's and the step's id; the others send it a card (facts of a fixed schema), it answers all of them with one
verdict. Nothing that crosses is ever executed: every node computes its own plan. Strangers are kept out by a mutual
proof (`proof`); after it the connection itself is trusted, as that of torchrun's own rendezvous is.
"""
