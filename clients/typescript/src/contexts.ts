import { joined, type Bytes } from "./bytes.js";

/** The request that a presentation is part of. */
export interface Bound {
  deployment: string;
  /** The issuer's public key, encoded. */
  issuerKey: Uint8Array;
  epoch: number;
  /** Such as POST. */
  method: string;
  type: string;
  /** The bytes of the set id. */
  set: Uint8Array;
  step: number;
}

/** What a credential is for: one deployment, one epoch of the issuer's keys. Also the session of its request. */
export function credentialContext(deployment: string, epoch: number): Uint8Array {
  return prefixed("kanon-credential-v1", deployment, epoch);
}

/** Where a person has one tag: a set, as the bytes of its id. */
export function tagContext(deployment: string, type: string, set: Uint8Array): Uint8Array {
  return prefixed("kanon-tag-v1", deployment, type, set);
}

/** The session of a presentation. */
export function session({ deployment, issuerKey, epoch, method, type, set, step }: Bound): Uint8Array {
  return prefixed("kanon-arc-v1", deployment, issuerKey, epoch, method, type, set, step);
}

/** Each part after its length. Texts are UTF-8; lengths and numbers have 8 bytes, big-endian. */
export function prefixed(...parts: (string | number | Uint8Array)[]): Bytes {
  const encoded = parts.map((part) =>
    typeof part === "string" ? new TextEncoder().encode(part) : typeof part === "number" ? eight(part) : part,
  );
  return joined(...encoded.flatMap((part) => [eight(part.length), part]));
}

function eight(value: number): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value));
  return bytes;
}
