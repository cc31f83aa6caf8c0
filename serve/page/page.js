// SPDX-License-Identifier: MIT
// The page of nalagen serve. No library, no other host: everything comes from the server that gave it.
"use strict";

const $ = id => document.getElementById(id);
const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (key in element && key !== "role" && typeof value !== "string") element[key] = value;
    else element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const svg = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const say = text => { $("status").textContent = text; };

// ---- The server

let token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("token") || "";
if (token) sessionStorage.setItem("token", token);
if (location.hash.includes("token=")) history.replaceState(null, "", location.pathname);

function askToken() {
  return new Promise(resolve => {
    $("ask").addEventListener("close", () => {
      token = $("token").value;
      sessionStorage.setItem("token", token);
      resolve();
    }, { once: true });
    $("ask").showModal();
  });
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = "Bearer " + token;
  if (options.body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401 && !options.again) {
    await askToken();
    return ask(path, { ...options, again: true });
  }
  if (!answer.ok) {
    let message = answer.statusText;
    try { message = (await answer.json()).error.message; } catch { /* no JSON */ }
    throw new Error(message);
  }
  return answer;
}
const json = async (path, options) => (await ask(path, options)).json();
const blobUrl = async path => URL.createObjectURL(await (await ask(path)).blob());

// The events of a job, until it ends; closing the stream ends the job.
async function* events(id, signal) {
  const answer = await ask(`/api/jobs/${id}/events?cancel=1`, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "";;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const lines = text.slice(0, end).split("\n");
      if (lines[0].startsWith("event: "))
        yield [lines[0].slice(7), JSON.parse(lines[1].slice(6))];
    }
  }
}

// ---- What is asked for

let models = [], model = null, classes = [], chosen = 0;

const number = id => Number($(id).value);

function fields(count) {
  const wanted = { model: model.name, seed: $("seed").value || "0", n: count, sampler: $("sampler").value }; // undefined is left out
  if (classes.length) wanted.class = chosen;
  if (!$("steps").disabled) wanted.steps = number("steps");
  if (model.guidance) {
    wanted.cfg_scale = number("guidance");
    if (model.defaults.cfg_interval && wanted.cfg_scale !== 1) wanted.cfg_interval = model.defaults.cfg_interval;
  }
  const side = $("size").value;
  if (side !== `${model.height}x${model.width}`) wanted.size = side;
  return wanted;
}

const walkFields = () => ({ walk: number("frames"), to_class: classes.length ? number("to-class") : undefined, to_seed: $("to-seed").value || "0", preview_every: 4 });

// What makes a picture, or all of a walk or grid, again: of its parameters those that a job takes.
let known = null;
async function fieldsOf(facts) {
  known ??= (await json("/api/openapi.json")).components.schemas.Fields.properties;
  const wanted = Object.fromEntries(Object.entries(facts).filter(([key]) => key in known && key !== "number"));
  const whole = facts.grid || facts.animate;
  return { ...wanted, model: model.name, first_index: facts.index, n: whole ? facts.number : 1 };
}

