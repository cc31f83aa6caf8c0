#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# Seeds for the fuzz targets whose inputs are texts, EXIF, WebP and archives: tests/fuzz/make_corpus.py [FOLDER]. Needs libwebp for WebP.
import ctypes
import ctypes.util
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import zipfile
import zlib

folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), 'corpus')


def write(target, name, data):
    os.makedirs(os.path.join(folder, target), exist_ok=True)
    with open(os.path.join(folder, target, name), 'wb') as file:
        file.write(data if isinstance(data, bytes) else json.dumps(data).encode())


def edm():
    names = ['00000/img00000000.png', '00000/img00000001.png', 'a.png', 'b.png']
    write('edm', 'labels', {'labels': [[name, i % 3] for i, name in enumerate(names)]})
    write('edm', 'one_missing', {'labels': [[name, 0] for name in names[1:]]})
    write('edm', 'twice', {'labels': [[name, 1] for name in names + names]})
    write('edm', 'none', {'labels': None})
    write('edm', 'numbers', {'labels': [['a.png', 1e308], ['b.png', -1], ['a.png', 0.5], [7, 'x'], [], {'a.png': 1}]})
    write('edm', 'encoded', {'format': 'nalagen data'})
    write('edm', 'elsewhere', {'labels': [['../dataset.json', 0]]})


def scheduler():
    config = {'_class_name': 'DiTTransformer2DModel', 'num_embeds_ada_norm': 3, 'sample_size': 32, 'patch_size': 2,
              'num_layers': 12, 'num_attention_heads': 6, 'attention_head_dim': 64, 'in_channels': 4, 'out_channels': 8}
    ddim = {'_class_name': 'DDIMScheduler', 'beta_schedule': 'linear', 'beta_start': 1e-4, 'beta_end': 0.02,
            'num_train_timesteps': 1000, 'prediction_type': 'epsilon', 'clip_sample': False, 'set_alpha_to_one': True,
            'steps_offset': 0, 'timestep_spacing': 'leading', 'trained_betas': None, 'thresholding': False,
            'rescale_betas_zero_snr': False, 'clip_sample_range': 1.0, 'variance_type': 'learned_range'}
    index = {'_class_name': 'DiTPipeline', 'id2label': {'0': 'tench, Tinca tinca', '1': 'goldfish', '2': 'shark'}}

    def texts(*parts):
        return b'\xff'.join(json.dumps(part).encode() if part else b'' for part in parts)

    write('scheduler', 'all', texts(config, ddim, index))
    write('scheduler', 'v_prediction', texts(None, dict(ddim, prediction_type='v_prediction', beta_schedule='scaled_linear',
                                                        timestep_spacing='trailing'), None))
    write('scheduler', 'solver', texts(None, dict(ddim, _class_name='DPMSolverMultistepScheduler'), index))
    write('scheduler', 'cosine', texts(None, {'_class_name': 'DDPMScheduler', 'beta_schedule': 'squaredcos_cap_v2',
                                              'variance_type': 'fixed_small_log'}, None))
    write('scheduler', 'flow', texts(None, {'_class_name': 'FlowMatchEulerDiscreteScheduler'}, None))
    write('scheduler', 'betas', texts(None, dict(ddim, trained_betas=[0.1, 0.2]), None))
    write('scheduler', 'names_twice', texts(None, None, {'id2label': {'0': 'a', '00': 'b', '1': 'c'}}))
    write('scheduler', 'names_many', texts(None, None, {'id2label': {str(i): 'x' for i in range(9)}}))


