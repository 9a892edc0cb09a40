/**
 * Joins without a name (experimental): a credential in the browser, which counts a person once in each set.
 *
 * `enrol` names the account, so call it once a week at another time than joins: `renewAt` draws one.
 */
import { bytesOf, type Bytes } from "./bytes.js";
import { Connection, unexpected, type Auth, type Call, type Presenting, type Through } from "./connection.js";
import { credentialContext, prefixed, session, tagContext } from "./contexts.js";
import { Credential, PublicKey, Secrets } from "./credentials.js";
import { CredentialError, EnrolmentError, KeysDifferError, onlyOptions, RefusedError } from "./errors.js";
import { indexedDb, type Store } from "./store.js";
import { base64url, decoded } from "./values.js";
import { chance, joinStep } from "./waiting.js";

export { credentialContext, session, tagContext, type Bound } from "./contexts.js";
export { Credential, CredentialRequest, PublicKey, Secrets } from "./credentials.js";
export { CredentialError, EnrolmentError, KeysDifferError } from "./errors.js";
export { indexedDb, type Store } from "./store.js";

const PATH = "/v1/credentials";
const KEYS = `${PATH}/keys`;
const TIMEOUT = 30_000;
const DATABASE = "kanon";
const FORMAT = 1;
const WEEKS_KEPT = 2;
const CODE_BYTES = 20;
const NONCE_BYTES = 12;
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
}

export interface Enrolment extends Account {
  /** A `recoveryCode()`. From the first device the service stores the secrets, encrypted with it; others get them so. */
  recovery?: string;
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
   * Get the credential of this week for an account; nothing if the store has it.
   *
   * The service learns that the account enrols now, and nothing that joins later show. `KeysDifferError`: it may single
   * out this person. `EnrolmentError`: the account is enrolled on another device, the code is wrong, or the service did
   * not use the key that it shows.
   */
  async enrol(service: string, options: Enrolment): Promise<void> {
    onlyOptions(options, ["auth", "through", "recovery"]);
    const { auth, through, recovery } = options;
    const code = recovery === undefined ? undefined : codeOf(recovery);
    const key = await keyOf(new Connection(service), through && new Connection(service, undefined, through));
    const account = new Connection(service, auth, through);
    let wallet = await this.#read();
    if (!wallet) {
      const made = (await secretsOf(account, key.deployment, code)) ?? Secrets.random();
      const own = { format: FORMAT, deployment: key.deployment, secrets: base64url(made.encode()), weeks: {} };
      // Two tabs may begin at once: both go on with what is in the store, before anything is sent.
      wallet = read(await this.#store.replace((before) => before ?? JSON.stringify(own)));
    }
    if (wallet.deployment !== key.deployment) throw new EnrolmentError("this credential is for another service: give another store");
    if (wallet.weeks[key.epoch]?.[0] === key.key) return;
    const held = await issued(account, key, new Secrets(decoded(wallet.secrets)), code);
    const { secrets } = wallet;
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
   * needs a relay for this call: browsers allow it no DELETE.
   */
  async delete(service: string, options: Account): Promise<void> {
    onlyOptions(options, ["auth", "through"]);
    await new Connection(service, options.auth, options.through).json(call("DELETE", PATH));
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
  throw new EnrolmentError("what the store keeps is damaged: delete it, and enrol with the recovery code");
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

/** The secrets that another device of the account has stored; undefined if the account is new. */
async function secretsOf(account: Connection, deployment: string, code: string | undefined): Promise<Secrets | undefined> {
  const asked = call("GET", PATH);
  const found = await account.json(asked).catch((error: unknown) => {
    if (error instanceof RefusedError && error.status === 404) return undefined;
    throw error;
  });
  if (!found) return undefined;
  const blob = binary(asked, found.answer.recovery);
  if (code === undefined) throw new EnrolmentError("this account is enrolled on another device: give its recovery code");
  if (!blob.length) throw new EnrolmentError("this account is enrolled on another device, without a recovery code: use that device");
  try {
    const iv = blob.slice(0, NONCE_BYTES);
    const clear = await crypto.subtle.decrypt({ name: "AES-GCM", iv }, await codeKey(deployment, code), blob.slice(NONCE_BYTES));
    return new Secrets(new Uint8Array(clear));
  } catch {
    throw new EnrolmentError("the recovery code is not the one of this account");
  }
}

/** A credential from the issuer. */
async function issued(account: Connection, { deployment, epoch, key }: Key, secrets: Secrets, code: string | undefined): Promise<Credential> {
  const context = credentialContext(deployment, epoch);
  const request = secrets.request(context, context);
  const recovery = code === undefined ? {} : { recovery: base64url(await encrypted(deployment, code, secrets)) };
  const asked = call("POST", PATH, JSON.stringify({ epoch, request: base64url(request.message), ...recovery }));
  const { answer } = await account.json(asked).catch((error: unknown) => {
    throw error instanceof RefusedError && error.status === 409 ? new EnrolmentError(error.message, { cause: error }) : error;
  });
  const [published, response] = [binary(asked, key), binary(asked, answer.response)];
  try {
    return request.finish(new PublicKey(published), response);
  } catch (error) {
    if (!(error instanceof CredentialError)) throw error;
    throw new EnrolmentError("the service did not use the key that it shows: it may single you out", { cause: error });
  }
}

async function encrypted(deployment: string, code: string, secrets: Secrets): Promise<Uint8Array> {
  const iv = crypto.getRandomValues(new Uint8Array(NONCE_BYTES));
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, await codeKey(deployment, code), secrets.encode() as Bytes);
  return Uint8Array.from([...iv, ...new Uint8Array(sealed)]);
}

/** The key of a code. Its bits are random, so no slow function is needed. */
async function codeKey(deployment: string, code: string): Promise<CryptoKey> {
  const secret = await crypto.subtle.importKey("raw", bytesOf(code), "HKDF", false, ["deriveKey"]);
  const info = prefixed("kanon recovery 1", deployment);
  const derivation = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(), info };
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