function quote(text) {
  return /^[\w.,:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// A class of a picture's facts: a number is its own, a text first a name.
const classOf = which => (typeof which === "string" && classes.find(one => [one.name, one.wnid].includes(which))) || classes[which];
const classWord = which => which === classes.length ? "null" : typeof which === "number" && classOf(String(which)) !== classes[which] ? `number:${which}` : which;

function commandOf(facts) {
  const words = ["nalagen sample"];
  if (!models.some(one => one.shipped && one.sha256 === facts.sha256)) words.push("-m", quote(facts.model));
  words.push("-c", classWord(facts.class), "--seed", facts.seed);
  if (facts.walk && !facts.animate) words.push("-n 1");
  if (facts.index) words.push("--first-index", facts.index);
  for (const key of ["size", "sampler", "steps", "cfg_scale", "cfg_interval", "walk", "to_class", "to_seed", "animate"])
    if (facts[key] !== undefined) words.push("--" + key.replaceAll("_", "-"), quote(String(key === "to_class" ? classWord(facts[key]) : facts[key])));
  return words.join(" ");
}

function captionOf(facts) {
  const to = facts.walk ? classOf(facts.to_class) : null;
  const parts = [facts.class_name + (to && to.name !== facts.class_name ? ` → ${to.name}` : ""),
    `seed ${facts.seed}` + (facts.walk && facts.to_seed !== undefined && String(facts.to_seed) !== String(facts.seed) ? ` → ${facts.to_seed}` : ""),
    facts.animate ? `${facts.walk} pictures, ${facts.animate} ms each` : facts.walk ? `picture ${facts.index + 1} of ${facts.walk}` : `index ${facts.index}`];
  if (facts.steps) parts.push(`${facts.steps} ${facts.steps === 1 ? "step" : "steps"}`);
  parts.push(facts.sampler);
  if (facts.cfg_scale) parts.push(`guidance ${facts.cfg_scale}`);
  return parts.filter(Boolean).join(" · ");
}

// ---- Pictures

const gallery = []; // {url, facts, grid: of a walk}
const MOST = 200;

function show(entry) {
  $("hint").hidden = true;
  $("picture").src = entry.url;
  $("picture").alt = captionOf(entry.facts);
  $("caption").textContent = captionOf(entry.facts);
  $("command").value = commandOf(entry.facts);
  const link = $("download");
  link.href = entry.url;
  const name = `${entry.facts.class_name || "picture"}-seed${entry.facts.seed}`.replaceAll(" ", "-");
  link.download = `${name}-${entry.facts.animate ? "walk" : entry.facts.index}.png`;
  link.removeAttribute("aria-disabled");
  $("download-grid").hidden = !entry.grid;
  if (entry.grid) $("download-grid").href = entry.grid;
  $("download-grid").download = `${name}-strip.png`;
  for (const button of $("strip").children) button.setAttribute("aria-pressed", button.firstChild.src === entry.url);
}

function clearStrip() {
  for (const button of $("strip").children) URL.revokeObjectURL(button.firstChild.src);
  $("strip").replaceChildren();
  $("strip").hidden = true;
}

function addToStrip(entry) {
  const button = make("button", { type: "button", title: captionOf(entry.facts) }, make("img", { src: entry.url, alt: captionOf(entry.facts) }));
  button.addEventListener("click", () => show(entry));
  $("strip").append(button);
  $("strip").hidden = false;
}

// A walk as one animated picture, and as a strip.
async function keepWalk(job, facts) {
  const ms = number("pace");
  const [url, grid] = await Promise.all([blobUrl(`/api/jobs/${job.id}/animation?ms=${ms}`), blobUrl(`/api/jobs/${job.id}/grid`)]);
  const entry = { url, grid, facts: { ...facts, animate: ms } };
  keep(entry);
  show(entry);
}

function keep(entry) {
  gallery.unshift(entry);
  const image = make("img", { src: entry.url, alt: captionOf(entry.facts), loading: "lazy" });
  const button = make("button", { type: "button", title: captionOf(entry.facts) }, image);
  button.addEventListener("click", () => { use(entry.facts); show(entry); });
  $("gallery").prepend(button);
  while (gallery.length > MOST) {
    forget(gallery.pop());
    $("gallery").lastChild.remove();
  }
}

function forget(entry) {
  URL.revokeObjectURL(entry.url);
  if (entry.grid) URL.revokeObjectURL(entry.grid);
}

// One job at a time; a later one takes the place of the one that waits.
let running = null, waiting = null, stopper = null;

async function work(kind, wanted) {
  stopper = new AbortController();
  const started = performance.now(), live = kind === "live";
  let made = 0, job, first;
  $("stop").disabled = false;
  $("progress").classList.add("on");
  try {
    job = await json("/api/jobs", { method: "POST", body: JSON.stringify(wanted()), signal: stopper.signal });
    if (kind === "walk") clearStrip();
    for await (const [name, value] of events(job.id, stopper.signal)) {
      if (name === "preview" && !made) {
        $("hint").hidden = true;
        $("picture").src = "data:image/png;base64," + value.png;
      } else if (name === "picture") {
        const entry = { url: await blobUrl(value.url), facts: value };
        if (kind === "walk") addToStrip(entry);
        if (!made++) show(entry);
        first ??= value;
        if (kind === "made") keep(entry);
        else if (live && shownLive) URL.revokeObjectURL(shownLive);
        if (live) shownLive = entry.url;
      } else if (name === "progress") {
        $("progress").value = (value.done + (value.steps ? value.step / value.steps : 0)) / value.count;
        say(value.state === "queued" ? `waiting behind ${value.before}` : `${value.done} of ${value.count}`);
      } else if (name === "end") {
        if (value.state === "failed") throw new Error(value.error);
        if (value.state === "done" && kind === "walk") await keepWalk(job, first);
        say(value.state === "cancelled" ? "stopped" :
          `${made} ${made === 1 ? "picture" : "pictures"} in ${((performance.now() - started) / 1000).toFixed(2)} s`);
      }
    }
  } catch (error) {
    say(error.name === "AbortError" ? "stopped" : error.message);
  }
  $("progress").classList.remove("on");
  $("progress").value = 0;
  $("stop").disabled = true;
}
let shownLive = null;

// kind: live, made, walk; wanted: gives the job's fields when its turn has come.
async function request(kind, wanted) {
  if (running) {
    if (kind === "live" && running !== "live") return;
    waiting = [kind, wanted];
    return;
  }
  running = kind;
  await work(kind, wanted);
  running = null;
  if (waiting) {
    const next = waiting;
    waiting = null;
    request(...next);
  }
}

const redraw = () => { if ($("live").checked && model) request("live", () => fields(1)); };

function stop() {
  waiting = null;
  if (stopper) stopper.abort();
}

// ---- Controls

function tellRanges() {
  for (const output of document.querySelectorAll("#controls output"))
    output.textContent = $(output.getAttribute("for")).value;
  document.querySelector("output[for=pace]").textContent += " ms";
}

function chooseClass(i, focus) {
  chosen = i;
  for (const button of $("classes").children) {
    const is = Number(button.dataset.class) === i;
    button.setAttribute("aria-selected", is);
    button.tabIndex = is ? 0 : -1;
    if (is && focus) button.focus();
  }
}

const thumbnails = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    thumbnails.unobserve(target);
    const of = model.name;
    blobUrl(`/api/classes/${target.dataset.class}/thumbnail?model=${encodeURIComponent(of)}`)
      .then(url => target.querySelector(".thumb").append(make("img", { src: url, alt: "" })), () => {});
  }
}, { rootMargin: "100px" });

