/** The clear text of a report: CBOR of a fixed length, whatever it contains. */

export interface Contribution {
  /** Below 2^128. */
  bucket: bigint;
  /** Below 2^32. */
  value: number;
}

/** Pairs of a report, padding included. A client uses one number for all its reports. */
export const SLOTS = 20;

/** `{"data": [{"id", "value", "bucket"}, ...], "operation": "histogram"}`, padded with pairs of zeros. */
export function encode(contributions: Contribution[]): Uint8Array {
  if (contributions.length > SLOTS) throw new RangeError(`a report has at most ${SLOTS} contributions`);
  const padded = Array.from({ length: SLOTS }, (_, n) => contributions[n] ?? { bucket: 0n, value: 0 });
  const pairs = padded.flatMap(({ bucket, value }) => [
    ...[0xa3, ...key("id"), ...bytes(0n, 1)],
    ...[...key("value"), ...bytes(BigInt(value), 4)],
    ...[...key("bucket"), ...bytes(bucket, 16)],
  ]);
  return Uint8Array.from([0xa2, ...key("data"), 0x80 + SLOTS, ...pairs, ...key("operation"), ...key("histogram")]);
}

/** A text of at most 23 bytes. */
function key(text: string): number[] {
  return [0x60 + text.length, ...new TextEncoder().encode(text)];
}

/** A number as a byte string, big-endian. */
function bytes(number: bigint, size: number): number[] {
  if (number < 0n || number >> BigInt(8 * size)) throw new RangeError(`${number} does not fit into ${size} bytes`);
  return [0x40 + size, ...Array.from({ length: size }, (_, n) => Number((number >> BigInt(8 * (size - 1 - n))) & 255n))];
}
