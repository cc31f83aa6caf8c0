#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Clients from PyPI, as they are, against `nalagen serve`: serve_clients.py openai|webuiapi URL."""
import base64
import sys
import urllib.parse

KIND, URL = sys.argv[1:]


def openai():
    from openai import BadRequestError, OpenAI
    client = OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    made = client.images.generate(model=model, prompt="1,3", n=2, size="32x16", response_format="b64_json",
                                  extra_body={"seed": 5, "steps": 2})
    assert len(made.data) == 2 and all(base64.b64decode(one.b64_json)[:4] == b"\x89PNG" for one in made.data)
    client.images.generate(model=model, prompt="2", size="auto", output_format="png", quality="low")
    try:
        client.images.generate(model=model, prompt="9")
    except BadRequestError as error:
        assert "classes 0 to 4" in str(error), error
    else:
        raise AssertionError("class 9")


def webuiapi():
    import webuiapi
    url = urllib.parse.urlsplit(URL)
    api = webuiapi.WebUIApi(host=url.hostname, port=url.port)
    made = api.txt2img(prompt="1,3", steps=2, cfg_scale=1.5, seed=11, width=32, height=16, batch_size=2, n_iter=2)
    assert len(made.images) == 4 and made.image.size == (32, 16) and made.info["seed"] == 11, made.info
    assert api.txt2img(prompt="2", steps=2, sampler_name="euler").image.size == (512, 512)
    names = api.util_get_model_names()
    api.util_set_model(names[0])
    assert api.util_get_current_model() == names[0]
    assert {one["name"] for one in api.get_samplers()} >= {"euler", "heun"}
    assert api.get_schedulers()[0]["name"] == "automatic"
    assert api.get_progress()["progress"] == 0
    api.interrupt()


globals()[KIND]()
