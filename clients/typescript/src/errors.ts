/** A call to the service failed. */
export class ApiError extends Error {
  override name = "ApiError";
}

/** Nobody answered in time: the connection failed, or the service. Repeating the call is safe. */
export class NoAnswerError extends ApiError {
  override name = "NoAnswerError";
}

/** The service refused a call; the message says what to change. */
export class RefusedError extends ApiError {
  override name = "RefusedError";
  readonly status: number;
  /** Seconds after which the call may succeed; null if the service named none. */
  readonly retryAfter: number | null;
  constructor(message: string, status: number, retryAfter: number | null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The service has no such type. Its sets would read false for ever. */
export class UnknownTypeError extends ApiError {
  override name = "UnknownTypeError";
}

/** A join waited for longer than a step, and was not sent. */
export class DroppedError extends ApiError {
  override name = "DroppedError";
  constructor(message: string, cause?: unknown) {
    super(message, { cause });
  }
}

/** Relay and service show two keys: the service may single out this client. Nothing was sent. */
export class KeysDifferError extends ApiError {
  override name = "KeysDifferError";
  constructor() {
    super("the relay and the service show two keys: the service may single out this client; nothing was sent");
  }
}

/** There is no credential for now, or none can be had. The text says what to do. */
export class EnrolmentError extends ApiError {
  override name = "EnrolmentError";
}

/** A message of the credentials is refused. The text names the part, and nothing that was received. */
export class CredentialError extends Error {
  override name = "CredentialError";
}

/** What to say about an unknown name: the nearest known one, and all. */
export function nearest(name: string, known: string[]): string {
  const [near] = known
    .map((other) => ({ other, edits: distance(name, other) }))
    .filter(({ edits }) => edits <= Math.max(2, name.length / 3))
    .sort((one, other) => one.edits - other.edits);
  return `${near ? ` (did you mean ${near.other}?)` : ""}: there is ${known.join(", ") || "none"}`;
}

/** Refuse options of other names: a misspelt one must not count as left out. */
export function onlyOptions(options: object, known: string[]): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`there is no option ${unknown}${nearest(unknown, known)}`);
}

/** Call a function of the caller that is told what was lost. What it throws must not hide that. */
export function telling(tell: () => void): void {
  try {
    tell();
  } catch (thrown) {
    console.warn("kanon: onDrop threw:", thrown);
  }
}

function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, n) => n);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1));
    }
    row = next;
  }
  return row[b.length]!;
}
