// Every search joins. The table asks which of the terms that this page knows the crowd shares, at each new step.
import { Client, valueId } from "./kanon-client/index.js";
import { Anonymous } from "./kanon-client/anonymous.js";
import { relay } from "./kanon-client/relay.js";

const at = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const service = asked.get("service") ?? "http://127.0.0.1:8000";
/** With a relay the service learns no address, and each set gets a client id of its own, so that sets are not linked. */
const through = asked.has("relay") ? relay(asked.get("relay")) : undefined;
/** With an account each search joins with a credential: the service learns a pseudonym that only this set has. */
const account = new URLSearchParams(location.hash.slice(1)).get("account");
const anonymous = account ? new Anonymous() : undefined;
const problem = (error) => {
  at("problem").textContent = error.message;
  at("problem").hidden = false;
};

/** This browser: a random name, the same for as long as it lives. */
const me = (localStorage.me ??= crypto.randomUUID());
const client = new Client(service, { onDrop: problem, ...(through ? { through } : {}), ...(anonymous ? { anonymous } : {}) });
/** Terms that this page knows: how often each was searched here, its id, and when it turned true. */
const terms = new Map();

const type = await begin().catch(problem);
if (type) {
  at("about").textContent =
    `A term may be shown to others once about ${type.k} visitors have searched for it. ` +
    `The answers change every ${type.period} seconds.`;
  await run();
}

/** Get the credential, if there is an account, and the type that goes with it. */
async function begin() {
  // An application enrols once a week, at another time than it joins.
  await anonymous?.enrol(service, { auth: `Bearer ${account}`, ...(through ? { through } : {}) });
  const types = [...(await client.types()).values()];
  const fits = types.find(({ credential = false }) => credential === Boolean(account));
  if (!fits) throw new Error(account ? "no type of the service takes credentials" : "all types of the service need a credential: give an account");
  at("crowd").hidden = Boolean(account); // each visitor would need an account
  return fits;
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
  const name = anonymous ? undefined : through ? String(await valueId(`${who}/${id}`)) : who;
  await client.join(type.type, term, name).catch(() => {}); // onDrop has said why
  const shown = anonymous ? "a pseudonym for this set alone" : through || !visitor ? `${name.slice(0, 8)}...` : name;
  log("service", `${short(id)}  client ${shown}`);
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
  // One query links the terms in it: through a relay each is asked about by itself.
  const asking = through ? [unknown[Math.floor(Math.random() * unknown.length)]] : [...terms.keys()];
  const shared = await client.isShared(type.type, asking);
  for (const term of asking) {
    const known = terms.get(term);
    known.shared = shared.has(term) ? (known.shared || new Date().toLocaleTimeString("en-GB")) : null;
  }
  at("asked").textContent = `Last answer at ${new Date().toLocaleTimeString("en-GB")}.`;
  at("anybody").textContent = [...terms.values()].filter(({ shared }) => shared !== undefined).map(({ id, shared }) => `${short(id)}  ${shared ? "true" : "false"}`).join("\n");
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
