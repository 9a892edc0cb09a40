// Joins with a credential, against the real service: enrolment, devices, weeks, and what is refused.
import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, mock, test } from "node:test";
import { Anonymous, attested, EnrolmentError, KeysDifferError, recoveryCode, Secrets } from "../../dist/anonymous.js";
import { ApiError, Client, RefusedError } from "../../dist/index.js";
import { relay } from "../../dist/relay.js";
import { kept, RELAY_ADDRESS, recorded, relaying, service } from "../service.js";

const HOUR = 3600_000;

let gate, front, between, instead, frontInstead, through;
let accounts = 0;
before(async () => {
  gate = await service("people");
  front = await recorded(gate.url, (seen) => frontInstead?.(seen));
  between = await relaying(front.url, { instead: (seen) => instead?.(seen) });
  through = relay(between.url);
});
after(async () => {
  await Promise.all([front.stop(), between.stop()]);
  await gate.stop();
});
beforeEach(async () => {
  instead = frontInstead = undefined;
  front.requests.length = between.requests.length = 0;
  mock.timers.enable({ apis: ["Date"], now: (await gate.tell("now")).now });
});
afterEach(() => mock.timers.reset());

/** What names a new account. */
async function account() {
  const { key } = await gate.tell("account", `account-${accounts++}`);
  return { auth: `Bearer ${key}`, through };
}

const device = (store = kept()) => new Anonymous({ store, spread: 0 });
const client = (anonymous, options = {}) => new Client(front.url, { anonymous, through, onDrop: () => {}, ...options });
const joins = async () => (await gate.tell("joins")).joins;
const seen = async (from = 0) => (await gate.tell("seen")).requests.slice(from);

async function enrolled(options = {}) {
  const me = device();
  await me.enrol(front.url, { ...(await account()), ...options });
  return me;
}

test("accounts count one each, on all their devices, also those in Python", async () => {
  await gate.tell("step");
  mock.timers.setTime((await gate.tell("now")).now);
  const mine = { ...(await account()), recovery: recoveryCode() };
  const devices = [device(), device(), device()];
  for (const each of devices) await each.enrol(front.url, mine);
  for (const each of devices) for (let n = 0; n < 3; n++) await client(each).join("people", "shared");
  assert.equal(await joins(), 1);
  await gate.tell("enrol", mine.auth.slice("Bearer ".length), mine.recovery.toLowerCase());
  assert.equal(await joins(), 1);
  for (let n = 2; n <= 5; n++) {
    await client(await enrolled()).join("people", "shared");
    assert.equal(await joins(), n);
  }
  await client(devices[0]).joinMany([{ type: "people", value: "other" }, { type: "others", value: "shared" }]);
  assert.equal(await joins(), 7);
});

test("a device in Python begins, and one here goes on with its recovery code", async () => {
  await gate.tell("step");
  mock.timers.setTime((await gate.tell("now")).now);
  const [mine, code] = [await account(), recoveryCode()];
  await gate.tell("enrol", mine.auth.slice("Bearer ".length), code);
  const me = device();
  await me.enrol(front.url, { ...mine, recovery: code });
  await client(me).join("people", "shared");
  assert.equal(await joins(), 1);
});

test("a join shows a tag and a proof, and nothing of the account", async () => {
  const store = kept();
  const mine = await account();
  const me = device(store);
  const from = (await seen()).length;
  await me.enrol(front.url, mine);
  await client(me).joinMany(["one", "two"].map((value) => ({ type: "people", value })));
  await client(me).join("people", "one");
  const found = await seen(from);
  const joined = found.filter(({ path }) => path.endsWith(":join"));
  assert.equal(joined.length, 3);
  for (const { headers, body } of joined) {
    assert.deepEqual(headers, {});
    assert.deepEqual(Object.keys(JSON.parse(body)), ["presentation"]);
    assert.deepEqual(Object.keys(JSON.parse(body).presentation), ["epoch", "step", "proof"]);
  }
  // The proofs have nothing in common but the tag of two joins of one set.
  const points = joined.map(({ body }) => Buffer.from(JSON.parse(body).presentation.proof, "base64url")).map((proof) => [0, 33, 66, 99].map((at) => proof.subarray(at, at + 33).toString("hex")));
  assert.equal(new Set(points.flat()).size, 3 * 4 - 1);
  const again = joined.findIndex(({ path }) => path === joined[2].path);
  assert.ok(again < 2 && points[again][3] === points[2][3]);
  assert.ok(!JSON.stringify(found).includes(JSON.parse(await store.read()).secrets));
  assert.ok(front.requests.filter(({ path }) => path === "/v1/gateway").every(({ from }) => from.endsWith(RELAY_ADDRESS)));
  const own = front.requests.filter(({ from }) => !from.endsWith(RELAY_ADDRESS));
  assert.ok(own.length && own.every(({ path }) => ["/v1/credentials/keys", "/v1/proxy/keys"].includes(path)));
});

