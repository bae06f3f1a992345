// A file of the disk as the module for browsers reads it: piece by piece.

import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { resolve } from "node:path";

/** The file at this path in this folder. The caller closes it. */
export function fileOf(folder, path) {
  const descriptor = openSync(resolve(folder, path));
  const read = (offset, length) => {
    const bytes = Buffer.alloc(length);
    return bytes.subarray(0, readSync(descriptor, bytes, 0, length, offset));
  };
  return { path, length: fstatSync(descriptor).size, read, close: () => closeSync(descriptor) };
}
