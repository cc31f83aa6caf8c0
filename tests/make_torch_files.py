#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/torch/: checkpoints made by PyTorch itself, for the readers in weights/.

PyTorch, numpy and safetensors are needed to run this script and nothing else; its output is committed.
The files are made by torch.save of the versions named in tests/golden/torch/README; run again with a
later torch it writes what that one writes.

All weights are multiples of 1/256 below 1/2, so that float32, float16 and bfloat16 hold them exactly and
the tests compare with ==. The backbone has the names and shapes of the public DiT and SiT code (depth 2,
width 16, one head, patches of 2, 4 channels of 8 x 8, 10 classes).
"""
import argparse
import collections
import io
import json
import os
import pathlib
import shutil
import sys
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent / "golden" / "torch"
DEPTH, WIDTH, PATCH, CHANNELS, SIZE, CLASSES = 2, 16, 2, 4, 8, 10
generator = torch.Generator().manual_seed(0)


def weights(*shape):
    return torch.randint(-127, 128, shape, generator=generator).float() / 256


def position_table():
    def encode(position):
        omega = 1.0 / 10000 ** (np.arange(WIDTH // 4) / (WIDTH // 4))
        angles = position.reshape(-1)[:, None] * omega[None]
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    side = SIZE // PATCH
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    table = np.concatenate([encode(columns), encode(rows)], axis=1)
    return torch.from_numpy(table).float()[None]


def backbone():
    """A state dict in the order of the public code."""
    state = collections.OrderedDict()

    def linear(name, rows, columns):
        state[name + ".weight"] = weights(rows, columns)
        state[name + ".bias"] = weights(rows)

    state["pos_embed"] = position_table()
    state["x_embedder.proj.weight"] = weights(WIDTH, CHANNELS, PATCH, PATCH)
    state["x_embedder.proj.bias"] = weights(WIDTH)
    linear("t_embedder.mlp.0", WIDTH, 256)
    linear("t_embedder.mlp.2", WIDTH, WIDTH)
    state["y_embedder.embedding_table.weight"] = weights(CLASSES + 1, WIDTH)
    for i in range(DEPTH):
        block = f"blocks.{i}."
        linear(block + "attn.qkv", 3 * WIDTH, WIDTH)
        linear(block + "attn.proj", WIDTH, WIDTH)
        linear(block + "mlp.fc1", 4 * WIDTH, WIDTH)
        linear(block + "mlp.fc2", WIDTH, 4 * WIDTH)
        linear(block + "adaLN_modulation.1", 6 * WIDTH, WIDTH)
    linear("final_layer.linear", PATCH * PATCH * 2 * CHANNELS, WIDTH)
    linear("final_layer.adaLN_modulation.1", 2 * WIDTH, WIDTH)
    return state


def diffusers_backbone(state):
    """As scripts/convert_dit_to_diffusers.py of diffusers renames them."""
    out = {"pos_embed.proj.weight": state["x_embedder.proj.weight"],
           "pos_embed.proj.bias": state["x_embedder.proj.bias"]}

    def linear(to, name):
        for part in ("weight", "bias"):
            if f"{name}.{part}" in state:
                out[f"{to}.{part}"] = state[f"{name}.{part}"]

    for i in range(DEPTH):
        block, ours = f"transformer_blocks.{i}.", f"blocks.{i}."
        linear(block + "norm1.emb.timestep_embedder.linear_1", "t_embedder.mlp.0")
        linear(block + "norm1.emb.timestep_embedder.linear_2", "t_embedder.mlp.2")
        linear(block + "norm1.emb.class_embedder.embedding_table", "y_embedder.embedding_table")
        linear(block + "norm1.linear", ours + "adaLN_modulation.1")
        for part in ("weight", "bias"):
            for name, rows in zip("qkv", state[f"{ours}attn.qkv.{part}"].chunk(3, dim=0)):
                out[f"{block}attn1.to_{name}.{part}"] = rows.contiguous()
        linear(block + "attn1.to_out.0", ours + "attn.proj")
        linear(block + "ff.net.0.proj", ours + "mlp.fc1")
        linear(block + "ff.net.2", ours + "mlp.fc2")
    linear("proj_out_1", "final_layer.adaLN_modulation.1")
    linear("proj_out_2", "final_layer.linear")
    return out


DIFFUSERS_CONFIG = {
    "_class_name": "DiTTransformer2DModel", "_diffusers_version": "0.30.0",
    "activation_fn": "gelu-approximate", "attention_bias": True, "attention_head_dim": 8,
    "dropout": 0.0, "in_channels": CHANNELS, "norm_elementwise_affine": False, "norm_eps": 1e-05,
    "norm_num_groups": 32, "norm_type": "ada_norm_zero", "num_attention_heads": 2,
    "num_embeds_ada_norm": CLASSES, "num_layers": DEPTH, "out_channels": 2 * CHANNELS,
    "patch_size": PATCH, "sample_size": SIZE, "upcast_attention": False}


def write_diffusers_folder(state):
    folder = OUT / "diffusers"
    folder.mkdir()
    tensors = {name: t.half().contiguous() for name, t in diffusers_backbone(state).items()}
    names = list(tensors)
    # a cut through block 1: to_q in one file, to_k in the other
    cut = names.index("transformer_blocks.1.attn1.to_k.weight")
    files = ["diffusion_pytorch_model-00001-of-00002.safetensors",
             "diffusion_pytorch_model-00002-of-00002.safetensors"]
    weight_map = {}
    for file, part in zip(files, (names[:cut], names[cut:])):
        save_file({name: tensors[name].clone() for name in part}, folder / file,
                  metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(DIFFUSERS_CONFIG, indent=2) + "\n")


def training_checkpoint(state):
    """What the public train.py saves, with the arguments of SiT's. ema = the state, model = minus that."""
    model = collections.OrderedDict((k, (-v).bfloat16()) for k, v in state.items())
    parameters = [torch.nn.Parameter(v.clone()) for k, v in list(state.items())[:3]]
    parameters[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0)
    sum((p * p).sum() for p in parameters[1:]).backward()
    optimizer.step()
    args = argparse.Namespace(model="SiT-S/2", image_size=64, num_classes=CLASSES, epochs=1400,
                              path_type="GVP", prediction="noise", train_eps=0.001, sample_eps=None,
                              vae="ema", learning_rate=np.float64(1e-4), results_dir="results",
                              wandb=False)
    return {"model": model, "ema": state, "opt": optimizer.state_dict(), "args": args,
            "steps": 50000}


