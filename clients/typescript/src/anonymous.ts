/**
 * Joins without a name (experimental): a credential in the browser, which counts a person once in each set.
 *
 * `enrol` names the account, so call it once a week at another time than joins: `renewAt` draws one.
 */
import { bytesOf, joined, type Bytes } from "./bytes.js";
import { Connection, unexpected, type Auth, type Call, type Presenting, type Through } from "./connection.js";
import { credentialContext, prefixed, session, tagContext } from "./contexts.js";
import { Credential, PublicKey, Secrets } from "./credentials.js";
import { CredentialError, EnrolmentError, KeysDifferError, onlyOptions, RefusedError } from "./errors.js";
import { indexedDb, type Store } from "./store.js";
import { base64url, decoded, valueId, type Value } from "./values.js";
import { chance, joinStep } from "./waiting.js";

export { credentialContext, session, tagContext, type Bound } from "./contexts.js";
export { Credential, CredentialRequest, PublicKey, Secrets } from "./credentials.js";
export { CredentialError, EnrolmentError, KeysDifferError } from "./errors.js";
export { newPasskey, passkey } from "./passkeys.js";
export { indexedDb, type Store } from "./store.js";

const PATH = "/v1/credentials";
const KEYS = `${PATH}/keys`;
const TIMEOUT = 30_000;
const DATABASE = "kanon";
const FORMAT = 1;
const WEEKS_KEPT = 2;
const CODE_BYTES = 20;
const NONCE_BYTES = 12;
/** The secrets, encrypted with one key. What the service stores has them so for each key. */
const SEALED_BYTES = NONCE_BYTES + 64 + 16;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/** Seconds. Weeks begin on Monday at 00:00 UTC; the key of one holds a day after it, and some minutes before it. */
const DAY = 86_400;
const WEEK = 7 * DAY;
const MONDAY = 4 * DAY;
const AFTER = DAY;
const BEFORE = 300;

export interface AnonymousOptions {
  /** Where the credential is kept; by default the database `kanon` of the page's origin. One service has one. */
  store?: Store;
  /** Each join waits a random time of up to so many milliseconds, so that joins are not linked by time; by default a step. */
  spread?: number;
}

export interface Account {
  /** Names the account. One account is one person, on all devices. */
  auth: Auth;
  /**
   * `relay(...)` of `kanon-client/relay`. Through it comes the key, to be compared with the one that the service shows
   * directly, and so does the request. Without it a service could give one person an own key.
   */
  through?: Through;
  /** Call without `through`, which brings an enrolment the key only. A service on AWS needs it. */
  direct?: boolean;
}

export interface Enrolment extends Account {
  /**
   * A `recoveryCode()`. A device with the secrets lets the service store them, encrypted with it, with the passkey, or
   * with each of the two, in place of what was stored; another device gets them with one. So what was given last works:
   * give all that shall work, or none, which changes nothing.
   */
  recovery?: string;
  /** What `newPasskey` gives on the first device, and `passkey` on another one. */
  passkey?: CryptoKey | undefined;
}

/** What a store keeps, as JSON: the secrets of the person, and the last credentials by week, each after its key. */
interface Wallet {
  format: number;
  deployment: string;
  secrets: string;
  weeks: Record<string, [key: string, credential: string]>;
}

/** The key of the week, as relay and service show it. */
interface Key {
  deployment: string;
  epoch: number;
  key: string;
}

/** A new recovery code: 160 random bits, as 8 groups of 4 letters and digits. It is as secret as the credential. */
export function recoveryCode(): string {
  const bits = Array.from(crypto.getRandomValues(new Uint8Array(CODE_BYTES)), (byte) => byte.toString(2).padStart(8, "0")).join("");
  const text = bits.replace(/.{5}/g, (five) => LETTERS[parseInt(five, 2)]!);
  return text.match(/.{4}/g)!.join("-");
}

/**
 * Names an account by the device, for `auth` at a service with a verifier of attestations.
 *
 * `deployment` is what `GET /v1/credentials/keys` shows. `attest` gives this device's attestation of 32 bytes, in at most
 * 6,000 bytes.
 */
