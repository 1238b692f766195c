"use strict";
// Shows what /v0/status/watch sends. All that comes from the daemon goes in as text.

const byId = (id) => document.getElementById(id);
const STORED = "headgate-token";
const HISTORY = 120; // events, two minutes
const AGAIN_MS = 1000;
const SILENCE_MS = 5000; // an event comes each second

// Elements

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function show(id, text, isBad) {
  const shown = byId(id);
  if (shown.textContent !== text) shown.textContent = text; // a reader of screens says changes
  shown.classList.toggle("bad", Boolean(isBad));
}

function cards(id, values) {
  byId(id).replaceChildren(...values.map(([name, value, kind]) => {
    const card = element("div", undefined, kind);
    card.append(element("dt", name), element("dd", value));
    return card;
  }));
}

// Columns: [heading, function of a row, kind]; a function may return an element.
function table(id, columns, rows, none) {
  if (!rows.length) {
    const body = element("tbody"), line = element("tr");
    line.append(element("td", none));
    body.append(line);
    byId(id).replaceChildren(body);
    return;
  }
  const head = element("thead"), body = element("tbody"), headings = element("tr");
  for (const [heading, , kind] of columns) {
    const cell = element("th", heading, kind === "number" ? kind : "");
    cell.scope = "col";
    headings.append(cell);
  }
  head.append(headings);
  for (const row of rows) {
    const line = element("tr");
    for (const [, value, kind] of columns) {
      const cell = element("td", undefined, kind);
      cell.append(value(row)); // a string becomes a text node
      line.append(cell);
    }
    body.append(line);
  }
  byId(id).replaceChildren(head, body);
}

function gauge(value, label, text) {
  const made = element("meter"), whole = element("span", undefined, "gauge");
  made.min = 0;
  made.max = made.optimum = 1;
  made.optimum = 0;
  made.low = 0.6;
  made.high = 0.85;
  made.value = value;
  made.setAttribute("aria-label", label);
  whole.append(made, " ", text);
  return whole;
}

// Texts

const count = (number) => number === null ? "-" : Math.round(number).toLocaleString("en");
const percent = (share) => share === null ? "-" : `${share > 0 && share < 0.0995 ? (share * 100).toPrecision(1) : Math.round(share * 100)} %`;

function rate(number) {
  return number >= 100 ? count(number) : String(Math.round(number * 10) / 10);
}

