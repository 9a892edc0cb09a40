/**
 * Points and scalars of P-256, and proofs that one knows scalars which satisfy linear equations over points: Schnorr
 * proofs with SHAKE128, as in draft-irtf-cfrg-sigma-protocols-01 and draft-irtf-cfrg-fiat-shamir-01.
 */
import { p256_hasher } from "@noble/curves/nist.js";
import { shake128 } from "@noble/hashes/sha3.js";
import { bytesOf, joined } from "./bytes.js";
import { CredentialError } from "./errors.js";

const P256 = p256_hasher.Point;
const { Fn } = P256;
export type Point = typeof P256.BASE;
const POINT_BYTES = 33;
const SCALAR_BYTES = 32;
const PROTOCOL = "ietf sigma proof linear relation";
/** Bytes of a block of SHAKE128; the name of the protocol fills one. */
const RATE = 168;
const SUITE = "kanon-arc-v1-P256";

export const { ORDER } = Fn;
export const G = P256.BASE;
/** The second generator. Nobody knows its logarithm. */
export const H = hashToPoint(G.toBytes(), "generatorH");
export const inverse = (scalar: bigint): bigint => Fn.inv(scalar);

/** A uniform scalar. */
export function random(): bigint {
  const scalar = number(crypto.getRandomValues(new Uint8Array(SCALAR_BYTES)));
  return isScalar(scalar) ? scalar : random();
}

export function hashToPoint(message: Uint8Array, use: string): Point {
  return p256_hasher.hashToCurve(message, { DST: `HashToGroup-${SUITE}${use}` }) ;
}

export function hashToScalar(message: Uint8Array, use: string): bigint {
  return p256_hasher.hashToScalar(message, { DST: `HashToScalar-${SUITE}${use}` });
}

/** Points compressed in 33 bytes, then scalars in 32 bytes. */
export function encode(points: Point[], scalars: bigint[] = []): Uint8Array {
  return joined(...points.map((point) => point.toBytes()), ...scalars.map((scalar) => Fn.toBytes(scalar)));
}

/** Read points, then scalars. Refuses other lengths, the identity, other encodings, and scalars that are 0 or too large. */
export function decode(message: Uint8Array, points: number, scalars: number, what: string): [Point[], bigint[]] {
  const split = points * POINT_BYTES;
  if (message.length !== split + scalars * SCALAR_BYTES) throw new CredentialError(`the ${what} has another length`);
  const numbers = parts(message.subarray(split), SCALAR_BYTES).map((part) => {
    const scalar = number(part);
    if (!isScalar(scalar)) throw new CredentialError(`a scalar of the ${what} is out of range`);
    return scalar;
  });
  const read = parts(message.subarray(0, split), POINT_BYTES).map((part) => {
    try {
      return P256.fromBytes(part);
    } catch {
      throw new CredentialError(`a point of the ${what} is not on the curve, or has another encoding`);
    }
  });
  return [read, numbers];
}

function number(bytes: Uint8Array): bigint {
  return bytes.reduce((value, byte) => (value << 8n) | BigInt(byte), 0n);
}

function isScalar(value: bigint): boolean {
  return 0n < value && value < ORDER;
}

function parts(message: Uint8Array, size: number): Uint8Array[] {
  return Array.from({ length: message.length / size }, (_, n) => message.subarray(n * size, (n + 1) * size));
}

/** Equations: the place of the point on the left, and the places of the scalars and points on the right. */
export type Relation = [left: number, right: [scalar: number, point: number][]][];

/** A relation in words: its names, and equations such as `C = m G + r H`. */
export function relation(scalars: string, points: string, equations: string[]): Relation {
  const [scalar, point] = [scalars.split(" "), points.split(" ")];
  return equations.map((equation) => {
    const [left, ...right] = equation.split(/ [=+] /);
    const terms = right.map((term) => term.split(" "));
    return [point.indexOf(left!), terms.map(([s, p]) => [scalar.indexOf(s!), point.indexOf(p!)])];
  });
}

/** A proof for these points and this session: the challenge and a response for each scalar of the witness. */
export function prove(equations: Relation, points: Point[], witness: bigint[], session: Uint8Array, scalars: () => bigint): bigint[] {
  const nonces = witness.map(() => scalars());
  const commitments = equations.map(([, terms]) => sum(terms.map(([s, p]) => points[p]!.multiply(nonces[s]!))));
  const challenge = challengeOf(equations, points, session, commitments);
  return [challenge, ...witness.map((secret, n) => Fn.add(nonces[n]!, Fn.mul(secret, challenge)))];
}

/** Check a proof, of which everything is public. */
export function check(equations: Relation, points: Point[], session: Uint8Array, proof: bigint[], what: string): void {
  const [challenge, ...responses] = proof;
  const commitments = equations.map(([left, terms]) => {
    const right = sum(terms.map(([s, p]) => points[p]!.multiplyUnsafe(responses[s]!)));
    return right.subtract(points[left]!.multiplyUnsafe(challenge!));
  });
  const identity = commitments.some((point) => point.is0());
  if (identity || challengeOf(equations, points, session, commitments) !== challenge) {
    throw new CredentialError(`the proof of the ${what} does not hold`);
  }
}

function sum(points: Point[]): Point {
  return points.reduce((one, other) => one.add(other));
}

function challengeOf(equations: Relation, points: Point[], session: Uint8Array, commitments: Point[]): bigint {
  const header = [equations.length, ...equations.flatMap(([left, terms]) => [left, terms.length, ...terms.flat()])];
  const words = new DataView(new ArrayBuffer(4 * header.length));
  header.forEach((word, n) => words.setUint32(4 * n, word, true));
  const label = joined(new Uint8Array(words.buffer), encode(points));
  const protocol = new Uint8Array(RATE);
  protocol.set(new TextEncoder().encode(PROTOCOL));
  const bound = joined(bytesOf(SUITE), session);
  const hashed = [protocol, length(bound), bound, length(label), label, encode(commitments)];
  return Fn.create(number(shake128(joined(...hashed), { dkLen: 48 })));
}

function length({ length }: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, length);
  return bytes;
}
