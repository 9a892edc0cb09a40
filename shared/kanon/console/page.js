// The console. Values are hostile text: they only ever become the text of an element.
const $ = (id) => document.getElementById(id);
const token = () => sessionStorage.getItem("token") ?? "";
if (location.hash.length > 1) {
  sessionStorage.setItem("token", location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
}

// --- elements -------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

/** Say something in a live region; a problem is red. */
function say(id, text, bad = false) {
  if ($(id).textContent !== text) $(id).textContent = text; // a screen reader says what changes
  $(id).classList.toggle("bad", bad);
}

/** A table; columns are [title, is it a number]. */
function table(caption, columns, rows) {
  const kind = (number) => (number ? { class: "number" } : {});
  const head = el("tr", {}, ...columns.map(([title, number]) => el("th", { scope: "col", ...kind(number) }, title)));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, n) => el("td", kind(columns[n][1]), cell))));
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body)));
}

/** Facts as a list of terms. */
const facts = (pairs) => el("dl", {}, ...pairs.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text))));

/** Lines over whole numbers, as a picture with its table behind it. */
function chart({ title, lines, x, most, band, k, status, height = 260 }) {
  const [width, left, bottom] = [720, 56, status ? 58 : 34];
  const [first, last] = x;
  const at = (value) => left + ((value - first) / Math.max(1, last - first)) * (width - left - 12);
  const up = (value) => height - bottom - (value / most) * (height - bottom - 16);
  const parts = [];
  if (band?.across) parts.push(svg("rect", { class: "band", x: left, width: width - left - 12, y: up(Math.min(most, band.to)), height: up(band.from) - up(Math.min(most, band.to)) }));
  if (band && !band.across) parts.push(svg("rect", { class: "band", x: at(band.from), width: at(band.to) - at(band.from), y: 16, height: height - bottom - 16 }));
  if (k !== undefined) parts.push(band?.across
    ? svg("line", { class: "k", x1: left, x2: width - 12, y1: up(k), y2: up(k) })
    : svg("line", { class: "k", x1: at(k), x2: at(k), y1: 16, y2: height - bottom }));
  parts.push(svg("path", { class: "axis", d: `M${left} 16V${height - bottom}H${width - 12}` }));
  for (const part of [0, 0.5, 1]) parts.push(svg("text", { x: left - 6, y: up(part * most) + 4, "text-anchor": "end" }, String(+(part * most).toFixed(1))));
  for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const value = Math.round(first + part * (last - first));
    if (part === 0.5 && (value === first || value === last)) continue;
    parts.push(svg("text", { x: at(value), y: height - bottom + 18, "text-anchor": anchor }, String(value)));
  }
  for (const { kind, points } of lines) parts.push(svg("polyline", { class: kind, points: points.map(([a, b]) => `${at(a)},${up(b)}`).join(" ") }));
  for (const { from, to, value } of status ?? []) {
    parts.push(svg("rect", { class: String(value), x: at(from), width: Math.max(2, at(to) - at(from)), y: height - 24, height: 16, rx: 2 }));
  }
  if (status) parts.push(svg("text", { x: left - 6, y: height - 12, "text-anchor": "end" }, "status"));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...parts);
}

// --- calls ----------------------------------------------------------------------------------

async function call(path, options = {}) {
  const response = await fetch(path, { cache: "no-cache", credentials: "omit", ...options });
  const text = await response.text();
  let found = {};
  try { found = JSON.parse(text); } catch { found = { problem: text.trim() }; }
  if (response.ok) return found;
  const reason = found.problem ?? found.error?.message ?? found.message ?? `the service answers ${response.status}`;
  throw Object.assign(new Error(reason), { status: response.status });
}
const json = (body, headers = {}) => ({ method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json", ...headers } });
const run = (command, given) => call(`/console/run/${command}`, json(given, { "x-console-token": token() }));
const pathOf = (type) => `/v1/types/${encodeURIComponent(type)}`;
const bearer = (id) => ($(id).value ? { authorization: `Bearer ${$(id).value}` } : {});

async function idOf(value) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(value)));
  return btoa(String.fromCharCode(...hash)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Do the work of a form: its button waits, and a problem is said where the results would be. */
function onSubmit(form, said, work) {
  $(form).addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = event.target.querySelector("button");
    button.disabled = true;
    try { await work(); } catch (error) { say(said, error.message, true); } finally { button.disabled = false; }
  });
}

