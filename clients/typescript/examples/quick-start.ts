/** A sandbox with files, a script and a command; it needs `sandboxctl`, and for the command an image. */
import { NotFound, Sandbox } from "sandboxctl";

const image = process.argv[2];
await using s = await Sandbox.create({ ioDir: "out", ...(image ? { image } : {}) });

await s.files.write("data.csv", "name,amount\nada,3\ngrace,4\n");
const script = `
  local sum = 0
  for line in fs.read("data.csv"):gmatch("[^\\n]+") do
    sum += tonumber(line:match(",(%d+)$")) or 0
  end
  print("summed")
  return { sum = sum, unit = args.unit }
`;
const run = await s.runScript(script, { args: { unit: "EUR" }, timeoutMs: 5_000 });
console.log(run.status, run.result, run.logs);

try {
  await s.files.read("missing.txt");
} catch (error) {
  if (!(error instanceof NotFound)) throw error;
  console.log(error.kind, error.message);
}

if (image) {
  const command = await s.commands.run("wc -l < data.csv", { onStderr: (text) => process.stderr.write(text) });
  console.log(command.exitCode, command.stdout.trim());
}
