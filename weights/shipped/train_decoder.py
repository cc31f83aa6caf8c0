# SPDX-License-Identifier: MIT
"""Trains the decoder of a tiny autoencoder further, so that its pictures look like photographs and
not like their averages. The encoder stays as it is, and with it the latents: every model that was
trained on them profits, none is trained anew.

    python3 weights/shipped/train_decoder.py --pictures imagenette imagewoof \\
        --autoencoder weights/shipped/tae.safetensors --inception inception.safetensors --out out --minutes 4.5

needs PyTorch (2.11 was used), NumPy, Pillow, safetensors and one CUDA GPU.
  --pictures     folders that hold train/<class>/* to learn from and val/<class>/* held out
  --autoencoder  the weights to start from (distill_tae.py makes them)
  --inception    the FID network as nalagen reads it (docs/evaluation.md); its first layers alone are learnt from
  --out          gets tae.safetensors, scores.json and tae.png (held-out pictures: original, before, after)

Distillation by absolute differences gives the mean of what a latent may stand for: fine detail is smeared, and a
classifier's features see that at once. A decoded picture is asked here for small absolute differences

- of pixels and, --edges, of their differences along both axes, to stay near the picture;
- --features: of features of the FID network's first layers (to mixed_2, 35 x 35), to have its shapes;
- --amounts: of how much of each of those features there is in a patch of 4 x 4, wherever it stands, and --energy: of how
  much fine detail there is in a patch of 8 x 8 pixels. A latent does not say where a blade of grass stands, so a mean has
  none; that there is grass it does say, so the amount can be right.

The last is what made the difference (bench/results/pictures.md). A judge of patches, as Stable Diffusion's decoder had,
did harm in runs this short and is gone.

A part of the latents is disturbed, because those of a sampler are not exact. Learning rates follow half a
cosine of the elapsed time; what is written is a running average, stored as bfloat16, and every score is that
of the stored weights. FID-768 is printed for what the program is asked about most: decoded held-out pictures
against the held-out pictures themselves, before and after.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import distill_tae as tae

SIDE = 256


class Inception:
    """The FID network (TensorFlow's of 2015-12-05, batch norm folded into [O, I, H, W]), up to mixed_7."""

    def __init__(self, path, device, dtype):
        self.w = {n: t.to(device, dtype, memory_format=torch.channels_last) if t.dim() == 4 else t.to(device, dtype)
                  for n, t in load_file(path).items()}

    def conv(self, x, name, stride=1, pad=0):
        return F.relu(F.conv2d(x, self.w[name + ".weight"], self.w[name + ".bias"], stride=stride, padding=pad))

    def tower(self, x, name, pads, stride=1):
        """A chain of convolutions, NAME/conv, NAME/conv_1, ...; the last one has the stride."""
        for i, pad in enumerate(pads):
            x = self.conv(x, f"{name}/conv" + (f"_{i}" if i else ""), stride if i == len(pads) - 1 else 1, pad)
        return x

    def mixed(self, x, name, towers):
        pooled = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        parts = [self.conv(x, name + "/conv")] + [self.tower(x, f"{name}/{t}", pads) for t, pads in towers]
        return torch.cat(parts + [self.conv(pooled, name + "/tower_2/conv")], 1)

    def early(self, x):
        """x [B, 3, H, W] in [0, 1] -> features after conv_2, conv_4 and mixed_2, at the scale that FID sees."""
        size = [round(s * 299 / SIDE) for s in x.shape[2:]]
        x = F.interpolate(x, size, mode="bilinear", align_corners=False) * 2 - 1
        first = self.conv(self.conv(self.conv(x, "conv", 2), "conv_1"), "conv_2", 1, 1)
        second = self.conv(self.conv(F.max_pool2d(first, 3, 2), "conv_3"), "conv_4")
        third = F.max_pool2d(second, 3, 2)
        for name in ("mixed", "mixed_1", "mixed_2"):
            third = self.mixed(third, name, (("tower", (0, 2)), ("tower_1", (0, 1, 1))))
        return first, second, third

    def pooled(self, x):
        """x [B, 3, H, W] in [0, 1] -> [B, 768], what FID-768 is computed from."""
        x = self.early(x)[2]
        x = torch.cat([self.conv(x, "mixed_3/conv", 2), self.tower(x, "mixed_3/tower", (0, 1, 0), 2),
                       F.max_pool2d(x, 3, 2)], 1)
        row, column = (0, 3), (3, 0)
        for name in ("mixed_4", "mixed_5", "mixed_6", "mixed_7"):
            x = self.mixed(x, name, (("tower", (0, row, column)), ("tower_1", (0, column, row, column, row))))
        return x.float().mean((2, 3))


def strength(x, side):
    """[B, C, H, W] -> [B, C, H/side, W/side]: root mean squares of patches."""
    return (F.avg_pool2d(x.square(), side) + 1e-6).sqrt()


def detail(x):
    """[B, 3, H, W] -> [B, 3, H/8, W/8]: how much fine detail a patch of 8 x 8 pixels has, whatever it is."""
    return strength(x - F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), 8)