function listClasses() {
  const word = $("search").value.trim().toLowerCase();
  $("classes").replaceChildren();
  for (const one of classes) {
    if (word && !`${one.class} ${one.name} ${one.wnid || ""}`.toLowerCase().includes(word)) continue;
    const button = make("button", { type: "button", role: "option", title: `${one.class}: ${one.name}` },
      make("span", { class: "thumb" }), make("span", { class: "name" }, one.name));
    button.dataset.class = one.class;
    button.addEventListener("click", () => { chooseClass(one.class); redraw(); });
    $("classes").append(button);
    thumbnails.observe(button);
  }
  chooseClass(chosen);
}

async function useModel(name) {
  model = models.find(one => one.name === name) || models[0];
  $("model").value = model.name;
  $("sampler").replaceChildren(...model.samplers.map(one => make("option", { value: one.name }, one.name)));
  $("sampler").value = model.defaults.sampler;
  $("guidance-row").hidden = !model.guidance;
  $("guidance").value = model.defaults.cfg_scale;
  const sizes = new Set([[model.height, model.width]].concat([0.5, 0.75, 1.25, 1.5, 2].map(factor =>
    [model.height, model.width].map(side => Math.max(1, Math.round(side * factor / model.unit)) * model.unit)))
    .filter(([h, w]) => Math.max(h, w) <= limits.max_size).map(([h, w]) => `${h}x${w}`));
  $("size").replaceChildren(...[...sizes].sort((a, b) => parseInt(a) - parseInt(b)).map(size => make("option", { value: size }, size)));
  $("size").value = `${model.height}x${model.width}`;
  classes = (await json("/api/classes?model=" + encodeURIComponent(model.name))).classes;
  chosen = Math.min(chosen, Math.max(classes.length - 1, 0));
  $("to-class").replaceChildren(...classes.map(one => make("option", { value: String(one.class) }, one.name)));
  if (classes.length > 1) $("to-class").value = String(classes[chosen ? 0 : 1].class);
  $("to-class").disabled = !classes.length;
  listClasses();
  useSampler(model.defaults.steps);
}

