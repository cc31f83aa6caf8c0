# SPDX-License-Identifier: MIT
"""Makes weights/shipped/tae.safetensors, the tiny autoencoder that ships with nalagen.

The architecture and the latent space are TAESD's (MIT), the weights are our own: two students
start from random numbers and learn from what TAESD computes. The student encoder learns the
teacher's latents of a picture, the student decoder the teacher's picture of a latent; a part of
those latents is disturbed, because the latents that a sampler makes are not exact.

    python3 weights/shipped/distill_tae.py --pictures imagenette --teacher taesd --out out --minutes 6.4 --per-class 170

needs PyTorch (2.11 was used), NumPy, Pillow, safetensors and one CUDA GPU. The shipped weights took
19,656 steps in 6.4 minutes on an H100; pass more --minutes for a slower card. The schedule follows
the clock, so two runs agree closely, not bit for bit.
  --pictures  Imagenette at 224 px as in github.com/thunderInfy/imagenette: train/<class>/*.JPEG
              to learn from, val/<class>/*.JPEG held out. Of each class 170 and 20 are taken,
              evenly spaced in name order.
  --teacher   taesd_encoder.safetensors and taesd_decoder.safetensors from github.com/madebyollin/taesd
  --out       gets tae.safetensors, checkpoint.safetensors (once a minute) and tae.png
              (held-out pictures: original, TAESD's round trip, ours)

How it learns. The 3x3 convolutions from 64 to 64 channels, nearly all of the parameters, lie in one
stacked tensor and are trained with Muon (momentum, then the update's singular values are brought
near one); biases and the outermost convolutions use Adam. The learning rates follow half a cosine of
the elapsed time down to nothing, and the written weights are a running average. First each stage (a
block or a convolution) learns alone: it is fed what the teacher's stage gets and held to what the
teacher's stage gives. Then each half learns as a whole from its output: the decoder by L1 on the
picture and on its differences along both axes, near the end by root mean square error too, which is
what PSNR measures. Students compute in bfloat16 from float32 weights, the teacher in float16, and
every score printed is float32 arithmetic on the weights as they are stored (bfloat16). One step is
one CUDA graph.
"""
import argparse
import concurrent.futures
import glob
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file

SIDE = 224
STAGES = {
    "encoder": "conv:3:64 block down block block block down block block block"
               " down block block block conv:64:4".split(),
    "decoder": "clamp conv:4:64 relu block block block up conv:64:64 block block block"
               " up conv:64:64 block block block up conv:64:64 block conv:64:3".split(),
}
STACKED = (64, 64, 3, 3)


def tensor_shapes(half):
    """name -> shape of every tensor of one half, under TAESD's names."""
    shapes = {}
    for i, stage in enumerate(STAGES[half]):
        if stage == "block":
            for j in (0, 2, 4):
                shapes[f"{i}.conv.{j}.weight"] = STACKED
                shapes[f"{i}.conv.{j}.bias"] = (64,)
        elif stage == "down" or stage == "conv:64:64":
            shapes[f"{i}.weight"] = STACKED
        elif stage.startswith("conv"):
            _, c_in, c_out = stage.split(":")
            shapes[f"{i}.weight"] = (int(c_out), int(c_in), 3, 3)
            shapes[f"{i}.bias"] = (int(c_out),)
    return shapes


def residual_block(x, w0, b0, w1, b1, w2, b2):
    h = F.relu(F.conv2d(x, w0, b0, padding=1))
    h = F.relu(F.conv2d(h, w1, b1, padding=1))
    return F.relu(F.conv2d(h, w2, b2, padding=1) + x)


def run_stage(half, i, w, x, block):
    stage = STAGES[half][i]
    if stage == "block":
        return block(x, *(w[f"{i}.conv.{j}.{t}"] for j in (0, 2, 4) for t in ("weight", "bias")))
    if stage == "clamp":
        return (torch.tanh(x.float() / 3) * 3).to(x.dtype)
    if stage == "relu":
        return F.relu(x)
    if stage == "up":
        return F.interpolate(x, scale_factor=2, mode="nearest")
    stride = 2 if stage == "down" else 1
    return F.conv2d(x, w[f"{i}.weight"], w.get(f"{i}.bias"), padding=1, stride=stride)


