# SPDX-License-Identifier: MIT
"""The same work in PyTorch on one GPU, for a comparison on your own card.

    python3 bench/peer_torch.py [limits] [attention] [forward] [train] [decode] [inception]
                                [--only TEXT,TEXT] [--modes MODE,MODE] [--json FILE] [--seconds 600] [--wait]

Without a word: everything. One line for each measurement, name, value and unit between tabs: the median of timed
calls after warm-up, bf16, random weights and inputs, eager and torch.compile; the FID network in fp16, TF32 and fp32;
a training step with autocast to bf16, fused AdamW and an average of the weights, with the memory that it takes.

Rows of forward are PyTorch at its best: eager and compiled in each of --modes (default, max-autotune-no-cudagraphs,
reduce-overhead), with that of cuDNN's, Flash and memory-efficient attention that is fastest alone at the row's shape;
in bf16, and in FP8 by torch._scaled_mm with factors of rows (compiled only), the first and last block in bf16 as ours.
--only takes the rows in whose name one of the texts is ("XL", "fp8", "DiT-XL/2 64 x 256 tokens fp8").
tests/gpu.sh runs this and our benchmarks in one go; the names are those of `nl_bench_operations attention`, `nl_bench_forward`,
`nl_bench_images` and tests/gpu.sh, with "eager" or "compiled" behind them.

torch.compile works for a minute or more on the processor, so each row is a process, and all compile at the same time.
When all have, or after --seconds (those left are given up), one after the other is measured alone; with --wait only
after a line on standard input, which answers the line "ready".
"""
import copy
import json
import math
import multiprocessing
import os
import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA, BF16 = "cuda", torch.bfloat16
SIZES = {"S": (12, 384, 6), "B": (12, 768, 12), "XL": (28, 1152, 16)}  # depth, width, heads
MODES = ["default", "max-autotune-no-cudagraphs", "reduce-overhead"]
RESULTS = {}


def milliseconds(call, repeats=15):
    for _ in range(4):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def note(name, value, unit):
    RESULTS[name] = {"value": round(value, 4), "unit": unit}
    print(f"{name:60}\t{value:12.4f}\t{unit}", flush=True)


def randn(*shape):
    return torch.randn(*shape, device=CUDA, dtype=BF16)


def features(x, power, base):
    """cos and sin halves of |base|^power, angles by the direction of x; base > 0 almost everywhere."""
    direction = x / (x.norm(dim=-1, keepdim=True) + 1e-6)
    size = (direction if base is None else base).abs() ** power
    angle = math.pi / 4 * direction.tanh()
    return torch.cat((size * angle.cos(), size * angle.sin()), dim=-1)


def norm_aware(q, k, v):
    """Linear attention whose query features are the sharper the longer the query is; in fp32, as published."""
    kind = q.dtype
    q, k, v = q.float(), k.float(), v.float()
    fq = features(q, 3 * (0.5 + q.norm(dim=-1, keepdim=True).tanh()), None)
    fk = features(k, 3, k)
    state = fk.mT @ v / q.shape[-2]
    weight = fq @ fk.mean(dim=-2, keepdim=True).mT
    return ((fq @ state) / (weight + 1e-6)).to(kind)


class Block(nn.Module):
    def __init__(self, width, heads, nala):
        super().__init__()
        self.heads, self.nala = heads, nala
        self.qkv = nn.Linear(width, (4 if nala else 3) * width)
        self.norm = nn.LayerNorm(width) if nala else None
        self.proj = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.adaln = nn.Linear(width, 6 * width)

    def attend(self, x):
        b, n, d = x.shape
        parts = self.qkv(x).chunk(4 if self.nala else 3, dim=-1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts[:3])
        y = (norm_aware if self.nala else F.scaled_dot_product_attention)(q, k, v)
        y = y.transpose(1, 2).reshape(b, n, d)
        return self.proj(self.norm(y) * F.silu(parts[3]) if self.nala else y)

    def forward(self, x, c):
        s1, a1, g1, s2, a2, g2 = self.adaln(F.silu(c))[:, None].chunk(6, dim=-1)
        h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + a1) + s1
        x = x + g1 * self.attend(h)
        h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + a2) + s2
        return x + g2 * self.fc2(F.gelu(self.fc1(h), approximate="tanh"))