function useSampler(steps) {
  const usual = model.samplers.find(one => one.name === $("sampler").value).steps;
  $("steps").disabled = !usual;
  $("steps").max = Math.max(50, usual);
  $("steps").value = steps || usual || 1;
  tellRanges();
}

// The parameters of a picture into the controls.
function use(facts) {
  const named = classOf(facts.class);
  if (named) chooseClass(named.class);
  $("seed").value = facts.seed;
  if (facts.sampler && [...$("sampler").options].some(option => option.value === facts.sampler)) $("sampler").value = facts.sampler;
  useSampler(facts.steps);
  if (facts.cfg_scale) $("guidance").value = facts.cfg_scale;
  $("size").value = facts.size || `${model.height}x${model.width}`;
  if (facts.walk) {
    $("walk").open = true;
    $("frames").value = facts.walk;
    const to = classOf(facts.to_class ?? facts.class);
    if (to) $("to-class").value = String(to.class);
    $("to-seed").value = facts.to_seed ?? facts.seed;
  }
  if (facts.animate) $("pace").value = facts.animate;
  tellRanges();
}

$("controls").addEventListener("submit", event => { event.preventDefault(); request("made", () => ({ ...fields(number("number")), preview_every: 4 })); });
$("go-walk").addEventListener("click", () => request("walk", () => ({ ...fields(), ...walkFields() })));
$("stop").addEventListener("click", stop);
const draw32 = () => crypto.getRandomValues(new Uint32Array(1))[0];
$("dice").addEventListener("click", () => { $("seed").value = draw32(); redraw(); });
$("to-dice").addEventListener("click", () => { $("to-seed").value = draw32(); });
for (const id of ["frames", "pace"]) $(id).addEventListener("input", tellRanges);
$("search").addEventListener("input", listClasses);
$("model").addEventListener("change", () => useModel($("model").value).then(redraw));
$("sampler").addEventListener("change", () => { useSampler(); redraw(); });
$("size").addEventListener("change", redraw);
for (const id of ["seed", "steps", "guidance"])
  $(id).addEventListener("input", () => { tellRanges(); redraw(); });
$("number").addEventListener("input", tellRanges);
$("classes").addEventListener("keydown", event => {
  const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const buttons = [...$("classes").children];
  if (!move || !buttons.length) return;
  event.preventDefault();
  const at = buttons.findIndex(button => Number(button.dataset.class) === chosen);
  chooseClass(Number(buttons[Math.max(0, Math.min(buttons.length - 1, at + move))].dataset.class), true);
  redraw();
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") stop();
  if (event.key === "r" && !event.ctrlKey && !event.metaKey && !/INPUT|SELECT/.test(event.target.tagName) && !$("make").hidden) $("dice").click();
});
$("clear").addEventListener("click", () => {
  gallery.splice(0).forEach(forget);
  $("gallery").replaceChildren();
});
$("copy").addEventListener("click", async () => {
  $("command").select();
  try { await navigator.clipboard.writeText($("command").value); say("copied"); } catch { document.execCommand("copy"); }
});

