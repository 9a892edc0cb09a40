// Every search joins. The table asks which of the terms that this page knows the crowd shares, at each new step.
import { Client, valueId } from "./kanon-client/index.js";
import { relay } from "./kanon-client/relay.js";

const at = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const service = asked.get("service") ?? "http://127.0.0.1:8000";
/** With a relay the service learns no address, and each set gets a client id of its own, so that sets are not linked. */
const through = asked.has("relay") ? relay(asked.get("relay")) : undefined;
const problem = (error) => {
  at("problem").textContent = error.message;
  at("problem").hidden = false;
};

/** This browser: a random name, the same for as long as it lives. */
const me = (localStorage.me ??= crypto.randomUUID());
const client = new Client(service, { onDrop: problem, ...(through ? { through } : {}) });
/** Terms that this page knows: how often each was searched here, its id, and when it turned true. */
const terms = new Map();

const type = await client.types().then((types) => [...types.values()][0], problem);
if (type) {
  at("about").textContent =
    `A term may be shown to others once about ${type.k} visitors have searched for it. ` +
    `The answers change every ${type.period} seconds.`;
  await run();
}

async function run() {
  at("search").addEventListener("submit", (event) => {
    event.preventDefault();
    void search(at("term").value.trim());
    at("search").reset();
  });
  at("crowd").addEventListener("click", crowd);
  for (;;) {
    await ask().catch(problem);
    await new Promise((resolve) => setTimeout(resolve, 500)); // it asks the service once a step: answers are kept
  }
}

async function search(term, visitor) {
  if (!term) return;
  const id = String(await valueId(term));
  const known = terms.get(term) ?? { searches: 0, id, shared: undefined };
  terms.set(term, known);
  known.searches++;
  show();
  log("browser", visitor === undefined ? `you: ${term}` : `${visitor}: ${term}`);
  const who = visitor ?? me;
  const name = through ? String(await valueId(`${who}/${id}`)) : who;
  await client.join(type.type, term, name).catch(() => {}); // onDrop has said why
  log("service", `${short(id)}  client ${through || !visitor ? `${name.slice(0, 8)}...` : name}`);
}

/** Invented visitors: two terms that many search for, one at the threshold, and two that are nobody else's. */
async function crowd() {
  at("crowd").disabled = true;
  const sure = type.surelyTrueFrom;
  const searched = { "weather tomorrow": Math.ceil(1.2 * sure), "pizza near me": sure, "train times": type.k };
  for (const [term, visitors] of Object.entries({ ...searched, "rare disease forum": 3, "name of an old friend": 1 })) {
    await Promise.all(Array.from({ length: visitors }, (_, n) => search(term, `visitor-${n + 1}`)));
  }
}

async function ask() {
  const unknown = [...terms.keys()].filter((term) => client.known(type.type, term) === undefined);
  if (!unknown.length) return;
  const shared = await client.isShared(type.type, terms.keys());
  for (const [term, known] of terms) {
    known.shared = shared.has(term) ? (known.shared || new Date().toLocaleTimeString("en-GB")) : null;
  }
  at("asked").textContent = `Last answer at ${new Date().toLocaleTimeString("en-GB")}.`;
  at("anybody").textContent = [...terms.values()].map(({ id, shared }) => `${short(id)}  ${shared ? "true" : "false"}`).join("\n");
  at("problem").hidden = true;
  show();
}

function show() {
  const rows = [...terms].sort(([, one], [, other]) => other.searches - one.searches).map(([term, { searches, shared }]) => {
    const row = document.createElement("tr");
    const answer = shared ? `yes, since ${shared}` : shared === null ? "no" : "not asked yet";
    for (const [text, name] of [[term, ""], [searches, "number"], [answer, shared ? "yes" : "no"]]) {
      const cell = row.insertCell();
      cell.textContent = text;
      cell.className = name;
    }
    return row;
  });
  at("terms").replaceChildren(...rows);
}

/** The newest line first, and not more than anybody reads. */
function log(where, line) {
  at(where).textContent = [line, ...at(where).textContent.split("\n")].slice(0, 200).join("\n");
}

function short(id) {
  return `${id.slice(0, 12)}...`;
}