def amounts(features):
    """Of feature maps [B, C, h, w]: means and root mean squares of patches of 4 x 4: how much there is, wherever it stands."""
    for f in features:
        yield F.avg_pool2d(f.float(), 4)
        yield strength(f.float(), 4)


def difference(found, wanted):
    """Of maps that are nowhere negative, in parts of what is wanted; the mean over the pairs."""
    each = [(a.float() - b.float()).abs().mean() / b.float().mean() for a, b in zip(found, wanted)]
    return sum(each) / len(each)


def frechet(a, b):
    """FID of two sets of features [N, D]."""
    a, b = a.double(), b.double()
    ca, cb = torch.cov(a.T), torch.cov(b.T)
    cross = torch.linalg.eigvals(ca @ cb).real.clamp(min=0).sqrt().sum()
    return ((a.mean(0) - b.mean(0)).square().sum() + ca.trace() + cb.trace() - 2 * cross).item()


def main():
    p = argparse.ArgumentParser(description="Trains the decoder of nalagen's tiny autoencoder further.")
    p.add_argument("--pictures", required=True, nargs="+")
    p.add_argument("--autoencoder", required=True)
    p.add_argument("--inception", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--minutes", type=float, default=4.5, help="of training")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--crop", type=int, default=160)
    p.add_argument("--rate", type=float, default=3e-4, help="the decoder's highest learning rate")
    p.add_argument("--features", type=float, default=1.0, help="weight of the features' differences")
    p.add_argument("--edges", type=float, default=0.5, help="weight of the differences along both axes")
    p.add_argument("--energy", type=float, default=0.3, help="weight of the fine detail's amount, patch by patch")
    p.add_argument("--amounts", type=float, default=5.0, help="weight of the features' amounts, patch by patch")
    p.add_argument("--per-class", type=int, default=1000000, help="pictures of each class")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    cuda = torch.cuda.is_available()
    dev, fast = (torch.device("cuda"), torch.bfloat16) if cuda else (torch.device("cpu"), torch.float32)
    tae.SIDE = SIDE

    born = time.time()

    def load(part):
        return torch.cat([tae.load_pictures(tae.chosen(os.path.join(f, part), args.per_class), dev) for f in args.pictures])

    train, held = load("train"), load("val")
    print(f"{len(train)} pictures to learn from, {len(held)} held out; {time.time() - born:.1f} s", flush=True)

    read = load_file(args.autoencoder)
    with safe_open(args.autoencoder, "pt") as f:
        about = json.loads((f.metadata() or {}).get("nalagen_autoencoder", "{}"))
    before = tae.halves(read, dev)
    encoder = tae.halves(read, dev, fast)["encoder"]
    decoder = {n: t.clone().requires_grad_() for n, t in before["decoder"].items()}
    average = {n: t.detach().clone() for n, t in decoder.items()}
    inception = Inception(args.inception, dev, fast)
    learner = torch.optim.Adam(decoder.values(), lr=args.rate, betas=(0.9, 0.99))

    def decode(w, z):
        return tae.forward("decoder", w, z).float()

    def stored():
        return {n: t.to(torch.bfloat16) for n, t in average.items()}

    @torch.no_grad()
    def features(pictures, w=None):
        """Of pictures as they are, or decoded with weights w and rounded to bytes; and the PSNR of those."""
        rows, noise, amount = [], [], []
        for part in pictures.split(100):
            x = part.float() / 255
            if w is not None:
                z = tae.forward("encoder", before["encoder"], x.contiguous(memory_format=torch.channels_last))
                y = (decode(w, z).clamp(0, 1) * 255).round() / 255
                noise.append(tae.psnr(y, x))
                amount.append(detail(y).mean() / detail(x).mean())
                x = y
            rows.append(inception.pooled(x.to(fast)))
        if amount:
            print(f"fine detail: {torch.stack(amount).mean().item():.4f} of the photographs'", flush=True)
        return torch.cat(rows), torch.cat(noise).mean().item() if noise else math.inf

    photographs = features(held)[0]
    learnt_from = features(train)[0]
    old, old_psnr = features(held, before["decoder"])
    old_train = features(train[:: max(1, len(train) // 10000)], before["decoder"])[0]
    scores = {"held_out_photographs_to_train": frechet(photographs, learnt_from),
              "before": {"held_out_to_itself": frechet(old, photographs), "held_out_to_train": frechet(old, learnt_from),
                         "train_to_train": frechet(old_train, learnt_from), "train_to_held_out": frechet(old_train, photographs),
                         "psnr": old_psnr}}
    print(json.dumps(scores), flush=True)

    autocast = torch.autocast(dev.type, torch.bfloat16, enabled=cuda)
    start = said = time.time()
    sums, steps, said_steps = torch.zeros(5, device=dev), 0, 0
    while True:
        now = time.time()
        fraction = (now - start) / (60 * args.minutes)
        if fraction >= 1:
            break
        rate = args.rate * min(1, (steps + 1) / 200) * (0.5 + 0.5 * math.cos(math.pi * fraction))
        for group in learner.param_groups:
            group["lr"] = rate
        with torch.no_grad():
            x = crops(train, args.batch, args.crop).contiguous(memory_format=torch.channels_last)
            z = tae.forward("encoder", encoder, x.to(fast)).float()
            z = z + torch.randn_like(z) * tae.uniform(len(z), 0, 0.1, dev)[:, None, None, None] * \
                (torch.rand(len(z), device=dev) < 0.3)[:, None, None, None]
            wanted = inception.early(x.to(fast))
        with autocast:
            y = tae.forward("decoder", decoder, z)
        y = y.float()
        wrong = y - x
        near = wrong.abs().mean()
        edges = wrong.diff(dim=2).abs().mean() + wrong.diff(dim=3).abs().mean()
        energy = difference([detail(y)], [detail(x)])
        found = inception.early(y.to(fast))
        texture = difference(found, wanted)
        amount = difference(amounts(found), amounts(wanted))
        loss = near + args.features * texture + args.edges * edges + args.energy * energy + args.amounts * amount
        learner.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(decoder.values()), 1.0)
        learner.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.values()), list(decoder.values()), max(0.001, 9 / (10 + steps)))
            sums += torch.stack((near, texture, edges, energy, amount)).detach()
        steps += 1
        if now - said > min(60, 12 * args.minutes):
            w = {n: t.float() for n, t in stored().items()}
            new, psnr = features(held, w)
            means = ", ".join(f"{v:.4f}" for v in (sums / (steps - said_steps)).tolist())
            print(f"{now - start:4.0f} s, step {steps}: pixels, features, edges, energy, amounts {means}; "
                  f"held out to itself {frechet(new, photographs):.4f}, {psnr:.2f} dB", flush=True)
            said, said_steps = time.time(), steps
            sums.zero_()

    w = {n: t.float() for n, t in stored().items()}
    new, psnr = features(held, w)
    new_train = features(train[:: max(1, len(train) // 10000)], w)[0]
    scores["after"] = {"held_out_to_itself": frechet(new, photographs), "held_out_to_train": frechet(new, learnt_from),
                       "train_to_train": frechet(new_train, learnt_from), "train_to_held_out": frechet(new_train, photographs),
                       "psnr": psnr}
    scores["steps"], scores["minutes"] = steps, args.minutes
    print(json.dumps(scores), flush=True)
    with open(os.path.join(args.out, "scores.json"), "w") as f:
        json.dump(scores, f, indent=1)
    about.update(psnr_round_trip=round(psnr, 2), trained_on="Imagenette and Imagewoof pictures (ImageNet terms)",
                 decoder="trained further on features of the FID network's first layers and on their amounts")
    about.pop("psnr_decoder_vs_taesd", None)
    out = {n: t.to(torch.bfloat16).contiguous() for n, t in read.items() if n.startswith("encoder.")}
    out.update({"decoder." + n: t.contiguous().cpu() for n, t in stored().items()})
    save_file(out, os.path.join(args.out, "tae.safetensors"), {"nalagen_autoencoder": json.dumps(about)})
    some = held[[len(held) * i // 16 for i in range(1, 16, 2)]].float() / 255
    with torch.no_grad():
        z = tae.forward("encoder", before["encoder"], some)
        tae.contact_sheet(os.path.join(args.out, "tae.png"), (some, decode(before["decoder"], z), decode(w, z)))


def crops(pictures, count, size):
    """[count, 3, size, size] in [0, 1]: windows of the pictures at their own scale, mirrored at random."""
    pick = torch.randint(len(pictures), (count,)).tolist()
    at = torch.randint(SIDE - size + 1, (count, 2)).tolist()
    x = torch.stack([pictures[i, :, r:r + size, c:c + size] for i, (r, c) in zip(pick, at)])
    return torch.where((torch.rand(count, device=x.device) < 0.5)[:, None, None, None], x.flip(3), x).float() / 255


if __name__ == "__main__":
    main()
