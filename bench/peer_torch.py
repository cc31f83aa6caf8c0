# SPDX-License-Identifier: MIT
"""The same work in PyTorch on one GPU, for a comparison on your own card.

    python3 bench/peer_torch.py [limits] [attention] [forward] [train] [decode] [inception] [--only TEXT,TEXT]
                                [--modes MODE,MODE] [--json FILE] [--seconds 600] [--jobs N] [--device cpu] [--wait]

Without a word: everything. One line for each measurement, name, value and unit between tabs, as soon as it is measured: the
median of timed calls after warm-up, bf16, random weights and inputs, eager and torch.compile; the FID network in fp16,
TF32 and fp32; a training step with autocast to bf16, fused AdamW and an average of the weights, with the memory that it takes.

PyTorch at its best: first scaled_dot_product_attention is measured alone with cuDNN's, Flash and memory-efficient attention;
each row then has the back end that is fastest at its shape. Rows of forward and train are compiled in each of --modes (default,
max-autotune-no-cudagraphs, reduce-overhead), forward also in FP8 by torch._scaled_mm with factors of rows (compiled only), the first and last block in
bf16 as ours. --only takes the rows in whose name one of the texts is ("XL", "fp8", "DiT-XL/2 64 x 256 tokens fp8").
tests/gpu.sh runs this and our benchmarks in one go; the names are those of `nl_bench_operations attention`, `nl_bench_forward`,
`nl_bench_images` and tests/gpu.sh, with "eager" or "compiled" and the way behind them.

torch.compile works for a minute or more on the processor, so each row in each mode is a process (a job) and --jobs of them compile at the same
time, the most important first. Now and then all of them are stopped, what is ready is measured alone, and they go on. After
--seconds everything has ended; what was not reached is named on standard error, and so is what fails, with its reason; what finds no memory on the
card beside the others begins once more when these have ended. With --wait
nothing but attention is measured before --seconds or until as much is compiled as is there at a time ("# compiling" is said between the
two), then "# ready" is said and a line on standard input awaited; what is left of --seconds goes to the rest.
--device cpu: tiny sizes in fp32, to see that every row runs; its figures mean nothing.
"""
import copy
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16 = torch.bfloat16
DEVICE, DTYPE, TINY = "cuda", BF16, False
SIZES = {"S": (12, 384, 6), "B": (12, 768, 12), "XL": (28, 1152, 16)}  # depth, width, heads
MODES = ["blocks", "default", "max-autotune-no-cudagraphs", "reduce-overhead"]
BACK_ENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION, "default": None}
RESULTS = {}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def milliseconds(call, seconds=0.5):
    """As bench/measure.h: the device is awaited after several calls in a row, so that what a call costs the processor hides
    behind the work of the one before; the median of at least five such times."""
    def taken(calls):
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return 1e3 * (time.perf_counter() - begin) / calls

    once = min(taken(1) for _ in range(3))
    calls = 1 if once > 5 else 8
    end, times = time.monotonic() + seconds, []
    while len(times) < 5 or (len(times) < 15 and time.monotonic() < end):
        times.append(taken(calls))
        if TINY:
            break
    return statistics.median(times)


def note(name, value, unit):
    RESULTS[name] = {"value": round(value, 4), "unit": unit}
    print(f"{name:60}\t{value:12.4f}\t{unit}", flush=True)


def complain(what, error):
    """Of an exception the first line of what it says."""
    print("gave up", what, f"({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''})"[:300],
          file=sys.stderr, flush=True)


def randn(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE)


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
                             out_dtype=x.dtype, use_fast_accum=True)
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


# ---- Rows. Up to its `yield` each does what may run beside others (compiling), then it measures alone. best: the fastest back
# ends of attention by (pass, tokens, size of a head). mode: how to compile.


def limits(mode, best):
    yield
    size, count = (256, 1 << 20) if TINY else (8192, 1 << 30)
    a, b = randn(size, size), randn(size, size)
    note(f"bf16 product {size} x {size} x {size}", 2 * size**3 / milliseconds(lambda: a @ b) / 1e9, "TFLOP/s")
    x, y = torch.zeros(count, dtype=torch.uint8, device=DEVICE), torch.empty(count, dtype=torch.uint8, device=DEVICE)
    note("copy", 2 * x.numel() / milliseconds(lambda: y.copy_(x)) / 1e6, "GB/s")


