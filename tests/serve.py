#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What clients of `nalagen serve` do, rightly and wrongly: serve.py TEST URL. tests/cli/serve.bats starts the servers."""
import base64
import http.client
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import urllib.parse
import zlib

URL = urllib.parse.urlsplit(sys.argv[2])
TOKEN = os.environ.get("TOKEN")


def ask(method, path, body=None, headers=None, timeout=300):
    """(status, headers, bytes)"""
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=timeout)
    send = {} if body is None else {"Content-Type": "application/json"}
    if TOKEN:
        send["Authorization"] = "Bearer " + TOKEN
    send.update(headers or {})
    data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request(method, path, data, {k: v for k, v in send.items() if v is not None})
    answer = connection.getresponse()
    result = answer.status, answer.headers, answer.read()
    connection.close()
    return result


def get(path, **more):
    status, _, data = ask("GET", path, **more)
    return status, json.loads(data)


def post(path, body, **more):
    status, _, data = ask("POST", path, body, **more)
    return status, json.loads(data)


def raw(data, wait=5):
    """What comes back for these bytes."""
    with socket.create_connection((URL.hostname, URL.port), timeout=wait) as s:
        s.sendall(data)
        got = b""
        try:
            while chunk := s.recv(65536):
                got += chunk
        except (TimeoutError, ConnectionResetError):
            pass
        return got


def finished(job, seconds=300):
    until = time.time() + seconds
    while time.time() < until:
        _, now = get("/api/jobs/" + job["id"])
        if now["state"] in ("done", "failed", "cancelled"):
            return now
        time.sleep(0.02)
    raise AssertionError("the job does not end: %r" % now)


