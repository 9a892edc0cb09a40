import { Connection, MOST_IN_FLIGHT, pause, unexpected, type Auth, type Call, type Presenting, type Through } from "./connection.js";
import { ApiError, DroppedError, NoAnswerError, RefusedError, UnknownTypeError, nearest, onlyOptions, telling } from "./errors.js";
import { MOST_BITS, Ranges } from "./ranges.js";
import { SetId, decoded, textOf, valueId, type Value } from "./values.js";
import { REPEATED, ages, kept, retryAfter, wait } from "./waiting.js";

const HASHES_A_CALL = 100;
const JOINS_A_CALL = 500;
/** Bytes of a batch around its joins. */
const ROOM = 16;
/** Kept answers, joins and ids; the oldest ones go first. */
const MOST_KEPT = 10_000;
/** Milliseconds before an unknown type makes a client ask for the types again. */
const TYPES_KEPT = 60_000;
/** How often a list is read from its beginning, if the next one replaces it meanwhile. */
const BEGINNINGS = 3;
const DIGEST_BYTES = 32;

/** Who joins: a text of 1 to 256 bytes, or a short identifier as a number. */
export type Who = string | number;

export interface Join {
  type: string;
  value: Value;
  /** By default the client of the options. A type that needs a credential takes none. */
  client?: Who;
}

export interface Options {
  /** Who joins, if a join does not say so. */
  client?: Who;
  /** `Bearer ...`, for a service that asks for it. Without it `joinMany` sends each join by itself. */
  auth?: Auth;
  /** Of `kanon-client/anonymous`, for types that need a credential (experimental). Without `auth`, which names the caller. */
  anonymous?: Presenting;
  /** `relay(...)` of `kanon-client/relay`: the service does not learn who calls. Each join waits, and is sent by itself. */
  through?: Through;
  /** Milliseconds for one call with its repetitions; 30,000 if left out. A join has one step instead. */
  timeout?: number;
  /** Is told about each join that was not accepted, also if nobody awaits it. By default the console, once. */
  onDrop?: (error: unknown, join: Join) => void;
}

/** What the service says about a type; its page of the API lists the other fields. */
export interface Type {
  type: string;
  k: number;
  window: number;
  /** The length of a step in seconds. */
  period: number;
  /** Whether joins send their value, and the shared values are published. */
  listed?: boolean;
  /** Whether joins need a credential, and name no client. */
  credential?: boolean;
  [field: string]: unknown;
}

export interface Look {
  /**
   * Look into range files of a listed type here, and send no value: `true` reads those in which the values would be,
   * which shows some bits of each hash; `"all"` reads all, which shows nothing.
   */
  private?: boolean | "all";
}

/** A value that the crowd shares, and the step since which it is true. */
export interface ListedValue {
  value: string;
  since: number;
}

/** The values of a listed type that the crowd shares; the step is null before the first list. */
export interface Released {
  values: ListedValue[];
  step: number | null;
}

type Entry = { type: string; set: string; value?: string; client?: string; shortClientIdentifier?: number };

/** Calls one service. Calls may overlap. Nobody has to await a join. */
export class Client {
  readonly #connection: Connection;
  readonly #options: Options;
  #types: Promise<Map<string, Type>> | undefined;
  #typesUntil = 0;
  readonly #ids = new Map<string, string>();
  readonly #kept = new Map<string, { shared: boolean; from: number; until: number }>();
  readonly #ranges = new Map<string, { ranges: Ranges; from: number; until: number }>();
  readonly #joined = new Map<string, { step: number; done: Promise<void> }>();
  readonly #wanted = new Map<string, Set<string>>();
  #dropped = 0;

  constructor(url: string, options: Options = {}) {
    onlyOptions(options, ["client", "auth", "anonymous", "through", "timeout", "onDrop"]);
    if (options.anonymous && options.auth !== undefined) throw new TypeError("auth names who joins: give it to anonymous.enrol alone");
    this.#connection = new Connection(url, options.auth, options.through);
    this.#options = options;
  }

  /** How many joins were not accepted. */
  get dropped(): number {
    return this.#dropped;
  }

  /**
   * Join the set of a value. Within a step a repeated join changes nothing, so it is not sent again.
   *
   * A join that the service cannot take is repeated for one step and then dropped: later it would count for another one.
   */
  join(type: string, value: Value, client?: Who): Promise<void> {
    const join = { type, value, ...(client === undefined ? {} : { client }) };
    return this.#told(this.#join(join), join);
  }

