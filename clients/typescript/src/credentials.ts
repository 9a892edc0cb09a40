/**
 * Anonymous credentials after draft-ietf-privacypass-arc-crypto-01, presented with nonce 0: what a client does.
 * docs/proofs/credentials.md describes every byte, and what they promise. They are experimental.
 */
import { bytesOf, joined } from "./bytes.js";
import { check, decode, encode, G, H, hashToPoint, hashToScalar, inverse, ORDER, prove, random, relation, type Point } from "./proofs.js";

const REQUEST = relation("m1 m2 r1 r2", "G H m1Enc m2Enc", ["m1Enc = m1 G + r1 H", "m2Enc = m2 G + r2 H"]);
const RESPONSE = relation(
  "x0 x1 x2 x0Blinding b t1 t2",
  "G H m1Enc m2Enc U encUPrime X0 X1 X2 X0Aux X1Aux X2Aux HAux",
  [
    "X0 = x0 G + x0Blinding H",
    "X1 = x1 H",
    "X2 = x2 H",
    "HAux = b H",
    "X0Aux = x0Blinding HAux",
    "X1Aux = t1 H",
    "X1Aux = b X1",
    "X2Aux = b X2",
    "X2Aux = t2 H",
    "U = b G",
    "encUPrime = b X0 + t1 m1Enc + t2 m2Enc",
  ],
);
const PRESENTATION = relation("m1 z rNeg", "G H U UPrimeCommit m1Commit V X1 tag T", [
  "m1Commit = m1 U + z H",
  "V = z X1 + rNeg G",
  "T = m1 tag",
]);

/** A source of random scalars, each from 1 to the order of the group less 1. Vectors have one; leave it out otherwise. */
type Scalars = () => bigint;

/** What an issuer publishes, in 99 bytes. All clients must have the same one, or it tells them apart. */
export class PublicKey {
  readonly encoded: Uint8Array;

  constructor(encoded: Uint8Array) {
    decode(encoded, 3, 0, "public key");
    this.encoded = encoded.slice();
  }
}

/** What a person keeps, on all devices, in 64 bytes. With them all tags of the person can be computed, also past ones. */
export class Secrets {
  readonly #m1: bigint;
  readonly #r1: bigint;

  constructor(encoded: Uint8Array) {
    const [, [m1, r1]] = decode(encoded, 0, 2, "secrets");
    this.#m1 = m1!;
    this.#r1 = r1!;
  }

  /** New secrets: another person, to the service. */
  static random(): Secrets {
    return new Secrets(encode([], [random(), random()]));
  }

  encode(): Uint8Array {
    return encode([], [this.#m1, this.#r1]);
  }

  /** What an issuer signs, in 33 bytes: it reveals nothing, and fits one m1 only. */
  commitment(): Uint8Array {
    return encode([committed(this.#m1, this.#r1)]);
  }

  /** What a presentation shows in a tag context, in 33 bytes. */
  tag(tagContext: Uint8Array): Uint8Array {
    return encode([hashToPoint(tagContext, "Tag").multiply(inverse(this.#m1))]);
  }

  /** Ask for a credential. `context` is what it is for; the proofs of request and response are bound to `session`. */
  request(context: Uint8Array, session: Uint8Array, scalars: Scalars = random): CredentialRequest {
    const [m2, r2] = [hashToScalar(context, "requestContext"), scalars()];
    const points = [committed(this.#m1, this.#r1), committed(m2, r2)];
    const witness = [this.#m1, m2, this.#r1, r2];
    const proof = prove(REQUEST, [G, H, ...points], witness, bound("CredentialRequest", session), scalars);
    return new CredentialRequest(encode(points, proof), session, [this.#m1, this.#r1, r2]);
  }
}

/** A request for a credential. `message` is sent; the secrets that read its response stay here. */
export class CredentialRequest {
  readonly message: Uint8Array;
  readonly #session: Uint8Array;
  readonly #secrets: [m1: bigint, r1: bigint, r2: bigint];

  constructor(message: Uint8Array, session: Uint8Array, secrets: [m1: bigint, r1: bigint, r2: bigint]) {
    this.message = message;
    this.#session = session;
    this.#secrets = secrets;
  }

  /** The credential in a response. `key` is the one that is published, not one that came with the response. */
  finish(key: PublicKey, response: Uint8Array): Credential {
    const [points, proof] = decode(response, 6, 8, "response");
    const [asked] = decode(this.message, 2, 5, "request");
    const [published] = decode(key.encoded, 3, 0, "public key");
    const [u, masked, ...aux] = points as [Point, Point, Point, Point, Point, Point];
    const all = [G, H, ...asked, u, masked, ...published, ...aux];
    check(RESPONSE, all, bound("CredentialResponse", this.#session), proof, "response");
    const [m1, r1, r2] = this.#secrets;
    const uPrime = masked.subtract(aux[0]).subtract(aux[1].multiply(r1)).subtract(aux[2].multiply(r2));
    return new Credential(encode([u, uPrime, published[1]!], [m1]));
  }
}

/** A signed m1, in 131 bytes, as secret as m1. */
export class Credential {
  readonly #points: [u: Point, uPrime: Point, x1: Point];
  readonly #m1: bigint;

  constructor(encoded: Uint8Array) {
    const [points, [m1]] = decode(encoded, 3, 1, "credential");
    this.#points = points as [Point, Point, Point];
    this.#m1 = m1!;
  }

  encode(): Uint8Array {
    return encode(this.#points, [this.#m1]);
  }

  /** A presentation, in 260 bytes: for a place where the person has one tag, and for one request. Only the tag links it to others. */
  present(tagContext: Uint8Array, session: Uint8Array, scalars: Scalars = random): Uint8Array {
    const [issued, uPrime, x1] = this.#points;
    const [a, r, z] = [scalars(), scalars(), scalars()];
    const u = issued.multiply(a);
    const blinded = uPrime.multiply(a).add(G.multiply(r));
    const hidden = u.multiply(this.#m1).add(H.multiply(z));
    const base = hashToPoint(tagContext, "Tag");
    const tag = base.multiply(inverse(this.#m1));
    const v = x1.multiply(z).subtract(G.multiply(r));
    const points = [G, H, u, blinded, hidden, v, x1, tag, base];
    const witness = [this.#m1, z, ORDER - r];
    const proof = prove(PRESENTATION, points, witness, bound("CredentialPresentation", session), scalars);
    return encode([u, blinded, hidden, tag], proof);
  }
}

function committed(scalar: bigint, blinding: bigint): Point {
  return G.multiply(scalar).add(H.multiply(blinding));
}

function bound(use: string, session: Uint8Array): Uint8Array {
  return joined(bytesOf(use), session);
}