test("a line for the operator holds the tag that joins of the set show, and no other set's", async () => {
  const me = await enrolled();
  const from = (await seen()).length;
  await client(me).join("people", "one");
  const [{ path, body }] = (await seen(from)).filter(({ path }) => path.endsWith(":join"));
  const shown = Buffer.from(JSON.parse(body).presentation.proof, "base64url").subarray(99, 132).toString("base64url");
  const line = await me.tag("people", "one");
  assert.equal(line, `people ${path.match(/sets\/(.*):join/)[1]} ${shown}`);
  for (const other of [["people", "two"], ["others", "one"]]) assert.notEqual((await me.tag(...other)).split(" ")[2], shown);
  await assert.rejects(device().tag("people", "one"), EnrolmentError);
});

test("a credential is fetched once a week, and one of another week lets nobody join", async () => {
  const store = kept();
  const [me, mine] = [device(store), await account()];
  await me.enrol(front.url, mine);
  const first = await store.read();
  const posts = async () => (await seen()).filter(({ method, path }) => method === "POST" && path === "/v1/credentials").length;
  const before = await posts();
  await me.enrol(front.url, mine);
  assert.equal(await posts(), before);
  const next = me.renewAt();
  assert.ok(next > Date.now() && new Date(next).getUTCDay() === 1);
  await gate.tell("week");
  mock.timers.setTime((await gate.tell("now")).now);
  const renewing = device(kept(first));
  await assert.rejects(client(renewing).join("people", "later"), (thrown) => thrown instanceof EnrolmentError && /call enrol/.test(thrown.message));
  await renewing.enrol(front.url, mine);
  await client(renewing).join("people", "later");
});

test("the code that was given last opens the secrets on another device, and none changes nothing", async () => {
  const [me, mine, codes] = [device(), await account(), [1, 2].map(() => recoveryCode())];
  const works = (code) => device().enrol(front.url, { ...mine, recovery: code });
  const refused = (code, text) => assert.rejects(works(code), (thrown) => thrown instanceof EnrolmentError && text.test(thrown.message));
  await me.enrol(front.url, mine);
  await refused(codes[0], /without a recovery code/);
  await me.enrol(front.url, { ...mine, recovery: codes[0] });
  await works(codes[0]);
  await me.enrol(front.url, { ...mine, recovery: codes[1] });
  await works(codes[1]);
  await refused(codes[0], /not the one of this account/);
  await me.enrol(front.url, mine);
  await works(codes[1]);
  await gate.tell("monday"); // the service forgets accounts later in the week
  mock.timers.setTime((await gate.tell("now")).now);
  await me.enrol(front.url, mine);
  await works(codes[1]);
});

test("through a relay the calls that change an account name their step, and those that read do not", async () => {
  const calls = [];
  const send = (service, call, init) => (calls.push([`${call.method} ${call.path}`, call.period]), through.send(service, call, init));
  const [me, mine] = [device(), { ...(await account()), through: { ...through, send } }];
  await me.enrol(front.url, mine);
  await me.delete(front.url, mine);
  const { period } = await client(me).type("people");
  assert.deepEqual(calls, [
    ["GET /v1/credentials/keys", undefined],
    ["GET /v1/credentials", undefined],
    ["GET /v1/types", undefined],
    ["POST /v1/credentials", period],
    ["GET /v1/types", undefined],
    ["DELETE /v1/credentials", period],
  ]);
});

test("calls that change an account are sent again with a new key", async () => {
  const [me, mine] = [device(), await account()];
  let calls = 0;
  instead = ({ path }) => (path === "/v1/gateway" && calls++ % 2 === 0 ? { status: 400 } : undefined);
  await me.enrol(front.url, mine);
  await me.delete(front.url, mine);
});

