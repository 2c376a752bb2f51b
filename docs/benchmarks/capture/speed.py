"""Time the recording of a GPT-2-like model, its check, and what running the recorded graph costs."""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from autopipe.recorder import record

REPEATS = 5


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time_, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width=256, blocks=24, vocabulary=4096, context=256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Layers(nn.Module):
    """Layers of one linear map and one ReLU each, 48 of them, called one by one."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(48))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def seconds(call, *args):
    """Return the processor time of a call: other programs may be running."""
    begin = time.process_time()
    call(*args)
    return time.process_time() - begin


def recording():
    """Print what a recording and its check take, against forwards and against forward and backward."""
    model, ids = GPT(), torch.randint(0, 4096, (2, 192))

    def step():
        model(ids).float().sum().backward()
        model.zero_grad()

    def forward():
        model(ids)

    step()
    ahead, both, alone, checked = [], [], [], []
    for _ in range(2):
        ahead.append(seconds(forward))
        both.append(seconds(step))
        alone.append(seconds(lambda: record(model, (ids,), check=False)))
        checked.append(seconds(lambda: record(model, (ids,))))
    ahead_s, both_s, alone_s, checked_s = (statistics.median(each) for each in (ahead, both, alone, checked))
    spread = f"{min(checked):.2f} to {max(checked):.2f}"
    print(
        "| forward s | forward-backward s | recording s | in forwards | with check s | of that check | check in steps |"
    )
    print("|---" * 7 + "|")
    print(
        f"| {ahead_s:.2f} | {both_s:.2f} | {alone_s:.2f} | {alone_s / ahead_s:.1f} | {checked_s:.2f} ({spread}) | "
        f"{checked_s - alone_s:.2f} | {(checked_s - alone_s) / both_s:.1f} |"
    )


def overhead(width, rows, calls):
    """Print how much longer the recorded graph takes than the model, forward only and with backward."""
    model, x = Layers(width), torch.randn(rows, width)
    graph = record(model, (x,)).module

    def forward(callee):
        with torch.no_grad():
            for _ in range(calls):
                callee(x)

    def step(callee):
        for _ in range(calls):
            callee(x).sum().backward()

    for what, call in (("forward", forward), ("forward and backward", step)):
        call(model), call(graph)
        pairs = []
        for repeat in range(REPEATS):
            order = (model, graph) if repeat % 2 else (graph, model)
            times = {callee is graph: seconds(call, callee) for callee in order}
            pairs.append((times[False], times[True]))
        eager = statistics.median(pair[0] for pair in pairs) / calls / 48
        ratios = sorted(pair[1] / pair[0] - 1 for pair in pairs)
        print(
            f"| {width} x {rows} | {what} | {eager * 1e6:.0f} us | {100 * statistics.median(ratios):+.1f} % | "
            f"{100 * ratios[0]:+.1f} to {100 * ratios[-1]:+.1f} % |"
        )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recording()
    print("\n| width x rows | what | eager, per layer | the graph's overhead | range |")
    print("|---" * 5 + "|")
    overhead(512, 160, 4)
    overhead(128, 48, 100)


if __name__ == "__main__":
    main()