class F8Linear(nn.Module):
    """A linear layer in E4M3: a factor for each row of the weights, and one for each token."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.float().abs().amax(dim=1, keepdim=True) / 448
        self.register_buffer("weight", (linear.weight.float() / scale).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale.T.contiguous())
        self.bias = linear.bias

    def forward(self, x):
        rows = x.flatten(0, -2).float()
        scale = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 448
        y = torch._scaled_mm((rows / scale).to(torch.float8_e4m3fn), self.weight.T, scale, self.scale, bias=self.bias,
                             out_dtype=BF16, use_fast_accum=True)
        return y.unflatten(0, x.shape[:-1])


def in_fp8(model):
    for block in model.blocks[1:-1]:
        for name in ("qkv", "proj", "fc1", "fc2"):
            setattr(block, name, F8Linear(getattr(block, name)))
    return model


class Backbone(nn.Module):
    """A DiT of patch 2 over latents of 4 channels."""

    def __init__(self, size, nala, tokens=256):
        super().__init__()
        depth, width, heads = SIZES[size]
        self.patch = nn.Conv2d(4, width, 2, stride=2)
        self.position = nn.Parameter(torch.randn(1, tokens, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(Block(width, heads, nala) for _ in range(depth))
        self.adaln, self.head = nn.Linear(width, 2 * width), nn.Linear(width, 2 * 2 * 8)

    def forward(self, x, t, y):
        rate = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        angle = t[:, None].float() * rate
        c = self.time(torch.cat((angle.cos(), angle.sin()), dim=-1).to(x.dtype)) + self.label(y)
        h = self.patch(x).flatten(2).mT + self.position
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.adaln(F.silu(c))[:, None].chunk(2, dim=-1)
        h = self.head(F.layer_norm(h, h.shape[-1:], eps=1e-6) * (1 + scale) + shift)
        side = x.shape[-1]
        return h.view(-1, side // 2, side // 2, 2, 2, 8).permute(0, 5, 1, 3, 2, 4).reshape(-1, 8, side, side)


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, before, eps=1e-6), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(32, after, eps=1e-6), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x):
        return self.short(x) + self.second(self.first(x))


class Middle(nn.Module):
    """Attention of one head over all pixels."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(32, width, eps=1e-6), nn.Conv2d(width, 3 * width, 1)
        self.proj = nn.Conv2d(width, width, 1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).flatten(2).mT.unsqueeze(1).chunk(3, dim=-1)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v).squeeze(1).mT.unflatten(-1, x.shape[2:]))


def kl_decoder():
    """Shapes of the Stable Diffusion decoder."""
    parts = [nn.Conv2d(4, 512, 3, padding=1), Residual(512, 512), Middle(512), Residual(512, 512)]
    before = 512
    for level, width in enumerate((512, 512, 256, 128)):
        for _ in range(3):
            parts.append(Residual(before, width))
            before = width
        if level < 3:
            parts += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*parts, nn.GroupNorm(32, 128, eps=1e-6), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1))


# ---- Rows: up to its `yield` each does what may run beside others (compiling), then it measures.


def limits():
    yield
    a, b = randn(8192, 8192), randn(8192, 8192)
    note("bf16 product 8192 x 8192 x 8192", 2 * 8192**3 / milliseconds(lambda: a @ b) / 1e9, "TFLOP/s")
    x, y = torch.zeros(1 << 30, dtype=torch.uint8, device=CUDA), torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)
    note("copy", 2 * x.numel() / milliseconds(lambda: y.copy_(x)) / 1e6, "GB/s")


def attention(batch, tokens):
    q, k, v = (randn(batch, 6, tokens, 64).requires_grad_() for _ in range(3))
    g = torch.randn_like(q)
    calls = {"softmax": (F.scaled_dot_product_attention, ""), "NaLa": (torch.compile(norm_aware, dynamic=False), " compiled")}

    def forward(call):
        with torch.no_grad():
            call(q, k, v)

    def both(call):
        torch.autograd.grad(call(q, k, v), (q, k, v), g)

    for call, _ in calls.values():
        forward(call)
        both(call)
    yield
    for name, (call, kind) in calls.items():
        for what, run in (("forward", forward), ("forward+backward", both)):
            note(f"attention {name} {6 * batch} x {tokens} x 64 {what}{kind}", milliseconds(lambda: run(call)), "ms")


