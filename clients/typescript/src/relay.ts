/**
 * Calls through a relay (Oblivious HTTP, RFC 9458): it learns who calls, the service what is called, nobody both.
 *
 * The service sees the address of a page only when this fetches its key.
 */
import { padded, readResponse } from "./binary_http.js";
import { bytesOf, joined, type Bytes } from "./bytes.js";
import { baseUrl, KEYS, OUTER, type Send, type Through } from "./connection.js";
import { ApiError, KeysDifferError, onlyOptions, RefusedError } from "./errors.js";
import { AES_256_GCM, hmac, sender } from "./hpke.js";
import { ages, chance, joinStep, REPEATED } from "./waiting.js";

const GATEWAY = "/v1/gateway";
const REQUEST_TYPE = "message/ohttp-req";
/** After the id, the KEM; after the public key, the length of a pair of KDF and AEAD, and this pair. */
const KEM = [0x00, 0x20];
const KDF_AEAD = [0x00, 0x01, 0x00, AES_256_GCM];
const SYMMETRIC = [0x00, KDF_AEAD.length, ...KDF_AEAD];
const CONFIG_BYTES = 41;
const LAST_ID = 127;
const STEP_FIELD = "kanon-step";

export { KeysDifferError };

export interface RelayOptions {
  /**
   * Milliseconds that a join waits before an attempt, of at most so many: a whole step, and after a failed attempt what
   * is left until the join is dropped. By default a random part of them, so that joins cannot be linked by their time.
   * A page that is closed meanwhile has not joined.
   */
  delay?: (most: number) => number;
}

/** For the option `through` of a client: all its calls go through this relay. */
export function relay(url: string, options: RelayOptions = {}): Through {
  onlyOptions(options, ["delay"]);
  const address = baseUrl(url);
  const keys = new Map<string, Key>();
  const asked = new Map<string, Promise<Key | Response>>();
  /** The key, or the answer of one that is busy. Who needs it at one time asks once: the service could count joins. */
  const keyOf = async (service: string, signal: AbortSignal) => {
    const held = keys.get(service);
    if (held && Date.now() < held.until) return held;
    const asking = asked.get(service) ?? fetched(keys, address, service, signal).finally(() => asked.delete(service));
    asked.set(service, asking);
    const found = await asking;
    return found instanceof Response ? found.clone() : found;
  };
  const send: Send = async (service, { path, period, join }, init) => {
    const fields = Object.entries(init.headers).map(([name, value]): [string, string] => [name.toLowerCase(), value]);
    if (period !== undefined) fields.push([STEP_FIELD, String(joinStep(Date.now() / 1000, period))]);
    const content = bytesOf(init.body ?? "");
    const message = padded({ method: init.method, authority: new URL(service).host, path, fields, content });
    for (let attempt = 0; ; attempt++) {
      // A join fetches no new key: the service would see from where, beside the join.
      const key = (join && keys.get(service)) || (await keyOf(service, init.signal));
      if (key instanceof Response) return key;
      const { sealed, open } = await sealedTo(key.config, message);
      const headers = { "Content-Type": REQUEST_TYPE };
      const answer = await fetch(address + GATEWAY, { ...OUTER, method: "POST", headers, body: sealed, signal: init.signal });
      if (REPEATED.includes(answer.status)) return answer;
      if (answer.ok) return opened(await open(new Uint8Array(await answer.arrayBuffer())));
      const refusesKey = answer.status === 400 && !attempt;
      if (refusesKey) key.until = 0;
      if (!refusesKey || join) throw refused("POST", GATEWAY, answer.status);
    }
  };
  const prepare = async (service: string, signal: AbortSignal): Promise<Response> => {
    const key = await keyOf(service, signal);
    return key instanceof Response ? key : new Response();
  };
  return { send, prepare, delay: options.delay ?? ((most) => chance() * most) };
}

