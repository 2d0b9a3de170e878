/** A workflow whose step runs a script in a sandbox, and collects what it made. */
import { BaseWorkflow, type RunContext, Transition, Workflow } from "@loopstack/common";
import { Inject } from "@nestjs/common";
import {
  SandboxCommand,
  SandboxDestroy,
  SandboxInit,
  SandboxListDirectory,
  SandboxWriteFile,
} from "sandboxctl-loopstack";
import { z } from "zod";

const argsSchema = z.object({ outputDir: z.string().default("out"), imageName: z.string().optional() }).strict();
type Args = z.infer<typeof argsSchema>;

interface State {
  containerId: string;
  artifacts?: string[];
}

const SCRIPT = `
mkdir -p report
total=0
while IFS=, read -r name price; do total=$((total + price)); done < prices.csv
echo "total: $total" > report/total.txt
wc -l < prices.csv > report/lines.txt
`;

@Workflow({ title: "Report", schema: argsSchema })
export class ReportWorkflow extends BaseWorkflow<Args> {
  constructor(
    @Inject(SandboxInit) private readonly sandboxInit: SandboxInit,
    @Inject(SandboxWriteFile) private readonly sandboxWriteFile: SandboxWriteFile,
    @Inject(SandboxCommand) private readonly sandboxCommand: SandboxCommand,
    @Inject(SandboxListDirectory) private readonly sandboxListDirectory: SandboxListDirectory,
    @Inject(SandboxDestroy) private readonly sandboxDestroy: SandboxDestroy,
  ) {
    super();
  }

  @Transition({ to: "ready" })
  async init(_state: State, ctx: RunContext<Args>) {
    const { outputDir, imageName } = ctx.args;
    const { data } = await this.sandboxInit.call({
      containerId: "report",
      imageName,
      projectOutPath: outputDir,
      rootPath: "workspace",
    });
    this.assignState({ containerId: data.containerId });
  }

  @Transition({ from: "ready", to: "written" })
  async write({ containerId }: State) {
    const file = { containerId, encoding: "utf8", createParentDirs: true } as const;
    await this.sandboxWriteFile.call({ ...file, path: "/workspace/prices.csv", content: "apple,2\npear,3\n" });
    await this.sandboxWriteFile.call({ ...file, path: "/workspace/report.sh", content: SCRIPT });
  }

  @Transition({ from: "written", to: "done" })
  async runScript({ containerId }: State) {
    const { data } = await this.sandboxCommand.call({
      containerId,
      executable: "sh",
      args: ["report.sh"],
      workingDirectory: "/workspace",
      timeout: 30_000,
    });
    if (data.exitCode !== 0) throw new Error(`report.sh: ${data.stderr}`);
  }

  @Transition({ from: "done", to: "collected" })
  async collect({ containerId }: State) {
    const { data } = await this.sandboxListDirectory.call({ containerId, path: "/workspace/report", recursive: true });
    this.assignState({ artifacts: data.entries.map(({ path }) => path) });
  }

  @Transition({ from: "collected", to: "end" })
  async destroy({ containerId }: State) {
    await this.sandboxDestroy.call({ containerId, removeContainer: true });
  }
}