def trace(half, w, x, block=residual_block):
    """What goes into each stage in turn, and last what comes out of the whole."""
    steps = [x]
    for i in range(len(STAGES[half])):
        steps.append(run_stage(half, i, w, steps[-1], block))
    return steps


def forward(half, w, x, block=residual_block):
    """encoder: x [B, 3, H, W] in [0, 1] -> [B, 4, H/8, W/8]; decoder: the other way round."""
    for i in range(len(STAGES[half])):
        x = run_stage(half, i, w, x, block)
    return x


def stage_losses(half, w, steps, block):
    """Each stage with weights by itself: fed what the teacher's gets, held to what the teacher's gives."""
    total = 0
    for i, stage in enumerate(STAGES[half]):
        if stage not in ("clamp", "relu", "up"):
            y, want = run_stage(half, i, w, steps[i].to(w[next(iter(w))].dtype), block), steps[i + 1]
            total = total + (y.float() - want.float()).abs().mean() / want.float().std()
    return total


class Student:
    """One half's float32 parameters as two tensors: stacked [N, 64, 64, 3, 3] and rest [M]."""

    def __init__(self, half, device):
        self.half, self.shapes = half, tensor_shapes(half)
        self.stack_names = [n for n, s in self.shapes.items() if s == STACKED]
        self.rest_names = [n for n in self.shapes if n not in self.stack_names]
        self.rest_sizes = [math.prod(self.shapes[n]) for n in self.rest_names]
        fan_in = {n.rsplit(".", 1)[0]: math.prod(s[1:]) for n, s in self.shapes.items() if len(s) == 4}

        def uniform(name):
            bound = fan_in[name.rsplit(".", 1)[0]] ** -0.5
            return (torch.rand(self.shapes[name]) * 2 - 1) * bound

        stack = torch.stack([uniform(n) for n in self.stack_names]).to(device)
        # Channels last: the order that convolutions in half precision want.
        self.stack = stack.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
        self.rest = torch.cat([uniform(n).flatten() for n in self.rest_names]).to(device)
        self.params = [self.stack.requires_grad_(), self.rest.requires_grad_()]
        self.average = [p.detach().clone() for p in self.params]
        self.momentum = torch.zeros_like(self.average[0])
        self.adam = [torch.zeros_like(self.average[1]), torch.zeros_like(self.average[1]),
                     torch.zeros((), device=device)]

    def weights(self, dtype, params=None):
        stack, rest = (p.to(dtype) for p in params or self.params)
        w = dict(zip(self.stack_names, stack.unbind(0)))
        for name, part in zip(self.rest_names, rest.split(self.rest_sizes)):
            w[name] = part.view(self.shapes[name])
        return w

    def update(self, grads, rates, ok):
        """grads, rates: of stacked, of rest (and the average's rate); ok False takes grads as zero."""
        muon_rate, adam_rate, average_rate = rates
        g, r = (torch.where(ok, x, 0) for x in grads)
        self.momentum.lerp_(g, 0.05)
        change = orthogonal(g.lerp(self.momentum, 0.95).flatten(2)).view_as(g)
        first, second, count = self.adam
        count.add_(1)
        first.lerp_(r, 0.1)
        second.lerp_(r * r, 0.01)
        size = (second / (1 - 0.99 ** count)).sqrt() + 1e-8
        self.stack.mul_(1 - 0.01 * muon_rate).sub_(change * muon_rate)
        self.rest.sub_(adam_rate * first / (1 - 0.9 ** count) / size)
        for a, p in zip(self.average, self.params):
            a.add_((p - a) * average_rate)


def orthogonal(m):
    """m [N, rows, columns] -> the same singular vectors, singular values near one (Newton-Schulz)."""
    x = m / (m.norm(dim=(1, 2), keepdim=True) + 1e-12)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.float()


