import { Injectable } from "@nestjs/common";

const OPTIONS = new WeakMap();

export const Tool = (options) => (target) => {
  Injectable()(target);
  OPTIONS.set(target, options);
};

export const toolOptions = (target) => OPTIONS.get(target);

export class BaseTool {
  async call(args) {
    const { schema } = OPTIONS.get(this.constructor);
    const envelope = await this.handle(schema.parse(args ?? {}), { args: {} });
    if (envelope.error) throw new Error(envelope.error);
    return { data: envelope.data, metadata: envelope.metadata ?? {} };
  }
}

const TRANSITIONS = new WeakMap();

export const Workflow = (options) => (target) => {
  Injectable()(target);
  OPTIONS.set(target, options);
};

export const Transition = (options) => (prototype, method) => {
  const transitions = TRANSITIONS.get(prototype) ?? [];
  TRANSITIONS.set(prototype, [...transitions, { from: "start", ...options, method }]);
};

export class BaseWorkflow {
  #state = {};

  assignState(state) {
    this.#state = { ...this.#state, ...state };
  }

  async run(args) {
    const { schema } = OPTIONS.get(this.constructor);
    const ctx = { args: schema ? schema.parse(args) : args };
    const transitions = TRANSITIONS.get(Object.getPrototypeOf(this));
    for (let place = "start"; place !== "end"; ) {
      const { method, to } = transitions.find(({ from }) => from === place);
      await this[method](this.#state, ctx);
      place = to;
    }
    return this.#state;
  }
}

export const BlockConfig = (options) => (target) => {
  target.blockConfig = options.config;
};

export const WithArguments = (schema) => (target) => {
  target.argsSchema = schema;
};
