import { ApiError, NoAnswerError, RefusedError } from "./errors.js";
import { chance, REPEATED, retryAfter, wait } from "./waiting.js";

/** `Bearer ...`, or a function that returns one that is still valid; it is called for every attempt, with what is sent. */
export type Auth = string | ((method: string, body: string) => string | Promise<string>);

/** Browsers refuse a request with `keepalive` if the bodies in flight together exceed 64 KiB. */
export const MOST_IN_FLIGHT = 60 * 1024;
/** Where relay and service show the key of the gateway. */
export const KEYS = "/v1/proxy/keys";
/** Milliseconds that one attempt may take. */
const ATTEMPT = 30_000;

export interface Call {
  method: "GET" | "POST" | "DELETE";
  path: string;
  /** JSON; every attempt sends the same bytes, or what a function returns for it. */
  body?: string | (() => Promise<string>);
  /** When to give up, in milliseconds since 1970. */
  end: number;
  /** Whether the request may outlive the page. Its body is a text. */
  keepalive?: boolean;
  /** Send the body as text/plain: a browser does not ask first whether it may. */
  simple?: boolean;
  /** The length of a step in seconds. Through a relay the call then names its step: nobody can send it again in a later one. */
  period?: number;
  /** A join. Through a relay it waits at random before each attempt, and is sent with the key that is held. */
  join?: boolean;
}