// ---- A picture made by nalagen says how

async function again(file) {
  const bytes = new Uint8Array(await file.arrayBuffer()), view = new DataView(bytes.buffer);
  let facts = null;
  for (let at = 8; at + 12 <= bytes.length;) {
    const length = view.getUint32(at), kind = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    const chunk = bytes.subarray(at + 8, at + 8 + length);
    if (kind === "iTXt" && new TextDecoder().decode(chunk.subarray(0, 8)) === "nalagen\0")
      try { facts = JSON.parse(new TextDecoder().decode(chunk.subarray(8 + 4))); } catch { /* not ours */ }
    at += 12 + length;
  }
  if (!facts) return say("this picture does not say how it was made");
  const own = models.find(one => one.sha256 === facts.sha256);
  if (own && own !== model) await useModel(own.name);
  if (!own) say("another model made this picture");
  use(facts);
  try {
    const wanted = await fieldsOf(facts);
    request(facts.walk && (facts.grid || facts.animate) ? "walk" : "made", () => wanted);
  } catch (error) { say(error.message); }
}
$("file").addEventListener("change", () => { if ($("file").files[0]) again($("file").files[0]); $("file").value = ""; });
for (const name of ["dragover", "dragleave", "drop"])
  document.addEventListener(name, event => {
    event.preventDefault();
    $("frame").classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files[0]) again(event.dataTransfer.files[0]);
  });

// ---- Charts

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
  const list = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) list.push(Number(at.toPrecision(10)));
  return list;
}
const short = value => Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3) ? value.toExponential(1).replace("e+", "e") : String(Number(value.toPrecision(4)));

// Charts are drawn in the pixels that they have: letters keep their size.
const drawn = new Map();
const resized = new ResizeObserver(entries => { for (const { target } of entries) if (drawn.has(target)) draw(target, ...drawn.get(target)); });
for (const chart of document.querySelectorAll(".chart")) resized.observe(chart);

// x is a step. series: [{name, points: [[x, y]], marks}]
function draw(chart, legend, series) {
  const { width, height } = chart.getBoundingClientRect();
  drawn.set(chart, [legend, series]);
  chart.replaceChildren();
  legend.replaceChildren();
  if (!width) return; // not in sight
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const all = series.flatMap(one => one.points);
  if (!all.length) {
    chart.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing to draw yet"));
    return;
  }
  let [x0, x1, y0, y1] = [0, 0, 1, 1].map((axis, i) => (i % 2 ? Math.max : Math.min)(...all.map(point => point[axis])));
  if (x0 === x1) { x0 -= 1; x1 += 1; }
  if (y0 === y1) { y0 -= Math.abs(y0) * 0.1 || 1; y1 += Math.abs(y1) * 0.1 || 1; }
  const pad = (y1 - y0) * 0.05;
  y0 -= pad; y1 += pad;
  const left = 58, right = width - 20, bottom = height - 32;
  const px = x => left + (x - x0) / (x1 - x0) * (right - left), py = y => bottom - (y - y0) / (y1 - y0) * (bottom - 14);
  for (const x of ticks(x0, x1, Math.min(8, width / 90)).filter(Number.isInteger)) chart.append(svg("text", { x: px(x), y: height - 12, "text-anchor": "middle" }, String(x)));
  for (const y of ticks(y0, y1, Math.min(6, height / 36))) chart.append(svg("line", { x1: left, x2: right, y1: py(y), y2: py(y) }), svg("text", { x: left - 8, y: py(y) + 4, "text-anchor": "end" }, short(y)));
  series.forEach((one, i) => {
    chart.append(svg("path", { class: "s" + i % 4, d: one.points.map((point, k) => `${k ? "L" : "M"}${px(point[0]).toFixed(1)} ${py(point[1]).toFixed(1)}`).join("") }));
    if (one.marks || one.points.length === 1)
      for (const point of one.points) {
        const dot = svg("circle", { class: "f" + i % 4, cx: px(point[0]), cy: py(point[1]), r: 4 });
        dot.append(svg("title", {}, `${one.name}: ${short(point[1])} at ${short(point[0])}`));
        chart.append(dot);
      }
    legend.append(make("span", { class: "k" + i % 4 }, "● " + one.name));
  });
}

