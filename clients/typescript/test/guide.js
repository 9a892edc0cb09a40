// The blocks of docs/guides/browser.md.
import { readFileSync } from "node:fs";

const GUIDE = readFileSync(new URL("../../../docs/guides/browser.md", import.meta.url), "utf8");
const found = [...GUIDE.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, language, text]) => ({ language, text }));

/** The only block of a language that contains a text. */
export function block(language, text) {
  const blocks = found.filter((one) => one.language === language && one.text.includes(text));
  if (blocks.length !== 1) throw new Error(`the guide has ${blocks.length} blocks of ${language} with ${text}`);
  return blocks[0].text;
}

export const words = GUIDE.replaceAll(/^```.*?^```$/gms, "").split(/\s+/).length;
