/** A value as text, which counts as its UTF-8, unchanged; as bytes; or the id of its set. */
export type Value = string | Uint8Array | SetId;

const MOST_LISTED_BYTES = 512;

/** The id of a set as the API writes it: base64url without padding, of 1 to 64 bytes. */
export class SetId {
  readonly id: string;
  constructor(id: string) {
    if (!/^[\w-]{2,86}$/.test(id)) throw new TypeError("a set id is 1 to 64 bytes in base64url without padding");
    this.id = id;
  }
  toString(): string {
    return this.id;
  }
  toJSON(): string {
    return this.id;
  }
}

/** The id of the set of a value: the SHA-256 of its bytes. An id stays as it is. */
export async function valueId(value: Value): Promise<SetId> {
  return value instanceof SetId ? value : new SetId(base64url(await digest(value)));
}

/** The key of a value in reports: the first 16 bytes of its SHA-256, as a number. */
export async function bucketOf(value: string | Uint8Array): Promise<bigint> {
  const bytes = await digest(value);
  return bytes.subarray(0, 16).reduce((number, byte) => (number << 8n) | BigInt(byte), 0n);
}

/** The text of a value, which a join of a listed type sends. */
export function textOf(value: Value): string {
  if (value instanceof SetId) throw new TypeError("this type is listed: give the value itself, not the id of its set");
  const bytes = typeof value === "string" ? new TextEncoder().encode(value) : value;
  if (!bytes.length || bytes.length > MOST_LISTED_BYTES) {
    throw new TypeError(`this type is listed: its values have 1 to ${MOST_LISTED_BYTES} bytes`);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new TypeError("this type is listed: its values are texts in UTF-8");
  }
}

async function digest(value: string | Uint8Array): Promise<Uint8Array> {
  if (!globalThis.crypto?.subtle) {
    throw new Error("values cannot be hashed here: a page must come over https or from localhost (a secure context)");
  }
  if (typeof value === "string" && /\p{Surrogate}/u.test(value)) {
    throw new TypeError("a value has half of a surrogate pair, which no UTF-8 can hold: send the bytes");
  }
  if (typeof value !== "string" && !ArrayBuffer.isView(value)) {
    throw new TypeError("a value is a text, a Uint8Array or a SetId");
  }
  const bytes = typeof value === "string" ? new TextEncoder().encode(value) : value;
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
}

export function base64(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** The bytes of a set id. */
export function decoded(id: string): Uint8Array {
  return Uint8Array.from(atob(id.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
}

export function base64url(bytes: Uint8Array): string {
  return base64(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
