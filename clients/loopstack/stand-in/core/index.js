export class ToolBase {
  type = "tool";

  validate(args) {
    return this.constructor.argsSchema.parse(args);
  }
}