interface Key {
  config: Bytes;
  /** In milliseconds since 1970. */
  until: number;
}

/** The key of a service, as the relay and the service show it now; or the answer of one that is busy. */
async function fetched(keys: Map<string, Key>, relay: string, service: string, signal: AbortSignal): Promise<Key | Response> {
  // Caches may hold the key of last week for a while: two of them are two keys only if they are read without.
  for (const cache of keys.has(service) ? (["reload"] as const) : (["default", "reload"] as const)) {
    const found: Response[] = [];
    for (const url of [relay, service]) {
      const answer = await fetch(url + KEYS, { ...OUTER, signal, cache });
      if (REPEATED.includes(answer.status)) return answer;
      if (!answer.ok) throw refused("GET", KEYS, answer.status);
      found.push(answer);
    }
    const [shown, config] = await Promise.all(found.map(async (answer) => new Uint8Array(await answer.arrayBuffer())));
    if (!equal(shown!, config!)) continue;
    if (!isConfig(config!)) throw new ApiError(`GET ${KEYS}: the answer is no key: check the address and the version`);
    const [maxAge, age] = ages(found[1]!.headers) ?? [0, 0];
    const key = { config: config!, until: Date.now() + Math.max(0, maxAge - age) * 1000 };
    keys.set(service, key);
    return key;
  }
  throw new KeysDifferError();
}

function isConfig(config: Bytes): boolean {
  return (
    config.length === CONFIG_BYTES &&
    config[0]! >= 1 &&
    config[0]! <= LAST_ID &&
    equal(config.subarray(1, 3), KEM) &&
    equal(config.subarray(35), SYMMETRIC)
  );
}

/** A request in its capsule, and what opens the answer. `ephemeral` is for test vectors. */
export async function sealedTo(config: Bytes, message: Bytes, ephemeral?: CryptoKeyPair) {
  const header = joined([config[0]!], KEM, KDF_AEAD);
  const info = joined(bytesOf("message/bhttp request"), [0], header);
  const context = await sender(AES_256_GCM, config.subarray(3, 35), info, ephemeral);
  const cipher = await crypto.subtle.importKey("raw", context.key, "AES-GCM", false, ["encrypt"]);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv: context.nonce }, cipher, message);
  return {
    sealed: joined(header, context.encapsulated, new Uint8Array(sealed)),
    /** The clear text of the answer (section 4.4); undefined if it does not open. */
    open: async (answer: Bytes): Promise<Bytes | undefined> => {
      const random = answer.subarray(0, 32);
      const prk = await hmac(joined(context.encapsulated, random), await context.exported("message/bhttp response", 32));
      const secret = await hmac(prk, joined(bytesOf("key"), [1]));
      const nonce = (await hmac(prk, joined(bytesOf("nonce"), [1]))).slice(0, 12);
      const key = await crypto.subtle.importKey("raw", secret, "AES-GCM", false, ["decrypt"]);
      const clear = crypto.subtle.decrypt({ name: "AES-GCM", iv: nonce }, key, answer.subarray(32));
      return clear.then((bytes) => new Uint8Array(bytes)).catch(() => undefined);
    },
  };
}

function opened(message: Bytes | undefined): Response {
  const found = message && readResponse(message);
  if (!found) {
    throw new ApiError(`POST ${GATEWAY}: the answer does not open: check that the address is a relay's, and that it changes no bytes`);
  }
  return new Response(found.content.length ? found.content : null, { status: found.status, headers: found.fields });
}

function refused(method: string, path: string, status: number): RefusedError {
  const reason = "the relay, or the service behind it, refuses: check the address of the relay, and ask who runs it";
  return new RefusedError(`${method} ${path}: ${status}, ${reason}`, status, null);
}

function equal(one: ArrayLike<number>, other: ArrayLike<number>): boolean {
  return one.length === other.length && Array.from(one).every((byte, n) => byte === other[n]);
}