export function attested(deployment: string, attest: (binding: Uint8Array) => Promise<Uint8Array>): Auth {
  return async (method, body) => {
    const at = Math.floor(Date.now() / 1000);
    const asked = prefixed("kanon-attestation-v1", deployment, at, method, body);
    return `Bearer ${at}.${base64url(await attest(new Uint8Array(await crypto.subtle.digest("SHA-256", asked))))}`;
  };
}

/** A person's credential for one service, for the option `anonymous` of a client. */
export class Anonymous implements Presenting {
  readonly #store: Store;
  readonly #spread: number | undefined;

  constructor(options: AnonymousOptions = {}) {
    onlyOptions(options, ["store", "spread"]);
    this.#store = options.store ?? indexedDb(DATABASE);
    this.#spread = options.spread;
  }

  /**
   * Get the credential of this week for an account; nothing if the store has it, and no code or passkey is given.
   *
   * The service learns that the account enrols now, and nothing that joins later show. `KeysDifferError`: it may single
   * out this person. `EnrolmentError`: the account is enrolled on another device, the code is wrong, or the service did
   * not use the key that it shows.
   */
  async enrol(service: string, options: Enrolment): Promise<void> {
    onlyOptions(options, ["auth", "through", "recovery", "passkey", "direct"]);
    const { through } = options;
    const bases = await basesOf(options);
    const key = await keyOf(new Connection(service), through && new Connection(service, undefined, through));
    const account = accountOf(service, options);
    const keys = await Promise.all(bases.map((base) => wrappingKey(base, key.deployment)));
    let [wallet, stored] = [await this.#read(), undefined as Bytes | undefined];
    if (!wallet) {
      stored = await storedOf(account);
      const made = stored ? await opened(stored, keys) : Secrets.random();
      const own = { format: FORMAT, deployment: key.deployment, secrets: base64url(made.encode()), weeks: {} };
      // Two tabs may begin at once: both go on with what is in the store, before anything is sent.
      wallet = read(await this.#store.replace((before) => before ?? JSON.stringify(own)));
    }
    if (wallet.deployment !== key.deployment) throw new EnrolmentError("this credential is for another service: give another store");
    if (!keys.length && wallet.weeks[key.epoch]?.[0] === key.key) return;
    const { secrets, weeks: earlier } = wallet;
    const mine = new Secrets(decoded(secrets));
    const held = await issued(account, key, mine, stored ?? (await sealed(mine, keys))).catch((error: unknown) => {
      if (!(error instanceof RefusedError && error.status === 409)) throw error;
      const unused = Object.keys(earlier).length ? "" : "; delete first what the store keeps, which was never used";
      throw new EnrolmentError(error.message + unused, { cause: error });
    });
    await this.#store.replace((before) => {
      const now = before === undefined ? undefined : read(before);
      if (now?.secrets !== secrets) throw new EnrolmentError("the credential was deleted meanwhile: enrol again");
      const weeks = Object.entries({ ...now.weeks, [key.epoch]: [key.key, base64url(held.encode())] as [string, string] });
      weeks.sort(([one], [other]) => Number(one) - Number(other));
      return JSON.stringify({ ...now, weeks: Object.fromEntries(weeks.slice(-WEEKS_KEPT)) });
    });
  }

  /**
   * Let the service make no credential for the account any more. Then delete what the store keeps.
   *
   * It forgets the account when no credential of it can count any more; until then nobody can enrol it again. A page
   * needs a relay for this call at a service on one machine, which allows pages no DELETE.
   */
  async delete(service: string, options: Account): Promise<void> {
    onlyOptions(options, ["auth", "through", "direct"]);
    const account = accountOf(service, options);
    await account.json({ ...(await periodOf(account)), ...call("DELETE", PATH) });
  }

