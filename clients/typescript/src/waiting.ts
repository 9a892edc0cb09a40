/** Statuses after which the same request may succeed. */
export const REPEATED = [429, 500, 502, 503, 504];
/** Seconds; the range of the jitter ends here, but not what Retry-After asks for. */
const LONGEST = 30;

/** Seconds to wait after so many failed attempts: a uniform part of a range that doubles, on top of Retry-After. */
export function wait(failed: number, random: number, retryAfter: number | null): number {
  return (retryAfter ?? 0) + random * Math.min(LONGEST, 2 ** Math.min(failed - 1, 10));
}

/** Seconds for which an answer is kept: until the next update, and a random part of `spread` longer. */
export function kept(maxAge: number, age: number, spread: number, random: number): number {
  return Math.max(0, maxAge - age) + random * spread;
}

/** The seconds of Retry-After; null without it, and for its form with a date. */
export function retryAfter(headers: Headers): number | null {
  return seconds(headers.get("retry-after"));
}

/** `max-age` and `Age` of an answer, in seconds; null if it may not be kept. */
export function ages(headers: Headers): [number, number] | null {
  const maxAge = seconds(/\bmax-age=(\d+)/.exec(headers.get("cache-control") ?? "")?.[1]);
  return maxAge === null ? null : [maxAge, seconds(headers.get("age")) ?? 0];
}

/** Seconds: a join names the step of so long ago. It is taken for 120 s after it, so clocks may differ a minute. */
const CLOCK_MARGIN = 60;

/** The step that a join names, at a time in seconds since 1970. */
export function joinStep(now: number, period: number): number {
  return Math.floor((now - Math.min(CLOCK_MARGIN, Math.floor(period / 2))) / period);
}

/** A number from 0 to 1. Some numbers of `Math.random` tell the next ones, so times would show which joins have one sender. */
export const chance = (): number => crypto.getRandomValues(new Uint32Array(1))[0]! / 2 ** 32;

function seconds(text: string | null | undefined): number | null {
  return /^\d+$/.test(text ?? "") ? Number(text) : null;
}
