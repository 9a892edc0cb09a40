// Writes dist/: one module for each entry point, minified, with the code they share in modules of its own.
// Writes build/: the modules one by one, for tests of what no entry point exports.
import { build } from "esbuild";
import { readFile, readdir, rm, writeFile } from "node:fs/promises";

for (const name of ["dist", "build"]) await rm(name, { recursive: true, force: true });
await build({
  entryPoints: ["index", "reports", "relay", "anonymous", "opentelemetry"].map((name) => `src/${name}.ts`),
  outdir: "dist",
  bundle: true,
  splitting: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "inline",
});
const sources = (await readdir("src")).map((name) => `src/${name}`);
await build({ entryPoints: sources, outdir: "build", format: "esm", target: "es2022" });
const license = (folder) => readFile(`${folder}/LICENSE`, "utf8");
const licenses = [await license("../..")];
for (const [entry, name] of [["reports", "ciphers"], ["anonymous", "curves"], ["anonymous", "hashes"]]) {
  licenses.push(`dist/${entry}.js contains @noble/${name}:\n\n${await license(`node_modules/@noble/${name}`)}`);
}
await writeFile("dist/LICENSES.txt", licenses.join(`\n${"-".repeat(80)}\n`));
