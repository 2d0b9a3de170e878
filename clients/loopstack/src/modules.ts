/** The options of an application's modules. */
import { type DynamicModule, Global, Module, type Type } from "@nestjs/common";
import { SANDBOX_OPTIONS, type SandboxOptions } from "./manager.js";

@Global()
@Module({})
class SandboxOptionsModule {}

/** A module that brings this one, and tells it, and all others of the application, the options. */
export function withOptions(module: Type, options: SandboxOptions): DynamicModule {
  return {
    module: SandboxOptionsModule,
    imports: [module],
    providers: [{ provide: SANDBOX_OPTIONS, useValue: options }],
    exports: [SANDBOX_OPTIONS, module],
  };
}