// --- tabs -----------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];
function open(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !chosen;
  }
}
for (const tab of tabs) {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const shown = tabs.filter((other) => !other.hidden);
    const n = shown.indexOf(tab);
    const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    const next = shown.at(to % shown.length);
    open(next);
    next.focus();
    event.preventDefault();
  });
}

// --- now ------------------------------------------------------------------------------------

const types = new Map();
const hours = (steps, period) => (steps * period >= 7200 ? `${+((steps * period) / 3600).toFixed(1)} h` : `${steps * period} s`);
const day = (unix) => new Date(unix * 1000).toDateString();
const clock = (unix) => new Date(unix * 1000)[day(unix) === day(Date.now() / 1000) ? "toLocaleTimeString" : "toLocaleString"]();

function card(type) {
  const { epsilon, delta } = type.bounds.intervalAware;
  const { prior, atMost } = type.posterior;
  return el("article", { class: "card" }, el("h2", {}, type.type), facts([
    ["k", `${type.k} clients`],
    ["window", `${hours(type.window, type.period)} (${type.window} steps)`],
    ["the noise decides", `from ${type.neverTrueBelow} to ${type.surelyTrueFrom - 1} clients`],
    ["true lasts", type.hold ? hours(type.hold, type.period) : "to the end of the window's instance"],
    ...(type.listed ? [["listed", "true values are published"]] : []),
    ["ε, δ of one join", `${epsilon}, ${delta.toExponential(1)}`],
  ]), el("p", {}, `Below ${type.neverTrueBelow} clients a value is always false, from ${type.surelyTrueFrom} it is true.` +
    ` Whoever believed with ${Math.round(prior * 100)}% that somebody joined believes it with at most` +
    ` ${(Math.ceil(atMost * 1000) / 10).toFixed(1)}% after all answers.`));
}

async function showTypes() {
  const found = await call("/v1/types");
  for (const type of found.types) types.set(type.type, type);
  $("types").replaceChildren(...found.types.map(card));
  const option = (type) => el("option", {}, type.type);
  $("try-type").replaceChildren(...found.types.map(option));
  const listed = found.types.filter((type) => type.listed);
  $("list-type").replaceChildren(...listed.map(option));
  $("tab-lists").hidden = !listed.length;
}

/** What the service answers now about a value that nobody joined: the step, and the next tick. */
async function tick() {
  const [type] = types.values();
  const id = await idOf("a value that nobody joins");
  return await call(`${pathOf(type.type)}/sets/${id}`);
}

async function showClock() {
  try {
    const { step, nextUpdate } = await tick();
    const [{ period }] = types.values();
    const { now, moves } = await call("/console/clock");
    const age = step === null ? 0 : Math.round(now - (step + 1) * period);
    const healthy = await fetch("/healthz", { cache: "no-cache" }).then((r) => (r.status === 404 ? null : r.text()), () => null);
    const ill = healthy !== null && healthy.trim() !== "healthy";
    say("health", ill ? healthy : "healthy", ill);
    $("moving").hidden = !moves;
    $("try-clock").textContent = `It is ${clock(now)}, step ${Math.floor(now / period)}.`;
    $("clock").textContent = (step === null ? "No step has been released yet." : `Answers are those of step ${step}, which ended ${age} s ago.`) +
      ` A step takes ${hours(1, period)}. Next update at ${clock(Date.parse(nextUpdate) / 1000)}.`;
  } catch (error) {
    say("health", `no answer: ${error.message}`, true);
  }
}

// --- try ------------------------------------------------------------------------------------

const unused = () => ({ key: "", sent: 0, joins: [], points: [], session: crypto.randomUUID().slice(0, 8) });
const trial = unused();

/** How many invented clients joined in the window that ends with a step; none before the first one. */
function counted({ window }, step) {
  const within = ({ at }) => step !== null && at > step - window && at <= step;
  return trial.joins.filter(within).reduce((sum, { clients }) => sum + clients, 0);
}

async function joinMany(type, value, clients) {
  const id = await idOf(value);
  const place = `${pathOf(type.type)}/sets/${id}:join`;
  const named = type.listed ? { value } : {};
  for (let done = 0; done < clients; done += 20) {
    const batch = Array.from({ length: Math.min(20, clients - done) }, (_, n) => {
      const client = `console-${trial.session}-${trial.sent + n}`;
      return call(place, json({ client, ...named }, bearer("try-key")));
    });
    const { now } = await call("/console/clock");
    await Promise.all(batch);
    trial.joins.push({ at: Math.floor(now / type.period), clients: batch.length });
    trial.sent += batch.length;
    say("try-said", `${trial.sent} invented clients joined.`);
  }
}