function bytes(number) {
  if (number === null) return "-";
  let unit = "B";
  for (const next of ["KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1023.95) break;
    number /= 1024;
    unit = next;
  }
  return `${unit === "B" || number >= 99.95 ? Math.round(number) : number.toFixed(1)} ${unit}`;
}

function duration(ms) {
  if (ms === null) return "-";
  if (ms < 1000) return `${ms < 10 ? Math.round(ms * 10) / 10 : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60 % 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600 % 24)} h`;
}

function dollars(usd) {
  if (usd === null) return "-";
  if (usd >= 1000) return `$${count(usd)}`;
  return usd >= 0.1 || !usd ? `$${usd.toFixed(2)}` : `$${usd.toPrecision(2)}`;
}

// The parts of the page

const history = [];

function showFlow(status, rates) {
  const whole = status.latency.acknowledged;
  const fill = rates.object_bytes === null ? null : rates.object_bytes / status.object_bytes_target;
  cards("flow", [
    ["acknowledged", `${(rates.bytes / 1e6).toFixed(2)} MB/s`],
    ["records", `${rate(rates.records)}/s`],
    ["requests", `${rate(rates.requests)}/s`],
    ["refused", `${rate(rates.rejected)}/s`],
    ["uploads", `${rate(rates.puts)} PUT/s`],
    ["one stream would need", `${rate(rates.optimum_puts)} PUT/s`],
    ["batch fill", `${percent(fill)} of ${bytes(status.object_bytes_target)}`],
    ["commit window", duration(status.window_ms)],
    ["latency, half of all", duration(whole.p50_ms)],
    ["latency, 99 %", duration(whole.p99_ms)],
  ]);
  history.push(rates.bytes);
  if (history.length > HISTORY) history.shift();
  const most = Math.max(...history, 1);
  const at = (value, index) => `${240 - (history.length - 1 - index) * 2},${39 - value / most * 37}`;
  byId("line").setAttribute("points", history.map(at).join(" "));
  show("history-text", `at most ${(most / 1e6).toFixed(2)} MB/s in the last ${history.length} s;`
    + ` rates over ${Math.round(rates.span_s)} s`);
}

function showTree(status, rates) {
  const shards = status.shards, tree = byId("tree");
  const owners = new Map(status.groups.flatMap((group) => group.shards.map((each) => [each, group])));
  let top = 1;
  while (top < shards.length) top *= 2;
  const cells = [];
  tree.style.gridTemplateColumns = `repeat(${shards.length}, minmax(0, 1fr))`;
  for (let size = top; size >= 1; size /= 2) {
    for (let first = 0; first < shards.length; first += size) {
      const group = owners.get(first), width = Math.min(size, shards.length - first);
      const whole = group.shards.length;
      const isGroup = group.group === first && whole === width && (size === top || size / 2 < whole);
      const cell = element("span");
      if (isGroup) {
        cell.className = "group";
        cell.textContent = `group ${group.group} · ${bytes(group.backlog_bytes)} wait`;
      } else if (size === 1) {
        cell.className = "inside";
        cell.textContent = shards.length > 16 ? "" : `shard ${first}`;
      } else {
        cell.className = width > whole ? "" : "inside";
        cell.textContent = width > whole ? "split" : "";
      }
      if (size === 1 && group.turn === first) cell.classList.add("turn");
      cell.style.gridColumn = `span ${width}`;
      cells.push(cell);
    }
  }
  tree.replaceChildren(...cells);
  const groups = status.groups.map((group) => `group ${group.group}: shards ${group.shards.join(" ")}`);
  tree.setAttribute("aria-label", groups.join("; "));
  const busy = status.groups.length === 1 ? "1 group" : `${status.groups.length} groups`;
  show("tree-text", `${busy} of ${shards.length} shards; ${count(status.totals.splits)} splits,`
    + ` ${count(status.totals.merges)} merges since the start`);
  table("shards", [
    ["shard", (each) => String(each.shard), "number"],
    ["note", (each) => each.pid === null ? "no process" : each.ready ? "" : "starting"],
    ["ring", (each) => {
      const share = each.ring_used_bytes / each.ring_bytes;
      return gauge(share, `ring of shard ${each.shard}`, percent(share));
    }],
    ["busy", (each) => percent(rates.shards[each.shard].busy), "number"],
    ["requests/s", (each) => rate(rates.shards[each.shard].requests), "number"],
    ["bytes/s", (each) => bytes(rates.shards[each.shard].bytes), "number"],
    ["connections", (each) => count(each.connections), "number"],
    ["streams", (each) => count(each.streams), "number"],
    ["restarts", (each) => count(each.restarts), "number"],
  ], shards, "");
}

function showPressure(pressure) {
  show("pressure-text", `level ${pressure.level.toFixed(2)}, rung ${pressure.rung}`,
    pressure.rung !== "none");
  const sensors = [...pressure.sensors].sort((a, b) => b.pressure - a.pressure);
  table("sensors", [
    ["input", (each) => each.sensor, "name"],
    ["pressure", (each) => gauge(each.pressure, `pressure of ${each.sensor}`, each.pressure.toFixed(2))],
    ["measured", (each) => each.raw === null ? "broken" : `${Math.round(each.raw * 1e3) / 1e3} ${each.unit}`],
    ["kind", (each) => each.hard ? "hard" : `soft, ${each.weight}`],
  ], sensors, "");
}

function showCost(bill) {
  table("cost", [
    ["uploads", (each) => each[0]],
    ["a month", (each) => dollars(each[1].usd_per_month), "number"],
    ["since the start", (each) => dollars(each[1].usd), "number"],
    ["PUTs", (each) => count(each[1].puts), "number"],
  ], [
    ["by groups, as they are", bill], ["by each shard", bill.per_shard], ["in one stream", bill.single_stream],
  ], "");
  const wait = bill.usd_per_month === null ? " By month after the first minute." : "";
  const budget = bill.budget === null ? "" : ` Budget: ${dollars(bill.budget.usd_per_month)} a month,`
    + ` ${bill.budget.holds ? "kept" : "exceeded"}.`;
  show("cost-text", `Prices of ${bill.store_class}, requests of this daemon alone.${wait}${budget}`);
}

function showDelivery(seen) {
  const { status, rates } = seen;
  table("standing", [
    ["kind", (each) => each.kind],
    ["name", (each) => `${each.topic} / ${each.name}`, "name"],
    ["for", (each) => duration(each.age_ms), "number"],
    ["why", (each) => each.message, "name"],
  ], status.standing, "Nothing.");
  const topics = seen.topics ?? [];
  table("topics", [
    ["topic", (each) => each.topic, "name"],
    ["partitions", (each) => count(each.partitions), "number"],
    ["head", (each) => count(each.head_seq), "number"],
    ["records", (each) => count(each.count), "number"],
    ["bytes", (each) => bytes(each.bytes), "number"],
    ["acknowledged", (each) => bytes(each.acked_bytes), "number"],
  ], topics, seen.topics === null ? "The ledger does not answer." : "None.");
  if (seen.more_topics) byId("topics").append(element("caption", `the first ${topics.length}; there are more`));
  table("subscriptions", [
    ["subscription", (each) => `${each.topic} / ${each.subscription}`, "name"],
    ["state", (each) => each.reason ? `${each.state}: ${each.reason}` : each.state, "name"],
    ["lag", (each) => count(each.lag), "number"],
    ["in flight", (each) => count(each.in_flight), "number"],
    ["blocked keys", (each) => count(each.blocked_keys), "number"],
    ["consumers", (each) => count(each.consumers), "number"],
    ["oldest", (each) => duration(each.oldest_unfinished_ms), "number"],
  ], status.subscriptions.first, "None.");
  caption("subscriptions", status.subscriptions, `${rate(rates.acknowledged)}/s acknowledged`);
  table("push", [
    ["subscription", (each) => `${each.topic} / ${each.subscription}`, "name"],
    ["mode", (each) => each.mode],
    ["rate/s", (each) => rate(each.rate), "number"],
    ["granted/s", (each) => rate(each.granted), "number"],
    ["allowed/s", (each) => rate(each.rate_max), "number"],
    ["in flight", (each) => count(each.in_flight), "number"],
    ["delivered", (each) => count(each.records), "number"],
    ["failures", (each) => count(each.failures), "number"],
  ], status.push.first, "None.");
  caption("push", status.push, `${rate(rates.pushed)} records/s taken, ${rate(rates.failures)} failures/s`);
  table("routers", [
    ["router", (each) => each.router, "name"],
    ["from, to", (each) => `${each.source} → ${each.dest}`, "name"],
    ["state", (each) => each.reason ? `${each.state}: ${each.reason}` : each.state, "name"],
    ["lag", (each) => count(each.lag), "number"],
    ["copied", (each) => count(each.copied), "number"],
  ], status.routers.first, "None.");
  caption("routers", status.routers, "");
  table("runs", [
    ["run", (each) => each.run, "name"],
    ["where", (each) => each.owner, "name"],
    ["began", (each) => new Date(each.started_ms).toLocaleString()],
    ["end", (each) => each.lives ? "under way" : each.ended_ms === null ? "lost"
      : `took ${duration(each.ended_ms - each.started_ms)}`],
  ], seen.runs, "None.");
}

function caption(id, all, more) {
  if (!all.count) return;
  const rest = all.count > all.first.length ? `${all.first.length} of ${all.count}` : `${all.count}`;
  byId(id).append(element("caption", more ? `${rest}; ${more}` : rest));
}

function showStore(status) {
  const { store, bill } = status;
  const error = status.alarms.find((each) => each.alarm === "store_failing");
  cards("store", [
    ["PUT", count(bill.puts)], ["GET", count(bill.gets)], ["LIST", count(bill.lists)],
    ["put", bytes(bill.put_bytes)], ["got", bytes(bill.get_bytes)],
    ["PUTs that failed", count(store.put_failures)],
    ["last error", error ? error.message : "none in force", "long"],
  ]);
}

function showNotes(status) {
  const notes = status.alarms.map((each) => `${each.alarm} for ${duration(each.age_ms)}: ${each.message}`);
  for (const gate of status.gates) {
    if (gate.paused_shards) {
      notes.push(`the gate of ${gate.gate} is closed at ${gate.paused_shards} shards for`
        + ` ${duration(gate.paused_ms)}: ${gate.reasons.join(", ")}`);
    }
  }
  note(notes);
}

function note(notes) {
  const list = byId("notes");
  const shown = [...list.children].map((each) => each.textContent);
  if (notes.length === shown.length && notes.every((each, index) => each === shown[index])) return;
  list.replaceChildren(...notes.map((each) => element("li", each)));
}

function showOverview(seen) {
  const { status, rates } = seen;
  byId("main").classList.remove("apart");
  show("version", status.version);
  show("state", status.ready ? "ready" : "NOT READY", !status.ready);
  show("up", `up ${duration(status.uptime_s * 1000)}`);
  show("url", status.store.url);
  showNotes(status);
  showFlow(status, rates);
  showTree(status, rates);
  showPressure(status.pressure);
  showCost(status.bill);
  showDelivery(seen);
  showStore(status);
}

// The stream

let paused = false;
let under = new AbortController();
let silence = 0; // the timer of an answer that does not come

function heard() {
  clearTimeout(silence);
  silence = setTimeout(() => {
    showNoAnswer();
    again();
  }, SILENCE_MS);
}

function showNoAnswer() {
  show("state", "NO ANSWER", true);
  note([`no answer from ${location.host}; trying again`]);
}

async function refusal(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return { code: "", message: `the daemon answered ${answer.status}` };
  }
}