def chosen(folder, per_class):
    paths = []
    for c in sorted(os.listdir(folder)):
        names = sorted(glob.glob(os.path.join(folder, c, "*.JPEG")))
        n = min(per_class, len(names))
        paths += [names[int((i + 0.5) * len(names) / n)] for i in range(n)]
    return paths


def load_pictures(paths, device):
    """[N, 3, SIDE, SIDE], bytes."""
    def read(path):
        with Image.open(path) as im:
            im = im.convert("RGB")
            if im.size != (SIDE, SIDE):
                im = ImageOps.fit(im, (SIDE, SIDE), Image.Resampling.BICUBIC)
            return np.array(im)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return torch.from_numpy(np.stack(list(pool.map(read, paths)))).to(device).permute(0, 3, 1, 2).contiguous()


def uniform(count, low, high, device):
    return torch.rand(count, device=device) * (high - low) + low


def sometimes(chance, values, otherwise):
    """Each of values [N] with this chance, else the number given."""
    return torch.where(torch.rand_like(values) < chance, values, otherwise)


def random_crops(pictures, count, size):
    """[count, 3, size, size] in [0, 1]: flipped, half of them scaled, half of them of other brightness."""
    dev = pictures.device
    im = pictures[torch.randint(len(pictures), (count,), device=dev)].float() / 255
    scale = sometimes(0.5, uniform(count, 0.6, min(1.3, SIDE / size), dev), 1.0)
    at = torch.arange(size, device=dev) + 0.5
    axes = []
    for flips in (0.5, 0.0):
        room = SIDE - size * scale
        start = torch.rand(count, device=dev) * (room + 0.999)
        start = torch.minimum(torch.where(scale == 1, start.floor(), start), room)
        flip = torch.rand(count, device=dev) < flips
        where = torch.where(flip[:, None], size - at, at)
        axes.append((start[:, None] + where * scale[:, None]) * (2 / SIDE) - 1)
    grid = torch.stack((axes[0][:, None, :].expand(-1, size, -1),
                        axes[1][:, :, None].expand(-1, -1, size)), dim=-1)
    x = F.grid_sample(im, grid, mode="bilinear", padding_mode="border", align_corners=False)
    gain = sometimes(0.5, uniform(count, 0.75, 1.25, dev), 1.0)
    lift = sometimes(0.5, uniform(count, -0.1, 0.1, dev), 0.0)
    return (x * gain[:, None, None, None] + lift[:, None, None, None]).clamp(0, 1)


def disturbed(z):
    """Two latents in five get other contrast and noise of a standard deviation up to 0.3."""
    n, dev = len(z), z.device
    pick = torch.rand(n, device=dev) < 0.4
    gain = torch.where(pick, uniform(n, 0.85, 1.2, dev), 1.0)[:, None, None, None]
    noise = torch.where(pick, uniform(n, 0.0, 0.3, dev), 0.0)[:, None, None, None]
    return z * gain + torch.randn_like(z) * noise


def rms(x):
    return (x.square().mean(dim=(1, 2, 3)) + 1e-10).sqrt().mean()


def picture_loss(a, b, late):
    """late goes from 0 to 1: from L1 with differences to root mean square error."""
    d = a - b
    edges = d.diff(dim=2).abs().mean() + d.diff(dim=3).abs().mean()
    return (1 - late) * (d.abs().mean() + edges) + late * (rms(d) + 0.25 * edges)


def psnr(a, b):
    """[B, 3, H, W] twice -> [B]."""
    return -10 * (a.clamp(0, 1) - b.clamp(0, 1)).square().mean(dim=(1, 2, 3)).log10()


