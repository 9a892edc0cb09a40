import { Connection, unexpected, type Call } from "./connection.js";
import { ApiError, onlyOptions, telling } from "./errors.js";
import { encrypted, type PublicKey } from "./sealing.js";
import { bucketOf } from "./values.js";
import { ages } from "./waiting.js";

const DAY = 86_400_000;
/** The largest sum of a client's values in one window. */
const BOUND = 65_536;
const PUBLIC_KEYS = "/.well-known/aggregation-service/v1/public-keys";

export interface ReportOptions {
  /** The origin whose jobs count the reports, such as `https://report.example`. */
  origin: string;
  /** The length of a window in milliseconds; 600,000 if left out. All clients of an origin use one. */
  window?: number;
  /** Is told about each report that was not accepted within a day, also if nobody awaits it. By default the console. */
  onDrop?: (error: unknown) => void;
}

interface Spent {
  window: number;
  used: number;
}

/**
 * Sends contributions as encrypted reports. Every call sends one report of the same length: without a contribution if
 * that does not fit the budget of its window, so the number of reports says nothing.
 */
export class Reports {
  readonly #connection: Connection;
  readonly #options: ReportOptions;
  #spent: Spent | undefined;
  #dropped = 0;
  #keys: { keys: PublicKey[]; until: number } | undefined;

  constructor(url: string, options: ReportOptions) {
    onlyOptions(options, ["origin", "window", "onDrop"]);
    if (!/^https:\/\/[^/?#]+$/.test(options.origin)) throw new TypeError("origin is https://host, without a path");
    if (!(options.window === undefined || options.window >= 1)) throw new RangeError("window is at least 1 millisecond");
    this.#connection = new Connection(url);
    this.#options = options;
  }

  /** How many reports were not accepted. */
  get dropped(): number {
    return this.#dropped;
  }

  /**
   * Add an amount, 0 to 65,536, to the key of a value. Resolves once the report is accepted, with whether the amount
   * fitted into the budget of its window. A report is encrypted once; each attempt sends the same bytes, for a day.
   */
  contribute(value: string | Uint8Array, amount: number): Promise<boolean> {
    const done = this.#contribute(value, amount);
    const tell = this.#options.onDrop ?? ((error: unknown) => console.warn("kanon: a report was lost:", error));
    done.catch((error: unknown) => {
      this.#dropped++;
      telling(() => tell(error));
    });
    return done;
  }

  async #contribute(value: string | Uint8Array, amount: number): Promise<boolean> {
    if (!Number.isInteger(amount) || amount < 0 || amount >= 2 ** 32) {
      throw new RangeError("an amount is a whole number from 0 to 4,294,967,295");
    }
    const bucket = await bucketOf(value);
    const keys = await this.#publicKeys();
    const { end, fits } = await alone(() => this.#spend(amount));
    const pairs = fits && amount > 0 ? [{ bucket, value: amount }] : [];
    const body = await encrypted(pairs, keys, this.#options.origin, end);
    await this.#connection.json({ method: "POST", path: "/v1/reports", body, end: Date.now() + DAY, keepalive: true });
    return fits;
  }

  /** Take an amount from the budget of the current window, if it fits. The budget outlives the page. */
  #spend(amount: number): { end: number; fits: boolean } {
    const length = this.#options.window ?? 600_000;
    const window = Math.floor(Date.now() / length);
    const name = `kanon-client/reports/${this.#options.origin}`;
    const before = this.#spent ?? stored(name) ?? { window, used: 0 };
    if (window < before.window) throw new ApiError("the clock of this device went back: set it right, or try again later");
    const used = (window === before.window ? before.used : 0) + amount;
    const fits = used <= BOUND;
    const spent = { window, used: fits ? used : used - amount };
    this.#spent = store(name, spent) ? undefined : spent;
    return { end: (window + 1) * length, fits };
  }

  async #publicKeys(): Promise<PublicKey[]> {
    if (this.#keys && Date.now() < this.#keys.until) return this.#keys.keys;
    const call: Call = { method: "GET", path: PUBLIC_KEYS, end: Date.now() + DAY };
    const { answer, headers } = await this.#connection.json(call);
    if (!answer.keys?.length) throw unexpected(call);
    const [maxAge, age] = ages(headers) ?? [0, 0];
    this.#keys = { keys: answer.keys, until: Date.now() + Math.min(DAY, (maxAge - age) * 1000) };
    return this.#keys.keys;
  }
}

/** Other pages of this origin take from the same budget: one at a time, where the platform can lock. */
async function alone<T>(spend: () => T): Promise<T> {
  const locks = globalThis.navigator?.locks;
  return locks ? await locks.request("kanon-client/reports", async () => spend()) : spend();
}

function stored(name: string): Spent | undefined {
  try {
    const found: any = JSON.parse(localStorage.getItem(name) ?? "null");
    return Number.isInteger(found?.window) && Number.isInteger(found?.used) ? found : undefined;
  } catch {
    return undefined;
  }
}

/** Whether the budget could be stored. Without a store it lives as long as this object. */
function store(name: string, spent: Spent): boolean {
  try {
    localStorage.setItem(name, JSON.stringify(spent));
    return true;
  } catch {
    return false;
  }
}
