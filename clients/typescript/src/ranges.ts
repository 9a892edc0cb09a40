const MAGIC = "KNR1";
const HASH_BYTES = 16;
export const MOST_BITS = 16;

/** The list of a step: which range files it has, and those that were read. docs/reference/api.md describes their bytes. */
export class Ranges {
  readonly #type: string;
  /** Null before the first list, which is empty. */
  readonly step: number | null;
  readonly bits: number;
  readonly #files = new Map<string, Uint8Array>();

  constructor(type: string, step: number | null, bits: number) {
    this.#type = type;
    this.step = step;
    this.bits = bits;
  }

  /** The file in which a hash is, if it is listed. */
  name(digest: Uint8Array): string {
    return this.#nameOf(((digest[0]! << 8) | digest[1]!) >> (MOST_BITS - this.bits));
  }

  /** All files. */
  names(): string[] {
    return Array.from({ length: 1 << this.bits }, (_, number) => this.#nameOf(number));
  }

  #nameOf(number: number): string {
    return this.bits ? number.toString(2).padStart(this.bits, "0") : "all";
  }

  /** Those of the files that were not read yet, sorted. */
  missing(names: string[]): string[] {
    return this.step === null ? [] : [...new Set(names)].filter((name) => !this.#files.has(name)).sort();
  }

  /** Keep a file; false if it is none of this list. */
  keep(name: string, file: Uint8Array): boolean {
    const start = new TextEncoder().encode(`${MAGIC}**${this.#type}`);
    start[4] = this.bits;
    start[5] = start.length - 6;
    const at = start.length;
    if (file.length < at + 20 || start.some((byte, n) => file[n] !== byte)) return false;
    const numbers = new DataView(file.buffer, file.byteOffset + at); // step, tick of the next one, number of hashes
    const hashes = file.subarray(at + 20);
    if (numbers.getBigUint64(0) !== BigInt(this.step!) || hashes.length !== HASH_BYTES * numbers.getUint32(16)) return false;
    this.#files.set(name, hashes);
    return true;
  }

  /** Whether a hash is listed; its file was read before. */
  has(digest: Uint8Array): boolean {
    if (this.step === null) return false;
    const hashes = this.#files.get(this.name(digest))!;
    let [first, end] = [0, hashes.length / HASH_BYTES];
    while (first < end) {
      const middle = (first + end) >> 1;
      const order = compared(digest, hashes.subarray(middle * HASH_BYTES, (middle + 1) * HASH_BYTES));
      if (order === 0) return true;
      if (order < 0) end = middle;
      else first = middle + 1;
    }
    return false;
  }
}

/** Below 0, 0 or above 0, as the first bytes of a hash are below, equal to or above those of a file. */
function compared(digest: Uint8Array, hash: Uint8Array): number {
  const n = hash.findIndex((byte, n) => byte !== digest[n]);
  return n < 0 ? 0 : digest[n]! - hash[n]!;
}