def tensors():
    """Every type, and every way in which a tensor may lie in its storage."""
    base = torch.arange(24, dtype=torch.float32) / 4 - 2
    grid = base.view(2, 3, 4)
    shared = torch.arange(40, dtype=torch.float32)
    return {
        "f32": base, "f64": base.double(), "f16": base.half(), "bf16": base.bfloat16(),
        "i8": (base * 4).to(torch.int8), "u8": torch.arange(5, dtype=torch.uint8) * 60,
        "i16": (base * 400).to(torch.int16), "i32": (base * 40000).to(torch.int32),
        "i64": (base * 4).to(torch.int64), "bool": base > 1,
        "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 7), "five": base.view(1, 2, 3, 2, 2),
        "transposed": base.view(4, 6).t(), "permuted": grid.permute(2, 0, 1),
        "columns": base.view(4, 6)[:, 1:4], "every_other": base[::2],
        "expanded": torch.tensor([1.5, -2.5]).view(2, 1).expand(2, 3),
        "channels_last": grid.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "shared_head": shared[:8], "shared_tail": shared[32:], "shared_overlap": shared[4:12],
        "half_shared": base.half()[3:9], "parameter": torch.nn.Parameter(base[:4].clone()),
        "buffer": torch.nn.parameter.Buffer(base[4:8].clone()),
    }


def as_float(tensor):
    return tensor.detach().float().contiguous().clone()


