// One command of one analysis, in a thread of its own. The page hands over the compiled module and the files; it ends this worker to stop
// the command. This worker can make no request: it inherits the page's policy.

/** How often progress is reported, in milliseconds. */
const INTERVAL = 80;

/** How many bytes are read at once: each time, the browser waits for a different process. */
const AHEAD = 2 ** 23;

/** A file of the page, which is read piece by piece. */
function fileOf({ path, blob }) {
  const reader = new FileReaderSync();
  let [start, bytes] = [0, new Uint8Array()];
  const read = (offset, length) => {
    if (offset < start || offset + length > start + bytes.length) {
      start = offset;
      bytes = new Uint8Array(reader.readAsArrayBuffer(blob.slice(offset, offset + Math.max(length, AHEAD))));
    }
    return bytes.subarray(offset - start, offset - start + length);
  };
  return { path, length: blob.size, read };
}

async function answered({ module, files, args, isHtml }) {
  let last = 0;
  const instance = await open(module, files.map(fileOf), (done, total, unit) => {
    const now = performance.now();
    if (now - last >= INTERVAL) {
      last = now;
      postMessage({ progress: { done, total, unit } });
    }
  });
  return instance.run(args, isHtml);
}

onmessage = async ({ data }) => {
  const start = performance.now();
  // An error in an asynchronous function would not reach the page.
  const answer = await answered(data).catch((error) => failed(data.args, error));
  postMessage({ answer: { ...answer, seconds: (performance.now() - start) / 1000 } }, [answer.output.buffer]);
};