test("two keys stop the client before the account is named", async () => {
  const me = device();
  const from = (await seen()).length;
  frontInstead = ({ path, from }) => {
    if (path !== "/v1/credentials/keys" || from.endsWith(RELAY_ADDRESS)) return undefined;
    return { body: { deployment: "d", epoch: 1, key: "A".repeat(132), sha256: "" } };
  };
  await assert.rejects(me.enrol(front.url, await account()), KeysDifferError);
  assert.ok((await seen(from)).every(({ headers }) => headers.authorization === undefined));
});

test("an account may be named beside the relay, which then brings the key alone", async () => {
  const { auth } = await account();
  const [me, refused] = [device(), device()];
  const mine = { auth, through, direct: true };
  frontInstead = ({ path, from }) => {
    if (path.startsWith("/v1/credentials") && from.endsWith(RELAY_ADDRESS)) return { status: 404 };
    if (path !== "/v1/credentials/keys") return undefined;
    return { body: { deployment: "d", epoch: 1, key: "A".repeat(132), sha256: "" } };
  };
  await assert.rejects(refused.enrol(front.url, mine), KeysDifferError);
  frontInstead = undefined;
  const from = (await seen()).length;
  await me.enrol(front.url, mine);
  await me.delete(front.url, mine);
  const named = front.requests.filter(({ headers }) => headers.authorization === auth);
  assert.deepEqual(named.map(({ method, path }) => `${method} ${path}`), ["GET", "POST", "DELETE"].map((method) => `${method} /v1/credentials`));
  assert.ok(named.every(({ from }) => !from.endsWith(RELAY_ADDRESS)));
  const keys = (await seen(from)).filter(({ path }) => path === "/v1/credentials/keys");
  assert.equal(keys.length, 2); // directly, and from the relay
});

test("a credential of another key than the shown one is refused", async () => {
  const { key, ...shown } = await (await fetch(`${gate.url}/v1/credentials/keys`)).json();
  const other = Buffer.from(Secrets.random().commitment());
  const swapped = Buffer.concat([other, Buffer.from(key, "base64url").subarray(33)]).toString("base64url");
  const both = { ...shown, key: swapped };
  frontInstead = ({ path }) => (path === "/v1/credentials/keys" ? { body: both } : undefined);
  const { auth } = await account();
  await assert.rejects(device().enrol(front.url, { auth }), (thrown) => thrown instanceof EnrolmentError && /may single you out/.test(thrown.message));
});

test("other secrets, a wrong code and a deleted account are refused with what to do", async () => {
  const mine = { ...(await account()), recovery: recoveryCode() };
  const me = device();
  await me.enrol(front.url, mine);
  const refused = (options, text, who = device()) =>
    assert.rejects(who.enrol(front.url, options), (thrown) => thrown instanceof EnrolmentError && text.test(thrown.message));
  await refused({ ...mine, recovery: undefined }, /give its recovery code/);
  await refused({ ...mine, recovery: recoveryCode() }, /not the one of this account/);
  await refused({ ...mine, recovery: "short" }, /8 groups of 4/);
  const [alone, silent] = [await account(), device()];
  await silent.enrol(front.url, alone);
  await refused({ ...alone, recovery: recoveryCode() }, /use that device/);
  const store = kept();
  await device(store).enrol(front.url, await account());
  const other = { ...JSON.parse(await store.read()), weeks: {} };
  await refused(mine, /409.*; delete first what the store keeps, which was never used$/, device(kept(JSON.stringify(other))));
  await refused(mine, /another service/, device(kept(JSON.stringify({ ...other, deployment: "another" }))));
  await me.delete(front.url, { auth: mine.auth, through });
  await refused(mine, /409(?!.*never used)/, me);
  for (const damaged of [{}, { ...other, secrets: "AAAA" }, { ...other, format: 2 }]) {
    await refused(mine, /damaged/, device(kept(JSON.stringify(damaged))));
  }
});