def fastest_sdpa(batch, heads, head_size):
    """The back end of scaled_dot_product_attention that is fastest alone, and its name."""
    q, k, v = (randn(batch, heads, 256, head_size) for _ in range(3))
    times = {}
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
        with sdpa_kernel(getattr(SDPBackend, name)):
            try:
                times[name] = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v))
            except RuntimeError:
                pass  # not for this card or shape
    name = min(times, key=times.get)
    return getattr(SDPBackend, name), name.removesuffix("_ATTENTION").lower()


@torch.no_grad()
def forward(name, size, nala, batch, dtype):
    _, width, heads = SIZES[size]
    model = Backbone(size, nala).to(CUDA, BF16)
    if dtype == "fp8":
        in_fp8(model)
    x, t, y = randn(batch, 4, 32, 32), torch.rand(batch, device=CUDA), torch.zeros(batch, dtype=torch.long, device=CUDA)
    backend, attends = (SDPBackend.MATH, "") if nala else fastest_sdpa(batch, heads, width // heads)
    calls = {} if dtype == "fp8" else {"eager": model}
    with sdpa_kernel(backend):
        for mode in MODES:
            call = torch.compile(model, mode=mode, dynamic=False)
            call(x, t, y)
            calls["compiled " + mode] = call
        yield
        for kind, call in calls.items():
            rate = 1e3 * batch / milliseconds(lambda: call(x, t, y), 10)
            note(f"{row_name((forward, name, size, nala, batch, dtype))} {kind}{' ' + attends if attends else ''}", rate,
                 "images/s")


def train(name, nala, batch, tokens=256):
    """A step of flow matching: velocity, uniform times, label dropout."""
    model = Backbone("S", nala, tokens).to(CUDA)
    average = copy.deepcopy(model).requires_grad_(False)
    weights, averages = list(model.parameters()), list(average.parameters())
    optimiser = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0, fused=True)
    side = 2 * math.isqrt(tokens)
    images, classes = torch.randn(batch, 4, side, side, device=CUDA), torch.randint(0, 1000, (batch,), device=CUDA)
    compiled = torch.compile(model)

    def step(call):
        t = torch.rand(batch, device=CUDA)
        noise = torch.randn_like(images)
        x = torch.lerp(noise, images, t[:, None, None, None])
        labels = torch.where(torch.rand(batch, device=CUDA) < 0.1, 1000, classes)
        with torch.autocast(CUDA, BF16):
            out = call(x, t, labels)
        loss = (out[:, :4].float() - (images - noise)).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        torch._foreach_lerp_(averages, weights, 1e-4)

    step(compiled)
    yield
    for kind, call in (("eager", model), ("compiled", compiled)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        rate = 1e3 * batch / milliseconds(lambda: step(call), 10)
        what = f"train {name}-S/2 batch {batch}" + (f" x {tokens} tokens" if tokens != 256 else "")
        note(f"{what} {kind}", rate, "images/s")
        note(f"{what} memory {kind}", torch.cuda.max_memory_allocated() / 2**20, "MiB")


@torch.no_grad()
def decode():
    model = kl_decoder().to(CUDA, BF16).to(memory_format=torch.channels_last)
    x = randn(32, 4, 32, 32).to(memory_format=torch.channels_last)
    compiled = torch.compile(model)
    compiled(x)
    yield
    torch.backends.cudnn.benchmark = True  # only now: what it measures must not run beside others
    for kind, call in (("eager", model), ("compiled", compiled)):
        note(f"decode AutoencoderKL 256 px batch 32 {kind}", 32e3 / milliseconds(lambda: call(x), 8), "images/s")


@torch.no_grad()
def inception(precision):
    """The network of tests/make_inception_golden.py, batch norm folded, from pictures of 299 px to pool_3."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
    import make_inception_golden as golden
    weights = {}
    dtype = torch.half if precision == "fp16" else torch.float
    torch.backends.cudnn.allow_tf32 = precision == "tf32"

    def conv(x, name, out, kernel, stride=1, pad=(0, 0)):
        if name not in weights:
            kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
            reach = (6 / (x.shape[1] * kernel[0] * kernel[1])) ** 0.5
            weight = reach * (2 * torch.rand(out, x.shape[1], *kernel, device=CUDA, dtype=dtype) - 1)
            weights[name] = weight.to(memory_format=torch.channels_last), torch.zeros(out, device=CUDA, dtype=dtype)
        weight, bias = weights[name]
        return F.relu(F.conv2d(x, weight, bias, stride=stride, padding=pad))

    golden.conv = conv
    x = torch.randn(128, 3, 299, 299, device=CUDA, dtype=dtype).to(memory_format=torch.channels_last)
    golden.pool_3_of(x)
    compiled = torch.compile(golden.pool_3_of)
    compiled(x)
    yield
    torch.backends.cudnn.benchmark = True
    for kind, call in (("eager", golden.pool_3_of), ("compiled", compiled)):
        note(f"inception 299 px batch 128 {precision} {kind}", 128e3 / milliseconds(lambda: call(x), 8), "images/s")


# The slowest to compile first.
ROWS = [*((train, name, name != "SiT", 65536 // n, n) for n in (256, 1024, 4096) for name in ("NaLaSiT", "SiT")),
        *((forward, ("NaLa" if nala else "") + kind, size, nala, batch, dtype)
          for kind, size, batch in (("DiT", "XL", 64), ("SiT", "B", 128), ("SiT", "S", 256))
          for nala in (True, False) for dtype in ("bf16", "fp8")),
        (decode,), *((inception, p) for p in ("fp16", "tf32", "fp32")),
        *((attention, 65536 // n, n) for n in (256, 1024, 4096, 16384, 65536)), (limits,)]


def row_name(row):
    """As far as all its measurements share it: what --only looks at."""
    if row[0] is forward:
        _, name, size, _, batch, dtype = row
        return f"forward {name}-{size}/2 {batch} x 256 tokens{' fp8' if dtype == 'fp8' else ''}"
    return " ".join(str(part) for part in (row[0].__name__, *row[1:]))


def work(row, modes, pipe):
    MODES[:] = modes
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    measure = row[0](*row[1:])
    next(measure)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    pipe.send("ready")
    pipe.recv()
    next(measure, None)
    pipe.send(RESULTS)


def main():
    words = sys.argv[1:]
    options = {"--json": None, "--seconds": "600", "--only": "", "--modes": ",".join(MODES)}
    for option in options:
        if option in words:
            at = words.index(option)
            options[option] = words[at + 1]
            del words[at : at + 2]
    wait = "--wait" in words
    words = [word for word in words if word != "--wait"]
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each row
    deadline = time.monotonic() + float(options["--seconds"])
    spawn = multiprocessing.get_context("spawn")
    started = []
    for row in ROWS:
        only = options["--only"].split(",")
        if (not words or row[0].__name__ in words) and any(text in row_name(row) for text in only):
            here, there = spawn.Pipe()
            process = spawn.Process(target=work, args=(row, options["--modes"].split(","), there))
            process.start()
            there.close()
            started.append((row, process, here))

    def answer(row, process, pipe, seconds):
        """What the row says next; None, and its end, where that takes too long or it fails."""
        try:
            if pipe.poll(max(seconds, 0)):
                return pipe.recv()
        except EOFError:
            pass
        print("gave up", row[0].__name__, *row[1:], file=sys.stderr, flush=True)
        process.kill()
        return None

    ready = [each for each in started if answer(*each, deadline - time.monotonic())]
    if wait:
        print("# ready", flush=True)
        sys.stdin.readline()
    for each in ready:
        each[2].send("go")
        RESULTS.update(answer(*each, 60) or {})
        each[1].join(10)
    if options["--json"]:
        with open(options["--json"], "w") as file:
            json.dump(RESULTS, file, indent=1)


if __name__ == "__main__":
    main()