function drawTrial() {
  const type = types.get($("try-type").value);
  const points = trial.points;
  if (points.length < 1) return;
  const steps = points.map((point) => point.n);
  const most = Math.max(type.surelyTrueFrom, ...points.map((point) => point.count)) * 1.1;
  const spans = points.map((point, n) => ({ from: point.n, to: points[n + 1]?.n ?? point.n + 1, value: point.value }));
  const picture = chart({
    title: "clients that joined, and the status, at each update", x: [steps[0], steps.at(-1) + 1], most: Math.ceil(most), k: type.k,
    band: { across: true, from: type.neverTrueBelow, to: type.surelyTrueFrom },
    lines: [{ kind: "curve", points: [...points.map((p) => [p.n, p.count]), [steps.at(-1) + 1, points.at(-1).count]] }], status: spans,
  });
  const rows = points.map((p) => [String(p.n), String(p.step ?? "none"), String(p.count), String(p.value)]);
  const behind = table("Updates", [["update", true], ["step", true], ["invented clients", true], ["status", false]], rows);
  $("try-picture").replaceChildren(picture,
    el("figcaption", {}, `Clients (line), k = ${type.k} (dashes), where the noise decides (band), and the released status (bar).`),
    el("details", {}, el("summary", {}, "As a table"), behind));
  $("try-picture").hidden = false;
}

async function followTrial() {
  const type = types.get($("try-type").value);
  if (!trial.key || !type) return;
  const [name, value] = JSON.parse(trial.key);
  const answer = await call(`${pathOf(name)}/sets/${await idOf(value)}`);
  const last = trial.points.at(-1);
  if (last && answer.nextUpdate < last.next) return; // a later answer came first
  const count = counted(type, answer.step);
  const since = answer.kAnonymous ? (last?.since ?? answer.step) : null;
  if (answer.nextUpdate !== last?.next) {
    trial.points.push({ n: (last?.n ?? 0) + 1, step: answer.step, next: answer.nextUpdate, count, value: answer.kAnonymous, since });
    drawTrial();
  }
  const why = `${count} of ${trial.sent} invented clients count, and the noise decides from ${type.neverTrueBelow} to ${type.surelyTrueFrom - 1} clients`;
  if (since !== null) say("try-said", `True since the update of step ${since}. This is step ${answer.step}: ${why}.`);
  else if (trial.sent < type.neverTrueBelow) say("try-said", `False: ${trial.sent} invented clients joined; below ${type.neverTrueBelow} a value is never true. Let more join.`);
  else say("try-said", `False${answer.step === null ? "" : ` as of step ${answer.step}`}: ${why}. Joins count at the update after their step has ended.`);
}

onSubmit("joining", "try-said", async () => {
  const type = types.get($("try-type").value);
  const key = JSON.stringify([type.type, $("try-value").value]);
  if (trial.key !== key) Object.assign(trial, unused(), { key });
  await joinMany(type, $("try-value").value, Number($("try-clients").value));
  await followTrial();
});

/** Move the clock from update to update, so that each one is in the picture. */
onSubmit("moving", "try-said", async () => {
  for (let left = Number($("try-steps").value); left > 0; left--) {
    const { nextUpdate } = await tick();
    await call("/console/run/clock", json({ to: Date.parse(nextUpdate) / 1000 }, { "x-console-token": token() }));
    await followTrial();
  }
  await showClock();
});

// --- lists ----------------------------------------------------------------------------------

const MOST_ROWS = 500;
let list = null;

/** The newest list of a type, all pages; from the beginning again if the next one replaces it meanwhile. */
async function newest(type) {
  for (let begun = 1; ; begun++) {
    const values = [];
    try {
      for (let after = ""; ; ) {
        const page = await call(`${pathOf(type)}/released${after}`, { headers: bearer("list-key") });
        values.push(...page.values);
        if (page.next === null) return { ...page, values };
        after = `?after=${encodeURIComponent(page.next)}`;
      }
    } catch (error) {
      if (error.status !== 404 || !values.length || begun === 3) throw error;
    }
  }
}