def reference():
    n = 64  # of the smallest feature
    mean = npy('<f8', (n,), struct.pack('<%dd' % n, *(i / n for i in range(n))))
    ones = npy('<f8', (n, n), struct.pack('<%dd' % (n * n), *(float(i % (n + 1) == 0) for i in range(n * n))))
    twisted = npy('<f8', (n, n), struct.pack('<%dd' % (n * n), *(float(i % n == 1) for i in range(n * n))))
    count = npy('<i8', (), struct.pack('<q', 100))
    pictures = npy('|u1', (2, 2, 3, 3), bytes(range(36)))

    def archive(name, **arrays):
        file = io.BytesIO()
        with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as out:
            for member, data in arrays.items():
                out.writestr(zipfile.ZipInfo(member + '.npy'), data, zipfile.ZIP_DEFLATED)
        write('reference', name, b'\0' + file.getvalue())

    archive('own', mu_64=mean, sigma_64=ones, count=count, arr_0=pictures)
    archive('any_size', mu=mean, sigma=ones)
    archive('no_covariance', mu_64=mean, sigma_64=twisted, count=count)
    archive('no_sigma', mu_64=mean, count=count)
    archive('count_of_floats', mu_64=mean, sigma_64=ones, count=mean)
    archive('pictures', arr_0=pictures, count=count)
    some = 0b100111  # made by the target: mu_64, sigma_64, count
    for name, which in ('built', some), ('built_any_size', 0b11001), ('built_pictures', some | 64), ('built_no_sigma', 0b100011):
        write('reference', name, bytes([which, 0, 0]) + struct.pack('<q', 100))
    write('reference', 'built_floats', bytes([some, 1, 0]) + struct.pack('<f', 4.0))
    write('reference', 'built_larger', bytes([some, 0, 1]) + struct.pack('<q', 100))
    write('reference', 'built_nan', bytes([some, 0, 0]) + struct.pack('<qd', 100, float('nan')))


def digests():
    write('digests', 'digits', b'0123456789abcdef' * 4)
    write('digests', 'short', b'0123456789abcdef' * 3)
    write('digests', 'long', b'fedcba9876543210' * 4 + b'\n')
    write('digests', 'other', b'0123456789ABCDEF' * 4)
    write('digests', 'folder', b'\xff')


def tiff(order, tags):
    two, four = order + 'H', order + 'I'
    data = (b'II*\0' if order == '<' else b'MM\0*') + struct.pack(four, 8) + struct.pack(two, len(tags))
    for tag, kind, value in tags:
        data += struct.pack(order + 'HHIHH', tag, kind, 1, value, 0)
    return data + struct.pack(four, 0)


def exif():
    for value in range(10):
        write('exif', 'little_%d' % value, tiff('<', [(0x0112, 3, value)]))
    write('exif', 'big', tiff('>', [(0x010f, 2, 7), (0x0112, 3, 6)]))
    write('exif', 'long', tiff('<', [(0x0112, 4, 6)]))
    write('exif', 'beyond', b'MM\0*' + struct.pack('>I', 0xffffffff) + b'\0' * 8)
    write('exif', 'cut', tiff('<', [(0x0112, 3, 6)])[:20])


def webp():
    library = ctypes.util.find_library('webp')
    if not library:
        sys.exit('no libwebp: the seeds of WebP stay as they are')
    encoder = ctypes.CDLL(library)
    height, width = 5, 7
    pixels = bytes((37 * i * i + 11 * i) % 256 for i in range(height * width * 4))
    out = ctypes.POINTER(ctypes.c_uint8)()

    def encode(name, channels, *quality):
        size = getattr(encoder, name)(pixels, width, height, width * channels, *quality, ctypes.byref(out))
        data = ctypes.string_at(out, size)
        encoder.WebPFree(out)
        return data

    for name in 'WebPEncodeRGB', 'WebPEncodeRGBA', 'WebPEncodeLosslessRGB', 'WebPEncodeLosslessRGBA':
        getattr(encoder, name).restype = ctypes.c_size_t
    encoder.WebPFree.argtypes = [ctypes.POINTER(ctypes.c_uint8)]
    lossy = encode('WebPEncodeRGB', 3, ctypes.c_float(50))
    write('webp', 'lossy', lossy)
    write('webp', 'alpha', encode('WebPEncodeRGBA', 4, ctypes.c_float(50)))
    write('webp', 'lossless', encode('WebPEncodeLosslessRGB', 3))
    write('webp', 'lossless_alpha', encode('WebPEncodeLosslessRGBA', 4))
    write('webp', 'cut', lossy[:40])

    def chunk(name, data):
        return name + struct.pack('<I', len(data)) + data + b'\0' * (len(data) % 2)

    def extended(flags, *chunks):
        size = struct.pack('<I', width - 1)[:3] + struct.pack('<I', height - 1)[:3]
        body = b'WEBP' + chunk(b'VP8X', struct.pack('<I', flags) + size) + b''.join(chunks)
        return b'RIFF' + struct.pack('<I', len(body)) + body

    write('webp', 'turned', extended(8, lossy[12:], chunk(b'EXIF', tiff('<', [(0x0112, 3, 6)]))))
    write('webp', 'turned_long', extended(8, lossy[12:], chunk(b'EXIF', b'Exif\0\0' + tiff('>', [(0x0112, 3, 8)]))))
    write('webp', 'exif_size', extended(8, lossy[12:], b'EXIF' + struct.pack('<I', 0xfffffffe) + b'II*\0'))
    write('webp', 'animated', extended(2, chunk(b'ANIM', b'\0' * 6)))