def autoencoder_names():
    """A small AutoencoderKL: (diffusers' name, before 0.18, CompVis' name, shape), 32 channels, one level
    of the decoder and encoder with a down- and an upsampling between two."""
    rows = []

    def add(new, compvis, shape, old=None, compvis_shape=None):
        rows.append((new, old or new, compvis, shape, compvis_shape or shape))

    def norm(new, compvis, channels, old=None):
        for part in ("weight", "bias"):
            add(f"{new}.{part}", f"{compvis}.{part}", (channels,), old and f"{old}.{part}")

    def conv(new, compvis, out, inn, size):
        add(new + ".weight", compvis + ".weight", (out, inn, size, size))
        add(new + ".bias", compvis + ".bias", (out,))

    def resnet(new, compvis, inn, out):
        norm(new + ".norm1", compvis + ".norm1", inn)
        conv(new + ".conv1", compvis + ".conv1", out, inn, 3)
        norm(new + ".norm2", compvis + ".norm2", out)
        conv(new + ".conv2", compvis + ".conv2", out, out, 3)
        if inn != out:
            conv(new + ".conv_shortcut", compvis + ".nin_shortcut", out, inn, 1)

    def middle(half, c):
        resnet(f"{half}.mid_block.resnets.0", f"{half}.mid.block_1", c, c)
        new, compvis = f"{half}.mid_block.attentions.0", f"{half}.mid.attn_1"
        norm(new + ".group_norm", compvis + ".norm", c)
        for to, old, short in (("to_q", "query", "q"), ("to_k", "key", "k"), ("to_v", "value", "v"),
                               ("to_out.0", "proj_attn", "proj_out")):
            add(f"{new}.{to}.weight", f"{compvis}.{short}.weight", (c, c),
                f"{new}.{old}.weight", (c, c, 1, 1))
            add(f"{new}.{to}.bias", f"{compvis}.{short}.bias", (c,), f"{new}.{old}.bias")
        resnet(f"{half}.mid_block.resnets.1", f"{half}.mid.block_2", c, c)

    low, high, latent = 32, 64, 4
    conv("encoder.conv_in", "encoder.conv_in", low, 3, 3)
    for level, (inn, out) in enumerate(((low, low), (low, high))):
        for j in range(2):
            resnet(f"encoder.down_blocks.{level}.resnets.{j}", f"encoder.down.{level}.block.{j}",
                   inn if j == 0 else out, out)
        if level == 0:
            conv("encoder.down_blocks.0.downsamplers.0.conv", "encoder.down.0.downsample.conv", low,
                 low, 3)
    middle("encoder", high)
    norm("encoder.conv_norm_out", "encoder.norm_out", high)
    conv("encoder.conv_out", "encoder.conv_out", 2 * latent, high, 3)
    conv("quant_conv", "quant_conv", 2 * latent, 2 * latent, 1)
    conv("post_quant_conv", "post_quant_conv", latent, latent, 1)
    conv("decoder.conv_in", "decoder.conv_in", high, latent, 3)
    middle("decoder", high)
    for level, (inn, out) in enumerate(((high, high), (high, low))):
        for j in range(3):
            resnet(f"decoder.up_blocks.{level}.resnets.{j}", f"decoder.up.{1 - level}.block.{j}",
                   inn if j == 0 else out, out)
        if level == 0:
            conv("decoder.up_blocks.0.upsamplers.0.conv", "decoder.up.1.upsample.conv", high, high, 3)
    norm("decoder.conv_norm_out", "decoder.norm_out", low)
    conv("decoder.conv_out", "decoder.conv_out", 3, low, 3)
    return rows