  /**
   * A line for `kanon operate forget-tags`: what the service may forget of this person, in one set.
   *
   * It tells who reads it that somebody joined the set, and does not tell who. Send each line by itself, and none with a
   * name.
   */
  async tag(type: string, value: Value): Promise<string> {
    const wallet = await this.#read();
    if (!wallet) throw new EnrolmentError("the store has no secrets: enrol with the recovery code or passkey");
    const set = String(await valueId(value));
    return `${type} ${set} ${base64url(new Secrets(decoded(wallet.secrets)).tag(tagContext(wallet.deployment, type, decoded(set))))}`;
  }

  /** A random time at which to enrol next, in milliseconds since 1970: within a day after the end of this week. */
  renewAt(): number {
    return (MONDAY + (weekOf(Date.now() / 1000) + 1) * WEEK + chance() * DAY) * 1000;
  }

  async delay(period: number): Promise<number> {
    await this.#held();
    return chance() * (this.#spread ?? period * 1000);
  }

  async presentation(type: string, set: Uint8Array, period: number): Promise<object> {
    const { deployment, epoch, key, credential } = await this.#held();
    const step = joinStep(Date.now() / 1000, period);
    const bound = session({ deployment, issuerKey: decoded(key), epoch, method: "POST", type, set, step });
    const proof = new Credential(decoded(credential)).present(tagContext(deployment, type, set), bound);
    return { presentation: { epoch, step, proof: base64url(proof) } };
  }

  /** The newest credential that holds now. */
  async #held() {
    const wallet = await this.#read();
    const now = Date.now() / 1000;
    const weeks = [weekOf(now - AFTER), weekOf(now), weekOf(now + BEFORE)].filter((week) => wallet?.weeks[week]);
    const epoch = weeks.at(-1);
    if (!wallet || epoch === undefined) throw new EnrolmentError("there is no credential for now: call enrol, at another time than joins");
    const [key, credential] = wallet.weeks[epoch]!;
    return { deployment: wallet.deployment, epoch, key, credential };
  }

  async #read(): Promise<Wallet | undefined> {
    const kept = await this.#store.read();
    return kept === undefined ? undefined : read(kept);
  }
}

function read(kept: string): Wallet {
  try {
    const wallet = JSON.parse(kept) as Wallet;
    if (wallet.format === FORMAT && typeof wallet.deployment === "string" && wallet.weeks) {
      new Secrets(decoded(wallet.secrets));
      return wallet;
    }
  } catch {
    // the error below says the same
  }
  throw new EnrolmentError("what the store keeps is damaged: delete it, and enrol with the recovery code or passkey");
}

/** Calls with the name of the account. */
function accountOf(service: string, { auth, through, direct }: Account): Connection {
  return new Connection(service, auth, direct ? undefined : through);
}

/** The key that the service shows, if the relay brings the same. */
async function keyOf(direct: Connection, hidden: Connection | undefined): Promise<Key> {
  const asked = call("GET", KEYS);
  const answers = [];
  for (const each of [direct, hidden]) if (each) answers.push((await each.json(asked)).answer);
  const [shown] = answers as [Key];
  const { deployment, epoch, key } = shown;
  if (answers.some((answer) => JSON.stringify(answer) !== JSON.stringify(shown))) throw new KeysDifferError();
  if (typeof deployment !== "string" || !Number.isSafeInteger(epoch) || typeof key !== "string") throw unexpected(asked);
  return { deployment, epoch, key };
}

/** What another device of the account has stored; undefined if the account is new. */
async function storedOf(account: Connection): Promise<Bytes | undefined> {
  const asked = call("GET", PATH);
  const found = await account.json(asked).catch((error: unknown) => {
    if (error instanceof RefusedError && error.status === 404) return undefined;
    throw error;
  });
  return found && binary(asked, found.answer.recovery);
}

