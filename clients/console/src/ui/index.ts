export * from "./basic";
export * from "./dialog";
export * from "./drop";
export * from "./file";
export * from "./output";
export * from "./table";
export * from "./tabs";
export * from "./tree";
