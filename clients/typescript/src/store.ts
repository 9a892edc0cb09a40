/** Where a credential is kept: one text, as secret as the account. */
export interface Store {
  /** What is kept. */
  read(): Promise<string | undefined>;
  /** Replace what is kept, and return it. Nobody else, such as another tab, may replace it between the two. */
  replace(change: (before: string | undefined) => string): Promise<string>;
}

const ROWS = "credential";
const ROW = 1;

/** A database (IndexedDB) of the page's origin, which stays when the browser ends. All code of the origin can read it. */
export function indexedDb(name: string): Store {
  return {
    read: () => within(name, "readonly", (rows) => settled(rows.get(ROW))),
    replace: (change) =>
      within(name, "readwrite", async (rows) => {
        const after = change(await settled(rows.get(ROW)));
        await settled(rows.put(after, ROW));
        return after;
      }),
  };
}

async function within<T>(name: string, mode: IDBTransactionMode, use: (rows: IDBObjectStore) => Promise<T>): Promise<T> {
  const opening = indexedDB.open(name, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(ROWS);
  const opened = await settled(opening);
  try {
    const transaction = opened.transaction(ROWS, mode, { durability: "strict" });
    const ended = new Promise<void>((done, failed) => {
      transaction.oncomplete = () => done();
      transaction.onabort = () => failed(transaction.error);
    });
    const [found] = await Promise.all([use(transaction.objectStore(ROWS)), ended]);
    return found;
  } finally {
    opened.close();
  }
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((done, failed) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}
