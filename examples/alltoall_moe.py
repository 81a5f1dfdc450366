"""Expert parallelism: a mixture-of-experts layer whose tokens travel to their expert and back by all_to_all.

    nvrun --nproc-per-node 2 examples/alltoall_moe.py

Each rank holds some of the experts. A token goes to the expert that its router picks (top-1), wherever that lives: two
all-to-alls forward and two backward, with counts that differ at every step. It pays when the experts do not fit one
GPU; then the all-to-all is the bottleneck, and the slowest link between any two ranks sets its pace: keep expert groups
inside NVLink where you can. The output is compared with one rank computing all experts for itself.

DeepEP (fused kernels that move tokens over NVLink and RDMA) is another transport: where it is installed the same tokens
are sent with it as well and must come back unchanged; else the script says so and goes on. That part follows DeepEP's
documentation and has not been run yet.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from group import process_group, say, seconds
from models import FeedForward
from torch import nn


class Exchange(torch.autograd.Function):
    """all_to_all of rows; its gradient is the exchange backwards."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.sent, ctx.received = sent, received
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        result = gradient.new_empty(sum(ctx.sent), *gradient.shape[1:])
        dist.all_to_all_single(result, gradient.contiguous(), ctx.sent, ctx.received)
        return result, None, None


class Experts(nn.Module):
    """Top-1 mixture of experts; this rank holds experts rank*local to rank*local + local."""

    def __init__(self, dim: int, local: int) -> None:
        super().__init__()
        self.local = local
        self.count = local * dist.get_world_size()
        torch.manual_seed(0)
        self.router = nn.Linear(dim, self.count, bias=False)
        # All ranks make all experts from one seed, so that the check below has something to compare with.
        everyone = [FeedForward(dim) for _ in range(self.count)]
        first = dist.get_rank() * local
        self.mine = nn.ModuleList(everyone[first : first + local])
        self.reference = everyone if dist.get_rank() == 0 else []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weight, expert = self.router(tokens).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.count)
        # First how many for each expert, then the tokens themselves, sorted by expert and so by rank.
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent = counts.view(-1, self.local).sum(1).tolist()
        received = theirs.view(-1, self.local).sum(1).tolist()
        arrived = Exchange.apply(tokens[order], sent, received)
        # They arrive by sender, then expert.
        which = torch.arange(self.local, device=tokens.device).repeat(dist.get_world_size())
        which = which.repeat_interleave(theirs)
        done = torch.zeros_like(arrived)
        for index, expert_here in enumerate(self.mine):
            done[which == index] = expert_here(arrived[which == index])
        returned = Exchange.apply(done, received, sent)
        return torch.empty_like(returned).index_copy(0, order, returned) * weight.unsqueeze(-1)

    def by_one_rank(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same without communication: rank 0 holds every expert."""
        weight, expert = self.router(tokens).softmax(-1).max(-1)
        parts = [self.reference[e].to(tokens.device)(t) for t, e in zip(tokens, expert.tolist(), strict=True)]
        return torch.stack(parts) * weight.unsqueeze(-1)


def deepep(tokens: torch.Tensor, expert: torch.Tensor, experts: int) -> str:
    """Send the tokens to their experts with DeepEP and straight back; says what came of it."""
    try:
        import deep_ep
    except ImportError:
        return "DeepEP is not installed: all_to_all of NCCL or gloo was used"
    if tokens.device.type != "cuda":
        return "DeepEP needs GPUs: all_to_all was used"
    size = 1 << 28
    buffer = deep_ep.Buffer(dist.group.WORLD, size, 0 if dist.get_world_size() <= 8 else size)
    rows, top = tokens.bfloat16(), expert.unsqueeze(-1)
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(top, experts)
    arrived, _, _, _, handle, _ = buffer.dispatch(
        rows,
        topk_idx=top,
        topk_weights=torch.ones_like(top, dtype=torch.float32),
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
    )
    back, _, _ = buffer.combine(arrived, handle)
    return f"DeepEP: tokens {'came back unchanged' if torch.equal(back, rows) else 'came back CHANGED'}"


def run(args: argparse.Namespace, device: torch.device) -> None:
    layer = Experts(args.dim, args.experts).to(device)
    torch.manual_seed(1 + dist.get_rank())
    tokens = torch.randn(args.tokens, args.dim, device=device, requires_grad=True)
    output = layer(tokens)
    output.square().mean().backward()
    if dist.get_rank() == 0:
        mine = tokens.grad.clone()
        tokens.grad = None
        reference = layer.by_one_rank(tokens)
        reference.square().mean().backward()
        say(
            f"{layer.count} experts, largest difference from one rank: output "
            f"{(output - reference).abs().max().item():.1e}, gradient {(mine - tokens.grad).abs().max().item():.1e}"
        )
    took = [seconds(lambda: layer(tokens), device) for _ in range(args.steps)]
    say(f"forward: {1e3 * min(took):.2f} ms, {2 * args.tokens * args.dim * 4 / 1e6:.2f} MB a rank there and back")
    say(deepep(tokens.detach(), layer.router(tokens).argmax(-1), layer.count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=2, help="experts per rank")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per rank")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    with process_group() as device:
        run(args, device)


if __name__ == "__main__":
    main()