async function showStandby(headers) {
  const answer = await fetch("v0/status", { headers, signal: under.signal, cache: "no-store" });
  const { version, uptime_s, standby } = await answer.json();
  show("version", version);
  show("up", `up ${duration(uptime_s * 1000)}`);
  byId("main").classList.add("apart");
  cards("standby", [
    ["could take over", standby.able ? "yes" : `no: ${standby.trouble}`, "long"],
    ["owner", standby.owner ?? "-", "long"],
    ["commits", count(standby.commits)],
    ["behind", duration(standby.behind_ms)],
    ["owner silent for", duration(standby.silent_ms)],
  ]);
}

async function follow() {
  heard();
  const token = sessionStorage.getItem(STORED);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch("v0/status/watch", { headers, signal: under.signal, cache: "no-store" });
  if (!answer.ok) {
    const { code, message } = await refusal(answer);
    show("state", code === "standby" ? "STANDBY" : code || "no answer", true);
    note([message]);
    if (code === "standby") await showStandby(headers);
    if (answer.status === 401 || answer.status === 403) ask(message);
    return;
  }
  showCurl();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    heard();
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const name = /^event: (.*)$/m.exec(event)?.[1], data = /^data: (.*)$/m.exec(event)?.[1];
      if (name === "overview") showOverview(JSON.parse(data));
      if (name === "closing") note(["the daemon is stopping"]);
      if (name === "error") note([JSON.parse(data).message]);
    }
  }
}