def autoencoder():
    kl = {'_class_name': 'AutoencoderKL', 'scaling_factor': 0.18215, 'norm_num_groups': 32, 'act_fn': 'silu',
          'block_out_channels': [128, 256, 512, 512], 'force_upcast': True, 'mid_block_add_attention': True,
          'shift_factor': None, 'latents_mean': None, 'latents_std': None, 'latent_channels': 4}
    tiny = {'_class_name': 'AutoencoderTiny', 'act_fn': 'relu', 'scaling_factor': 1.0, 'shift_factor': 0.0,
            'upsample_fn': 'nearest', 'upsampling_scaling_factor': 2, 'force_upcast': False}
    cases = {'kl': kl, 'sdxl': dict(kl, scaling_factor=0.13025), 'sd3': dict(kl, scaling_factor=1.5305, shift_factor=0.0609),
             'groups': dict(kl, norm_num_groups=0), 'mean': dict(kl, latents_mean=[1, 2, 3, 4]), 'no_attention':
             dict(kl, mid_block_add_attention=False), 'other': {'_class_name': 'UNet2DModel'}, 'list': [1]}
    for name, case in cases.items():
        write('autoencoder', name, b'\1' + json.dumps(case).encode())
    write('autoencoder', 'tiny', b'\0' + json.dumps(tiny).encode())
    write('autoencoder', 'tiny_scale', b'\0' + json.dumps(dict(tiny, upsampling_scaling_factor=4)).encode())


def options():
    sample = {'id': 7, 'class': '207,church', 'n': 3, 'seed': '18446744073709551615', 'out': 'a.png', 'cfg_scale': 4,
              'cfg_interval': '0.1,0.9', 'size': '64x32', 'steps': 20, 'sampler': 'heun'}
    train = {'model': 'NaLaSiT-S/2', 'data': 'd', 'out': 'run', 'batch': 256, 'lr': 1e-4, 'ema': '0.999,0.9999', 'steps': 1000}
    write('options', 'sample', b'\0' + json.dumps(sample).encode())
    write('options', 'ranges', b'\0' + json.dumps({'steps': -1, 'n': 1e300, 'cfg_interval': [0.5, 0.1]}).encode())
    write('options', 'kinds', b'\0' + json.dumps({'class': 5, 'size': 64, 'quiet': True, 'seed': 2**60, 'x': None}).encode())
    write('options', 'train', b'\1' + json.dumps(train).encode())
    write('options', 'train_kinds', b'\1' + json.dumps({'steps': '10', 'max_memory': '4G', 'lr': 'nan', 'schedule': 'cosine'}).encode())


def npy(kind, shape, data):
    text = str({'descr': kind, 'fortran_order': False, 'shape': shape}).encode() + b'\n'
    return b'\x93NUMPY\1\0' + struct.pack('<H', len(text)) + text + data


def png(byte):
    def chunk(kind, body):
        return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 1, 1, 8, 2, 0, 0, 0))
            + chunk(b'IDAT', zlib.compress(bytes([0, byte, 2, 3]))) + chunk(b'IEND', b''))