def autoencoders():
    """All tensors are views of one storage whose rows overlap: the files stay small and their shapes whole."""
    pool = (weights(3000) / 8).half()
    steps = (11, 7, 3, 1)
    new, old, compvis = {}, {}, {}
    for i, (name, old_name, compvis_name, shape, compvis_shape) in enumerate(autoencoder_names()):
        offset = i * 7  # the largest shape reaches 63 * 11 + 63 * 7 + 2 * 3 + 2 further
        view = pool.as_strided(shape, steps[:len(shape)], offset)
        new[name] = view
        old[old_name] = view
        compvis["first_stage_model." + compvis_name] = pool.as_strided(
            compvis_shape, steps[:len(compvis_shape)], offset)
    compvis["model_ema.decay"] = torch.tensor(0.999)
    compvis["loss.logvar"] = torch.zeros(())
    return new, old, {"epoch": 3, "global_step": 7, "state_dict": compvis}


class Evil:
    def __reduce__(self):
        return os.system, ("touch torch_pwned",)


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


def rezip(data, deflate):
    """The same archive written by Python's zipfile: compressed, or stored with zip64 headers throughout."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for info in source.infolist():
            fresh = zipfile.ZipInfo(info.filename, (2020, 1, 1, 0, 0, 0))
            fresh.compress_type = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
            with target.open(fresh, "w", force_zip64=not deflate) as file:
                file.write(source.read(info))
    return out.getvalue()


def main():
    if OUT.exists():
        shutil.rmtree(OUT)
    OUT.mkdir(parents=True)
    legacy = {"_use_new_zipfile_serialization": False}
    state = backbone()
    save_file({k: v.bfloat16() if k != "pos_embed" else v for k, v in state.items()},
              OUT / "dit.safetensors")
    torch.save(state, OUT / "dit.pt")
    torch.save(collections.OrderedDict((k, v.half()) for k, v in state.items()),
               OUT / "dit_legacy.pt", **legacy)
    torch.save({"module._orig_mod." + k: v.bfloat16() for k, v in state.items()},
               OUT / "sit_wrapped.pt")
    torch.save(training_checkpoint(state), OUT / "0050000.pt")
    write_diffusers_folder(state)

    torch.save(tensors(), OUT / "tensors.pt")
    torch.save(tensors(), OUT / "tensors_legacy.pt", **legacy)
    torch.save(tensors(), OUT / "tensors_protocol4.pt", pickle_protocol=4)
    save_file({name: as_float(t) for name, t in tensors().items()}, OUT / "tensors.safetensors")
    data = (OUT / "tensors.pt").read_bytes()
    (OUT / "tensors_deflated.pt").write_bytes(rezip(data, True))
    (OUT / "tensors_zip64.pt").write_bytes(rezip(data, False))

    new, old, compvis = autoencoders()
    torch.save(new, OUT / "vae_diffusers.bin")
    torch.save(old, OUT / "vae_diffusers_old.bin")
    torch.save(compvis, OUT / "vae_compvis.ckpt")

    torch.save({"a": torch.zeros(2), "z": torch.zeros(2, dtype=torch.complex64)}, OUT / "complex.pt")
    torch.save({"z": torch.zeros(4).to(torch.float8_e4m3fn)}, OUT / "float8.pt")
    torch.save({"z": torch.zeros(4).to(torch.uint16)}, OUT / "uint16.pt")
    torch.save({"z": torch.eye(3).to_sparse()}, OUT / "sparse.pt")
    torch.save({"w": torch.tensor([1.0, float("nan")])}, OUT / "nan.pt")
    torch.save([torch.zeros(2)], OUT / "list.pt")
    torch.save(Tiny(), OUT / "module.pt")
    torch.save({"w": torch.zeros(2), "x": Evil()}, OUT / "evil.pt")
    torch.save({"w": torch.zeros(2), "x": Evil()}, OUT / "evil_legacy.pt", **legacy)
    (OUT / "README").write_text(
        f"Written by tests/make_torch_files.py with torch {torch.__version__}.\n")
    for path in sorted(OUT.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:8d} {path.relative_to(OUT)}")
    print(sum(p.stat().st_size for p in OUT.rglob("*") if p.is_file()), "bytes")


if __name__ == "__main__":
    sys.exit(main())