/** What every request to a service or a relay has: nothing of the page. */
export const OUTER = { credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" } as const;

export interface Sent {
  method: string;
  headers: Record<string, string>;
  body: string | null;
  keepalive: boolean;
  signal: AbortSignal;
}

/** Sends one attempt of a call to a service. */
export type Send = (service: string, call: Call, init: Sent) => Promise<Response>;

/** Joins that name nobody: an `Anonymous` of `kanon-client/anonymous`. */
export interface Presenting {
  /** Milliseconds to wait before one join, with a step of so many seconds. It refuses if there is no credential for now. */
  delay(period: number): Promise<number>;
  /** How a join that is sent now names its client. */
  presentation(type: string, set: Uint8Array, period: number): Promise<object>;
}

/** Another way to the service than a request to it. */
export interface Through {
  send: Send;
  /** Get the key for a join, before it waits. The answer is that of a relay or service that is busy, or an empty one. */
  prepare: (service: string, signal: AbortSignal) => Promise<Response>;
  /** Milliseconds that a join waits before an attempt, of at most so many. */
  delay: (most: number) => number;
}

const directly: Send = (service, { path }, init) => fetch(service + path, { ...OUTER, ...init });

/** An address without a slash at its end. */
export function baseUrl(url: string): string {
  if (!/^https?:\/\/[^/?#]+(\/[^?#]*)?$/.test(url)) {
    throw new TypeError(`${url} is not an address: give https://host or http://host:port`);
  }
  return url.replace(/\/+$/, "");
}

interface Answer {
  body: Uint8Array;
  headers: Headers;
}

export const pause = (milliseconds: number): Promise<void> => new Promise((done) => setTimeout(done, milliseconds));

/** Requests to one service, each repeated until its end. */
export class Connection {
  readonly #url: string;
  readonly #auth: Auth | undefined;
  readonly #through: Through | undefined;
  #inFlight = 0;
  readonly #queue: (() => void)[] = [];

  constructor(url: string, auth?: Auth, through?: Through) {
    this.#url = baseUrl(url);
    this.#auth = auth;
    this.#through = through;
  }

  /** Whether calls go through a relay. */
  get relayed(): boolean {
    return this.#through !== undefined;
  }

  /** The answer to a call that succeeds. Calls with `keepalive` wait until the bodies in flight leave room. */
  async send(call: Call): Promise<Answer> {
    const size = call.keepalive ? new TextEncoder().encode(call.body as string).length : 0;
    while (size && this.#inFlight && this.#inFlight + size > MOST_IN_FLIGHT) {
      await new Promise<void>((resolve) => this.#queue.push(resolve));
    }
    this.#inFlight += size;
    try {
      return await this.#repeated(call, (content) => this.#fetch(call, content));
    } finally {
      this.#inFlight -= size;
      for (const resolve of this.#queue.splice(0)) resolve();
    }
  }

  /** Get the key for a join, before it waits. */
  async prepare(end: number): Promise<void> {
    const through = this.#through;
    if (!through) return;
    await this.#repeated({ method: "GET", path: KEYS, end }, () => through.prepare(this.#url, attemptUntil(end)));
  }

  /** The JSON object of an answer, and its headers. */
  async json(call: Call): Promise<{ answer: any; headers: Headers }> {
    const { body, headers } = await this.send(call);
    const answer = parsed(body);
    if (typeof answer !== "object" || answer === null) throw unexpected(call);
    return { answer, headers };
  }

  async #repeated(call: Call, attempt: (content?: string) => Promise<Response>): Promise<Answer> {
    let error: ApiError = new NoAnswerError(`${name(call)}: there was no time left to send it`);
    for (let failed = 1; Date.now() < call.end; failed++) {
      let after: number | null = null;
      const content = typeof call.body === "function" ? await call.body() : call.body;
      try {
        const response = await attempt(content);
        const body = new Uint8Array(await response.arrayBuffer()); // only then its request has ended for the browser
        if (response.ok) return { body, headers: response.headers };
        after = retryAfter(response.headers);
        error = new RefusedError(`${name(call)}: ${response.status}, ${reason(body)}`, response.status, after);
        if (!REPEATED.includes(response.status)) throw error;
      } catch (caught) {
        if (caught instanceof ApiError) throw caught;
        error = new NoAnswerError(
          `no answer from ${this.#url}: check the address, that the service runs, and that it allows this page (CORS)`,
          { cause: caught },
        );
      }
      const milliseconds = this.#wait(call, failed, after);
      if (Date.now() + milliseconds >= call.end) break;
      await pause(milliseconds);
    }
    throw error;
  }

  /** Milliseconds until the next attempt. */
  #wait(call: Call, failed: number, after: number | null): number {
    if (!call.join || !this.#through) return wait(failed, Math.random(), after) * 1000;
    // Without Retry-After: the service could name one time for all joins of a page. A delay of 0 is not repeated at once.
    return Math.max(wait(failed, chance(), null) * 1000, this.#through.delay(call.end - Date.now()));
  }

  async #fetch(call: Call, body?: string): Promise<Response> {
    const auth = typeof this.#auth === "function" ? await this.#auth(call.method, body ?? "") : this.#auth;
    const headers: Record<string, string> = {};
    if (body !== undefined && !(call.simple && auth === undefined)) headers["Content-Type"] = "application/json";
    if (auth !== undefined) headers["Authorization"] = auth;
    const init = {
      method: call.method,
      headers,
      body: body ?? null,
      keepalive: call.keepalive ?? false,
      signal: attemptUntil(call.end),
    };
    // No `cache`: with "no-store" Chromium also forgets the answer to its preflight request.
    return await (this.#through?.send ?? directly)(this.#url, call, init);
  }
}

/** Ends an attempt. */
function attemptUntil(end: number): AbortSignal {
  return AbortSignal.timeout(Math.max(1, Math.min(ATTEMPT, end - Date.now())));
}

/** The error for an answer of another form. */
export function unexpected(call: Call): ApiError {
  return new ApiError(`${name(call)}: the answer does not have the form of this API: check the address and the version`);
}

/** Method and path, without the id of a set, and without its first bits. */
function name(call: Call): string {
  return `${call.method} ${call.path.replace(/(\/sets\/|\/ranges\/|\?).*/, "$1...")}`;
}

/** What the service says to change. An error of the gateway itself has only a message. */
function reason(body: Uint8Array): string {
  const answer = parsed(body);
  return String(answer?.error?.message ?? answer?.message ?? "no reason given");
}

/** The value of a JSON text; null if it is none. */
function parsed(body: Uint8Array): any {
  try {
    return JSON.parse(new TextDecoder().decode(body));
  } catch {
    return null;
  }
}