@torch.no_grad()
def scores(teacher, student, pictures):
    """Mean PSNRs of a set of pictures, float32: a dict and the two round trips of the last batch."""
    rows = []
    for part in pictures.split(20):
        x = part.float() / 255
        z = forward("encoder", teacher["encoder"], x)
        noisy = z + 0.15 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(z)
        theirs = forward("decoder", teacher["decoder"], z)
        ours_z = forward("encoder", student["encoder"], x)
        ours = forward("decoder", student["decoder"], ours_z)
        rows.append(torch.stack((
            psnr(forward("decoder", student["decoder"], z), theirs),
            psnr(forward("decoder", student["decoder"], noisy),
                 forward("decoder", teacher["decoder"], noisy)),
            psnr(theirs, x), psnr(ours, x),
            (ours_z - z).square().mean(dim=(1, 2, 3)).sqrt())))
    mean = torch.cat(rows, dim=1).mean(dim=1).tolist()
    keys = ("decoder", "decoder_noisy", "round_trip_taesd", "round_trip", "latent_rms")
    return dict(zip(keys, mean)), theirs, ours


def stored(students):
    """The averaged weights as they are stored: bfloat16, both halves."""
    return {f"{h}.{n}": t.detach().to(torch.bfloat16).contiguous().cpu()
            for h, s in students.items() for n, t in s.weights(torch.float32, s.average).items()}


def halves(tensors, device, dtype=torch.float32):
    return {h: {n[len(h) + 1:]: t.to(device, dtype, memory_format=torch.channels_last)
                if t.dim() == 4 else t.to(device, dtype)
                for n, t in tensors.items() if n.startswith(h)} for h in STAGES}