def attend(back_end, q, k, v):
    if BACK_ENDS[back_end] is None:
        return F.scaled_dot_product_attention(q, k, v)
    with sdpa_kernel(BACK_ENDS[back_end]):
        return F.scaled_dot_product_attention(q, k, v)


def passes(call, batch, heads, tokens, size):
    """Of an attention: its forward pass, and with its gradient."""
    q, k, v = (randn(batch, heads, tokens, size).requires_grad_() for _ in range(3))
    g = torch.randn_like(q)

    def forward():
        with torch.no_grad():
            call(q, k, v)

    def both():
        torch.autograd.grad(call(q, k, v), (q, k, v), g)

    return {"forward": forward, "forward+backward": both}


def softmax(mode, best):
    """All back ends of scaled_dot_product_attention; fills best."""
    yield
    shapes = [(65536 // n, 6, n, 64) for n in (256, 1024, 4096, 16384, 65536)] + [(64, 16, 256, 72)]
    for batch, heads, tokens, size in [(2, 2, 64, 64)] if TINY else shapes:
        times = {}
        for kind in BACK_ENDS if DEVICE == "cuda" else ["default"]:
            try:
                for what, run in passes(lambda *qkv: attend(kind, *qkv), batch, heads, tokens, size).items():
                    ms = milliseconds(run, 0.2)
                    note(f"attention softmax {batch * heads} x {tokens} x {size} {what} eager {kind}", ms, "ms")
                    times.setdefault(what, {})[kind] = ms
            except RuntimeError as error:  # not for this card or shape
                complain(f"softmax {batch * heads} x {tokens} x {size} {kind}", error)
        for what, each in times.items():
            best[what, tokens, size] = min(each, key=each.get)


def attention(batch, tokens, mode, best):
    call = torch.compile(norm_aware, dynamic=False)
    runs = passes(call, batch, 6, tokens, 64)
    for run in runs.values():
        run()
    yield
    for what, run in runs.items():
        note(f"attention NaLa {6 * batch} x {tokens} x 64 {what} compiled", milliseconds(run), "ms")


def compiled(model, mode):
    """The whole model at once, or each block by itself, which is compiled once for all of them."""
    if mode == "blocks":
        for block in model.blocks:
            block.compile(dynamic=False)
        return model
    return torch.compile(model, mode=mode, dynamic=False)


def both_ways(model, mode, run, what, with_eager):
    """Calls by their names: eager where it is asked for, and compiled as far as it can be; `run` runs one of them."""
    calls = {"eager": copy.copy(model)} if with_eager else {}
    if with_eager and mode == "blocks":  # their blocks are compiled in place
        calls["eager"] = copy.deepcopy(model)
    try:
        call = compiled(model, mode)
        run(call)
        calls["compiled " + mode] = call
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        complain(f"{what} compiled {mode}", error)
    return calls


@torch.no_grad()
def forward(name, size, batch, tokens, dtype, mode, best):
    _, width, heads = SIZES[size]
    nala = name.startswith("NaLa")
    what = row_name((forward, name, size, batch, tokens, dtype))
    batch, tokens = (2, 64) if TINY else (batch, tokens)
    model = Backbone(size, nala, tokens).to(DEVICE, DTYPE)
    side = 2 * math.isqrt(tokens)
    if dtype == "fp8":
        in_fp8(model)
    x, t, y = randn(batch, 4, side, side), torch.rand(batch, device=DEVICE), torch.zeros(batch, dtype=torch.long, device=DEVICE)
    back_end = "default" if nala else best.get(("forward", tokens, width // heads), "default")
    with sdpa_kernel(BACK_ENDS[back_end] or list(filter(None, BACK_ENDS.values())) + [SDPBackend.MATH]):
        calls = both_ways(model, mode, lambda call: call(x, t, y), what, dtype != "fp8" and mode == FIRST_MODE)
        yield
        for kind, call in calls.items():
            rate = 1e3 * batch / milliseconds(lambda: call(x, t, y))
            note(f"{what} {kind}{'' if nala else ' ' + back_end}", rate, "images/s")


def train(name, size, batch, tokens, mode, best):
    """A step of flow matching: velocity, uniform times, label dropout."""
    _, width, heads = SIZES[size]
    nala = name.startswith("NaLa")
    what = row_name((train, name, size, batch, tokens))
    batch, tokens = (2, 64) if TINY else (batch, tokens)
    model = Backbone(size, nala, tokens).to(DEVICE)
    side = 2 * math.isqrt(tokens)
    images, classes = torch.randn(batch, 4, side, side, device=DEVICE), torch.randint(0, 1000, (batch,), device=DEVICE)
    back_end = "default" if nala else best.get(("forward+backward", tokens, width // heads), "default")
    states = {}

    def step(call):
        """With an optimiser and an average of its own for each model."""
        if id(call) not in states:
            states.clear()
            weights, averages = list(call.parameters()), list(copy.deepcopy(model).requires_grad_(False).parameters())
            states[id(call)] = weights, averages, torch.optim.AdamW(weights, lr=1e-4, weight_decay=0, fused=True)
        weights, averages, optimiser = states[id(call)]
        t = torch.rand(batch, device=DEVICE)
        noise = torch.randn_like(images)
        x = torch.lerp(noise, images, t[:, None, None, None])
        labels = torch.where(torch.rand(batch, device=DEVICE) < 0.1, 1000, classes)
        with torch.autocast(DEVICE, BF16):
            out = call(x, t, labels)
        loss = (out[:, :4].float() - (images - noise)).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        torch._foreach_lerp_(averages, weights, 1e-4)

    with sdpa_kernel(BACK_ENDS[back_end] or list(filter(None, BACK_ENDS.values())) + [SDPBackend.MATH]):
        calls = both_ways(model, mode, step, what, mode == FIRST_MODE)
        yield
        for kind in reversed(list(calls)):
            call = calls.pop(kind)
            kind += "" if nala else " " + back_end
            for each in calls.values():
                each.zero_grad(set_to_none=True)
            step(call)
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            note(f"{what} {kind}", 1e3 * batch / milliseconds(lambda: step(call)), "images/s")
            if DEVICE == "cuda" and mode != "reduce-overhead":  # whose graphs have memory that is not counted
                note(f"{what} memory {kind}", torch.cuda.max_memory_allocated() / 2**20, "MiB")


@torch.no_grad()
def decode(size, batch, mode, best):
    size = 64 if TINY else size
    model = kl_decoder().to(DEVICE, DTYPE).to(memory_format=torch.channels_last)
    x = randn(batch, 4, size // 8, size // 8).to(memory_format=torch.channels_last)
    what = f"decode AutoencoderKL {size} px batch {batch}"
    calls = {"eager": model}
    try:
        compiled = torch.compile(model, dynamic=False)
        compiled(x)
        calls["compiled"] = compiled
    except Exception as error:
        complain(what + " compiled", error)
    yield
    torch.backends.cudnn.benchmark = True  # only now: what it measures must not run beside others
    for kind, call in calls.items():
        note(f"{what} {kind}", 1e3 * batch / milliseconds(lambda: call(x)), "images/s")


@torch.no_grad()
def inception(precision, mode, best):
    """The network of tests/make_inception_golden.py, batch norm folded, from pictures of 299 px to pool_3."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
    import make_inception_golden as golden
    weights = {}
    batch = 2 if TINY else 128
    dtype = torch.half if precision == "fp16" else torch.float
    torch.backends.cudnn.allow_tf32 = precision == "tf32"

    def conv(x, name, out, kernel, stride=1, pad=(0, 0)):
        if name not in weights:
            kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
            reach = (6 / (x.shape[1] * kernel[0] * kernel[1])) ** 0.5
            weight = reach * (2 * torch.rand(out, x.shape[1], *kernel, device=DEVICE, dtype=dtype) - 1)
            weights[name] = weight.to(memory_format=torch.channels_last), torch.zeros(out, device=DEVICE, dtype=dtype)
        weight, bias = weights[name]
        return F.relu(F.conv2d(x, weight, bias, stride=stride, padding=pad))

    golden.conv = conv
    x = torch.randn(batch, 3, 299, 299, device=DEVICE, dtype=dtype).to(memory_format=torch.channels_last)
    golden.pool_3_of(x)
    compiled = torch.compile(golden.pool_3_of)
    compiled(x)
    yield
    torch.backends.cudnn.benchmark = True
    for kind, call in (("eager", golden.pool_3_of), ("compiled", compiled)):
        note(f"inception 299 px batch {batch} {precision} {kind}", 1e3 * batch / milliseconds(lambda: call(x)), "images/s")


# Name, size, batch.
SMALL = [("NaLaSiT", "S", 256), ("SiT", "S", 256), ("NaLaSiT", "B", 128), ("SiT", "B", 128)]
LARGE = [("NaLaDiT", "XL", 64), ("DiT", "XL", 64)]
LONG = (1024, 4096, 16384, 65536)  # tokens of a picture; 65,536 in a batch
# The most important first.
ROWS = [*((forward, *network, 256, "bf16") for network in SMALL + LARGE),
        *((forward, *network, 256, "fp8") for network in LARGE),
        *((train, name, "S", 256, 256) for name in ("NaLaSiT", "SiT")),
        *((attention, 65536 // n, n) for n in (256, *LONG)), (limits,),
        *((forward, *network, 256, "fp8") for network in SMALL),
        *((train, name, "S", 65536 // n, n) for n in LONG[:3] for name in ("NaLaSiT", "SiT")),
        *((forward, name, "S", 65536 // n, n, "bf16") for n in LONG for name in ("NaLaSiT", "SiT")),
        (train, "NaLaSiT", "XL", 64, 256),
        (decode, 256, 32), (decode, 256, 1), (decode, 2048, 1), *((inception, p) for p in ("fp16", "tf32", "fp32"))]
FIRST_MODE = None  # the one whose job measures eager, too


def row_name(row):
    """As far as all its measurements share it: what --only looks at."""
    if row[0] is forward:
        _, name, size, batch, tokens, dtype = row
        return f"forward {name}-{size}/2 {batch} x {tokens} tokens{' fp8' if dtype == 'fp8' else ''}"
    if row[0] is train:
        _, name, size, batch, tokens = row
        return f"train {name}-{size}/2 batch {batch}" + (f" x {tokens} tokens" if tokens != 256 else "")
    return " ".join(str(part) for part in (row[0].__name__, *row[1:]))


# ---- Jobs: a row in one mode, a process each. It says "ready" when it has compiled, and its results when it has measured.

MOST_JOBS = 32  # that are there at a time: each takes some gigabytes of the host's memory


def configure(device, tiny, first_mode):
    global DEVICE, DTYPE, TINY, FIRST_MODE
    DEVICE, DTYPE, TINY, FIRST_MODE = device, BF16 if device == "cuda" else torch.float, tiny, first_mode
    if tiny:
        SIZES.update(S=(3, 128, 2), B=(3, 128, 2), XL=(3, 144, 2))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def work(row, mode, settings, pipe):
    os.setpgid(0, 0)  # what compiles for it is stopped with it
    try:
        configure(*settings)
        best = pipe.recv()
        measure = row[0](*row[1:], mode, best)
        next(measure)
        synchronize()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        if "torch._inductor.async_compile" in sys.modules:  # its workers have memory
            sys.modules["torch._inductor.async_compile"].shutdown_compile_workers()
        pipe.send("ready")
        pipe.recv()
        next(measure, None)
        pipe.send((RESULTS, best))
    except torch.cuda.OutOfMemoryError:
        pipe.send((RESULTS, NO_MEMORY))
    except BaseException as error:
        complain(f"{row_name(row)} {mode or ''}", error)
        pipe.send((RESULTS, {}))


NO_MEMORY = "no memory"  # for a job, while others have it


class Job:
    started = []

    def __init__(self, row, mode, settings, is_again=False):
        self.is_again, self.again = is_again, Waiting(row, mode, settings, again=True)
        self.name = f"{row_name(row)} {mode or ''}"
        spawn = multiprocessing.get_context("spawn")
        self.pipe, there = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(row, mode, settings, there))
        self.process.start()
        there.close()
        Job.started.append(self)

    def answer(self, seconds):
        """What it says within so many seconds; None where it says nothing or has ended."""
        try:
            return self.pipe.recv() if self.pipe.poll(max(seconds, 0)) else None
        except (EOFError, OSError):
            return None

    def tell(self, what):
        try:
            self.pipe.send(what)
        except OSError:
            pass  # it has ended, as its answer will say

    def signal(self, number):
        for send in (os.killpg, os.kill):
            try:
                send(self.process.pid, number)
                return
            except (ProcessLookupError, PermissionError):
                pass

    def end(self, why=None):
        if why:
            print("gave up", self.name, f"({why})", file=sys.stderr, flush=True)
        self.signal(signal.SIGKILL)
        self.process.join(5)
        Job.started.remove(self)

    def finish(self, answer, why, later):
        """Ends it. Keeps what it has found, or says why there is nothing; what had no memory is to begin once more. Returns which back ends are best."""
        results, best = answer or ({}, {})
        RESULTS.update(results)
        if best != NO_MEMORY:
            self.end(None if answer else why)
            return best
        self.end("out of memory twice" if self.is_again else None)
        later += [] if self.is_again else [self.again]
        return {}

    def measure(self, seconds, later):
        """As finish does."""
        self.tell("go")
        return self.finish(self.answer(seconds), "measuring took too long", later)


def rounds(jobs, best, seconds, limit, wait):
    """Compiles as many as `limit` at a time and measures what is ready, in rounds, until `seconds` from the start have passed."""
    def rounds_from(begin):
        return [begin + part * (deadline - begin) for part in (0.5, 0.75, 0.9, 1)]

    deadline = time.monotonic() + seconds
    times = [deadline] if wait else rounds_from(time.monotonic())
    jobs, compiling, ready, later = list(jobs), [], [], []
    while True:
        while jobs and len(compiling) < limit and len(compiling) + len(ready) < MOST_JOBS:
            compiling.append(jobs.pop(0)())
            compiling[-1].tell(best)
        now = time.monotonic()
        if compiling and now < times[0]:
            heard = multiprocessing.connection.wait([job.pipe for job in compiling], times[0] - now)
            for job in [job for job in compiling if job.pipe in heard]:
                compiling.remove(job)
                answer = job.answer(0)
                if answer == "ready":
                    ready.append(job)
                else:  # it has said why
                    job.finish(answer, "it ended", later)
            continue
        for job in compiling:
            job.signal(signal.SIGSTOP)
        last = deadline
        if wait:
            print("# ready", flush=True)
            sys.stdin.readline()
            last = time.monotonic() + 60 * len(ready)
        for job in ready:
            left = last - time.monotonic()
            if left > 0:
                job.measure(min(60, left), later)
            else:
                job.end("no time left to measure")
        jobs += later  # there is memory again
        ready, later = [], []
        if wait:
            times, wait = rounds_from(time.monotonic()), False
        times = [at for at in times if time.monotonic() < at <= deadline]
        if not times or not (compiling or jobs):
            break
        for job in compiling:
            job.signal(signal.SIGCONT)
    for job in compiling:
        job.end("not compiled in time")
    for make in jobs:
        print("gave up", make.name, "(not begun in time)", file=sys.stderr, flush=True)


class Waiting:
    """A job that is not begun."""

    def __init__(self, row, mode, settings, again=False):
        self.name, self.begin = f"{row_name(row)} {mode or ''}", lambda: Job(row, mode, settings, again)

    def __call__(self):
        return self.begin()


def main():
    words = sys.argv[1:]
    options = {"--json": None, "--seconds": os.environ.get("PEER_SECONDS", "600"), "--only": "", "--modes": ",".join(MODES),
               "--jobs": str(max(2, (os.cpu_count() or 2) // 2)), "--device": "cuda"}
    for option in options:
        if option in words:
            at = words.index(option)
            options[option] = words[at + 1]
            del words[at : at + 2]
    wait, tiny = "--wait" in words, "--tiny" in words
    words = [word for word in words if word not in ("--wait", "--tiny")]
    end = time.monotonic() + float(options["--seconds"])
    device, modes = options["--device"], options["--modes"].split(",")
    print(f"# {torch.cuda.get_device_name() if device == 'cuda' else device}, PyTorch {torch.__version__}", flush=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # of each job
    settings = (device, tiny, modes[0])

    def wanted(row):
        return (not words or row[0].__name__ in words) and any(text in row_name(row) for text in options["--only"].split(","))

    jobs = [Waiting(row, mode if row[0] in (forward, train) else None, settings) for mode in modes for row in ROWS
            if wanted(row) and (mode == modes[0] or row[0] in (forward, train))]
    best = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        if not words or {"attention", "forward", "train"} & set(words):
            job = Job((softmax,), None, settings)
            job.tell(best)
            if job.answer(end - time.monotonic()) == "ready":
                best = job.measure(min(60, end - time.monotonic()), [])
            else:
                job.end()
        print("# compiling", flush=True)
        rounds(jobs, best, end - time.monotonic(), int(options["--jobs"]), wait)
    finally:
        for job in list(Job.started):  # a stopped one would be awaited for ever
            job.end("interrupted")
        if options["--json"]:
            with open(options["--json"], "w") as file:
                json.dump(RESULTS, file, indent=1)


if __name__ == "__main__":
    main()
