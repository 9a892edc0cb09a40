/** Binary HTTP (RFC 9292): a request is written, a response of known length is read. */
import { bytesOf, joined, type Bytes } from "./bytes.js";

/** Bytes of the shortest padded message: most joins have this length. */
const LEAST_PADDED = 1024;
const KNOWN_REQUEST = 0;
const KNOWN_RESPONSE = 1;

export interface BinaryRequest {
  method: string;
  authority: string;
  path: string;
  /** Names in lower case. */
  fields: [string, string][];
  content: Uint8Array;
}

export interface BinaryResponse {
  status: number;
  fields: [string, string][];
  content: Bytes;
}

/** The bytes of a request to a secure service, with zeros up to the next power of two. */
export function padded({ method, authority, path, fields, content }: BinaryRequest): Bytes {
  const control = [method, "https", authority, path].map((text) => prefixed(bytesOf(text)));
  const lines = fields.flat().map((text) => prefixed(latin1(text)));
  const message = joined([KNOWN_REQUEST], ...control, prefixed(joined(...lines)), prefixed(content));
  const length = Math.max(LEAST_PADDED, 2 ** Math.ceil(Math.log2(message.length)));
  return joined(message, new Uint8Array(length - message.length));
}

/** Read a final response; undefined if the bytes are none. */
export function readResponse(message: Bytes): BinaryResponse | undefined {
  let at = 0;
  const number = (): number => {
    const size = 1 << (message[at]! >> 6);
    const value = message.subarray(at, at + size).reduce((sum, byte, n) => sum * 256 + (n ? byte : byte & 0x3f), 0);
    at += size;
    return value;
  };
  const part = (): Bytes => {
    const size = at < message.length ? number() : 0; // an empty end may be left out
    at += size;
    return message.slice(at - size, at);
  };
  if (number() !== KNOWN_RESPONSE) return undefined;
  const status = number();
  const size = number();
  const end = at + size;
  if (end > message.length) return undefined;
  const fields: [string, string][] = [];
  while (at < end) fields.push([textOf(part()), textOf(part())]);
  if (at !== end || !(status >= 200 && status < 600)) return undefined;
  const content = part();
  part(); // trailers
  return at > message.length || message.subarray(at).some(Boolean) ? undefined : { status, fields, content };
}

const latin1 = (text: string): Bytes => Uint8Array.from(text, (character) => character.charCodeAt(0)) as Bytes;
const textOf = (bytes: Bytes): string => String.fromCharCode(...bytes);

function prefixed(bytes: Uint8Array): Bytes {
  return joined(numbered(bytes.length), bytes);
}

/** A number below 2^30 in the shortest form of RFC 9000, section 16. */
function numbered(value: number): number[] {
  if (value < 2 ** 6) return [value];
  if (value < 2 ** 14) return [0x40 | (value >> 8), value & 0xff];
  return [0x80 | (value >> 24), (value >> 16) & 0xff, (value >> 8) & 0xff, value & 0xff];
}