/** The secrets of which one of these keys opens what is stored. */
async function opened(stored: Bytes, keys: CryptoKey[]): Promise<Secrets> {
  if (!keys.length) throw new EnrolmentError("this account is enrolled on another device: give its recovery code or passkey");
  if (!stored.length) throw new EnrolmentError("this account is enrolled on another device, without a recovery code: use that device");
  for (let at = 0; at < stored.length; at += SEALED_BYTES) {
    const [iv, content] = [stored.slice(at, at + NONCE_BYTES), stored.slice(at + NONCE_BYTES, at + SEALED_BYTES)];
    for (const key of keys) {
      const clear = await crypto.subtle.decrypt({ name: "AES-GCM", iv }, key, content).catch(() => undefined);
      if (clear) return new Secrets(new Uint8Array(clear));
    }
  }
  throw new EnrolmentError("the recovery code or passkey is not the one of this account");
}

/** Through a relay, a call that changes the account names its step. The steps of all types have one length. */
async function periodOf(account: Connection): Promise<{ period?: number }> {
  if (!account.relayed) return {};
  const asked = call("GET", "/v1/types");
  const { answer } = await account.json(asked);
  const period = answer.types?.[0]?.period;
  if (typeof period !== "number") throw unexpected(asked);
  return { period };
}

/** A credential from the issuer. */
async function issued(account: Connection, { deployment, epoch, key }: Key, secrets: Secrets, stored: Uint8Array): Promise<Credential> {
  const context = credentialContext(deployment, epoch);
  const request = secrets.request(context, context);
  const recovery = stored.length ? { recovery: base64url(stored) } : {};
  const body = JSON.stringify({ epoch, request: base64url(request.message), ...recovery });
  const asked = { ...(await periodOf(account)), ...call("POST", PATH, body) };
  const { answer } = await account.json(asked);
  const [published, response] = [binary(asked, key), binary(asked, answer.response)];
  try {
    return request.finish(new PublicKey(published), response);
  } catch (error) {
    if (!(error instanceof CredentialError)) throw error;
    throw new EnrolmentError("the service did not use the key that it shows: it may single you out", { cause: error });
  }
}

/** The secrets as each key encrypts them; empty without a key. */
async function sealed(secrets: Secrets, keys: CryptoKey[]): Promise<Uint8Array> {
  const parts = keys.map(async (key) => {
    const iv = crypto.getRandomValues(new Uint8Array(NONCE_BYTES));
    return joined(iv, new Uint8Array(await crypto.subtle.encrypt({ name: "AES-GCM", iv }, key, secrets.encode() as Bytes)));
  });
  return joined(...(await Promise.all(parts)));
}

interface Base {
  secret: CryptoKey;
  use: string;
}

/** What the keys come from. The bits of a code are random, so no slow function is needed. */
async function basesOf({ recovery, passkey }: Enrolment): Promise<Base[]> {
  const bases: Base[] = [];
  if (passkey) bases.push({ secret: passkey, use: "kanon passkey 1" });
  if (recovery !== undefined) {
    const secret = await crypto.subtle.importKey("raw", bytesOf(codeOf(recovery)), "HKDF", false, ["deriveKey"]);
    bases.push({ secret, use: "kanon recovery 1" });
  }
  return bases;
}

async function wrappingKey({ secret, use }: Base, deployment: string): Promise<CryptoKey> {
  const derivation = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(), info: prefixed(use, deployment) };
  return await crypto.subtle.deriveKey(derivation, secret, { name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
}

/** The letters and digits of a recovery code, as people may type it. */
function codeOf(recovery: string): string {
  const code = recovery.toUpperCase().replaceAll(/[-\s]/g, "");
  if (!/^[A-Z0-9]{32}$/.test(code)) {
    throw new EnrolmentError("a recovery code is what recoveryCode() makes: 8 groups of 4 letters and digits");
  }
  return code;
}

function binary(asked: Call, text: unknown): Bytes {
  if (typeof text !== "string" || !/^[\w-]*$/.test(text) || text.length % 4 === 1) throw unexpected(asked);
  return decoded(text) as Bytes;
}

function call(method: Call["method"], path: string, body?: string): Call {
  return { method, path, end: Date.now() + TIMEOUT, ...(body === undefined ? {} : { body }) };
}

function weekOf(seconds: number): number {
  return Math.floor((seconds - MONDAY) / WEEK);
}