test("a join without a credential, or with a name, is refused before it is sent", async () => {
  const me = await enrolled();
  const from = (await seen()).length;
  await assert.rejects(new Client(front.url, { through, client: "me", onDrop: () => {} }).join("people", "a"), /needs a credential: give new Client\(url, \{anonymous: \.\.\.\}\)/);
  await assert.rejects(client(me).join("people", "a", "me"), /join no client/);
  await assert.rejects(client(device()).join("people", "a"), EnrolmentError);
  assert.throws(() => new Client(front.url, { anonymous: me, auth: "Bearer key" }), /auth names who joins/);
  assert.throws(() => new Anonymous({ spraed: 1 }), /did you mean spread/);
  await assert.rejects(me.enrol(front.url, { auth: "Bearer key", relay: "x" }), /no option relay/);
  await assert.rejects(device().enrol(front.url, { auth: "Bearer wrong", through }), (thrown) => thrown instanceof RefusedError && thrown.status === 401);
  assert.ok((await seen(from)).every(({ path }) => !path.endsWith(":join")));
});

test("a device attests each of its requests, as the Python client does", async () => {
  const bindings = [];
  const attest = async (binding) => (bindings.push(Buffer.from(binding)), binding);
  mock.timers.setTime(2900_999);
  assert.equal(await attested("deployment", attest)("POST", "{}"), "Bearer 2900.vfG9znDn8UNE2ca_UtzeQurNERB2N9ZauPiUwpKk0lk");
  assert.equal(bindings.pop().toString("hex"), "bdf1bdce70e7f14344d9c6bf52dcde42eacd11107637d65ab8f894c292a4d259");

  mock.timers.setTime((await gate.tell("now")).now);
  frontInstead = ({ path, method }) => (path === "/v1/credentials" ? { status: method === "GET" ? 404 : 401 } : undefined);
  const auth = attested("deployment", attest);
  await assert.rejects(device().enrol(front.url, { auth }), (thrown) => thrown instanceof RefusedError && thrown.status === 401);
  const asked = front.requests.filter(({ path }) => path === "/v1/credentials");
  assert.deepEqual(asked.map(({ method }) => method), ["GET", "POST"]);
  for (const [at, { method, body, headers }] of asked.entries()) {
    await auth(method, body);
    assert.match(headers.authorization, new RegExp(`^Bearer [0-9]+[.]${bindings[at].toString("base64url")}$`));
    assert.deepEqual(bindings.at(-1), bindings[at]);
  }
});

test("joins of one set at one time are sent once", async () => {
  const [caller, from] = [client(await enrolled()), (await seen()).length];
  await caller.joinMany([1, 2, 3].map(() => ({ type: "people", value: "at once" })));
  assert.equal((await seen(from)).filter(({ path }) => path.endsWith(":join")).length, 1);
});

test("each join waits a random part of a step, or of the spread", async () => {
  const store = kept();
  await device(store).enrol(front.url, await account());
  mock.method(crypto, "getRandomValues", (numbers) => numbers.fill(2 ** 30));
  assert.equal(await new Anonymous({ store }).delay(3600), 900_000);
  assert.equal(await new Anonymous({ store, spread: 8000 }).delay(3600), 2000);
  mock.restoreAll();
  const drawn = await Promise.all([1, 2, 3].map(() => new Anonymous({ store }).delay(3600)));
  assert.equal(new Set(drawn).size, 3);
  assert.ok(drawn.every((wait) => wait >= 0 && wait < HOUR));
});

test("an attempt that is repeated in a later step shows that step", async () => {
  const me = await enrolled();
  const caller = client(me, { through: relay(between.url, { delay: () => 0 }) });
  const { period } = await caller.type("people");
  const from = (await seen()).length;
  const began = Math.floor(Date.now() / 1000 / period);
  instead = async () => {
    instead = undefined;
    await gate.tell("step");
    mock.timers.setTime(Date.now() + (period - 1) * 1000);
    return { status: 503 };
  };
  await caller.join("people", "repeated");
  const [join] = (await seen(from)).filter(({ path }) => path.endsWith(":join"));
  assert.equal(JSON.parse(join.body).presentation.step, began + 1);
  mock.restoreAll();
});

test("answers of another form are errors of the API", async () => {
  for (const body of [{ deployment: "d", epoch: "1", key: "AAAA" }, { deployment: "d", epoch: 1 }, "[]"]) {
    frontInstead = ({ path }) => (path === "/v1/credentials/keys" ? { body } : undefined);
    const { auth } = await account();
    await assert.rejects(device().enrol(front.url, { auth }), (thrown) => thrown instanceof ApiError && /does not have the form/.test(thrown.message));
  }
});
