#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Many clients at once against `nalagen serve`: serve_load.py URL [--clients 64] [--seconds 60] [--pid PID].

Jobs of mixed sizes through the three interfaces, clients that go away, malformed requests. Says what became of every job,
latencies, pictures a second, and how the memory of the server (--pid, on this machine) grew. Exit code 1: something was lost."""
import argparse
import base64
import http.client
import json
import multiprocessing
import os
import random
import socket
import sys
import threading
import time
import urllib.parse
import zlib

arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
arguments.add_argument("url")
arguments.add_argument("--clients", type=int, default=64)
arguments.add_argument("--seconds", type=float, default=60)
arguments.add_argument("--pid", type=int)
arguments.add_argument("--seed", type=int, default=0)
arguments.add_argument("--steps", type=int, default=4)
arguments.add_argument("--batch", type=int, default=0, help="that the server was given, for the record")
arguments.add_argument("--calm", action="store_true", help="no client goes away or sends nonsense: to compare speeds")
arguments.add_argument("--sides", default="1,1,1,0.5", help="of pictures, as parts of the model's")
options = arguments.parse_args()
url = urllib.parse.urlsplit(options.url)
lock, counts, latencies, faults = threading.Lock(), {}, [], []


def count(what, n=1):
    with lock:
        counts[what] = counts.get(what, 0) + n


def ask(method, path, body=None):
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"} if body is not None else {})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def check_png(data):
    at = 8
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        length = int.from_bytes(data[at:at + 4], "big")
        assert zlib.crc32(data[at + 4:at + 8 + length]) == int.from_bytes(data[at + 8 + length:at + 12 + length], "big")
        at += 12 + length
    assert data[-8:-4] == b"IEND"


def fields(draw):
    part = float(draw.choice(options.sides.split(",")))
    side = max(1, round(model["height"] * part / model["unit"])) * model["unit"]
    return {"n": draw.choice((1, 1, 2, 4)), "seed": draw.randrange(1 << 32), "steps": options.steps,
            "class": str(draw.randrange(max(model["classes"], 1))) if model["classes"] else "null", "size": side}


def own(draw):
    wanted = fields(draw)
    status, data = ask("POST", "/api/jobs", wanted)
    if status == 503:
        return None
    job = json.loads(data)
    assert status == 202, data
    status, data = ask("GET", "/api/jobs/%s/events" % job["id"])
    assert status == 200 and b"event: end" in data, data[-200:]
    status, data = ask("GET", "/api/jobs/" + job["id"])
    job = json.loads(data)
    assert job["state"] == "done" and len(job["pictures"]) == wanted["n"], job
    for picture in job["pictures"]:
        check_png(ask("GET", picture["url"])[1])
    return wanted["n"]


def openai(draw):
    wanted = fields(draw)
    status, data = ask("POST", "/v1/images/generations", {"prompt": wanted["class"], "n": wanted["n"], "seed": wanted["seed"],
                                                          "steps": wanted["steps"], "size": "%dx%d" % (2 * (wanted["size"],))})
    if status == 503:
        return None
    assert status == 200, data
    pictures = json.loads(data)["data"]
    assert len(pictures) == wanted["n"]
    for picture in pictures:
        check_png(base64.b64decode(picture["b64_json"]))
    return wanted["n"]


def webui(draw):
    wanted = fields(draw)
    status, data = ask("POST", "/sdapi/v1/txt2img", {"prompt": wanted["class"], "batch_size": wanted["n"], "seed": wanted["seed"],
                                                     "steps": wanted["steps"], "width": wanted["size"], "height": wanted["size"]})
    if status == 503:
        return None
    assert status == 200, data
    pictures = json.loads(data)["images"]
    assert len(pictures) == wanted["n"]
    for picture in pictures:
        check_png(base64.b64decode(picture))
    return wanted["n"]


def go_away(draw):
    """A client that asks and closes the connection."""
    body = json.dumps({"prompt": "0", "steps": 1000, "n": 4}).encode()
    with socket.create_connection((url.hostname, url.port)) as s:
        s.sendall(b"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                  % (len(body), body))
        time.sleep(draw.random())
    count("gone away")


def malformed(draw):
    with socket.create_connection((url.hostname, url.port), timeout=10) as s:
        body = bytes(draw.randrange(256) for _ in range(draw.randrange(200)))
        s.sendall(draw.choice((b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                               % len(body), b"GET / HTTP/1.1\r\nHost: evil\r\n\r\n", b"", b"POST /api/jobs HTTP/1.1\r\n")) + body)
        s.shutdown(socket.SHUT_WR)
        try:
            assert b" 500 " not in s.recv(4096)[:20]
        except (TimeoutError, ConnectionResetError):
            pass
    count("malformed")


def client(number, end):
    draw = random.Random(options.seed * 1000 + number)
    while time.time() < end:
        what = draw.choices((own, openai, webui, go_away, malformed), (4, 2, 2, 0, 0) if options.calm else (4, 2, 2, 1, 1))[0]
        started = time.time()
        try:
            pictures = what(draw)
        except Exception as fault:  # noqa: BLE001 - every kind is a fault to be told
            with lock:
                faults.append("%s: %r" % (what.__name__, fault))
            continue
        if what in (go_away, malformed):
            continue
        if pictures is None:
            count("refused, busy")
            time.sleep(0.2 + draw.random())
            continue
        with lock:
            latencies.append(time.time() - started)
        count("jobs")
        count("pictures", pictures)


def clients(share):
    """Those of one process: a single one's interpreter lock would keep a fast server waiting."""
    numbers, end = share
    threads = [threading.Thread(target=client, args=(i, end)) for i in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts, latencies, faults


def memory():
    if not options.pid:
        return None
    with open("/proc/%d/status" % options.pid) as status:
        return [int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS")][0]


def cpu_seconds():
    """That the server has had: says more than the clock where other programs take the processors."""
    if not options.pid:
        return None
    with open("/proc/%d/stat" % options.pid) as stat:
        return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


model = json.loads(ask("GET", "/api/models")[1])["models"][0]
device = json.loads(ask("GET", "/api/device")[1])
begin, before, cpu = time.time(), memory(), cpu_seconds()
lanes = min(options.clients, len(os.sched_getaffinity(0)))
with multiprocessing.get_context("fork").Pool(lanes) as pool:
    shares = pool.map_async(clients, [(range(i, options.clients, lanes), begin + options.seconds) for i in range(lanes)])
    time.sleep(options.seconds / 2)
    middle = memory()
    for some, times, wrong in shares.get():
        for what, n in some.items():
            count(what, n)
        latencies += times
        faults += wrong
wall, after = time.time() - begin, json.loads(ask("GET", "/api/device")[1])
latencies.sort()
result = {"date": time.strftime("%Y-%m-%d"), "version": device["version"], "device": device["device"], "processor": device["processor"],
          "dtype": device["dtype"], "batch": options.batch, "calm": options.calm, "steps": options.steps, "sides": options.sides, "threads": device["threads"], "model": model["name"], "clients": options.clients,
          "seconds": round(wall, 1), **counts, "pictures_per_second": round(counts.get("pictures", 0) / wall, 2),
          "batches": after["batches"] - device["batches"], "lanes": lanes, "made": after["pictures"] - device["pictures"],
          "left": after["queued"] + after["running"], "faults": len(faults), "cores": len(os.sched_getaffinity(0))}
if latencies:
    result["latency_seconds"] = {"p%d" % p: round(latencies[min(len(latencies) - 1, len(latencies) * p // 100)], 3) for p in (50, 90, 95, 99)}
if options.pid:
    result["pictures_per_cpu_second"] = round(counts.get("pictures", 0) / max(cpu_seconds() - cpu, 1e-9), 3)
    result["memory_mib"] = {"before": round(before), "half": round(middle), "after": round(memory())}
print(json.dumps(result))
for fault in faults[:10]:
    print(fault, file=sys.stderr)
sys.exit(bool(faults) or result["left"] > 0)