  /** Send joins: with `auth` and no relay many in a call, otherwise each by itself. */
  async joinMany(joins: Iterable<Join>): Promise<void> {
    const all = [...joins];
    const calls =
      this.#options.auth === undefined || this.#options.through
        ? all.map(({ type, value, client }) => this.join(type, value, client))
        : (await this.#batches(all)).flatMap((some) => this.#eachOf(some));
    const results = await Promise.allSettled(calls);
    const refused = results.find((result) => result.status === "rejected");
    if (refused) throw refused.reason;
  }

  /** Those of the values that the crowd shares, from kept answers where there are any. */
  async isShared<V extends Value>(type: string, values: Iterable<V>, options: Look = {}): Promise<Set<V>> {
    if (typeof values === "string" || ArrayBuffer.isView(values)) {
      throw new TypeError("isShared takes a list of values: put a single one into brackets");
    }
    onlyOptions(options, ["private"]);
    if (![undefined, false, true, "all"].includes(options.private)) throw new TypeError('private is true, false or "all"');
    const { period } = await this.type(type);
    const ids = new Map<V, string>();
    for (const value of values) ids.set(value, await this.#id(value));
    if (options.private) return this.#privately(type, ids, options.private === "all");
    const found = new Map<string, boolean | undefined>();
    for (const id of ids.values()) found.set(id, this.#look(type, id));
    const missing = [...found.keys()].filter((id) => found.get(id) === undefined);
    for (let n = 0; n < missing.length; n += HASHES_A_CALL) {
      await this.#ask(type, missing.slice(n, n + HASHES_A_CALL), period / 10, found);
    }
    return new Set([...ids.keys()].filter((value) => found.get(ids.get(value)!)));
  }

  /** All values of a listed type that the crowd shares. */
  async released(type: string): Promise<Released> {
    await this.type(type);
    return this.#ofOneList(type, async () => {
      const values: ListedValue[] = [];
      for (let after = ""; ; ) {
        const call = this.#call("GET", `${typePath(type)}/released${after}`);
        const page = this.#connection.json(call);
        const { answer } = (await (after ? unlessGone(page) : page)) ?? {};
        if (!answer) return undefined;
        if (!Array.isArray(answer.values)) throw unexpected(call);
        values.push(...answer.values);
        if (answer.next === null) return { values, step: answer.step };
        if (typeof answer.next !== "string") throw unexpected(call);
        after = `?after=${encodeURIComponent(answer.next)}`;
      }
    });
  }

  /** The kept answer for a value; undefined if there is none that still holds. It sends nothing. */
  known(type: string, value: string | SetId): boolean | undefined {
    const id = value instanceof SetId ? value.id : this.#ids.get(value);
    return id === undefined ? undefined : this.#look(type, id);
  }

  /**
   * The value if a kept answer says that the crowd shares it, otherwise `other`. It returns at once.
   *
   * It also joins the value, and asks about it for the next time.
   */
  sharedOr(type: string, value: string, other: string): string {
    void this.join(type, value);
    const shared = this.known(type, value);
    if (shared === undefined) this.#want(type, value);
    return shared ? value : other;
  }

  /** The types of the service by name, asked for once. */
  types(): Promise<Map<string, Type>> {
    this.#types ??= this.#fetchTypes().catch((error: unknown) => {
      this.#types = undefined;
      throw error;
    });
    return this.#types;
  }

  /** One type. */
  async type(name: string): Promise<Type> {
    let types = await this.types();
    if (!types.has(name) && Date.now() >= this.#typesUntil) {
      this.#types = undefined;
      types = await this.types();
    }
    const type = types.get(name);
    if (type) return type;
    throw new UnknownTypeError(`the service has no type ${name}${nearest(name, [...types.keys()])}`);
  }

  async #fetchTypes(): Promise<Map<string, Type>> {
    const call = this.#call("GET", "/v1/types");
    const { answer } = await this.#connection.json(call);
    if (!Array.isArray(answer.types)) throw unexpected(call);
    this.#typesUntil = Date.now() + TYPES_KEPT;
    return new Map((answer.types as Type[]).map((type) => [type.type, type]));
  }

  async #join(join: Join): Promise<void> {
    const { period, credential } = await this.type(join.type);
    const step = period * 1000;
    const { type, set, ...body } = await this.#entry(join);
    const now = Math.floor(Date.now() / step);
    const name = JSON.stringify([type, set, body]);
    const before = this.#joined.get(name);
    if (before?.step === now) return before.done;
    const path = `${typePath(type)}/sets/${set}:join`;
    const { anonymous, through } = this.#options;
    const waiting = credential ? anonymous!.delay(period) : through?.delay(step);
    const proven = async () => JSON.stringify({ ...body, ...(await anonymous!.presentation(type, decoded(set), period)) });
    const call = { ...this.#call("POST", path, body), simple: true, join: true, period, ...(credential ? { body: proven } : { keepalive: true }) };
    const done = this.#forOneStep(call, waiting);
    remember(this.#joined, name, { step: now, done });
    done.catch(() => this.#joined.delete(name));
    return done;
  }

  /** Get the key for a join, wait so many milliseconds, send it, and repeat it for the length of a step. */
  async #forOneStep(call: Call & { period: number }, waiting?: number | Promise<number>): Promise<void> {
    const endOfStep = () => Date.now() + call.period * 1000;
    const milliseconds = await waiting;
    try {
      await this.#connection.prepare(endOfStep());
      if (milliseconds !== undefined) await pause(milliseconds);
      await this.#connection.send({ ...call, end: endOfStep() });
    } catch (error) {
      const repeated = error instanceof NoAnswerError || REPEATED.includes((error as RefusedError).status);
      throw repeated ? new DroppedError(`a join was dropped after a step: ${(error as Error).message}`, error) : error;
    }
  }

  /** Joins in groups that fit into one call, which the bodies in flight leave room for. */
  async #batches(joins: Join[]): Promise<Join[][]> {
    const groups: Join[][] = [];
    let size = MOST_IN_FLIGHT;
    for (const join of joins) {
      await this.type(join.type);
      const bytes = new TextEncoder().encode(JSON.stringify(await this.#entry(join))).length + 1;
      size += bytes;
      if (size > MOST_IN_FLIGHT || groups.at(-1)!.length === JOINS_A_CALL) {
        groups.push([]);
        size = ROOM + bytes;
      }
      groups.at(-1)!.push(join);
    }
    return groups;
  }

  #eachOf(batch: Join[]): Promise<void>[] {
    const refused = this.#batch(batch);
    return batch.map((join, n) => {
      const done = refused.then((errors) => {
        if (errors.has(n)) throw errors.get(n);
      });
      return this.#told(done, join);
    });
  }

  /** Send a batch, and those of its joins that were not logged again; the errors of the others, by place. */
  async #batch(joins: Join[]): Promise<Map<number, Error>> {
    const periods = await Promise.all(joins.map(async ({ type }) => (await this.type(type)).period));
    const end = Date.now() + Math.min(...periods) * 1000;
    const entries = await Promise.all(joins.map((join) => this.#entry(join)));
    const refused = new Map<number, Error>();
    let left = [...entries.keys()];
    for (let failed = 1; ; failed++) {
      const body = { joins: left.map((n) => entries[n]) };
      const call = { ...this.#call("POST", "/v1:batchJoin", body), end, keepalive: true };
      const told = await this.#connection.json(call).catch((error: Error) => void left.forEach((n) => refused.set(n, error)));
      if (!told) return refused;
      const { answer, headers } = told;
      if (answer.results?.length !== left.length) throw unexpected(call);
      const errors: [number, any][] = left.map((n, place) => [n, answer.results[place].error]);
      for (const [n, error] of errors) if (error) refused.set(n, new RefusedError(error.message, error.code, null));
      left = errors.filter(([, error]) => error?.code === 503).map(([n]) => n);
      const milliseconds = wait(failed, Math.random(), retryAfter(headers)) * 1000;
      if (!left.length || Date.now() + milliseconds >= end) break;
      for (const n of left) refused.delete(n);
      await pause(milliseconds);
    }
    for (const n of left) refused.set(n, new DroppedError("a join was dropped after a step", refused.get(n)));
    return refused;
  }

  async #entry({ type, value, client }: Join): Promise<Entry> {
    const { listed, credential } = await this.type(type);
    const set = await this.#id(value);
    const who = credential ? this.#nobody(type, client) : this.#who(client);
    return { type, set, ...(listed ? { value: textOf(value) } : {}), ...who };
  }

  #nobody(type: string, client?: Who): object {
    if (client !== undefined || !this.#options.anonymous) {
      throw new TypeError(`type ${type} needs a credential: give new Client(url, {anonymous: ...}), and join no client`);
    }
    return {};
  }

  #who(client = this.#options.client): object {
    if (client === undefined || client === "") {
      throw new TypeError("say who joins: new Client(url, {client: ...}), or a client for each join");
    }
    return typeof client === "number" ? { shortClientIdentifier: client } : { client };
  }

  /** Count and tell a failure; it is no unhandled rejection if nobody awaits the join. */
  #told(done: Promise<void>, join: Join): Promise<void> {
    const told = done.catch((error: unknown) => {
      const first = !this.#dropped++;
      if (this.#options.onDrop) telling(() => this.#options.onDrop?.(error, join));
      else if (first) console.warn("kanon: a join was lost:", error);
      throw error;
    });
    told.catch(() => {});
    return told;
  }

  async #id(value: Value): Promise<string> {
    const before = typeof value === "string" ? this.#ids.get(value) : undefined;
    const { id } = before === undefined ? await valueId(value) : { id: before };
    if (typeof value === "string") remember(this.#ids, value, id);
    return id;
  }

  async #privately<V>(type: string, ids: Map<V, string>, all: boolean): Promise<Set<V>> {
    const digests = [...ids].map(([value, id]) => [value, decoded(id)] as const);
    if (digests.some(([, digest]) => digest.length !== DIGEST_BYTES)) {
      throw new TypeError("only the sets of values are in range files: their ids are SHA-256");
    }
    return this.#ofOneList(type, async () => {
      const ranges = await this.#newest(type);
      for (const name of ranges.missing(all ? ranges.names() : digests.map(([, digest]) => ranges.name(digest)))) {
        const call = this.#call("GET", `${typePath(type)}/ranges/${ranges.step}/${name}`);
        const file = await unlessGone(this.#connection.send(call));
        if (!file) return undefined;
        if (!ranges.keep(name, file.body)) throw unexpected(call);
      }
      return new Set(digests.filter(([, digest]) => ranges.has(digest)).map(([value]) => value));
    });
  }

  /** The newest list of a type, without its files. */
  async #newest(type: string): Promise<Ranges> {
    const before = this.#ranges.get(type);
    const from = Date.now();
    if (before && before.from <= from && from < before.until) return before.ranges;
    const call = this.#call("GET", `${typePath(type)}/ranges`);
    const { answer, headers } = await this.#connection.json(call);
    const { step, prefixBits, nextUpdate } = answer;
    const whole = [step, prefixBits].every(Number.isSafeInteger) && prefixBits >= 0 && prefixBits <= MOST_BITS;
    if (step !== null && !whole) throw unexpected(call);
    const bits = prefixBits ?? 0;
    const same = before && before.ranges.step === step && before.ranges.bits === bits;
    const ranges = same ? before.ranges : new Ranges(type, step, bits);
    // A browser answers from its cache without `Age`: no list is kept beyond its update.
    const seconds = kept(...(ages(headers) ?? [0, 0]), 0, 0);
    const until = Math.min(from + seconds * 1000, Date.parse(nextUpdate));
    this.#ranges.set(type, { ranges, from, until });
    return ranges;
  }

  /** What is read of one list; undefined means that the list is gone, and it is read from the beginning. */
  async #ofOneList<T>(type: string, read: () => Promise<T | undefined>): Promise<T> {
    for (let begun = 0; begun < BEGINNINGS; begun++) {
      const found = await read();
      if (found !== undefined) return found;
      this.#ranges.delete(type);
    }
    throw new ApiError(`the lists of type ${type} change faster than they can be read`);
  }

  #look(type: string, id: string): boolean | undefined {
    const found = this.#kept.get(`${type}/${id}`);
    const now = Date.now(); // a clock that was set back does not keep an answer alive
    return found && found.from <= now && now < found.until ? found.shared : undefined;
  }

  /** Ask about a value soon, together with others; through a relay by itself, because one query links its sets. */
  #want(type: string, value: string): void {
    const wanted = this.#wanted.get(type) ?? new Set();
    wanted.add(value);
    if (this.#wanted.has(type)) return;
    this.#wanted.set(type, wanted);
    setTimeout(async () => {
      for (let some = [...wanted]; some.length; some = [...wanted]) {
        const queries = this.#options.through ? some.map((one) => [one]) : [some];
        // What fails stays unknown, and is asked about again.
        await Promise.allSettled(queries.map((values) => this.isShared(type, values)));
        for (const value of some) wanted.delete(value);
      }
      this.#wanted.delete(type);
    });
  }

  async #ask(type: string, ids: string[], spread: number, found: Map<string, boolean | undefined>): Promise<void> {
    const call = this.#call("POST", "/v1:query", { setsForType: [{ type, hashes: ids }] });
    const { answer, headers } = await this.#connection.json(call);
    const entry = answer.kAnonymousSets?.[0];
    if (entry?.type !== type || !Array.isArray(entry.hashes)) throw unexpected(call);
    const age = ages(headers);
    const from = Date.now();
    const until = age ? from + kept(...age, spread, Math.random()) * 1000 : from;
    for (const id of ids) {
      const shared = entry.hashes.includes(id);
      found.set(id, shared);
      remember(this.#kept, `${type}/${id}`, { shared, from, until });
    }
  }

  #call(method: "GET" | "POST", path: string, body?: object): Call {
    const end = Date.now() + (this.#options.timeout ?? 30_000);
    return { method, path, end, ...(body ? { body: JSON.stringify(body) } : {}) };
  }
}

const typePath = (type: string): string => `/v1/types/${encodeURIComponent(type)}`;

/** The answer to a call; undefined if the service has no such list any more. */
async function unlessGone<T>(answer: Promise<T>): Promise<T | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof RefusedError && error.status === 404) return undefined;
    throw error;
  }
}

function remember<T>(kept: Map<string, T>, key: string, value: T): void {
  kept.delete(key);
  kept.set(key, value);
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!);
}