async function run() {
  for (;;) {
    if (!paused && !document.hidden && !byId("ask").open) {
      try {
        await follow();
      } catch (error) {
        if (error.name !== "AbortError") showNoAnswer();
      } finally {
        clearTimeout(silence);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

function again() {
  under.abort();
  under = new AbortController();
}

// What a person does

function ask(why) {
  if (why) show("ask-why", `${why}. The tab keeps the token until it is closed.`);
  byId("ask-token").value = "";
  byId("ask").showModal();
}

function showCurl() {
  const token = sessionStorage.getItem(STORED) ? " -H \"Authorization: Bearer $TOKEN\"" : "";
  show("curl", `curl -H 'Content-Type: application/json'${token} ${new URL("v0/topics/orders", location.href)}`
    + " -d '{\"records\": [{\"key\": \"A-1\", \"data\": {\"status\": \"placed\"}}]}'");
}

byId("token").addEventListener("click", () => ask(""));
byId("ask-form").addEventListener("submit", () => {
  const given = byId("ask-token").value.trim();
  if (given) sessionStorage.setItem(STORED, given);
  again();
});
byId("ask-forget").addEventListener("click", () => {
  sessionStorage.removeItem(STORED);
  byId("ask").close();
  again();
});
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  show("state", paused ? "paused" : "connecting");
  again();
});
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("curl").textContent);
    show("copy", "Copied");
  } catch {
    getSelection().selectAllChildren(byId("curl")); // without https nothing may be copied
  }
});
document.addEventListener("visibilitychange", again); // who does not look, costs nothing

showCurl();
run();
