// Devices of an account share its secrets by a passkey: Chromium derives a key with the extension `prf` of WebAuthn.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { recorded, relaying, service } from "../service.js";
import { browser, open, site } from "./browser.js";

const DIST = fileURLToPath(new URL("../../dist", import.meta.url));

let chrome, pages, gate, front, between;
before(async () => {
  pages = await site({ dist: DIST }, { "/": "<!doctype html><title>a page</title>" });
  // Passkeys belong to a domain, and 127.0.0.1 is none: the pages are those of localhost.
  [chrome, gate] = await Promise.all([browser(), service("people", pages.other)]);
  front = await recorded(gate.url);
  between = await relaying(front.url);
});
after(async () => {
  await chrome?.close();
  await Promise.all([pages, front, between].map((each) => each?.stop()));
  await gate?.stop();
});

const joins = async () => (await gate.tell("joins")).joins;
const account = async (name) => `Bearer ${(await gate.tell("account", name)).key}`;

/** A page with an authenticator of its own; each store that the page makes is a device, and all have its passkeys. */
async function opened(authenticator = {}) {
  const page = await open(await chrome.createBrowserContext(), pages.other);
  const { now } = await gate.tell("now");
  const devtools = await page.createCDPSession();
  await devtools.send("WebAuthn.enable");
  const options = { protocol: "ctap2", transport: "internal", hasResidentKey: true, hasUserVerification: true, isUserVerified: true, hasPrf: true };
  const { authenticatorId } = await devtools.send("WebAuthn.addVirtualAuthenticator", { options: { ...options, ...authenticator } });
  await page.evaluate(async (url, relayUrl, now) => {
    Date.now = () => now;
    const [{ Client }, { relay }, own] = await Promise.all(["index", "relay", "anonymous"].map((name) => import(`/dist/${name}.js`)));
    const through = relay(relayUrl);
    let devices = 0;
    globalThis.kanon = {
      ...own,
      device: (store = own.indexedDb(`device ${devices++}`)) => {
        const me = new own.Anonymous({ store, spread: 0 });
        const enrol = (options) => me.enrol(url, { through, ...options }).then(() => "", ({ name, message }) => `${name}: ${message}`);
        return { enrol, join: (value) => new Client(url, { anonymous: me, through }).join("people", value) };
      },
    };
  }, front.url, between.url, now);
  const passkeys = async () => (await devtools.send("WebAuthn.getCredentials", { authenticatorId })).credentials;
  return Object.assign(page, { passkeys });
}

test("a passkey brings the account's secrets to its other devices, which count one", async () => {
  await gate.tell("step");
  const [page, auth] = [await opened(), await account("alice")];
  const refused = await page.evaluate(async (auth) => {
    const [first, second, third] = [kanon.device(), kanon.device(), kanon.device()];
    const made = await kanon.newPasskey("kanon");
    const refused = [made.extractable, await first.enrol({ auth, passkey: made }), await second.enrol({ auth, passkey: await kanon.passkey() })];
    for (const each of [first, second]) await each.join("shared");
    return [...refused, await third.enrol({ auth }), await third.enrol({ auth, recovery: kanon.recoveryCode() })];
  }, auth);
  assert.deepEqual(refused.slice(0, 3), [false, "", ""]);
  assert.match(refused[3], /^EnrolmentError: .* give its recovery code or passkey$/);
  assert.match(refused[4], /^EnrolmentError: the recovery code or passkey is not the one of this account$/);
  assert.equal(await joins(), 1);
  const [own, ...others] = await page.passkeys();
  assert.deepEqual([own.rpId, own.isResidentCredential, others.length], ["localhost", true, 0]);
  assert.deepEqual(page.problems, []);
});

test("another passkey does not open what a passkey has encrypted", async () => {
  const [one, other, auth] = [await opened(), await opened(), await account("bob")];
  const enrolled = (page) => page.evaluate(async (auth) => kanon.device().enrol({ auth, passkey: await kanon.newPasskey("kanon") }), auth);
  assert.equal(await enrolled(one), "");
  assert.match(await enrolled(other), /not the one of this account/);
});

test("a code opens what a passkey and a code have encrypted, also in Python, and the passkey still does", async () => {
  await gate.tell("step");
  const [page, auth] = [await opened(), await account("carol")];
  const code = await page.evaluate(async (auth) => {
    const code = kanon.recoveryCode();
    await kanon.device().enrol({ auth, recovery: code, passkey: await kanon.newPasskey("kanon") });
    return code;
  }, auth);
  await gate.tell("enrol", auth.slice("Bearer ".length), code); // joins `shared`
  const refused = await page.evaluate(async (auth, code) => {
    const devices = [kanon.device(), kanon.device()];
    const refused = [await devices[0].enrol({ auth, recovery: code }), await devices[1].enrol({ auth, passkey: await kanon.passkey() })];
    for (const each of devices) await each.join("shared");
    return refused;
  }, auth, code);
  assert.deepEqual(refused, ["", ""]);
  assert.equal(await joins(), 1);
});

test("without the extension there is no passkey, and a code does", async () => {
  const without = await opened({ hasPrf: false });
  const code = "code";
  assert.equal(await without.evaluate(async (code) => (await kanon.newPasskey("kanon")) ?? code, code), code);
  const page = await opened();
  const found = await page.evaluate(async () => {
    const [made, said] = [kanon.newPasskey, PublicKeyCredential.getClientCapabilities];
    PublicKeyCredential.getClientCapabilities = async () => ({ "extension:prf": false });
    const found = [await made("kanon"), await kanon.passkey()];
    PublicKeyCredential.getClientCapabilities = said;
    globalThis.PublicKeyCredential = undefined;
    return [...found, await made("kanon"), await kanon.passkey()].map((each) => each === undefined);
  });
  assert.deepEqual(found, [true, true, true, true]);
  assert.deepEqual(await page.passkeys(), []);
});

test("what the service stores of a passkey and a code is two encryptions, and no key of them", async () => {
  const [page, auth] = [await opened(), await account("dora")];
  const from = (await gate.tell("seen")).requests.length;
  await page.evaluate(async (auth) => kanon.device().enrol({ auth, recovery: kanon.recoveryCode(), passkey: await kanon.newPasskey("kanon") }), auth);
  const read = (await gate.tell("seen")).requests.slice(from).find(({ method, path }) => method === "POST" && path === "/v1/credentials");
  assert.equal(Buffer.from(JSON.parse(read.body).recovery, "base64url").length, 2 * 92);
});