def contact_sheet(path, columns):
    rows = [torch.cat([c[i] for c in columns], dim=2) for i in range(len(columns[0]))]
    sheet = (torch.cat(rows, dim=1).clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
    Image.fromarray(sheet.cpu().numpy()).save(path)


def main():
    p = argparse.ArgumentParser(description="Distils nalagen's tiny autoencoder from TAESD.")
    p.add_argument("--pictures", required=True)
    p.add_argument("--teacher", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--minutes", type=float, default=6.4, help="of training, compilation not counted")
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--crop", type=int, default=160)
    p.add_argument("--rate", type=float, default=0.01, help="Muon's highest learning rate")
    p.add_argument("--alone", type=float, default=0.6, help="part of the time stages learn alone")
    p.add_argument("--per-class", type=int, default=170, help="pictures of each class to learn from")
    p.add_argument("--adam-rate", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = p.parse_args()
    born = time.time()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    cuda = torch.cuda.is_available()
    dev = torch.device("cuda" if cuda else "cpu")
    if cuda:
        print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)

    train = load_pictures(chosen(os.path.join(args.pictures, "train"), args.per_class), dev)
    held = load_pictures(chosen(os.path.join(args.pictures, "val"), 20), dev)
    print(f"{len(train)} pictures to learn from, {len(held)} held out; {time.time() - born:.1f} s",
          flush=True)

    read = {f"{h}.{n}": t for h in STAGES for n, t in
            load_file(os.path.join(args.teacher, f"taesd_{h}.safetensors")).items()}
    teacher = halves(read, dev)
    fast_dtype, teacher_dtype = (torch.bfloat16, torch.float16) if cuda else (torch.float32,) * 2
    fast_teacher = halves(read, dev, teacher_dtype)
    students = {h: Student(h, dev) for h in STAGES}
    for h, s in students.items():
        assert s.shapes == {n: tuple(t.shape) for n, t in teacher[h].items()}, h
    block = residual_block if args.no_compile else torch.compile(residual_block, dynamic=False)
    if not args.no_compile:
        torch._dynamo.config.recompile_limit = 64

    rates = torch.zeros(3, device=dev)   # Muon's, Adam's, the running average's
    late = torch.zeros((), device=dev)
    seen = torch.zeros(3, device=dev)    # sums of decoder loss, encoder loss, skipped steps

    def step(by_stages):
        with torch.no_grad():
            x = random_crops(train, args.batch, args.crop)
            x = x.contiguous(memory_format=torch.channels_last)
            inward = trace("encoder", fast_teacher["encoder"], x.to(teacher_dtype), block)
            latent = inward[-1].float()
            z = disturbed(latent).to(fast_dtype)
            outward = trace("decoder", fast_teacher["decoder"], z.to(teacher_dtype), block)
            target = outward[-1].float()
        w = {h: s.weights(fast_dtype) for h, s in students.items()}
        if by_stages:
            loss_e = stage_losses("encoder", w["encoder"], inward, block)
            loss_d = stage_losses("decoder", w["decoder"], outward, block)
        else:
            d = forward("encoder", w["encoder"], x.to(fast_dtype), block).float() - latent
            loss_e = (1 - late) * d.abs().mean() + late * rms(d)
            loss_d = picture_loss(forward("decoder", w["decoder"], z, block).float(), target, late)
        grads = torch.autograd.grad(loss_d + loss_e, [t for s in students.values() for t in s.params])
        with torch.no_grad():
            finite = torch.stack([g.isfinite().all() for g in grads]).all()
            for i, s in enumerate(students.values()):
                s.update(grads[2 * i:2 * i + 2], rates.unbind(0), finite)
            seen.add_(torch.stack((loss_d, loss_e, 1 - finite.float())).nan_to_num(0, 0, 0))

    def graph_of(by_stages):
        if not cuda:
            return lambda: step(by_stages)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):   # rates are zero: compiles and picks algorithms, learns nothing
                step(by_stages)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(by_stages)
        return graph.replay

    stages_alone, whole = graph_of(True), graph_of(False)
    seen.zero_()
    print(f"ready after {time.time() - born:.1f} s", flush=True)

    start = said = time.time()
    n = said_n = 0
    while True:
        if n % 8 == 0:
            now = time.time()
            fraction = (now - start) / (60 * args.minutes)
            if fraction >= 1:
                break
            k = min(1, (n + 8) / 400) * (0.5 + 0.5 * math.cos(math.pi * fraction))
            rates.copy_(torch.tensor([args.rate * k, args.adam_rate * k, max(0.001, 9 / (10 + n))]))
            late.fill_(min(1, max(0, (fraction - 0.8) / 0.15)))
            if now - said > min(60, 20 * args.minutes):
                loss = (seen / (n - said_n)).tolist()
                tensors = stored(students)
                save_file(tensors, os.path.join(args.out, "checkpoint.safetensors"))
                s = scores(teacher, halves(tensors, dev), held[::5])[0]
                print(f"{now - start:4.0f} s, step {n}: loss {loss[0]:.4f} {loss[1]:.4f}, "
                      f"skipped {loss[2]:.3f}; " + ", ".join(f"{k} {v:.3f}" for k, v in s.items()),
                      flush=True)
                said, said_n = now, n
                seen.zero_()
        (stages_alone if fraction < args.alone else whole)()
        n += 1

    tensors = stored(students)
    ours = halves(tensors, dev)
    s = scores(teacher, ours, held)[0]
    about = {"autoencoder": "tiny", "latent_scale": 1, "latent_shift": 0,
             "distilled_from": "TAESD (MIT)", "trained_on": "Imagenette pictures (ImageNet terms)",
             "license": "MIT", "psnr_decoder_vs_taesd": round(s["decoder"], 2),
             "psnr_round_trip": round(s["round_trip"], 2),
             "psnr_round_trip_taesd": round(s["round_trip_taesd"], 2)}
    save_file(tensors, os.path.join(args.out, "tae.safetensors"),
              {"nalagen_autoencoder": json.dumps(about)})
    some = held[[len(held) * i // 12 for i in (1, 3, 5, 7, 9, 11)]]
    _, theirs, mine = scores(teacher, ours, some)
    contact_sheet(os.path.join(args.out, "tae.png"), (some.float() / 255, theirs, mine))
    print(f"{n} steps of {args.batch} crops in {args.minutes} minutes; on {len(held)} held-out pictures:")
    print(f"decoder against TAESD {s['decoder']:.2f} dB (latents with noise of 0.15: "
          f"{s['decoder_noisy']:.2f} dB); latents' RMS error {s['latent_rms']:.4f}")
    print(f"round trip TAESD {s['round_trip_taesd']:.2f} dB, ours {s['round_trip']:.2f} dB; "
          f"{time.time() - born:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