// ---- Runs

let runs = [], chosenRuns = [], details = new Map(), gridOf = "";

const clock = seconds => seconds < 60 ? `${Math.round(seconds)} s` : seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
const bytes = count => count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${(count / 2 ** 20).toFixed(0)} MiB`;

/* What happened, the latest first. */
function eventsOf(run) {
  const events = [];
  let least = Infinity, skipped = 0;
  for (const { step, val_loss } of run.validation)
    if (val_loss < least) events.push([step, `validation ${short(least = val_loss)}, the least so far`]);
  for (const line of run.log)
    if (line.skipped > skipped) {
      events.push([line.step, `steps skipped, not finite: ${line.skipped - skipped}`]);
      skipped = line.skipped;
    }
  for (const { step, metrics } of run.evaluations)
    if (step !== undefined) events.push([step, Object.entries(metrics).slice(0, 2).map(([key, value]) => `${key} ${short(value)}`).join(", ")]);
  for (const step of run.grids) events.push([step, "pictures"]);
  if (run.done && run.log.length) events.push([run.log.at(-1).step, "done"]);
  return make("ol", { class: "events" }, ...events.sort((a, b) => b[0] - a[0]).slice(0, 10).map(([step, what]) => make("li", {}, `${step}: ${what}`)));
}

function factsOf(run) {
  const last = run.log.at(-1) || {}, validation = run.validation.filter(line => line.val_loss !== undefined).at(-1);
  const steps = run.training?.steps, rate = run.log.length > 1 ? (last.step - run.log[0].step) / (last.seconds - run.log[0].seconds) : 0;
  const rows = [["State", run.done ? "done" : run.age < 120 ? "running" : `no news for ${clock(run.age)}`], ["Step", steps ? `${last.step ?? 0} of ${steps}` : last.step ?? 0]];
  if (last.loss !== undefined) rows.push(["Loss", short(last.loss)]);
  if (validation) rows.push(["Validation", `${short(validation.val_loss)} at ${validation.step}`]);
  if (last.images_per_second) rows.push(["Speed", `${short(last.images_per_second)} images/s`]);
  if (last.memory) rows.push(["Memory", bytes(last.memory)]);
  if (last.skipped) rows.push(["Steps skipped", last.skipped]);
  if (!run.done && steps && rate > 0) rows.push(["Time left", clock((steps - last.step) / rate)]);
  return make("dl", {}, make("dt", {}, "Run"), make("dd", {}, run.name), ...rows.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, String(value))]),
    make("dt", {}, "Events"), make("dd", {}, eventsOf(run)));
}

const curves = [["loss", "Loss"], ["val_loss", "Validation loss"], ["grad_norm", "Norm of the gradient"], ["lr", "Learning rate"], ["images_per_second", "Images a second"], ["memory", "Memory"]];
$("curve").replaceChildren(...curves.map(([key, name]) => make("option", { value: key }, name)));

function drawRuns() {
  const key = $("curve").value, shown = chosenRuns.map(name => details.get(name)).filter(Boolean), series = [];
  for (const run of shown) {
    const points = lines => lines.filter(line => Number.isFinite(line[key])).map(line => [line.step, line[key]]);
    series.push({ name: run.name, points: points(key === "val_loss" ? run.validation : run.log), marks: key === "val_loss" });
    if (key === "loss" && run.validation.some(line => line.val_loss !== undefined))
      series.push({ name: run.name + ", validation", points: run.validation.filter(line => Number.isFinite(line.val_loss)).map(line => [line.step, line.val_loss]), marks: true });
  }
  draw($("chart"), $("legend"), series);
  $("run-facts").replaceChildren(...shown.map(factsOf));
  const first = shown[0], grids = first ? first.grids : [];
  $("grids").hidden = !grids.length;
  if (grids.length) {
    const slider = $("grid-step"), atEnd = slider.value === slider.max;
    slider.max = grids.length - 1;
    if (atEnd) slider.value = slider.max;
    showGrid();
  }
}

async function showGrid() {
  const run = details.get(chosenRuns[0]), step = run.grids[number("grid-step")], path = `/api/runs/${encodeURIComponent(run.name)}/grids/${step}`;
  $("grid-text").textContent = step;
  if (gridOf === path) return;
  gridOf = path;
  try {
    const url = await blobUrl(path);
    if (gridOf !== path) return URL.revokeObjectURL(url);
    if ($("grid").src) URL.revokeObjectURL($("grid").src);
    $("grid").src = url;
  } catch (error) { say(error.message); }
}

async function loadRuns() {
  runs = (await json("/api/runs")).runs;
  $("no-runs").hidden = runs.length > 0;
  chosenRuns = chosenRuns.filter(name => runs.some(run => run.name === name));
  if (!chosenRuns.length && runs.length) chosenRuns = [[...runs].sort((a, b) => a.age - b.age)[0].name];
  const buttons = $("run-list").children; // that stay keep the focus
  if ([...buttons].map(button => button.textContent).join("/") !== runs.map(run => run.name).join("/"))
    $("run-list").replaceChildren(...runs.map(run => {
      const button = make("button", { type: "button" }, run.name);
      button.addEventListener("click", () => {
        chosenRuns = chosenRuns.includes(run.name) ? chosenRuns.filter(name => name !== run.name) : [...chosenRuns, run.name].slice(-2);
        loadRuns();
      });
      return button;
    }));
  for (const button of buttons) button.setAttribute("aria-pressed", chosenRuns.includes(button.textContent));
  for (const name of chosenRuns) details.set(name, await json("/api/runs/" + encodeURIComponent(name)));
  drawRuns();
}
$("curve").addEventListener("change", drawRuns);
$("grid-step").addEventListener("input", showGrid);

// ---- Evaluations

let order = ["step", 1], evaluationsShown = "";

async function loadEvaluations() {
  const rows = (await json("/api/runs")).runs.flatMap(run => run.evaluations.map(one => ({ run: run.name, ...one })));
  const metrics = [...new Set(rows.flatMap(row => Object.keys(row.metrics)))].filter(key => !/_(std|95)$/.test(key));
  const before = $("metric").value, state = JSON.stringify([rows, order, before]);
  if (state === evaluationsShown) return;
  evaluationsShown = state;
  const focus = [...document.querySelectorAll("#table th button")].indexOf(document.activeElement);
  $("no-evaluations").hidden = rows.length > 0;
  $("metric").replaceChildren(...metrics.map(key => make("option", { value: key }, key)));
  if (metrics.includes(before)) $("metric").value = before;
  const key = $("metric").value, named = [...new Set(rows.map(row => row.run))];
  draw($("metric-chart"), $("metric-legend"), named.map(name => ({
    name, marks: true,
    points: rows.filter(row => row.run === name && row.step !== undefined && Number.isFinite(row.metrics[key])).map(row => [row.step, row.metrics[key]]).sort((a, b) => a[0] - b[0])
  })).filter(one => one.points.length));
  const value = (row, column) => row[column] ?? row.metrics[column], kind = column => ["run", "file", "reference"].includes(column) ? "text" : "number";
  const columns = ["run", "step", ...metrics, "n", "reference", "file"].filter(column => rows.some(row => value(row, column) !== undefined));
  const [by, direction] = order;
  rows.sort((a, b) => {
    const [x, y] = [value(a, by), value(b, by)];
    return direction * (x === undefined ? 1 : y === undefined ? -1 : x < y ? -1 : x > y ? 1 : 0);
  });
  $("table").tHead.replaceChildren(make("tr", {}, ...columns.map(column => {
    const button = make("button", { type: "button" }, column + (column === by ? direction > 0 ? " ↑" : " ↓" : ""));
    button.addEventListener("click", () => { order = [column, column === by ? -direction : 1]; loadEvaluations(); });
    return make("th", { scope: "col", class: kind(column), "aria-sort": column === by ? direction > 0 ? "ascending" : "descending" : "none" }, button);
  })));
  $("table").tBodies[0].replaceChildren(...rows.map(row => make("tr", {}, ...columns.map(column => {
    const cell = value(row, column);
    return make("td", { class: kind(column) }, cell === undefined ? "" : typeof cell === "number" ? short(cell) : cell);
  }))));
  document.querySelectorAll("#table th button")[focus]?.focus();
}
$("metric").addEventListener("change", loadEvaluations);

// ---- The server's state

let limits = { max_size: 1024, max_pictures: 64 };

async function loadDevice() {
  const state = await json("/api/device"), rows = [
    ["Version", state.version], ["Device", state.device], ["Processor", state.processor], ["Arithmetic", state.dtype], ["Threads", state.threads],
    ["Memory", bytes(state.memory) + (state.memory_limit ? ` of ${bytes(state.memory_limit)}` : "")], ["Most memory", bytes(state.memory_peak)],
    ["Queue", `${state.running} at work, ${state.queued} waiting, room for ${state.max_queue}`], ["Jobs", state.jobs], ["Pictures", state.pictures],
    ["Batches", state.batches], ["At work", state.seconds > 0 ? `${(100 * state.busy / state.seconds).toFixed(0)} % of ${clock(state.seconds)}` : ""],
    ["Most of a job", `${state.max_pictures} pictures, ${state.max_size} pixels a side, ${state.max_seconds} s`]];
  limits = state;
  $("device").replaceChildren(...rows.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, String(value))]));
}

// ---- Views

const views = { make: null, runs: loadRuns, evaluation: loadEvaluations, server: loadDevice };
let view = "make";

function open(name) {
  view = name;
  for (const one of Object.keys(views)) {
    $(one).hidden = one !== name;
    $("tab-" + one).setAttribute("aria-selected", one === name);
    $("tab-" + one).tabIndex = one === name ? 0 : -1;
  }
  history.replaceState(null, "", name === "make" ? location.pathname : "#" + name);
  refresh();
}
async function refresh() {
  if (!views[view]) return;
  try { await views[view](); } catch (error) { say(error.message); }
}
const names = Object.keys(views);
names.forEach((name, i) => {
  $("tab-" + name).addEventListener("click", () => open(name));
  $("tab-" + name).addEventListener("keydown", event => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const next = names[(i + move + names.length) % names.length];
    open(next);
    $("tab-" + next).focus();
  });
});
setInterval(() => { if (!document.hidden) refresh(); }, 2000);

(async () => {
  tellRanges();
  try {
    await loadDevice();
    $("number").max = Math.min(16, limits.max_pictures);
    $("frames").max = Math.min(32, limits.max_pictures);
    models = (await json("/api/models")).models;
    $("model").replaceChildren(...models.map(one => make("option", { value: one.name }, one.name)));
    $("model-row").hidden = models.length < 2;
    await useModel(models[0].name);
  } catch (error) { say(error.message); }
  if (names.includes(location.hash.slice(1))) open(location.hash.slice(1));
})();