/** A value as a text that only shows: what is not printable is written as its escape. */
const plain = (text) => text.replace(/(?! )[\p{C}\p{Z}]/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);

/** When the answers of a step became visible, in milliseconds. */
const shownAt = (step) => Date.parse(list.nextUpdate) - (list.step + 1 - step) * types.get(list.type).period * 1000;

async function showList(type) {
  const found = await newest(type);
  if ($("list-type").value !== type) return;
  list = found;
  list.values.sort((one, other) => other.since - one.since || (one.value < other.value ? -1 : 1));
  const count = `${list.values.length.toLocaleString("en")} ${list.values.length === 1 ? "value" : "values"}`;
  const next = `Next update at ${clock(Date.parse(list.nextUpdate) / 1000)}.`;
  say("list-said", list.step === null ? `No list has been published yet. ${next}` : `The list of step ${list.step}: ${count}. ${next}`);
  $("list").hidden = list.step === null;
  drawList();
  showFound();
}

/** How the list grew: for each step how many of its values were true without a break since then. */
function drawList() {
  const steps = list.values.map(({ since }) => since).sort((one, other) => one - other);
  $("list-picture").hidden = !steps.length;
  if (!steps.length) return;
  const points = steps.flatMap((step, n) => [[step, n], [step, n + 1]]);
  const picture = chart({
    title: "values of the list by the step since which they are true", x: [steps[0] - 1, list.step + 1], most: steps.length, height: 140,
    lines: [{ kind: "curve", points: [[steps[0] - 1, 0], ...points, [list.step + 1, steps.length]] }],
  });
  $("list-picture").replaceChildren(picture, el("figcaption", {}, "How many values of this list have been true since each step."));
}

function showFound() {
  const wanted = $("list-search").value.toLowerCase();
  const found = list.values.map(({ value, since }) => [plain(value), since]).filter(([text]) => text.toLowerCase().includes(wanted));
  const cut = found.length > MOST_ROWS ? ` The first ${MOST_ROWS} are shown.` : "";
  say("list-found", wanted || cut ? `${found.length.toLocaleString("en")} found.${cut}` : "");
  const row = ([text, since]) => [text, String(since), new Date(shownAt(since)).toLocaleString()];
  $("list-values").replaceChildren(table(`Values of ${list.type}`, [["value", false], ["true since step", true], ["true since", false]], found.slice(0, MOST_ROWS).map(row)));
}

/** A text as a cell of CSV. One that a program for tables would execute gets an apostrophe before it. */
const cell = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