def archive():
    folders = [('a/0.png', png(1)), ('b/1.png', png(2)), ('.x/2.png', b''), ('notes', b'x')]
    keys = [('0.cls', b'1'), ('0.png', png(1)), ('1.json', b'{"label": 0}'), ('1.png', png(2)), ('1.cls', b'0 ')]
    split = [('train/a/0.png', png(1)), ('val/b/1.png', png(2))]
    edm = [('dataset.json', json.dumps({'labels': [['a/0.png', 1], ['b/1.png', 0]]}).encode())] + folders

    def tar(members, form):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode='w', format=form) as file:
            for name, data in members:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                file.addfile(entry, io.BytesIO(data))
            link = tarfile.TarInfo('c/3.png')
            link.type, link.linkname = tarfile.SYMTYPE, 'a/0.png'
            file.addfile(link)
        data = out.getvalue().rstrip(b'\0')
        return data + bytes(-len(data) % 512)  # without the blocks that end it

    def zipped(members, method):
        out = io.BytesIO()
        with zipfile.ZipFile(out, 'w', method) as file:
            for name, data in members:
                file.writestr(name, data)
        return out.getvalue()

    long = [('x' * 150 + '/' + name, data) for name, data in folders]
    for name, members, form in (('folders', folders, tarfile.USTAR_FORMAT), ('keys', keys, tarfile.USTAR_FORMAT),
                                ('pax', long, tarfile.PAX_FORMAT), ('gnu', long, tarfile.GNU_FORMAT), ('edm', edm, tarfile.USTAR_FORMAT),
                                # a file beside the folder that all pictures lie in: its name is shorter
                                ('beside', long + [('notes', b'x')], tarfile.GNU_FORMAT)):
        write('archive', 'tar_' + name, b'\0' + tar(members, form))
    write('archive', 'tar_split', b'\x21' + tar(split, tarfile.USTAR_FORMAT))
    write('archive', 'zip_folders', b'\1' + zipped(folders, zipfile.ZIP_STORED))
    write('archive', 'zip_edm', b'\1' + zipped(edm, zipfile.ZIP_DEFLATED))
    write('archive', 'zip_keys', b'\1' + zipped(keys, zipfile.ZIP_DEFLATED))
    arrays = [('arr_0.npy', npy('|u1', (2, 1, 1, 3), bytes(6))), ('arr_1.npy', npy('<i8', (2,), struct.pack('<qq', 0, 1)))]
    write('archive', 'npz', b'\2' + zipped(arrays, zipfile.ZIP_STORED))
    write('archive', 'npz_deflated', b'\2' + zipped(arrays, zipfile.ZIP_DEFLATED))
    write('archive', 'npz_bare', b'\x42' + zipped(arrays[:1], zipfile.ZIP_STORED))


def cifar():
    def string(text):
        return b'T' + struct.pack('<I', len(text)) + text

    def batch(key, count, planes):
        return (b'\x80\2}(' + string(key) + b'](' + b'K\3' * count + b'e' + string(b'data')
                + b'cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85' + string(b'b') + b'\x87R(K\1K'
                + bytes([planes // 3072]) + b'M\0\x0c\x86cnumpy\ndtype\n' + string(b'u1') + b'K\0K\1\x87R(K\3' + string(b'|')
                + b'NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89' + string(bytes(planes)) + b'tbu.')

    names = pickle.dumps({'label_names': [str(i) for i in range(10)]}, protocol=2)
    for name, parts in {'ten': (names, batch(b'labels', 1, 3072)), 'hundred': (b'', batch(b'fine_labels', 1, 3072)),
                        'short': (names, batch(b'labels', 2, 3072)), 'no_names': (pickle.dumps([]), batch(b'labels', 1, 3072))}.items():
        write('cifar', name, struct.pack('<H', len(parts[0])) + parts[0] + parts[1])


def latents():
    label, draw = npy('<i8', (1,), struct.pack('<q', 3)), npy('<f4', (1, 4, 1, 1), struct.pack('<4f', 1, 2, 3, 4))
    moments = npy('<f4', (8, 1, 1), struct.pack('<8f', *range(8)))
    table = json.dumps({'labels': [['0.npy', 2]]}).encode()
    write('latents', 'fast', b'\1' + label + b'\xff' + draw)
    write('latents', 'fast_half', b'\1' + label + b'\xff' + npy('<f2', (4, 1, 1), bytes(8)))
    write('latents', 'repa', b'\0' + table + b'\xff' + moments)
    write('latents', 'repa_odd', b'\0' + table + b'\xff' + npy('<f4', (3, 1, 1), bytes(12)))
    write('latents', 'repa_up', b'\0' + json.dumps({'labels': [['../0.npy', 2]]}).encode() + b'\xff' + moments)


for seeds in reference, digests, edm, scheduler, exif, autoencoder, options, archive, cifar, latents, webp:
    seeds()
