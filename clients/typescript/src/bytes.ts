export type Bytes = Uint8Array<ArrayBuffer>;

/** The UTF-8 of a text. */
export const bytesOf = (text: string): Bytes => new TextEncoder().encode(text) as Bytes;

/** All parts, one after another. */
export function joined(...parts: ArrayLike<number>[]): Bytes {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
