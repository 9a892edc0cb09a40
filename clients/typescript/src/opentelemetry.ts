import type { Client } from "./client.js";

interface Attributed {
  readonly attributes?: Record<string, unknown>;
}

interface Span extends Attributed {
  readonly events: readonly Attributed[];
  readonly links: readonly Attributed[];
  readonly status: object;
}

/** What `SpanExporter` of `@opentelemetry/sdk-trace-base` has. */
interface Exporter<S, R> {
  export(spans: S[], done: (result: R) => void): void;
  forceFlush?(): Promise<void>;
  shutdown(): Promise<void>;
}

/**
 * An exporter before another one: an attribute leaves this process only if the crowd shares its value, else as `other`.
 *
 * `types` gives the type that each attribute is asked about in, by its name; these values are joined, too. The
 * attributes in `clear` leave as they are, and all others as `other`. The description of a status is left out. Names,
 * times, ids and the resource leave unchanged.
 */
export class SharedOnly<S extends Span, R> implements Exporter<S, R> {
  readonly #inner: Exporter<S, R>;
  readonly #client: Client;
  readonly #types: ReadonlyMap<string, string>;
  readonly #clear: ReadonlySet<string>;

  constructor(inner: Exporter<S, R>, client: Client, types: Record<string, string>, clear: Iterable<string> = []) {
    this.#inner = inner;
    this.#client = client;
    this.#types = new Map(Object.entries(types));
    this.#clear = new Set(clear);
  }

  export(spans: S[], done: (result: R) => void): void {
    this.#inner.export(spans.map((span) => this.#checked(span)), done);
  }

  forceFlush(): Promise<void> {
    return this.#inner.forceFlush?.() ?? Promise.resolve();
  }

  shutdown(): Promise<void> {
    return this.#inner.shutdown();
  }

  /** A view of the span, since ended spans cannot be changed. */
  #checked(span: S): S {
    const parts: Record<PropertyKey, unknown> = {
      attributes: this.#shown(span),
      events: span.events.map((event) => ({ ...event, attributes: this.#shown(event) })),
      links: span.links.map((link) => ({ ...link, attributes: this.#shown(link) })),
      status: { ...span.status, message: undefined },
    };
    return new Proxy(span, {
      get(target, name) {
        if (Object.hasOwn(parts, name)) return parts[name];
        const value: unknown = Reflect.get(target, name, target);
        return typeof value === "function" ? value.bind(target) : value;
      },
    });
  }

  #shown({ attributes = {} }: Attributed): Record<string, unknown> {
    return Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, this.#value(name, value)]));
  }

  #value(name: string, value: unknown): unknown {
    const type = this.#types.get(name);
    if (type !== undefined && typeof value === "string") return this.#client.sharedOr(type, value, "other");
    return type === undefined && this.#clear.has(name) ? value : "other";
  }
}
