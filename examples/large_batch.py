"""Training with a large global batch: linear scaling, warm-up, and layer-wise rates (LARS, LAMB).

    nvrun --nproc-per-node 2 examples/large_batch.py --optimizer lars

The global batch is the batch per GPU times the number of ranks, so every GPU that is added makes it larger. The recipe
(Goyal et al. 2017): scale the learning rate with the global batch, and reach it from the small one over some epochs of
warm-up, because the early steps are where a large rate diverges. Beyond some thousands of images one rate no longer
fits all layers: LARS (You et al. 2017, for SGD) and LAMB (You et al. 2019, for Adam) give each layer a rate in
proportion to norm(weights) / norm(update). It pays when more GPUs would otherwise only mean smaller steps; below a few
thousand samples a step plain SGD or AdamW with warm-up does as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from group import mean_over_ranks, process_group, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def trust_ratio(weights: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """norm(weights) / norm(update); 1 where either is zero, and for biases and norms, which both papers leave out."""
    w, u = weights.norm(), update.norm()
    ratio = torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w))
    return ratio if weights.ndim > 1 else torch.ones_like(w)


class LARS(torch.optim.Optimizer):
    """SGD with momentum whose step is, for each layer, in proportion to its weights."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust: float = 1e-3,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                update = weights.grad
                rate = 1.0
                if weights.ndim > 1:
                    update = update + group["weight_decay"] * weights
                    rate = group["trust"] * trust_ratio(weights, update)
                velocity = self.state[weights].setdefault("velocity", torch.zeros_like(weights))
                velocity.mul_(group["momentum"]).add_(update * rate * group["lr"])
                weights.sub_(velocity)


class LAMB(torch.optim.Optimizer):
    """Adam whose step is, for each layer, in proportion to its weights."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            one, two = group["betas"]
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                state = self.state[weights]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(weights), square=torch.zeros_like(weights))
                state["step"] += 1
                state["mean"].lerp_(weights.grad, 1 - one)
                state["square"].lerp_(weights.grad.square(), 1 - two)
                mean = state["mean"] / (1 - one ** state["step"])
                square = state["square"] / (1 - two ** state["step"])
                update = mean / (square.sqrt() + group["eps"])
                if weights.ndim > 1:
                    update = update + group["weight_decay"] * weights
                weights.sub_(group["lr"] * trust_ratio(weights, update) * update)


def optimizer(name: str, params: Iterable[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    if name == "lars":
        return LARS(params, lr)
    if name == "lamb":
        return LAMB(params, lr)
    return torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=1e-4)


def rate(step: int, warmup: int, steps: int, scale: float) -> float:
    """What the base rate is multiplied by: from 1 up to scale over the warm-up, then down to 0 in a straight line."""
    if step < warmup:
        return 1 + (scale - 1) * step / warmup
    return scale * (steps - step) / max(1, steps - warmup)


def train(name: str, args: argparse.Namespace, device: torch.device) -> tuple[float, float]:
    """Train and return the first and the last loss, averaged over the ranks."""
    lr = args.lr or DEFAULT_RATE[name]
    global_batch = args.batch_size * dist.get_world_size()
    scale = global_batch / args.base_batch
    say(f"{name}: global batch {global_batch}, base rate {lr:g} x {scale:g}, {args.warmup} steps of warm-up")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    teacher = torch.randn(32, 10, device=device)
    model = DistributedDataParallel(net.to(device))
    chosen = optimizer(name, model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(chosen, lambda step: rate(step, args.warmup, args.steps, scale))
    torch.manual_seed(1 + dist.get_rank())
    first = 0.0
    for step in range(args.steps):
        points = torch.randn(args.batch_size, 32).to(device)
        loss = nn.functional.cross_entropy(model(points), (points @ teacher).argmax(1))
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        schedule.step()
        if step == 0:
            first = mean_over_ranks(loss)
    return first, mean_over_ranks(loss)


DEFAULT_RATE = {"sgd": 0.05, "lars": 1.0, "lamb": 0.01}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", nargs="+", choices=list(DEFAULT_RATE), default=list(DEFAULT_RATE))
    parser.add_argument("--lr", type=float, help=f"rate for the base batch (default: {DEFAULT_RATE})")
    parser.add_argument("--base-batch", type=int, default=256, help="global batch for which that rate was found")
    parser.add_argument("--batch-size", type=int, default=512, help="per rank")
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    with process_group() as device:
        for name in args.optimizer:
            first, last = train(name, args, device)
            say(f"{name}: first loss {first:.5f}, loss={last:.5f}")


if __name__ == "__main__":
    main()