def png_facts(data):
    """Size and parameters of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, facts, size = 8, None, None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(kind + chunk)
        if kind == b"IHDR":
            size = struct.unpack(">II", chunk[:8])
        if kind == b"iTXt" and chunk.startswith(b"nalagen\0"):
            facts = json.loads(chunk.split(b"\0", 1)[1].lstrip(b"\0"))
        at += 12 + length
    return size, facts


def pixels(data):
    """The bytes of an RGB PNG, its filters undone."""
    (width, height), raw, rows = png_facts(data)[0], b"", []
    at = 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        raw += data[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    raw, stride, above = zlib.decompress(raw), 3 * width, bytes(3 * width)
    for y in range(height):
        kind, line, row = raw[y * (stride + 1)], raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)], bytearray()
        for x, value in enumerate(line):
            a, b, c = (row[x - 3], above[x], above[x - 3]) if x >= 3 else (0, above[x], 0)
            near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            row.append((value + (0, a, b, (a + b) // 2, near)[kind]) & 255)
        rows.append(bytes(row))
        above = rows[-1]
    return b"".join(rows)


LONG = {"steps": 10000, "sampler": "euler", "n": 4}


# ---- The own interface

def jobs():
    status, job = post("/api/jobs", {"class": [1, 3], "n": 3, "seed": 7, "steps": 3})
    assert status == 202 and job["state"] in ("queued", "running", "done") and job["count"] == 3, job
    job = finished(job)
    assert job["state"] == "done" and job["done"] == 3 and len(job["pictures"]) == 3, job
    assert [p["class"] for p in job["pictures"]] == [1, 3, 1]
    assert [p["index"] for p in job["pictures"]] == [0, 1, 2]
    for picture in job["pictures"]:
        status, headers, png = ask("GET", picture["url"])
        assert status == 200 and headers["Content-Type"] == "image/png"
        size, facts = png_facts(png)
        assert size == (16, 16) and facts["seed"] == 7 and facts["steps"] == 3, facts
        assert facts["class"] == picture["class"] and "/" not in facts["model"]
        open("served-%d.png" % picture["number"], "wb").write(png)
    assert ask("GET", job["pictures"][0]["url"][:-1] + "3")[0] == 404
    assert ask("GET", job["pictures"][0]["url"] + "x")[0] == 404
    assert ask("GET", job["pictures"][0]["url"][:-1] + "-1")[0] == 404
    assert get("/api/jobs/" + 32 * "0")[0] == 404
    status, models = get("/api/models")
    model = models["models"][0]
    assert status == 200 and not model["shipped"] and model["height"] == 16 and model["classes"] == 5, models
    assert [c["class"] for c in get("/api/classes")[1]["classes"]] == [0, 1, 2, 3, 4]
    assert get("/api/classes?model=" + model["name"])[0] == 200
    assert get("/api/classes?model=other")[0] == 404
    device = get("/api/device")[1]
    assert device["processor"], device
    assert device["pictures"] == 3 and device["jobs"] == 1 and device["queued"] == device["running"] == 0, device
    fields = get("/api/openapi.json")[1]["components"]["schemas"]["Fields"]["properties"]
    assert fields["steps"]["maximum"] == 10000 and "out" not in fields and "heun" in fields["sampler"]["enum"]
    assert "guide_scale" not in fields and "guide_interval" not in fields and "to_class" in fields
    for key in ("guide_scale", "vae", "key"):  # options, but of whoever runs the server
        status, error = post("/api/jobs", {"class": 1, key: 2})
        assert status == 400 and 'key "%s": it cannot be given here' % key in error["detail"], error


def walk():
    """From one picture to another: frames, a grid of them, an animated PNG."""
    def made(**fields):
        job = finished(post("/api/jobs", {"steps": 3, "class": 1, "seed": 7, **fields})[1])
        assert job["state"] == "done", job
        return job, [ask("GET", p["url"])[2] for p in job["pictures"]]

    job, frames = made(walk=5, to_class=3, to_seed=9)
    assert [p["index"] for p in job["pictures"]] == [0, 1, 2, 3, 4]
    assert {(p["class"], p["seed"], p["walk"], p["to_class"], p["to_seed"]) for p in job["pictures"]} == {(1, 7, 5, 3, "9")}
    for frame, end in ((0, {}), (4, {"class": 3, "seed": 9})):
        assert max(abs(a - b) for a, b in zip(pixels(frames[frame]), pixels(made(**end)[1][0]))) <= 1
    assert len({bytes(pixels(frame)) for frame in frames}) == 5
    open("frame.png", "wb").write(frames[2])
    for query, size, name in (("", (5 * 16 + 4 * 2, 16), "1x5"), ("?columns=2", (2 * 16 + 2, 3 * 16 + 2 * 2), "3x2")):
        status, headers, png = ask("GET", "/api/jobs/%s/grid%s" % (job["id"], query))
        assert status == 200 and headers["Content-Type"] == "image/png"
        assert png_facts(png)[0] == size and png_facts(png)[1]["grid"] == name, png_facts(png)
    open("grid.png", "wb").write(png)
    for tags, code in ((headers["ETag"], 304), ('W/"x", %s' % headers["ETag"], 304), ("*", 304), ('"%s"' % (32 * "0"), 200)):
        status, again, data = ask("GET", "/api/jobs/%s/grid?columns=2" % job["id"], headers={"If-None-Match": tags})
        assert status == code and data == (b"" if code == 304 else png) and again["ETag"] == headers["ETag"], (tags, status)
    status, _, png = ask("GET", "/api/jobs/%s/animation?ms=120" % job["id"])
    assert status == 200 and png.count(b"fcTL") == 5 and png.count(b"fdAT") == 4 and png_facts(png)[1]["animate"] == 120
    assert pixels(png) == pixels(frames[0])
    open("animation.png", "wb").write(png)
    several = made(**{"class": "1,3", "n": 3})[0]
    assert png_facts(ask("GET", "/api/jobs/%s/grid" % several["id"])[2])[1]["class"] == "1,3"
    for wrong in ("grid?columns=0", "grid?columns=6", "grid?columns=x", "animation?ms=9", "animation?ms=60001", "animation?ms=-1"):
        assert ask("GET", "/api/jobs/%s/%s" % (job["id"], wrong))[0] == 400, wrong
    _, long = post("/api/jobs", LONG)
    for kind in ("grid", "animation"):
        assert ask("GET", "/api/jobs/%s/%s" % (long["id"], kind), headers={"If-None-Match": "*"})[0] == 404
        assert ask("GET", "/api/jobs/%s/%s" % (32 * "0", kind))[0] == 404
    ask("DELETE", "/api/jobs/" + long["id"])
    for wrong in ({"walk": 5}, {"to_class": 3}, {"walk": 5, "to_class": 9}, {"walk": 1, "to_seed": 3}, {"walk": 65, "to_seed": 3},
                  {"walk": 5, "to_seed": -1}, {"walk": 5, "to_seed": 3, "class": "1,2"}, {"walk": 5, "to_seed": 3, "n": 6}):
        assert post("/api/jobs", {"class": 1, **wrong})[0] == 400, wrong


def page():
    """What a browser loads, within its budget, and a thumbnail of a class."""
    total = 0
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        status, headers, data = ask("GET", path)
        assert status == 200 and headers["Content-Type"].startswith(kind), path
        assert b"http://" not in data.replace(b"http://www.w3.org/2000/svg", b"") and b"https://" not in data, path
        total += len(data)
    assert total < 100000, total
    for _ in range(2):
        status, headers, data = ask("GET", "/api/classes/3/thumbnail")
        assert status == 200 and png_facts(data)[0] == (16, 16)
    assert get("/api/device")[1]["pictures"] == 1
    for wrong in ("5", "x", "-1", "99999999999"):
        assert ask("GET", "/api/classes/%s/thumbnail" % wrong)[0] == 404
    assert ask("GET", "/api/classes/3/thumbnail?model=other")[0] == 404
    assert get("/api/runs")[1]["runs"] == []


def runs():
    """Started with --runs runs --runs other: runs/one, runs/two, other/one."""
    names = [run["name"] for run in get("/api/runs")[1]["runs"]]
    assert names == ["one", "two", "one-2"], names
    run = get("/api/runs/one")[1]
    assert [line["step"] for line in run["log"]] == [2, 4, 6] and run["log"][0]["loss"] == 1.5, run
    assert run["validation"][0]["val_loss"] == 2.5 and run["training"]["steps"] == 100 and not run["done"]
    assert run["evaluations"] == [{"n": 64, "metrics": {"fid": 20}, "step": 4},
                                  {"n": 64, "preset": "openai", "reference": "ref.npz", "metrics": {"fid": 12.5}, "step": 6},
                                  {"n": 8, "metrics": {"fid": 9}, "file": "report.json"}], run["evaluations"]
    assert get("/api/runs")[1]["runs"][0]["evaluations"] == run["evaluations"]
    assert run["grids"] == [4] and "/" not in json.dumps(run), run
    status, headers, data = ask("GET", "/api/runs/one/grids/4")
    assert status == 200 and headers["Content-Type"] == "image/png"
    assert len(get("/api/runs/two")[1]["log"]) <= 1501 and get("/api/runs/two")[1]["log"][-1]["step"] == 5000
    for wrong in ("/api/runs/three", "/api/runs/..", "/api/runs/one/grids/5", "/api/runs/one/grids/x", "/api/runs/one/grids/-4",
                  "/api/runs/%2e%2e/grids/4", "/api/runs/one/grids/6"):
        assert ask("GET", wrong)[0] == 404, wrong


def sizes():
    for side, good in ((32, 202), (16, 202), (48, 202), (64, 202), (80, 202), (32, 202), (17, 400), (4096, 400)):
        status, job = post("/api/jobs", {"class": 0, "size": side, "steps": 2})
        assert status == good, (side, job)
        if good == 202:
            job = finished(job)
            assert job["state"] == "done" and job["width"] == side, job
            assert png_facts(ask("GET", job["pictures"][0]["url"])[2])[0] == (side, side)
    for size, said in (("16x32", "16x32"), ("32x16", "32x16"), ("16x16", None), ("16", None)):
        status, job = post("/api/jobs", {"class": 0, "size": size, "steps": 2})
        extent, facts = png_facts(ask("GET", finished(job)["pictures"][0]["url"])[2])
        assert extent == ((32, 16) if said == "16x32" else (16, 32) if said else (16, 16)) and facts.get("size") == said, facts


def batches():
    """Jobs that agree share a batch, and their pictures are the same as alone."""
    def facts(job):
        return [(p["class"], p["seed"], p["index"]) for p in job["pictures"]]

    wants = [{"class": i % 5, "seed": i, "n": 1 + i % 2, "steps": 4} for i in range(8)]
    alone = [finished(post("/api/jobs", w)[1]) for w in wants]
    before = get("/api/device")[1]["batches"]
    blocker = post("/api/jobs", LONG)[1]
    while get("/api/jobs/" + blocker["id"])[1]["state"] == "queued":
        time.sleep(0.01)
    together = [post("/api/jobs", w)[1] for w in wants]
    ask("DELETE", "/api/jobs/" + blocker["id"])
    together = [finished(job) for job in together]
    assert [facts(j) for j in alone] == [facts(j) for j in together]
    made = get("/api/device")[1]["batches"] - before - 1
    assert made <= 4, "%d batches for 12 pictures" % made
    finished(post("/api/jobs", {"class": 1, "n": 7, "steps": 4})[1])
    made = get("/api/device")[1]["batches"] - before - 1 - made
    assert made == 3, "%d batches for 7 pictures, which are 4, 2 and 1" % made
    for a, b in zip(alone, together):
        for x, y in zip(a["pictures"], b["pictures"]):
            x, y = (pixels(ask("GET", p["url"])[2]) for p in (x, y))
            assert len(x) == len(y) == 768 and max(abs(i - j) for i, j in zip(x, y)) <= 1


def kept():
    """A job that has just ended is kept, however many came and went while it was at work."""
    _, long = post("/api/jobs", {"class": 0, "steps": 400, "sampler": "euler", "n": 9})
    for i in range(300):
        _, job = post("/api/jobs", {"class": 0, "steps": 2, "seed": i})
        ask("DELETE", "/api/jobs/" + job["id"])
    job = finished(long)
    time.sleep(0.1)
    assert get("/api/jobs/" + long["id"])[1]["state"] == "done" and ask("GET", job["pictures"][8]["url"])[0] == 200
    assert get("/api/jobs/" + job["id"])[0] == 200


def events():
    _, job = post("/api/jobs", {"class": "0-3", "steps": 6, "preview_every": 2})
    status, headers, data = ask("GET", "/api/jobs/%s/events" % job["id"])
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    told = [part.split("\n") for part in data.decode().split("\n\n") if part.startswith("event")]
    names = [lines[0][7:] for lines in told]
    values = [json.loads(lines[1][6:]) for lines in told]
    assert names[-1] == "end" and values[-1]["state"] == "done", told
    pictures = [v for n, v in zip(names, values) if n == "picture"]
    assert [p["number"] for p in pictures] == [0, 1, 2, 3]
    for name, value in zip(names, values):
        if name == "preview":
            png_facts(base64.b64decode(value["png"]))
    assert ask("GET", "/api/jobs/%s/events?cancel=yes" % job["id"])[0] == 400
    # once it is over, everything is told at once
    _, _, again = ask("GET", "/api/jobs/%s/events" % job["id"])
    assert again.decode().count("event: picture") == 4


def cancel():
    _, job = post("/api/jobs", LONG)
    _, waiting = post("/api/jobs", {"class": 0, "steps": 2})
    status, _, data = ask("DELETE", "/api/jobs/" + job["id"])
    assert status == 200 and json.loads(data)["state"] == "cancelled"
    assert finished(waiting)["state"] == "done"
    assert get("/api/jobs/" + job["id"])[1]["state"] == "cancelled"
    # the stream that has been asked to ends the job when it is closed, another one does not
    for query, state in (("?cancel=1", "cancelled"), ("", "running")):
        _, job = post("/api/jobs", LONG)
        s = socket.create_connection((URL.hostname, URL.port))
        s.sendall(b"GET /api/jobs/%s/events%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (job["id"].encode(), query.encode()))
        assert b"event: progress" in s.recv(65536) + s.recv(65536)
        s.close()
        until = time.time() + (10 if query else 1)
        while time.time() < until and get("/api/jobs/" + job["id"])[1]["state"] != "cancelled":
            time.sleep(0.05)
        assert get("/api/jobs/" + job["id"])[1]["state"] == state
    ask("DELETE", "/api/jobs/" + job["id"])
    # a client of the others' interfaces that goes away takes its job with it
    for path, body in (("/v1/images/generations", {"prompt": "0", **LONG}),
                       ("/sdapi/v1/txt2img", {"prompt": "0", "steps": 10000})):
        data = json.dumps(body).encode()
        s = socket.create_connection((URL.hostname, URL.port))
        s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                  % (path.encode(), len(data), data))
        while get("/api/device")[1]["running"] == 0:
            time.sleep(0.01)
        s.close()
        until = time.time() + 10
        while get("/api/device")[1]["running"]:
            assert time.time() < until
            time.sleep(0.02)


# ---- OpenAI and A1111

def openai():
    status, made = post("/v1/images/generations", {"prompt": "1,2", "n": 2, "size": "32x16", "seed": 5, "steps": 2,
                                                   "response_format": "b64_json", "user": "x", "quality": None})
    assert status == 200 and len(made["data"]) == 2 and abs(made["created"] - time.time()) < 100, made
    size, facts = png_facts(base64.b64decode(made["data"][1]["b64_json"]))
    assert size == (32, 16) and facts["class"] == 2 and facts["seed"] == 5
    for wrong in ({"prompt": "7"}, {"prompt": ""}, {}, {"prompt": "1", "size": "big"}, {"prompt": "1", "stream": True},
                  {"prompt": "1", "output_format": "jpeg"}, {"prompt": "1", "model": "dall-e-3"}, {"prompt": 4},
                  {"prompt": "1", "n": 0}, {"prompt": "1", "n": 65}, {"prompt": "1", "out": "x.png"}):
        status, error = post("/v1/images/generations", wrong)
        assert status == 400 and error["error"]["message"], (wrong, error)
    models = get("/v1/models")[1]
    assert models["object"] == "list" and models["data"][0]["id"] == get("/api/models")[1]["models"][0]["name"]


def webui():
    status, made = post("/sdapi/v1/txt2img", {"prompt": "3", "steps": 2, "cfg_scale": 1.5, "seed": 11, "width": 32,
                                              "height": 16, "batch_size": 2, "n_iter": 2, "sampler_name": "Euler",
                                              "negative_prompt": "", "unknown": [1], "styles": None})
    assert status == 200 and len(made["images"]) == 4, made
    size, facts = png_facts(base64.b64decode(made["images"][3]))
    assert size == (32, 16) and facts["sampler"] == "euler" and facts["cfg_scale"] == 1.5 and facts["index"] == 3
    info = json.loads(made["info"])
    assert info["seed"] == 11 and len(info["all_seeds"]) == 4 and made["parameters"]["steps"] == 2
    seeds = {json.loads(post("/sdapi/v1/txt2img", {"prompt": "3", "steps": 2, "seed": -1})[1]["info"])["seed"]
             for _ in range(3)}
    assert len(seeds) == 3
    assert post("/sdapi/v1/txt2img", {"sampler_name": "DPM++ 2M Karras"})[0] == 400
    assert post("/sdapi/v1/txt2img", {"sampler_name": "ddim"})[0] == 400
    for path in ("sd-models", "samplers", "schedulers"):
        assert get("/sdapi/v1/" + path)[1], path
    name = get("/sdapi/v1/options")[1]["sd_model_checkpoint"]
    assert post("/sdapi/v1/options", {"sd_model_checkpoint": name, "CLIP_stop_at_last_layers": 2})[0] == 200
    assert post("/sdapi/v1/options", {"sd_model_checkpoint": "other"})[0] == 400
    assert get("/sdapi/v1/progress")[1]["progress"] == 0
    got = []
    thread = threading.Thread(target=lambda: got.append(post("/sdapi/v1/txt2img", {"prompt": "3", "steps": 10000})))
    thread.start()
    while not get("/sdapi/v1/progress")[1]["state"]["sampling_step"]:
        time.sleep(0.01)
    assert 0 < get("/sdapi/v1/progress")[1]["progress"] < 1
    assert ask("POST", "/sdapi/v1/interrupt")[0] == 200
    thread.join(10)
    assert got and got[0][0] == 503, got


def alive():
    assert get("/api/device")[0] == 200


# ---- Limits

def wrong():
    bad = [b"", b"{", b"[]", b"1", b'{"class": 0} x', b'{"class": 0, "class": 1}', b'{"class": "\\u0000"}', b"\xff\xfe",
           b"[" * 100000, b'{"a":' * 40000, b'{"class": ' + b"[" * 65 + b"]" * 65 + b"}", b'{"steps": 1e999}',
           json.dumps({"out": "/tmp/x.png"}), json.dumps({"noise": "/etc/passwd"}), json.dumps({"latents": "x.npy"}),
           json.dumps({"model": "/etc/passwd"}), json.dumps({"vae": "x"}), json.dumps({"config": "x"}),
           json.dumps({"class": "null,9"}), json.dumps({"n": 65}), json.dumps({"n": 0}), json.dumps({"n": 1.5}),
           json.dumps({"steps": 0}), json.dumps({"sampler": "ddim"}), json.dumps({"size": "0x0"}),
           json.dumps({"seed": -1}), json.dumps({"class": {}}), json.dumps({"cfg_scale": "x"})]
    for body in bad:
        status, error = post("/api/jobs", body)
        assert status == 400 and error["error"]["message"], (body[:50], status, error)
        for path in (os.getcwd(), "/tmp", "/work", "/home"):
            assert path + "/" not in error["error"]["message"].replace("/tmp/x.png", ""), error
    assert ask("POST", "/api/jobs", b" " * ((1 << 18) + 1))[0] == 413
    chunks = b"".join(b"4000\r\n" + b" " * 0x4000 + b"\r\n" for _ in range(20)) + b"0\r\n\r\n"
    head = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    assert b" 413 " in raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks).split(b"\r\n")[0]
    assert ask("POST", "/api/jobs", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert ask("POST", "/api/jobs", b"{}", {"Content-Type": None})[0] == 415
    assert ask("PUT", "/api/jobs", b"{}")[0] == 405
    assert ask("DELETE", "/api/models")[0] == 405
    assert ask("OPTIONS", "/api/jobs")[0] == 405
    assert ask("HEAD", "/api/models")[0] == 200
    for path in ("/api", "/api/jobs/", "/api/jobs/x/y", "/../etc/passwd", "/page.js/..", "//", "/%2e%2e/%00", "/api/jobs/" + 5000 * "a"):
        assert ask("GET", path)[0] in (400, 404), path
    assert b" 431 " in raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + 40000 * b"a" + b"\r\n\r\n")
    for data in (b"GET\r\n\r\n", b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\n"
                 b"Content-Type: application/json\r\nContent-Length: -1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"):
        assert b" 200 " not in raw(data, 2).split(b"\r\n")[0], data
    assert get("/api/device")[0] == 200


def remade():
    """What `sample --from` makes of the files of walk()."""
    for name in ("frame", "grid", "animation"):
        served, made = (open("%s%s.png" % (again, name), "rb").read() for again in ("", "again-"))
        assert png_facts(served) == png_facts(made), (png_facts(served), png_facts(made))
        assert pixels(served) == pixels(made) and served.count(b"fdAT") == made.count(b"fdAT"), name


def patience():
    """How many connections, how long without traffic, how long the content of a request may take."""
    def opened(data=b""):
        s = socket.create_connection((URL.hostname, URL.port), timeout=5)
        s.sendall(data)
        return s

    def closed(s):
        s.settimeout(0.01)
        try:
            return s.recv(4096) == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True

    begun, request = time.time(), b"GET /api/models HTTP/1.1\r\nHost: localhost\r\n"
    waits = {"idle": opened(), "half": opened(request), "answered": opened(request + b"\r\n"),
             "slow": opened(b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")}
    assert b"200 OK" in waits["answered"].recv(65536)
    more = [opened() for _ in range(252)]
    time.sleep(0.5)
    for _ in range(3):
        assert b"200 OK" not in raw(request + b"\r\n"), "257 connections"
    assert not any(closed(s) for s in more)
    for s in more:
        s.close()
    until = time.time() + 5
    while b"200 OK" not in raw(request + b"Connection: close\r\n\r\n"):
        assert time.time() < until, "those that have gone leave room"
    lasted = {}
    while len(lasted) < len(waits) and time.time() < begun + 60:
        time.sleep(0.5)
        for name, s in waits.items():
            if name not in lasted and closed(s):
                lasted[name] = time.time() - begun
        if "slow" not in lasted:
            try:
                waits["slow"].sendall(b" ")  # never a second without traffic
            except OSError:
                pass
    assert len(lasted) == len(waits) and all(25 < seconds < 45 for seconds in lasted.values()), lasted
    alive()


def flood():
    """Jobs and pictures until the server is gone."""
    try:
        while True:
            job = post("/api/jobs", {"class": "0-4", "steps": 5, "seed": time.time_ns() % 1000})[1]
            for picture in finished(job)["pictures"]:
                ask("GET", picture["url"])
    except (OSError, http.client.HTTPException):
        pass


def guards():
    """Other sites' pages, and names of the server that it does not know."""
    port = b":%d" % URL.port

    def code(headers, path=b"/api/device", method=b"GET"):
        answer = raw(method + b" " + path + b" HTTP/1.1\r\nConnection: close\r\n" + b"".join(h + b"\r\n" for h in headers) + b"\r\n")
        return int(answer.split(b" ")[1])
    own = b"Host: localhost" + port
    for host in (b"localhost", b"localhost" + port, b"127.0.0.1" + port, b"[::1]" + port, b"LOCALHOST", b"known.example"):
        assert code([b"Host: " + host]) == 200, host
    for host in (b"evil.example", b"evil.example" + port, b"localhost.evil.example", b"127.0.0.1.evil", b"", b"[::1", b"localhost:x"):
        assert code([b"Host: " + host]) in (400, 421), host
        assert code([b"Host: " + host], b"/") in (400, 421), host
    assert code([b"Origin: http://localhost" + port], b"/api/device") == 400  # no Host
    assert code([own, b"Origin: http://localhost" + port]) == 200
    for origin in (b"http://evil.example", b"null", b"http://localhost:1", b"http://localhost" + port + b".evil.example", b"file://"):
        for path, method in ((b"/api/device", b"GET"), (b"/api/jobs", b"POST"), (b"/sdapi/v1/interrupt", b"POST"), (b"/", b"GET")):
            assert code([own, b"Origin: " + origin, b"Content-Length: 0"], path, method) == 403, (origin, path)
    for site, expected in ((b"cross-site", 403), (b"same-site", 403), (b"same-origin", 200), (b"none", 200)):
        assert code([own, b"Sec-Fetch-Site: " + site]) == expected
    assert code([own, b"Sec-Fetch-Site: cross-site"], b"/") == 200  # a link to the page
    for path in ("/", "/page.js", "/api/device", "/nothing"):
        _, headers, _ = ask("GET", path)
        assert "default-src 'none'" in headers["Content-Security-Policy"], path
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers


def token():
    for given in (None, "Bearer wrong", "Bearer " + TOKEN + "x", "Bearer " + TOKEN[:-1], "Basic " + TOKEN, TOKEN, "Bearer"):
        for method, path in (("GET", "/api/device"), ("POST", "/api/jobs"), ("GET", "/v1/models"), ("GET", "/nothing"),
                             ("GET", "/sdapi/v1/options"), ("GET", "/api/openapi.json")):
            status, headers, _ = ask(method, path, headers={"Authorization": given})
            assert status == 401 and headers["WWW-Authenticate"] == "Bearer", (given, path, status)
        assert ask("GET", "/", headers={"Authorization": given})[0] == 200
    assert get("/api/device")[0] == 200
    assert ask("GET", "/api/device", headers={"Authorization": "bearer " + TOKEN})[0] == 200


def queue():
    """Started with --max-queue 2 --max-pictures 4 --max-seconds 2."""
    assert post("/api/jobs", {"n": 5})[0] == 400
    _, first = post("/api/jobs", LONG)
    _, second = post("/api/jobs", {"class": 0, "steps": 2})
    status, headers, _ = ask("POST", "/api/jobs", {"class": 0})
    assert status == 503 and headers["Retry-After"]
    late = finished(first)
    assert late["state"] == "failed" and "2 seconds" in late["error"], late
    assert finished(second)["state"] == "done"
    status, error = post("/v1/images/generations", {"prompt": "0", **LONG})
    assert status == 504, (status, error)


def stop():
    """SIGTERM: what is accepted is made, and no more is."""
    pid = int(os.environ["SERVER"])
    _, long = post("/api/jobs", {"class": 0, "steps": 3000, "sampler": "euler"})
    got = []
    thread = threading.Thread(target=lambda: got.append(post("/v1/images/generations", {"prompt": "1", "steps": 2, "seed": 1})))
    thread.start()
    while get("/api/device")[1]["queued"] + get("/api/device")[1]["running"] < 2:
        time.sleep(0.01)
    os.kill(pid, signal.SIGTERM)
    while not get("/api/device")[1]["stopping"]:
        time.sleep(0.01)
    assert post("/api/jobs", {"class": 0})[0] == 503
    thread.join(300)
    assert got[0][0] == 200, got


globals()[sys.argv[1]]()