function download() {
  const lines = list.values.map(({ value, since }) => `${cell(value)},${since},${new Date(shownAt(since)).toISOString()}\r\n`);
  const url = URL.createObjectURL(new Blob(["value,since,time\r\n", ...lines], { type: "text/csv" }));
  el("a", { href: url, download: `${list.type}-${list.step}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

async function followList() {
  if (!list || $("lists").hidden) return;
  const { type, step } = list;
  const pointer = await call(`${pathOf(type)}/ranges`, { headers: bearer("list-key") });
  if (pointer.step !== step) await showList(type);
}

function hideList() {
  list = null;
  $("list").hidden = true;
  say("list-said", "");
}

$("list-type").addEventListener("change", hideList);
$("list-search").addEventListener("input", showFound);
onSubmit("listing", "list-said", async () => {
  hideList();
  await showList($("list-type").value);
});
onSubmit("finding", "list-found", download);

// --- plan -----------------------------------------------------------------------------------

const SHOWN = { k: (v) => v, window: (v) => `${v} h`, epsilon: (v) => v, delta: (v) => v };
for (const [id, text] of Object.entries(SHOWN)) {
  const show = () => { document.querySelector(`output[for=${id}]`).textContent = text($(id).value); };
  $(id).addEventListener("input", show);
  show();
}

const dollars = (amount) => `$${amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;

function showPlan(plan, cost) {
  const [from, to] = plan.zone99;
  const curve = plan.curve.filter((point) => point.count >= from - 8 && point.count <= to + 8);
  const year = plan.rejoining.at(-1);
  const picture = chart({
    title: "probability of true by the number of clients", x: [curve[0].count, curve.at(-1).count], most: 1, k: plan.k, band: { from, to },
    lines: [{ kind: "curve", points: curve.map((p) => [p.count, p.trueAtOnce]) }, { kind: "second", points: curve.map((p) => [p.count, p.trueWithinInstance]) }],
  });
  const rows = curve.map((p) => [String(p.count), p.trueAtOnce.toFixed(4), p.trueWithinInstance.toFixed(4), p.expectedDelay === null ? "never" : p.expectedDelay.toPrecision(3)]);
  $("planned").replaceChildren(
    facts([
      ["the noise decides for", `${to - from} clients: ${from} to ${to}`],
      ["mean delay at its end", `${plan.delayAtZone.toFixed(2)} h`],
      ["one join", `ε ${plan.bounds.intervalAware.epsilon}, δ ${plan.bounds.intervalAware.delta.toExponential(1)}`],
      ["joining every hour for a year", `ε ${year.epsilon}, δ ${year.delta.toExponential(1)}`],
      ["never true below", `${plan.neverTrueBelow} clients`],
      ["a month on AWS", dollars(cost.dollarsAMonth)],
      ["a million joins", cost.dollarsAMillionJoins === null ? "-" : dollars(cost.dollarsAMillionJoins)],
    ]),
    el("figure", {}, picture, el("figcaption", {}, "Probability that a value is true at once (line) and within a window (dashes), by how many clients share it."),
      el("details", {}, el("summary", {}, "As a table"),
        table("Probabilities", [["clients", true], ["true at once", true], ["true within a window", true], ["hours until true", true]], rows))),
    el("p", {}, "The type, for --types or the parameter Types:"), el("pre", { class: "card scroll", tabindex: "0" }, JSON.stringify(plan.types)),
    table("The bill of a month", [["service", false], ["what", false], ["$", true]], cost.lines.filter((l) => l.dollars >= 0.01).map((l) => [l.service, l.what, l.dollars.toFixed(2)])));
}

onSubmit("planning", "plan-said", async () => {
  say("plan-said", "Planning…");
  $("planned").replaceChildren();
  const given = { k: $("k").value, window: $("window").value, epsilon: $("epsilon").value, delta: `1e${$("delta").value}`, restart: $("restart").value };
  const plan = await run("plan", given);
  const load = Object.fromEntries(["joins", "batch", "queries", "sets"].map((id) => [id, $(id).value]));
  const cost = await run("cost", { ...load, type: JSON.stringify(Object.values(plan.types)[0]) });
  say("plan-said", plan.warnings.join(" "));
  showPlan(plan, cost);
});

async function simulate(file) {
  if (file.size > 900_000) return say("log-said", `${file.name} has ${Math.ceil(file.size / 1000)} kB: run kanon simulate ${file.name} for more than 900`, true);
  say("log-said", "Simulating…");
  try {
    const found = await run("simulate", { log: await file.text(), k: $("k").value, window: $("window").value });
    const row = (r) => [r.label, String(r.sets.true), String(r.sets.reachedK), `${(100 * r.joins.ofTrueSets / r.joins.total).toFixed(1)}%`,
      String(r.answers.trueBelowK), String(r.answers.falseFromK), `ε ${r.rejoining.ninetyNine.epsilon}`, String(r.costly.mostOfAClient)];
    const columns = [["type", false], ["values ever true", true], ["values that reached k", true], ["joins of true values", true],
      ["answers true below k", true], ["answers false from k", true], ["99% of clients lose at most, in one value", true], ["most values of one client that could cost anything", true]];
    $("simulated").replaceChildren(
      el("p", {}, `${found.log.joins.toLocaleString("en")} joins of ${found.log.sets.toLocaleString("en")} values, ${found.log.from} to ${found.log.to}.`),
      table("The log under these parameters", columns, found.results.map(row)));
    say("log-said", found.warnings.join(" "));
  } catch (error) {
    say("log-said", error.message, true);
  }
}
$("log").addEventListener("change", (event) => event.target.files[0] && simulate(event.target.files[0]));
const drop = document.querySelector(".drop");
for (const name of ["dragover", "dragleave", "drop"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files[0]) simulate(event.dataTransfer.files[0]);
  });
}

// --- start ----------------------------------------------------------------------------------

try {
  await showTypes();
  await showClock();
} catch (error) {
  say("health", error.message, true);
}
setInterval(() => {
  showClock();
  followTrial().catch((error) => say("try-said", error.message, true));
  followList().catch((error) => say("list-said", error.message, true));
}, 2000);
